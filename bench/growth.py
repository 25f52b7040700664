"""Cost against size: listing and reaping take as long for each object, however many there are.

The lakes are those of `reaping.py`, used up here: their branch is listed, then reset, and reaped in a fresh process.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench import lakes
from bench.listing import list_staged
from bench.measure import Row, Series, at_most, in_fresh_process
from bench.workshop import LIVE, Workshop

FACTOR = 1.5
"""Microseconds for each object of the most, against those for each of the second size: the smallest is mostly fixed
cost.
"""


def run(shop: Workshop) -> Iterator[Row]:
    sizes = shop.scale.growth
    base = sizes[-2]
    listed: dict[int, Series] = {}
    reaped: dict[int, Series] = {}
    peaks: dict[int, float] = {}
    for count in sizes:
        folder = shop.live_lake(count)
        with lakes.open_lake(*lakes.stores_in(folder)) as lake:
            shop.say(f"growth: listing {count:,}")
            listed[count] = per_object([list_staged(lake, LIVE, count) for _ in range(shop.scale.long_turns)], count)
            lake.repository(lakes.REPOSITORY).reset(LIVE)
        shop.say(f"growth: reaping {count:,}")
        done = in_fresh_process("reap", data=str(folder))
        assert done["deleted"] == count, f"{done['deleted']} of {count} were deleted"
        reaped[count] = per_object([done["seconds"]], count)
        peaks[count] = done["peak_mib"]
        shop.drop(folder)
    for what, measured in (("list", listed), ("reap", reaped)):
        for count in sizes:
            yield Row(
                what=f"{what} {count:,} staged objects, SQLite on tmpfs",
                ours=measured[count],
                other=measured[base],
                other_name=f"{what} {base:,}",
                bar=at_most(FACTOR) if count > base else None,
                note=f"peak memory {peaks[count]:.0f} MiB" if what == "reap" else "",
            )


def per_object(seconds: list[float], count: int) -> Series:
    return Series(tuple(each / count * 1e6 for each in seconds), "us/object")
