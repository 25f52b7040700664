"""The pages to sign in with an access key, and to sign out."""

from __future__ import annotations

import secrets

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from refstore import access_keys
from refstore_api.auth import authenticator_of
from refstore_api.error_responses import TooManyGuesses, Unauthenticated
from refstore_api.json_bodies import OPEN_BYTES_MAX
from refstore_api.request_middleware import address_of
from refstore_api.service import ServiceOf
from refstore_api.ui import PATH, sessions
from refstore_api.ui.forms import check_token, read_fields, read_form
from refstore_api.ui.rendering import base_of, render
from refstore_api.ui.sessions import ReaderSession

router = APIRouter(prefix=PATH)


@router.get("/sign-in")
async def show(request: Request, next: str = "") -> Response:  # noqa: A002  # the parameter's usual name
    return _form(request, next, "")


@router.post("/sign-in")
async def sign_in(request: Request, service: ServiceOf) -> Response:
    form = await read_fields(request, OPEN_BYTES_MAX)
    check_token(form, sessions.form_token(request.cookies.get(sessions.SIGN_IN_COOKIE, secrets.token_hex(16))))
    key_id = form.text("access_key_id")
    request.state.claimed_key = key_id if access_keys.is_id(key_id) else ""
    address = address_of(request.scope)
    try:
        token, expires = await authenticator_of(request).login(key_id, form.text("secret_access_key"), address)
    except (Unauthenticated, TooManyGuesses) as error:
        return _form(request, form.raw("next"), str(error), 429 if isinstance(error, TooManyGuesses) else 401)
    response = RedirectResponse(sessions.safe_next(request, form.raw("next")), 303)
    sessions.begin(request, response, token, max(0, expires - service.lake.clock.now_ms() // 1000))
    return response


@router.post("/sign-out")
async def sign_out(request: Request, session: ReaderSession) -> Response:
    await read_form(request, session)
    response = RedirectResponse(f"{base_of(request)}/sign-in", 303)
    sessions.end(request, response)
    return response


def _form(request: Request, wanted: str, error: str, status: int = 200) -> Response:
    secret = request.cookies.get(sessions.SIGN_IN_COOKIE) or secrets.token_urlsafe(24)
    response = render(
        request, "sign_in.html", status=status, next=wanted[:2000], error=error, form_token=sessions.form_token(secret)
    )
    sessions.remember_form(request, response, secret)
    return response
