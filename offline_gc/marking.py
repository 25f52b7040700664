"""What goes: what the listing has, and nobody names. DataFrames of packets in, a DataFrame of counts out.

The listing is not shuffled: it was written in stretches, and each stretch is a bucket. What is named comes to its bucket as keys of
eight bytes. A bucket's task reads its stretch, takes away what is named, and writes what is left to the mark.

Exact where it matters: an address that is named has its key among the keys of its bucket, always. The other way round a
garbage address may by chance share a key with one that is named, and stays until the next run (`addresses.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from offline_gc.addresses import Keys, among, keys_of
from offline_gc.arrow import pa
from offline_gc.packets import Packet, Side, received
from offline_gc.places import Kind, Work, read_table, store_at, write_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COUNTED: Final = "bucket int, kind int, reason string, what string, objects long, bytes long"
_ARROW: Final = pa.schema(
    [
        ("bucket", pa.int32()),
        ("kind", pa.int32()),
        ("reason", pa.string()),
        ("what", pa.string()),
        ("objects", pa.int64()),
        ("bytes", pa.int64()),
    ]
)

EXPIRED: Final = "expired"
"""A commit that was marked named it, and no other does."""
ORPHAN: Final = {
    Kind.DATA: "orphan blob",
    Kind.RANGE: "orphan range",
    Kind.METARANGE: "orphan metarange",
    Kind.ADDED: "orphan listing of a commit",
    Kind.FOREIGN: "foreign",
}
"""Nothing names it, nor did a marked commit."""
DELETED_REPOSITORY: Final = "deleted repository"


class Stretch(msgspec.Struct, frozen=True):
    """A part of the listing, in one file. `Side.LISTED` carries it."""

    key: str
    rows: int


def garbage(listed: DataFrame, named: DataFrame, buckets: int, work: Work, *, every_reason: str = "") -> DataFrame:
    """Write the mark's files; what they hold, counted for each bucket, kind and reason.

    `listed`: a packet for each stretch. `named`: packets of keys. `every_reason`: of everything, whatever named it once.
    """
    both = listed.select("bucket", "side", "rows", "body").unionByName(named.select("bucket", "side", "rows", "body"))
    counted = both.repartitionById(buckets, "bucket").mapInArrow(_decide(work, every_reason), COUNTED)
    return counted.select("bucket", "kind", "reason", "what", "objects", "bytes")


def _decide(work: Work, every_reason: str) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def decide(batches: Iterable[Any]) -> Iterator[Any]:
        stretches: list[Packet] = []
        keys: dict[Side, list[Keys]] = {side: [] for side in Side}
        for packet in received(batches):
            if packet.side is Side.LISTED:
                stretches.append(packet)
            else:
                keys[packet.side].append(packet.keys)
        for packet in stretches:
            stretch = msgspec.msgpack.decode(packet.body, type=Stretch)
            yield from _left_over(work, packet.bucket, stretch, keys, every_reason)

    return decide


def _left_over(work: Work, bucket: int, stretch: Stretch, named: dict[Side, list[Keys]], every_reason: str) -> Iterator[Any]:
    store = store_at(work.url)
    table = read_table(store, stretch.key)
    own = keys_of(table.column("address"), work.seed)
    kept = among(own, named[Side.KEPT])
    pending = among(own, named[Side.PENDING]) & ~kept
    places = np.flatnonzero(~(kept | pending))
    kinds = table.column("kind").to_numpy()
    sizes = table.column("size_bytes").to_numpy()
    expired = among(own[places], named[Side.EXPIRED])
    gone = table.take(pa.array(places))
    gone_kinds = kinds[places]
    reasons = np.empty(len(places), object)
    for kind in np.unique(gone_kinds).tolist():
        reasons[gone_kinds == kind] = ORPHAN.get(Kind(kind), "foreign")
    reasons[expired] = EXPIRED
    if every_reason:
        reasons[:] = every_reason
    gone = gone.append_column("reason", pa.array(reasons, pa.string()))
    key = work.place("mark", bucket)
    if len(places):
        write_table(store, key, gone)
    rows: list[tuple[int, int, str, str, int, int]] = []
    for kind in np.unique(kinds).tolist():
        of = kinds == kind
        for what, chosen in (("listed", of), ("kept", of & kept), ("pending", of & pending)):
            rows.append((bucket, kind, "", what, int(chosen.sum()), int(sizes[chosen].sum())))
        for reason in {*reasons[gone_kinds == kind].tolist()}:
            chosen = (gone_kinds == kind) & (reasons == reason)
            rows.append((bucket, kind, reason, "marked", int(chosen.sum()), int(sizes[places][chosen].sum())))
    yield pa.RecordBatch.from_pylist([dict(zip(_ARROW.names, row, strict=True)) for row in rows], schema=_ARROW)
