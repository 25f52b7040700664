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

from refstore.core import ids, keys
from refstore.core.ids import RepositoryId, RepositoryName
from refstore.core.records import ClearedRepository, RepositoryRecord, decode, encode, maybe
from refstore.errors import Conflict, Corrupt, ObjectNotFound
from refstore.gc_marks.sweep_records import outcome_key
from refstore.kv.base import ABSENT
from refstore.lake import Lake
from refstore.losses.fence import Fence
from refstore.namespaces import NAMESPACE_OBJECT, as_folder
from refstore.objects.base import OWN_FILES, ObjectStore
from refstore.retention.rules import DAY_MS, Rules
from refstore_gc import deletion_index_writer, kv_guard, listing, sweep_tasks
from refstore_gc.anti_join import JoinInputs, bucket_bounds, chunk_batches, join, units_of
from refstore_gc.batches import BatchKind
from refstore_gc.bucket_join import BucketTask, ComparedCount
from refstore_gc.engines.choice import Engines
from refstore_gc.garbage import DELETED_REPOSITORY
from refstore_gc.live_in_commits import LiveCommits
from refstore_gc.mark_plan import age_seconds, store_now_ms
from refstore_gc.run_context import Options, RunContext
from refstore_gc.run_layout import BULK_KEYS, ROOT, layout_of, read_json, remove, write_json
from refstore_gc.run_progress import Steps, Tell, silent
from refstore_gc.run_summary import DELETED, KEPT, MISSING, Count, Swept
from refstore_gc.statistics import summarize_sweep

TAGGED: Final = f"{ROOT}tagged.json"
"""`Tagged`, as JSON."""


class Tagged(msgspec.Struct, frozen=True):
    """What earlier nights tagged of a deleted repository."""

    since_ms: int
    units: list[str]
    """The files that name it."""


RUNS_NOTED: Final = 30
"""Of the runs that cleared a namespace, so many are kept by name: the last ones."""


class Cleared(NamedTuple):
    repository: RepositoryId
    due_ms: int
    swept: Swept | None
    """None: its grace is not over; or nothing was left to be done but to forget it."""
    foreign: Count = Count()
    """Not refstore's: left where it is."""
    forgotten: bool = False
    """Whether nothing of it is left, and the namespace is free."""
    waiting: Count = Count()
    """What is tagged, and was still listed: the bucket has yet to delete it."""
    tagged_ms: int = 0
    """Since when. 0: nothing is tagged."""
    private: int = 0
    """Journals, reports and what says whose the namespace is: how many of them the store did not delete."""

    @property
    def failed(self) -> int:
        """What the store did not delete; the next run tries it again."""
        return self.private + (self.swept.failed if self.swept is not None else 0)


def closed(lake: Lake) -> Iterator[tuple[RepositoryId, RepositoryRecord]]:
    """Deleted repositories that the reaper is done with."""
    for name, value in lake.kv.scan_all(keys.CLOSED_REPOSITORIES):
        yield ids.repository_id(name), decode(value, RepositoryRecord)


def clear(
    lake: Lake, repo: RepositoryId, record: RepositoryRecord, engines: Engines, options: Options, tell: Tell = silent
) -> Cleared:
    """Raises Conflict: the namespace is not this repository's alone; nothing was deleted then. Raises KVWentBack,
    KVSettling.
    """
    grace_ms = int((Rules().grace_days if options.grace_days is None else options.grace_days) * DAY_MS)
    due_ms = record.closed_ms + grace_ms
    if lake.clock.now_ms() < due_ms:
        return Cleared(repo, due_ms, None)
    if _is_free(lake, repo, record):
        lake.kv.delete(keys.closed_repository(repo))  # an earlier run died before this
        return Cleared(repo, due_ms, None, forgotten=True)
    _check_alone(lake, repo, record)
    ctx = lake.context(RepositoryName(repo.rpartition(".")[0]), record)
    mark_id = ctx.ids.unique(lake.clock.now_ms())
    fence = kv_guard.begin(ctx, mark_id, is_closed=True)
    layout, engine = layout_of(ctx, mark_id, secrets.randbits(64)), engines.for_objects(0)
    run = RunContext(repository=ctx, engine=engine, options=options, steps=Steps(engine, tell), layout=layout)
    swept = _sweep_all(run, engines, fence)
    _note(lake, repo, record, mark_id, swept.swept)
    tagged = _note_tagged(ctx.objects, swept)
    cleared = Cleared(repo, due_ms, swept.swept, swept.foreign)
    if swept.swept.failed or swept.young or swept.waiting.objects:
        files = [outcome_key(unit) for unit in swept.units]
        deletion_index_writer.index_sweep(ctx, mark_id, files, swept.swept.at_ms)
        remove(ctx.objects, mark_id, "listing/", "clock")
        return cleared._replace(waiting=swept.waiting, tagged_ms=tagged.since_ms)
    # another run may have been through with it meanwhile, and somebody have the namespace by now
    _check_alone(lake, repo, record)
    if failed := _without_private(ctx.objects):
        return cleared._replace(private=failed)
    # its own claim, not the next one's
    lake.kv.set_if(keys.namespace(as_folder(record.namespace)), repo.encode(), ABSENT)
    lake.kv.delete(keys.closed_repository(repo))
    return cleared._replace(forgotten=True)


class _SweptAll(NamedTuple):
    """What became of everything in a namespace."""

    swept: Swept
    units: list[str]
    """The files that name what was deleted or tagged."""
    tagged: Tagged
    """What earlier nights tagged."""
    foreign: Count
    young: int
    """How many objects were too young."""
    waiting: Count
    """What is tagged, and was still listed."""


def _sweep_all(run: RunContext, engines: Engines, fence: Fence) -> _SweptAll:
    """List everything, and delete or tag it; not again what an earlier night has tagged."""
    store, layout, options, now_ms = run.repository.objects, run.layout, run.options, run.repository.clock.now_ms
    with run.steps.step("listing the object store"):
        min_age_ms = int(age_seconds(run.repository, options.min_age_seconds) * 1000)
        run = replace(run, cutoff_ms=store_now_ms(store, layout.file("clock")) - min_age_ms)
        chunks = listing.list_objects(run)
    run = run.move_to(engines.for_objects(listing.count_listed(chunks)))
    with run.steps.step("sweeping"):
        tagged = _tagged(store)
        bounds = bucket_bounds(chunks)
        inputs = JoinInputs(
            BucketTask(layout=layout, every_reason=DELETED_REPOSITORY),
            bounds,
            chunk_batches(chunks, bounds),
            [],
            [(unit, BatchKind.PENDING) for unit in tagged.units] if options.mode == "tag" else [],
            LiveCommits().sources(),
        )
        rows = join(run.engine, inputs)
        units = units_of(rows)
        fence.pass_through()
        outcomes = sweep_tasks.sweep(run, units, LiveCommits(), options.mode)
    swept = summarize_sweep(outcomes, options.mode, 0, now_ms(), run.steps.seconds.get("sweeping", 0.0))
    return _SweptAll(
        swept,
        [unit.key for unit in units],
        tagged,
        foreign=sum((each.foreign for each in chunks), Count()),
        young=sum(each.young.objects for each in chunks),
        waiting=sum((row.pending for row in rows if isinstance(row, ComparedCount)), swept.tagged),
    )


def _tagged(store: ObjectStore) -> Tagged:
    """Raises Corrupt."""
    try:
        return msgspec.convert(read_json(store, TAGGED), Tagged)
    except ObjectNotFound:
        return Tagged(0, [])
    except msgspec.ValidationError as error:
        raise Corrupt(
            f"{TAGGED} in {store.url} is not as it was written ({error}); delete it, and everything is tagged again"
        ) from error


def _note_tagged(store: ObjectStore, swept: _SweptAll) -> Tagged:
    """Add what was tagged to what earlier nights had tagged. Where some failed, it is in the same files: tagging all of
    them again tells which.
    """
    if not swept.swept.tagged.objects or swept.swept.failed:
        return swept.tagged
    tagged = Tagged(swept.tagged.since_ms or swept.swept.at_ms, [*swept.tagged.units, *swept.units])
    write_json(store, TAGGED, tagged)
    return tagged


def _note(lake: Lake, repo: RepositoryId, record: RepositoryRecord, mark_id: str, swept: Swept) -> None:
    """Add to what the KV keeps of the repository for ever: `refstore why` answers from it when the namespace is
    free.
    """
    key = keys.cleared_repository(repo)
    known = maybe(lake.kv.get(key), ClearedRepository)
    gone = sum((swept.outcomes.get(each, Count()) for each in (DELETED, KEPT, MISSING)), Count())
    runs, before = (known.runs, Count(known.objects, known.bytes)) if known is not None else ((), Count())
    total = before + gone
    lake.kv.set(
        key,
        encode(
            ClearedRepository(
                record.namespace,
                record.created_ms,
                record.closed_ms,
                swept.at_ms,
                (*runs, mark_id)[-RUNS_NOTED:],
                total.objects,
                total.bytes,
            )
        ),
    )


def _without_private(store: ObjectStore) -> int:
    """What says whose the namespace is goes last: until then a run that died, or that the store failed, is made again.
    How many stay.
    """
    failed = 0
    for prefix in (ROOT, f"{OWN_FILES}journal/", f"{OWN_FILES}manifest/"):
        left = (info.key for info in store.list(prefix))
        while page := list(islice(left, BULK_KEYS)):
            failed += len(store.delete_many(page).failed)
    return failed or len(store.delete_many([NAMESPACE_OBJECT]).failed)


def _is_free(lake: Lake, repo: RepositoryId, record: RepositoryRecord) -> bool:
    """Whether the namespace was given back, and may be another repository's by now: neither the KV nor the namespace
    says that it is this one's.
    """
    if lake.kv.get(keys.namespace(as_folder(record.namespace))) == repo.encode():
        return False
    return lake.owner_of(record) != repo


def _check_alone(lake: Lake, repo: RepositoryId, record: RepositoryRecord) -> None:
    own = as_folder(record.namespace)
    for name, other in lake.all_repositories():
        if as_folder(other.namespace) == own or other.id == repo:
            raise Conflict(
                f"repository {name!r} has the namespace of the deleted {repo}; nothing is deleted there, look how that "
                "came about"
            )
    owner = lake.owner_of(record)
    if owner is not None and owner != repo:  # None: an earlier run came so far
        raise Conflict(
            f"{own} says that it belongs to {owner[:120]!r}, not to the deleted {repo}; nothing is deleted there"
        )
