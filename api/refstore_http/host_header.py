"""Check the `Host` of a request: programs in front choose by it, and must not read another one than we do.

Nor may a target that is a whole URL (RFC 9112, 3.2.2) name another host: some programs choose by that one.
"""

from __future__ import annotations

import re
from typing import Final

from starlette.types import Scope

from refstore.errors import Invalid

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
