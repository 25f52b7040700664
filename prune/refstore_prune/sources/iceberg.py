"""Reads the names of an Iceberg table: of every file that any snapshot names of any metadata file in its metadata log.

`iceberg:CATALOG.NAMESPACE.TABLE` asks a catalog, as pyiceberg's own configuration (`.pyiceberg.yaml`,
`PYICEBERG_CATALOG__*`) and the options `--property` describe it. `iceberg:METADATA_FILE_URL` and `iceberg:TABLE_FOLDER`
need no catalog: they read all metadata files of the folder, as any of them may be newer. Files are read by pyiceberg,
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
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial, reduce
from operator import getitem
from typing import Any, Final, NamedTuple, cast

import msgspec
from pyarrow import fs
from pyiceberg.avro.file import AvroFile
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import FileIO, InputFile, InputStream, load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import Record
from pyiceberg.types import StructType

from refstore.core.batches import split_sized
from refstore.core.clock import SystemClock
from refstore.errors import Corrupt, Invalid, ObjectsRefused, ObjectsUnavailable, RefstoreError
from refstore_prune.sources.base import MetadataPlace, NameBatch, NamePart, NameSource, SourceFacts, SourceOptions
from refstore_prune.sources.table_place import NOWHERE, batch_names, folder_in_store, place_in_store, place_of

FORMATS: Final = (1, 2, 3)
"""The versions of Iceberg's format of which is known where names stand."""
ENDINGS: Final = (".metadata.json", ".metadata.json.gz")
MANIFEST_PATH: Final = (500,)
MANIFEST_LENGTH: Final = (501,)
FILE_PATH: Final = (2, 100)
"""Where names stand in manifest lists and manifests, by the ids of the fields."""
ATTEMPTS: Final = 5
"""How often a table is read that changes meanwhile."""
READERS: Final = 8
"""How many manifest lists are read at a time."""
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
    """What names something in a metadata file."""

    format_version: int
    location: str
    last_updated_ms: int = 0
    snapshots: list[_Snapshot] | None = None
    metadata_log: list[_MetadataLogEntry] | None = None
    statistics: list[_StatisticsFile] | None = None
    partition_statistics: list[_StatisticsFile] | None = None


class _ManifestFile(NamedTuple):
    path: str
    bytes: int
    must_exist: bool
    """Whether a snapshot of the current metadata file names it."""


class _TableNames(NamedTuple):
    """What the metadata files and manifest lists of a table name."""

    files: set[str]
    """All but what only manifests name."""
    manifests: dict[str, _ManifestFile]
    folders: set[str]
    """Where the table and its metadata files lie."""
    location: str
    """Where the table lies as of its current metadata file."""
    read: dict[str, int]


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

    def locate(self) -> tuple[str, list[str], dict[str, str]]:
        """Return the current metadata file ('': not known), others, and the properties that read them."""
        if ":" in self.target or self.target.startswith("/"):
            return (self.target if self.target.endswith(ENDINGS) else "", self._list_folder(), self.properties)
        catalog, _, name = self.target.partition(".")
        with _failures_of(self.text, ObjectsUnavailable):
            try:
                table = load_catalog(catalog, **self.properties).load_table(name)
            except (NoSuchTableError, ValueError) as error:
                known = "write iceberg:CATALOG.NAMESPACE.TABLE of pyiceberg's configuration, or a URL"
                raise Invalid(f"{self.text} cannot be loaded; {known}: {error}") from error
        return table.metadata_location, [], dict(table.io.properties)

    def _list_folder(self) -> list[str]:
        """Return all metadata files of the folder that the source names, or in which its file lies."""
        target = self.target.rstrip("/")
        folder = target.rpartition("/")[0] if target.endswith(ENDINGS) else f"{target}/metadata"
        scheme, host, path = PyArrowFileIO.parse_location(folder)
        found: list[fs.FileInfo] = []
        with _failures_of(folder), suppress(FileNotFoundError):
            found = PyArrowFileIO(self.properties).fs_by_scheme(scheme, host).get_file_info(fs.FileSelector(path))
        files = [f"{folder}/{each.base_name}" for each in found if each.base_name.endswith(ENDINGS)]
        if not files:
            raise Invalid(f"{self.text} has no metadata files in {folder}; name one, or the catalog and table")
        return files

    def read(self) -> tuple[_TableNames, dict[str, str]]:
        """Read the metadata files and manifest lists, again where the table changed meanwhile. Raises Corrupt: what the
        current metadata file names is not there.
        """
        missing: FileNotFoundError | None = None
        for _ in range(ATTEMPTS):
            current, others, properties = self.locate()
            try:
                return _read_names(load_file_io(properties, current or others[0]), current, others), properties
            except FileNotFoundError as error:
                missing = error
        raise Corrupt(
            f"{self.text}: a file is missing that its current metadata names, so nothing may be deleted; restore it, "
            f"or name the newest metadata file of the table: {missing}"
        )


@dataclass(frozen=True, slots=True)
class _ManifestTask:
    """Reads the names in some manifests."""

    table: _TableReader
    properties: dict[str, str]
    manifests: list[_ManifestFile]

    def __call__(self) -> Iterator[NameBatch]:
        yield from batch_names(self._names())

    def _names(self) -> Iterator[str]:
        files = load_file_io(self.properties, self.manifests[0].path)
        for manifest in self.manifests:
            try:
                for (path,) in _read_records(files, manifest.path, FILE_PATH, bytes_min=manifest.bytes):
                    yield path
            except FileNotFoundError as error:
                if manifest.must_exist and self._must_exist(manifest.path):
                    raise Corrupt(
                        f"{self.table.text}: {manifest.path} is missing, and a snapshot of the table names it, so "
                        "nothing may be deleted; restore it, or expire the snapshot"
                    ) from error

    def _must_exist(self, path: str) -> bool:
        """Return whether the table still names the manifest, or its snapshot expired since it was read."""
        named = self.table.read()[0].manifests.get(path)
        return named is not None and named.must_exist


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
        found = self._table.read()[0]
        self._folders = found.folders
        folder = folder_in_store(store_url, found.location)
        self.folder = "" if folder == NOWHERE else folder  # a store of the table's data, or of its metadata, alone

    def parts(self) -> Iterator[NamePart]:
        self._began_ms = SystemClock().now_ms()
        found, properties = self._table.read()
        self._folders, self._read = found.folders, found.read
        yield from batch_names(found.files)
        manifests = found.manifests.values()
        for chosen in split_sized(manifests, lambda each: each.bytes, size_max=TASK_BYTES, items_max=TASK_MANIFESTS):
            yield _ManifestTask(self._table, properties, chosen)

    def facts(self) -> SourceFacts:
        not_seen = [
            "Metadata files that fell out of the table's metadata log, and what only these name.",
            "Other tables, in this or another catalog, that name files of this one: give each as a source.",
            "Files that were written long ago and are first named while this runs, as add_files does.",
        ]
        return SourceFacts(source=self.text, began_ms=self._began_ms, read=self._read, not_seen=not_seen)

    def reads_metadata(self, place: MetadataPlace, store_url: str) -> bool:
        return place.kind == "iceberg" and place_in_store(store_url, place.folder) in map(place_of, self._folders)


def open_iceberg(target: str, options: SourceOptions) -> NameSource:
    """Open a table as a source. Raises Invalid for an option that it does not know."""
    if options != SourceOptions(properties=options.properties):
        raise Invalid("iceberg: knows --property only; an endpoint of S3 is --property s3.endpoint=URL")
    return IcebergSource(target, options)


def _read_names(files: FileIO, current: str, others: Iterable[str]) -> _TableNames:
    """Read what the metadata files name. Raises FileNotFoundError: something that the current one names is gone."""
    metadata = {current: _read_metadata(files, current)} if current else {}
    gone = _read_older(files, others, metadata)
    current = current or max(metadata, key=lambda each: (metadata[each].last_updated_ms, each))
    gone |= _read_older(files, [entry.metadata_file for entry in metadata[current].metadata_log or ()], metadata)
    lists: dict[str, bool] = {}
    found = _TableNames(set(metadata), {}, set(), metadata[current].location, {})
    for location in dict.fromkeys((current, *metadata)):  # the current one first: what it names must exist
        for snapshot in metadata[location].snapshots or ():
            for path in snapshot.manifests:
                _ = found.manifests.setdefault(path, _ManifestFile(path, 0, location == current))
            if snapshot.manifest_list:
                _ = lists.setdefault(snapshot.manifest_list, location == current)
        for statistics in (metadata[location].statistics, metadata[location].partition_statistics):
            found.files.update(each.statistics_path for each in statistics or ())
        folder = location.rpartition("/")[0]
        found.folders.update((folder, folder.removesuffix("/metadata"), metadata[location].location))
    with ThreadPoolExecutor(READERS) as threads:
        read = threads.map(partial(_read_manifests, files), lists, lists.values())
        for path, manifests in zip(lists, read, strict=True):
            if manifests is None:
                gone.add(path)
            for manifest in manifests or ():
                _ = found.manifests.setdefault(manifest.path, manifest)
    found.files.update(lists, found.manifests)
    found.read.update(
        {"metadata files": len(metadata), "manifest lists": len(lists), "manifests": len(found.manifests)}
    )
    found.read["metadata files and manifest lists that are gone"] = len(gone)
    return found


def _read_older(files: FileIO, locations: Iterable[str], metadata: dict[str, _Metadata]) -> set[str]:
    """Read what is there of older metadata files, and return what is gone."""
    gone: set[str] = set()
    for location in locations:
        if location not in metadata:
            try:
                metadata[location] = _read_metadata(files, location)
            except FileNotFoundError:
                gone.add(location)
    return gone


def _read_metadata(files: FileIO, location: str) -> _Metadata:
    data = _read_file(files, location)
    with _failures_of(location):
        metadata = msgspec.json.decode(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data, type=_Metadata)
    if metadata.format_version not in FORMATS:
        raise Invalid(
            f"{location} has version {metadata.format_version} of Iceberg's format; this refstore knows "
            f"{', '.join(map(str, FORMATS))}: use a newer one"
        )
    return metadata


def _read_manifests(files: FileIO, path: str, must_exist: bool) -> list[_ManifestFile] | None:
    """Return the manifests of a manifest list; None: it is gone, and may be."""
    try:
        records = _read_records(files, path, MANIFEST_PATH, MANIFEST_LENGTH)
        return [_ManifestFile(manifest, length, must_exist) for manifest, length in records]
    except FileNotFoundError:
        if must_exist:
            raise
        return None


def _read_records(files: FileIO, path: str, *fields: tuple[int, ...], bytes_min: int = 0) -> Iterator[tuple[Any, ...]]:
    """Yield some fields of the records of an Avro file. Raises Corrupt: it is not whole, or has no such field."""
    data = _read_file(files, path)
    with _failures_of(path), AvroFile[Record](_HeldFile(path, data)) as avro:
        if len(data) < bytes_min or not _is_whole(data, avro.decoder.tell(), avro.header.sync):
            raise EOFError(f"it ends before its end, with {len(data)} bytes")
        columns = [_positions(avro.schema.as_struct(), ids) for ids in fields]
        for record in avro:
            yield tuple(reduce(getitem, positions, record) for positions in columns)


def _is_whole(data: bytes, at: int, mark: bytes) -> bool:
    """Return whether blocks of records fill the file. pyiceberg reads on in memory after half a block, and ends at an
    empty one.
    """
    while at < len(data):
        records, at = _read_long(data, at)
        size, at = _read_long(data, at)
        at += size + len(mark)
        if records < 1 or size < 0 or data[at - len(mark) : at] != mark:
            return False
    return True


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
