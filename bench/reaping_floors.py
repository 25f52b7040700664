"""What deletion has to write to the KV, and nothing else: the floors of `reaping_default`.

What is written is prepared before the clock runs: the protocol's own records, of a branch that was reset.
"""

# pyright: reportUnknownMemberType=false
# redis-py leaves some of its commands untyped.

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import redis

from bench import lakes
from refstore.core.batches import split_batches
from refstore.core.ids import Path as ObjectPath
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.reference_records import Deleting, Emptied, Reference
from refstore.records.staging_records import StoredEntry, decode_staged
from refstore.repository import Repository

PAGE = 4000
"""As many as the reaper handles at a time (`reaper_pass.BATCH_KEYS`)."""
PIPELINE = 1000
SWAP = "UPDATE kv SET value = ?4 WHERE partition = ?1 AND name = ?2 AND value = ?3"
REMOVE = "DELETE FROM kv WHERE partition = ? AND name = ?"
REMOVE_RANGE = "DELETE FROM kv WHERE partition = ? AND name BETWEEN ? AND ?"
SWAP_IN_REDIS = (
    "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2]) return 1 end return 0"
)


class Life(NamedTuple):
    """The keys of one object, each as partition and name, and what its reference is in turn."""

    entry: tuple[str, str]
    reference: tuple[str, str]
    listed: bytes
    emptied: bytes
    deleting: bytes


def write_rows(kv: str, objects: str, library: str) -> float:
    """Write them to the embedded default's own file, then unlink its blobs. Return the seconds.

    `library`: `sqlite3`, Python's own module, or `apsw`, which the driver uses.
    """
    with lakes.open_lake(kv, objects) as lake:
        lives = [*split_batches(_lives(lake.repository(lakes.REPOSITORY)), PAGE)]
    file = kv.removeprefix("sqlite://")
    connection: Any = apsw.Connection(file) if library == "apsw" else sqlite3.connect(file, isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")

    def changed() -> int:
        return connection.execute("SELECT total_changes()").fetchall()[0][0]

    def write(statement: str, rows: list[tuple[object, ...]]) -> None:
        before = changed()
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(statement, rows)
        connection.execute("COMMIT")
        assert changed() - before == len(rows)

    began = time.perf_counter()
    for page in lives:
        write(SWAP, [(*life.reference, life.listed, life.emptied) for life in page])
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(REMOVE_RANGE, (*page[0].entry, page[-1].entry[1]))
        connection.execute("COMMIT")
    for page in lives:
        write(SWAP, [(*life.reference, life.emptied, life.deleting) for life in page])
        write(REMOVE, [life.reference for life in page])
    _unlink(objects)
    return time.perf_counter() - began


def write_redis_keys(kv: str, objects: str) -> float:
    """Write them to plain keys of another database of the server, then unlink the blobs. Return the seconds."""
    with lakes.open_lake(kv, objects) as lake:
        lives = [*split_batches(_lives(lake.repository(lakes.REPOSITORY)), PIPELINE)]
    client = redis.Redis.from_url(kv, db=1, protocol=2)
    for page in lives:
        client.mset({"".join(life.reference): life.listed for life in page})
        client.mset({"".join(life.entry): life.listed for life in page})
    swap = client.script_load(SWAP_IN_REDIS)
    began = time.perf_counter()
    for page in lives:
        pipeline = client.pipeline(transaction=False)
        for life in page:
            pipeline.evalsha(swap, 1, "".join(life.reference), life.listed, life.emptied)
        for life in page:
            pipeline.delete("".join(life.entry))
        assert all(pipeline.execute())
    for page in lives:
        pipeline = client.pipeline(transaction=False)
        for life in page:
            pipeline.evalsha(swap, 1, "".join(life.reference), life.emptied, life.deleting)
        assert all(pipeline.execute())
        for life in page:
            pipeline.delete("".join(life.reference))
        assert all(pipeline.execute())
    _unlink(objects)
    return time.perf_counter() - began


def _lives(repo: Repository) -> Iterator[Life]:
    ctx = repo.context
    ((token, marker),) = ctx.markers.scan_deleted()
    now = ctx.clock.now_ms()
    for page in split_batches(ctx.kv.scan_all(keys.staging(ctx.repo, token), page=PAGE), PAGE):
        entries = [(name, decode_staged(value)) for name, value in page]
        names = [keys.reference(ctx.repo, entry.address) for _, entry in entries if isinstance(entry, StoredEntry)]
        for (path, entry), key, listed in zip(entries, names, ctx.kv.get_many(names), strict=True):
            assert isinstance(entry, StoredEntry)
            assert isinstance(listed, bytes)
            last = Reference(token, ObjectPath(path))
            yield Life(
                (keys.staging(ctx.repo, token), path),
                (key.partition, key.name),
                listed,
                encode(Emptied(now, last, marker.cause, entry)),
                encode(Deleting(now, last, marker.cause, entry.size_bytes)),
            )


def _unlink(objects: str) -> None:
    for folder in Path(objects.removeprefix("file://")).glob("*/data/*"):
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries]
        directory = os.open(folder, os.O_RDONLY)
        for name in names:
            os.unlink(name, dir_fd=directory)
        os.close(directory)
