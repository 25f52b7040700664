"""Templates of paths that hold an identifier, for objects that cannot be rewritten (mode `erase`).

    {guestid}/*.jpg         the first folder is the identifier
    **/user-{guestid}.bin   in any folder

`{name}` and `*` stand for characters of one folder or file, `**` for any folders. A folder or file has at most two of
them, so that no path takes long to compare.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

FORM: Final = (
    "use folders and a file name with one {identifier}, at most one '*' beside it in the same part, and at most one "
    "'**' for any folders, such as '**/{identifier}/*.jpg'"
)
CHARACTERS_MAX: Final = 1024
_PARTS: Final = re.compile(r"(\{[^{}/]+\}|\*)")


class PathTemplate:
    """A template that was checked."""

    def __init__(self, text: str, identifier: str) -> None:
        """Raises ValueError: the text is no template, or does not hold the identifier once."""
        parts = text.split("/")
        if len(text) > CHARACTERS_MAX or not all(parts) or text.count(f"{{{identifier}}}") != 1:
            raise ValueError(FORM)
        if parts.count("**") > 1 or parts[-1] == "**":
            raise ValueError(FORM)
        at = parts.index("**") if "**" in parts else None
        self._before = [_compile_part(part) for part in parts[:at]]
        self._behind = [] if at is None else [_compile_part(part) for part in parts[at + 1 :]]
        self._any_folders = at is not None

    def identifier_of(self, path: str) -> str | None:
        """Return the identifier in a path below the data set's prefix; None: the template does not fit."""
        parts = path.split("/")
        fixed = len(self._before) + len(self._behind)
        if len(parts) < fixed or (len(parts) > fixed and not self._any_folders):
            return None
        pairs = [
            *zip(self._before, parts, strict=False),
            *zip(self._behind, parts[len(parts) - len(self._behind) :], strict=True),
        ]
        value = None
        for pattern, part in pairs:
            match = pattern.fullmatch(part)
            if match is None:
                return None
            value = match[1] if pattern.groups else value
        return value


def _compile_part(part: str) -> re.Pattern[str]:
    pieces = [piece for piece in _PARTS.split(part) if piece]
    wild = [piece for piece in pieces if _PARTS.fullmatch(piece)]
    groups = [piece for piece in wild if piece != "*"]
    if len(wild) > 2 or len(groups) > 1 or any("*" in piece or "{" in piece for piece in pieces if piece not in wild):
        raise ValueError(FORM)
    if len(wild) == 2 and any(left in wild and right in wild for left, right in pairwise(pieces)):
        raise ValueError(FORM)
    return re.compile(
        "".join("(.*)" if piece in groups else ".*" if piece == "*" else re.escape(piece) for piece in pieces),
        re.DOTALL,
    )
