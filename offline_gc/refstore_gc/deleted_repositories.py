"""What a deleted repository left: when its grace is over, everything in its namespace that refstore wrote, then the
namespace's claim.

The reaper has drained it by then: no branch, commit or reference of it is left in the KV, and its id never comes again,
so nothing can name what lies there. Two things are looked at all the same before the first deletion: that no living
repository has the namespace, and that the namespace itself says whose it is. A run that dies is made again from the
start.

Where the bucket deletes (`--mode tag`), everything is tagged, and TAGGED in the namespace says what was, and since
when. The nights that follow list again and tag only what is new; when a listing has nothing of refstore's any more the
namespace is free, as otherwise at once.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from refstore.core import ids
from refstore.core.ids import RepositoryId, RepositoryName
from refstore.core.step_progress import ReportProgress, ignore_progress
from refstore.core.units import DAY_MS
from refstore.errors import Conflict, ObjectNotFound
from refstore.gc_marks.sweep_records import outcome_key
from refstore.kv.base import ABSENT
from refstore.kv_recovery.fence import PositionFence
from refstore.lake import Lake
from refstore.namespaces import CLAIMS, folder_url
from refstore.objects.base import OWN_FILES, ObjectStore
from refstore.records import keys
from refstore.records.encoding import decode, decode_optional, encode
from refstore.records.repository_records import ClearedRepository, RepositoryRecord
from refstore.retention.rules import Rules
from refstore_gc import deletion_index_writer, kv_guard, list_objects, sweep_tasks
from refstore_gc.address_batches import BatchKind
from refstore_gc.anti_join import JoinInputs, bucket_bounds, chunk_batches, join_buckets, list_units_of
from refstore_gc.bucket_join import BucketTask, ComparedCount
from refstore_gc.engines.choice import Engines
from refstore_gc.garbage import DELETED_REPOSITORY_REASON
from refstore_gc.live_in_commits import LiveCommits
from refstore_gc.mark_plan import minimum_age_seconds, store_now_ms
from refstore_gc.run_context import GcOptions, RunContext
from refstore_gc.run_layout import BULK_KEYS, ROOT, make_layout, read_json, remove_run_files, write_json
from refstore_gc.run_progress import RunSteps
from refstore_gc.run_summary import DELETED_OUTCOME, KEPT_AS_VERSION_OUTCOME, MISSING_OUTCOME, ObjectCount, SweepResult
from refstore_gc.summary_totals import summarize_sweep

TAGGED: Final = f"{ROOT}tagged.json"
"""`TaggedUnits`, as JSON."""


class TaggedUnits(msgspec.Struct, frozen=True):
    """What earlier nights tagged of a deleted repository."""

    since_ms: int
    units: list[str]
    """The files that name it."""


RUNS_NOTED: Final = 30
"""Of the runs that cleared a namespace, so many are kept by name: the last ones."""


class ClearResult(NamedTuple):
    repository: RepositoryId
    due_ms: int
    sweep: SweepResult | None
    """None: its grace is not over; or nothing was left to be done but to forget it."""
    foreign_objects: ObjectCount = ObjectCount()
    """Not refstore's: left where it is."""
    is_forgotten: bool = False
    """Whether nothing of it is left, and the namespace is free."""
    waiting_objects: ObjectCount = ObjectCount()
    """What is tagged, and was still listed: the bucket has yet to delete it."""
    tagged_ms: int = 0
    """Since when. 0: nothing is tagged."""
    private_files: int = 0
    """Journals, reports and what says whose the namespace is: how many of them the store did not delete."""

    @property
    def failed_objects(self) -> int:
        """What the store did not delete; the next run tries it again."""
        return self.private_files + (self.sweep.failed_objects if self.sweep is not None else 0)


def closed_repositories(lake: Lake) -> Iterator[tuple[RepositoryId, RepositoryRecord]]:
    """Deleted repositories that the reaper is done with."""
    for name, value in lake.kv.scan_all(keys.CLOSED_REPOSITORIES):
        yield ids.repository_id(name), decode(value, RepositoryRecord)


def clear_repository(
    lake: Lake,
    repo: RepositoryId,
    record: RepositoryRecord,
    engines: Engines,
    options: GcOptions,
    report_progress: ReportProgress = ignore_progress,
) -> ClearResult:
    """Raises Conflict: the namespace is not this repository's alone; nothing was deleted then. Raises KVWentBack,
    KVSettling.
    """
    grace_ms = int((Rules().grace_days if options.grace_days is None else options.grace_days) * DAY_MS)
    due_ms = record.closed_ms + grace_ms
    if lake.clock.now_ms() < due_ms:
        return ClearResult(repo, due_ms, None)
    if _is_free(lake, repo, record):
        lake.kv.delete(keys.closed_repository(repo))  # an earlier run died before this
        return ClearResult(repo, due_ms, None, is_forgotten=True)
    _check_not_shared(lake, repo, record)
    ctx = lake.context(RepositoryName(repo.rpartition(".")[0]), record)
    mark_id = ctx.ids.new_id(lake.clock.now_ms())
    fence = kv_guard.begin_guarded_pass(ctx, mark_id, is_closed=True)
    layout, engine = make_layout(ctx, mark_id, secrets.randbits(64)), engines.for_objects(0)
    steps = RunSteps(repo, engine, report_progress)
    run = RunContext(repository=ctx, engine=engine, options=options, steps=steps, layout=layout)
    swept = _sweep_all(run, engines, fence)
    _record_clearing(lake, repo, record, mark_id, swept.swept)
    tagged = _note_tagged(ctx.objects, swept)
    cleared = ClearResult(repo, due_ms, swept.swept, swept.foreign)
    if swept.swept.failed_objects or swept.young or swept.waiting.objects:
        files = [outcome_key(unit) for unit in swept.units]
        deletion_index_writer.index_sweep(ctx, mark_id, files, swept.swept.at_ms)
        remove_run_files(ctx.objects, mark_id, "listing/", "clock")
        return cleared._replace(waiting_objects=swept.waiting, tagged_ms=tagged.since_ms)
    # another run may have been through with it meanwhile, and somebody have the namespace by now
    _check_not_shared(lake, repo, record)
    if failed := _remove_private(ctx.objects):
        return cleared._replace(private_files=failed)
    # its own claim, not the next one's
    lake.kv.set_if(keys.namespace(folder_url(record.namespace)), repo.encode(), ABSENT)
    lake.kv.delete(keys.closed_repository(repo))
    return cleared._replace(is_forgotten=True)


class _SweptAll(NamedTuple):
    """What became of everything in a namespace."""

    swept: SweepResult
    units: list[str]
    """The files that name what was deleted or tagged."""
    tagged: TaggedUnits
    """What earlier nights tagged."""
    foreign: ObjectCount
    young: int
    """How many objects were too young."""
    waiting: ObjectCount
    """What is tagged, and was still listed."""


def _sweep_all(run: RunContext, engines: Engines, fence: PositionFence) -> _SweptAll:
    """List everything, and delete or tag it; not again what an earlier night has tagged."""
    store, layout, options, now_ms = run.repository.objects, run.layout, run.options, run.repository.clock.now_ms
    with run.steps.step("listing the object store"):
        min_age_ms = int(minimum_age_seconds(run.repository, options.min_age_seconds) * 1000)
        run = replace(run, cutoff_ms=store_now_ms(store, layout.named_file_key("clock")) - min_age_ms)
        chunks = list_objects.list_objects(run)
    run = run.move_to(engines.for_objects(list_objects.count_listed(chunks)))
    with run.steps.step("sweeping"):
        tagged = _read_tagged(store)
        bounds = bucket_bounds(chunks)
        inputs = JoinInputs(
            BucketTask(layout=layout, every_reason=DELETED_REPOSITORY_REASON),
            bounds,
            chunk_batches(chunks, bounds),
            [],
            [(unit, BatchKind.PENDING) for unit in tagged.units] if options.mode == "tag" else [],
            LiveCommits().sources(),
        )
        rows = join_buckets(run.engine, inputs)
        units = list_units_of(rows)
        fence.pass_through()
        outcomes = sweep_tasks.sweep_units(run, units, LiveCommits(), options.mode)
    swept = summarize_sweep(outcomes, options.mode, 0, now_ms(), run.steps.seconds.get("sweeping", 0.0))
    return _SweptAll(
        swept,
        [unit.key for unit in units],
        tagged,
        foreign=sum((each.foreign for each in chunks), ObjectCount()),
        young=sum(each.young_objects.objects for each in chunks),
        waiting=sum((row.pending for row in rows if isinstance(row, ComparedCount)), swept.tagged_count),
    )


def _read_tagged(store: ObjectStore) -> TaggedUnits:
    """Raises Corrupt."""
    try:
        return read_json(store, TAGGED, TaggedUnits, "delete it, and everything is tagged again")
    except ObjectNotFound:
        return TaggedUnits(0, [])


def _note_tagged(store: ObjectStore, swept: _SweptAll) -> TaggedUnits:
    """Add what was tagged to what earlier nights had tagged. Where some failed, it is in the same files: tagging all of
    them again tells which.
    """
    if not swept.swept.tagged_count.objects or swept.swept.failed_objects:
        return swept.tagged
    tagged = TaggedUnits(swept.tagged.since_ms or swept.swept.at_ms, [*swept.tagged.units, *swept.units])
    write_json(store, TAGGED, tagged)
    return tagged


def _record_clearing(
    lake: Lake, repo: RepositoryId, record: RepositoryRecord, mark_id: str, swept: SweepResult
) -> None:
    """Add to what the KV keeps of the repository for ever: `refstore why` answers from it when the namespace is
    free.
    """
    key = keys.cleared_repository(repo)
    known = decode_optional(lake.kv.get(key), ClearedRepository)
    gone = sum(
        (
            swept.outcomes.get(each, ObjectCount())
            for each in (DELETED_OUTCOME, KEPT_AS_VERSION_OUTCOME, MISSING_OUTCOME)
        ),
        ObjectCount(),
    )
    runs, before = (known.runs, ObjectCount(known.objects, known.bytes)) if known is not None else ((), ObjectCount())
    total = before + gone
    lake.kv.set(
        key,
        encode(
            ClearedRepository(
                lake.namespace_url(record),
                record.created_ms,
                record.closed_ms,
                swept.at_ms,
                (*runs, mark_id)[-RUNS_NOTED:],
                total.objects,
                total.bytes,
            )
        ),
    )


def _remove_private(store: ObjectStore) -> int:
    """What says whose the namespace is goes last: until then a run that died, or that the store failed, is made again.
    How many stay.
    """
    failed = 0
    for prefix in (ROOT, f"{OWN_FILES}journal/", f"{OWN_FILES}manifest/"):
        left = (info.key for info in store.list(prefix))
        while page := list(islice(left, BULK_KEYS)):
            failed += len(store.delete_many(page).failed_keys)
    return failed or len(store.delete_many(CLAIMS).failed_keys)


def _is_free(lake: Lake, repo: RepositoryId, record: RepositoryRecord) -> bool:
    """Whether the namespace was given back, and may be another repository's by now: neither the KV nor the namespace
    says that it is this one's.
    """
    if lake.kv.get(keys.namespace(folder_url(record.namespace))) == repo.encode():
        return False
    return lake.owner_of(record) != repo


def _check_not_shared(lake: Lake, repo: RepositoryId, record: RepositoryRecord) -> None:
    own = folder_url(lake.namespace_url(record))
    for name, other in lake.all_repositories():
        if folder_url(lake.namespace_url(other)) == own or other.id == repo:
            raise Conflict(
                f"repository {name!r} has the namespace of the deleted {repo}; nothing is deleted there, look how that "
                "came about"
            )
    owner = lake.owner_of(record)
    if owner is not None and owner != repo:  # None: an earlier run came so far
        raise Conflict(
            f"{own} says that it belongs to {owner[:120]!r}, not to the deleted {repo}; nothing is deleted there"
        )
