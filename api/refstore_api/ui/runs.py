"""The pages of the runs of the offline job and of purges: how far they are, what they did, and the button to stop."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter
from starlette.responses import Response

from refstore.core.units import format_age
from refstore.errors import NotFound
from refstore.gc_marks import Marks, RunState
from refstore.monitoring import run_control
from refstore.monitoring.run_control import ActiveRun
from refstore.repository import Repository
from refstore_api.encoded_slashes import EncodedNameRoute
from refstore_api.ui.forms import Confirmation, read_answer, show_result
from refstore_api.ui.marks import read_mark_summary
from refstore_api.ui.page_urls import PATH
from refstore_api.ui.sessions import OperatorSession, ReaderSession

router = APIRouter(prefix=f"{PATH}/repositories/{{repository}}/runs", route_class=EncodedNameRoute)

RUNS: Final = 50
REFRESH_SECONDS: Final = 3
_STOPPED: Final = {
    "mark": "Nothing is marked. The next run marks anew.",
    "sweep": "What was deleted stays deleted. The next run goes on with the rest; a sweep cannot be taken back.",
    "purge": "What is published stays purged. Run the purge again for the rest.",
}


@router.get("")
async def list_runs(session: ReaderSession) -> Response:
    def work(repo: Repository) -> Response:
        marks = Marks(repo.context)
        under_way = list(run_control.active_runs(repo.context))
        runs = sorted(marks.runs.scan(), key=lambda run: run.record.began_ms, reverse=True)
        return session.render(
            "runs.html",
            under_way=under_way,
            runs=runs[:RUNS],
            more=len(runs) > RUNS,
            flag=marks.runs.read_flag(),
            may_stop=session.has_role("operator", repo.name),
            refresh_seconds=REFRESH_SECONDS if any(each.is_alive for each in under_way) else 0,
        )

    return await session.read(work)


@router.get("/{run}")
async def show(session: ReaderSession, run: str) -> Response:
    """Show the report of a run of the offline job."""

    def work(repo: Repository) -> Response:
        under_way = _find_active_run(repo, run)
        return session.render(
            "run.html",
            run=Marks(repo.context).runs.get(run),
            states=RunState,
            under_way=under_way,
            summary=read_mark_summary(repo, run),
            refresh_seconds=REFRESH_SECONDS if under_way is not None and under_way.is_alive else 0,
        )

    return await session.read(work)


@router.get("/{run}/stop")
async def ask_stop(session: OperatorSession, run: str) -> Response:
    def work(repo: Repository) -> Response:
        found = _find_active_run(repo, run)
        if found is None:
            raise NotFound(f"no run {run[:80]!r} is under way; look at the list of runs for how it ended")
        progress = found.progress
        now_ms = repo.context.clock.now_ms()
        done = (
            f"{progress.done_items:,} of {progress.total_items:,}"
            if progress.total_items
            else f"{progress.done_items:,}"
        )
        return Confirmation(
            title="Stop a run",
            lead=f"The run ends within seconds. {_STOPPED.get(progress.kind, '')}",
            button="Stop the run",
            facts=[
                ("Run", f"{progress.kind} {found.run_id}"),
                ("Process", progress.owner),
                ("Runs for", format_age(now_ms - progress.began_ms)),
                ("Step", progress.step),
                ("Done in this step", done),
            ],
            warnings=[]
            if found.is_alive
            else ["It has given no sign of life for a minute; its process may be dead, and nothing will answer."],
            cancel=f"{session.home}/runs",
        ).ask(session)

    return await session.read(work)


@router.post("/{run}/stop")
async def stop(session: OperatorSession, run: str) -> Response:
    await read_answer(session)
    by = session.principal.key_id
    await session.run(lambda repo: run_control.request_stop(repo.context, run, by))
    facts = [("Run", run), ("Asked to stop by", by)]
    return show_result(session, "The run was asked to stop", facts, back=f"{session.home}/runs")


def _find_active_run(repo: Repository, run: str) -> ActiveRun | None:
    return next((each for each in run_control.active_runs(repo.context) if each.run_id == run), None)
