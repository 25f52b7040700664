"""Purge the heads of the branches, by one commit for each (mode `keep-history`).

plan      which objects the heads have in onboarded data sets, by partition
find      look for the ids in each distinct object (`row_search.py`)
copies    refuse objects that have a name outside the data sets
breaker   stop where more rows would go than anybody expects
rewrite   write the objects that have some again; tasks do
summaries write the summary files of Parquet that describe them again (`summary_files.py`)
publish   one commit for each branch
again     look at the heads that have moved meanwhile, or whose publication was refused: up to three attempts
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import BinaryIO, Final

import msgspec

from refstore.errors import BranchNotFound
from refstore.purge_document.document import Dataset
from refstore.repository import Repository
from refstore_gc.purge_cleanup import delete_abandoned_branches
from refstore_purge import purge_tasks, row_search
from refstore_purge.formats.base import PurgeError
from refstore_purge.publish import BranchPublication
from refstore_purge.purge_plan import BranchPath, Partition, PurgeObject, PurgePlan, SkippedObject, plan_heads
from refstore_purge.purge_report import PublishedCommit
from refstore_purge.purge_run_state import ATTEMPTS, SUMMARY, PurgeRun
from refstore_purge.purge_tasks import ObjectResult, TaskSettings
from refstore_purge.summary_files import find_affected_summaries, rewrite_summary

WrittenObject = tuple[Partition, PurgeObject, ObjectResult]
"""An object, and what was written for it."""
REWRITES_PER_CORE: Final = 32
"""How many objects each core writes in one call of the engine: their addresses are issued before, and expire."""


def purge_heads(run: PurgeRun, job: TaskSettings, datasets: Sequence[Dataset], planned: PurgePlan) -> None:
    """Purge what was planned, then what came to the heads meanwhile. Raises Conflict (the breaker), Unavailable."""
    repo, state = run.repo, run.state
    if not run.options.dry_run:
        delete_abandoned_branches(repo.context)
    for attempt in range(1, ATTEMPTS + 1):
        units = run.select_partitions(planned.partitions)
        row_search.match_partitions(run, units)
        matched = row_search.find_matching_objects(run, job, units, attempt)
        with run.steps.step("looking for copies"):
            left = select_rewritable(run, datasets, planned, units, matched)
        row_search.check_breaker(run, units)
        summaries = _find_affected_summaries(run, datasets, planned, units, left)
        if run.options.dry_run or not (left or summaries):
            return
        publication = BranchPublication(repo, state.report.run, attempt, planned.heads)
        try:
            with run.steps.step("rewriting"):
                rewritten = _rewrite_objects(run, job, units, left, publication)
            for unit, piece in summaries:
                publication.add_summary(piece, partial(_write_summary, run, unit, piece, rewritten))
            state.report.heads = planned.heads
            run.announce_replacements(rewritten)
            with run.steps.step("publishing"):
                published, refused = publication.publish(
                    f"Purge {state.report.ids} ids (run {state.report.run})", partial(count_published, run, rewritten)
                )
            run.end_publishing()
            run.delete_indexes(
                [(unit, piece) for unit in units for piece in unit.objects.values() if piece.address in left]
            )
        finally:
            publication.close()
        wanted = {*refused, *_find_moved(repo, planned.heads, published)}
        if attempt == ATTEMPTS:
            for branch, reason in refused.items():
                state.failures[f"branch {branch}"] = SkippedObject(branch, "", f"not published: {reason}")
            for unit in units:
                for address in left.intersection(unit.objects):
                    if not refused.keys().isdisjoint(name.branch for name in unit.objects[address].names):
                        state.unpublished_objects.add(address)
            return
        with run.steps.step("listing the heads"):
            planned = plan_heads(repo, datasets, run.ids.planned_sets, branches=wanted)
        state.note_plan(planned, wanted)
        run.save()


def _find_moved(repo: Repository, heads: dict[str, str], published: Sequence[PublishedCommit]) -> set[str]:
    """Return the branches that others have moved since they were looked at. One that is gone has not moved."""
    landed = {each.branch: each.commit for each in published}
    moved: set[str] = set()
    for name, head in heads.items():
        commit = landed.get(name)
        # what landed is one commit upon the branch as it was then
        before = head if commit is None else repo.get_commit(commit).record.parents[0]
        with suppress(BranchNotFound):
            if before != head or repo.get_branch(name).head != (commit or head):
                moved.add(name)
    return moved


def select_rewritable(
    run: PurgeRun, datasets: Sequence[Dataset], planned: PurgePlan, units: Sequence[Partition], matched: set[str]
) -> set[str]:
    """Return which of the matched objects are to be rewritten: not those with a name outside the data sets, unless the
    run includes copies; then those names are added.
    """
    if not matched:
        return set()
    repo = run.repo
    pieces = {piece.address: (unit, piece) for unit in units for piece in unit.objects.values()}
    outside: dict[str, list[BranchPath]] = {}
    inside = {(name, address) for address in matched for name in pieces[address][1].names}
    heads = {branch: record.head for branch, record in repo.branches() if not record.is_hidden} | planned.heads
    for branch, head in heads.items():
        for path, entry in repo.list(head):
            if (
                entry is not None
                and entry.address in matched
                and (BranchPath(branch, path), entry.address) not in inside
            ):
                dataset = next((each for each in datasets if path.startswith(each.prefix)), None)
                if dataset is None:
                    outside.setdefault(entry.address, []).append(BranchPath(branch, path))
    for address, names in outside.items():
        unit, piece = pieces[address]
        if run.options.includes_copies:
            for name in names:
                planned.heads.setdefault(name.branch, heads[name.branch])
            piece.names = sorted([*piece.names, *names])
        else:
            run.report_copy(unit, piece, names)
    return matched if run.options.includes_copies else matched - set(outside)


def _find_affected_summaries(
    run: PurgeRun, datasets: Sequence[Dataset], planned: PurgePlan, units: Sequence[Partition], wanted: set[str]
) -> list[tuple[Partition, PurgeObject]]:
    """Return the summary files that have an id, or describe what is rewritten."""
    if not planned.summaries:
        return []
    with run.steps.step("looking at summary files"):
        pieces = [piece for unit in units for piece in unit.objects.values() if piece.address in wanted]
        affected = find_affected_summaries(run, planned.summaries, {name for piece in pieces for name in piece.names})
        left = select_rewritable(run, datasets, planned, planned.summaries, affected) - run.state.failures.keys()
    found = [(unit, piece) for unit in planned.summaries for piece in unit.objects.values() if piece.address in left]
    if run.options.dry_run:
        for unit, _ in found:
            run.report_row(unit).rewritten_summaries += 1
    return found


def _write_summary(
    run: PurgeRun,
    unit: Partition,
    piece: PurgeObject,
    rewritten: list[WrittenObject],
    branch: str,
    hidden: BranchPath,
    target: BinaryIO,
) -> bool:
    """Write a summary file again as it shall be on a branch, and announce it; report it if that fails. `hidden`: its
    name on the hidden branch, which has the files that it describes.
    """
    addresses = {done.target_address for _, _, done in rewritten if done.decided_by != SUMMARY}
    try:
        rewrite_summary(run, unit, piece, [hidden], addresses.__contains__, target)
    except PurgeError as error:
        run.report_failure(unit, piece, str(error))
        return False
    on_branch = msgspec.structs.replace(piece, names=[BranchPath(branch, hidden.path)])
    rewritten.append(
        (unit, on_branch, ObjectResult(address=piece.content_address, target_address=hidden.path, decided_by=SUMMARY))
    )
    run.announce_replacements(rewritten)
    return True


def count_published(run: PurgeRun, rewritten: Sequence[WrittenObject], published: PublishedCommit) -> None:
    """Count what a commit has brought to a branch; what another branch got before is counted already."""
    run.state.report.published_commits.append(published)
    for unit, piece, done in rewritten:
        if any(name.branch == published.branch for name in piece.names):
            run.count_replaced(unit, piece, done)
    run.announce_replacements(rewritten)


def _rewrite_objects(
    run: PurgeRun, job: TaskSettings, units: Sequence[Partition], wanted: set[str], publication: BranchPublication
) -> list[WrittenObject]:
    """Write the objects again, and stage them on hidden branches; return what was written."""
    written: list[WrittenObject] = []
    todo = [(unit, piece) for unit in units for piece in unit.objects.values() if piece.address in wanted]
    for some in run.batch_objects(todo, REWRITES_PER_CORE):
        issued = publication.issue([piece for _, piece in some])
        works = [run.make_task(unit, piece, to=issued[piece.address][0]) for unit, piece in some]
        rewritten: list[WrittenObject] = []
        for (unit, piece), done in zip(some, purge_tasks.run_tasks(run.engine, job, works), strict=True):
            run.report_row(unit).read_bytes += done.read_bytes
            if done.failure:
                run.report_failure(unit, piece, done.failure)
                continue
            rewritten.append((unit, piece, done))
        addresses = publication.stage((piece, issued[piece.address][1], done) for _, piece, done in rewritten)
        for (unit, piece, done), address in zip(rewritten, addresses, strict=True):
            run.note_remaining(unit, piece, to=address)
            written.append((unit, piece, msgspec.structs.replace(done, target_address=address)))
            # it need not be looked at again
            run.state.results[address] = ObjectResult(address=address, rows=done.rows, decided_by="column")
    return written
