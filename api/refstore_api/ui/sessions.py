"""Sessions of the pages: a cookie with the token that a login gave, and a token in each form.

The cookie is HttpOnly, SameSite=Strict, and Secure where the browser came over TLS; there its name begins so that a
browser takes it from nobody but this host over TLS (RFC 6265bis, 4.1.3). A form's token is derived from the session, so
that another site's page cannot know it, and no state is kept. The service also refuses requests that another site's
page made a browser send (`request_origin.py`).

Before the sign-in there is no session, and another port of this host can set its cookies. So the token of that form is
made with a key of the service, for the client's address and an hour, and a page of the service must have sent the form.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final
from urllib.parse import urlencode, urlsplit

from fastapi import Depends, Request
from starlette.responses import Response

from refstore.core.signing_keys import SigningKey
from refstore.service.access_keys import Role
from refstore_api.api_calls import ApiCall
from refstore_api.auth import admit, authenticator_of
from refstore_api.ui import pages
from refstore_api.ui.page_urls import PATH, base_path_of, public_url_of
from refstore_http.http_errors import Forbidden, Unauthenticated
from refstore_http.request_pipeline import address_of

COOKIE: Final = "refstore_session"
SIGN_IN_COOKIE: Final = "refstore_sign_in"
"""Ties the sign-in form to the browser that fetched it, before there is a session."""
SIGN_IN_SECONDS: Final = 3600
"""How long a sign-in form may be filled in."""
_FORM: Final = b"refstore: a form of this session"
_SIGN_IN_FORM: Final = "refstore: the sign-in form"
_TIME_DIGITS: Final = 12


class SignInRequired(Unauthenticated):
    """The request has no session, or one that has ended."""


@dataclass(frozen=True, slots=True)
class UserSession(ApiCall):
    """A request of a browser whose session holds."""

    form_token: str

    @property
    def home(self) -> str:
        """The address of the path's repository, below `/ui`."""
        return f"/repositories/{self.repository}"

    def render(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """Return a page, of the path's repository if that names one."""
        repository = self.request.path_params.get("repository")
        return pages.render(self.request, template, status=status, repository=repository, **values)

    def has_role(self, role: str, repository: str | None = None) -> bool:
        """Return whether the caller has the role, so that a page shows what it may do."""
        try:
            self.principal.check(Role[role.upper()], repository)
        except Forbidden:
            return False
        return True


def require_role(role: Role) -> Any:
    """Make the dependency of a page that needs the role in its path's repository."""

    async def check(request: Request) -> UserSession:
        session = await _read_session(request)
        request.state.session = session
        admit(request, session.principal, role)
        return session

    return Depends(check)


ReaderSession = Annotated[UserSession, require_role(Role.READER)]
WriterSession = Annotated[UserSession, require_role(Role.WRITER)]
OperatorSession = Annotated[UserSession, require_role(Role.OPERATOR)]


def form_token(secret: str) -> str:
    """Return the token that the forms of a session have."""
    return hmac.digest(secret.encode(), _FORM, "sha256").hex()


def begin_session(request: Request, response: Response, token: str, seconds: int) -> None:
    """Set the cookie of a session."""
    response.set_cookie(_name(request, COOKIE), token, max_age=seconds, **_attributes(request))
    response.delete_cookie(_name(request, SIGN_IN_COOKIE), **_attributes(request))


async def end_session(request: Request, response: Response) -> None:
    """End the session, so that its token opens nothing any more, and remove its cookie."""
    await authenticator_of(request).end_session(_cookie(request, COOKIE))
    response.delete_cookie(_name(request, COOKIE), **_attributes(request))


def sign_in_token(keys: Sequence[SigningKey], request: Request, secret: str, now_seconds: int) -> str:
    """Return the token of the sign-in form, for the browser that has the secret in its cookie."""
    return _sign_in_token(keys[0], request, secret, now_seconds)


def is_sign_in_token(keys: Sequence[SigningKey], request: Request, secret: str, token: str, now_seconds: int) -> bool:
    """Return whether the token of a sign-in form was made for this browser, and lately."""
    try:
        made_seconds = int(token[:_TIME_DIGITS], 16)
    except ValueError:
        return False
    return (
        bool(secret)
        and 0 <= now_seconds - made_seconds < SIGN_IN_SECONDS
        and any(
            hmac.compare_digest(_sign_in_token(key, request, secret, made_seconds).encode(), token.encode())
            for key in keys
        )
    )


def sign_in_secret(request: Request) -> str:
    """Return the secret of the browser that fetched the sign-in form; '' if it has none."""
    return _cookie(request, SIGN_IN_COOKIE)


def remember_form(request: Request, response: Response, secret: str) -> None:
    """Set the cookie that the sign-in form belongs to."""
    response.set_cookie(_name(request, SIGN_IN_COOKIE), secret, max_age=SIGN_IN_SECONDS, **_attributes(request))


def sign_in_url(request: Request) -> str:
    """Return the address of the sign-in page, which leads back to the page that was asked for."""
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    going_back = request.method == "GET" and request.url.path != base_path_of(request)
    return f"{base_path_of(request)}/sign-in" + (f"?{urlencode({'next': wanted})}" if going_back else "")


def safe_next(request: Request, wanted: str) -> str:
    """Return the page to go to after a sign-in: the one that was asked for, if it is one of these pages."""
    base = base_path_of(request)
    try:
        parts = urlsplit(wanted)
    except ValueError:  # such as `//[`
        return base
    is_own = not parts.scheme and not parts.netloc and (parts.path == base or parts.path.startswith(f"{base}/"))
    return wanted if is_own and "\\" not in wanted and wanted.isprintable() else base


async def _read_session(request: Request) -> UserSession:
    token = _cookie(request, COOKIE)
    if not token:
        raise SignInRequired("sign in first")
    try:
        principal = await authenticator_of(request).principal(f"Bearer {token}", address_of(request.scope))
    except Unauthenticated as error:
        raise SignInRequired(str(error)) from error
    return UserSession(request, principal, form_token(token))


def _sign_in_token(key: SigningKey, request: Request, secret: str, made_seconds: int) -> str:
    text = "\0".join((_SIGN_IN_FORM, f"{made_seconds:x}", address_of(request.scope), secret))
    return f"{made_seconds:0{_TIME_DIGITS}x}" + hmac.digest(key.secret, text.encode(), "sha256").hex()


def _cookie(request: Request, name: str) -> str:
    return request.cookies.get(_name(request, name), "")


def _name(request: Request, name: str) -> str:
    """Return the name of a cookie in this browser. `__Host-`: no other host and nobody without TLS can set it; it is
    for the whole host. Below a path of a proxy there may be other services, and the cookie is for that path only.
    """
    if not _is_secure(request):
        return name
    return f"__Host-{name}" if base_path_of(request) == PATH else f"__Secure-{name}"


def _attributes(request: Request) -> dict[str, Any]:
    secure = _is_secure(request)
    path = "/" if secure and base_path_of(request) == PATH else base_path_of(request)
    return {"path": path, "secure": secure, "httponly": True, "samesite": "strict"}


def _is_secure(request: Request) -> bool:
    return request.url.scheme == "https" or public_url_of(request).startswith("https://")
