"""Names in a URL that have a slash in them, sent as `%2F`, as lakeFS's clients send it: `feature/x` is one name, not two parts of a path.

What is not UTF-8 is refused: servers read it as U+FFFD, whatever it was, and then two names are one.

A server decodes the path before the routes see it, and then the two cannot be told apart. So where a path was sent with such a slash, its
parts stay apart: in `scope["path"]` their slashes are written as `%2F` again, and the route that fits gives the names as they are.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote, unquote_to_bytes

from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope

from refstore.errors import Invalid

_APART: Final = "refstore.parts_apart"
"""In the scope: set where the path is written so."""


def check_encoding(scope: Scope) -> None:
    """Raise Invalid where the URL's path or query is not UTF-8 once its `%xx` are decoded, or holds what must be written so."""
    for part, sent in (("path", scope.get("raw_path") or b""), ("query", scope.get("query_string") or b"")):
        if not sent.isascii():
            raise Invalid(f"the URL's {part} has bytes in it that no URL may have; write them as %xx, of UTF-8")
        if b"%" in sent:
            try:
                unquote_to_bytes(sent).decode()
            except UnicodeDecodeError:
                raise Invalid(f"the URL's {part} is not UTF-8; encode names in UTF-8 before they are written as %xx") from None


def keep_apart(scope: Scope) -> None:
    """Before a route is looked for."""
    raw: bytes = scope.get("raw_path") or b""
    if b"%2f" not in raw.lower():
        return
    parts = [unquote(part) for part in raw.decode("latin-1").split("/")]
    if "/".join(parts) == scope["path"]:  # else somebody has rewritten it on its way, and it is theirs to say
        scope["path"] = "/".join(part.replace("%", "%25").replace("/", "%2F") for part in parts)
        scope[_APART] = True


class NamedRoute(APIRoute):
    """For `APIRouter(route_class=...)`: a parameter of the path is the name that was sent."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, found = super().matches(scope)
        if match is not Match.NONE and scope.get(_APART):
            names: dict[str, Any] = found["path_params"]
            found["path_params"] = {name: value.replace("%2F", "/").replace("%25", "%") for name, value in names.items()}
        return match, found
