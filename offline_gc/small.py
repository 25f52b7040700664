"""What is little enough for the driver to do itself: Spark takes a second for each of its jobs, however little there is to be done.

Only a run that goes on from an earlier one is tried so: what is new since may be little in a lake of any size. How much it is shows as it
is done. What comes to more than `Small` allows for is given up, and Spark does that step from its start; it writes again, under the same
names, whatever was written. So the driver's time and memory stay bounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from offline_gc import committed, kept, marking
from offline_gc.addresses import Cuts
from offline_gc.committed import Sources
from offline_gc.marking import Asked, Counted
from offline_gc.packets import Packet, Side
from offline_gc.places import Work


class TooMuch(Exception):
    """For the driver; not an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Small:
    keys: int = 200_000
    """Objects to be listed."""
    rows: int = 2_000_000
    """Addresses to be compared, and as many to be read of ranges that changed."""
    buckets: int = 16
    """Of what earlier runs carried over, some 12 MB each and a run."""


class Comparison(NamedTuple):
    """What is compared, wherever that is."""

    work: Work
    cuts: Cuts
    told: list[Packet]
    """The listing's stretches, and files that were carried over."""
    here: list[tuple[str, Side]]
    """Files of addresses, of this run."""
    there: list[tuple[str, Side]]
    """The same, of other runs."""
    sources: Sources
    asked: Asked


def compare(wanted: Comparison, small: Small) -> list[Counted]:
    """Raises TooMuch, before anything was written."""
    if wanted.cuts.buckets > small.buckets or wanted.sources.rows > small.rows:
        raise TooMuch
    work, cuts = wanted.work, wanted.cuts
    buckets: dict[int, list[Packet]] = {}
    rows = 0
    for source in (
        wanted.told,
        kept.reading(work, cuts)(kept.told_of(wanted.here)),
        kept.reading(work.in_namespace(), cuts)(kept.told_of(wanted.there)),
        committed.addresses_here(work, cuts, wanted.sources),
    ):
        for packet in source:
            buckets.setdefault(packet.bucket, []).append(packet)
            rows += packet.rows
            if rows > small.rows:
                raise TooMuch
    decide = marking.deciding(work, wanted.asked)
    return [row for bucket in sorted(buckets) for row in decide(buckets[bucket])]
