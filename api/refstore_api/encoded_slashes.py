"""Support names with a slash, which lakeFS's clients send as `%2F`: `feature/x` is one name, not two path segments.

A URL that is not UTF-8 is refused, because servers decode every such byte as U+FFFD, which would make two names one.

A server decodes the path before the routes see it, so an encoded slash would be lost. When a path was sent with one,
`scope["path"]` keeps the slashes inside segments as `%2F`. The matching route then decodes the names.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote, unquote_to_bytes

from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope

from refstore.errors import Invalid

SLASHES_ENCODED: Final = "refstore.slashes_encoded"
"""Set in the scope when its path is written so."""


def check_encoding(scope: Scope) -> None:
    """Check that the URL's path and query are ASCII, and UTF-8 after decoding `%xx`. Raises Invalid."""
    for part, encoded in (("path", scope.get("raw_path") or b""), ("query", scope.get("query_string") or b"")):
        if not encoded.isascii():
            raise Invalid(f"the URL's {part} contains bytes that are not ASCII; encode them in UTF-8, written as %xx")
        if b"%" in encoded:
            try:
                unquote_to_bytes(encoded).decode()
            except UnicodeDecodeError:
                raise Invalid(
                    f"the URL's {part} is not UTF-8; encode names in UTF-8 before they are written as %xx"
                ) from None


def keep_encoded_slashes(scope: Scope) -> None:
    """Keep encoded slashes in the path; to be called before routing."""
    raw: bytes = scope.get("raw_path") or b""
    if b"%2f" not in raw.lower():
        return
    parts = [unquote(part) for part in raw.decode("latin-1").split("/")]
    if "/".join(parts) == scope["path"]:  # otherwise a middleware rewrote the path, and its version counts
        scope["path"] = "/".join(part.replace("%", "%25").replace("/", "%2F") for part in parts)
        scope[SLASHES_ENCODED] = True


class EncodedNameRoute(APIRoute):
    """A route whose path parameters are the names that the client sent; for `APIRouter(route_class=...)`."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child_scope = super().matches(scope)
        if match is not Match.NONE and scope.get(SLASHES_ENCODED):
            names: dict[str, Any] = child_scope["path_params"]
            child_scope["path_params"] = {
                name: value.replace("%2F", "/").replace("%25", "%") for name, value in names.items()
            }
        return match, child_scope
