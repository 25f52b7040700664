"""Check the `Host` of a request: programs in front choose by it, and must not read another one than we do."""

from __future__ import annotations

import re
from typing import Final

from starlette.types import Scope

from refstore.errors import Invalid

_HOST: Final = re.compile(rb"[A-Za-z0-9._~%!$&'()*+,;=:\[\]-]{0,263}")
"""A host with a port, by the characters that RFC 3986 allows."""


def check_host(scope: Scope) -> None:
    """Check that there is one `Host` (RFC 9112, 3.2); HTTP/1.0 may have none. Raises Invalid."""
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    if len(hosts) == 1 and _HOST.fullmatch(hosts[0]):
        return
    if hosts or scope["http_version"] != "1.0":
        raise Invalid("the request has no Host header, more than one, or one that is not a host; send one")
