"""Take an inventory of S3 (S3 Inventory: CSV, ORC or Parquet) for the listing of a store.

An inventory has what a bucket held at a time, which its manifest tells. That is the time of this listing: ages and
grace periods are counted up to it. What was written since stays, and what has gone or changed since is found when it is
looked at, just before its deletion. So an old inventory deletes nothing that a new one would not; but it does not show
the tables, repositories and namespaces that were made since, for which the checks look. Amazon makes an inventory each
day or each week, and delivers it up to two days later, so one of over ten days needs consent (`AGE_MAX`).

A manifest does not say whether the inventory has a part of its bucket only. What it leaves out stays.

The rows are in no order. Tasks read the files, and write their rows to sorted files. Keys of these cut all of them into
intervals. A task joins what the sorted files have of an interval to a chunk, as if the interval had been listed.
"""

from __future__ import annotations

import hashlib
import secrets
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from importlib import import_module
from itertools import accumulate
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
from refstore_gc.engines.base import Engine
from refstore_gc.list_objects import CHUNK_ROWS, KeyInterval, ListedChunk
from refstore_gc.run_layout import open_store
from refstore_gc.untyped_arrow import pa, pc
from refstore_prune.list_store import (
    LISTED,
    IntervalFacts,
    Listing,
    gather_listing,
    touching_intervals,
    write_chunk,
)
from refstore_prune.prune_layout import PruneLayout

AGE_MAX: Final = timedelta(days=10)
MANIFEST: Final = "manifest.json"
BLOCK_ROWS: Final = 512
"""How many rows of a sorted file are read together. The first key of each such block is known."""
_FILES_BYTES: Final = 1 << 24
_COLUMNS: Final = {
    "bucket": pa.string(),
    "key": pa.string(),
    "size": pa.int64(),
    "lastmodifieddate": pa.timestamp("ms", "UTC"),
    "etag": pa.string(),
    "islatest": pa.bool_(),
    "isdeletemarker": pa.bool_(),
}
"""The columns that are read, by their names without case and underscores."""
_WITHOUT: Final = {"etag": "", "islatest": True, "isdeletemarker": False}
"""What stands in columns that an inventory need not have."""
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
    creation_timestamp: int
    file_format: Literal["CSV", "ORC", "Parquet"]
    file_schema: str
    files: list[InventoryFile]


class InventoryTask(msgspec.Struct, frozen=True, kw_only=True):
    """What the tasks of all files have in common."""

    layout: PruneLayout
    root: str
    """The folder in which the manifest's folder and that of the inventory's files are neighbours."""
    manifest: InventoryManifest
    prefix: str
    """What the keys of the pruned store begin with in their bucket."""


class SortedFile(NamedTuple):
    """A file with rows in the order of keys, as record batches of `BLOCK_ROWS`."""

    key: str
    first_keys: list[str]
    """Of each block."""
    starts: list[int]
    """Where each block begins, and where the last one ends."""


def list_inventory(layout: PruneLayout, engine: Engine, url: str) -> Listing:
    """Return what an inventory lists below the store's URL. `url`: of its manifest. Raises Invalid: it is of another
    bucket, or has not what is needed; Corrupt: it is damaged; NotFound, Unavailable.
    """
    task = _open_inventory(layout, url)
    files = split_sized(task.manifest.files, lambda file: file.size, size_max=_FILES_BYTES, items_max=CHUNK_ROWS)
    written = list(engine.map(partial(sort_rows, task), list(files)))
    if not written:
        raise Invalid(f"the inventory {redact_url(url)} has no object of {layout.url}; it may be of another prefix")
    step = CHUNK_ROWS // 2 // BLOCK_ROWS  # an interval has some rows more than its blocks that begin in it
    intervals = touching_intervals(sorted(key for file in written for key in file.first_keys)[step::step])
    items = [(number, each, _find_blocks(written, each)) for number, each in enumerate(intervals)]
    return gather_listing(engine.map(partial(join_rows, layout), items), task.manifest.creation_timestamp)


def _find_blocks(files: Sequence[SortedFile], interval: KeyInterval) -> list[tuple[str, int, int, int]]:
    """Return the parts of files that have all rows of an interval: the file's key, where the part begins and ends, and
    the file's size.
    """
    found: list[tuple[str, int, int, int]] = []
    for file in files:
        first = max(bisect_right(file.first_keys, interval.after) - 1, 0)
        end = bisect_left(file.first_keys, interval.before) if interval.before else len(file.first_keys)
        if first < end:
            found.append((file.key, file.starts[first], file.starts[end], file.starts[-1]))
    return found


def _open_inventory(layout: PruneLayout, url: str) -> InventoryTask:
    """Read a manifest."""
    place, pruned = parse_store_url(url), parse_store_url(layout.url)
    folder, _, name = place.path.rpartition("/")
    if name != MANIFEST:
        raise Invalid(f"{redact_url(url)} is no inventory; give the URL of its {MANIFEST}")
    store = open_store(place._replace(path=folder).text(), layout)
    body = store.read(MANIFEST)
    try:
        digest = hashlib.md5(body, usedforsecurity=False).hexdigest()
        if store.read("manifest.checksum").decode("latin-1").strip() != digest:
            raise Corrupt(f"{redact_url(url)} does not have its checksum; take another inventory")
    except ObjectNotFound:
        pass  # it is an offer: the files have theirs in the manifest
    try:
        manifest = msgspec.json.decode(body, type=InventoryManifest, strict=False)
    except ValueError as error:
        raise Invalid(f"{redact_url(url)} is no manifest of an inventory that is read here: {error}") from None
    bucket = manifest.source_bucket.rpartition(":")[2]
    if pruned.scheme != "s3" or bucket != pruned.host:
        raise Invalid(f"the inventory {redact_url(url)} is of the bucket {bucket}, and not of {layout.url}")
    prefix = pruned.path.strip("/")
    root = place._replace(path=folder.rpartition("/")[0])
    return InventoryTask(layout=layout, root=root.text(), manifest=manifest, prefix=f"{prefix}/" if prefix else "")


# ---- the tasks


def sort_rows(task: InventoryTask, files: Sequence[InventoryFile]) -> Iterator[SortedFile]:
    """Write the rows of files of the inventory to sorted files."""
    store, tables = (
        open_store(task.layout.files, task.layout),
        (rows for file in files for rows in _read_file(task, file)),
    )
    for some in split_sized(tables, len, size_max=CHUNK_ROWS, items_max=CHUNK_ROWS):
        batches = pa.concat_tables(some).sort_by("key").to_batches(BLOCK_ROWS)
        if batches:
            key = task.layout.named_file_key(f"listing/{secrets.token_hex(8)}.arrows")
            blocks = [batch.serialize().to_pybytes() for batch in batches]
            store.put(key, blocks)
            first_keys = [batch["key"][0].as_py() for batch in batches]
            yield SortedFile(key, first_keys, list(accumulate(map(len, blocks), initial=0)))


def join_rows(
    layout: PruneLayout, item: tuple[int, KeyInterval, Sequence[tuple[str, int, int, int]]]
) -> Iterator[ListedChunk | IntervalFacts]:
    """Write the chunk of an interval."""
    number, interval, parts = item
    tables = [_read_part(layout, interval, part) for part in parts]
    # of what is there twice, the later counts
    table = pa.concat_tables(tables).sort_by([("key", "ascending"), ("mtime_ms", "descending")]).combine_chunks()
    if not len(table):
        return
    keys = table["key"]
    is_first = np.append(True, to_numpy(pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1))))
    table = table.filter(make_array(is_first))
    skipped, odd = SkippedKeys(), table["key"].filter(pc.match_substring_regex(table["key"], _ODD_KEY)).to_pylist()
    faults = {key: fault for key in odd if (fault := key_fault(key)) is not None}
    for key, fault in faults.items():
        skipped.add(key, fault)
    is_refused = pc.is_in(table["key"], value_set=make_array(list(faults), pa.string()))
    yield from write_chunk(layout, number, table.filter(pc.invert(is_refused)))
    yield IntervalFacts.of_skipped(skipped)


def _read_part(layout: PruneLayout, interval: KeyInterval, part: tuple[str, int, int, int]) -> Any:
    """Return the rows of an interval that a part of a sorted file has."""
    key, start, end, size = part
    blocks = open_store(layout.files, layout).get(key, start=start, end=end, size_bytes=size)
    table = pa.ipc.open_stream(b"".join([LISTED.serialize(), *blocks])).read_all()
    if interval.after:
        table = table.filter(pc.greater(table["key"], make_scalar(interval.after, pa.string())))
    return table.filter(pc.less(table["key"], make_scalar(interval.before, pa.string()))) if interval.before else table


# ---- the files


def _read_file(task: InventoryTask, file: InventoryFile) -> Iterator[Any]:
    """Yield the objects of the store that a file of the inventory names, as tables."""
    digest = hashlib.md5(usedforsecurity=False)
    with tempfile.NamedTemporaryFile(suffix=".gz") as copy:
        try:
            key = "/".join(file.key.split("/")[-2:])
            for chunk in open_store(task.root, task.layout).get(key, size_bytes=file.size):
                digest.update(chunk)
                copy.write(chunk)
        except (ObjectNotFound, CorruptObject) as error:
            raise _damage(file, str(error)) from error
        if digest.hexdigest() != file.md5.lower():
            raise _damage(file, "does not have its checksum")
        copy.flush()
        try:
            yield from map(partial(_take_rows, task), _read_columns(task.manifest, copy.name))
        except (Corrupt, Invalid):
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _damage(file, f"is not what its manifest says ({error})") from error


def _damage(file: InventoryFile, why: str) -> Corrupt:
    return Corrupt(f"{file.key} of the inventory: {why}; take another inventory")


def _read_columns(manifest: InventoryManifest, path: str) -> Iterator[Any]:
    """Yield a file's `_COLUMNS`, as record batches."""
    dataset, csv = import_module("pyarrow.dataset"), import_module("pyarrow.csv")
    if manifest.file_format == "CSV":
        names = [name.strip() for name in manifest.file_schema.split(",")]
        schema = pa.schema([(name, _COLUMNS.get(_plain(name), pa.string())) for name in names])
        read, convert = csv.ReadOptions(column_names=names), csv.ConvertOptions(null_values=[""])
        file_format = dataset.CsvFileFormat(read_options=read, convert_options=convert)
        source = dataset.dataset(path, schema=schema, format=file_format)
    else:
        source = dataset.dataset(path, format=manifest.file_format.lower())
    fields = {_plain(name): dataset.field(name) for name in source.schema.names}
    of_versions = ("IsLatest", "IsDeleteMarker") if "versionid" in fields else ()
    for name in ("Bucket", "Key", "Size", "LastModifiedDate", *of_versions):
        if name.lower() not in fields:
            raise Invalid(f"the inventory has no field {name}; add it to its configuration")
    columns = {
        name: (fields[name] if name in fields else pc.scalar(_WITHOUT[name])).cast(type_, safe=False)
        for name, type_ in _COLUMNS.items()
    }
    yield from source.to_batches(columns=columns, use_threads=False, batch_readahead=1, fragment_readahead=1)


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def _take_rows(task: InventoryTask, batch: Any) -> Any:
    """Return the rows of objects that are in the store, as the listing has them. Raises Corrupt."""
    bucket, table = task.manifest.source_bucket.rpartition(":")[2], pa.Table.from_batches([batch])
    if not pc.all(pc.equal(table["bucket"], make_scalar(bucket, pa.string()))).as_py():
        raise Corrupt(f"the inventory has objects of another bucket than {bucket}; take another inventory")
    is_marker = pc.fill_null(table["isdeletemarker"], make_scalar(False, pa.bool_()))
    table = table.filter(pc.and_(table["islatest"], pc.invert(is_marker)))
    if any(table[name].null_count for name in ("key", "size", "lastmodifieddate")):
        raise Corrupt("the inventory has a row without a key, size or time; take another inventory")
    keys = table["key"].combine_chunks()
    if task.manifest.file_format == "CSV":  # which has keys as in a URL
        is_encoded = pc.match_substring_regex(keys, "[%+]")
        decoded = [unquote_plus(key, errors="strict") for key in keys.filter(is_encoded).to_pylist()]
        keys = pc.replace_with_mask(keys, is_encoded, make_array(decoded, pa.string()))
    etags = pc.utf8_trim(pc.fill_null(table["etag"], make_scalar("", pa.string())), '"')
    times = table["lastmodifieddate"].cast(pa.int64())
    names = pc.utf8_slice_codeunits(keys, len(task.prefix))
    return pa.table([names, table["size"], times, etags], schema=LISTED).filter(pc.starts_with(keys, task.prefix))
