"""What goes: what the listing has, and nobody names. DataFrames of packets in, a DataFrame of counts out.

The listing is not shuffled: it was written in stretches, and each stretch is a bucket. What is named comes to its bucket as keys of
eight bytes. A bucket's task reads its stretch, takes away what is named, and writes what is left to the mark.

Exact where it matters: an address that is named has its key among the keys of its bucket, always. The other way round a
garbage address may by chance share a key with one that is named, and stays until the next run (`addresses.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from offline_gc.addresses import Keys, among, keys_of
from offline_gc.arrow import pa, pc
from offline_gc.packets import Side, received
from offline_gc.places import DATA, Kind, Work, read_table, store_at, write_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COUNTED: Final = "kind int, reason string, what string, detail string, first string, objects long, bytes long"
_ARROW: Final = pa.schema(
    [
        ("kind", pa.int32()),
        ("reason", pa.string()),
        ("what", pa.string()),
        ("detail", pa.string()),
        ("first", pa.string()),
        ("objects", pa.int64()),
        ("bytes", pa.int64()),
    ]
)

UNIT_ROWS: Final = 10_000
"""What a file of the mark holds: ten bulk deletions, the unit in which a sweep goes on after a crash."""

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

    number: int
    key: str


class Counted(NamedTuple):
    """A row of what `garbage` answers. A `unit` is a file of the mark, with its key and first address; `day` says when what goes was
    made."""

    kind: int
    reason: str
    what: str
    detail: str
    first: str
    objects: int
    bytes: int


def garbage(listed: DataFrame, named: DataFrame, buckets: int, work: Work, *, every_reason: str = "") -> DataFrame:
    """Write the mark's files; what they hold, counted for each bucket, kind and reason.

    `listed`: a packet for each stretch. `named`: packets of keys. `every_reason`: of everything, whatever named it once.
    """
    both = listed.select("bucket", "side", "rows", "body").unionByName(named.select("bucket", "side", "rows", "body"))
    counted = both.repartitionById(buckets, "bucket").mapInArrow(_decide(work, every_reason), COUNTED)
    return counted.select(*Counted._fields)


def _decide(work: Work, every_reason: str) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def decide(batches: Iterable[Any]) -> Iterator[Any]:
        stretches: list[Stretch] = []
        keys: dict[Side, list[Keys]] = {side: [] for side in Side}
        for packet in received(batches):
            if packet.side is Side.LISTED:
                stretches.append(msgspec.msgpack.decode(packet.body, type=Stretch))
            else:
                keys[packet.side].append(packet.keys)
        for stretch in stretches:
            rows = _left_over(work, stretch, keys, every_reason)
            yield pa.RecordBatch.from_pylist([row._asdict() for row in rows], schema=_ARROW)

    return decide


def _left_over(work: Work, stretch: Stretch, named: dict[Side, list[Keys]], every_reason: str) -> list[Counted]:
    """Write what is left of a stretch, and count it."""
    store = store_at(work.files)
    table = read_table(store, stretch.key)
    own = keys_of(table.column("address"), work.seed)
    kept = among(own, named[Side.KEPT])
    pending = among(own, named[Side.PENDING]) & ~kept
    kinds, sizes = table.column("kind").to_numpy(), table.column("size_bytes").to_numpy()
    counted: list[Counted] = []
    for kind in np.unique(kinds).tolist():
        of = kinds == kind
        for what, chosen in (("listed", of), ("kept", of & kept), ("pending", of & pending)):
            counted.append(Counted(kind, "", what, "", "", int(chosen.sum()), int(sizes[chosen].sum())))
    places = np.flatnonzero(~(kept | pending))
    if not len(places):
        return counted
    gone, kinds, sizes = table.take(pa.array(places)), kinds[places], sizes[places]
    reasons = _reasons(kinds, among(own[places], named[Side.EXPIRED]), every_reason)
    gone = gone.append_column("reason", pa.array(reasons, pa.string()))
    days = pc.utf8_slice_codeunits(gone.column("address"), len(DATA), len(DATA) + 8).to_numpy(zero_copy_only=False)
    for number, at in enumerate(range(0, len(places), UNIT_ROWS)):
        unit = gone.slice(at, UNIT_ROWS)
        key = work.place("mark", stretch.number * 1000 + number)
        write_table(store, key, unit)
        first, total = unit.column("address")[0].as_py(), int(sizes[at : at + UNIT_ROWS].sum())
        counted.append(Counted(-1, "", "unit", key, first, unit.num_rows, total))
    for kind in np.unique(kinds).tolist():
        for reason in sorted({*reasons[kinds == kind].tolist()}):
            of = (kinds == kind) & (reasons == reason)
            counted.append(Counted(kind, reason, "marked", "", "", int(of.sum()), int(sizes[of].sum())))
            if kind == Kind.DATA:
                for day in np.unique(days[of].astype(str)).tolist():
                    then = of & (days == day)
                    counted.append(Counted(kind, reason, "day", day, "", int(then.sum()), int(sizes[then].sum())))
    return counted


def _reasons(kinds: Any, expired: Any, every_reason: str) -> Any:
    reasons = np.full(len(kinds), every_reason, object)
    if not every_reason:
        for kind in np.unique(kinds).tolist():
            reasons[kinds == kind] = ORPHAN[Kind(kind)]
        reasons[expired] = EXPIRED
    return reasons
