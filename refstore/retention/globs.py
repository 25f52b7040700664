"""Globs over names of branches and tags: what they match, which is the more specific, and whether two can match one name.

`*` is any run of characters, `/` among them, `?` is any one. No name can hold either, so what has neither is a name. There are no
classes: `[` is refused, as it would stand for itself to some readers and not to others.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

_GLOB: Final = re.compile(r"[A-Za-z0-9_*?][A-Za-z0-9_./*?-]{0,254}")

GLOB_FORM: Final = "use up to 255 letters, digits and '_ . / -', '*' for any run of characters, '?' for any one"


def is_glob(text: str) -> bool:
    return "*" in text or "?" in text


def is_valid(text: str) -> bool:
    return _GLOB.fullmatch(text) is not None


def matches(glob: str, name: str) -> bool:
    return fnmatchcase(name, glob)


def specificity(glob: str) -> tuple[int, int, int]:
    """Sorts the more specific glob higher: the one with more characters that stand for themselves, then with more `?`, then with
    fewer `*`."""
    stars, ones = glob.count("*"), glob.count("?")
    return len(glob) - stars - ones, ones, -stars


def overlap(left: str, right: str) -> bool:
    """Whether some name matches both. Of two that have a star, or have none, the characters at their ends decide: what lies between
    the stars of one is what a star of the other can stand for."""
    if not _may_begin_alike(left, right) or not _may_begin_alike(left[::-1], right[::-1]):
        return False
    if ("*" in left) == ("*" in right):
        return "*" in left or len(left) == len(right)
    return _overlap(_folded(left), _folded(right))


def _may_begin_alike(left: str, right: str) -> bool:
    """Whether they can, as far as both stand for single characters."""
    for mine, other in zip(left, right, strict=False):
        if "*" in (mine, other):
            return True
        if mine != other and "?" not in (mine, other):
            return False
    return True


def _folded(glob: str) -> str:
    return re.sub(r"\*+", "*", glob)


@lru_cache(maxsize=1024)
def _overlap(left: str, right: str) -> bool:
    # Row by row: `reached[j]` says whether left[:i] and right[:j] can stand for the same text.
    reached = [True] + [False] * len(right)
    for j, other in enumerate(right):
        reached[j + 1] = reached[j] and other == "*"
    for mine in left:
        before, reached = reached, [reached[0] and mine == "*"]
        for j, other in enumerate(right):
            if mine == "*" or other == "*":
                reached.append(before[j + 1] or reached[j])
            else:
                reached.append(before[j] and (mine == other or "?" in (mine, other)))
    return reached[-1]
