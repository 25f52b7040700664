"""Purge every version of objects, while commits and their ids stay (modes `rewrite` and `erase`, rule 22).

plan      which objects the data sets have in any commit, tag, branch or staging area (`version_plan.py`)
find      look for the ids in each distinct content (`finding.py`); of `erase`, in its names (`erasing.py`)
copies    refuse objects that have a name outside the data sets in any version
breaker   stop where more rows would go than anybody expects
replace   intend, write the contents again in tasks, and publish (`replacing.py`)
again     look at what came meanwhile, and at what others replaced: up to three attempts
summaries write the summary files of Parquet again (`summaries.py`)
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from typing import BinaryIO, Final, cast

import msgspec

from refstore.core.batches import batched
from refstore.core.ids import Address
from refstore.core.records import Content
from refstore.errors import DeadlineExceeded, ObjectNotFound
from refstore.purging.document import ERASE, Dataset
from refstore_purge import erasing, finding, summaries, tasks
from refstore_purge.formats.base import PurgeError
from refstore_purge.plan import Name, Piece, Plan, Unit, held_prefixes
from refstore_purge.replacing import Attempt, Original, replace
from refstore_purge.run_state import ATTEMPTS, SUMMARY, PurgeRun
from refstore_purge.tasks import Done, Job
from refstore_purge.version_plan import names_outside, plan_versions

REWRITTEN_PER_PART: Final = 32
"""How many objects each core writes in one call of the engine."""
PART_BYTES: Final = 4 << 30
"""How many bytes, so that a job ends well within the deadline of an operation."""
ERASED_AT_ONCE: Final = 1000
BUSY: Final = "others kept changing it, or are deleting it; run the purge again"

Item = tuple[Unit, Piece]
WriteItems = Callable[[Sequence[Item], Sequence[Attempt]], list[Done]]
"""Writes the new contents of the items that have an attempt."""


def purge_versions(run: PurgeRun, job: Job, datasets: Sequence[Dataset], planned: Plan) -> None:
    """Purge what was planned, then what came meanwhile. Raises Conflict (the breaker), Unavailable."""
    planned = _purge_data(run, job, datasets, planned)
    if planned.summaries:
        _purge_summaries(run, datasets, planned)


def _purge_data(run: PurgeRun, job: Job, datasets: Sequence[Dataset], planned: Plan) -> Plan:
    """Purge all objects but summary files; return the latest plan."""
    for attempt in range(1, ATTEMPTS + 1):
        units = run.chosen(planned.units)
        finding.ask_partitions(run, units)
        of_rows = [unit for unit in units if unit.dataset.mode != ERASE]
        of_objects = [unit for unit in units if unit.dataset.mode == ERASE]
        matched = finding.find(run, job, of_rows, attempt)
        erased = erasing.find(run, of_objects, attempt)
        with run.steps.step("looking for copies"):
            wanted = _without_copies(run, datasets, units, matched | erased) - run.state.failures.keys()
        finding.ask_breaker(run, of_rows)
        finding.ask_breaker(run, of_objects, what="objects")
        if run.options.dry_run or not wanted:
            return planned
        run.repo.context.locations.announce()
        todo = [(unit, piece) for unit in units for piece in unit.pieces.values() if piece.address in wanted]
        busy: list[Item] = []
        with run.steps.step("rewriting"):
            for some in run.jobs(
                [item for item in todo if item[1].address not in erased], REWRITTEN_PER_PART, PART_BYTES
            ):
                busy += _replace(run, some, partial(_rewritten, run, job), has_index=True)
        with run.steps.step("erasing"):
            for some in batched([item for item in todo if item[1].address in erased], ERASED_AT_ONCE):
                busy += _replace(run, some, _erased)
        if attempt == ATTEMPTS:
            for unit, piece in busy:
                run.fail(unit, piece, BUSY)
            break
        with run.steps.step("listing every version"):
            planned = plan_versions(run.repo, datasets, run.ids.planned_sets)
        run.state.note_plan(planned)
        run.save()
    return planned


def _purge_summaries(run: PurgeRun, datasets: Sequence[Dataset], planned: Plan) -> None:
    """Write the summary files again that have an id, or describe files that were replaced."""
    originals = {address for unit in planned.units for address in unit.pieces}

    def is_replaced(address: str) -> bool:
        return address not in originals

    with run.steps.step("looking at summary files"):
        stale = summaries.find_stale(run, planned.summaries, is_replaced)
        wanted = _without_copies(run, datasets, planned.summaries, stale) - run.state.failures.keys()
    items = [(unit, piece) for unit in planned.summaries for piece in unit.pieces.values() if piece.address in wanted]
    if run.options.dry_run:
        for unit, _ in items:
            run.row(unit).summaries += 1
        return
    with run.steps.step("writing summary files"):
        for some in batched(items, REWRITTEN_PER_PART):
            run.repo.context.locations.announce()
            for unit, piece in _replace(run, some, partial(_summarized, run, is_replaced)):
                run.fail(unit, piece, BUSY)


def _without_copies(run: PurgeRun, datasets: Sequence[Dataset], units: Sequence[Unit], matched: set[str]) -> set[str]:
    """Return which objects are to be replaced: those with a name outside the data sets only if the run includes copies,
    and never those with a name that a legal hold covers.
    """
    if not matched:
        return set()
    pieces = {piece.address: (unit, piece) for unit in units for piece in unit.pieces.values()}
    prefixes = tuple(dataset.prefix for dataset in datasets)
    held = held_prefixes(run.repo)
    left: set[str] = set()
    for address, names in names_outside(run.repo.context, prefixes, dict.fromkeys(matched)).items():
        covered = [name for name in names if name.path.startswith(held)]
        if covered:
            run.fail(*pieces[address], f"a legal hold covers it as {_named(covered)}")
        elif run.options.including_copies:
            continue
        else:
            run.fail(
                *pieces[address],
                f"it is also named outside the data sets of this run ({_named(names)}); run again with "
                "--including-copies",
            )
        left.add(address)
    return matched - left


def _named(names: Sequence[Name]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"{name.path!r} in {name.branch!r}" for name in names[:3]) + more


def _replace(run: PurgeRun, items: Sequence[Item], write_items: WriteItems, *, has_index: bool = False) -> list[Item]:
    """Replace the contents of some objects; return those that others changed meanwhile."""
    results: dict[int, Done] = {}

    def write(attempts: Sequence[Attempt]) -> list[Content | None]:
        found = write_items(items, attempts)
        results.update({attempt.number: done for attempt, done in zip(attempts, found, strict=True)})
        contents = [_content_of(run, *items[attempt.number], results[attempt.number]) for attempt in attempts]
        written = [attempt for attempt, content in zip(attempts, contents, strict=True) if content is not None]
        run.announce(
            [(items[each.number][0], _at(items, each), results[each.number]) for each in written],
        )
        return contents

    published: dict[int, Attempt] = {}

    def note(attempt: Attempt) -> None:
        published[attempt.number] = attempt
        done = results[attempt.number]
        run.count(items[attempt.number][0], _at(items, attempt), done)
        if done.to and done.by != SUMMARY:
            run.state.found[done.to] = Done(address=done.to, rows=done.rows, by="column")  # need not be looked at
        if done.by != SUMMARY:  # in which `unplanned_contents.py` looks for ids
            run.note(items[attempt.number][0], _at(items, attempt), to=done.to)

    originals = [_original(piece) for _, piece in items]
    busy: list[int] = []
    try:
        busy = replace(run.repo.context, run.state.report.run, originals, write, note)
    except DeadlineExceeded as error:
        for number, (unit, piece) in enumerate(items):
            if number not in published:
                run.fail(unit, piece, str(error))
    run.end_publishing()
    if has_index:
        run.delete_indexes([(items[number][0], _at(items, attempt)) for number, attempt in published.items()])
    return [items[number] for number in busy]


def _original(piece: Piece) -> Original:
    assert piece.original is not None  # noqa: S101  # `plan_versions` has set it
    return Original(Address(piece.address), piece.original)


def _rewritten(run: PurgeRun, job: Job, items: Sequence[Item], attempts: Sequence[Attempt]) -> list[Done]:
    works = [run.work(items[attempt.number][0], _at(items, attempt), to=attempt.to) for attempt in attempts]
    done = tasks.run(run.engine, job, works)
    for attempt, each in zip(attempts, done, strict=True):
        run.row(items[attempt.number][0]).read_bytes += each.read_bytes
    return done


def _erased(_: Sequence[Item], attempts: Sequence[Attempt]) -> list[Done]:
    return [Done(address=attempt.current.address, matched=1) for attempt in attempts]


def _summarized(
    run: PurgeRun, is_replaced: summaries.IsReplaced, items: Sequence[Item], attempts: Sequence[Attempt]
) -> list[Done]:
    return [
        _summary_of(run, is_replaced, items[attempt.number][0], _at(items, attempt), attempt.to) for attempt in attempts
    ]


def _summary_of(run: PurgeRun, is_replaced: summaries.IsReplaced, unit: Unit, piece: Piece, to: str) -> Done:
    """Write a summary file again, here in the driver."""
    with tempfile.TemporaryFile(prefix="refstore-purge-") as target:
        try:
            summaries.write_again(run, unit, piece, piece.names, is_replaced, cast(BinaryIO, target))
            stored = tasks.put(run.repo.context.objects, to, target)
        except PurgeError as error:
            return Done(address=piece.content, failure=str(error))
        except ObjectNotFound:
            return Done(address=piece.content, is_gone=True)
    return Done(
        address=piece.content,
        entries=1,
        by=SUMMARY,
        to=to,
        size_bytes=stored.size_bytes,
        checksum=stored.checksum,
        md5=stored.md5,
    )


def _content_of(run: PurgeRun, unit: Unit, piece: Piece, done: Done) -> Content | None:
    """Return the content that a task has written; None if the object stays as it is."""
    if done.failure:
        run.fail(unit, piece, done.failure)
    if done.failure or done.is_gone or not done.has_ids:
        return None
    return Content(
        Address(done.to),
        done.size_bytes,
        done.checksum,
        done.md5,
        run=run.state.report.run,
        written_ms=run.repo.context.clock.now_ms(),
    )


def _at(items: Sequence[Item], attempt: Attempt) -> Piece:
    """Return the object with the content that the intent was written for: another run may have replaced what the plan
    saw.
    """
    piece = items[attempt.number][1]
    return msgspec.structs.replace(piece, size_bytes=attempt.current.size_bytes, content=attempt.current.address)
