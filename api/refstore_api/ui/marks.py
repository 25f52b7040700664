"""The pages of the marks: what goes when and why; take a mark or a commit back; confirm what the breaker holds."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Final

from fastapi import APIRouter, Query
from starlette.responses import Response

from refstore.core.ids import CommitId
from refstore.core.units import format_size
from refstore.errors import Corrupt, NotFound
from refstore.gc_marks import OPEN_STATES, Marks, OfflineRun, RunState
from refstore.monitoring import figures
from refstore.operations import unmark as unmark_operation
from refstore.operations.unmark import UnmarkResult
from refstore.records.commit_records import StoredCommit
from refstore.records.mark_records import StoredMark
from refstore.repository import Repository
from refstore_api.encoded_slashes import EncodedNameRoute
from refstore_api.ui.forms import Confirmation, ConfirmationField, read_answer, show_result
from refstore_api.ui.page_urls import PATH
from refstore_api.ui.pages import format_time
from refstore_api.ui.sessions import OperatorSession, ReaderSession
from refstore_gc.run_summary import GcSummary, ObjectCount, read_summary

router = APIRouter(prefix=f"{PATH}/repositories/{{repository}}/marks", route_class=EncodedNameRoute)

COMMITS: Final = 100


@router.get("")
async def list_marks(session: ReaderSession) -> Response:
    def work(repo: Repository) -> Response:
        marks = Marks(repo.context)
        runs = [run for run in marks.runs.scan() if run.state in OPEN_STATES]
        runs.sort(key=lambda run: run.record.deletes_at_ms)
        return session.render(
            "marks.html",
            runs=[(run, marks.statuses.read_counts(run)) for run in runs],
            states=RunState,
            may_act=session.has_role("operator", repo.name),
        )

    return await session.read(work)


@router.get("/{mark}")
async def show(session: ReaderSession, mark: str, after: Annotated[str, Query(max_length=64)] = "") -> Response:
    def work(repo: Repository) -> Response:
        marks = Marks(repo.context)
        run = marks.runs.get(mark)
        commits = _commits(marks, mark, after)
        return session.render(
            "mark.html",
            run=run,
            states=RunState,
            counts=marks.statuses.read_counts(run),
            summary=read_mark_summary(repo, mark),
            commits=commits[:COMMITS],
            next_after=commits[COMMITS - 1][0] if len(commits) > COMMITS else "",
            may_act=session.has_role("operator", repo.name) and run.state in OPEN_STATES,
        )

    return await session.read(work)


@router.get("/{mark}/unmark")
async def ask_unmark(session: OperatorSession, mark: str) -> Response:
    """Ask before a commit, or all commits of a mark, become active again."""

    def work(repo: Repository) -> Response:
        Marks(repo.context).decisions.check_unmark(mark)
        would = unmark_operation.preview_unmark(repo.context, mark)
        again = len(would.expired_commits)
        pin = ConfirmationField("checkbox", "pin", "Pin these commits in the rules, so that no run marks them again")
        return Confirmation(
            title="Unmark",
            lead="These commits become active again, and the sweep leaves what they name.",
            button="Unmark",
            facts=[
                ("Commits that become active again", f"{len(would.commits):,}"),
                ("Of these, expired by the rules, so that the next run marks them again", f"{again:,}"),
            ],
            warnings=["Change the rules first, or pin the commits, if they are to stay."] if again else [],
            fields=[pin],
            is_danger=False,
            cancel=f"{session.home}/marks",
        ).ask(session)

    return await session.read(work)


@router.post("/{mark}/unmark")
async def unmark(session: OperatorSession, mark: str) -> Response:
    form = await read_answer(session)
    pin, by = form.is_checked("pin"), session.principal.key_id

    def work(repo: Repository) -> UnmarkResult:
        result = unmark_operation.unmark(repo.context, mark, pin=pin, by=by)
        figures.write_marks(repo.context)
        return result

    done = await session.run(work)
    facts = [
        ("Commits that are active again", f"{done.unmarked_commits:,}"),
        ("Pinned in the rules", f"{len(done.commits) if pin else 0:,}"),
        ("Expired by the rules: the next run marks them again", f"{len(done.expired_commits):,}"),
    ]
    return show_result(session, "Unmarked", facts, back=f"{session.home}/marks")


@router.get("/{mark}/confirm")
async def ask_confirm(session: OperatorSession, mark: str) -> Response:
    """Ask before the sweep of a mark is confirmed that the breaker holds back."""

    def work(repo: Repository) -> Response:
        marks = Marks(repo.context)
        run = marks.runs.get(mark)
        return Confirmation(
            title="Confirm a mark",
            lead=f"After {format_time(run.record.deletes_at_ms)} the next run deletes these objects for ever.",
            button="Confirm the deletion",
            facts=_count_rows(marks.statuses.read_counts(run), read_mark_summary(repo, mark)),
            warnings=[run.record.question] if run.record.question else ["This mark waits for nobody."],
            cancel=f"{session.home}/marks/{mark}",
            is_allowed=run.state is RunState.NEEDS_CONFIRMATION,
        ).ask(session)

    return await session.read(work)


@router.post("/{mark}/confirm")
async def confirm(session: OperatorSession, mark: str) -> Response:
    await read_answer(session)
    by = session.principal.key_id

    def work(repo: Repository) -> OfflineRun:
        confirmed = Marks(repo.context).decisions.confirm(mark, by)
        figures.write_marks(repo.context)
        return confirmed

    run = await session.run(work)
    facts = [("Mark", run.mark_id), ("Deletes after", format_time(run.record.deletes_at_ms))]
    return show_result(session, "Confirmed", facts, back=f"{session.home}/marks/{mark}")


def read_mark_summary(repo: Repository, mark: str) -> GcSummary | None:
    """Return what a run wrote about a mark; None: it has not, or its files were removed."""
    try:
        return read_summary(repo.context.objects, mark)
    except (NotFound, Corrupt):
        return None


def _commits(marks: Marks, mark: str, after: str) -> list[tuple[CommitId, StoredMark, StoredCommit | None]]:
    found = list(islice((each for each in marks.commits.scan_marked(mark) if each > after), COMMITS + 1))
    records: Mapping[CommitId, StoredCommit] = dict(marks.commits.read_commits(found)) if found else {}
    return [
        (commit, own, records.get(commit))
        for commit, own in zip(found, marks.commits.read_marks(found), strict=True)
        if own is not None and own.mark_id == mark
    ]


def _count_rows(counts: Mapping[str, int], summary: GcSummary | None) -> list[tuple[str, str]]:
    unmarked = counts.get("commits_unmarked", 0)
    facts = [("Commits unmarked since; what they name stays", f"{unmarked:,}")] if unmarked else []
    facts += [
        ("Objects", f"{counts.get('objects', 0):,}"),
        ("Bytes", format_size(counts.get("bytes", 0))),
        ("Commits", f"{counts.get('commits_marked', 0):,}"),
    ]
    by_reason: Mapping[str, ObjectCount] = summary.by_reason if summary is not None else {}
    by_prefix: Mapping[str, ObjectCount] = summary.by_prefix if summary is not None else {}
    facts += [(f"Because: {name}", _count(count)) for name, count in by_reason.items()]
    return facts + [(f"In {name}", _count(count)) for name, count in by_prefix.items()]


def _count(count: ObjectCount) -> str:
    return f"{count.objects:,} objects, {format_size(count.bytes)}"
