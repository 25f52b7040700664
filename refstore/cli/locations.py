"""Parse the URI of an object, `lakefs://REPO/REF/PATH`, where a file could stand."""

from __future__ import annotations

from typing import Final, NamedTuple

SCHEMES: Final = ("lakefs://", "refstore://")


class PathLocation(NamedTuple):
    repository: str
    ref: str
    path: str


def location(uri: str) -> PathLocation:
    """Split a URI with one of `SCHEMES`. The ref ends at the first slash, so one of its own is written `%2F`."""
    repository, _, rest = uri.partition("://")[2].partition("/")
    ref, _, path = rest.partition("/")
    return PathLocation(repository, ref.replace("%2F", "/").replace("%2f", "/"), path)
