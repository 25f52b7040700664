"""Purge the heads of the branches, by one commit for each (mode `keep-history`).

plan      which objects the heads have in onboarded data sets, by partition
find      look for the ids in each distinct object (`finding.py`)
copies    refuse objects that have a name outside the data sets
breaker   stop where more rows would go than anybody expects
rewrite   write the objects that have some again; tasks do
summaries write the summary files of Parquet that describe them again (`summaries.py`)
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
from refstore.purging.document import Dataset
from refstore.repository import Repository
from refstore_gc.purge_cleaning import delete_abandoned
from refstore_purge import finding, tasks
from refstore_purge.formats.base import PurgeError
from refstore_purge.plan import Name, NotPurged, Piece, Plan, Unit, plan_heads
from refstore_purge.publish import Publication, Rewritten, WrittenSummary
from refstore_purge.report import Published
from refstore_purge.run_state import ATTEMPTS, SUMMARY, PurgeRun
from refstore_purge.summaries import find_affected, write_again
from refstore_purge.tasks import Done, Job

Written = tuple[Unit, Piece, Done]
"""An object, and what was written for it."""
REWRITTEN_PER_PART: Final = 32
"""How many objects each core writes in one call of the engine: their addresses are issued before, and expire."""


def purge_heads(run: PurgeRun, job: Job, datasets: Sequence[Dataset], planned: Plan) -> None:
    """Purge what was planned, then what came to the heads meanwhile. Raises Conflict (the breaker), Unavailable."""
    repo, state = run.repo, run.state
    if not run.options.dry_run:
        delete_abandoned(repo.context)
    for attempt in range(1, ATTEMPTS + 1):
        units = run.chosen(planned.units)
        finding.ask_partitions(run, units)
        matched = finding.find(run, job, units, attempt)
        with run.steps.step("looking for copies"):
            left = _with_copies(run, datasets, planned, units, matched)
        finding.ask_breaker(run, units)
        summaries = _affected_summaries(run, datasets, planned, units, left)
        if run.options.dry_run or not (left or summaries):
            return
        publication = Publication(repo, state.report.run, attempt, planned.heads)
        try:
            with run.steps.step("rewriting"):
                rewritten = _rewrite(run, job, units, left, publication)
            for unit, piece in summaries:
                publication.add_summary(WrittenSummary(piece, partial(_write_summary, run, unit, piece, rewritten)))
            run.announce(rewritten)
            with run.steps.step("publishing"):
                published, refused = publication.publish(
                    f"Purge {state.report.ids} ids (run {state.report.run})", partial(_note, run, rewritten)
                )
            run.end_publishing()
            run.delete_indexes(
                [(unit, piece) for unit in units for piece in unit.pieces.values() if piece.address in left]
            )
        finally:
            publication.close()
        wanted = {*refused, *_moved(repo, planned.heads, published)}
        if attempt == ATTEMPTS:
            for branch, reason in refused.items():
                state.failures[f"branch {branch}"] = NotPurged(branch, "", f"not published: {reason}")
            for unit in units:
                for address in left.intersection(unit.pieces):
                    if not refused.keys().isdisjoint(name.branch for name in unit.pieces[address].names):
                        state.unpublished.add(address)
            return
        with run.steps.step("listing the heads"):
            planned = plan_heads(repo, datasets, run.ids.planned_sets, branches=wanted)
        state.note_plan(planned, wanted)
        run.save()


def _moved(repo: Repository, heads: dict[str, str], published: Sequence[Published]) -> set[str]:
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


def _with_copies(
    run: PurgeRun, datasets: Sequence[Dataset], planned: Plan, units: Sequence[Unit], matched: set[str]
) -> set[str]:
    """Return which of the matched objects are to be rewritten: not those with a name outside the data sets, unless the
    run includes copies; then those names are added.
    """
    if not matched:
        return set()
    repo = run.repo
    pieces = {piece.address: (unit, piece) for unit in units for piece in unit.pieces.values()}
    outside: dict[str, list[Name]] = {}
    inside = {(name, address) for address in matched for name in pieces[address][1].names}
    heads = {branch: record.head for branch, record in repo.branches() if not record.hidden} | planned.heads
    for branch, head in heads.items():
        for path, entry in repo.list(head):
            if entry is not None and entry.address in matched and (Name(branch, path), entry.address) not in inside:
                dataset = next((each for each in datasets if path.startswith(each.prefix)), None)
                if dataset is None:
                    outside.setdefault(entry.address, []).append(Name(branch, path))
    for address, names in outside.items():
        unit, piece = pieces[address]
        if run.options.including_copies:
            for name in names:
                planned.heads.setdefault(name.branch, heads[name.branch])
            piece.names = sorted([*piece.names, *names])
        else:
            where = ", ".join(f"{name.path!r} on {name.branch!r}" for name in names[:3])
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            run.fail(
                unit,
                piece,
                f"it is also named outside the data sets of this run ({where}{more}); run again with "
                "--including-copies",
            )
    return matched if run.options.including_copies else matched - set(outside)


def _affected_summaries(
    run: PurgeRun, datasets: Sequence[Dataset], planned: Plan, units: Sequence[Unit], wanted: set[str]
) -> list[tuple[Unit, Piece]]:
    """Return the summary files that have an id, or describe what is rewritten."""
    if not planned.summaries:
        return []
    with run.steps.step("looking at summary files"):
        pieces = [piece for unit in units for piece in unit.pieces.values() if piece.address in wanted]
        affected = find_affected(run, planned.summaries, {name for piece in pieces for name in piece.names})
        left = _with_copies(run, datasets, planned, planned.summaries, affected) - run.state.failures.keys()
    found = [(unit, piece) for unit in planned.summaries for piece in unit.pieces.values() if piece.address in left]
    if run.options.dry_run:
        for unit, _ in found:
            run.row(unit).summaries += 1
    return found


def _write_summary(
    run: PurgeRun, unit: Unit, piece: Piece, rewritten: list[Written], branch: str, hidden: Name, target: BinaryIO
) -> bool:
    """Write a summary file again as it shall be on a branch, and announce it; report it if that fails. `hidden`: its
    name on the hidden branch, which has the files that it describes.
    """
    addresses = {done.to for _, _, done in rewritten if done.by != SUMMARY}
    try:
        write_again(run, unit, piece, [hidden], addresses.__contains__, target)
    except PurgeError as error:
        run.fail(unit, piece, str(error))
        return False
    on_branch = msgspec.structs.replace(piece, names=[Name(branch, hidden.path)])
    rewritten.append((unit, on_branch, Done(address=piece.content, to=hidden.path, by=SUMMARY)))
    run.announce(rewritten)
    return True


def _note(run: PurgeRun, rewritten: Sequence[Written], published: Published) -> None:
    """Count what a commit has brought to a branch; what another branch got before is counted already."""
    run.state.report.published.append(published)
    for unit, piece, done in rewritten:
        if any(name.branch == published.branch for name in piece.names):
            run.count(unit, piece, done)
    run.announce(rewritten)


def _rewrite(
    run: PurgeRun, job: Job, units: Sequence[Unit], wanted: set[str], publication: Publication
) -> list[Written]:
    """Write the objects again, and stage them on hidden branches; return what was written."""
    written: list[Written] = []
    todo = [(unit, piece) for unit in units for piece in unit.pieces.values() if piece.address in wanted]
    for some in run.jobs(todo, REWRITTEN_PER_PART):
        issued = publication.issue([piece for _, piece in some])
        works = [run.work(unit, piece, to=issued[piece.address][0]) for unit, piece in some]
        rewritten: list[Written] = []
        for (unit, piece), done in zip(some, tasks.run(run.engine, job, works), strict=True):
            run.row(unit).read_bytes += done.read_bytes
            if done.failure:
                run.fail(unit, piece, done.failure)
                continue
            rewritten.append((unit, piece, done))
        addresses = publication.stage(
            Rewritten(piece, issued[piece.address][1], done.size_bytes, done.checksum, done.md5)
            for _, piece, done in rewritten
        )
        for (unit, piece, done), address in zip(rewritten, addresses, strict=True):
            run.note(unit, piece, to=address)
            written.append((unit, piece, msgspec.structs.replace(done, to=address)))
            run.state.found[address] = Done(address=address, rows=done.rows, by="column")  # need not be looked at
    return written
