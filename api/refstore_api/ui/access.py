"""The pages of the access keys, for operators: list, create, revoke."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from refstore import access_keys
from refstore.access_keys import AccessKey, Role
from refstore.errors import Invalid, NotFound
from refstore.figures import DAY_MS
from refstore.lake import Lake
from refstore_api.service import ServiceOf
from refstore_api.ui.acts import Question, ask, read_answer, say
from refstore_api.ui.forms import Form, read_form
from refstore_api.ui.page_urls import PATH
from refstore_api.ui.rendering import render, time_shown
from refstore_api.ui.sessions import OperatorSession

router = APIRouter(prefix=f"{PATH}/keys")

KEYS: Final = 500
DAYS_MAX: Final = 3660


@router.get("")
async def listing(request: Request, service: ServiceOf, session: OperatorSession) -> Response:
    def work() -> Response:
        found = sorted(access_keys.scan(service.lake.kv), key=lambda key: -key.created_ms)
        return render(
            request, "keys.html", keys=found[:KEYS], count=len(found), own=session.principal.key_id, roles=list(Role)
        )

    return await service.run(work)


@router.post("/create")
async def create(request: Request, service: ServiceOf, session: OperatorSession) -> Response:
    form = await read_form(request, session)
    made = await service.run(lambda: _create(service.lake, form))
    facts = [("Role", made.key.role.name.lower()), ("Repositories", ", ".join(made.key.repositories) or "all")]
    return say(request, "Access key created", facts, back="/keys", secret=(made.key.id, made.secret))


@router.get("/{key}/revoke")
async def ask_revoke(request: Request, service: ServiceOf, session: OperatorSession, key: str) -> Response:
    def work() -> Response:
        found = _find(service.lake, key)
        return ask(
            request,
            Question(
                title="Revoke an access key",
                lead="Its secrets and its tokens stop working within seconds, for ever.",
                button="Revoke the key",
                facts=[
                    ("Access key", found.id),
                    ("Role", found.role.name.lower()),
                    ("Description", found.description or "none"),
                    ("Last used", time_shown(found.last_used_ms) if found.last_used_ms else "never"),
                ],
                warnings=["You are signed in with this key."] if found.id == session.principal.key_id else [],
                cancel="/keys",
            ),
        )

    return await service.run(work)


@router.post("/{key}/revoke")
async def revoke(request: Request, service: ServiceOf, session: OperatorSession, key: str) -> Response:
    await read_answer(request, session)
    done = await service.run(lambda: access_keys.revoke(service.lake, key))
    return say(request, "Access key revoked", [("Access key", done.id)], back="/keys")


def _create(lake: Lake, form: Form) -> access_keys.NewKey:
    try:
        role = Role[form.text("role").upper()]
    except KeyError:
        raise Invalid("choose a role: reader, writer or operator") from None
    days = form.number("days") if form.text("days") else 0
    if not 0 <= days <= DAYS_MAX:
        raise Invalid(f"a key may last 1 to {DAYS_MAX} days; leave the field empty for a key that does not expire")
    return access_keys.create(
        lake,
        role,
        repositories=form.text("repositories").replace(",", " ").split(),
        description=form.text("description")[:200],
        expires_ms=lake.clock.now_ms() + days * DAY_MS if days else 0,
    )


def _find(lake: Lake, id_: str) -> AccessKey:
    found = next((key for key in access_keys.scan(lake.kv) if key.id == id_), None)
    if found is None:
        raise NotFound(f"access key {id_[:80]!r} does not exist; it may have been revoked")
    return found
