"""Take an inventory of S3 (S3 Inventory: CSV, ORC or Parquet) for the listing of a store.

An inventory has what a bucket held at a time, which its manifest tells. That is the time of this listing: ages and
grace periods are counted up to it. What was written since stays, and what has gone or changed since is found when it is
looked at, just before its deletion. So an old inventory deletes nothing that a new one would not; but it does not show
the tables, repositories and namespaces that were made since, for which the checks look. Amazon makes an inventory each
day or each week, and delivers it up to two days later, so one of over ten days needs consent (`AGE_MAX`).

A manifest does not say whether the inventory has a part of its bucket only. What it leaves out stays.

The rows are in no order. Tasks read the files, and write their rows to pieces with a sample of the keys. Pieces that
are too many for a task are split at keys of the samples, until they are not. Then the pieces of each interval are
joined into chunks, as if the interval had been listed.
"""

from __future__ import annotations

import hashlib
import secrets
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import unquote_plus

import msgspec
import numpy as np

from refstore.core.arrow_arrays import make_array, make_scalar, to_numpy
from refstore.core.batches import split_sized
from refstore.core.redaction import redact_url
from refstore.errors import Corrupt, CorruptObject, Invalid, ObjectNotFound
from refstore.objects.base import SkippedKeys
from refstore.objects.object_keys import KEY_BYTES_MAX, key_fault
from refstore.objects.store_urls import parse_store_url
from refstore_gc.address_codec import BucketBounds
from refstore_gc.engines.base import Engine
from refstore_gc.list_objects import CHUNK_ROWS, ListedChunk
from refstore_gc.run_layout import open_store, read_table, write_table
from refstore_gc.untyped_arrow import pa, pc, pq
from refstore_prune.list_store import FoundInKeys, IntervalFacts, Listing, gather_listing, write_chunk
from refstore_prune.prune_layout import PruneLayout

AGE_MAX: Final = timedelta(days=10)
MANIFEST: Final = "manifest.json"
INTERVALS_MAX: Final = 64
"""Into how many intervals pieces are split at once."""
_SAMPLE_KEYS: Final = 32
_READ_ROWS: Final = 1 << 16
_NEEDED: Final = {"size": "Size", "lastmodifieddate": "LastModifiedDate"}
_OF_VERSIONS: Final = ("islatest", "isdeletemarker")
_ODD_KEY: Final = rf"[^ -~]|(^|/)(\.|/|$)|^.{{{KEY_BYTES_MAX // 2}}}"
"""Matches every key that no store of refstore's has, and others."""


class InventoryFile(msgspec.Struct, frozen=True, rename={"md5": "MD5checksum"}):
    key: str
    size: int
    md5: str


class InventoryManifest(msgspec.Struct, frozen=True, rename="camel"):
    """What an inventory has, as S3 writes it."""

    source_bucket: str
    version: Literal["2016-11-30"]
    creation_timestamp: str
    file_format: Literal["CSV", "ORC", "Parquet"]
    file_schema: str
    files: list[InventoryFile]


class InventoryTask(msgspec.Struct, frozen=True, kw_only=True):
    """What the tasks of all files have in common."""

    layout: PruneLayout
    root: str
    """The store in which the keys of the inventory's files are."""
    manifest: InventoryManifest
    prefix: str
    """What the keys of the pruned store begin with in their bucket."""


class Piece(NamedTuple):
    """A file with rows of one interval, in no order."""

    place: tuple[int, int]
    """The number of the interval that was split, and of the part."""
    key: str
    rows: int
    sample: tuple[str, ...]


def list_inventory(layout: PruneLayout, engine: Engine, url: str) -> Listing:
    """Return what an inventory lists below the store's URL. `url`: of its manifest. Raises Invalid: it is of another
    bucket, or has not what is needed; Corrupt: it is damaged; NotFound, Unavailable.
    """
    task = _open_inventory(layout, url)
    files = [(0, (), (file,)) for file in task.manifest.files]
    pieces = sorted(engine.map(partial(split_rows, task), files), key=lambda piece: piece.key)
    if not pieces:
        raise Invalid(f"the inventory {redact_url(url)} has no object of {layout.url}; it may be of another prefix")
    intervals = [pieces]
    while items := [
        (number, cuts, part)
        for number, some in enumerate(intervals)
        if _count_rows(some) > CHUNK_ROWS and (cuts := _find_cuts(some))
        for part in split_sized(some, lambda each: each.rows, size_max=CHUNK_ROWS, items_max=CHUNK_ROWS)
    ]:
        cut = {number: len(cuts) for number, cuts, _ in items}
        found: dict[tuple[int, int], list[Piece]] = {}
        for piece in engine.map(partial(split_rows, task), items):
            found.setdefault(piece.place, []).append(piece)
        open_store(layout.files, layout).delete_many([each.key for _, _, part in items for each in part])
        intervals = [
            each
            for number, some in enumerate(intervals)
            for each in ([found.get((number, at), []) for at in range(cut[number] + 1)] if number in cut else [some])
        ]
    keys = [[piece.key for piece in some] for some in intervals]
    chunks = engine.map(partial(join_pieces, layout), list(enumerate(keys)))
    return gather_listing(chunks, int(task.manifest.creation_timestamp))


def _count_rows(pieces: Sequence[Piece]) -> int:
    return sum(piece.rows for piece in pieces)


def _find_cuts(pieces: Sequence[Piece]) -> tuple[str, ...]:
    """Return keys that cut an interval into about equal parts; none, if it has one key only."""
    keys = sorted(key for piece in pieces for key in piece.sample)
    parts = min(INTERVALS_MAX, 2 * _count_rows(pieces) // CHUNK_ROWS + 1)
    return tuple(sorted({keys[len(keys) * number // parts] for number in range(1, parts)} - {keys[0]}))


def _open_inventory(layout: PruneLayout, url: str) -> InventoryTask:
    """Read a manifest."""
    place, pruned = parse_store_url(url), parse_store_url(layout.url)
    folder, _, name = place.path.rpartition("/")
    if name != MANIFEST:
        raise Invalid(f"{redact_url(url)} is no inventory; give the URL of its {MANIFEST}")
    store = open_store(place._replace(path=folder).text(), layout)
    body = store.read(MANIFEST)
    try:
        if store.read("manifest.checksum").decode("latin-1").strip() != _md5_of(body):
            raise Corrupt(f"{redact_url(url)} does not have its checksum; take another inventory")
    except ObjectNotFound:
        pass  # it is an offer: the files have theirs in the manifest
    try:
        manifest = msgspec.json.decode(body, type=InventoryManifest)
        int(manifest.creation_timestamp)
    except ValueError as error:
        raise Invalid(f"{redact_url(url)} is no manifest of an inventory that is read here: {error}") from None
    bucket = manifest.source_bucket.rpartition(":")[2]
    if pruned.scheme != "s3" or bucket != pruned.host:
        raise Invalid(f"the inventory {redact_url(url)} is of the bucket {bucket}, and not of {layout.url}")
    prefix = pruned.path.strip("/")
    root = place._replace(path=_find_root(folder, manifest) if place.scheme != "s3" else "")
    return InventoryTask(layout=layout, root=root.text(), manifest=manifest, prefix=f"{prefix}/" if prefix else "")


def _find_root(folder: str, manifest: InventoryManifest) -> str:
    """Return below which folder the bucket with the inventory was copied. The manifest lies in a folder that is a
    neighbour of its files' folder.
    """
    above = folder.rpartition("/")[0]
    for file in manifest.files[:1]:
        there = "/" + "/".join(file.key.split("/")[:-2])
        if not above.endswith(there):
            raise Invalid(f"the inventory's files should be in {there}; copy the folders as they are in the bucket")
        return above.removesuffix(there)
    return above


def _md5_of(body: bytes) -> str:
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


# ---- the tasks


def split_rows(
    task: InventoryTask, item: tuple[int, tuple[str, ...], Sequence[InventoryFile | Piece]]
) -> Iterator[Piece]:
    """Write rows of files, or of pieces, to pieces of the intervals that the cuts make. The item has the number of the
    interval that is split, and the cuts.
    """
    number, cuts, sources = item
    files, bounds = open_store(task.layout.files, task.layout), BucketBounds.from_addresses(cuts, are_whole=True)
    waiting: list[Any] = []

    def write() -> Iterator[Piece]:
        table = pa.concat_tables(waiting).combine_chunks()
        waiting.clear()
        buckets = bounds.buckets_of(table["key"])
        order = np.argsort(buckets, kind="stable")
        ends = np.cumsum(np.bincount(buckets, minlength=bounds.buckets)).tolist()
        for part, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            if start < end:
                rows = table.take(make_array(order[start:end]))
                key = task.layout.file_key("listing", number, secrets.token_hex(8))
                write_table(files, key, rows)
                sample = rows["key"].take(make_array(np.linspace(0, len(rows) - 1, _SAMPLE_KEYS).astype(np.int64)))
                yield Piece((number, part), key, len(rows), tuple(sample.to_pylist()))

    for source in sources:
        is_file = isinstance(source, InventoryFile)
        for table in _read_file(task, source) if is_file else [read_table(files, source.key)]:
            waiting.append(table)
            if sum(map(len, waiting)) >= CHUNK_ROWS:
                yield from write()
    if waiting:
        yield from write()


def join_pieces(layout: PruneLayout, item: tuple[int, Sequence[str]]) -> Iterator[ListedChunk | IntervalFacts]:
    """Write the chunks of an interval, and tell what it has beside them."""
    number, keys = item[0] * 1000, item[1]
    if not keys:
        return
    store, found, skipped = open_store(layout.files, layout), FoundInKeys(), SkippedKeys()
    table = pa.concat_tables([read_table(store, key) for key in keys]).combine_chunks().sort_by("key")
    if not _are_distinct(table["key"]).all():  # of what is there twice, the later counts
        table = table.sort_by([("key", "ascending"), ("mtime_ms", "descending")])
        table = table.filter(make_array(_are_distinct(table["key"])))
    odd = np.flatnonzero(to_numpy(pc.match_substring_regex(table["key"], _ODD_KEY)))
    refused = np.zeros(len(table), np.bool_)
    for place, key in zip(odd.tolist(), table["key"].take(make_array(odd)).to_pylist(), strict=True):
        fault = key_fault(key)
        if fault is not None:
            refused[place] = True
            skipped.add(key, fault)
    table, attempt = found.add(table.filter(make_array(~refused))), secrets.token_hex(8)
    for at in range(0, len(table), CHUNK_ROWS):
        yield write_chunk(layout, number + at // CHUNK_ROWS, attempt, table.slice(at, CHUNK_ROWS))
    yield found.facts(skipped)


def _are_distinct(keys: Any) -> Any:
    """Return which of the keys, which are in order, are not the one before."""
    return np.append(True, to_numpy(pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1))))


# ---- the files


def _read_file(task: InventoryTask, file: InventoryFile) -> Iterator[Any]:
    """Yield the objects of the store that a file of the inventory names, as tables."""
    with _copy_file(task, file) as path:
        try:
            for columns in _READERS[task.manifest.file_format](path, task.manifest.file_schema):
                rows = _take_rows(task, columns)
                if len(rows):
                    yield rows
        except (Corrupt, Invalid):
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _damage(file, f"is not what its manifest says ({error})") from error


@contextmanager
def _copy_file(task: InventoryTask, file: InventoryFile) -> Generator[str, None, None]:
    """Yield the path of a copy whose checksum is right."""
    digest = hashlib.md5(usedforsecurity=False)
    with tempfile.NamedTemporaryFile() as copy:
        try:
            for chunk in open_store(task.root, task.layout).get(file.key, size_bytes=file.size):
                digest.update(chunk)
                copy.write(chunk)
        except (ObjectNotFound, CorruptObject) as error:
            raise _damage(file, str(error)) from error
        if digest.hexdigest() != file.md5.lower():
            raise _damage(file, "does not have its checksum")
        copy.flush()
        yield copy.name


def _damage(file: InventoryFile, why: str) -> Corrupt:
    return Corrupt(f"{file.key} of the inventory: {why}; take another inventory")


def _read_csv(path: str, schema: str) -> Iterator[dict[str, Any]]:
    """Yield columns, in which keys are written as in a URL."""
    csv, names = import_module("pyarrow.csv"), [name.strip() for name in schema.split(",")]
    wanted = _find_columns(names)
    types = {
        "size": pa.int64(),
        "lastmodifieddate": pa.timestamp("ms", "UTC"),
        **dict.fromkeys(_OF_VERSIONS, pa.bool_()),
    }
    reader = csv.open_csv(
        pa.CompressedInputStream(pa.OSFile(path), "gzip"),
        read_options=csv.ReadOptions(column_names=names, use_threads=False),
        convert_options=csv.ConvertOptions(
            include_columns=list(wanted.values()),
            column_types={name: types.get(plain, pa.string()) for plain, name in wanted.items()},
            null_values=[""],
        ),
    )
    for batch in reader:
        columns = {plain: batch.column(name) for plain, name in wanted.items()}
        keys = columns["key"]
        is_encoded = pc.match_substring_regex(keys, "[%+]")
        decoded = [unquote_plus(key, errors="strict") for key in keys.filter(is_encoded).to_pylist()]
        yield {**columns, "key": pc.replace_with_mask(keys, is_encoded, make_array(decoded, pa.string()))}


def _read_parquet(path: str, schema: str) -> Iterator[dict[str, Any]]:
    del schema
    file = pq.ParquetFile(path)
    wanted = _find_columns(file.schema_arrow.names)
    for batch in file.iter_batches(_READ_ROWS, columns=list(wanted.values()), use_threads=False):
        yield {plain: batch.column(name) for plain, name in wanted.items()}


def _read_orc(path: str, schema: str) -> Iterator[dict[str, Any]]:
    del schema
    file = import_module("pyarrow.orc").ORCFile(path)
    wanted = _find_columns(file.schema.names)
    for number in range(file.nstripes):
        stripe = file.read_stripe(number, columns=list(wanted.values()))
        yield {plain: stripe.column(name) for plain, name in wanted.items()}


_READERS: Final[dict[str, Callable[[str, str], Iterable[dict[str, Any]]]]] = {
    "CSV": _read_csv,
    "Parquet": _read_parquet,
    "ORC": _read_orc,
}


def _find_columns(names: Sequence[str]) -> dict[str, str]:
    """Return what the columns are called that are read, each by its name without case and underscores."""
    plain = {name.lower().replace("_", ""): name for name in names}
    for needed, name in (_NEEDED | dict.fromkeys(_OF_VERSIONS if "versionid" in plain else (), "")).items():
        if needed not in plain:
            raise Invalid(f"the inventory has no field {name or needed}; add it to its configuration")
    wanted = ("bucket", "key", *_NEEDED, "etag", *_OF_VERSIONS)
    return {each: plain[each] for each in wanted if each in plain}


def _take_rows(task: InventoryTask, columns: dict[str, Any]) -> Any:
    """Return the rows of objects that are in the store, as the listing has them. Raises Corrupt."""
    bucket = task.manifest.source_bucket.rpartition(":")[2]
    if not pc.all(pc.equal(columns["bucket"].cast(pa.string()), make_scalar(bucket, pa.string()))).as_py():
        raise Corrupt(f"the inventory has objects of another bucket than {bucket}; take another inventory")
    table = pa.table(columns)
    if "islatest" in columns:
        table = table.filter(table["islatest"])
    if "isdeletemarker" in columns:
        table = table.filter(pc.invert(pc.fill_null(table["isdeletemarker"], make_scalar(False, pa.bool_()))))
    keys, size, time = table["key"].cast(pa.string()), table["size"].cast(pa.int64()), table["lastmodifieddate"]
    if keys.null_count or size.null_count or time.null_count or not pa.types.is_timestamp(time.type):
        raise Corrupt("the inventory has a row without a key, size or time; take another inventory")
    no_etag = make_array([""] * len(table), pa.string())
    etag = pc.fill_null(table["etag"].cast(pa.string()), make_scalar("", pa.string())) if "etag" in columns else no_etag
    rows = pa.table(
        {
            "key": pc.utf8_slice_codeunits(keys, len(task.prefix)),
            "size_bytes": size,
            "mtime_ms": time.cast(pa.timestamp("ms", time.type.tz), safe=False).cast(pa.int64()),
            "etag": pc.utf8_trim(etag, '"'),
        }
    )
    return rows.filter(pc.starts_with(keys, task.prefix)) if task.prefix else rows
