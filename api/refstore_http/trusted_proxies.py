"""Take the client's address and scheme from the headers of trusted proxies, and only if it is an address.

Some proxies write `unknown` or a name. Such a text would be counted, logged and given slots as a client of its own, so
the proxy's address stands for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

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
