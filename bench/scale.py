"""What 10,000 writers would see on a Redis Cluster: a simulation, fed by what each call of an upload takes of a real
Redis here.

An upload of one object makes four calls on a Cluster, one after the other: it reads its branch's record, creates the
reference, exchanges the entry, and reads the record again. Each call goes to the master of its partition, waits there
for those before it, and takes as much of its processor as was measured. Uploads come at random, as from writers that do
not know of each other.

What the simulation has no idea of: the writers' own processors, replicas, failovers, and other callers.
"""

# pyright: reportUnknownMemberType=false
# redis-py leaves some of its commands untyped.

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple
from zlib import crc32

import redis

from bench import lakes
from bench.bookkeeping import bare
from bench.measure import Row, Series
from bench.workshop import Workshop
from refstore.core import ids
from refstore.core.ids import BranchName, Path
from refstore.kv.base import ABSENT
from refstore.public_types import stored_entry
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.reference_records import Listed, Reference

WRITERS: Final = 10_000
ROUND_TRIP_SECONDS: Final = 0.0005
"""Between a writer and any master: a network within one site."""


class Load(NamedTuple):
    uploads_per_second: int
    """Of all writers together."""
    repositories: int
    branches: int
    """Of each repository."""
    masters: int


CASES: Final = (
    Load(WRITERS, 1, 10_000, 1),
    Load(WRITERS, 1, 10_000, 4),
    Load(WRITERS, 1, 1, 4),
    Load(10 * WRITERS, 1, 10_000, 32),
    Load(10 * WRITERS, 10, 10_000, 32),
    Load(10 * WRITERS, 100, 10_000, 32),
)


class CallSeconds(NamedTuple):
    """The processor time that a Redis takes for each call of an upload."""

    read_branch: float
    create_reference: float
    exchange_entry: float


class Simulated(NamedTuple):
    latencies_seconds: Sequence[float]
    """Of each upload, in rising order."""
    busy: Sequence[float]
    """The share of its time that each master worked. 1: it has more to do than it can."""

    def quantile_ms(self, share: float) -> float:
        """Return how long this share of the uploads takes at most. `share`: less than 1."""
        return self.latencies_seconds[int(len(self.latencies_seconds) * share)] * 1000


def run(shop: Workshop) -> Iterator[Row]:
    server = shop.redis()
    with bare(server.port) as client:
        calls = measure_calls(server.url, client, shop.scale.simulated_calls)
    for name, seconds in zip(CallSeconds._fields, calls, strict=True):
        yield Row(what=f"processor time of Redis to {name.replace('_', ' ')}", ours=Series((seconds * 1e6,), "us"))
    for load in CASES:
        shop.say(f"scale: {WRITERS:,} writers, {load}")
        done = simulate(load, calls, shop.scale.simulated_uploads, random.Random(1))
        yield Row(
            what=f"simulated: p99 of an upload; {WRITERS:,} writers with {load.uploads_per_second // WRITERS} a second "
            f"each, repositories: {load.repositories}, branches of each: {load.branches:,}, masters: {load.masters}",
            ours=Series((done.quantile_ms(0.99),), "ms"),
            note=f"half of them within {done.quantile_ms(0.5):.2f} ms; the busiest master works "
            f"{max(done.busy):.0%} of the time, all together {sum(done.busy) / load.masters:.0%}",
        )


def measure_calls(url: str, client: redis.Redis, count: int) -> CallSeconds:
    """What a real Redis takes for each of these calls, alone, as the driver sends them."""
    with lakes.open_lake(url, "memory://scale", lakes.nowhere) as lake:
        repo = lake.create_repository(lakes.REPOSITORY)
        entry = stored_entry(repo.upload_many("main", lakes.uploads([0]))[0])
        ctx, token = repo.context, repo.context.branches.read_open(BranchName("main")).record.token
        now_ms, body = ctx.clock.now_ms(), encode(entry)
        names = [ids.new_address(ctx.ids, now_ms) for _ in range(count)]
        paths = [Path(lakes.path_of(number)) for number in range(1, count + 1)]
        listed = [encode(Listed((Reference(token, path),), now_ms)) for path in paths]
        branch = keys.branch(ctx.repo, ids.branch_name("main"))

        def processor_seconds(call: Callable[[int], object]) -> float:
            before = used_seconds(client)
            for number in range(count):
                call(number)
            return (used_seconds(client) - before) / count

        return CallSeconds(
            processor_seconds(lambda _number: lake.kv.get(branch)),
            processor_seconds(
                lambda number: lake.kv.set_if(keys.reference(ctx.repo, names[number]), ABSENT, listed[number])
            ),
            processor_seconds(lambda number: lake.kv.exchange(keys.entry(ctx.repo, token, paths[number]), body)),
        )


def used_seconds(client: redis.Redis) -> float:
    used = client.info("cpu")
    return float(used["used_cpu_sys"]) + float(used["used_cpu_user"])


def simulate(load: Load, calls: CallSeconds, uploads: int, chance: random.Random) -> Simulated:
    """Let so many uploads come at random, and each of their calls wait for its master."""
    free_at = [0.0] * load.masters
    worked = [0.0] * load.masters
    came: list[float] = []
    latencies: list[float] = []
    at = 0.0
    waiting: list[tuple[float, int, int, list[tuple[int, float]]]] = []
    """(when it arrives at its master, upload, which call, all calls of the upload)"""
    for number in range(uploads):
        at += chance.expovariate(load.uploads_per_second)
        came.append(at)
        waiting.append((at + ROUND_TRIP_SECONDS / 2, number, 0, _calls_of(load, calls, chance)))
    heapq.heapify(waiting)
    while waiting:
        arrived, number, step, own = heapq.heappop(waiting)
        master, seconds = own[step]
        free_at[master] = max(arrived, free_at[master]) + seconds
        worked[master] += seconds
        if step + 1 < len(own):
            heapq.heappush(waiting, (free_at[master] + ROUND_TRIP_SECONDS, number, step + 1, own))
        else:
            latencies.append(free_at[master] + ROUND_TRIP_SECONDS / 2 - came[number])
    return Simulated(sorted(latencies), [min(1.0, each / came[-1]) for each in worked])


def _calls_of(load: Load, calls: CallSeconds, chance: random.Random) -> list[tuple[int, float]]:
    """Return the master and the processor time of each call. A repository's branches share one partition."""
    repository = chance.randrange(load.repositories)

    def master_of(partition: str) -> int:
        return crc32(f"{repository}/{partition}".encode()) % load.masters

    branches = master_of("branches")
    reference = master_of(f"references/{chance.randrange(keys.SHARDS):02x}")
    staging = master_of(f"staging/{chance.randrange(load.branches)}")
    return [
        (branches, calls.read_branch),
        (reference, calls.create_reference),
        (staging, calls.exchange_entry),
        (branches, calls.read_branch),
    ]
