"""A run of marking that goes on from the last one, after one object in a hundred was overwritten: against a full
run.

Whole directories are overwritten, as a pipeline does that writes partitions anew; and as many objects at random, which
changes every range of the tree, so that all of it is read.

And the same beside commits that have expired and are complete: an append-only branch, of which all commits but the last
are marked and unmarked by every run. Against the same lake under rules that keep these commits.

All are whole runs, from the rules to the summary, on the embedded default with real files. Nobody else is at work in
this lake, so there is nobody to wait for. The first upload is of ten days ago, as its addresses say:
a run lists again what was made in the last hours.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench import lakes
from bench.measure import Row, Series, at_most, in_fresh_process, seconds_of
from bench.offline_sweep import AT_ONCE, EVERYTHING
from bench.workshop import Workshop
from refstore.core.clock import SystemClock
from refstore.kv import open_kv
from refstore.lake import Lake
from refstore.objects import open_objects
from refstore_gc import gc_run as job
from refstore_gc.engines.choice import EngineOptions, Engines, open_engines

FACTOR: Final = 0.1
CHANGED: Final = 100
"""One in so many."""
AGO_MS: Final = 10 * 86_400_000
COMPLETE: Final = 1000
"""Commits that are complete, each of so many objects:"""
APPENDED: Final = 10
COMPLETE_FACTOR: Final = 1.1
LOG: Final = "log"
RULES: Final = '{"default_retention_days": 0}'
KEEPING: Final = '{"default_retention_days": 0, "branches": [{"branch_id": "log", "retention_days": 36500}]}'


class Earlier(SystemClock):
    def now_ms(self) -> int:
        return super().now_ms() - AGO_MS


def run(shop: Workshop) -> Iterator[Row]:
    count = shop.scale.marked_again
    folder = shop.in_memory("again")
    kv_url, objects_url = lakes.stores_in(folder)
    shop.say(f"marking again: {count:,} objects with their files")
    blobs = make_lake(folder, count)
    began = time.perf_counter()
    with open_engines(EngineOptions()) as engines, Lake(open_kv(kv_url), objects_url, safety=AT_ONCE) as lake:
        ctx = lake.repository(lakes.REPOSITORY).context
        first = job.mark(ctx, engines, EVERYTHING)
        shop.say(f"a first full run, not counted: {time.perf_counter() - began:.1f} s; {first.seconds}")
        rng = random.Random(1)
        for where, choose in (("directories", _directories), ("at random", _at_random)):
            again: list[float] = []
            complete: list[float] = []
            for _ in range(shop.scale.long_turns):
                changed = choose(rng, count)
                change(folder, blobs, changed, SystemClock())
                again.append(_marked(ctx, engines, full=False, expected=len(changed)))
                complete.append(_marked(ctx, engines, full=True, expected=0))
                shop.say(f"marking {count:,} again, {where}: {again[-1]:.1f} s, in full {complete[-1]:.1f} s")
            yield Row(
                what=f"mark {count:,} objects again, one in {CHANGED} changed, {where}",
                ours=Series(tuple(again), "s"),
                other=Series(tuple(complete), "s"),
                other_name="the same with --full",
                bar=at_most(FACTOR),
            )
    shop.drop(folder)
    yield from beside_complete_commits(shop)


def beside_complete_commits(shop: Workshop) -> Iterator[Row]:
    count = shop.scale.marked_again
    commits = min(COMPLETE, count // 10)
    folders = {rules: shop.in_memory(f"complete-{number}") for number, rules in enumerate((RULES, KEEPING))}
    blobs: dict[str, Path] = {}
    for rules, folder in folders.items():
        kv_url, objects_url = lakes.stores_in(folder)
        shop.say(f"marking again beside {commits:,} commits under {rules}: {count:,} objects with their files")
        with lakes.open_lake(kv_url, objects_url) as lake:
            repo = lake.create_repository(lakes.REPOSITORY)
            repo.set_retention(rules)
            repo.create_branch(LOG, source="main")
            blobs[rules] = lakes.blobs_of(folder, repo)
        _append(folder, blobs[rules], range(count, count + commits * APPENDED), commits)
        change(folder, blobs[rules], range(count), Earlier())
    seconds: dict[str, list[float]] = {rules: [] for rules in folders}
    with open_engines(EngineOptions()) as engines:
        for turn in range(shop.scale.turns + 1):
            changed = _directories(random.Random(turn), count)
            for rules, folder in folders.items():
                if turn:
                    change(folder, blobs[rules], changed, SystemClock())
                kv_url, objects_url = lakes.stores_in(folder)
                with Lake(open_kv(kv_url), objects_url, safety=AT_ONCE) as lake:
                    ctx = lake.repository(lakes.REPOSITORY).context
                    if turn:
                        seconds[rules].append(_marked(ctx, engines, full=False, expected=len(changed)))
                        continue
                    found = job.mark(ctx, engines, EVERYTHING).commits["nothing_to_delete"]
                    assert found == (commits if rules == RULES else 0), f"{found} commits are complete"
            shop.say(
                f"marking {count:,} again beside {commits:,} commits, turn {turn}: "
                f"{[each[-1:] for each in seconds.values()]}"
            )
    yield Row(
        what=f"mark {count:,} objects again beside {commits:,} expired commits that are complete",
        ours=Series(tuple(seconds[RULES]), "s"),
        other=Series(tuple(seconds[KEEPING]), "s"),
        other_name="the same beside as many commits that the rules keep",
        bar=at_most(COMPLETE_FACTOR),
    )
    for folder in folders.values():
        shop.drop(folder)


def _append(folder: Path, blobs: Path, numbers: range, commits: int) -> None:
    kv_url, objects_url = lakes.stores_in(folder)
    sink = lakes.files_under(blobs)
    kv = open_kv(f"{kv_url}?fsync=0")
    with Lake(kv, objects_url, open_store=lambda url: lakes.ShortWay(open_objects(url), sink), clock=Earlier()) as lake:
        repo = lake.repository(lakes.REPOSITORY)
        each = len(numbers) // commits
        for at in range(0, len(numbers), each):
            lakes.upload(repo, LOG, numbers[at : at + each])
            repo.commit(LOG, "appended")
    in_fresh_process("reap", data=str(folder))


def _directories(rng: random.Random, count: int) -> list[int]:
    size = lakes.DIRECTORY_ENTRIES
    chosen = rng.sample(range(max(1, count // size)), max(1, count // CHANGED // size))
    return [number for directory in chosen for number in range(directory * size, min((directory + 1) * size, count))]


def _at_random(rng: random.Random, count: int) -> list[int]:
    return rng.sample(range(count), count // CHANGED)


def _marked(ctx: Any, engines: Engines, *, full: bool, expected: int) -> float:
    """Seconds. What commits no longer name, and was marked before, is not marked again."""
    found: list[Any] = []
    options = job.GcOptions(grace_days=0, min_age_seconds=0, limits=EVERYTHING.limits, is_full=full)
    seconds = seconds_of(lambda: found.append(job.mark(ctx, engines, options)))
    assert (found[0].baseline_mark_id == "") is full, found[0].full_reason
    data = found[0].by_prefix.get("data/")
    assert (data.objects if data else 0) == expected, f"{data} were marked, not {expected}"
    return seconds


def make_lake(folder: Path, count: int) -> Path:
    """Make a lake of committed objects with their files, as of ten days ago; return where the files are."""
    kv_url, objects_url = lakes.stores_in(folder)
    with lakes.open_lake(kv_url, objects_url) as lake:
        repo = lake.create_repository(lakes.REPOSITORY)
        repo.set_retention(RULES)
        blobs = lakes.blobs_of(folder, repo)
    change(folder, blobs, range(count), Earlier())
    return blobs


def change(folder: Path, blobs: Path, numbers: Any, clock: SystemClock) -> None:
    """Upload, commit, and let the reaper settle the references."""
    kv_url, objects_url = lakes.stores_in(folder)
    sink = lakes.files_under(blobs)
    kv = open_kv(f"{kv_url}?fsync=0")
    with Lake(kv, objects_url, open_store=lambda url: lakes.ShortWay(open_objects(url), sink), clock=clock) as lake:
        repo = lake.repository(lakes.REPOSITORY)
        lakes.upload(repo, "main", numbers)
        repo.commit("main", "changed")
    in_fresh_process("reap", data=str(folder))
