"""Purge every version of objects, while commits and their ids stay (modes `rewrite` and `erase`, rule 22).

plan      which objects the data sets have in any commit, tag, branch or staging area (`version_plan.py`)
find      look for the ids in each distinct content, of `erase` in its names (`row_search.py`)
copies    refuse objects that have a name outside the data sets in any version
breaker   stop where more rows would go than anybody expects
replace   intend, write the contents again in tasks, and publish (`content_replacement.py`)
again     look at what came meanwhile, and at what others replaced or deleted: up to three attempts
summaries write the summary files of Parquet again (`summary_files.py`)
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from typing import BinaryIO, Final, cast

import msgspec

from refstore.core.batches import split_batches
from refstore.core.ids import Address, CommitId
from refstore.errors import DeadlineExceeded, ObjectNotFound
from refstore.kv.base import ABSENT
from refstore.purge_document.document import ERASE, Dataset
from refstore.records import keys
from refstore.records.location_records import Content
from refstore_purge import purge_tasks, row_search, summary_files
from refstore_purge.content_replacement import ReplacementAttempt, replace_contents
from refstore_purge.formats.base import PurgeError
from refstore_purge.purge_plan import Partition, PurgeObject, PurgePlan, describe_names, legal_hold_prefixes
from refstore_purge.purge_run_state import ATTEMPTS, SUMMARY, PurgeRun
from refstore_purge.purge_tasks import ObjectResult, TaskSettings
from refstore_purge.version_plan import find_outside_names, plan_versions

REWRITES_PER_CORE: Final = 32
"""How many objects each core writes in one call of the engine."""
PART_BYTES: Final = 4 << 30
"""How many bytes, so that a job ends well within the deadline of an operation."""
ERASE_BATCH: Final = 1000
BUSY: Final = (
    "others kept changing it, or its content is not there; run the purge again, and if that does not help, ask "
    "`refstore why` about its path"
)
DISAGREED: Final = "the search found rows or metadata with ids, and the rewrite found none; report this"

PartitionObject = tuple[Partition, PurgeObject]
WriteItems = Callable[[Sequence[PartitionObject], Sequence[ReplacementAttempt]], list[ObjectResult]]
"""Writes the new contents of the items that have an attempt."""


def purge_versions(run: PurgeRun, job: TaskSettings, datasets: Sequence[Dataset], planned: PurgePlan) -> None:
    """Purge what was planned, then what came meanwhile. Raises Conflict (the breaker), Unavailable."""
    planned = _purge_data(run, job, datasets, planned)
    if planned.summaries:
        purge_summaries(run, datasets, planned)


def _purge_data(run: PurgeRun, job: TaskSettings, datasets: Sequence[Dataset], planned: PurgePlan) -> PurgePlan:
    """Purge all objects but summary files; return the latest plan."""
    for attempt in range(1, ATTEMPTS + 1):
        units = run.select_partitions(planned.partitions)
        row_search.match_partitions(run, units)
        of_rows = [unit for unit in units if unit.dataset.mode != ERASE]
        of_objects = [unit for unit in units if unit.dataset.mode == ERASE]
        matched = row_search.find_matching_objects(run, job, of_rows, attempt)
        erased = row_search.find_erasable(run, of_objects, attempt)
        with run.steps.step("looking for copies"):
            wanted = _exclude_copies(run, datasets, units, matched | erased) - run.state.failures.keys()
        row_search.check_breaker(run, of_rows)
        row_search.check_breaker(run, of_objects, what="objects")
        gone = [
            (unit, piece)
            for unit in of_rows
            for piece in unit.objects.values()
            if run.state.results[piece.content_address].is_gone and not _never_landed(run, piece)
        ]
        if run.options.dry_run or not (wanted or gone):
            return planned
        run.repo.context.locations.announce()
        todo = [(unit, piece) for unit in units for piece in unit.objects.values() if piece.address in wanted]
        unsettled = gone
        with run.steps.step("rewriting"):
            for some in run.batch_objects(
                [item for item in todo if item[1].address not in erased], REWRITES_PER_CORE, PART_BYTES
            ):
                unsettled += _replace(run, some, partial(_rewrite_items, run, job), has_index=True)
        with run.steps.step("erasing"):
            for some in split_batches([item for item in todo if item[1].address in erased], ERASE_BATCH):
                unsettled += _replace(run, some, _erase_items)
        if attempt == ATTEMPTS:
            for unit, piece in unsettled:
                run.report_failure(unit, piece, BUSY)
            break
        with run.steps.step("listing every version"):
            planned = plan_versions(run.repo, datasets, run.ids.planned_sets)
        run.state.note_plan(planned)
        run.save()
    return planned


def _never_landed(run: PurgeRun, piece: PurgeObject) -> bool:
    """Return whether only a commit that has not landed names the object: nobody can read it, and it keeps nothing."""
    ctx, ref = run.repo.context, piece.names[0].branch
    is_commit = ctx.kv.get(keys.commit(ctx.repo, CommitId(ref))) is not ABSENT
    return is_commit and not ctx.markers.has_landed(CommitId(ref))


def purge_summaries(run: PurgeRun, datasets: Sequence[Dataset], planned: PurgePlan) -> None:
    """Write the summary files again that have an id, or describe files that were replaced."""
    originals = {address for unit in planned.partitions for address in unit.objects}

    def is_replaced(address: str) -> bool:
        return address not in originals

    with run.steps.step("looking at summary files"):
        stale = summary_files.find_stale_summaries(run, planned.summaries, is_replaced)
        wanted = _exclude_copies(run, datasets, planned.summaries, stale) - run.state.failures.keys()
    items = [(unit, piece) for unit in planned.summaries for piece in unit.objects.values() if piece.address in wanted]
    if run.options.dry_run:
        for unit, _ in items:
            run.report_row(unit).rewritten_summaries += 1
        return
    with run.steps.step("writing summary files"):
        for some in split_batches(items, REWRITES_PER_CORE):
            run.repo.context.locations.announce()
            for unit, piece in _replace(run, some, partial(_rewrite_summaries, run, is_replaced)):
                run.report_failure(unit, piece, BUSY)


def _exclude_copies(
    run: PurgeRun, datasets: Sequence[Dataset], units: Sequence[Partition], matched: set[str]
) -> set[str]:
    """Return which objects are to be replaced: those with a name outside the data sets only if the run includes copies,
    and never those with a name that a legal hold covers.
    """
    if not matched:
        return set()
    pieces = {piece.address: (unit, piece) for unit in units for piece in unit.objects.values()}
    prefixes = tuple(dataset.prefix for dataset in datasets)
    held = legal_hold_prefixes(run.repo)
    left: set[str] = set()
    for address, names in find_outside_names(run.repo.context, prefixes, dict.fromkeys(matched)).items():
        covered = [name for name in names if name.path.startswith(held)]
        if covered:
            run.report_failure(*pieces[address], f"a legal hold covers it as {describe_names(covered)}")
        elif run.options.includes_copies:
            continue
        else:
            run.report_copy(*pieces[address], names)
        left.add(address)
    return matched - left


def _replace(
    run: PurgeRun, items: Sequence[PartitionObject], write_items: WriteItems, *, has_index: bool = False
) -> list[PartitionObject]:
    """Replace the contents of some objects; return those that others changed or deleted meanwhile: neither replaced,
    nor reported as failed.
    """
    results: dict[int, ObjectResult] = {}

    def write(attempts: Sequence[ReplacementAttempt]) -> list[Content | None]:
        found = write_items(items, attempts)
        results.update({attempt.number: done for attempt, done in zip(attempts, found, strict=True)})
        contents = [_written_content(run, *items[attempt.number], results[attempt.number]) for attempt in attempts]
        written = [attempt for attempt, content in zip(attempts, contents, strict=True) if content is not None]
        run.announce_replacements(
            [(items[each.number][0], _object_at_attempt(items, each), results[each.number]) for each in written],
        )
        return contents

    published: dict[int, ReplacementAttempt] = {}

    def note(attempt: ReplacementAttempt) -> None:
        published[attempt.number] = attempt
        done = results[attempt.number]
        run.count_replaced(items[attempt.number][0], _object_at_attempt(items, attempt), done)
        if done.target_address and done.decided_by != SUMMARY:
            # it need not be looked at again
            run.state.results[done.target_address] = ObjectResult(
                address=done.target_address, rows=done.rows, decided_by="column"
            )
        if done.decided_by != SUMMARY:  # in which `unplanned_contents.py` looks for ids
            run.note_remaining(items[attempt.number][0], _object_at_attempt(items, attempt), to=done.target_address)

    originals = [_original_of(piece) for _, piece in items]
    busy: list[int] = []
    try:
        busy = replace_contents(run.repo.context, run.state.report.run, originals, write, note)
    except DeadlineExceeded as error:
        for number, (unit, piece) in enumerate(items):
            if number not in published:
                run.report_failure(unit, piece, str(error))
    run.end_publishing()
    if has_index:
        run.delete_indexes(
            [(items[number][0], _object_at_attempt(items, attempt)) for number, attempt in published.items()]
        )
    return [items[number] for number in (*busy, *(number for number, done in results.items() if done.is_gone))]


def _original_of(piece: PurgeObject) -> tuple[Address, Content]:
    assert piece.original_content is not None  # noqa: S101  # `plan_versions` has set it
    return Address(piece.address), piece.original_content


def _rewrite_items(
    run: PurgeRun, job: TaskSettings, items: Sequence[PartitionObject], attempts: Sequence[ReplacementAttempt]
) -> list[ObjectResult]:
    works = [
        run.make_task(items[attempt.number][0], _object_at_attempt(items, attempt), to=attempt.target_address)
        for attempt in attempts
    ]
    done = purge_tasks.run_tasks(run.engine, job, works)
    for attempt, each in zip(attempts, done, strict=True):
        run.report_row(items[attempt.number][0]).read_bytes += each.read_bytes
    return done


def _erase_items(_: Sequence[PartitionObject], attempts: Sequence[ReplacementAttempt]) -> list[ObjectResult]:
    return [ObjectResult(address=attempt.current.address, matched_rows=1) for attempt in attempts]


def _rewrite_summaries(
    run: PurgeRun,
    is_replaced: summary_files.IsReplaced,
    items: Sequence[PartitionObject],
    attempts: Sequence[ReplacementAttempt],
) -> list[ObjectResult]:
    return [
        _rewrite_summary(
            run, is_replaced, items[attempt.number][0], _object_at_attempt(items, attempt), attempt.target_address
        )
        for attempt in attempts
    ]


def _rewrite_summary(
    run: PurgeRun, is_replaced: summary_files.IsReplaced, unit: Partition, piece: PurgeObject, to: str
) -> ObjectResult:
    """Write a summary file again, here in the driver."""
    with tempfile.TemporaryFile(prefix="refstore-purge-") as target:
        try:
            summary_files.rewrite_summary(run, unit, piece, piece.names, is_replaced, cast(BinaryIO, target))
            stored = purge_tasks.put_result(run.repo.context.objects, to, target)
        except PurgeError as error:
            return ObjectResult(address=piece.content_address, failure=str(error))
        except ObjectNotFound:
            return ObjectResult(address=piece.content_address, is_gone=True)
    return ObjectResult(
        address=piece.content_address,
        matched_entries=1,
        decided_by=SUMMARY,
        target_address=to,
        size_bytes=stored.size_bytes,
        checksum=stored.checksum,
        md5=stored.md5,
    )


def _written_content(run: PurgeRun, unit: Partition, piece: PurgeObject, done: ObjectResult) -> Content | None:
    """Return the content that a task has written; None if the object stays as it is."""
    if done.failure:
        run.report_failure(unit, piece, done.failure)
    if done.failure or done.is_gone:
        return None
    if not done.has_ids:
        searched = run.state.results.get(piece.content_address)
        if searched is not None and searched.has_ids:
            run.report_failure(unit, piece, DISAGREED)
        return None
    return Content(
        Address(done.target_address),
        done.size_bytes,
        done.checksum,
        done.md5,
        run=run.state.report.run,
        written_ms=run.repo.context.clock.now_ms(),
    )


def _object_at_attempt(items: Sequence[PartitionObject], attempt: ReplacementAttempt) -> PurgeObject:
    """Return the object with the content that the intent was written for: another run may have replaced what the plan
    saw.
    """
    piece = items[attempt.number][1]
    return msgspec.structs.replace(
        piece, size_bytes=attempt.current.size_bytes, content_address=attempt.current.address
    )
