"""The pages of the reapers: heartbeats, leases, rates and errors; and the form that lets stopped deletion go on."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter
from starlette.responses import Response

from refstore.core.units import format_size
from refstore.errors import CorruptRecord, Invalid
from refstore.lake import Lake
from refstore.monitoring import figures
from refstore.records import keys
from refstore.records.encoding import decode
from refstore.records.reaper_records import Lease
from refstore_api.models import RESUME_SECONDS_MAX
from refstore_api.ui.forms import Confirmation, ConfirmationField, read_answer, show_result
from refstore_api.ui.page_urls import PATH
from refstore_api.ui.pages import settlement_text
from refstore_api.ui.sessions import OperatorSession, ReaderSession
from refstore_reaper import breaker
from refstore_reaper.status import read_status

router = APIRouter(prefix=PATH)

REPOSITORIES: Final = 200
"""Repositories whose leases and errors are shown: those with errors and stopped ones first."""
LEASES_MAX: Final = 10_000
REFRESH_SECONDS: Final = 10
OBJECTS_MAX: Final = 1_000_000_000
"""How many objects deletion may go on for."""
_HOUR: Final = 3600


@router.get("/reapers")
async def show(session: ReaderSession) -> Response:
    def work(lake: Lake) -> Response:
        leases = _leases(lake)
        own = session.principal.repositories
        repositories = [(name, record) for name, record in lake.repository_records() if not own or name in own]
        all_figures = figures.read_all_figures(lake.kv, [record.id for _, record in repositories])
        rows = [
            (name, known, leases.get(record.id, 0))
            for name, record in repositories
            for known in [all_figures[record.id]]
            if known.reaper.stop_reason or known.reaper.error or known.reaper.refused_objects or record.id in leases
        ]
        rows.sort(key=lambda row: (not row[1].reaper.stop_reason, not row[1].reaper.error, row[0]))
        return session.render(
            "reapers.html",
            settling=settlement_text(lake),
            reapers=read_status(lake, repository="").reapers if not own else (),
            restricted=bool(own),
            rows=rows[:REPOSITORIES],
            count=len(rows),
            may_resume=session.has_role("operator"),
            may_see_host=session.has_role("operator"),
            refresh_seconds=REFRESH_SECONDS,
        )

    return await session.read_lake(work)


@router.get("/repositories/{repository}/resume")
async def ask_resume(session: OperatorSession) -> Response:
    lake, repository = session.service.lake, session.repository

    def work() -> Response:
        found = next(iter(read_status(lake, repository=repository).repositories), None)
        known = figures.read_figures(lake.kv, lake.undrained_context(repository).repo).reaper
        reason = found.stopped if found else ""
        bounds = (("hours", "hours"), ("objects", "objects"))
        return Confirmation(
            title="Let hard deletion go on",
            lead="The reaper deletes for ever what is due. Restore what should stay before that: see the trash.",
            button="Let it delete",
            facts=[
                ("Stopped because", reason or "it is not stopped"),
                ("Due now", f"{found.due if found else 0:,} objects"),
                ("Due when last measured", f"{known.due.objects:,} objects, {format_size(known.due.bytes)}"),
                ("In grace", f"{found.in_grace if found else 0:,} objects"),
            ],
            fields=[
                ConfirmationField("select", "bound", "For how long", options=bounds),
                ConfirmationField("number", "amount", "How many hours, or objects", value="1"),
            ],
            warnings=["The KV went back. Settle that with `refstore kv reconcile` first."]
            if known.kv_went_back
            else [],
            cancel="/reapers",
            is_allowed=bool(reason),
        ).ask(session)

    return await session.service.run(work)


@router.post("/repositories/{repository}/resume")
async def resume(session: OperatorSession) -> Response:
    form = await read_answer(session)
    amount = form.number("amount")
    by_time = form.text("bound") != "objects"
    most = RESUME_SECONDS_MAX // _HOUR if by_time else OBJECTS_MAX
    if not 0 < amount <= most:
        raise Invalid(f"give 1 to {most:,} {'hours' if by_time else 'objects'}; go back, and correct it")

    def work() -> str:
        ctx = session.service.lake.undrained_context(session.repository)
        seconds, objects = (amount * _HOUR, None) if by_time else (None, amount)
        return breaker.resume_stopped(ctx, seconds=seconds, objects=objects)

    message = await session.service.run(work)
    return show_result(session, "Hard deletion goes on", [("Result", message)], back="/reapers")


def _leases(lake: Lake) -> dict[str, int]:
    """Return how many leases are held in each repository."""
    now_ms = lake.clock.now_ms()
    held: dict[str, int] = {}
    for number, (name, raw) in enumerate(lake.kv.scan_all(keys.LEASES)):
        if number == LEASES_MAX:
            break
        try:
            lease = decode(raw, Lease)
        except CorruptRecord:
            continue
        if lease.expires_ms > now_ms:
            repo = name.partition("/")[0]
            held[repo] = held.get(repo, 0) + 1
    return held
