"""What a staged object takes in Redis: its reference and its entry, against the same two strings as plain keys."""

# pyright: reportUnknownMemberType=false
# redis-py leaves some of its commands untyped.

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import redis

from bench import lakes
from bench.bookkeeping import bare
from bench.measure import Row, Series, at_most
from bench.workshop import Workshop
from refstore.core.ids import BranchName
from refstore.records import keys
from refstore.repository import Repository

FACTOR = 2


def run(shop: Workshop) -> Iterator[Row]:
    count = shop.scale.remembered
    shop.say(f"memory: staging {count:,} objects")
    server, other = shop.redis(), shop.redis()
    with (
        lakes.open_lake(server.url, "memory://remembered", lakes.nowhere) as lake,
        contextlib.closing(bare(server.port)) as ours,
        contextlib.closing(bare(other.port)) as plain,
    ):
        repo = lake.create_repository(lakes.REPOSITORY)
        before = used_bytes(ours)
        lakes.upload(repo, "main", range(count))
        taken = (used_bytes(ours) - before) / count
        pairs = list(strings(repo))
        assert len(pairs) == 2 * count, f"{len(pairs)} records were found, not {2 * count}"
        for whole in (False, True):
            plain.flushall()
            before = used_bytes(plain)
            for start in range(0, len(pairs), 1000):
                plain.mset(
                    {
                        (partition + "/" + name if whole else name): value
                        for partition, name, value in pairs[start : start + 1000]
                    }
                )
            same = (used_bytes(plain) - before) / count
            text = (
                sum(
                    len(name.encode()) + len(value) + (len(partition) + 1 if whole else 0)
                    for partition, name, value in pairs
                )
                / count
            )
            yield Row(
                what="memory in Redis of a staged object, reference and entry",
                ours=Series((taken,), "bytes"),
                other=Series((same,), "bytes"),
                other_name="plain keys named by partition and name"
                if whole
                else "plain keys named by address and by path alone",
                bar=at_most(FACTOR),
                note=f"the strings themselves: {text:.0f} bytes",
            )


def used_bytes(client: redis.Redis) -> int:
    return client.info("memory")["used_memory"]


def strings(repo: Repository) -> Iterator[tuple[str, str, bytes]]:
    """(partition, name, value) of every reference and entry."""
    kv, repo_id = repo.context.kv, repo.context.repo
    partitions = [keys.references(repo_id, shard) for shard in range(keys.SHARDS)]
    partitions.append(keys.staging(repo_id, repo.context.branches.read_open(BranchName("main")).record.token))
    for partition in partitions:
        yield from ((partition, name, value) for name, value in kv.scan_all(partition))
