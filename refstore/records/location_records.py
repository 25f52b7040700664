"""Records of where the content of an address lies, after a purge."""

from __future__ import annotations

from typing import NamedTuple

from refstore.core.ids import Address
from refstore.records.encoding import Record


class PurgeRecord(Record, frozen=True, tag=84):
    """`<repo>/purge/document`: which data sets may be purged, and how; whole."""

    document: str
    """The text as it was set (`refstore/purge_document/document.py`)."""
    set_ms: int
    set_by: str
    write_id: str


class Content(NamedTuple):
    """One content that an object has, or had."""

    address: Address
    """Where it lies. '': nowhere, because it was erased."""
    size_bytes: int
    checksum: str
    md5: str = ""
    run: str = ""
    """The purge that wrote it; '': as it was uploaded."""
    written_ms: int = 0
    """When it became the object's content; 0: with its upload."""

    @property
    def is_erased(self) -> bool:
        return not self.address


class Intent(NamedTuple):
    """Where an attempt of a purge is about to write."""

    address: Address
    run: str
    since_ms: int


class Backup(NamedTuple):
    """A content that was replaced and can be restored."""

    content: Content
    replaced_ms: int
    replaced_by: str
    """The run that did."""
    is_trash: bool = False
    """Whether a restore replaced it: then it is trash, and goes after the days of trash."""


class Location(Record, frozen=True, tag=85):
    """Where the content of an identity lies, which is the address that commits and references name (rule 22)."""

    current: Content | None
    """None: the identity is being deleted, and nothing can be published to it."""
    replacement_count: int = 0
    """How often the content was replaced."""
    intent: Intent | None = None
    backups: tuple[Backup, ...] = ()
    """Oldest first."""
    pending_deletions: tuple[Address, ...] = ()
    """What is deleted next; nothing restores it."""
    unpublished_attempts: tuple[Address, ...] = ()
    """Of `pending_deletions`: what attempts wrote, or were about to, and nobody published."""

    @property
    def is_at_rest(self) -> bool:
        """Whether the record names nothing but where the content lies."""
        return not (self.intent or self.backups or self.pending_deletions)

    def contents(self) -> list[Content]:
        """Return the current content and the backups."""
        return [*([self.current] if self.current else []), *(backup.content for backup in self.backups)]

    def addresses(self) -> tuple[Address, ...]:
        """Every address that this record names, each once."""
        if self.is_at_rest:
            return (self.current.address,) if self.current and self.current.address else ()
        named = [each.address for each in self.contents() if not each.is_erased]
        named += [self.intent.address] if self.intent else []
        return tuple(dict.fromkeys([*named, *self.pending_deletions]))


class LocationsFlag(Record, frozen=True, tag=86):
    """`<repo>/purge/locations`: content may lie elsewhere than its identity says (rule 22)."""
