"""Globs over names of branches and tags: what they match, which is more specific, and whether two can match one name.

`*` matches any run of characters, `/` included, and `?` any one character. A text with neither is a name. There are no
character classes: `[` is refused, because some readers would take it literally.
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


def matches_glob(glob: str, name: str) -> bool:
    return fnmatchcase(name, glob)


def specificity(glob: str) -> tuple[int, int, int]:
    """Return a key that sorts the more specific glob higher: more literal characters, then more `?`, then fewer `*`."""
    stars, ones = glob.count("*"), glob.count("?")
    return len(glob) - stars - ones, ones, -stars


def may_overlap(left: str, right: str) -> bool:
    """Return whether some name matches both globs.

    If both have a star, or neither has, the characters at their ends decide: a star of one glob matches everything
    between the stars of the other.
    """
    if not _may_begin_alike(left, right) or not _may_begin_alike(left[::-1], right[::-1]):
        return False
    if ("*" in left) == ("*" in right):
        return "*" in left or len(left) == len(right)
    return overlap_exactly(_fold_stars(left), _fold_stars(right))


def _may_begin_alike(left: str, right: str) -> bool:
    """Return whether the globs agree up to the first star."""
    for mine, other in zip(left, right, strict=False):
        if "*" in (mine, other):
            return True
        if mine != other and "?" not in (mine, other):
            return False
    return True


def _fold_stars(glob: str) -> str:
    return re.sub(r"\*+", "*", glob)


@lru_cache(maxsize=1024)
def overlap_exactly(left: str, right: str) -> bool:
    """Return whether some name matches both globs, comparing them character by character."""
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
