"""A filter of paths: single ones, and those that start with one of several prefixes, matched in one pass."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable


def outermost_prefixes(prefixes: Iterable[str]) -> list[str]:
    """Return the prefixes that do not lie in another one, sorted."""
    outer: list[str] = []
    for prefix in sorted(set(prefixes)):
        if not outer or not prefix.startswith(outer[-1]):
            outer.append(prefix)
    return outer


class PathFilter:
    """Immutable. Without paths and prefixes it matches nothing."""

    def __init__(self, paths: Iterable[str] = (), prefixes: Iterable[str] = ()) -> None:
        self._prefixes = outermost_prefixes(prefixes)
        self._paths = sorted(set(paths))
        self._is_path = frozenset(self._paths)

    def matches(self, path: str) -> bool:
        return path in self._is_path or self._has_prefix(path)

    def may_match_between(self, first: str, last: str) -> bool:
        """Return whether a path from `first` to `last` (both included) could match."""
        at = bisect_left(self._paths, first)
        if at < len(self._paths) and self._paths[at] <= last:
            return True
        at = bisect_left(self._prefixes, first)
        return (at < len(self._prefixes) and self._prefixes[at] <= last) or self._has_prefix(first)

    def _has_prefix(self, path: str) -> bool:
        """Return whether a prefix matches.

        No prefix starts with another one, so only the last prefix that does not sort after the path can match.
        """
        at = bisect_right(self._prefixes, path)
        return at > 0 and path.startswith(self._prefixes[at - 1])
