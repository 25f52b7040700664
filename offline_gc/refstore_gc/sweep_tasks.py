"""Sweep in tasks of the engine: delete what a mark holds and nothing excludes, and write down what became of each.

A task deletes a unit of the mark, then writes the unit's outcome. A sweep that is run again skips what has an outcome,
and tries again what failed. Where a killed worker had deleted a key, the store says that it is missing, and it counts
as already gone.

The bucket deletes what was tagged. `check_tagged_units` asks the store what it has deleted, and writes that down, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from refstore.core.arrow_arrays import make_array, to_numpy
from refstore.errors import Invalid, ObjectsRefused, ObjectsUnavailable
from refstore.gc_marks.sweep_records import outcome_key
from refstore.objects.base import ObjectStore
from refstore.versioning.commits.workers import Workers
from refstore_gc import live_in_commits
from refstore_gc.address_batches import Batch, BatchBuilder, BatchKind
from refstore_gc.address_codec import AddressKeys, BucketBounds, are_among, encode_addresses
from refstore_gc.engines.base import BatchStream
from refstore_gc.garbage import count_of
from refstore_gc.live_in_commits import LiveCommits
from refstore_gc.run_context import RunContext
from refstore_gc.run_layout import TAG, RunLayout, open_store, read_table, request_threads, write_table
from refstore_gc.run_summary import (
    DELETED_BY_BUCKET_OUTCOME,
    DELETED_OUTCOME,
    EXCLUDED_OUTCOME,
    FAILED_OUTCOME,
    KEPT_AS_VERSION_OUTCOME,
    MISSING_OUTCOME,
    TAGGED_OUTCOME,
    ObjectCount,
    SweepMode,
    UnitRow,
)
from refstore_gc.untyped_arrow import pa, pc

T = TypeVar("T")


class OutcomeCount(NamedTuple):
    """A count of what became of a unit's objects."""

    unit: str
    outcome: str
    reason: str
    """Why it was marked."""
    kind: int
    explanation: str
    """The store's reason for one that failed or is kept, as an example."""
    amount: ObjectCount


def unit_batches(keys: Sequence[str]) -> list[Batch]:
    """Return a batch for each file of the mark; the n-th is for bucket n."""
    return [Batch.from_value(number, BatchKind.LISTED, key) for number, key in enumerate(keys)]


def sweep_units(
    run: RunContext, units: Sequence[UnitRow], excluded: LiveCommits, mode: SweepMode
) -> list[OutcomeCount]:
    """Delete, or tag, each unit's addresses; return what became of them, counted.

    `excluded`: the commits whose addresses and trees are named again.
    """
    return list(_join_units(run, units, excluded, partial(sweep_bucket, run.layout, mode)))


def find_unexcluded(run: RunContext, units: Sequence[UnitRow], excluded: LiveCommits) -> AddressKeys:
    """Return the keys of what `sweep_units` would delete, sorted. Nothing is deleted or tagged here."""
    found = list(_join_units(run, units, excluded, partial(_find_unexcluded, run.layout)))
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.uint64)


def _join_units(
    run: RunContext, units: Sequence[UnitRow], excluded: LiveCommits, work: Callable[[list[Batch]], Iterable[T]]
) -> Iterable[T]:
    """Bring each unit together with the keys of what `excluded` commits name."""
    layout, cuts = run.layout, BucketBounds.from_addresses([unit.first_address for unit in units[1:]])
    flows = [
        BatchStream(unit_batches([unit.key for unit in units])),
        BatchStream(_tree_batches(layout, cuts, excluded)),
        *live_in_commits.commit_flows(layout, cuts, excluded.sources()),
    ]
    return run.engine.join(flows, cuts.buckets, work) if units else []


def _tree_batches(layout: RunLayout, cuts: BucketBounds, commits: LiveCommits) -> list[Batch]:
    """Return the keys of the commits' metaranges and listings. A mark has those of a commit that never landed."""
    builder = BatchBuilder(cuts, layout.seed)
    objects = make_array(list(commits.tree_object_keys()), pa.string())
    return [*builder.add(BatchKind.LIVE_IN_KV, objects), *builder.flush()]


def sweep_bucket(layout: RunLayout, mode: SweepMode, batches: Iterable[Batch]) -> Iterator[OutcomeCount]:
    """Delete, or tag, the addresses of the unit of one bucket."""
    units, named_again = _sort_batches(batches)
    for unit in units:
        yield from sweep_unit(layout, unit, named_again, mode)


def _find_unexcluded(layout: RunLayout, batches: Iterable[Batch]) -> Iterator[AddressKeys]:
    """Yield the keys of the unit of one bucket that nothing names again."""
    units, named_again = _sort_batches(batches)
    store = open_store(layout.url, layout)
    for unit in units:
        keys = encode_addresses(read_table(store, unit, ["address"]).column("address"), layout.seed)
        yield keys[~are_among(keys, named_again)]


def _sort_batches(batches: Iterable[Batch]) -> tuple[list[str], list[AddressKeys]]:
    """Return the units among the batches of a bucket, and the keys of what is named again."""
    units: list[str] = []
    named_again: list[AddressKeys] = []
    for batch in batches:
        if batch.kind is BatchKind.LISTED:
            units.append(msgspec.msgpack.decode(batch.body, type=str))
        else:
            named_again.append(batch.keys)
    return units, named_again


def check_tagged_units(run: RunContext, units: Sequence[UnitRow]) -> list[OutcomeCount]:
    """Ask which of the tagged objects the bucket has deleted; return what became of all, counted. Nothing is deleted or
    tagged here.

    A unit is asked for object by object up to the first that is still there. So each object is asked for once when it
    is gone, and a unit that waits costs one request a night. What still counts as tagged is an upper bound.
    """
    return list(run.engine.map(partial(_check_tagged_unit, run.layout), [unit.key for unit in units]))


def _check_tagged_unit(layout: RunLayout, unit: str) -> list[OutcomeCount]:
    store, outcome_file = open_store(layout.url, layout), outcome_key(unit)
    before = read_table(store, outcome_file)
    outcomes = to_numpy(before.column("outcome")).copy()
    whys = to_numpy(before.column("why"))
    places = np.flatnonzero(outcomes == TAGGED_OUTCOME)
    keys: list[str] = before.column("address").take(make_array(places)).to_pylist()
    deleted_count = 0
    with Workers(request_threads(layout)) as workers:
        for there in workers.map_ahead(store.is_stored, keys):
            if there:
                break
            deleted_count += 1
    if deleted_count:
        outcomes[places[:deleted_count]] = (
            KEPT_AS_VERSION_OUTCOME if store.versioning_status().keeps_versions else DELETED_BY_BUCKET_OUTCOME
        )
        number = before.schema.get_field_index("outcome")
        write_table(store, outcome_file, before.set_column(number, "outcome", make_array(outcomes, pa.string())))
    return _count_outcomes(unit, read_table(store, unit), outcomes, whys)


def sweep_unit(layout: RunLayout, unit: str, named_again: Sequence[AddressKeys], mode: SweepMode) -> list[OutcomeCount]:
    """Delete, or tag, the addresses of one unit, a file of the mark. `named_again`: keys that something names again."""
    store, outcome_file = open_store(layout.url, layout), outcome_key(unit)
    marked = read_table(store, unit)
    before = _read_earlier_outcome(store, outcome_file)
    if before is None:
        outcomes = np.full(marked.num_rows, FAILED_OUTCOME, object)
        whys = np.full(marked.num_rows, "", object)
    else:
        outcomes = to_numpy(before.column("outcome")).copy()
        whys = to_numpy(before.column("why")).copy()
    is_open = (outcomes == FAILED_OUTCOME) | ((outcomes == TAGGED_OUTCOME) & (mode == "delete"))
    if is_open.any():
        # also where an earlier sweep failed to delete, or left it to the bucket: a legal hold may have come since
        is_excluded = is_open & are_among(encode_addresses(marked.column("address"), layout.seed), named_again)
        tagged = is_excluded & (outcomes == TAGGED_OUTCOME)
        outcomes[is_excluded], whys[is_excluded] = EXCLUDED_OUTCOME, ""
        if tagged.any():
            outcomes[tagged] = _untag(store, marked.column("address").filter(make_array(tagged)).to_pylist())
        waiting = np.flatnonzero(is_open & ~is_excluded)
        keys: list[str] = marked.column("address").take(make_array(waiting)).to_pylist()
        done, others = _delete_or_tag(store, keys, mode) if keys else (DELETED_OUTCOME, [])
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
                "outcome": make_array(outcomes, pa.string()),
                "why": make_array(whys, pa.string()),
            }
        )
        write_table(store, outcome_file, table)
    return _count_outcomes(unit, marked, outcomes, whys)


def _delete_or_tag(store: ObjectStore, keys: Sequence[str], mode: SweepMode) -> tuple[str, list[tuple[str, str, str]]]:
    """Delete, or tag, keys. Return what became of them, and of exceptions (key, outcome, the store's reason). Raises
    ObjectsUnavailable: the store did not answer for a key.
    """
    try:
        if mode == "tag":
            tagging = store.tag_many(keys, {TAG: "true"})
            done, missing, failed, outcome, kept = (
                tagging.tagged_keys,
                tagging.missing_keys,
                tagging.failed_keys,
                TAGGED_OUTCOME,
                (),
            )
        else:
            deletion = store.delete_many(keys)
            done, missing, failed, outcome = (
                deletion.deleted_keys,
                deletion.missing_keys,
                deletion.failed_keys,
                DELETED_OUTCOME,
            )
            kept = deletion.kept_keys
    except (Invalid, ObjectsRefused) as error:  # all of them, for lack of a right perhaps: the next tries again
        return FAILED_OUTCOME, [(key, FAILED_OUTCOME, str(error)) for key in keys]
    if len(done) + len(missing) + len(failed) != len(keys):
        raise ObjectsUnavailable(
            f"of {len(keys)} keys {store.url} confirmed {len(done) + len(missing) + len(failed)}; sweep again"
        )
    others = [(key, MISSING_OUTCOME, "") for key in missing]
    others += [(key, FAILED_OUTCOME, why or "no reason was given") for key, why in failed]
    others += [(key, KEPT_AS_VERSION_OUTCOME, why) for key, why in kept]
    return outcome, others


def _untag(store: ObjectStore, keys: Sequence[str]) -> list[str]:
    """Take the tag off what is named again, because the bucket would delete it. Return what became of each key. A key
    that keeps its tag is tried again. Raises ObjectsUnavailable: the store refuses all of them.
    """
    try:
        done = {*store.tag_many(keys, {}).tagged_keys}
    except (Invalid, ObjectsRefused) as error:
        raise ObjectsUnavailable(
            f"{len(keys)} objects that something names again keep their tag, and the bucket will delete them: {error}; "
            "then sweep again"
        ) from error
    # a store may confirm that nothing is tagged at a key at which nothing is any more
    return [
        (EXCLUDED_OUTCOME if key in done else TAGGED_OUTCOME) if store.is_stored(key) else DELETED_BY_BUCKET_OUTCOME
        for key in keys
    ]


def _read_earlier_outcome(store: ObjectStore, key: str) -> Any:
    """Return the outcome that an earlier sweep wrote. None: there is none."""
    return read_table(store, key) if store.head_many([key])[0] is not None else None


def _count_outcomes(unit: str, marked: Any, outcomes: Any, whys: Any) -> list[OutcomeCount]:
    sizes = to_numpy(marked.column("size_bytes"))
    reasons = to_numpy(pc.cast(marked.column("reason"), pa.string()))
    kinds = to_numpy(marked.column("kind"))
    rows: list[OutcomeCount] = []
    for outcome in sorted({*outcomes.tolist()}):
        for reason in sorted({*reasons[outcomes == outcome].tolist()}):
            for kind in np.unique(kinds[(outcomes == outcome) & (reasons == reason)]).tolist():
                of = (outcomes == outcome) & (reasons == reason) & (kinds == kind)
                why = str(whys[of][0]) if outcome in (FAILED_OUTCOME, KEPT_AS_VERSION_OUTCOME) else ""
                rows.append(OutcomeCount(unit, outcome, reason, kind, why, count_of(sizes, of)))
    return rows
