"""How entries compare where no purge has replaced anything."""

from __future__ import annotations

from collections.abc import Sequence

from refstore.versioning.commits import equality
from refstore.versioning.commits.equality import EntryPair


def equal_as_uploaded(pairs: Sequence[EntryPair]) -> list[bool]:
    return [equality.are_equal(left, right, {}) for left, right in pairs]
