"""The engines: which one a run gets, what the local one does when memory or disk ends, and that both do the same."""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from refstore.core import ids
from refstore.errors import CorruptRange, MissingExtra, Unavailable
from refstore.gc_marks import Marks, RunState
from refstore_gc import gc_run
from refstore_gc.address_batches import Batch, BatchKind
from refstore_gc.engines import spark_session
from refstore_gc.engines.base import BatchStep, BatchStream
from refstore_gc.engines.choice import EngineOptions, Engines, open_engines
from refstore_gc.engines.local import LocalEngine, SharedWork
from refstore_gc.gc_run import GcOptions
from refstore_gc.mark import simulate_mark
from refstore_purge import purge_run as purging
from tests.commands import Command
from tests.engines import OneEngine
from tests.offline.purge_runs import options_of
from tests.offline.world import World, marked_in
from tests.purge.tracking import PARTITION, PREFIX, event, guestids, onboard, parquet
from tests.reaping import release_all

if TYPE_CHECKING:
    from refstore_gc.engines.base import Engine


def some_batches(rng: random.Random, buckets: int, count: int) -> list[Batch]:
    return [
        Batch(rng.randrange(buckets), BatchKind.LIVE_IN_KV, rng.randbytes(rng.randrange(1, 200))) for _ in range(count)
    ]


def joined(engine: Engine, flows: list[BatchStream], buckets: int) -> dict[int, Counter[bytes]]:
    """Return what came to each bucket."""
    found: dict[int, Counter[bytes]] = {}
    for bucket, body in engine.join(flows, buckets, numbered_bodies):
        found.setdefault(bucket, Counter())[body] += 1
    return found


def numbered_bodies(batches: list[Batch]) -> Iterator[tuple[int, bytes]]:
    assert len({batch.bucket for batch in batches}) == 1, "a bucket is joined alone"
    return ((batch.bucket, batch.body) for batch in batches)


def two_steps() -> tuple[BatchStep, BatchStep]:
    """Return a step that yields each batch in the next bucket, and once more to be read; and the one that reads it.

    Spark pickles functions of this module by their names, which its workers do not know, and closures by value.
    """
    to_read, read = BatchKind.TO_READ, BatchKind.RANGES

    def step(batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            yield batch._replace(bucket=(batch.bucket + 1) % 7)
            yield batch._replace(kind=to_read)

    def second_step(batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            yield batch._replace(kind=read, body=b"second " + batch.body)

    return step, second_step


@pytest.mark.parametrize("memory_bytes", [0, 5_000, 1 << 30], ids=["all on disk", "some on disk", "in memory"])
def test_batches_come_to_their_buckets_whether_they_fit_into_memory_or_not(tmp_path: Path, memory_bytes: int) -> None:
    made = some_batches(random.Random(memory_bytes), 7, 300)
    engine = LocalEngine(tmp_path, memory_bytes=memory_bytes, shared=SharedWork(0))
    found = joined(engine, [BatchStream(made), BatchStream(made, *two_steps())], 7)
    wanted: dict[int, Counter[bytes]] = {}
    for batch in made:
        wanted.setdefault(batch.bucket, Counter())[batch.body] += 1
        wanted.setdefault((batch.bucket + 1) % 7, Counter())[batch.body] += 1
        wanted.setdefault(batch.bucket, Counter())[b"second " + batch.body] += 1
    assert found == wanted
    assert list(tmp_path.iterdir()) == [], "what was spilled is gone"


def test_spark_brings_together_what_the_local_engine_does(spark_engines: Engines) -> None:
    made = some_batches(random.Random(5), 7, 200)

    def work(batches: list[Batch]) -> list[tuple[int, list[bytes]]]:
        return [(batches[0].bucket, sorted(batch.body for batch in batches))]

    flows = [BatchStream(made), BatchStream([]), BatchStream(made, *two_steps())]
    local, spark = LocalEngine(shared=SharedWork(0)), spark_engines.for_objects(0)
    assert sorted(local.join(flows, 7, work)) == sorted(spark.join(flows, 7, work))
    assert sorted(local.map(work, [made[:3], made[4:5]])) == sorted(spark.map(work, [made[:3], made[4:5]]))
    assert list(spark.map(work, [])) == []


def test_an_error_of_a_task_is_raised_as_it_is(both_engines: Engines) -> None:
    def fail(_: object) -> list[int]:
        from refstore.errors import CorruptRange

        raise CorruptRange("range x is damaged; restore it")

    engine = both_engines.for_objects(0)
    with pytest.raises(CorruptRange, match="range x is damaged; restore it"):
        list(engine.map(fail, [1]))
    with pytest.raises(CorruptRange, match="range x is damaged; restore it"):
        list(engine.join([BatchStream([Batch(0, BatchKind.LISTED, b"x")])], 1, fail))


class AskedEngines(Engines):
    """Notes for how many objects an engine is wanted."""

    def __init__(self, engines: Engines) -> None:
        super().__init__(EngineOptions())
        self._engines = engines
        self.objects: list[int] = []

    def for_objects(self, objects: int) -> Engine:
        self.objects.append(objects)
        return self._engines.for_objects(objects)


# ---- the choice


@pytest.mark.parametrize(
    ("options", "objects", "name"),
    [
        (EngineOptions(), 0, "local"),
        (EngineOptions(), 5_000_000, "local"),
        (EngineOptions(), 5_000_001, "spark"),
        (EngineOptions(choice="local"), 5_000_001, "local"),
        (EngineOptions(spark_from_objects=2), 3, "spark"),
        (EngineOptions(choice="spark"), 0, "spark"),
        (EngineOptions(master="local[2]"), 0, "spark"),
    ],
)
def test_auto_takes_spark_for_large_runs_and_where_a_master_is_named(
    spark_engines: Engines, options: EngineOptions, objects: int, name: str
) -> None:
    spark_engines.for_objects(0)  # its session is the one that is found
    with open_engines(options) as engines:
        assert engines.for_objects(objects).name == name


def test_without_spark_a_large_run_is_local_and_the_engine_spark_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_session, "find_spec", lambda _: None)
    with open_engines(EngineOptions(spark_from_objects=0)) as engines:
        assert engines.for_objects(10).name == "local"
    with open_engines(EngineOptions(choice="spark")) as engines, pytest.raises(MissingExtra, match="spark"):
        engines.for_objects(10)


def test_a_run_counts_while_it_lists_and_the_next_one_knows(world: World, spark_engines: Engines) -> None:
    spark_engines.for_objects(0)
    world.commit(days_ago=9, **{f"file{number}": b"%d" % number for number in range(9)})
    world.settle()
    with open_engines(EngineOptions(spark_from_objects=8)) as engines:
        assert simulate_mark(world.ctx, engines, GcOptions()).engine == "spark"
        asked = AskedEngines(engines)
        first = gc_run.mark(world.ctx, asked, GcOptions(is_full=True))
        assert (first.engine, asked.objects[0]) == ("spark", 0)
        assert asked.objects[1] == first.listed.objects > 8
        gc_run.mark(world.ctx, asked, GcOptions(is_full=True))
        assert asked.objects[2] == first.listed.objects


def test_a_purge_counts_what_it_plans(world: World, engines: Engines) -> None:
    for number in range(3):
        world.repo.upload("main", f"{PREFIX}{PARTITION}/part-{number}.parquet", parquet([event("bob", number)]))
    world.repo.commit("main", "data")
    onboard(world.repo)
    asked = AskedEngines(engines)
    made = purging.run_purge(world.repo, asked, options_of(guestids(world.folder, "bob"), share=1), lambda _: None)
    assert (made.engine, asked.objects) == ("local", [0, 3])


def test_a_command_refuses_engines_that_contradict_each_other(refstore: Command) -> None:
    refstore.ok("repo", "create", "sales")
    for words in (("--engine", "local", "--master", "local[1]"), ("--engine", "cluster")):
        ran = refstore("gc", "run", "sales", *words)
        assert ran.code == 2, ran.err
        assert "--engine" in ran.err or "is not an engine" in ran.err


def test_the_report_names_the_engine(world: World, both_engines: Engines) -> None:
    world.let_one_expire()
    ran = gc_run.run_nightly(world.ctx, both_engines, GcOptions())
    assert ran.mark_summary.engine == both_engines.for_objects(0).name
    assert [each.sweep.engine for each in ran.sweep_summaries if each.sweep] == [ran.mark_summary.engine]


# ---- the end of memory, and of the disk


def test_a_run_that_spills_marks_the_same(world: World, engines: Engines, tmp_path: Path) -> None:
    for day in range(6):
        world.commit(days_ago=20 - day, **{f"file{number}": b"%d" % (number * day) for number in range(20)})
    release_all(world.repo)
    for _ in range(5):
        world.plant(ids.new_address(ids.RandomIds(), world.clock.now_ms()))
    world.age()
    in_memory = gc_run.mark(world.ctx, engines, GcOptions(is_full=True, grace_days=5))
    Marks(world.ctx).decisions.unmark(in_memory.mark_id)
    folder = tmp_path / "spill"
    folder.mkdir()
    on_disk = gc_run.mark(
        world.ctx, OneEngine(LocalEngine(folder, memory_bytes=0)), GcOptions(is_full=True, grace_days=5)
    )
    assert marked_in(world, on_disk.mark_id) == marked_in(world, in_memory.mark_id)
    assert len(marked_in(world, on_disk.mark_id)) > 100
    assert list(folder.iterdir()) == []


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with no room for a batch."""
    folder = tmp_path / "full"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k,nr_inodes=20", "none", str(folder)], check=False)
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.root
def test_a_full_disk_ends_the_run_without_a_mark(world: World, full_disk: Path) -> None:
    world.commit(days_ago=9, **{f"file{number}": b"%d" % number for number in range(2000)})
    world.commit(days_ago=8, **{f"file{number}": None for number in range(1000)})
    world.settle()
    before = world.data()
    with pytest.raises(Unavailable, match=r"spill folder .*full.* make room"):
        gc_run.run_nightly(world.ctx, OneEngine(LocalEngine(full_disk, memory_bytes=0)), GcOptions())
    assert [each.state for each in Marks(world.ctx).runs.scan()] == [RunState.ABANDONED]
    assert world.data() == before
    assert list(full_disk.iterdir()) == []
