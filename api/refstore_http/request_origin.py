"""Check what a request says of where it goes to and comes from.

Its `Host`: programs in front choose by it, and must not read another one than we do. Nor may a target that is a whole
URL (RFC 9112, 3.2.2) name another host: some programs choose by that one.

Its site: state-changing requests that another site's page makes a browser send are refused. A browser sends a user's
stored credentials with such a request. So the service never asks a browser to store any, and refuses the request. The
service's own programs never send one. The check is that of Go's `net/http.CrossOriginProtection`. Recent browsers say
in `Sec-Fetch-Site` where a request comes from; older ones, and those over plain HTTP, say it in `Origin`. A client that
sends neither header is no browser.

Its client: address and scheme are taken from the headers of trusted proxies, and only if it is an address. Some proxies
write `unknown` or a name. Such a text would be counted, logged and given slots as a client of its own, so the proxy's
address stands for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from refstore.errors import Invalid
from refstore_http.http_errors import Forbidden

_HOST: Final = re.compile(rb"[A-Za-z0-9._~%!$&'()*+,;=:\[\]-]{0,263}")
"""A host with a port, by the characters that RFC 3986 allows."""
_ABSOLUTE: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")
TARGET_HOST: Final = "refstore.target_host"
"""The extension of a scope that has the host of a target that is a whole URL: ASGI has no word for it."""


def host_of_target(target: bytes) -> bytes | None:
    """Return the host that a request's target names; None: it is a path, as nearly always."""
    matched = None if target.startswith(b"/") else _ABSOLUTE.match(target)
    return matched[1] if matched is not None else None


def check_host(scope: Scope) -> None:
    """Check that there is one `Host` (RFC 9112, 3.2), which is the target's if that names one; HTTP/1.0 may have none.
    Raises Invalid.
    """
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    extensions: dict[str, dict[str, bytes]] = scope.get("extensions") or {}
    target = extensions.get(TARGET_HOST)
    if target is not None and hosts and hosts[0].lower() != target["host"].lower():
        raise Invalid("the request's target names another host than its Host header; send the path alone, or the same")
    if len(hosts) == 1 and _HOST.fullmatch(hosts[0]):
        return
    if hosts or scope["http_version"] != "1.0":
        raise Invalid("the request has no Host header, more than one, or one that is not a host; send one")


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


_PROXY: Final = "refstore.proxy"


class TrustedProxies:
    def __init__(self, app: ASGIApp, networks: Sequence[str]) -> None:
        self._app = app
        checked: Any = self._call_checked
        self._named: Any = ProxyHeadersMiddleware(checked, trusted_hosts=list(networks))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[_PROXY] = scope.get("client")
        await self._named(scope, receive, send)

    async def _call_checked(self, scope: Scope, receive: Receive, send: Send) -> None:
        proxy = scope.pop(_PROXY, None)
        client = scope.get("client")
        if client is not None and client is not proxy and not _is_address(client[0]):
            scope["client"] = proxy
        await self._app(scope, receive, send)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return "%" not in text  # a zone, which may be any text
