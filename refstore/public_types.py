"""What applications see of a repository: frozen types, whose times are datetimes in UTC.

`Entry` and `Commit` are views of stored records, which hold more than an application should rely on. A call that takes
an entry as it was read (`if_entry`) knows by that record whether the path still has it. Modules of refstore get at the
record with `stored_entry` and `stored_commit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import msgspec

from refstore.core.clock import to_datetime, to_optional_datetime
from refstore.core.ids import Address, BranchName, CommitId, Path
from refstore.errors import Invalid
from refstore.records.commit_records import StoredCommit
from refstore.records.mark_records import StoredMark
from refstore.records.staging_records import StoredEntry

if TYPE_CHECKING:
    from refstore.versioning.commits.tree_diff import PathChangeKind


class Entry(msgspec.Struct, frozen=True, eq=False, gc=False):
    """An object at a path, as it was read.

    Two entries are equal if all that they show is equal. Only refstore makes entries.
    """

    path: str
    _stored: StoredEntry

    @property
    def address(self) -> Address:
        """Where the object lies: a key in the repository's namespace, or the URL of an object outside the lake."""
        return self._stored.address

    @property
    def size_bytes(self) -> int:
        return self._stored.size_bytes

    @property
    def checksum(self) -> str:
        """Return the SHA-256 of the content in hexadecimal, where refstore computed it; otherwise what the writer
        gave.
        """
        return self._stored.checksum

    @property
    def modified(self) -> datetime:
        """When the content was last changed."""
        return to_datetime(self._stored.mtime_ms)

    @property
    def metadata(self) -> Mapping[str, str]:
        """The user's own texts, by name."""
        return self._stored.metadata

    @property
    def content_type(self) -> str:
        return self._stored.content_type

    def replace(self, *, metadata: Mapping[str, str] | None = None, content_type: str | None = None) -> Entry:
        """Return the entry with other metadata, another content type, or both, as `change_metadata` wants it."""
        stored = self._stored
        return Entry(
            self.path,
            msgspec.structs.replace(
                stored,
                metadata=stored.metadata if metadata is None else dict(metadata),
                content_type=stored.content_type if content_type is None else content_type,
            ),
        )

    def _compared_fields(self) -> tuple[object, ...]:
        stored = self._stored
        return (
            self.path,
            stored.address,
            stored.size_bytes,
            stored.checksum,
            stored.mtime_ms,
            stored.metadata,
            stored.content_type,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry) and self._compared_fields() == other._compared_fields()

    def __hash__(self) -> int:
        return hash((self.path, self._stored.address))

    def __repr__(self) -> str:
        return (
            f"Entry(path={self.path!r}, address={self.address!r}, size_bytes={self.size_bytes}, "
            f"checksum={self.checksum!r}, modified={self.modified.isoformat()}, metadata={dict(self.metadata)!r}, "
            f"content_type={self.content_type!r})"
        )


stored_entry: Final[Callable[[Entry], StoredEntry]] = attrgetter("_stored")
"""Return the record that an entry shows."""


def public_entry(path: str, stored: StoredEntry | None) -> Entry | None:
    """Return what applications see of a record; None of none."""
    return None if stored is None else Entry(path, stored)


def expected_entry(entry: Entry | None) -> StoredEntry | None:
    """Return the record of an entry that a caller expects somewhere; None: none in particular. Raises Invalid."""
    if entry is None:
        return None
    if not isinstance(cast("object", entry), Entry):
        raise Invalid(
            f"an entry is of type {type(entry).__name__}; give the refstore.Entry that stat or upload returned"
        )
    return stored_entry(entry)


class Commit(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A commit: what a branch, a tag or another commit names. Two are equal if their ids are."""

    id: CommitId
    _stored: StoredCommit

    @property
    def message(self) -> str:
        return self._stored.message

    @property
    def committer(self) -> str:
        """Who made it, as the caller said; '' where none did."""
        return self._stored.committer

    @property
    def created(self) -> datetime:
        """The commit's date, which whoever made it may have given."""
        return to_datetime(self._stored.created_ms)

    @property
    def parents(self) -> tuple[CommitId, ...]:
        """The commits that it followed: none for a repository's first, two for a merge."""
        return self._stored.parents

    @property
    def metadata(self) -> Mapping[str, str]:
        """The user's own texts, by name."""
        return self._stored.metadata

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Commit) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return (
            f"Commit(id={self.id!r}, message={self.message!r}, committer={self.committer!r}, "
            f"created={self.created.isoformat()}, parents={self.parents!r}, metadata={dict(self.metadata)!r})"
        )


stored_commit: Final[Callable[[Commit], StoredCommit]] = attrgetter("_stored")
"""Return the record that a commit shows."""


class NamedEntry(NamedTuple):
    """What a path names, and where that stands."""

    entry: Entry
    is_staged: bool
    """Whether it is staged, and not committed."""
    commit: CommitId | None
    """The commit that has it. None: it is staged."""


class PathChange(NamedTuple):
    """One path that differs between two sides; None where it is not there."""

    path: str
    kind: PathChangeKind
    left: Entry | None
    right: Entry | None


class TrashItem(NamedTuple):
    """An object that lost its last name, and can be restored."""

    address: Address
    branch: BranchName
    """The branch that lost it."""
    path: Path
    """The path that it had there."""
    cause: str
    """How it was lost: `reset`, `deleted`, ..."""
    since: datetime
    """When it was lost."""
    deletes_at: datetime | None
    """When its grace window ends. None: the window begins when the reaper has seen the loss."""
    entry: Entry | None
    """What the path named. None: nothing more is known of it."""
    cursor: str
    """Give this as `after` to continue the listing."""


class Mark(NamedTuple):
    """What the offline job decided about an expired commit: that data which only it names is deleted."""

    id: str
    """The mark's: all commits that one run marks have the same."""
    since: datetime
    deletes_at: datetime
    """When the sweep may begin."""
    sweeping_since: datetime | None
    """When its sweep began, after which nobody can unmark it. None: not yet."""
    tagged: datetime | None
    """When its data was tagged for the bucket to delete. None: not tagged."""
    swept: datetime | None
    """When its data was deleted. None: not yet."""
    prefixes: tuple[str, ...]
    """Only its entries at paths with these prefixes have expired. Empty: all of them."""

    @classmethod
    def of_record(cls, record: StoredMark) -> Mark:
        return cls(
            record.mark_id,
            to_datetime(record.since_ms),
            to_datetime(record.deletes_at_ms),
            to_optional_datetime(record.sweeping_ms),
            to_optional_datetime(record.tagged_ms),
            to_optional_datetime(record.swept_ms),
            record.prefixes,
        )
