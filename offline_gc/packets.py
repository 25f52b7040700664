"""Packets: how addresses travel through Spark. A row is some thousands of them, already in their bucket.

    bucket   where it goes; the partition of the next step
    side     what it says of its addresses (`Side`)
    rows     how many
    body     their keys as they lie in memory, or their characters (`WHOLE`); or, where the other end is to read something, what

So a shuffle of a billion addresses moves some million rows of eight bytes an address, and the JVM never looks into them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from enum import IntEnum
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from offline_gc.addresses import Cuts, Keys, among, keys_of, own_addresses, own_of, split
from offline_gc.arrow import pa

SCHEMA: Final = "bucket int, side int, rows long, body binary"
ARROW: Final = pa.schema([("bucket", pa.int32()), ("side", pa.int32()), ("rows", pa.int64()), ("body", pa.binary())])
_COLUMNS: Final = ("bucket", "side", "rows", "body")

ROWS_MAX: Final = 1 << 20
"""Addresses that a task gathers before it sends them: a few MB, and packets that are worth their row."""


class Side(IntEnum):
    KEPT = 0
    """Keys of what the KV names."""
    EXPIRED = 1
    """Keys of what marked commits name: why something may go. It says nothing for or against its going."""
    PENDING = 2
    """Keys of what an earlier mark is going to sweep."""
    LISTED = 3
    """A stretch of the listing."""
    READ = 4
    """Ranges and listings of added addresses to be read."""
    COMMITTED = 5
    """Keys of what commits keep, each as often as it stands in the ranges and listings that are read of them."""
    RANGES = 6
    """Keys of ranges that some commit's tree has."""
    LOST = 7
    """Addresses that stand in what is not read of commits any more, each as often."""
    FORMER = 8
    """Addresses that the KV named at the run before."""
    CARRIED = 9
    """A file in which an earlier run wrote down what it knew (`carried.py`)."""


WHOLE: Final = frozenset((Side.LOST, Side.FORMER))
"""Of these the addresses themselves are sent: they may be what goes."""


class Packet(NamedTuple):
    bucket: int
    side: Side
    rows: int
    body: bytes

    @classmethod
    def telling(cls, bucket: int, side: Side, what: object, rows: int = 1) -> Packet:
        return cls(bucket, side, rows, msgspec.msgpack.encode(what))

    @property
    def keys(self) -> Keys:
        return np.frombuffer(self.body, np.uint64)

    @property
    def addresses(self) -> Any:
        """An Arrow array of own addresses, of a side in `WHOLE`."""
        return own_addresses(self.body)


def received(batches: Iterable[Any]) -> Iterator[Packet]:
    """The packets of a task's input."""
    for batch in batches:
        buckets, sides, rows = (batch.column(name).to_pylist() for name in _COLUMNS[:3])
        bodies = batch.column("body")
        for number, (bucket, side, count) in enumerate(zip(buckets, sides, rows, strict=True)):
            yield Packet(bucket, Side(side), count, bodies[number].as_py())


def sent(packets: Iterable[Packet]) -> Iterator[Any]:
    """Packets as a task's output, one batch each: they are large."""
    for packet in packets:
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([packet.bucket], pa.int32()),
                pa.array([int(packet.side)], pa.int32()),
                pa.array([packet.rows], pa.int64()),
                pa.array([packet.body], pa.binary()),
            ],
            schema=ARROW,
        )


Step = Callable[[Iterable[Packet]], Iterator[Packet]]
"""What a task makes of the packets that come to it."""


def in_spark(step: Step) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """A step as Spark's `mapInArrow` takes it."""
    return lambda batches: sent(step(received(batches)))


class Gathering:
    """Keys on their way into packets: gathered until there are many, then split by bucket."""

    def __init__(self, cuts: Cuts, seed: int, own: Collection[Side] = WHOLE) -> None:
        """`own`: the sides of which only own addresses count (`own_of`); it is looked for in all that was gathered, at once."""
        self._cuts = cuts
        self._seed = seed
        self._own = own
        self._waiting: dict[Side, list[Any]] = {}
        self._rows = 0

    def add(self, side: Side, addresses: Any) -> Iterator[Packet]:
        """`addresses`: an Arrow array of strings."""
        if len(addresses):
            self._waiting.setdefault(side, []).append(addresses)
            self._rows += len(addresses)
            if self._rows >= ROWS_MAX:
                yield from self.flush()

    def flush(self) -> Iterator[Packet]:
        waiting = {side: pa.concat_arrays(parts) for side, parts in self._waiting.items()}
        waiting.update({side: own_of(together) for side, together in waiting.items() if side in self._own})
        if Side.LOST in waiting and Side.COMMITTED in waiting:
            self._strike_out(waiting)
        for side, together in waiting.items():
            buckets = self._cuts.buckets_of(together)
            if side in WHOLE:
                for bucket in np.unique(buckets).tolist():
                    some = together.filter(pa.array(buckets == bucket))
                    yield Packet(bucket, side, len(some), "".join(some.to_pylist()).encode())
            else:
                for bucket, keys in split(buckets, keys_of(together, self._seed)):
                    yield Packet(bucket, side, len(keys), keys.tobytes())
        self._waiting.clear()
        self._rows = 0

    def _strike_out(self, waiting: dict[Side, Any]) -> None:
        """What is taken off and added, once each, is as it was: most of a range that a commit changed a little."""
        sides = (Side.LOST, Side.COMMITTED)
        keys = [keys_of(waiting[side], self._seed) for side in sides]
        once = [values[counts == 1] for values, counts in (np.unique(each, return_counts=True) for each in keys)]
        both = np.intersect1d(*once, assume_unique=True)
        for side, each in zip(sides, keys, strict=True):
            waiting[side] = waiting[side].filter(pa.array(~among(each, [both])))
