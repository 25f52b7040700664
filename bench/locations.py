"""Objects whose content a purge has put elsewhere: publishing their locations, and the nightly job beside many of them.

Publishing is against bare conditional writes of records of the same size, in the same batches. The nightly job is a
full run on the embedded default with real files, before and after every object of the lake has got a location: the
files are moved to new addresses, as they lie when the backups have ended. Nobody else is at work.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Final

from bench import lakes
from bench.measure import Row, Series, at_least, at_most, in_turns, rates
from bench.offline_again import Earlier, make_lake
from bench.offline_sweep import AT_ONCE, EVERYTHING
from bench.workshop import Workshop
from refstore.context import Context
from refstore.core import ids
from refstore.core.batches import split_batches
from refstore.core.ids import Address
from refstore.kv import open_kv
from refstore.kv.base import KV, Key, SetIf
from refstore.lake import Lake
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.location_records import Backup, Content, Intent, Location
from refstore.versioning.locations import LocatedIdentity, Locations, RewriteIntent, WrittenContent
from refstore_gc import gc_run as job
from refstore_gc.engines.choice import EngineOptions, open_engines

PUBLISH_FACTOR: Final = 0.5
NIGHT_FACTOR: Final = 1.2
PAGE: Final = 1000
RUN: Final = "01m7xa5r3e9zq4s8vd2f6g7h8j"
CHECKSUM: Final = "a" * 64


def run(shop: Workshop) -> Iterator[Row]:
    folder = shop.in_memory("publishing")
    for name, url in (("SQLite", lakes.stores_in(folder)[0]), ("Redis", f"redis://127.0.0.1:{shop.redis().port}/0")):
        with closing(open_kv(url)) as kv:
            yield _publishing(shop, name, kv)
    shop.drop(folder)
    yield _nightly(shop)


def _publishing(shop: Workshop, name: str, kv: KV) -> Row:
    amount = shop.scale.booked
    clock = Earlier()
    repo = ids.RepositoryId("bench")
    locations, made = Locations(kv, repo, clock), ids.RandomIds()
    numbers = count()

    def addresses() -> list[Address]:
        return [ids.new_address(made, clock.now_ms()) for _ in range(amount)]

    def ours(_turn: int) -> float:
        intended: list[LocatedIdentity] = []
        for page in split_batches(addresses(), PAGE):
            intentions = [RewriteIntent(each, _content(each), ids.new_address(made, clock.now_ms())) for each in page]
            intended += [each for each in locations.intend(intentions, RUN) if each is not None]
        publications = [WrittenContent(each, _content(ids.new_address(made, 1))) for each in intended]
        shop.say(f"locations: publishing {amount:,} on {name}")
        began = time.perf_counter()
        for page in split_batches(publications, PAGE):
            assert all(locations.publish(page, RUN))
        return time.perf_counter() - began

    def bare(_turn: int) -> float:
        address = addresses()[0]
        before = encode(Location(_content(address), intent=Intent(address, RUN, 1)))
        after = encode(Location(_content(address), 1, backups=(Backup(_content(address), 1, RUN),)))
        partition = f"bare/{next(numbers)}"
        items = [Key(partition, f"{number:08d}") for number in range(amount)]
        for page in split_batches(items, PAGE):
            kv.set_many([(key, before) for key in page])
        began = time.perf_counter()
        for page in split_batches(items, PAGE):
            assert all(kv.set_if_many([SetIf(key, before, after) for key in page]))
        return time.perf_counter() - began

    mine, theirs = in_turns(shop.scale.turns, ours, bare)
    return Row(
        what=f"publish {amount:,} contents on {name}",
        ours=rates(amount, mine, "records/s"),
        other=rates(amount, theirs, "records/s"),
        other_name=f"bare conditional writes, {PAGE} in a batch",
        bar=at_least(PUBLISH_FACTOR),
    )


def _nightly(shop: Workshop) -> Row:
    amount = shop.scale.marked_again
    folder = shop.in_memory("locations")
    kv_url, objects_url = lakes.stores_in(folder)
    shop.say(f"locations: {amount:,} objects with their files")
    blobs = make_lake(folder, amount)
    with open_engines(EngineOptions()) as engines, Lake(open_kv(kv_url), objects_url, safety=AT_ONCE) as lake:
        ctx = lake.repository(lakes.REPOSITORY).context

        def night() -> float:
            options = job.GcOptions(grace_days=0, min_age_seconds=0, limits=EVERYTHING.limits, is_full=True)
            began = time.perf_counter()
            ran = job.run_nightly(ctx, engines, options)
            seconds = time.perf_counter() - began
            assert not ran.mark_summary.by_prefix.get("data/"), f"{ran.mark_summary.by_prefix} were marked"
            shop.say(f"locations: a full run of {seconds:.1f} s; {ran.mark_summary.seconds}")
            return seconds

        night()  # not counted: the first run
        without = [night() for _ in range(shop.scale.long_turns)]
        shop.say(f"locations: moving {amount:,} contents")
        _move_all(ctx, blobs)
        beside = [night() for _ in range(shop.scale.long_turns)]
    shop.drop(folder)
    return Row(
        what=f"a full run of the nightly job, {amount:,} objects, each with a location",
        ours=Series(tuple(beside), "s"),
        other=Series(tuple(without), "s"),
        other_name="the same before, without locations",
        bar=at_most(NIGHT_FACTOR),
    )


def _move_all(ctx: Context, blobs: Path) -> None:
    """Give every object another address for its content, as if it was purged and its backup has ended."""
    made = ids.RandomIds()
    ctx.locations.announce()
    for page in split_batches([info.key for info in ctx.objects.list("data/")], PAGE):
        records: list[tuple[Key, bytes]] = []
        for key in page:
            identity = Address(key)
            at_ms = ids.address_time_ms(identity)
            assert at_ms is not None
            content = ids.new_address(made, at_ms)
            (blobs / content).parent.mkdir(parents=True, exist_ok=True)
            (blobs / key).rename(blobs / content)
            records.append((keys.location(ctx.repo, identity), encode(Location(_content(content), 1))))
        ctx.kv.set_many(records)


def _content(address: Address) -> Content:
    return Content(address, 1024, CHECKSUM, run=RUN, written_ms=1)
