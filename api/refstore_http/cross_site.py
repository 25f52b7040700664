"""Refuse state-changing requests that another site's page makes a browser send.

A browser sends a user's stored credentials with such a request. So the service never asks a browser to store any, and
refuses the request. The service's own programs never send one.

The check is that of Go's `net/http.CrossOriginProtection`. Recent browsers say in `Sec-Fetch-Site` where a request
comes from; older ones, and those over plain HTTP, say it in `Origin`. A client that sends neither header is no browser.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from starlette.types import Scope

from refstore_http.http_errors import Forbidden

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
OWN_SITE: Final = frozenset({"same-origin", "none"})
"""`none`: the user typed the address or used a bookmark. `same-site` is not included: another service of the same
domain is a stranger.
"""
_CHALLENGE: Final = (b"www-authenticate", b'Bearer realm="refstore"')
"""A 401 must name a scheme. No browser asks its user for a password for this one, so none stores it."""


def check_site(scope: Scope, public_url: str) -> None:
    """Refuse a request that another site's page made a browser send. Raises Forbidden."""
    if scope["method"] in SAFE_METHODS:
        return
    sites, origins, hosts = _origin_headers(scope)
    if sites:
        is_own = all(site in OWN_SITE for site in sites)
    else:
        is_own = all(_is_own(origin, "".join(hosts), public_url) for origin in origins)
    if not is_own:
        raise Forbidden(
            "a page of another site made the browser send this request; send it from a program, or from this "
            "service's pages"
        )


def check_own_page(scope: Scope, public_url: str) -> None:
    """Refuse a request unless a browser says that a page of this very service sent it. Raises Forbidden.

    A page on another port of this host is another site, although it can set this host's cookies.
    """
    sites, origins, hosts = _origin_headers(scope)
    if sites:
        is_own = sites == ["same-origin"]
    else:
        host = "".join(hosts)
        public = urlsplit(public_url.lower())
        own = [f"{public.scheme}://{public.netloc}"] if public.netloc else []
        if host != public.netloc:  # otherwise the browser came by the scheme of the public URL
            own.append(f"{scope['scheme']}://{host}")
        is_own = len(origins) == 1 and origins[0] in own
    if not is_own:
        raise Forbidden("no page of this service sent this form; load the page again, and send its own form")


def is_browser(scope: Scope) -> bool:
    return any(
        name == b"origin" or name.startswith(b"sec-fetch-") or (name == b"user-agent" and value.startswith(b"Mozilla/"))
        for name, value in scope["headers"]
    )


def drop_basic_challenge(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return a 401's headers for a browser: without the Basic challenge."""
    return [_CHALLENGE if name.lower() == b"www-authenticate" else (name, value) for name, value in headers]


def _origin_headers(scope: Scope) -> list[list[str]]:
    """Return the values of Sec-Fetch-Site, Origin and Host, in lower case."""
    names = (b"sec-fetch-site", b"origin", b"host")
    return [[value.decode("latin-1").lower() for field, value in scope["headers"] if field == name] for name in names]


def _is_own(origin: str, host: str, public_url: str) -> bool:
    try:
        origin_host = urlsplit(origin).netloc
        return bool(origin_host) and origin_host in (host, urlsplit(public_url).netloc.lower())
    except ValueError:
        return False
