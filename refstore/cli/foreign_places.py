"""The option `--allow-foreign` of the commands that read objects, and how a place outside the lake is written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote

import typer

from refstore.errors import Invalid

AllowForeign = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-foreign",
        metavar="PREFIX",
        help="Read also objects outside the lake below this URL or folder, beside those in import_from. Repeatable.",
        show_default=False,
    ),
]

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*://")


def url_of(place: str) -> str:
    """Return a URL as it is, and a file's path as a URL."""
    return place if _URL.match(place) else "file://" + quote(str(Path(place).expanduser().absolute()))


def urls_of(places: Sequence[str] | None) -> list[str]:
    """Return the URLs of places to read. Raises Invalid for an empty one, which would be the working folder."""
    if "" in (places or ()):
        raise Invalid("--allow-foreign names no place; give it a URL or a folder ('.' for this one)")
    return [url_of(place) for place in places or ()]
