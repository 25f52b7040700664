"""What goes: what the listing has, and nobody names. DataFrames of packets in, a DataFrame of counts out.

The listing is not shuffled: it was written in stretches, and each stretch is a bucket. What is named comes to its bucket as keys of
eight bytes. A bucket's task reads its stretch, takes away what is named, and writes what is left to the mark.

Exact where it matters: an address that is named has its key among the keys of its bucket, always. The other way round a
garbage address may by chance share a key with one that is named, and stays until the next run (`addresses.py`).

A run that goes on from an earlier one (`carried.py`) lists only what is newer. What was listed before and may go is then what
reaches the bucket as an address: commits named it that are not kept any more, or the KV did.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from offline_gc import carried
from offline_gc.addresses import Keys, among, keys_of
from offline_gc.arrow import pa, pc
from offline_gc.carried import Known
from offline_gc.packets import WHOLE, Packet, Side, received
from offline_gc.places import DATA, Kind, Work, read_table, store_at, threads_at, write_table
from refstore.commits.workers import Workers
from refstore.errors import ObjectNotFound
from refstore.objects.base import ObjectStore

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

OLD_NUMBERS: Final = 1_000_000_000
"""The files of what earlier runs listed are numbered behind those of stretches."""

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


class Asked(NamedTuple):
    """What a run wants of its buckets."""

    every_reason: str = ""
    """Of everything that goes, whatever named it once."""
    carry: bool = False
    """Whether to write down for the next run what is known."""
    horizon: str = ""
    """Where the listing began, of a run that goes on from an earlier one; what lies before it may go all the same."""


PLAINLY: Final = Asked()


def garbage(listed: DataFrame, named: Sequence[DataFrame], buckets: int, work: Work, asked: Asked = PLAINLY) -> DataFrame:
    """Write the mark's files; what they hold, counted for each bucket, kind and reason.

    `listed`: a packet for each stretch, and for each file that was carried over. `named`: packets of keys.
    """
    both = listed
    for each in named:
        both = both.unionByName(each)
    counted = both.repartitionById(buckets, "bucket").mapInArrow(_in_spark(deciding(work, asked)), COUNTED)
    return counted.select(*Counted._fields)


class _Bucket:
    """What came to a bucket."""

    def __init__(self, packets: Iterable[Packet]) -> None:
        self.number = 0
        self.stretches: list[Stretch] = []
        self.known: list[str] = []
        self.keys: dict[Side, list[Keys]] = {side: [] for side in Side}
        self.addresses: dict[Side, list[Any]] = {side: [] for side in WHOLE}
        for packet in packets:
            self.number = packet.bucket
            if packet.side is Side.LISTED:
                self.stretches.append(msgspec.msgpack.decode(packet.body, type=Stretch))
            elif packet.side is Side.CARRIED:
                self.known.append(msgspec.msgpack.decode(packet.body, type=str))
            elif packet.side in WHOLE:
                self.addresses[packet.side].append(packet.addresses)
            else:
                self.keys[packet.side].append(packet.keys)

    def whole(self, side: Side) -> Any:
        found = self.addresses[side]
        return pa.concat_arrays(found) if found else pa.array([], pa.string())


class _Named(NamedTuple):
    """Keys, of what was asked for."""

    kept: list[Keys]
    pending: list[Keys]
    expired: list[Keys]


def deciding(work: Work, asked: Asked) -> Callable[[Iterable[Packet]], Iterator[Counted]]:
    """What is done with all packets of one bucket."""

    def decide(packets: Iterable[Packet]) -> Iterator[Counted]:
        store = store_at(work.files, work)
        bucket = _Bucket(packets)
        keys, lost, former = bucket.keys, bucket.whole(Side.LOST), bucket.whole(Side.FORMER)
        lost_keys = keys_of(lost, work.seed)
        named = _Named(keys[Side.KEPT] + keys[Side.COMMITTED] + keys[Side.RANGES], keys[Side.PENDING], [*keys[Side.EXPIRED], lost_keys])
        stays: list[tuple[Keys, Any]] = []
        stretches = (_opened(store, work, each) for each in bucket.stretches)
        if asked.horizon:
            opened = list(stretches)
            before = np.unique(np.concatenate([lost_keys, keys_of(former, work.seed)]))
            interest = np.unique(np.concatenate([before, *(own for _, _, own in opened)]))
            known = [carried.read_known(store, key) for key in bucket.known] if len(interest) else []
            still = carried.still_named(known, interest, keys[Side.COMMITTED], lost_keys)
            named = named._replace(kept=[*keys[Side.KEPT], still, *keys[Side.RANGES], *carried.ranges_in(known)])
            stretches = iter(opened)
            old = _listed_before(store_at(work.url, work), work, asked.horizon, known, lost, former, named)
            yield from _written(store, work, OLD_NUMBERS + bucket.number, old, named, asked.every_reason)
        for number, table, own in stretches:
            kept = among(own, named.kept)
            yield from _left_over(store, work, number, table, own, kept, named, asked.every_reason)
            if asked.carry:
                of = kept & (table.column("kind").to_numpy() == Kind.DATA)
                stays.append((own[of], table.column("size_bytes").to_numpy()[of]))
        if asked.carry and (stays or keys[Side.COMMITTED] or keys[Side.RANGES] or len(lost_keys)):
            own_keys, sizes = [keys for keys, _ in stays], [sizes for _, sizes in stays]
            key = carried.bucket_key(work.mark_id, bucket.number)
            carried.write_known(store, key, Known.of(keys[Side.COMMITTED], lost_keys, keys[Side.RANGES], own_keys, sizes))
            yield Counted(bucket.number, "", "carried", key, "", 0, 0)

    return decide


def _opened(store: ObjectStore, work: Work, stretch: Stretch) -> tuple[int, Any, Keys]:
    table = read_table(store, stretch.key)
    return stretch.number, table, keys_of(table.column("address"), work.seed)


def _in_spark(decide: Callable[[Iterable[Packet]], Iterator[Counted]]) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def run(batches: Iterable[Any]) -> Iterator[Any]:
        yield pa.RecordBatch.from_pylist([row._asdict() for row in decide(received(batches))], schema=_ARROW)

    return run


def _listed_before(store: ObjectStore, work: Work, horizon: str, known: list[Known], lost: Any, former: Any, named: _Named) -> Any:
    """What goes of what an earlier run listed; a table as a stretch is.

    What commits lost is there: nobody but a sweep deletes it. What the KV has let go of was most likely deleted in doing so, and is
    asked for; nobody can name it again, so that it was there a moment ago is all there is to know.
    """
    addresses = pc.unique(pa.concat_arrays([lost, former]))
    addresses = addresses.filter(pc.less(addresses, horizon))
    keys = keys_of(addresses, work.seed)
    ordered, places = np.unique(keys, return_inverse=True)
    sizes = carried.sizes_of(known, ordered)[places]
    goes = (sizes >= 0) & ~among(keys, named.kept) & ~among(keys, named.pending)
    unsure = np.flatnonzero(goes & ~among(keys, named.expired))
    with Workers(threads_at(work)) as workers:
        asked = (addresses[place].as_py() for place in unsure.tolist())
        goes[unsure] = np.fromiter(workers.ahead(partial(is_there, store), asked), bool, len(unsure))
    addresses, sizes = addresses.filter(pa.array(goes)), sizes[goes]
    table = pa.table(
        {
            "address": addresses,
            "size_bytes": pa.array(sizes, pa.int64()),
            "mtime_ms": pa.nulls(len(addresses), pa.int64()),
            "kind": pa.array(np.full(len(addresses), Kind.DATA, np.int8)),
        }
    )
    return table.sort_by("address")


def is_there(store: ObjectStore, address: str) -> bool:
    try:
        store.head(address)
    except ObjectNotFound:
        return False
    return True


def _left_over(
    store: ObjectStore, work: Work, number: int, table: Any, own: Keys, kept: Any, named: _Named, every_reason: str
) -> list[Counted]:
    """Write what is left of a stretch, and count it."""
    pending = among(own, named.pending) & ~kept
    kinds, sizes = table.column("kind").to_numpy(), table.column("size_bytes").to_numpy()
    counted: list[Counted] = []
    for kind in np.unique(kinds).tolist():
        of = kinds == kind
        for what, chosen in (("listed", of), ("kept", of & kept), ("pending", of & pending)):
            counted.append(Counted(kind, "", what, "", "", int(chosen.sum()), int(sizes[chosen].sum())))
    places = np.flatnonzero(~(kept | pending))
    return counted + _written(store, work, number, table.take(pa.array(places)), named, every_reason)


def _written(store: ObjectStore, work: Work, number: int, gone: Any, named: _Named, every_reason: str) -> list[Counted]:
    """Write what goes to the mark, in units; in order of addresses, as it comes.

    Under names of this attempt: a task that was taken for lost may go on, and was told otherwise by the store of what is there. Its
    units would hold what the manifest says is in others.
    """
    if not gone.num_rows:
        return []
    attempt = secrets.token_hex(8)
    counted: list[Counted] = []
    kinds, sizes = gone.column("kind").to_numpy(), gone.column("size_bytes").to_numpy()
    reasons = _reasons(kinds, among(keys_of(gone.column("address"), work.seed), named.expired), every_reason)
    gone = gone.append_column("reason", pa.array(reasons, pa.string()))
    days = pc.utf8_slice_codeunits(gone.column("address"), len(DATA), len(DATA) + 8).to_numpy(zero_copy_only=False)
    for part, at in enumerate(range(0, gone.num_rows, UNIT_ROWS)):
        unit = gone.slice(at, UNIT_ROWS)
        key = work.place("mark", number * 1000 + part, attempt)
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
