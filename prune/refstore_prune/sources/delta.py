"""Reads the names of a Delta table: of every file that any version names which the table's log still has.

`delta:TABLE_URL` reads the log through refstore's own driver of the URL's scheme, with the credentials that it finds:
for `s3://` those of boto3 (`AWS_*`, `~/.aws`), and another endpoint by `?endpoint=`. The log is read directly, as
libraries answer what one version needs, and leave out removed files, change data and older versions.

All commits that are there are read, the oldest checkpoint, the newest one, and each one before which a commit is gone:
what the other checkpoints name, an older one and the commits after it name, too. Removed files are named as long as
the log has them, because older versions and readers of changes need them. So are change data and deletion vectors. If a
part of the log vanishes while it is read, the run stops: a new checkpoint has what it named, and was not read.

All that lies in `_delta_log/` and other hidden folders stays, as VACUUM leaves it.

A table with a feature that this module does not know is refused by the feature's name: it may name files elsewhere.
"""

from __future__ import annotations

import io
import re
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial, reduce
from itertools import chain, pairwise
from typing import Any, Final, NamedTuple, cast
from urllib.parse import quote, unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from refstore.core.batches import split_sized
from refstore.core.clock import SystemClock
from refstore.errors import Corrupt, CorruptObject, Invalid, ObjectNotFound, RefstoreError
from refstore.objects import open_objects
from refstore.objects.base import ObjectInfo, ObjectStore
from refstore.objects.store_urls import parse_store_url
from refstore.objects.stored_file import open_object
from refstore_prune.sources.base import (
    BATCH_NAMES,
    MetadataPlace,
    NameBatch,
    NamePart,
    NameSource,
    SourceFacts,
    SourceOptions,
)
from refstore_prune.sources.table_place import batch_names, folders_in_store, hidden_files, place_in_store, place_of

LOG: Final = "_delta_log/"
CHANGE_DATA: Final = "_change_data/"
ICEBERG: Final = "metadata/"
"""In which UniForm writes that of Iceberg. VACUUM leaves it alone, and all that is hidden but for change data."""
SIDECARS: Final = f"{LOG}_sidecars/"
TASK_BYTES: Final = 16 * 1024 * 1024
TASK_COMMITS: Final = 200
"""What a task reads at most: so many commits of together so many bytes, or one file."""

READER_VERSION_MAX: Final = 3
WRITER_VERSION_MAX: Final = 7
_FEATURES: Final = """
    allowColumnDefaults appendOnly changeDataFeed checkConstraints checkpointProtection clustering collations
    collations-preview columnMapping deletionVectors domainMetadata generatedColumns geospatial icebergCompatV1
    icebergCompatV2 icebergCompatV3 icebergWriterCompatV1 icebergWriterCompatV3 identityColumns inCommitTimestamp
    inCommitTimestamp-preview invariants materializePartitionColumns rowTracking timestampNanos timestampNtz
    typeWidening typeWidening-preview v2Checkpoint vacuumProtocolCheck variantShredding variantShredding-preview
    variantType variantType-preview
"""
FEATURES: Final = frozenset(_FEATURES.split())
"""Features of tables that name no files but those which this module reads. Those by which a catalog keeps commits, or
by which the table lies elsewhere, are not among them.
"""

_COMMIT: Final = re.compile(r"(\d{20})\.json")
_COMPACTED: Final = re.compile(r"\d{20}\.\d{20}\.compacted\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10})|\.[0-9a-fA-F-]{36})?\.(?:parquet|json)")
_ABSOLUTE: Final = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")
_Z85: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


class _DeletionVector(msgspec.Struct, rename="camel"):
    storage_type: str
    path_or_inline_dv: str


class _File(msgspec.Struct, rename="camel"):
    path: str
    deletion_vector: _DeletionVector | None = None


class _TableProtocol(msgspec.Struct, rename="camel"):
    min_reader_version: int
    min_writer_version: int
    reader_features: list[str] | None = None
    writer_features: list[str] | None = None


class _Action(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """An action of the log. One that is not here may name files."""

    add: _File | None = None
    remove: _File | None = None
    cdc: _File | None = None
    sidecar: _File | None = None
    protocol: _TableProtocol | None = None
    meta_data: msgspec.Raw = msgspec.Raw()
    txn: msgspec.Raw = msgspec.Raw()
    commit_info: msgspec.Raw = msgspec.Raw()
    domain_metadata: msgspec.Raw = msgspec.Raw()
    checkpoint_metadata: msgspec.Raw = msgspec.Raw()


_decode_action: Final = msgspec.json.Decoder(_Action).decode
_ACTIONS: Final = frozenset(_Action.__struct_encode_fields__)
_COLUMNS: Final = [
    "protocol",
    *(f"{action}.path" for action in ("add", "remove", "cdc", "sidecar")),
    *(
        f"{action}.deletionVector.{field}"
        for action in ("add", "remove")
        for field in ("storageType", "pathOrInlineDv")
    ),
]


class _Log(NamedTuple):
    """What is in the log."""

    commits: list[ObjectInfo]
    checkpoints: list[ObjectInfo]
    """Files of those that must be read."""
    version: int


@dataclass(frozen=True, slots=True)
class _LogReader:
    """Reads the log of a table. It is pickled to tasks."""

    text: str
    url: str
    folder: str
    """The URL as tables write it: without percent-encoding and options."""

    def open(self) -> ObjectStore:
        return open_objects(self.url, read_only=True)

    def list_log(self, store: ObjectStore) -> _Log:
        """List the log. Raises Corrupt: the newest version cannot be read of what is there; Invalid: there is none."""
        commits: dict[int, ObjectInfo] = {}
        compacted: list[ObjectInfo] = []
        parts: dict[tuple[int, int, str], list[ObjectInfo]] = {}
        for each in store.list(LOG):
            name = each.key.removeprefix(LOG)
            if found := _COMMIT.fullmatch(name):
                commits[int(found[1])] = each
            elif found := _CHECKPOINT.fullmatch(name):
                parts.setdefault((int(found[1]), int(found[2] or 1), "" if found[2] else name), []).append(each)
            elif _COMPACTED.fullmatch(name):
                compacted.append(each)
        checkpoints: dict[int, list[ObjectInfo]] = {}
        for (version, count, _), files in sorted(parts.items()):
            if len(files) == count:  # nobody reads one of which parts are missing
                checkpoints.setdefault(version, []).extend(files)
        if not commits and not checkpoints:
            raise Invalid(f"{self.text} has no log of a Delta table below {LOG}; name the folder of the table itself")
        newest = max(checkpoints, default=-1)
        version = max((newest, *commits))
        if missing := set(range(newest + 1, version)) - commits.keys():
            raise Corrupt(
                f"{self.text}: commit {min(missing)} of its log is missing, so the table cannot be read and nothing "
                "may be deleted; run again, and if it is missing then, restore it"
            )
        needed = {newest} & checkpoints.keys()
        for before, after in pairwise([-1, *checkpoints]):
            if not commits.keys() >= set(range(before + 1, after + 1)):
                needed.add(after)
        files = [each for at in sorted(needed) for each in checkpoints[at]]
        return _Log([*commits.values(), *compacted], files, version)

    def read(self, files: Iterable[ObjectInfo]) -> Iterator[NameBatch]:
        yield from batch_names(self._read(files))

    def _read(self, files: Iterable[ObjectInfo]) -> Iterator[str]:
        """Yield the names in files of the log. Raises Corrupt."""
        store = self.open()
        for each in files:
            try:
                read = self._read_lines if each.key.endswith(".json") else self._read_parquet
                for action in read(store, each):
                    yield from self._names_of(store, action)
            except (ObjectNotFound, CorruptObject) as error:
                raise Corrupt(
                    f"{self.text}: {each.key}, or what it names, is not there or was replaced, so nothing may be "
                    f"deleted; run again, as the log may have been cleaned up, or restore it: {error}"
                ) from error
            except RefstoreError:
                raise
            except (msgspec.MsgspecError, pa.ArrowException, OSError, ValueError, LookupError) as error:
                raise Corrupt(
                    f"{self.text}: {each.key} cannot be read, or has what this refstore does not know, so nothing may "
                    f"be deleted; restore it, or use a newer refstore: {error}"
                ) from error

    def _read_lines(self, store: ObjectStore, file: ObjectInfo) -> Iterator[_Action]:
        for line in io.BufferedReader(open_object(store, file.key, file.size_bytes)):
            if line.strip():
                yield _decode_action(line)

    def _read_parquet(self, store: ObjectStore, file: ObjectInfo) -> Iterator[_Action]:
        parquet: Any = pq.ParquetFile(cast("Any", open_object(store, file.key, file.size_bytes)))
        if unknown := set(parquet.schema_arrow.names) - _ACTIONS:
            raise msgspec.ValidationError(f"the unknown column {min(unknown)}")
        for batch in parquet.iter_batches(BATCH_NAMES, columns=_COLUMNS):
            for kind in batch.schema.names:
                for action in batch.column(kind).drop_null().to_pylist():
                    yield msgspec.convert({kind: action}, _Action)

    def _names_of(self, store: ObjectStore, action: _Action) -> Iterator[str]:
        if action.protocol is not None:
            self.check_protocol(action.protocol)
        if action.sidecar is not None:  # it lies in the folder of all, whatever stands before its name
            sidecar = store.head(SIDECARS + unquote(action.sidecar.path).rpartition("/")[2])
            for each in self._read_parquet(store, sidecar):
                yield from self._names_of(store, each)
        for each in (action.add, action.remove, action.cdc):
            if each is not None:
                yield from self._names(each.path, each.deletion_vector)

    def _names(self, path: str, vector: _DeletionVector | None) -> Iterator[str]:
        for each in {path, unquote(path)}:  # in a folder that has %XX in its own name the log's must be decoded
            yield self._name(each)
        if vector is None or vector.storage_type == "i":
            return
        if vector.storage_type == "p":
            yield self._name(vector.path_or_inline_dv)
        elif vector.storage_type == "u":
            prefix, encoded = vector.path_or_inline_dv[:-20], vector.path_or_inline_dv[-20:]
            name = f"deletion_vector_{uuid.UUID(bytes=_decode_z85(encoded))}.bin"
            yield "/".join((self.folder, *filter(None, (prefix, name))))
        else:
            raise msgspec.ValidationError(f"a deletion vector of the unknown kind {vector.storage_type!r}")

    def _name(self, path: str) -> str:
        """Return the URL of a path, percent-encoded as it is in the log, and of some writers was not."""
        return path if _ABSOLUTE.match(path) else f"{self.folder}/{path}"

    def check_protocol(self, protocol: _TableProtocol) -> None:
        """Raise Invalid for a table that may name files where nobody looks."""
        versions = protocol.min_reader_version, protocol.min_writer_version
        if versions[0] > READER_VERSION_MAX or versions[1] > WRITER_VERSION_MAX:
            raise Invalid(
                f"{self.text} needs version {versions} of Delta's protocol for readers and writers; this "
                f"refstore knows {READER_VERSION_MAX} and {WRITER_VERSION_MAX}: use a newer one"
            )
        if unknown := {*(protocol.reader_features or ()), *(protocol.writer_features or ())} - FEATURES:
            raise Invalid(
                f"{self.text} has the feature {min(unknown)!r}: this refstore does not know where such a table names "
                f"files. It knows {', '.join(sorted(FEATURES))}: use a newer one"
            )


class DeltaSource(NameSource):
    min_age = timedelta(days=7)

    def __init__(self, target: str) -> None:
        self.text = f"delta:{target}"
        url = f"file://{quote(target)}" if target.startswith("/") else re.sub(r"^s3[an]://", "s3://", target)
        place = parse_store_url(url.rstrip("/"))
        self.base_url = f"{place.scheme}://{place.host}{place.path}".rstrip("/")
        self._log = _LogReader(self.text, place.text(), self.base_url)
        self._began_ms = 0
        self._read: dict[str, int] = {}

    def check(self, store_url: str) -> None:
        if any(folders_in_store(self._log.url, place_in_store(store_url, ""))):
            raise Invalid(f"{store_url} is only a part of {self.text}; prune the table's folder, or one above it")
        self.folders = folders_in_store(store_url, self.base_url)
        self.never_taken_folders = tuple(
            f"{hidden_files(each, CHANGE_DATA)}|{re.escape(each)}(?s:.*/)?{ICEBERG}" for each in self.folders
        )
        for _ in self._log.read(self._log.list_log(self._log.open()).commits[-1:]):
            pass

    def parts(self) -> Iterator[NamePart]:
        self._began_ms = SystemClock().now_ms()
        log = self._log.list_log(self._log.open())
        self._read = {"newest version": log.version, "commits": len(log.commits), "checkpoints": len(log.checkpoints)}
        tasks = chain(
            split_sized(log.commits, lambda each: each.size_bytes, size_max=TASK_BYTES, items_max=TASK_COMMITS),
            ([each] for each in log.checkpoints),
        )
        for files in tasks:
            yield partial(self._log.read, files)

    def facts(self) -> SourceFacts:
        not_seen = [
            "Versions of which the log was cleaned up, and what only these name.",
            "Shallow clones of this table that lie elsewhere: give each as a source.",
            "Iceberg metadata that is written for this table (UniForm): give it as a source of iceberg:.",
            "Files that were written long ago and are first named while this runs, as CONVERT TO DELTA does.",
        ]
        return SourceFacts(source=self.text, began_ms=self._began_ms, read=self._read, not_seen=not_seen)

    def reads_metadata(self, place: MetadataPlace, store_url: str) -> bool:
        return place.kind == "_delta_log" and place_in_store(store_url, place.folder) == place_of(self.base_url)


def open_delta(target: str, options: SourceOptions) -> NameSource:
    """Open a table as a source. Raises Invalid for an option, as it knows none."""
    if options != SourceOptions():
        raise Invalid(
            "delta: has no options; an endpoint of S3 stands in the URL: delta:s3://BUCKET/TABLE?endpoint=URL"
        )
    return DeltaSource(target)


def _decode_z85(text: str) -> bytes:
    data = b""
    for at in range(0, len(text), 5):
        data += reduce(lambda value, letter: value * 85 + _Z85.index(letter), text[at : at + 5], 0).to_bytes(4, "big")
    return data
