"""Compare entries by the content that their readers get now, wherever a purge has put it (rule 22)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from refstore.context import Context
from refstore.core.ids import Address
from refstore.records.location_records import Content
from refstore.versioning.commits import equality
from refstore.versioning.commits.equality import EntryPair
from refstore.versioning.commits.tree_diff import EntryChange
from refstore.versioning.commits.tree_rewrite import WrittenTree

PAGE: Final = 1000
"""How many changes share the round trip that asks where their contents lie."""

_UNKNOWN_CONTENT: Final = Content(Address(""), 0, "")
"""The content of an identity that is being deleted: equal to none."""


class ContentComparison:
    """The comparisons of one operation, made behind its reading of the entries.

    Without the flag of locations the entries say what their readers get. The flag is read once, and only where it
    counts. What a purge publishes behind that comes later than the operation.
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._announced: bool | None = None

    def are_equal(self, pairs: Sequence[EntryPair]) -> list[bool]:
        """Return of each pair whether both sides are equal. With replaced contents one round trip, else none."""
        identities = {
            entry.address: None
            for pair in pairs
            if equality.needs_contents(*pair)
            for entry in pair
            if entry is not None
        }
        contents: dict[Address, Content] = {}
        if identities and self._are_announced():
            records = self._ctx.locations.get_many(list(identities))
            contents = {
                identity: record.current or _UNKNOWN_CONTENT
                for identity, record in zip(identities, records, strict=True)
                if record is not None
            }
        return [equality.are_equal(left, right, contents) for left, right in pairs]

    def drop_equal(self, changes: Iterator[EntryChange]) -> Iterator[EntryChange]:
        """Yield the changes that readers notice: the same content, uploaded again, is none."""
        # several at once only where they share a round trip: a caller may want few of the changes
        while some := list(islice(changes, PAGE if self._announced else 1)):
            equal = self.are_equal([(change.left, change.right) for change in some])
            yield from (change for change, is_equal in zip(some, equal, strict=True) if not is_equal)

    def changes_nothing(self, base: str, written: WrittenTree) -> bool:
        """Return whether the tree that was written on the base reads like it."""
        if written.inserted_entries or written.removed_entries:
            return False
        if not all(self.are_equal(written.samples)):
            return False
        if written.replaced_entries == len(written.samples):
            return True
        return next(self.drop_equal(self._ctx.trees.diff(base, written.metarange)), None) is None

    def _are_announced(self) -> bool:
        if self._announced is None:
            self._announced = self._ctx.locations.are_announced()
        return self._announced
