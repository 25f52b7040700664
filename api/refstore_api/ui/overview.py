"""The overview: every repository in one table, what needs attention first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

from fastapi import APIRouter, Query
from starlette.responses import Response

from refstore.core.ids import RepositoryName
from refstore.core.units import DAY_MS
from refstore.lake import Lake
from refstore.monitoring import figures
from refstore.monitoring.figures import Concern, Figures, OperatorWarning
from refstore.records.figure_records import Amount
from refstore.records.repository_records import RepositoryRecord
from refstore_api.ui.page_urls import PATH
from refstore_api.ui.pages import durations_text, settlement_text
from refstore_api.ui.sessions import ReaderSession, UserSession
from refstore_reaper.status import read_status

router = APIRouter(prefix=PATH)

PAGE: Final = 30
"""Rows on one page, so that it stays small."""
WEEK: Final = 7
_URGENCY: Final = {concern: number for number, concern in enumerate(Concern)}


class RepositoryRow(NamedTuple):
    name: RepositoryName
    record: RepositoryRecord
    figures: Figures
    warnings: Sequence[OperatorWarning]
    reclaimed: Amount
    """Of the last seven days."""


@router.get("")
@router.get("/")
async def show(
    session: ReaderSession,
    q: Annotated[str, Query(max_length=63)] = "",
    warned: bool = False,
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
) -> Response:
    def work(lake: Lake) -> Response:
        rows = _repository_rows(lake, session)
        chosen = [row for row in rows if q.lower() in row.name and (row.warnings or not warned)]
        first = (page - 1) * PAGE
        return session.render(
            "overview.html",
            settling=settlement_text(lake),
            trying=durations_text(lake),
            is_any_reaper_alive=any(each.is_alive for each in read_status(lake, repository="").reapers),
            rows=chosen[first : first + PAGE],
            count=len(chosen),
            repositories=len(rows),
            warned_count=sum(bool(row.warnings) for row in rows),
            unmeasured_count=sum(not row.figures.reaper.measured_ms for row in rows),
            totals=_totals(rows),
            days=figures.add_days((), [day for row in rows for day in row.figures.reclaimed_days]),
            q=q,
            warned=warned,
            page=page,
            pages=max(1, -(-len(chosen) // PAGE)),
        )

    return await session.read_lake(work)


def _repository_rows(lake: Lake, session: UserSession) -> list[RepositoryRow]:
    """Return the repositories that the caller may see, what needs attention first."""
    own = session.principal.repositories
    now_ms = lake.clock.now_ms()
    week_ago = figures.day_of(now_ms - (WEEK - 1) * DAY_MS)
    repositories = [(name, record) for name, record in lake.repository_records() if not own or name in own]
    all_figures = figures.read_all_figures(lake.kv, [record.id for _, record in repositories])
    rows: list[RepositoryRow] = []
    for name, record in repositories:
        known = all_figures[record.id]
        days = [day for day in known.reclaimed_days if day.day >= week_ago]
        reclaimed = Amount(sum(day.objects for day in days), sum(day.bytes for day in days))
        rows.append(
            RepositoryRow(name, record, known, figures.find_warnings(known, record.created_ms, now_ms), reclaimed)
        )
    return sorted(rows, key=lambda row: (_URGENCY[row.warnings[0].concern] if row.warnings else 99, row.name))


def _totals(rows: Sequence[RepositoryRow]) -> dict[str, Amount]:
    found: dict[str, Amount] = {}
    for row in rows:
        reaper = row.figures.reaper
        amounts = {"live": reaper.live, "staged": reaper.staged, "in_grace": reaper.in_grace, "due": reaper.due}
        for name, amount in {**amounts, "marked": row.figures.gc.marked, "reclaimed": row.reclaimed}.items():
            before = found.get(name, Amount())
            found[name] = Amount(before.objects + amount.objects, before.bytes + amount.bytes)
    return found or dict.fromkeys(("live", "staged", "in_grace", "due", "marked", "reclaimed"), Amount())
