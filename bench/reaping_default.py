"""Reaping as it is by default: a reset branch is released into its grace window, and deleted when this is over.

Ours is two whole jobs, each in a fresh process: `Reaper.run_once` with the lake's own grace window, and again with a
clock that is past it. Nothing is overridden but the breaker, which is for deletions that nobody expected.

Two things stand beside it. icechunk deletes as many chunks that no snapshot names, without a grace window. The floor
writes to the same KV what the protocol has to write, and nothing else, and unlinks the same files: for each object two
conditional writes (released, `deleting`) and two removals (the staging entry, the reference).
"""

# pyright: reportUnknownMemberType=false
# redis-py leaves some of its commands untyped.

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import lakes, peers
from bench.measure import Row, Series, at_least, at_most, in_fresh_process, in_turns, rates
from bench.reaping import reset_branch
from bench.workshop import Workshop, make_lake
from refstore.configuration.settings import embedded_urls

FACTOR = 0.7
"""Of icechunk, and of each floor. A bar holds if it is passed by a seventh."""


def run(shop: Workshop) -> Iterator[Row]:
    yield from on_sqlite(shop)
    yield from on_redis(shop)


def on_sqlite(shop: Workshop) -> Iterator[Row]:
    """The embedded default: SQLite and local files, on tmpfs."""
    count, turns = shop.scale.reaped, shop.scale.long_turns
    steps: list[tuple[dict[str, Any], dict[str, Any]]] = []
    collected: list[dict[str, Any]] = []

    def ours(_number: int) -> float:
        with Lake(shop, count) as lake:
            steps.append(both_steps(lake.kv, lake.objects, count))
        return steps[-1][0]["seconds"] + steps[-1][1]["seconds"]

    def floor(library: str) -> Callable[[int], float]:
        def turn(_number: int) -> float:
            with Lake(shop, count) as lake:
                return in_fresh_process("write_rows", kv=lake.kv, objects=lake.objects, library=library)["seconds"]

        return turn

    def icechunk(_number: int) -> float:
        folder = shop.in_memory("icechunk")
        peers.icechunk_repository(folder, count)
        collected.append(in_fresh_process("collect", repository=str(folder)))
        shutil.rmtree(folder)
        return collected[-1]["seconds"]

    mine, bare, bare_apsw, theirs = in_turns(
        turns,
        said(shop, "ours", ours),
        said(shop, "bare rows", floor("sqlite3")),
        said(shop, "bare rows by apsw", floor("apsw")),
        said(shop, "icechunk", icechunk),
    )
    what = f"release {count:,} objects into grace, then delete them; SQLite and local files"
    rate = rates(count, mine, "objects/s")
    peer, rows = "icechunk garbage_collect", "4 row writes an object by executemany, then unlink"
    yield Row(what=what, ours=rate, other=rates(count, theirs, "objects/s"), other_name=peer, bar=at_least(FACTOR))
    yield Row(what=what, ours=rate, other=rates(count, bare, "objects/s"), other_name=rows, bar=at_least(FACTOR))
    yield Row(what=what, ours=rate, other=rates(count, bare_apsw, "objects/s"), other_name=f"{rows}; with apsw")
    yield Row(
        what=f"peak memory of the larger half, {count:,} objects",
        ours=Series(tuple(max(half["peak_mib"] for half in both) for both in steps), "MiB"),
        other=Series(tuple(done["peak_mib"] for done in collected), "MiB"),
        other_name=peer,
        bar=at_most(1.0),
    )
    for index, half in enumerate((f"release {count:,} objects into grace", f"delete {count:,} objects after it")):
        yield Row(
            what=f"{half}; SQLite and local files",
            ours=rates(count, [both[index]["seconds"] for both in steps], "objects/s"),
        )


def on_redis(shop: Workshop) -> Iterator[Row]:
    count, turns = shop.scale.reaped, shop.scale.long_turns
    server = shop.redis()

    def ours(_number: int) -> float:
        server.client().flushall()
        with Lake(shop, count, kv=server.url) as lake:
            release, deletion = both_steps(lake.kv, lake.objects, count)
        return release["seconds"] + deletion["seconds"]

    def floor(_number: int) -> float:
        server.client().flushall()
        with Lake(shop, count, kv=server.url) as lake:
            return in_fresh_process("write_redis_keys", kv=lake.kv, objects=lake.objects)["seconds"]

    mine, bare = in_turns(turns, said(shop, "ours on Redis", ours), said(shop, "bare writes on Redis", floor))
    yield Row(
        what=f"release {count:,} objects into grace, then delete them; Redis and local files",
        ours=rates(count, mine, "objects/s"),
        other=rates(count, bare, "objects/s"),
        other_name="2 conditional writes and 2 deletions an object, 1,000 in a pipeline, then unlink",
        bar=at_least(FACTOR),
    )


class Lake:
    """A lake on tmpfs with one reset branch; gone at the end."""

    def __init__(self, shop: Workshop, count: int, kv: str = "") -> None:
        self._folder = shop.in_memory("default")
        embedded_kv, self.objects = embedded_urls(self._folder)
        self.kv = kv or embedded_kv
        if not kv:
            make_lake(self._folder)
            reset_branch(self._folder, count, "main")
            return
        with lakes.open_lake(kv, self.objects) as lake:
            record = lake.create_repository(lakes.REPOSITORY).context.repo
        with lakes.open_lake(kv, self.objects, lakes.files_under(self._folder / "objects" / record)) as lake:
            repo = lake.repository(lakes.REPOSITORY)
            lakes.upload(repo, "main", range(count))
            repo.reset("main")

    def __enter__(self) -> Lake:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder)


def both_steps(kv: str, objects: str, count: int) -> tuple[dict[str, Any], dict[str, Any]]:
    release = in_fresh_process("reap_by_default", kv=kv, objects=objects)
    assert (release["emptied"], release["deleted"]) == (count, 0), f"not everything was released: {release}"
    deletion = in_fresh_process("reap_by_default", kv=kv, objects=objects, after_grace=True)
    assert deletion["deleted"] == count, f"{deletion['deleted']} of {count} were deleted"
    left = list(Path(objects.removeprefix("file://")).glob("*/data/*/*"))
    assert not left, f"{len(left)} files are left"
    return release, deletion


def said(shop: Workshop, name: str, side: Callable[[int], float]) -> Callable[[int], float]:
    def turn(number: int) -> float:
        shop.say(f"reaping by default: {name}, turn {number + 1} of {shop.scale.long_turns}")
        return side(number)

    return turn
