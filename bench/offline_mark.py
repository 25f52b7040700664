"""The offline job's comparison: what a listing has and nobody names, against DuckDB on the same files; and what commits
cost to read.

The local engine runs on two processors, in this process and a worker; a first small comparison starts it. Spark runs on
two cores. Its start, with a first small job that makes the executors' processes import what they need, is not part of
any turn; the table's note says how long it took.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench import lakes
from bench.commits import CHANGES, in_one_directory
from bench.measure import Row, Series, at_most, in_turns, on_processors, seconds_of
from bench.workshop import Workshop, make_lake
from refstore.core import ids
from refstore.public_types import stored_commit
from refstore.repository import Repository
from refstore_gc import live_in_commits
from refstore_gc.address_batches import Batch, BatchKind
from refstore_gc.address_codec import BucketBounds
from refstore_gc.anti_join import JoinInputs, join_buckets
from refstore_gc.bucket_join import BucketRow, BucketTask, ChunkReference
from refstore_gc.engines.base import Engine
from refstore_gc.engines.choice import EngineOptions, open_engines
from refstore_gc.engines.local import LocalEngine, SharedWork
from refstore_gc.garbage import MarkedCount
from refstore_gc.live_in_commits import CommitSources, LiveCommits
from refstore_gc.run_layout import RunLayout
from refstore_gc.untyped_arrow import pa, pq

MASTER: Final = "local[2]"
THREADS: Final = 2
"""Of DuckDB: as many as Spark has cores."""
FACTOR: Final = 1.7
COMMITS_FACTOR: Final = 2.0
FILE_ROWS: Final = 500_000
LIVE_SHARE: Final = 0.9
SPAN_MS: Final = 30 * 86_400_000
START_MS: Final = 1_763_708_400_000
ADDRESS_BYTES: Final = 42
MARK_ID: Final = "bench"


def run(shop: Workshop) -> Iterator[Row]:
    began = time.perf_counter()
    with open_engines(EngineOptions(choice="spark", master=MASTER)) as engines:
        spark = engines.for_objects(0)
        warm = shop.in_memory("mark-warm")
        make_sides(warm, 2_000)
        compare(spark, warm)
        start = f"Spark's start, not counted: {time.perf_counter() - began:.1f} s"
        for count in shop.scale.marked:
            yield from _against_duckdb(shop, spark, count, start, judged=count == shop.scale.marked_judged)
    with on_processors(THREADS):
        local = LocalEngine(shared=SharedWork(THREADS - 1, start_after_seconds=0))
        try:
            yield from _commits(shop, local)
        finally:
            local.close()


def _against_duckdb(shop: Workshop, spark: Engine, count: int, start: str, *, judged: bool) -> Iterator[Row]:
    shop.say(f"marking: writing {count:,} listed and {int(count * LIVE_SHARE):,} live addresses")
    folder = shop.in_memory("mark")
    make_sides(folder, count)
    expected = count - int(count * LIVE_SHARE)

    def seconds_on(engine: Engine) -> float:
        for each in ("mark", "carried"):
            shutil.rmtree(folder / "_refstore" / "gc" / MARK_ID / each, ignore_errors=True)
        found = 0

        def work() -> None:
            nonlocal found
            found = compare(engine, folder)

        seconds = seconds_of(work)
        assert found == expected, f"{found} of {expected} were marked"
        return seconds

    def duckdb(_number: int) -> float:
        return duckdb_seconds(folder, expected)

    turns = shop.scale.long_turns if count <= shop.scale.marked_judged else 1
    what = f"mark: {count:,} listed against {int(count * LIVE_SHARE):,} live, Parquet to Parquet"
    other_name = f"DuckDB anti join, {THREADS} threads"
    with on_processors(THREADS):
        local = LocalEngine(shared=SharedWork(THREADS - 1, start_after_seconds=0))
        seconds_on(local)  # meanwhile its worker starts
        mine, theirs = in_turns(turns, lambda _turn: seconds_on(local), duckdb)
        local.close()
    yield Row(
        what=f"{what}, local engine",
        ours=Series(mine, "s"),
        other=Series(theirs, "s"),
        other_name=other_name,
        bar=at_most(FACTOR) if judged else None,
        note="two processes",
    )
    shop.say(f"marking {count:,} in Spark")
    mine, theirs = in_turns(turns, lambda _turn: seconds_on(spark), duckdb)
    yield Row(
        what=f"{what}, {MASTER}",
        ours=Series(mine, "s"),
        other=Series(theirs, "s"),
        other_name=other_name,
        note=start,
    )
    shop.drop(folder)


def compare(engine: Engine, folder: Path) -> int:
    """Return how many were marked by the product, from the files of what is listed and of what is named."""
    return _marked_in(join_buckets(engine, _inputs(folder)))


def _inputs(folder: Path) -> JoinInputs:
    url = f"file://{folder}?fsync=0"
    work = RunLayout(url=url, files=url, mark_id=MARK_ID, seed=time.time_ns())
    files = sorted((folder / "_refstore" / "gc" / MARK_ID / "listing").iterdir())
    firsts = [next(pq.ParquetFile(file).iter_batches(1, columns=["address"])).column(0)[0].as_py() for file in files]
    chunks = [
        Batch.from_value(number, BatchKind.LISTED, ChunkReference(number, str(file.relative_to(folder))))
        for number, file in enumerate(files)
    ]
    live = [(str(file.relative_to(folder)), BatchKind.LIVE_IN_COMMITS) for file in sorted((folder / "live").iterdir())]
    return JoinInputs(
        BucketTask(layout=work, is_recorded=True), firsts[1:], chunks, live, [], CommitSources([], [], [])
    )


def _marked_in(rows: Iterable[BucketRow]) -> int:
    return sum(row.amount.objects for row in rows if isinstance(row, MarkedCount))


def duckdb_seconds(folder: Path, expected: int) -> float:
    import duckdb

    listing, live, out = folder / "_refstore" / "gc" / MARK_ID / "listing", folder / "live", folder / "duckdb.parquet"
    with duckdb.connect() as connection:
        connection.execute(f"set threads = {THREADS}")
        query = (
            f"copy (select listed.* from read_parquet('{listing}/*.parquet') listed anti join "
            f"read_parquet('{live}/*.parquet') live on listed.address = live.address) to '{out}' (format parquet)"
        )
        seconds = seconds_of(lambda: connection.execute(query))
        found = connection.execute(f"select count(*) from read_parquet('{out}')").fetchone()
    assert found == (expected,), f"DuckDB found {found}, not {expected}"
    out.unlink()
    return seconds


def make_sides(folder: Path, count: int) -> None:
    """The listing in order, cut into files; what is named in no order, as ranges have it."""
    rng = np.random.default_rng(count)
    made_ms = np.sort(rng.integers(START_MS, START_MS + SPAN_MS, count))
    alphabet = np.frombuffer(b"0123456789abcdefghjkmnpqrstvwxyz", np.uint8)
    hours, which = np.unique(made_ms // 3_600_000, return_inverse=True)
    slices = np.array([np.frombuffer(ids.slice_of(int(hour) * 3_600_000).encode(), np.uint8) for hour in hours])
    rows = np.empty((count, ADDRESS_BYTES), np.uint8)
    rows[:, :5] = np.frombuffer(b"data/", np.uint8)
    rows[:, 5:15] = slices[which]
    rows[:, 15] = ord("/")
    for at, shift in enumerate(range(45, -1, -5)):
        rows[:, 16 + at] = alphabet[(made_ms >> shift) & 31]
    rows[:, 26:] = alphabet[rng.integers(0, 32, (count, 16))]
    ordered = np.sort(rows.view(f"S{ADDRESS_BYTES}").ravel())
    listing, live = folder / "_refstore" / "gc" / MARK_ID / "listing", folder / "live"
    listing.mkdir(parents=True)
    live.mkdir()
    for number, at in enumerate(range(0, count, FILE_ROWS)):
        some = ordered[at : at + FILE_ROWS]
        table = {
            "address": _strings(some),
            "size_bytes": pa.array(rng.integers(1, 1 << 20, len(some))),
            "mtime_ms": pa.array(np.full(len(some), START_MS)),
            "kind": pa.array(np.zeros(len(some), np.int8)),
        }
        pq.write_table(pa.table(table), listing / f"{number:06d}.parquet", compression="lz4", use_dictionary=False)
    named = ordered[rng.permutation(count)[: int(count * LIVE_SHARE)]]
    for number, at in enumerate(range(0, len(named), FILE_ROWS)):
        table = {"address": _strings(named[at : at + FILE_ROWS])}
        pq.write_table(pa.table(table), live / f"{number:06d}.parquet", compression="lz4", use_dictionary=False)


def _strings(values: Any) -> Any:
    offsets = np.arange(len(values) + 1, dtype=np.int32) * ADDRESS_BYTES
    return pa.StringArray.from_buffers(
        len(values), pa.py_buffer(offsets.tobytes()), pa.py_buffer(np.ascontiguousarray(values).tobytes())
    )


# ---- commits


def _commits(shop: Workshop, engine: Engine) -> Iterator[Row]:
    """Reading what so many commits name, against one of them; each changed a hundred paths of a large branch."""
    count, commits = shop.scale.committed, shop.scale.marked_commits
    folder = shop.in_memory("mark-commits")
    make_lake(folder)
    kv_url, objects_url = lakes.stores_in(folder)
    shop.say(f"marking: {commits:,} commits on {count:,} objects")
    with lakes.open_lake(kv_url, objects_url, lakes.nowhere) as lake:
        repo = lake.repository(lakes.REPOSITORY)
        lakes.upload(repo, "main", range(count))
        repo.commit("main", "everything")
        rng = random.Random(1)
        for where, choose in (
            ("in one directory each", lambda: in_one_directory(rng, count)),
            ("at random", lambda: rng.sample(range(count), min(CHANGES, count))),
        ):
            for _ in range(commits - 1):
                lakes.upload(repo, "main", choose())
                repo.commit("main", "a few")
            chain = [commit.id for commit in islice(repo.log("main"), commits)]
            every, one = _wanted(repo, chain), _wanted(repo, chain[-1:])
            _read(engine, repo, one)
            mine, theirs = in_turns(
                shop.scale.long_turns,
                lambda _turn, every=every: _read(engine, repo, every),
                lambda _turn, one=one: _read(engine, repo, one),
            )
            yield Row(
                what=f"read what {commits:,} commits name, {CHANGES} changes {where}, of a branch of {count:,}",
                ours=Series(mine, "s"),
                other=Series(theirs, "s"),
                other_name="one such commit",
                bar=at_most(COMMITS_FACTOR),
            )
    shop.drop(folder)


def _wanted(repo: Repository, commits: list[ids.CommitId]) -> LiveCommits:
    wanted = LiveCommits()
    for commit in commits:
        wanted.add(commit, stored_commit(repo.get_commit(commit)), None)
    return wanted


def _read(engine: Engine, repo: Repository, wanted: LiveCommits) -> float:
    url = repo.context.objects.url
    layout = RunLayout(url=url, files=url, mark_id=MARK_ID, seed=1)

    def work() -> None:
        assert sum(
            engine.join(
                live_in_commits.commit_flows(layout, BucketBounds.from_addresses([]), wanted.sources()), 1, _count_rows
            )
        )

    return seconds_of(work)


def _count_rows(batches: list[Batch]) -> Iterator[int]:
    yield sum(len(batch.keys) for batch in batches)
