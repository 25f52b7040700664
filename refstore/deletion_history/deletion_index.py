"""Read the index of deletions: Parquet files of deletion records, in order of their keys.

    _refstore/gc/deletions/sweep-<mark id>-<part>-<parts>.parquet    what a run of the offline job deleted
    _refstore/gc/deletions/journal-<from ms>-<to ms>.parquet         what the journal's segments of that time have

A record's key is its address. A record of the journal has a second row, whose key is its branch and path. A lookup
reads the end of each file with its footer, and then the row groups that may have the key by their statistics: one
request for a small file, two for most others.

Which runs and which times the index has is told by the names alone. What has no file, because a writer died or the
file was removed, is therefore searched in the records of the run or in the journal, and `gc run --only index` writes
the file. A file that is written again has the same name and the same records.

See docs/decisions/0168-deletions-in-sorted-parquet-files.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from refstore.core.arrow_arrays import make_array
from refstore.deletion_history.deletion_journal import DeletionRecord
from refstore.errors import CorruptObject, ObjectNotFound
from refstore.objects.base import ObjectInfo, ObjectStore
from refstore.objects.stored_file import open_object
from refstore.versioning.commits.columns import pa, pc, pq
from refstore.versioning.commits.workers import Workers

FOLDER: Final = "_refstore/gc/deletions/"
ROW_GROUP_ROWS: Final = 10_000
"""A lookup decodes so many keys of a file. Its footer has 900 bytes for each row group."""
UNREADABLE: Final = b"refstore.unreadable"
"""The footer's entry about what could not be indexed: `Unreadable` as JSON."""
_THREADS: Final = 16
"""How many files are read at once."""
_END_MS: Final = 9_999_999_999_999
_SWEEP_NAME: Final = re.compile(r"sweep-(.+)-(\d+)-(\d+)\.parquet")
_JOURNAL_NAME: Final = re.compile(r"journal-(\d{13})-(\d{13})\.parquet")


class Period(NamedTuple):
    """The segments of the journal that began at `from_ms` or later, and before `to_ms`."""

    from_ms: int
    to_ms: int


class Unreadable(NamedTuple):
    """What an index file lacks, because it was damaged or removed before it was indexed."""

    at_ms: int
    """It has nothing about an address that was generated after this."""
    text: str


class DeletionIndex(NamedTuple):
    """The files of the index."""

    files: tuple[ObjectInfo, ...]
    runs: frozenset[str]
    """The runs of which it has every part."""
    journal: tuple[Period, ...]
    """The times of the journal that it has, in order."""

    @property
    def journal_gaps(self) -> list[Period]:
        """Return the times of the journal that it does not have; the last one has no end."""
        gaps: list[Period] = []
        end_ms = 0
        for period in (*self.journal, Period(_END_MS, _END_MS)):
            if period.from_ms > end_ms:
                gaps.append(Period(end_ms, period.from_ms))
            end_ms = max(end_ms, period.to_ms)
        return gaps


class Lookup(NamedTuple):
    records: dict[str, list[DeletionRecord]]
    """By key."""
    unreadable: list[Unreadable]


def sweep_file(mark_id: str, part: int, parts: int) -> str:
    return f"{FOLDER}sweep-{mark_id}-{part}-{parts}.parquet"


def journal_file(period: Period) -> str:
    return f"{FOLDER}journal-{period.from_ms:013d}-{period.to_ms:013d}.parquet"


def is_of_journal(key: str) -> bool:
    return _JOURNAL_NAME.fullmatch(key.removeprefix(FOLDER)) is not None


def schema() -> Any:
    numbers = ("at_ms", "size_bytes")
    columns = ("key", *DeletionRecord._fields)
    return pa.schema([(name, pa.int64() if name in numbers else pa.string()) for name in columns])


def read_index(objects: ObjectStore) -> DeletionIndex:
    """List the files of the index. Raises ObjectsUnavailable."""
    files: list[ObjectInfo] = []
    parts: dict[tuple[str, int], set[int]] = {}
    journal: list[Period] = []
    for info in objects.list(FOLDER):
        name = info.key.removeprefix(FOLDER)
        if (found := _SWEEP_NAME.fullmatch(name)) is not None:
            parts.setdefault((found[1], int(found[3])), set()).add(int(found[2]))
        elif (found := _JOURNAL_NAME.fullmatch(name)) is not None:
            journal.append(Period(int(found[1]), int(found[2])))
        else:
            continue  # refstore did not write it
        files.append(info)
    runs = frozenset(run for (run, count), numbers in parts.items() if len(numbers) == count)
    return DeletionIndex(tuple(files), runs, tuple(sorted(journal)))


def lookup(objects: ObjectStore, files: Iterable[ObjectInfo], keys: Sequence[str]) -> Lookup:
    """Return the records of each key in these files, in no order. Raises CorruptObject, ObjectsUnavailable."""
    found = Lookup({key: [] for key in keys}, [])
    with Workers(_THREADS) as workers:
        for rows, unreadable in workers.map_ahead(lambda file: _search(objects, file, keys), files):
            for key, record in rows:
                found.records[key].append(record)
            found.unreadable.extend(unreadable)
    return found


def _search(
    objects: ObjectStore, info: ObjectInfo, keys: Sequence[str]
) -> tuple[list[tuple[str, DeletionRecord]], list[Unreadable]]:
    found: list[tuple[str, DeletionRecord]] = []
    try:
        source = open_object(objects, info.key, info.size_bytes, ahead_bytes=0)
        file = pq.ParquetFile(source, pre_buffer=True, page_checksum_verification=True)
        for group in range(file.metadata.num_row_groups):
            statistics = file.metadata.row_group(group).column(0).statistics  # None where a key is very long
            wanted = [key for key in keys if statistics is None or statistics.min <= key <= statistics.max]
            if not wanted:
                continue
            values = make_array(wanted, pa.string())
            present = pc.is_in(file.read_row_group(group, ["key"], use_threads=False).column("key"), values)
            if pc.any(present).as_py():
                for row in file.read_row_group(group, use_threads=False).filter(present).to_pylist():
                    key = row.pop("key")
                    found.append((key, DeletionRecord(**row | {"address": row["address"] or key})))
        return found, msgspec.json.decode(file.metadata.metadata[UNREADABLE], type=list[Unreadable])
    except (ObjectNotFound, pa.ArrowException, OSError, KeyError, msgspec.MsgspecError) as error:
        raise CorruptObject(
            f"{info.key} in {objects.url} is not what was written ({str(error).strip()}); restore it from a backup, or "
            "remove it and run `refstore gc run REPO --only index`, which writes it again from the files of the runs "
            "and the journal"
        ) from error
