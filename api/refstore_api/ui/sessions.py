"""Sessions of the pages: a cookie with the token that a login gave, and a token in each form.

The cookie is HttpOnly, SameSite=Strict, and Secure where the browser came over TLS. A form's token is derived from the
session, so that another site's page cannot know it, and no state is kept. The service also refuses requests that
another site's page made a browser send (`cross_site.py`).
"""

from __future__ import annotations

import hmac
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

from fastapi import Depends, Request
from starlette.responses import Response

from refstore.access_keys import Role
from refstore_api.auth import Principal, admit, authenticator_of
from refstore_api.error_responses import Forbidden, Unauthenticated
from refstore_api.request_middleware import address_of
from refstore_api.ui.rendering import base_of, public_url_of

COOKIE: Final = "refstore_session"
SIGN_IN_COOKIE: Final = "refstore_sign_in"
"""Ties the sign-in form to the browser that fetched it, before there is a session."""
_FORM: Final = b"refstore: a form of this session"


class SignInNeeded(Unauthenticated):
    """The request has no session, or one that has ended."""


class Session(NamedTuple):
    principal: Principal
    form_token: str

    def may(self, role: str, repository: str | None = None) -> bool:
        """Return whether the caller has the role, so that a page shows what it may do."""
        try:
            self.principal.check(Role[role.upper()], repository)
        except Forbidden:
            return False
        return True


def needs(role: Role) -> Any:
    """Make the dependency of a page that needs the role in its path's repository."""

    async def check(request: Request) -> Session:
        session = await _session(request)
        request.state.session = session
        admit(request, session.principal, role)
        return session

    return Depends(check)


ReaderSession = Annotated[Session, needs(Role.READER)]
WriterSession = Annotated[Session, needs(Role.WRITER)]
OperatorSession = Annotated[Session, needs(Role.OPERATOR)]


def form_token(secret: str) -> str:
    """Return the token that the forms of a session have."""
    return hmac.digest(secret.encode(), _FORM, "sha256").hex()


def begin(request: Request, response: Response, token: str, seconds: int) -> None:
    """Set the cookie of a session."""
    response.set_cookie(COOKIE, token, max_age=seconds, **_attributes(request))
    response.delete_cookie(SIGN_IN_COOKIE, **_attributes(request))


def end(request: Request, response: Response) -> None:
    """Remove the cookie of the session."""
    response.delete_cookie(COOKIE, **_attributes(request))


def remember_form(request: Request, response: Response, secret: str) -> None:
    """Set the cookie that the sign-in form belongs to."""
    response.set_cookie(SIGN_IN_COOKIE, secret, max_age=3600, **_attributes(request))


def sign_in_url(request: Request) -> str:
    """Return the address of the sign-in page, which leads back to the page that was asked for."""
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    going_back = request.method == "GET" and request.url.path != base_of(request)
    return f"{base_of(request)}/sign-in" + (f"?{urlencode({'next': wanted})}" if going_back else "")


def safe_next(request: Request, wanted: str) -> str:
    """Return the page to go to after a sign-in: the one that was asked for, if it is one of these pages."""
    base = base_of(request)
    parts = urlsplit(wanted)
    is_own = not parts.scheme and not parts.netloc and (parts.path == base or parts.path.startswith(f"{base}/"))
    return wanted if is_own and "\\" not in wanted and wanted.isprintable() else base


async def _session(request: Request) -> Session:
    token = request.cookies.get(COOKIE, "")
    if not token:
        raise SignInNeeded("sign in first")
    try:
        principal = await authenticator_of(request).principal(f"Bearer {token}", address_of(request.scope))
    except Unauthenticated as error:
        raise SignInNeeded(str(error)) from error
    return Session(principal, form_token(token))


def _attributes(request: Request) -> dict[str, Any]:
    secure = request.url.scheme == "https" or public_url_of(request).startswith("https://")
    return {"path": base_of(request), "secure": secure, "httponly": True, "samesite": "strict"}
