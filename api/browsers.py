"""Browsers send a user's credentials along with what another site's page has them ask for. So they are never asked to keep any here, and
what changes something is refused when it comes from another site, as its own programs never do.

The check is that of Go's `net/http.CrossOriginProtection`: browsers of the last years say in `Sec-Fetch-Site` where a request comes from,
and in `Origin` where they do not (over plain HTTP, or older ones); whatever says neither is no browser.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from starlette.types import Scope

from api.errors import Forbidden

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
OWN_SITE: Final = frozenset({b"same-origin", b"none"})
"""`none`: typed by the user, or from a bookmark. Not `same-site`: another service below one domain is another's."""
_CHALLENGE: Final = (b"www-authenticate", b'Bearer realm="refstore"')
"""A 401 has to name a scheme; for this one no browser asks its user for a password, which it would then send by itself."""


def check_site(scope: Scope, public_url: str) -> None:
    """Raises Forbidden."""
    if scope["method"] in SAFE:
        return
    sites: list[bytes] = []
    origins: list[bytes] = []
    host = b""
    for name, value in scope["headers"]:
        if name == b"sec-fetch-site":
            sites.append(value)
        elif name == b"origin":
            origins.append(value)
        elif name == b"host":
            host = value
    if sites:
        is_own = all(site in OWN_SITE for site in sites)
    else:
        is_own = all(_is_own(origin.decode("latin-1"), host.decode("latin-1"), public_url) for origin in origins)
    if not is_own:
        raise Forbidden("a page of another site had a browser send this; send it from a program, or from this service's own pages")


def is_browser(scope: Scope) -> bool:
    return any(
        name == b"origin" or name.startswith(b"sec-fetch-") or (name == b"user-agent" and value.startswith(b"Mozilla/"))
        for name, value in scope["headers"]
    )


def without_basic(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers of a 401, as a browser gets them."""
    return [_CHALLENGE if name.lower() == b"www-authenticate" else (name, value) for name, value in headers]


def _is_own(origin: str, host: str, public_url: str) -> bool:
    try:
        found = urlsplit(origin).netloc.lower()
        return bool(found) and found in (host.lower(), urlsplit(public_url).netloc.lower())
    except ValueError:
        return False
