"""The record of a commit: `<repo>/commits/<commit id>`."""

from __future__ import annotations

from refstore.core.ids import CommitId, Token
from refstore.records.encoding import Record


class StoredCommit(Record, frozen=True, tag=30):
    """`<repo>/commits/<commit_id>`: immutable but for its mark, which stands in a record of its own."""

    parents: tuple[CommitId, ...]
    metarange: str
    """Key of the metarange's hash; '' is the empty tree."""
    added_addresses_id: str
    """Hash of the object that lists the addresses added against the first parent; '' where nothing was added."""
    tokens: tuple[Token, ...]
    created_ms: int
    """The commit's date, which whoever makes it may give."""
    committer: str
    message: str
    metadata: dict[str, str] = {}
    generation: int = 0
    """Longest distance from a root commit."""
    recorded_ms: int | None = None
    """When it was really made, where the date is only shown; None: the date counts."""
    notes: dict[str, str] = {}
    """What refstore itself says of the commit: `purge` is the run that made it. No caller gives them."""

    @property
    def retention_date_ms(self) -> int:
        """The date by which the rules of retention count."""
        return self.created_ms if self.recorded_ms is None else self.recorded_ms
