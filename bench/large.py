"""Large numbers in one repository: many branches, and many staged objects, without blobs.

What is done to one branch must not depend on how many others there are. A listing and a release must not take longer an
object where there are a hundred times as many.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import apsw
import redis

from bench import lakes
from bench.measure import Row, Series, at_least, at_most, in_fresh_process, in_turns, seconds_of
from bench.workshop import Workshop
from refstore.repository import Repository

BRANCHES_FEW = 10
ONE_BRANCH_FACTOR = 1.5
BRANCHES_PER_SECOND = 50_000
OBJECTS_FACTOR = 2.0
"""An object among the most may take so many times what it takes among the fewest."""
BYTES_FACTOR = 1.1
PAGE = 4000
"""Records of a page that the bare driver reads from Redis."""
PEAK_FACTOR = 1.5
"""The memory of the reaper, likewise."""


def run(shop: Workshop) -> Iterator[Row]:
    yield from many_branches(shop)
    yield from many_objects(shop)


def stores(shop: Workshop) -> Iterator[tuple[str, str]]:
    yield "SQLite", lakes.stores_in(shop.in_memory("large"))[0]
    yield "Redis", shop.redis().url


def many_branches(shop: Workshop) -> Iterator[Row]:
    many, steps = shop.scale.branches, shop.scale.calls
    for name, kv_url in stores(shop):
        shop.say(f"large: making {many:,} branches on {name}")
        with lakes.open_lake(kv_url, f"memory://large-{name}", lakes.nowhere) as lake:
            repos = [lake.create_repository(repo) for repo in ("many", "few")]
            for repo, count in zip(repos, (many, BRANCHES_FEW), strict=True):
                for number in range(count):
                    repo.create_branch(f"branch-{number:06d}", source="main")
            among_many, among_few = in_turns(steps, *(partial(work_on_one, repo) for repo in repos))
            yield Row(
                what=f"upload, stat and reset of one branch among {many:,} on {name}",
                ours=Series(tuple(each * 1000 for each in among_many), "ms"),
                other=Series(tuple(each * 1000 for each in among_few), "ms"),
                other_name=f"among {BRANCHES_FEW}",
                bar=at_most(ONE_BRANCH_FACTOR),
            )
            repo = repos[0]
            seconds = [seconds_of(partial(read_all, repo, many + 1)) for _ in range(shop.scale.turns)]
            yield Row(
                what=f"read {many:,} branches on {name}",
                ours=Series(tuple((many + 1) / each for each in seconds), "branches/s"),
                bar=at_least(BRANCHES_PER_SECOND),
            )


def read_all(repo: Repository, count: int) -> None:
    read = sum(1 for _ in repo.branches())
    assert read == count, f"{read} of {count} branches were read"


def work_on_one(repo: Repository, _turn: int) -> float:
    def work() -> None:
        repo.upload("branch-000005", "a", b"")
        repo.stat("branch-000005", "a")
        repo.reset("branch-000005")

    return seconds_of(work)


def many_objects(shop: Workshop) -> Iterator[Row]:
    """On one branch each: staged, listed, reset, and released by a reaper; once, because it takes minutes."""
    few, many = shop.scale.staged_counts
    for name in ("SQLite", "Redis"):
        listed: list[float] = []
        bare: list[float] = []
        taken: list[float] = []
        released: list[float] = []
        peaks: list[float] = []
        for count in (few, many):
            kv_url = lakes.stores_in(shop.in_memory("large"))[0] if name == "SQLite" else shop.redis().url
            objects = f"file://{shop.in_memory('no-blobs')}"
            shop.say(f"large: staging {count:,} objects on {name}")
            with lakes.open_lake(kv_url, objects, lakes.nowhere) as lake:
                repo = lake.create_repository(lakes.REPOSITORY)
                before = bytes_in_redis(kv_url)
                lakes.upload(repo, "main", range(count))
                taken.append((bytes_in_redis(kv_url) - before) / count)
                listed.append(seconds_of(lambda repo=repo: sum(1 for _ in repo.list("main"))) / count)
                bare.append(list_bare(kv_url, count) / count)
                repo.reset("main")
            done = in_fresh_process("reap_by_default", kv=kv_url, objects=objects)
            assert done["emptied"] == count, done
            released.append(done["seconds"] / count)
            peaks.append(done["peak_mib"])
        for what, (least, most), factor, unit, scale in (
            ("list a staged object", listed, OBJECTS_FACTOR, "us/object", 1e6),
            ("release an object of a reset branch", released, OBJECTS_FACTOR, "us/object", 1e6),
            ("peak memory of the reaper that releases", peaks, PEAK_FACTOR, "MiB", 1.0),
        ):
            yield Row(
                what=f"{what} among {many:,} on {name}",
                ours=Series((most * scale,), unit),
                other=Series((least * scale,), unit),
                other_name=f"among {few:,}",
                bar=at_most(factor),
            )
        yield Row(
            what=f"list a staged object among {many:,} on {name}",
            ours=Series((listed[1] * 1e6,), "us/object"),
            other=Series((bare[1] * 1e6,), "us/object"),
            other_name="the same records, read by the bare driver",
        )
        if name == "Redis":
            yield Row(
                what=f"memory of Redis for a staged object, among {many:,}",
                ours=Series((taken[1],), "bytes"),
                other=Series((taken[0],), "bytes"),
                other_name=f"among {few:,}",
                bar=at_most(BYTES_FACTOR),
            )


def bytes_in_redis(kv_url: str) -> int:
    """Return the memory that a Redis server uses; 0 for another store."""
    if not kv_url.startswith("redis"):
        return 0
    client = client_of(kv_url)
    with contextlib.closing(client):
        return int(client.info("memory")["used_memory"])


def list_bare(kv_url: str, count: int) -> float:
    """Read the records of the largest partition, which are the staged entries, as the driver gives them. Return
    seconds.
    """
    if kv_url.startswith("redis"):
        client = client_of(kv_url)
        with contextlib.closing(client):
            largest = max(client.scan_iter(count=1000, _type="zset"), key=client.zcard)
            return counted(count, lambda: pages_of(client, largest))
    opened: Any = apsw.Connection(urlsplit(kv_url).path)
    with contextlib.closing(opened) as connection:
        ((largest,),) = connection.execute(
            "SELECT partition FROM kv GROUP BY partition ORDER BY count(*) DESC LIMIT 1"
        ).fetchall()
        sql = "SELECT name, value FROM kv WHERE partition = ? ORDER BY name"
        return counted(count, lambda: connection.execute(sql, (largest,)))


def client_of(kv_url: str) -> Any:
    return redis.Redis(port=urlsplit(kv_url).port or 6379)


def pages_of(client: Any, key: bytes) -> Iterator[bytes]:
    low = b"-"
    while page := client.zrangebylex(key, low, b"+", start=0, num=PAGE):
        yield from page
        low = b"(" + page[-1]


def counted(count: int, read: Callable[[], Iterable[object]]) -> float:
    began = time.perf_counter()
    found = sum(1 for _ in read())
    seconds = time.perf_counter() - began
    assert found == count, f"{found} of {count} records were read"
    return seconds
