"""The page of the audit log, for operators: who changed what, when, from where."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import Response

from refstore.audit.audit_reader import NumberedAuditEntry, entries_newest_first
from refstore.lake import Lake
from refstore_api.ui.page_urls import PATH
from refstore_api.ui.sessions import OperatorSession

router = APIRouter(prefix=f"{PATH}/audit")

PAGE: Final = 100
READ_MAX: Final = 20_000
"""How many entries are read for one page."""
Filter = Annotated[str, Query(max_length=200)]


@router.get("")
async def show(
    session: OperatorSession,
    action: Filter = "",
    repository: Filter = "",
    actor: Filter = "",
    skip: Annotated[int, Query(ge=0, le=READ_MAX)] = 0,
) -> Response:
    def matches(read: NumberedAuditEntry) -> bool:
        if read.entry is None:
            return not (action or repository or actor)
        act = read.entry.act
        return (
            act.action.startswith(action)
            and (not repository or act.repository == repository)
            and (not actor or act.actor.id == actor)
        )

    def work(lake: Lake) -> Response:
        reads = islice(entries_newest_first(lake.kv, lake.own_store), READ_MAX)
        found = list(islice(filter(matches, reads), skip, skip + PAGE + 1))
        return session.render(
            "audit.html",
            entries=[(read, _show_values(read)) for read in found[:PAGE]],
            action=action,
            wanted_repository=repository,
            actor=actor,
            skip=skip,
            next_skip=skip + PAGE if len(found) > PAGE else 0,
            read_max=READ_MAX,
        )

    return await session.read_lake(work)


def _show_values(read: NumberedAuditEntry) -> str:
    """Return what was before and after, as JSON."""
    if read.entry is None:
        return ""
    values = {name: value for name in ("before", "after") if (value := getattr(read.entry.act, name)) is not None}
    return msgspec.json.format(msgspec.json.encode(values, enc_hook=str), indent=2).decode() if values else ""
