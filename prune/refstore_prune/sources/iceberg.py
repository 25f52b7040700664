"""Reads the names of an Iceberg table: of every file that any snapshot names of any metadata file in its metadata log.

`iceberg:CATALOG.NAMESPACE.TABLE` asks a catalog, as pyiceberg's own configuration (`.pyiceberg.yaml`,
`PYICEBERG_CATALOG__*`) and the options `--property` describe it. `iceberg:METADATA_FILE_URL` and `iceberg:TABLE_FOLDER`
need no catalog: they read all metadata files of the folder, as any of them may be the current one. Files are read by
pyiceberg, with the credentials that the catalog gives, the properties, or those that pyarrow finds itself (`AWS_*`,
`~/.aws`).

A snapshot names its manifest list, the manifests in it, and the data files, delete files and deletion vectors in these.
An entry with the status DELETED counts, too: Iceberg's specification keeps its file until the snapshot that deleted it
is gone. Metadata files name themselves, snapshots, statistics and each other.

Why a table may change while it is read: whatever is committed later names files of the metadata file from which it was
made, and new files, which are young. So it is enough that one metadata file is read completely that was current when
the reading began. If something is missing that it names, the run stops: its snapshot may have expired, but newer
manifests, which were not read, may name the same data files. Metadata files in the log of another one are older. What
is gone of these, or of what only they name, is nothing that the current one needs.

Files and folders whose names begin with a dot or `_` stay, as Iceberg's own action against orphans leaves them.

The folders in which the table has metadata are listed, whatever names the table. A metadata file of another table stops
the run, as nothing tells their files apart. One that is newer than what the catalog has is read, too: it may be of a
commit under way. Older ones that are not in the log are of commits that failed, or of another catalog that writes the
same table: then both must be sources.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial, reduce
from operator import getitem
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast

import msgspec
from pyarrow import fs
from pyiceberg.avro.file import AvroFile
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import FileIO, InputFile, load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import Record
from pyiceberg.types import StructType

from refstore.core.batches import split_sized
from refstore.core.clock import SystemClock
from refstore.errors import Corrupt, Invalid, ObjectsRefused, ObjectsUnavailable, RefstoreError
from refstore_prune.sources.base import MetadataPlace, NameBatch, NamePart, NameSource, SourceFacts, SourceOptions
from refstore_prune.sources.table_place import batch_names, folders_in_store, hidden_files, place_in_store, place_of

FORMATS: Final = (1, 2, 3)
"""The versions of Iceberg's format of which is known where names stand."""
ENDINGS: Final = (".metadata.json", ".metadata.json.gz")
MANIFEST_PATH: Final = (500,)
MANIFEST_LENGTH: Final = (501,)
FILE_PATH: Final = (2, 100)
"""Where names stand in manifest lists and manifests, by the ids of the fields."""
READERS: Final = 8
"""How many metadata files or manifest lists are read at a time."""
TASK_BYTES: Final = 32 * 1024 * 1024
TASK_MANIFESTS: Final = 256
"""What a task reads at most: so many manifests of together so many bytes, or one manifest."""


class _Snapshot(msgspec.Struct, rename="kebab"):
    manifest_list: str = ""
    manifests: list[str] = []
    """In place of the list, in tables of format 1."""


class _StatisticsFile(msgspec.Struct, rename="kebab"):
    statistics_path: str


class _MetadataLogEntry(msgspec.Struct, rename="kebab"):
    metadata_file: str


class _Metadata(msgspec.Struct, rename="kebab"):
    """What names something in a metadata file, and what it says of the table."""

    format_version: int
    location: str
    table_uuid: str | None = None
    last_updated_ms: int = 0
    properties: dict[str, str] = {}
    snapshots: list[_Snapshot] | None = None
    metadata_log: list[_MetadataLogEntry] | None = None
    statistics: list[_StatisticsFile] | None = None
    partition_statistics: list[_StatisticsFile] | None = None

    def log(self) -> set[str]:
        return {entry.metadata_file for entry in self.metadata_log or ()}

    def is_of(self, other: _Metadata) -> bool:
        """Return whether both are of the same table. Old tables of format 1 have no UUID."""
        if self.table_uuid is None or other.table_uuid is None:
            return place_of(self.location) == place_of(other.location)
        return self.table_uuid == other.table_uuid


class _ManifestFile(NamedTuple):
    path: str
    bytes: int
    named_by: str
    """The metadata file because of which it must exist; '': it may be gone."""


class _IcebergTable(NamedTuple):
    """The metadata files of a table."""

    properties: dict[str, str]
    """Which read the files."""
    metadata: dict[str, _Metadata]
    """By the location of its file."""
    current: str
    heads: set[str]
    """What may be the current metadata file, as no other one has it in its log: all that these name must exist."""
    bases: set[str]
    """Folders that were listed, and the folders `metadata` below them: all metadata files there were looked at."""
    gone: int


class IcebergSource(NameSource):
    min_age = timedelta(days=3)
    never_taken = ("version-hint.text",)

    def __init__(self, target: str, options: SourceOptions) -> None:
        self.text = f"iceberg:{target}"
        self._target = target.rstrip("/")
        self._has_catalog = ":" not in target and not target.startswith("/")
        self._properties = dict(options.properties)
        self._began_ms = 0
        self._bases: set[str] = set()
        self._read: dict[str, int] = {}

    def check(self, store_url: str) -> None:
        table = self._read_table()
        now = table.metadata[table.current]
        paths = [now.properties.get("write.metadata.path", "")]
        if now.properties.get("write.object-storage.enabled", "").lower() != "true":  # by which tables share a folder
            paths.append(now.properties.get("write.data.path", ""))
        # A folder `metadata` is a table's own; in another one that has a metadata file, anything may lie.
        paths += [folder for folder in map(_folder_of, table.metadata) if folder.endswith("/metadata")]
        self.folders = folders_in_store(store_url, now.location, *paths)
        self.never_taken_folders = tuple(map(hidden_files, self.folders))

    def parts(self) -> Iterator[NamePart]:
        self._began_ms = SystemClock().now_ms()
        table = self._read_table()
        self._bases = table.bases
        names, manifests, gone = _read_lists(table)
        self._read = {"metadata files": len(table.metadata), "manifests": len(manifests)}
        self._read["metadata files and manifest lists that are gone"] = table.gone + gone
        yield from batch_names(names)
        for chosen in split_sized(manifests, lambda each: each.bytes, size_max=TASK_BYTES, items_max=TASK_MANIFESTS):
            yield partial(_read_manifests, table.properties, chosen)

    def _read_table(self) -> _IcebergTable:
        """Read the metadata files. Raises Invalid: one is of another table, or the files may be other tables', too."""
        properties, current = self._properties, ""
        metadata, older, bases = dict[str, _Metadata](), set[str](), {self._target.removesuffix("/metadata")}
        if self._has_catalog:
            current, properties = self._ask_catalog()
            metadata = dict(_read_metadata_files(properties, [current]))
            _raise_if_gone({current} - metadata.keys(), self.text)
            older = metadata[current].log()
            bases = {metadata[current].location, *map(_base_of, (current, *older))}
        elif self._target.endswith(ENDINGS):
            bases = {_base_of(self._target)}
        wanted = older | self._list(properties, {place_of(each): each for each in bases}.values())
        gone = wanted - metadata.keys()
        first = next(iter(metadata), "")
        for location, each in _read_metadata_files(properties, wanted - metadata.keys()):
            gone.discard(location)
            first = first or location
            now = metadata.get(first, each)
            if not each.is_of(now):
                raise Invalid(
                    f"{self.text}: {first} and {location} are metadata files of two tables, so nothing tells whose the "
                    "files beside them are; remove those of a table that was dropped, or leave this folder out"
                )
            if not self._has_catalog or location in older or each.last_updated_ms >= now.last_updated_ms:
                metadata[location] = each
        if not metadata:
            raise Invalid(f"{self.text} has no metadata files in {min(bases)}; name one, or the catalog and table")
        current = current or max(metadata, key=lambda each: (metadata[each].last_updated_ms, each))
        metadata |= dict(_read_metadata_files(properties, metadata[current].log() - wanted))
        in_logs = {place_of(location) for each in metadata.values() for location in each.log()}
        _raise_if_gone((each for each in gone if place_of(each) not in in_logs), self.text)
        heads = {current, *(each for each in metadata if place_of(each) not in in_logs)}
        for location in heads:
            if metadata[location].properties.get("gc.enabled", "true").lower() != "true":
                raise Invalid(
                    f"{self.text}: {location} says gc.enabled=false, so the table's files may be those of others, too, "
                    "and nothing may be deleted; if they are not, set the table's property to true"
                )
        return _IcebergTable(properties, metadata, current, heads, set(map(place_of, bases)), len(gone))

    def _ask_catalog(self) -> tuple[str, dict[str, str]]:
        """Return the current metadata file, and the properties that read it."""
        catalog, _, name = self._target.partition(".")
        with _failures_of(self.text, ObjectsUnavailable):
            try:
                table = load_catalog(catalog, **self._properties).load_table(name)
            except (NoSuchTableError, ValueError) as error:
                known = "write iceberg:CATALOG.NAMESPACE.TABLE of pyiceberg's configuration, or a URL"
                raise Invalid(f"{self.text} cannot be loaded; {known}: {error}") from error
        return table.metadata_location, dict(table.io.properties)

    def _list(self, properties: dict[str, str], bases: Iterable[str]) -> set[str]:
        """Return the metadata files in folders, and in the folders `metadata` below them."""
        found: set[str] = set()
        for folder in (f"{base.rstrip('/')}{below}" for base in bases for below in ("/metadata", "")):
            scheme, host, path = PyArrowFileIO.parse_location(folder)
            with _failures_of(folder):
                selector = fs.FileSelector(path, allow_not_found=True)
                entries = PyArrowFileIO(properties).fs_by_scheme(scheme, host).get_file_info(selector)
            found.update(f"{folder}/{each.base_name}" for each in entries if each.base_name.endswith(ENDINGS))
        return found

    def facts(self) -> SourceFacts:
        not_seen = [
            "Metadata files that fell out of the table's metadata log, and what only these name.",
            "Other tables that name files of this one or write into its folders: give each as a source.",
            "What another catalog has committed to this table: give it as a source of that catalog, too.",
            "Files that were written long ago and are first named while this runs, as add_files does.",
        ]
        if not self._has_catalog:
            not_seen.append(
                "Metadata that the table writes elsewhere since its folder or location changed: name a catalog."
            )
        return SourceFacts(source=self.text, began_ms=self._began_ms, read=self._read, not_seen=not_seen)

    def reads_metadata(self, place: MetadataPlace, store_url: str) -> bool:
        return place.kind == "iceberg" and place_in_store(store_url, place.folder) in self._bases


def open_iceberg(target: str, options: SourceOptions) -> NameSource:
    """Open a table as a source. Raises Invalid for an option that it does not know."""
    if options != SourceOptions(properties=options.properties):
        raise Invalid("iceberg: knows --property only; an endpoint of S3 is --property s3.endpoint=URL")
    return IcebergSource(target, options)


def _folder_of(location: str) -> str:
    return location.rpartition("/")[0]


def _base_of(location: str) -> str:
    """Return the folder of a metadata file, or the one above, if it has the name that this folder has by default."""
    return _folder_of(location).removesuffix("/metadata")


def _read_metadata_files(properties: dict[str, str], locations: Collection[str]) -> Iterator[tuple[str, _Metadata]]:
    """Yield what metadata files have, without those that are gone."""
    if locations:
        with ThreadPoolExecutor(READERS) as threads:
            read = threads.map(partial(_read_metadata, load_file_io(properties, min(locations))), locations)
            yield from ((location, each) for location, each in zip(locations, read, strict=True) if each is not None)


def _read_metadata(files: FileIO, location: str) -> _Metadata | None:
    try:
        data = _read_file(files, location)
    except FileNotFoundError:
        return None
    with _failures_of(location):
        metadata = msgspec.json.decode(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data, type=_Metadata)
    if metadata.format_version not in FORMATS:
        raise Invalid(
            f"{location} has version {metadata.format_version} of Iceberg's format; this refstore knows "
            f"{', '.join(map(str, FORMATS))}: use a newer one"
        )
    return metadata


def _read_lists(table: _IcebergTable) -> tuple[set[str], list[_ManifestFile], int]:
    """Return what the metadata files and manifest lists name, the manifests of these, and how many lists are gone."""
    names, lists, found = set(table.metadata), dict[str, str](), list[_ManifestFile]()
    for location, metadata in table.metadata.items():
        named_by = location if location in table.heads else ""
        for snapshot in metadata.snapshots or ():
            found += [_ManifestFile(path, 0, named_by) for path in snapshot.manifests]
            if snapshot.manifest_list:
                lists[snapshot.manifest_list] = lists.get(snapshot.manifest_list) or named_by
        for statistics in (metadata.statistics, metadata.partition_statistics):
            names.update(each.statistics_path for each in statistics or ())
    files = load_file_io(table.properties, table.current)
    with ThreadPoolExecutor(READERS) as threads:
        read = list(threads.map(partial(_read_list, files), lists, lists.values()))
    found += [manifest for manifests in read for manifest in manifests or ()]
    manifests = {each.path: each for each in sorted(found, key=lambda each: (each.named_by, each.bytes))}
    return names.union(lists, manifests), list(manifests.values()), read.count(None)


def _read_list(files: FileIO, path: str, named_by: str) -> list[_ManifestFile] | None:
    """Return the manifests of a manifest list; None: it is gone, and may be."""
    try:
        records = _read_records(files, path, MANIFEST_PATH, MANIFEST_LENGTH)
        return [_ManifestFile(manifest, length, named_by) for manifest, length in records]
    except FileNotFoundError:
        _raise_if_gone([path] if named_by else [], named_by)
        return None


def _read_manifests(properties: dict[str, str], manifests: Sequence[_ManifestFile]) -> Iterator[NameBatch]:
    """Yield the names in some manifests."""
    files = load_file_io(properties, manifests[0].path)
    for each in manifests:
        try:
            records = _read_records(files, each.path, FILE_PATH, bytes_min=each.bytes)
            yield from batch_names(path for (path,) in records)
        except FileNotFoundError:
            _raise_if_gone([each.path] if each.named_by else [], each.named_by)


def _raise_if_gone(paths: Iterable[str], named_by: str) -> None:
    """Raise Corrupt for what must exist, and does not."""
    for path in paths:
        raise Corrupt(
            f"{path} is missing, and {named_by} names it, so nothing may be deleted; run again, as a snapshot may have "
            "expired while the table was read. If it is missing then, restore it; or remove a metadata file that a "
            "commit left which failed, and that no catalog knows"
        )


def _read_records(files: FileIO, path: str, *fields: tuple[int, ...], bytes_min: int = 0) -> Iterator[tuple[Any, ...]]:
    """Yield some fields of the records of an Avro file. Raises Corrupt: it is not whole, or has no such field."""
    data = _read_file(files, path)
    held = SimpleNamespace(open=lambda: io.BytesIO(data))  # all that an AvroFile asks of its file
    with _failures_of(path), AvroFile[Record](cast("InputFile", held)) as avro:
        if len(data) < bytes_min or not _is_whole(data, avro.decoder.tell(), avro.header.sync):
            raise EOFError(f"it ends before its end, with {len(data)} bytes")
        columns = [_positions(avro.schema.as_struct(), ids) for ids in fields]
        for record in avro:
            yield tuple(reduce(getitem, positions, record) for positions in columns)


def _is_whole(data: bytes, at: int, mark: bytes) -> bool:
    """Return whether blocks of records fill the file. pyiceberg reads on in memory after half a block, and ends at an
    empty one, which it writes itself where there is no record.
    """
    while at < len(data):
        records, at = _read_long(data, at)
        size, at = _read_long(data, at)
        at += size + len(mark)
        if records < (at < len(data)) or size < 0 or data[at - len(mark) : at] != mark:
            return False
    return at == len(data)


def _read_long(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of Avro's, and where it ends."""
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return (value >> 1) ^ -(value & 1), at


def _positions(struct: StructType, ids: Sequence[int]) -> list[int]:
    """Return where the field is that these ids lead to."""
    at = next(at for at, each in enumerate(struct.fields) if each.field_id == ids[0])
    return [at, *(_positions(cast("StructType", struct.fields[at].field_type), ids[1:]) if ids[1:] else ())]


def _read_file(files: FileIO, path: str) -> bytes:
    if ":" in path and not set("?#").isdisjoint(path):
        raise Invalid(f"{path} has a ? or #, which pyiceberg takes for the end of the name; move the table")
    with _failures_of(path), files.new_input(path).open() as stream:
        return stream.read()


@contextmanager
def _failures_of(path: str, otherwise: type[RefstoreError] = Corrupt) -> Generator[None]:
    """Raise errors of refstore: each FileIO, catalog and decoder raises what its client raises."""
    unread = f"{path} cannot be read, so its names are unknown and nothing may be deleted"
    try:
        yield
    except (FileNotFoundError, RefstoreError):
        raise
    except PermissionError as error:
        raise ObjectsRefused(f"{unread}; see the credentials and properties: {error}") from error
    except OSError as error:
        raise ObjectsUnavailable(f"{unread}; run again: {error}") from error
    except Exception as error:
        raise otherwise(f"{unread}; see what it has: {type(error).__name__}: {error}") from error
