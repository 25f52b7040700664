"""The pages of the runs of `refstore prune`, in the stores that `refstore serve --prune-state` names, for operators of
the whole lake: these stores are none of its repositories, so no other key has a right to see what they hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fastapi import APIRouter
from starlette.responses import Response

import refstore_prune
from refstore.core import deadline
from refstore.errors import NotFound, RefstoreError
from refstore.lake import Lake
from refstore_api.ui.page_urls import PATH
from refstore_api.ui.sessions import OperatorSession
from refstore_http.http_errors import log_fault, message_of

if TYPE_CHECKING:
    from refstore_prune import PruneReport

router = APIRouter(prefix=f"{PATH}/prunes")


class StateRuns(NamedTuple):
    """The runs of a state, the last one first."""

    url: str
    runs: list[PruneReport]
    error: str = ""
    """Why they cannot be read."""


@router.get("")
async def list_runs(session: OperatorSession) -> Response:
    def work(_lake: Lake) -> Response:
        return session.render("prunes.html", states=[_try_state(url) for url in _states_of(session)])

    return await session.read_lake(work)


@router.get("/{state}/{run}")
async def show(session: OperatorSession, state: int, run: str) -> Response:
    """Show the report of a run. `state`: which of the named ones has it, counted from 1."""

    def work(_lake: Lake) -> Response:
        from refstore_prune.prune_report import VERDICT_WORDS

        urls = _states_of(session)
        runs = refstore_prune.status(urls[state - 1]) if 0 < state <= len(urls) else []
        report = next((each for each in runs if each.run_id == run), None)
        if report is None:
            raise NotFound(f"no run {run[:80]!r} is kept there; look at the list of prune runs")
        verdicts = {words: report.verdicts[name] for name, words in VERDICT_WORDS.items() if name in report.verdicts}
        return session.render("prune.html", report=report, state_url=urls[state - 1], verdicts=verdicts)

    return await session.read_lake(work)


def _states_of(session: OperatorSession) -> tuple[str, ...]:
    """Raises NotFound: the service was told of none."""
    if not session.service.settings.prune_states:
        raise NotFound("this service knows of no prune runs; start it with `refstore serve --prune-state URL`")
    return session.service.settings.prune_states


def _try_state(url: str) -> StateRuns:
    """Read a state, so that one that does not answer hides no other."""
    try:
        deadline.check()
        return StateRuns(url, refstore_prune.status(url)[::-1])
    except RefstoreError as error:
        log_fault(error)
        return StateRuns(url, [], message_of(error))
