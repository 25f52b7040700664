"""The pages of the access keys, for operators: list, create, revoke."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter
from starlette.responses import Response

from refstore.core.units import DAY_MS
from refstore.errors import Invalid, NotFound
from refstore.lake import Lake
from refstore.service import access_keys
from refstore.service.access_keys import AccessKey, Role
from refstore_api.ui.forms import Confirmation, FormFields, read_answer, read_form, show_result
from refstore_api.ui.page_urls import PATH
from refstore_api.ui.pages import format_time
from refstore_api.ui.sessions import OperatorSession

router = APIRouter(prefix=f"{PATH}/keys")

KEYS: Final = 500
DAYS_MAX: Final = 3660


@router.get("")
async def list_keys(session: OperatorSession) -> Response:
    def work() -> Response:
        found = sorted(access_keys.scan_keys(session.service.lake.kv), key=lambda key: -key.created_ms)
        own = session.principal.key_id
        return session.render("keys.html", keys=found[:KEYS], count=len(found), own=own, roles=list(Role))

    return await session.service.run(work)


@router.post("/create")
async def create(session: OperatorSession) -> Response:
    form = await read_form(session)
    made = await session.service.run(lambda: _create_key(session.service.lake, form))
    facts = [("Role", made.key.role.name.lower()), ("Repositories", ", ".join(made.key.repositories) or "all")]
    return show_result(session, "Access key created", facts, back="/keys", secret=(made.key.id, made.secret))


@router.get("/{key}/revoke")
async def ask_revoke(session: OperatorSession, key: str) -> Response:
    found = await session.service.run(lambda: _find_key(session.service.lake, key))
    return Confirmation(
        title="Revoke an access key",
        lead="Its secrets and its tokens stop working within seconds, for ever.",
        button="Revoke the key",
        facts=[
            ("Access key", found.id),
            ("Role", found.role.name.lower()),
            ("Description", found.description or "none"),
            ("Last used", format_time(found.last_used_ms) if found.last_used_ms else "never"),
        ],
        warnings=["You are signed in with this key."] if found.id == session.principal.key_id else [],
        cancel="/keys",
    ).ask(session)


@router.post("/{key}/revoke")
async def revoke(session: OperatorSession, key: str) -> Response:
    await read_answer(session)
    done = await session.service.run(lambda: access_keys.revoke_key(session.service.lake, key))
    return show_result(session, "Access key revoked", [("Access key", done.id)], back="/keys")


def _create_key(lake: Lake, form: FormFields) -> access_keys.NewKey:
    try:
        role = Role[form.text("role").upper()]
    except KeyError:
        raise Invalid("choose a role: reader, writer or operator") from None
    days = form.number("days") if form.text("days") else 0
    if not 0 <= days <= DAYS_MAX:
        raise Invalid(f"a key may last 1 to {DAYS_MAX} days; leave the field empty for a key that does not expire")
    return access_keys.create_key(
        lake,
        role,
        repositories=form.text("repositories").replace(",", " ").split(),
        description=form.text("description")[:200],
        expires_ms=lake.clock.now_ms() + days * DAY_MS if days else 0,
    )


def _find_key(lake: Lake, id_: str) -> AccessKey:
    found = next((key for key in access_keys.scan_keys(lake.kv) if key.id == id_), None)
    if found is None:
        raise NotFound(f"access key {id_[:80]!r} does not exist; it may have been revoked")
    return found
