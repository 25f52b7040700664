"""Find the name that somebody may have meant."""

from __future__ import annotations

from collections.abc import Iterable


def find_nearest(name: str, names: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the most similar of the names, but never `name` itself; None if no other is similar."""
    from difflib import get_close_matches  # imported here: few names are misspelt

    close = get_close_matches(name, [other for other in names if other != name], n=1, cutoff=cutoff)
    return close[0] if close else None
