"""The purge: finding and rewriting against bare pyarrow, what an index saves, how it grows, and what memory a worker
takes.

Ours are steps of whole runs on a lake of the embedded default, on tmpfs, with the engine started and warmed up; the
bare side does the same to the same files in as many processes, which have done it before, too. The files are in memory
for both.

An object is looked at by one task, so the memory is that of a task in a process that did nothing else before, but for
one small object.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench import lakes
from bench.measure import Bar, Row, Series, at_least, at_most, in_fresh_process, in_turns, rates, seconds_of
from bench.purge_data import (
    IDENTIFIER,
    PLANTED,
    Shape,
    guests_of,
    read_column,
    rewrite_bare,
    write_events,
    write_ids,
    write_large,
)
from bench.workshop import Workshop
from refstore.core.step_progress import ignore_progress
from refstore.operations.upload import Upload
from refstore.repository import Repository
from refstore_gc.engines.choice import EngineOptions, Engines, open_engines
from refstore_purge import RowFinding, purge_ids, verify
from refstore_purge import purge_run as job
from refstore_purge.purge_report import PurgeReport
from refstore_purge.purge_run import IdsFile, PurgeOptions
from refstore_purge.untyped_pandas import pa, pq

FIND_FACTOR: Final = 0.7
INDEX_FACTOR: Final = 3.0
AGAIN_FACTOR: Final = 1 / 20
REWRITE_FACTOR: Final = 0.8
ROWS_FACTOR: Final = 1.3
IDS_FACTOR: Final = 3.0
VERIFY_FACTOR: Final = 3.0
COMMAND_FACTOR: Final = 2.0
MEMORY_MIB: Final = 256.0
MEMORY_GROUPS: Final = 3
TEXT_GROUP_MIB: Final = 64.0
"""What counts as a row group of text."""
PROCESSES: Final = 2
"""As many as this machine has cores."""
ROWS_A_GUEST: Final = 4
REWRITTEN: Final = 5
"""One object in so many is rewritten in a turn."""
SPREAD: Final = 100
"""One object in so many has rows of the ids, where many are looked at."""


class Large(NamedTuple):
    """A file whose purge takes memory."""

    format: str
    group_rows: int
    what: str
    part: int = 1
    """Of how many parts of the size it has one: where a file of the whole size takes too long."""
    text: int = 0


TEXT_CHARACTERS: Final = 1000
LARGE: Final = (
    Large("parquet", 1 << 20, "row groups as pyarrow makes them by default"),
    Large("parquet", 100_000, "row groups of 100,000 rows"),
    Large("orc", 1 << 20, "stripes as pyarrow makes them by default"),
    Large("json", 20_000, "JSON lines of some 1,200 bytes", text=TEXT_CHARACTERS),
    Large("json", 20_000, "JSON lines of some 220 bytes", part=8),
    Large("csv", 20_000, "CSV"),
)
FINDING: Final = "looking for the ids"
REWRITING: Final = "rewriting"


@dataclass(frozen=True, slots=True)
class Purged:
    """A lake that is purged, and what purges it."""

    repo: Repository
    kv_url: str
    objects_url: str
    blobs: Path
    folder: Path
    engines: Engines
    pool: Any
    objects: int
    shape: Shape
    contents: int
    """How many of the objects differ."""

    @property
    def rows(self) -> int:
        return self.objects * self.shape.rows

    def ids(self, planted: Iterable[int], count: int) -> Path:
        """Write ids to a file: some of these objects, and so many in all."""
        seed = time.time_ns()
        return write_ids(self.folder / f"ids-{seed}.parquet", planted, self.shape, count, seed=seed)

    def run(self, ids: Path, expected: int, **options: Any) -> PurgeReport:
        report = job.run_purge(self.repo, self.engines, PurgeOptions(ids=IdsFile(ids), **options), ignore_progress)
        matched = sum(row.matched_objects for row in report.rows)
        assert report.is_whole, report.skipped_objects
        assert matched == expected, f"{matched} objects matched, not {expected}"
        return report

    def files(self, numbers: Iterable[int]) -> list[Path]:
        """Return where objects lie at the moment."""
        addresses = {path: entry.address for path, entry in self.repo.list("main") if entry is not None}
        return [self.blobs / addresses[path_of(number)] for number in numbers]


def run(shop: Workshop) -> Iterator[Row]:
    began = time.perf_counter()
    with (
        open_engines(EngineOptions()) as engines,
        multiprocessing.get_context("spawn").Pool(PROCESSES) as pool,
    ):
        _warm(shop, engines, pool)
        start = f"a first small run, not counted: {time.perf_counter() - began:.1f} s"
        scale = shop.scale
        with _lake(shop, engines, pool, scale.purged, Shape(scale.purged_rows, ROWS_A_GUEST)) as lake:
            yield from _find(shop, lake, judged=True, note=start)
            yield from _more_ids(shop, lake)
            yield from _rewrite(shop, lake)
        with _lake(shop, engines, pool, max(2, scale.purged // 5), Shape(scale.purged_rows, 1)) as lake:
            yield from _find(shop, lake, judged=False, note="every row has an id of its own")
        with _lake(shop, engines, pool, max(2, scale.purged // 4), Shape(scale.purged_rows, ROWS_A_GUEST)) as lake:
            yield from _verify(shop, lake)
        yield from _growth(shop, engines, pool)
        files, rows = scale.purged_whole
        with _lake(shop, engines, pool, files, Shape(rows, ROWS_A_GUEST)) as lake:
            yield _command(shop, lake)
    for large in LARGE:
        yield _memory(shop, large)


def _find(shop: Workshop, lake: Purged, *, judged: bool, note: str) -> Iterator[Row]:
    """Without an index, with one that is written, bare; and with the index, other ids."""
    count, wanted = lake.objects, shop.scale.purged_ids[0]
    files, first, other = lake.files(range(count)), lake.ids([count // 2], wanted), lake.ids([count // 3], wanted)
    scanned: list[int] = []
    again_read: list[int] = []
    again_seconds: list[float] = []

    def plain(number: int) -> float:
        shop.say(f"purge: finding in {lake.rows:,} rows: turn {number + 1}")
        return lake.run(first, 1, dry_run=True).seconds[FINDING]

    def indexed(number: int) -> float:
        key = f"the key of turn {number}, which has no index yet".encode()
        report = lake.run(first, 1, dry_run=True, purge_key=key)
        scanned.append(_read(report))
        again = lake.run(other, 1, dry_run=True, purge_key=key)
        again_read.append(_read(again))
        again_seconds.append(again.seconds[FINDING])
        return report.seconds[FINDING]

    def bare(_turn: int) -> float:
        return _in_processes(lake.pool, read_column, files, lake.rows)

    no_index, with_index, read = in_turns(shop.scale.long_turns, plain, indexed, bare)
    what = f"{count} Parquet files of {lake.shape.rows:,} rows, {wanted:,} ids, rows of them in one file"
    name = f"bare pyarrow reading the column, {PROCESSES} processes"

    def bar(of: Bar) -> Bar | None:
        return of if judged else None

    yield Row(
        what=f"find in {what}; no index",
        ours=rates(lake.rows, no_index, "rows/s"),
        other=rates(lake.rows, read, "rows/s"),
        other_name=name,
        bar=bar(at_least(FIND_FACTOR)),
        note=note,
    )
    yield Row(
        what=f"find in {what}; an index is written",
        ours=Series(with_index, "s"),
        other=Series(read, "s"),
        other_name=name,
        bar=bar(at_most(INDEX_FACTOR)),
        note=note,
    )
    yield Row(
        what=f"find {wanted:,} other ids in the same files: bytes read",
        ours=Series(tuple(each / (1 << 20) for each in again_read), "MiB"),
        other=Series(tuple(each / (1 << 20) for each in scanned), "MiB"),
        other_name="the run that wrote the index",
        bar=bar(at_most(AGAIN_FACTOR)),
        note=note,
    )
    yield Row(
        what=f"find {wanted:,} other ids in the same files",
        ours=Series(tuple(again_seconds), "s"),
        other=Series(with_index, "s"),
        other_name="the run that wrote the index",
        note=note,
    )


def _rewrite(shop: Workshop, lake: Purged) -> Iterator[Row]:
    count = lake.objects // REWRITTEN
    rows, ids_count = count * lake.shape.rows, shop.scale.purged_ids[0]
    wanted: dict[int, tuple[Path, list[Path]]] = {}

    def ours(number: int) -> float:
        shop.say(f"purge: rewriting {rows:,} rows: turn {number + 1}")
        numbers = range(number * count, (number + 1) * count)
        wanted[number] = lake.ids(numbers, ids_count), lake.files(numbers)
        return lake.run(wanted[number][0], count).seconds[REWRITING]

    def bare(number: int) -> float:
        ids_file, files = wanted[number]
        out = shop.in_memory("bare")
        works = [(file, ids_file, out / f"{at}.parquet") for at, file in enumerate(files)]
        seconds = _in_processes(lake.pool, rewrite_bare, works, None)
        shop.drop(out)
        return seconds

    mine, theirs = in_turns(min(REWRITTEN, shop.scale.long_turns), ours, bare)
    yield Row(
        what=f"rewrite {count} Parquet files of {lake.shape.rows:,} rows without some",
        ours=rates(rows, mine, "rows/s"),
        other=rates(rows, theirs, "rows/s"),
        other_name=f"bare pyarrow reading, filtering and writing the same, {PROCESSES} processes",
        bar=at_least(REWRITE_FACTOR),
    )


def _command(shop: Workshop, lake: Purged) -> Row:
    """A command from its start to its end: it looks into each file, writes its index, and purges it."""
    numbers = range(lake.objects)
    stores = {"REFSTORE_KV": lake.kv_url, "REFSTORE_OBJECTS": lake.objects_url}
    environ = {**os.environ, **stores, "REFSTORE_PURGE_KEY": "the key of a benchmark, which is no secret"}
    originals = [lake.folder / f"original-{number}" for number in numbers]
    for file, to in zip(lake.files(numbers), originals, strict=True):
        shutil.copy(file, to)
    size = sum(file.stat().st_size for file in originals) / 1e6
    known = [guests_of(number, lake.shape) for number in numbers]

    def wanted(turn: int) -> Path:
        """Write ids of each file that no earlier turn had."""
        file = lake.folder / f"ids-{turn}.parquet"
        ids = pa.concat_arrays([each.slice(turn * PLANTED, PLANTED) for each in known])
        pq.write_table(pa.table({"id": ids}), file)
        return file

    def ours(turn: int) -> float:
        shop.say(f"purge: a command on {lake.rows:,} rows: turn {turn + 1}")
        command = [sys.executable, "-m", "refstore", "purge", "run", lakes.REPOSITORY, "--ids", str(wanted(turn))]
        began = time.perf_counter()
        done = subprocess.run([*command, "--yes", "--json"], env=environ, check=True, stdout=subprocess.PIPE)
        seconds = time.perf_counter() - began
        rows: list[dict[str, int]] = json.loads(done.stdout)["rows"]
        assert sum(row["rewritten_objects"] for row in rows) == lake.objects, rows
        assert all(row["index_bytes"] for row in rows), rows
        return seconds

    def bare(turn: int) -> float:
        out = shop.in_memory("bare")
        works = [(file, wanted(turn), out / f"{at}.parquet") for at, file in enumerate(originals)]
        seconds = _in_processes(lake.pool, rewrite_bare, works, None)
        shop.drop(out)
        return seconds

    mine, theirs = in_turns(shop.scale.long_turns, ours, bare)
    return Row(
        what=f"a command that purges {lake.objects} files of {size:.0f} MB in all, rows of each, and writes an index",
        ours=Series(mine, "s"),
        other=Series(theirs, "s"),
        other_name=f"bare pyarrow reading, filtering and writing the same, {PROCESSES} processes that have started",
        bar=at_most(COMMAND_FACTOR),
    )


def _more_ids(shop: Workshop, lake: Purged) -> Iterator[Row]:
    few, many = shop.scale.purged_ids
    planted = [lake.objects // 2]
    files = {count: lake.ids(planted, count) for count in (few, many)}
    whole: dict[int, list[float]] = {few: [], many: []}

    def found(count: int) -> float:
        shop.say(f"purge: finding {count:,} ids in {lake.rows:,} rows")
        began = time.perf_counter()
        report = lake.run(files[count], 1, dry_run=True)
        whole[count].append(time.perf_counter() - began)
        return report.seconds[FINDING]

    mine, theirs = in_turns(shop.scale.long_turns, lambda _turn: found(many), lambda _turn: found(few))
    for what, ours, other in (
        ("", mine, theirs),
        (", the whole run, which reads and sorts the ids first", tuple(whole[many]), tuple(whole[few])),
    ):
        yield Row(
            what=f"find {many:,} ids in {lake.rows:,} rows{what}",
            ours=Series(ours, "s"),
            other=Series(other, "s"),
            other_name=f"{few:,} ids",
            bar=None if what else at_most(IDS_FACTOR),
        )
    files[many].unlink()


def _verify(shop: Workshop, lake: Purged) -> Iterator[Row]:
    """Verify, which reads every value again, beside a run that finds the same rows."""
    count = shop.scale.verified_ids
    file = lake.ids([lake.objects // 2], count)
    whole: list[float] = []

    def verified(number: int) -> float:
        shop.say(f"purge: verifying {lake.rows:,} rows: turn {number + 1}")
        return seconds_of(lambda: _check_found(verify(lake.repo, file).findings))

    def found(_turn: int) -> float:
        began = time.perf_counter()
        report = lake.run(file, 1, dry_run=True)
        whole.append(time.perf_counter() - began)
        return report.seconds[FINDING]

    mine, theirs = in_turns(shop.scale.long_turns, verified, found)
    what = f"verify {lake.rows:,} rows against {count:,} ids, which are read first"
    for other, name, bar in (
        (theirs, "the search of a run for the same", at_most(VERIFY_FACTOR)),
        (tuple(whole), "the whole dry run", None),
    ):
        yield Row(what=what, ours=Series(mine, "s"), other=Series(other, "s"), other_name=name, bar=bar)


def _check_found(findings: list[RowFinding]) -> None:
    assert len(findings) == 1, findings
    assert findings[0].rows >= PLANTED, findings


def _growth(shop: Workshop, engines: Engines, pool: Any) -> Iterator[Row]:
    few, many = shop.scale.purged_growth
    shape = Shape(shop.scale.purged_growth_rows, 10, is_sparse=True)

    def whole(lake: Purged, turn: int) -> float:
        shop.say(f"purge: a run on {lake.rows:,} rows, turn {turn + 1}")
        planted = [turn % lake.contents]
        expected = len(range(planted[0], lake.objects, lake.contents))
        file = lake.ids(planted, shop.scale.purged_ids[0])
        return seconds_of(lambda: lake.run(file, expected)) / lake.rows * 1e9

    contents = min(few, SPREAD)
    with (
        _lake(shop, engines, pool, few, shape, contents=contents) as small,
        _lake(shop, engines, pool, many, shape, contents=contents) as large,
    ):
        ours, other = in_turns(shop.scale.long_turns, lambda turn: whole(large, turn), lambda turn: whole(small, turn))
        yield Row(
            what=f"a whole run on {large.rows:,} rows in {many:,} files, of which one in {contents} is rewritten",
            ours=Series(ours, "ns/row"),
            other=Series(other, "ns/row"),
            other_name=f"{small.rows:,} rows in {few:,} files",
            bar=at_most(ROWS_FACTOR),
        )


def _memory(shop: Workshop, large: Large) -> Row:
    folder = shop.on_disk("purge-memory")
    (folder / "data").mkdir()
    size = shop.scale.purged_bytes // large.part
    shop.say(f"purge: memory, {large.what}: making a file of {size / (1 << 30):.2g} GiB")
    shape = Shape(min(large.group_rows, size // 200), ROWS_A_GUEST, text=large.text)
    small = Shape(1000, ROWS_A_GUEST, text=large.text)
    made = write_large(folder / "data/large", large.format, shape, size)
    write_large(folder / "data/small", large.format, small, 0)
    purge_ids.write_ids(folder / "ids", "string", [guests_of(0, each)[:PLANTED] for each in (shape, small)])
    done = in_fresh_process(
        "purge_memory",
        url=f"file://{folder}?fsync=0",
        ids=str(folder / "ids"),
        format_=large.format,
        identifier="guestid" if large.format == "csv" else IDENTIFIER,
        small="data/small",
        large="data/large",
    )
    shop.drop(folder)
    group_mib = made.group_bytes / (1 << 20) or TEXT_GROUP_MIB
    decoded = f", {group_mib:.0f} MiB each when decoded" if made.group_bytes else ""
    return Row(
        what=f"memory of a worker above idle, a file of {made.size_bytes / (1 << 30):.2f} GiB, {large.what}{decoded}",
        ours=Series((max(done["find"], done["rewrite"]),), "MiB"),
        bar=at_most(max(MEMORY_MIB, MEMORY_GROUPS * group_mib)),
        note=f"finding {done['find']:.0f}, rewriting {done['rewrite']:.0f}; idle {done['idle']:.0f} MiB; "
        f"{done['seconds']:.0f} s",
    )


# ---- lakes


@contextmanager
def _lake(
    shop: Workshop, engines: Engines, pool: Any, objects: int, shape: Shape, *, contents: int | None = None
) -> Generator[Purged, None, None]:
    """Make a lake of committed Parquet files, of which `contents` differ (None: all)."""
    contents = contents or objects
    folder, scratch = shop.in_memory("purge"), shop.in_memory("purge-scratch")
    shop.say(f"purge: making {objects:,} files of {shape.rows:,} rows")
    kv_url, objects_url = lakes.stores_in(folder)
    with lakes.open_lake(kv_url, objects_url) as lake:
        repo = lake.create_repository(lakes.REPOSITORY)
        repo.onboard_purge(json.dumps(DOCUMENT), by="bench")
        works = [(scratch / str(number), number, shape) for number in range(contents)]
        for number, file in enumerate(pool.imap(write_events, works)):
            body = file.read_bytes()
            repo.upload_many("main", [Upload(path=path_of(at), body=body) for at in range(number, objects, contents)])
            file.unlink()
        repo.commit("main", "events")
        blobs = lakes.blobs_of(folder, repo)
        yield Purged(repo, kv_url, objects_url, blobs, scratch, engines, pool, objects, shape, contents)
    shop.drop(folder)
    shop.drop(scratch)


DOCUMENT: Final = {
    "whitelist": ["*"],
    "datasets": [
        {
            "name": "tracking.event",
            "prefix": "tracking/event/",
            "format": "parquet",
            "identifier": IDENTIFIER,
            "mode": "keep-history",
        }
    ],
}
PARTITIONS: Final = 20


def path_of(number: int) -> str:
    return f"tracking/event/day={number % PARTITIONS:02d}/part-{number:05d}.parquet"


def _warm(shop: Workshop, engines: Engines, pool: Any) -> None:
    """Let all processes do once what is measured."""
    with _lake(shop, engines, pool, 2 * SPREAD, Shape(100, ROWS_A_GUEST)) as lake:
        wanted = lake.ids(range(lake.objects), lake.objects * PLANTED)
        files = lake.files(range(lake.objects))
        lake.run(wanted, lake.objects, purge_key=b"warm" * 8)
        pool.map(read_column, files, chunksize=1)
        pool.map(rewrite_bare, [(file, wanted, file.with_suffix(".new")) for file in files], chunksize=1)


def _in_processes(pool: Any, work: Callable[[Any], int], items: list[Any], expected: int | None) -> float:
    """Seconds of the work on all items."""
    done: list[int] = []
    seconds = seconds_of(lambda: done.extend(pool.map(work, items, chunksize=1)))
    assert expected is None or sum(done) == expected, f"{sum(done)} rows were read, not {expected}"
    return seconds


def _read(report: PurgeReport) -> int:
    return sum(row.read_bytes for row in report.rows)
