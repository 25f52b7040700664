"""Reads the names of an Iceberg table: of every file that any snapshot names of any metadata file in its metadata log.

`iceberg:CATALOG.NAMESPACE.TABLE` asks a catalog, as pyiceberg's own configuration (`.pyiceberg.yaml`,
`PYICEBERG_CATALOG__*`) and the options `--property` describe it. `iceberg:METADATA_FILE_URL` and `iceberg:TABLE_FOLDER`
need no catalog: they read all metadata files of the folder, whichever is the current one. Files are read by pyiceberg,
with the credentials that the catalog gives, the properties, or those that pyarrow finds itself (`AWS_*`, `~/.aws`).

A snapshot names its manifest list, the manifests in it, and the data files, delete files and deletion vectors in these.
An entry with the status DELETED counts, too: Iceberg's specification keeps its file until the snapshot that deleted it
is gone. Metadata files name themselves, snapshots, statistics and each other.

The snapshots of the current metadata file must be there completely. Older metadata files name snapshots that expired
since: what is gone of these names nothing any more.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial, reduce
from operator import getitem
from typing import Any, Final, NamedTuple, cast

import msgspec
import pyarrow as pa
from pyarrow import fs
from pyiceberg.avro.file import AvroFile
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import FileIO, InputFile, InputStream, load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import Record
from pyiceberg.types import StructType

from refstore.core.batches import split_batches, split_sized
from refstore.core.clock import SystemClock
from refstore.errors import Corrupt, Invalid, ObjectsRefused, ObjectsUnavailable
from refstore_prune.sources.base import (
    BATCH_NAMES,
    MetadataPlace,
    NameBatch,
    NamePart,
    NameSource,
    SourceFacts,
    SourceOptions,
)
from refstore_prune.sources.table_place import place_in_store, place_of

FORMATS: Final = (1, 2, 3)
"""The versions of Iceberg's format of which is known where names stand."""
ATTEMPTS: Final = 5
"""How often a table is read that changes meanwhile."""
READERS: Final = 8
"""How many manifest lists are read at a time."""
TASK_BYTES: Final = 32 * 1024 * 1024
TASK_MANIFESTS: Final = 256
"""What a task reads at most: so many manifests of together so many bytes, or one manifest."""

MANIFEST_PATH: Final = (500,)
MANIFEST_LENGTH: Final = (501,)
FILE_PATH: Final = (2, 100)
"""Where names stand in manifest lists and manifests, by the ids of the fields."""


class _Snapshot(msgspec.Struct, rename="kebab"):
    manifest_list: str = ""
    manifests: list[str] = []
    """In place of the list, in tables of format 1."""


class _StatisticsFile(msgspec.Struct, rename="kebab"):
    statistics_path: str


class _LogEntry(msgspec.Struct, rename="kebab"):
    metadata_file: str


class _Metadata(msgspec.Struct, rename="kebab"):
    """What names something in a metadata file."""

    format_version: int
    location: str
    last_updated_ms: int = 0
    snapshots: list[_Snapshot] | None = None
    metadata_log: list[_LogEntry] | None = None
    statistics: list[_StatisticsFile] | None = None
    partition_statistics: list[_StatisticsFile] | None = None


class _Manifest(NamedTuple):
    path: str
    bytes: int
    must_exist: bool
    """Whether a snapshot of the current metadata file names it."""


@dataclass(slots=True)
class _TableNames:
    """What the metadata files and manifest lists of a table name."""

    folders: set[str] = field(default_factory=set[str])
    """Where the table and its metadata files lie."""
    files: set[str] = field(default_factory=set[str])
    """All but what only manifests name."""
    manifests: dict[str, _Manifest] = field(default_factory=dict[str, _Manifest])
    metadata_files: int = 0
    snapshots: int = 0
    gone: set[str] = field(default_factory=set[str])
    """Metadata files of the log, and manifest lists of expired snapshots, that are not there."""


class _HeldFile(InputFile):
    """Bytes that were read, as a file for pyiceberg."""

    def __init__(self, location: str, data: bytes) -> None:
        super().__init__(location)
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def exists(self) -> bool:
        return True

    def open(self, seekable: bool = True) -> InputStream:
        del seekable
        return cast("InputStream", io.BytesIO(self._data))


@dataclass(frozen=True, slots=True)
class _TableReader:
    """Reads a table. It is pickled to tasks."""

    text: str
    target: str
    properties: dict[str, str]

    @property
    def in_catalog(self) -> bool:
        return ":" not in self.target and not self.target.startswith("/")

    def locate(self) -> tuple[list[str], dict[str, str]]:
        """Return the metadata files, the current one first where that is known, and the properties that read them."""
        if not self.in_catalog:
            return self._list_folder(), self.properties
        catalog, _, table_name = self.target.partition(".")
        if "." not in table_name:
            raise Invalid(f"{self.text} names no table; write iceberg:CATALOG.NAMESPACE.TABLE, or a URL")
        try:
            table = load_catalog(catalog, **self.properties).load_table(table_name)
        except NoSuchTableError as error:
            raise Invalid(f"{self.text} is not in its catalog; see its name there: {error}") from error
        except Exception as error:  # each catalog raises what its client raises
            raise ObjectsUnavailable(
                f"{self.text} cannot be asked of its catalog; see pyiceberg's configuration: "
                f"{type(error).__name__}: {error}"
            ) from error
        return [table.metadata_location], dict(table.io.properties)

    def _list_folder(self) -> list[str]:
        """Return all metadata files of the folder; the one that the source names comes first."""
        is_file = self.target.endswith((".metadata.json", ".metadata.json.gz"))
        target = self.target.rstrip("/")
        folder = target.rpartition("/")[0] if is_file else f"{target}/metadata"
        scheme, host, path = PyArrowFileIO.parse_location(folder)
        try:
            found: list[fs.FileInfo] = (
                PyArrowFileIO(self.properties).fs_by_scheme(scheme, host).get_file_info(fs.FileSelector(path))
            )
        except FileNotFoundError as error:
            raise Invalid(
                f"{self.text} has no folder of metadata files at {folder}; name one of these files"
            ) from error
        except OSError as error:
            raise _failure(folder, error) from error
        names = [each.base_name for each in found if each.base_name.endswith((".metadata.json", ".metadata.json.gz"))]
        if not names:
            raise Invalid(f"{self.text} has no metadata file in {folder}; name a file, or the catalog and table")
        files = sorted(f"{folder}/{name}" for name in names)
        return [target, *(each for each in files if each != target)] if is_file else files

    def read(self) -> tuple[_TableNames, dict[str, str]]:
        """Read the metadata files and manifest lists, again where the table changed meanwhile. Raises Corrupt: what the
        current metadata file names is not there.
        """
        missing: FileNotFoundError | None = None
        for _ in range(ATTEMPTS):
            locations, properties = self.locate()
            try:
                return self._read_names(locations, load_file_io(properties, locations[0])), properties
            except FileNotFoundError as error:
                missing = error
        raise Corrupt(
            f"{self.text}: a file is missing that its current metadata names, so nothing may be deleted; restore it, "
            f"or name the folder or the newest metadata file of the table: {missing}"
        )

    def _read_names(self, locations: list[str], files: FileIO) -> _TableNames:
        found = _TableNames()
        metadata = {locations[0]: _read_metadata(files, locations[0])}
        self._read_older(locations[1:], files, metadata, found)
        current = locations[0]
        if not self.in_catalog and self.target.rstrip("/") != current:
            current = max(metadata, key=lambda each: (metadata[each].last_updated_ms, each))
        self._read_older(
            [entry.metadata_file for entry in metadata[current].metadata_log or ()], files, metadata, found
        )

        lists: dict[str, bool] = {}
        for location in (current, *metadata):
            for snapshot in metadata[location].snapshots or ():
                for path in snapshot.manifests:
                    _ = found.manifests.setdefault(path, _Manifest(path, 0, location == current))
                if snapshot.manifest_list:
                    _ = lists.setdefault(snapshot.manifest_list, location == current)
            for statistics in (metadata[location].statistics, metadata[location].partition_statistics):
                found.files.update(each.statistics_path for each in statistics or ())
            found.folders |= _folders_of(location, metadata[location])
        found.metadata_files, found.snapshots = len(metadata), len(lists)
        with ThreadPoolExecutor(READERS) as threads:
            # those of the current metadata first: a manifest of theirs must exist, whoever else names it
            for path, manifests in zip(
                lists, threads.map(partial(_read_manifests, files), lists, lists.values()), strict=True
            ):
                for manifest in manifests if manifests is not None else ():
                    _ = found.manifests.setdefault(manifest.path, manifest)
                if manifests is None:
                    found.gone.add(path)
        found.files.update(metadata, lists, found.manifests)
        return found

    @staticmethod
    def _read_older(
        locations: Iterable[str], files: FileIO, metadata: dict[str, _Metadata], found: _TableNames
    ) -> None:
        for location in locations:
            if location not in metadata:
                try:
                    metadata[location] = _read_metadata(files, location)
                except FileNotFoundError:
                    found.gone.add(location)


@dataclass(frozen=True, slots=True)
class _ManifestTask:
    """Reads the names in some manifests."""

    table: _TableReader
    properties: dict[str, str]
    manifests: list[_Manifest]

    def __call__(self) -> Iterator[NameBatch]:
        for names in split_batches(self._names(), BATCH_NAMES):
            yield pa.array(names, pa.string())

    def _names(self) -> Iterator[str]:
        files = load_file_io(self.properties, self.manifests[0].path)
        named_now: dict[str, _Manifest] | None = None
        for manifest in self.manifests:
            try:
                for (path,) in _read_records(files, manifest.path, FILE_PATH, bytes_min=manifest.bytes):
                    yield path
            except FileNotFoundError as error:
                if manifest.must_exist and named_now is None:
                    named_now = self.table.read()[0].manifests
                if named_now and manifest.path in named_now and named_now[manifest.path].must_exist:
                    raise Corrupt(
                        f"{self.table.text}: {manifest.path} is missing, and a snapshot of the table names it, so "
                        "nothing may be deleted; restore it, or expire the snapshot"
                    ) from error


class IcebergSource(NameSource):
    min_age = timedelta(days=3)
    never_taken = ("version-hint.text", ".*.crc", "_SUCCESS")

    def __init__(self, target: str, options: SourceOptions) -> None:
        self.text = f"iceberg:{target}"
        self._table = _TableReader(self.text, target, dict(options.properties))
        self._began_ms = 0
        self._folders: set[str] = set()
        self._read: dict[str, int] = {}

    def check(self, store_url: str) -> None:
        del store_url
        locations, properties = self._table.locate()
        try:
            metadata = _read_metadata(load_file_io(properties, locations[0]), locations[0])
        except FileNotFoundError as error:
            raise Invalid(f"{self.text}: its metadata file is not there: {error}") from error
        self._folders |= _folders_of(locations[0], metadata)

    def parts(self) -> Iterator[NamePart]:
        self._began_ms = SystemClock().now_ms()
        found, properties = self._table.read()
        self._folders |= found.folders
        self._read = {
            "metadata files": found.metadata_files,
            "snapshots": found.snapshots,
            "manifests": len(found.manifests),
            "metadata files and manifest lists that are gone": len(found.gone),
        }
        for names in split_batches(found.files, BATCH_NAMES):
            yield pa.array(names, pa.string())
        manifests = found.manifests.values()
        for chosen in split_sized(manifests, lambda each: each.bytes, size_max=TASK_BYTES, items_max=TASK_MANIFESTS):
            yield _ManifestTask(self._table, properties, chosen)

    def facts(self) -> SourceFacts:
        return SourceFacts(
            source=self.text,
            began_ms=self._began_ms,
            read=self._read,
            not_seen=[
                "Metadata files that fell out of the table's metadata log, and what only these name.",
                "Other tables, in this or another catalog, that name files of this one: give each as a source.",
                "Files that were written long ago and are first named while this runs, as add_files does.",
            ],
        )

    def reads_metadata(self, place: MetadataPlace, store_url: str) -> bool:
        if place.kind != "iceberg":
            return False
        folder = place_in_store(store_url, place.folder)
        return any(place_of(each) == folder for each in self._folders)


def open_iceberg(target: str, options: SourceOptions) -> NameSource:
    """Open a table as a source. Raises Invalid for an option that it does not know."""
    if options.endpoint or options.column or options.rules is not None:
        raise Invalid("iceberg: knows --property only; an endpoint of S3 is --property s3.endpoint=URL")
    return IcebergSource(target, options)


def _read_metadata(files: FileIO, location: str) -> _Metadata:
    data = _read(files, location)
    try:
        metadata = msgspec.json.decode(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data, type=_Metadata)
    except (msgspec.MsgspecError, OSError, EOFError) as error:
        raise Corrupt(
            f"{location} is no metadata file of an Iceberg table, so nothing may be deleted: {error}"
        ) from error
    if metadata.format_version not in FORMATS:
        raise Invalid(
            f"{location} has version {metadata.format_version} of Iceberg's format; this refstore knows "
            f"{', '.join(map(str, FORMATS))}: use a newer one"
        )
    return metadata


def _folders_of(location: str, metadata: _Metadata) -> set[str]:
    """Return what may be meant by the folder of the table."""
    folder = location.rpartition("/")[0]
    return {folder, folder.removesuffix("/metadata"), metadata.location}


def _read_manifests(files: FileIO, path: str, must_exist: bool) -> list[_Manifest] | None:
    """Return the manifests of a manifest list; None: it is gone, and may be."""
    try:
        records = _read_records(files, path, MANIFEST_PATH, MANIFEST_LENGTH)
        return [_Manifest(manifest, length, must_exist) for manifest, length in records]
    except FileNotFoundError:
        if must_exist:
            raise
        return None


def _read_records(files: FileIO, path: str, *fields: tuple[int, ...], bytes_min: int = 0) -> Iterator[tuple[Any, ...]]:
    """Yield some fields of the records of an Avro file. Raises Corrupt: it is not whole, or has no such field."""
    data = _read(files, path)
    try:
        with AvroFile[Record](_HeldFile(path, data)) as avro:
            columns = [_positions(avro.schema.as_struct(), ids) for ids in fields]
            for record in avro:
                yield tuple(reduce(getitem, positions, record) for positions in columns)
            end = avro.decoder.tell()
    except Exception as error:  # of bytes that are no Avro, or encrypted, the decoder raises anything
        raise Corrupt(f"{path} cannot be read as Avro, so nothing may be deleted; restore it: {error}") from error
    if end != len(data) or len(data) < bytes_min:  # pyiceberg takes half a block for the end
        raise Corrupt(f"{path} is not whole ({len(data)} bytes), so nothing may be deleted; restore it")


def _positions(struct: StructType, ids: Sequence[int]) -> list[int]:
    """Return where the field is that these ids lead to."""
    at = next(at for at, each in enumerate(struct.fields) if each.field_id == ids[0])
    return [at, *(_positions(cast("StructType", struct.fields[at].field_type), ids[1:]) if ids[1:] else ())]


def _read(files: FileIO, path: str) -> bytes:
    """Return the file. Raises FileNotFoundError, and errors of refstore for all else."""
    if ":" in path and not set("?#").isdisjoint(path):
        raise Invalid(f"{path} has a ? or #, which pyiceberg takes for the end of the name; move the table")
    try:
        with files.new_input(path).open() as stream:
            return stream.read()
    except FileNotFoundError:
        raise
    except Exception as error:  # each implementation of FileIO raises what its client raises
        raise _failure(path, error) from error


def _failure(path: str, error: Exception) -> ObjectsUnavailable:
    kind = ObjectsRefused if isinstance(error, PermissionError) else ObjectsUnavailable
    return kind(f"{path} cannot be read, so its names are unknown; see the credentials and properties: {error}")
