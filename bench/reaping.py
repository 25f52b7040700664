"""Reaping from the embedded default on tmpfs: against bare unlinks, against deltalake and icechunk, and beside what
stays.

Ours is the whole job, in a fresh process: `Reaper.run_once` with no grace, from a branch that was just reset, until
nothing is due: markers published, the token's entries read, references released, blobs deleted, keys and entries gone,
the journal written, every shard scrubbed or found fresh. One floor writes the protocol's rows and unlinks
(`reaping_floors.py`), the other only lists a folder and unlinks. The peers' clocks run while they delete, not while
they open their tables; memory is that of the whole process.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import lakes, peers
from bench.measure import Row, Series, at_least, at_most, in_fresh_process, in_turns, rates
from bench.workshop import LIVE, Workshop, filling, make_lake

ROWS_FACTOR = 0.7
FLOOR_FACTOR = 0.5
ROWS = "4 row writes an object by executemany, then unlink"
LIVE_FACTOR = 1.5
"""Reaping beside the most live objects may take so many times what it takes beside none: noise, and deeper trees."""


def run(shop: Workshop) -> Iterator[Row]:
    yield from against_others(shop)
    yield from beside_live(shop)


def against_others(shop: Workshop) -> Iterator[Row]:
    count, turns = shop.scale.reaped, shop.scale.long_turns
    measured: dict[str, list[dict[str, Any]]] = {}

    def side(name: str, make: Callable[[Path], dict[str, object]], worker: str) -> Callable[[int], float]:
        def turn(number: int) -> float:
            shop.say(f"reaping: {name}, turn {number + 1} of {turns}")
            folder = shop.in_memory("reaping")
            done = in_fresh_process(worker, **make(folder))
            assert done.get("deleted", count) >= count, f"{name} deleted {done['deleted']} of {count}"
            measured.setdefault(name, []).append(done)
            shutil.rmtree(folder)
            return done["seconds"]

        return turn

    def reset_lake(folder: Path) -> dict[str, object]:
        make_lake(folder)
        reset_branch(folder, count, "main")
        return {"data": str(folder)}

    def rows(folder: Path) -> dict[str, object]:
        reset_lake(folder)
        kv_url, objects_url = lakes.stores_in(folder)
        return {"kv": kv_url, "objects": objects_url}

    def bare(folder: Path) -> dict[str, object]:
        peers.bare_files(folder, count)
        return {"folder": str(folder)}

    def table(folder: Path) -> dict[str, object]:
        peers.delta_table(folder, count)
        return {"table": str(folder)}

    def repository(folder: Path) -> dict[str, object]:
        peers.icechunk_repository(folder, count)
        return {"repository": str(folder)}

    names = (
        "ours",
        ROWS,
        "list and unlink",
        "deltalake vacuum lite",
        "deltalake vacuum full",
        "icechunk garbage_collect",
    )
    ours, *others = in_turns(
        turns,
        side(names[0], reset_lake, "reap"),
        side(names[1], rows, "write_rows"),
        side(names[2], bare, "unlink"),
        side(names[3], lambda folder: {**table(folder), "full": False}, "vacuum"),
        side(names[4], lambda folder: {**table(folder), "full": True}, "vacuum"),
        side(names[5], repository, "collect"),
    )
    what = f"reap {count:,} objects of a reset branch, no grace"
    our_rates = rates(count, ours, "objects/s")
    for name, seconds in zip(names[1:], others, strict=True):
        limit = {names[1]: ROWS_FACTOR, names[2]: FLOOR_FACTOR}.get(name, 1.0)
        yield Row(
            what=what, ours=our_rates, other=rates(count, seconds, "objects/s"), other_name=name, bar=at_least(limit)
        )
    for name in names[3:]:
        yield Row(
            what=f"peak memory of reaping {count:,} objects",
            ours=peaks(measured[names[0]]),
            other=peaks(measured[name]),
            other_name=name,
            bar=at_most(1.0) if name == names[5] else None,
        )


def beside_live(shop: Workshop) -> Iterator[Row]:
    """In one repository, one store and one KV with objects that stay."""
    count, turns = shop.scale.reaped, shop.scale.long_turns
    surveys: dict[int, list[float]] = {}

    def beside(live: int) -> Callable[[int], float]:
        def turn(number: int) -> float:
            folder = shop.live_lake(live)
            shop.say(f"reaping beside {live:,} live objects: turn {number + 1} of {turns}")
            reset_branch(folder, count, f"due-{number}")
            done = in_fresh_process("reap", data=str(folder))
            assert done["deleted"] == count, f"{done['deleted']} of {count} were deleted"
            surveys.setdefault(live, []).append(done["surveying"])
            return done["seconds"] - done["surveying"]

        return turn

    none, *some = in_turns(turns, *(beside(live) for live in shop.scale.live))
    for live, seconds in zip(shop.scale.live[1:], some, strict=True):
        yield Row(
            what=f"reap {count:,} objects beside {live:,} live ones, without surveys",
            ours=Series(seconds, "s"),
            other=Series(none, "s"),
            other_name="beside none",
            bar=at_most(LIVE_FACTOR),
        )
        yield Row(
            what=f"the surveys of the same, beside {live:,} live ones: at most a twentieth of a reaper that goes on",
            ours=Series(tuple(surveys[live]), "s"),
        )


def reset_branch(folder: Path, count: int, branch: str) -> None:
    """A branch with so many staged objects, blobs included, reset: their deletion is decided, and nothing of it
    done.
    """
    with filling(folder) as lake:
        repo = lake.repository(lakes.REPOSITORY)
        if branch not in [each.name for each in repo.branches()]:
            repo.create_branch(branch, source="main")
        lakes.upload(repo, branch, range(count))
        repo.reset(branch)
    assert branch != LIVE


def peaks(measured: list[dict[str, Any]]) -> Series:
    return Series(tuple(done["peak_mib"] for done in measured), "MiB")
