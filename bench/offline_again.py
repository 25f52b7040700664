"""A run of marking that goes on from the last one, after one object in a hundred was overwritten: against a complete run.

Whole directories are overwritten, as a pipeline does that writes partitions anew; and as many objects at random, which changes every
range of the tree, so that all of it is read.

Both are whole runs, from the rules to the summary, on the embedded default with real files. Nobody else is at work in this lake, so
there is nobody to wait for; Spark has started. The first upload is of ten days ago, as its addresses say: a run lists again what was
made in the last hours.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench import lakes
from bench.measure import Row, Series, at_most, in_fresh_process, seconds_of
from bench.offline_mark import MASTER
from bench.offline_sweep import AT_ONCE, EVERYTHING
from bench.workshop import Workshop
from offline_gc import run as job
from offline_gc.session import SparkOptions, session
from refstore.clock import SystemClock
from refstore.kv import open_kv
from refstore.lake import Lake
from refstore.objects import open_objects

FACTOR: Final = 0.1
CHANGED: Final = 100
"""One in so many."""
AGO_MS: Final = 10 * 86_400_000
RULES: Final = '{"default_retention_days": 0}'


class Earlier(SystemClock):
    def now_ms(self) -> int:
        return super().now_ms() - AGO_MS


def run(shop: Workshop) -> Iterator[Row]:
    count = shop.scale.marked_again
    folder = shop.in_memory("again")
    kv_url, objects_url = lakes.stores_in(folder)
    shop.say(f"marking again: {count:,} objects with their files")
    with lakes.open_lake(kv_url, objects_url) as lake:
        repo = lake.create_repository(lakes.REPOSITORY)
        repo.set_retention(RULES)
        blobs = lakes.blobs_of(folder, repo)
    _change(folder, blobs, range(count), Earlier())
    began = time.perf_counter()
    with session(SparkOptions(master=MASTER)) as spark, Lake.open(kv_url, objects_url, safety=AT_ONCE) as lake:
        ctx = lake.repository(lakes.REPOSITORY).context
        first = job.mark(ctx, spark, EVERYTHING)
        shop.say(f"Spark's start and a first complete run, not counted: {time.perf_counter() - began:.1f} s; {first.seconds}")
        rng = random.Random(1)
        for where, choose in (("directories", _directories), ("at random", _at_random)):
            again: list[float] = []
            complete: list[float] = []
            for _ in range(shop.scale.long_turns):
                changed = choose(rng, count)
                _change(folder, blobs, changed, SystemClock())
                again.append(_marked(ctx, spark, full=False, expected=len(changed)))
                complete.append(_marked(ctx, spark, full=True, expected=0))
                shop.say(f"marking {count:,} again, {where}: {again[-1]:.1f} s, completely {complete[-1]:.1f} s")
            yield Row(
                what=f"mark {count:,} objects again, one in {CHANGED} changed, {where}",
                ours=Series(tuple(again), "s"),
                other=Series(tuple(complete), "s"),
                other_name="the same with --full",
                bar=at_most(FACTOR),
            )
    shop.drop(folder)


def _directories(rng: random.Random, count: int) -> list[int]:
    size = lakes.DIRECTORY_ENTRIES
    chosen = rng.sample(range(max(1, count // size)), max(1, count // CHANGED // size))
    return [number for directory in chosen for number in range(directory * size, min((directory + 1) * size, count))]


def _at_random(rng: random.Random, count: int) -> list[int]:
    return rng.sample(range(count), count // CHANGED)


def _marked(ctx: Any, spark: Any, *, full: bool, expected: int) -> float:
    """Seconds. What commits no longer name, and was marked before, is not marked again."""
    found: list[Any] = []
    options = job.Options(grace_days=0, min_age_seconds=0, limits=EVERYTHING.limits, full=full)
    seconds = seconds_of(lambda: found.append(job.mark(ctx, spark, options)))
    assert (found[0].goes_on_from == "") is full, found[0].why_complete
    data = found[0].by_kind.get("data")
    assert (data.objects if data else 0) == expected, f"{data} were marked, not {expected}"
    return seconds


def _change(folder: Path, blobs: Path, numbers: Any, clock: SystemClock) -> None:
    """Upload, commit, and let the reaper settle the references."""
    kv_url, objects_url = lakes.stores_in(folder)
    sink = lakes.files_under(blobs)
    kv = open_kv(f"{kv_url}?synchronous=normal")
    with Lake(kv, objects_url, open_store=lambda url: lakes.ShortWay(open_objects(url), sink), clock=clock) as lake:
        repo = lake.repository(lakes.REPOSITORY)
        lakes.upload(repo, "main", numbers)
        repo.commit("main", "changed")
    in_fresh_process("reap", data=str(folder))
