"""The offline job's sweep: on local files against what peers delete with, on S3 against bare bulk deletes.

Ours is the whole sweep: the re-check of the marks, the deletions on the executors, an outcome for every key written
down. The mark is made before. Nobody else is at work in these lakes, so there is nobody to wait
for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from bench import lakes, peers
from bench.listing import fill
from bench.measure import Row, at_least, in_fresh_process, in_turns, rates, seconds_of
from bench.reaping_s3 import DELETE_KEYS, delete_bare, left
from bench.workshop import Workshop
from refstore.core import ids
from refstore.core.safety import Safety
from refstore.kv import open_kv
from refstore.lake import Lake, open_lake_at
from refstore.objects.s3.client import CONCURRENT_REQUESTS
from refstore_gc import gc_run as job
from refstore_gc.engines.choice import EngineOptions, Engines, open_engines
from refstore_gc.gc_run import GcOptions
from refstore_gc.run_context import BreakerLimits

FACTOR_S3: Final = 0.8
AT_ONCE: Final = Safety(
    operation_deadline_seconds=0,
    io_timeout_seconds=0,
    clock_skew_seconds=0,
    recheck_after_seconds=0,
)
EVERYTHING: Final = GcOptions(grace_days=0, min_age_seconds=0, limits=BreakerLimits(share_max=1))
SLICES: Final = 20


def run(shop: Workshop) -> Iterator[Row]:
    began = time.perf_counter()
    with open_engines(EngineOptions()) as engines:
        _swept(shop, engines, 100)
        shop.say(f"a first small sweep, not counted: {time.perf_counter() - began:.1f} s")
        yield from _local(shop, engines)
        yield _s3(shop, engines)


def _local(shop: Workshop, engines: Engines) -> Iterator[Row]:
    count, turns = shop.scale.swept, shop.scale.long_turns

    def ours(number: int) -> float:
        shop.say(f"sweeping {count:,} of {2 * count:,} local files: turn {number + 1} of {turns}")
        return _swept(shop, engines, count)

    def peer(name: str, _turn: int) -> float:
        folder = shop.in_memory(name.split(maxsplit=1)[0])
        making = {"deltalake": peers.delta_table, "icechunk": peers.icechunk_repository, "pylance": peers.lance_dataset}
        making[name.split(maxsplit=1)[0]](folder, count)
        if name.startswith("deltalake"):
            done = in_fresh_process("vacuum", table=str(folder), full=True)
        elif name.startswith("icechunk"):
            done = in_fresh_process("collect", repository=str(folder))
        else:
            done = in_fresh_process("cleanup", dataset=str(folder))
        assert done["deleted"] >= count, f"{name} deleted {done['deleted']} of {count}"
        shop.drop(folder)
        return done["seconds"]

    names = ("deltalake vacuum, full", "icechunk garbage_collect", "pylance cleanup_old_versions")
    mine, *theirs = in_turns(turns, ours, *(partial(peer, name) for name in names))
    for name, seconds in zip(names, theirs, strict=True):
        yield Row(
            what=f"sweep {count:,} of {2 * count:,} local files",
            ours=rates(count, mine, "objects/s"),
            other=rates(count, seconds, "objects/s"),
            other_name=name,
            bar=at_least(1.0),
            note="the peers have nothing but what they delete",
        )


def _swept(shop: Workshop, engines: Engines, count: int) -> float:
    """Seconds of the sweep of as many orphans, beside as many objects that are named."""
    folder = shop.in_memory("sweep")
    kv_url, objects_url = lakes.stores_in(folder)
    with lakes.open_lake(kv_url, objects_url) as lake:
        blobs = lakes.blobs_of(folder, lake.create_repository(lakes.REPOSITORY))
    with lakes.open_lake(f"{kv_url}?fsync=0", objects_url, lakes.files_under(blobs)) as lake:
        lakes.upload(lake.repository(lakes.REPOSITORY), "main", range(count))
    write = lakes.files_under(blobs)
    for address in _orphans(count):
        write(address, lakes.body_of(0))
    with Lake(open_kv(kv_url), objects_url, safety=AT_ONCE) as lake:
        ctx = lake.repository(lakes.REPOSITORY).context
        summary = job.mark(ctx, engines, EVERYTHING)
        assert summary.marked.objects == count, f"{summary.marked.objects} of {count} were marked"
        seconds = seconds_of(lambda: job.sweep(ctx, engines, summary.mark_id))
    there = sum(len(files) for _, _, files in os.walk(Path(blobs) / "data"))
    assert there == count, f"{there} files are left, not {count}"
    shop.drop(folder)
    return seconds


def _orphans(count: int) -> list[str]:
    made = ids.RandomIds()
    return [ids.new_address(made, 1_700_000_000_000 + number % SLICES * 3_600_000) for number in range(count)]


def _s3(shop: Workshop, engines: Engines) -> Row:
    count, turns = shop.scale.reaped_s3, shop.scale.long_turns
    server = shop.s3()

    def ours(number: int) -> float:
        shop.say(f"sweeping on {shop.s3_name()}: turn {number + 1} of {turns}")
        kv_url, objects_url = lakes.stores_in(shop.in_memory("sweep-s3"))[0], server.url()
        with open_lake_at(kv_url, objects_url) as lake:
            repo = lake.create_repository(lakes.REPOSITORY)
            namespace = urlsplit(repo.record.namespace).path.strip("/")
        fill(server, [f"{namespace}/{address}" for address in _orphans(count)])
        with Lake(open_kv(kv_url), objects_url, safety=AT_ONCE) as lake:
            ctx = lake.repository(lakes.REPOSITORY).context
            ctx.objects.put("_refstore/gc/now", b"")
            last = max(info.mtime_ms for info in ctx.objects.list("data/"))
            while ctx.objects.head("_refstore/gc/now").mtime_ms <= last:
                ctx.objects.put(
                    "_refstore/gc/now", b""
                )  # until the store's clock, which counts whole seconds, has gone on
            summary = job.mark(ctx, engines, EVERYTHING)
            assert summary.marked.objects == count, f"{summary.marked.objects} of {count} were marked"
            seconds = seconds_of(lambda: job.sweep(ctx, engines, summary.mark_id))
        assert not left(server, f"{namespace}/data/"), "objects are left on the server"
        return seconds

    def bare(number: int) -> float:
        keys = [f"bare-sweep-{number}/{lakes.path_of(at)}" for at in range(count)]
        fill(server, keys)
        return delete_bare(server, keys)

    mine, theirs = in_turns(turns, ours, bare)
    return Row(
        what=f"sweep {count:,} objects on {shop.s3_name()}",
        ours=rates(count, mine, "objects/s"),
        other=rates(count, theirs, "objects/s"),
        other_name=f"boto3 delete_objects by {DELETE_KEYS}, {CONCURRENT_REQUESTS} connections",
        bar=at_least(FACTOR_S3),
    )
