"""The pages to sign in with an access key, and to sign out."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from refstore.core.signing_keys import SigningKey
from refstore.service import access_keys
from refstore_api.auth import authenticator_of
from refstore_api.json_bodies import OPEN_BYTES_MAX
from refstore_api.shared_parameters import ServiceOf
from refstore_api.ui import sessions
from refstore_api.ui.forms import PROOF, read_fields, read_form
from refstore_api.ui.page_urls import PATH, base_path_of
from refstore_api.ui.pages import render
from refstore_api.ui.sessions import ReaderSession
from refstore_http.http_errors import Forbidden, TooManyWrongSecrets, Unauthenticated, hide_faults
from refstore_http.request_origin import check_own_page
from refstore_http.request_pipeline import address_of
from refstore_http.service import Service

router = APIRouter(prefix=PATH)


@router.get("/sign-in")
# the parameter's usual name
async def show(request: Request, service: ServiceOf, next: str = "") -> Response:  # noqa: A002  # the parameter's word
    return await _form(request, service, next, "")


@router.post("/sign-in")
async def sign_in(request: Request, service: ServiceOf) -> Response:
    check_own_page(request.scope, service.settings.public_url)
    form = await read_fields(request, OPEN_BYTES_MAX)
    keys, now_seconds = await _signing_keys(service), service.lake.clock.now_ms() // 1000
    secret = sessions.sign_in_secret(request)
    if not sessions.is_sign_in_token(keys, request, secret, form.raw(PROOF), now_seconds):
        raise Forbidden("this form is of another browser, or too old; load the page again, and send its own form")
    key_id = form.text("access_key_id")
    request.state.claimed_key = key_id if access_keys.is_id(key_id) else ""
    address = address_of(request.scope)
    try:
        token, expires = await authenticator_of(request).login(key_id, form.text("secret_access_key"), address)
    except (Unauthenticated, TooManyWrongSecrets) as error:
        return await _form(
            request, service, form.raw("next"), str(error), 429 if isinstance(error, TooManyWrongSecrets) else 401
        )
    response = RedirectResponse(sessions.safe_next(request, form.raw("next")), 303)
    sessions.begin_session(request, response, token, max(0, expires - service.lake.clock.now_ms() // 1000))
    return response


@router.post("/sign-out")
async def sign_out(request: Request, session: ReaderSession) -> Response:
    await read_form(session)
    response = RedirectResponse(f"{base_path_of(request)}/sign-in", 303)
    await sessions.end_session(request, response)
    return response


async def _signing_keys(service: Service) -> Sequence[SigningKey]:
    with hide_faults():
        return await service.run(service.lake.current_signing_keys)


async def _form(request: Request, service: Service, wanted: str, error: str, status: int = 200) -> Response:
    secret = sessions.sign_in_secret(request) or secrets.token_urlsafe(24)
    keys, now_seconds = await _signing_keys(service), service.lake.clock.now_ms() // 1000
    token = sessions.sign_in_token(keys, request, secret, now_seconds)
    response = render(request, "sign_in.html", status=status, next=wanted[:2000], error=error, form_token=token)
    sessions.remember_form(request, response, secret)
    return response
