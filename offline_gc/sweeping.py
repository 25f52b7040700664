"""The sweep: what a mark holds, less what dropped out since, is deleted on the executors, and what became of each is written down.

A unit of the mark is deleted, then its outcome is written under its own name. A sweep that is run again leaves out what has an
outcome, and tries again what failed. A key that a killed worker had deleted is found missing by the next one: it counts as gone
already, for that is what the store says.

What was tagged is the bucket's to delete. `settle` asks the store what it has deleted of it, and writes that down, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec
import numpy as np

from offline_gc.addresses import Keys, among, keys_of
from offline_gc.arrow import pa, pc
from offline_gc.marking import is_there
from offline_gc.packets import Side, received
from offline_gc.places import TAG, Work, read_table, store_at, threads_at, write_table
from offline_gc.summary import BUCKET, DELETED, DROPPED, FAILED, MISSING, TAGGED
from refstore.commits.workers import Workers
from refstore.errors import ObjectNotFound, ObjectsUnavailable
from refstore.objects.base import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Mode = Literal["delete", "tag"]

TASKS_PER_CORE: Final = 4
"""A task costs some hundredths of a second to begin; more of them would only balance better."""
OUTCOMES: Final = "unit string, outcome string, reason string, kind int, why string, objects long, bytes long"
_ARROW: Final = pa.schema(
    [
        ("unit", pa.string()),
        ("outcome", pa.string()),
        ("reason", pa.string()),
        ("kind", pa.int32()),
        ("why", pa.string()),
        ("objects", pa.int64()),
        ("bytes", pa.int64()),
    ]
)


class Unit(msgspec.Struct, frozen=True):
    """A file of the mark, and where its outcome is written."""

    key: str
    outcome: str


class Outcome(NamedTuple):
    """A row of what `sweep` answers."""

    unit: str
    outcome: str
    reason: str
    """Why it was marked."""
    kind: int
    why: str
    """The store's, of what failed: of one of them, as an example."""
    objects: int
    bytes: int


def sweep(units: DataFrame, back: Sequence[DataFrame], tasks: int, work: Work, mode: Mode, tag: str = TAG) -> DataFrame:
    """Delete, or tag, each unit's addresses; what became of them, counted.

    `units`: a packet for each. `back`: keys of what is named again, in the units' buckets. `tag`: the tag's key.
    """
    together = units
    for each in back:
        together = together.unionByName(each)
    if back:
        together = together.repartitionById(tasks, "bucket")
    return together.mapInArrow(_sweep(work, mode, tag), OUTCOMES).select(*Outcome._fields)


def settle(units: DataFrame, work: Work) -> DataFrame:
    """Ask which of the tagged objects the bucket has deleted; what has become of all, counted. Nothing is deleted or tagged here.

    A unit is asked for object by object up to the first that is there still. So each object is asked for once when it is gone, and a unit
    that waits costs one request a night: what still counts as tagged is an upper bound.
    """
    return units.mapInArrow(_settle(work), OUTCOMES).select(*Outcome._fields)


def _settle(work: Work) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def run(batches: Iterable[Any]) -> Iterator[Any]:
        for packet in received(batches):
            rows = _settled(work, msgspec.msgpack.decode(packet.body, type=Unit))
            yield pa.RecordBatch.from_pylist([row._asdict() for row in rows], schema=_ARROW)

    return run


def _settled(work: Work, unit: Unit) -> list[Outcome]:
    store = store_at(work.url, work)
    before = read_table(store, unit.outcome)
    outcomes = before.column("outcome").to_numpy(zero_copy_only=False).copy()
    whys = before.column("why").to_numpy(zero_copy_only=False)
    places = np.flatnonzero(outcomes == TAGGED)
    keys: list[str] = before.column("address").take(pa.array(places)).to_pylist()
    gone = 0
    with Workers(threads_at(work)) as workers:
        for there in workers.ahead(partial(is_there, store), keys):
            if there:
                break
            gone += 1
    if gone:
        outcomes[places[:gone]] = BUCKET
        number = before.schema.get_field_index("outcome")
        write_table(store, unit.outcome, before.set_column(number, "outcome", pa.array(outcomes, pa.string())))
    return _counted(unit.key, read_table(store, unit.key), outcomes, whys)


def _sweep(work: Work, mode: Mode, tag: str) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def run(batches: Iterable[Any]) -> Iterator[Any]:
        units: list[tuple[int, Unit]] = []
        back: dict[int, list[Keys]] = {}
        for packet in received(batches):
            if packet.side is Side.LISTED:
                units.append((packet.bucket, msgspec.msgpack.decode(packet.body, type=Unit)))
            else:
                back.setdefault(packet.bucket, []).append(packet.keys)
        for bucket, unit in units:
            rows = _one(work, unit, back.get(bucket, []), mode, tag)
            yield pa.RecordBatch.from_pylist([row._asdict() for row in rows], schema=_ARROW)

    return run


def _one(work: Work, unit: Unit, back: Sequence[Keys], mode: Mode, tag: str = TAG) -> list[Outcome]:
    store = store_at(work.url, work)
    marked = read_table(store, unit.key)
    before = _before(store, unit)
    if before is None:
        outcomes = np.full(marked.num_rows, FAILED, object)
        whys = np.full(marked.num_rows, "", object)
    else:
        outcomes = before.column("outcome").to_numpy(zero_copy_only=False).copy()
        whys = before.column("why").to_numpy(zero_copy_only=False).copy()
    asked = (outcomes == FAILED) | ((outcomes == TAGGED) & (mode == "delete"))
    if asked.any():
        # also of what an earlier sweep failed to delete, or left to the bucket: a legal hold may have come in between
        named = asked & among(keys_of(marked.column("address"), work.seed), back)
        tagged = named & (outcomes == TAGGED)
        outcomes[named], whys[named] = DROPPED, ""
        if tagged.any():
            outcomes[tagged] = _untagged(store, marked.column("address").filter(pa.array(tagged)).to_pylist())
        waiting = np.flatnonzero(asked & ~named)
        keys: list[str] = marked.column("address").take(pa.array(waiting)).to_pylist()
        done, others = _gone(store, keys, mode, tag) if keys else (DELETED, [])
        outcomes[waiting], whys[waiting] = done, ""
        if others:
            place = dict(zip(keys, waiting.tolist(), strict=True))
            for key, outcome, why in others:
                outcomes[place[key]], whys[place[key]] = outcome, why
        table = pa.table(
            {
                "address": marked.column("address"),
                "size_bytes": marked.column("size_bytes"),
                "reason": marked.column("reason"),
                "outcome": pa.array(outcomes, pa.string()),
                "why": pa.array(whys, pa.string()),
            }
        )
        write_table(store, unit.outcome, table)
    return _counted(unit.key, marked, outcomes, whys)


def _gone(store: ObjectStore, keys: Sequence[str], mode: Mode, tag: str) -> tuple[str, list[tuple[str, str, str]]]:
    """(what became of the keys, what else became of some: (key, outcome, the store's reason)). Raises ObjectsUnavailable: a key of
    which the store said nothing."""
    if mode == "tag":
        tagging = store.tag_many(keys, {tag: "true"})
        done, missing, failed, outcome = tagging.tagged, tagging.missing, tagging.failed, TAGGED
    else:
        deletion = store.delete_many(keys)
        done, missing, failed, outcome = deletion.deleted, deletion.missing, deletion.failed, DELETED
    if len(done) + len(missing) + len(failed) != len(keys):
        raise ObjectsUnavailable(f"of {len(keys)} keys {store.url} confirmed {len(done) + len(missing) + len(failed)}; sweep again")
    others = [(key, MISSING, "") for key in missing]
    others += [(key, FAILED, why or "no reason was given") for key, why in failed]
    return outcome, others


def _untagged(store: ObjectStore, keys: Sequence[str]) -> list[str]:
    """Take the tag off what is named again, for the bucket would delete it; what became of each. What keeps its tag is tried again."""
    done = {*store.tag_many(keys, {}).tagged}
    # a store may confirm that nothing is tagged at a key at which nothing is any more
    return [(DROPPED if key in done else TAGGED) if is_there(store, key) else BUCKET for key in keys]


def _before(store: ObjectStore, unit: Unit) -> Any:
    """The outcome that an earlier sweep wrote down."""
    try:
        store.head(unit.outcome)
    except ObjectNotFound:
        return None
    return read_table(store, unit.outcome)


def _counted(unit: str, marked: Any, outcomes: Any, whys: Any) -> list[Outcome]:
    sizes = marked.column("size_bytes").to_numpy()
    reasons = pc.cast(marked.column("reason"), pa.string()).to_numpy(zero_copy_only=False)
    kinds = marked.column("kind").to_numpy()
    rows: list[Outcome] = []
    for outcome in sorted({*outcomes.tolist()}):
        for reason in sorted({*reasons[outcomes == outcome].tolist()}):
            for kind in np.unique(kinds[(outcomes == outcome) & (reasons == reason)]).tolist():
                of = (outcomes == outcome) & (reasons == reason) & (kinds == kind)
                why = str(whys[of][0]) if outcome == FAILED else ""
                rows.append(Outcome(unit, outcome, reason, kind, why, int(of.sum()), int(sizes[of].sum())))
    return rows
