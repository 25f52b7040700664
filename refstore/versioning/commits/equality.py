"""Whether two entries are equal to whoever reads them. Nothing else decides it: diffs, merges and commits ask here.

Content is told by identity, or by what the service hashed. Never by the checksum of a content that a purge has replaced
since: an entry keeps the checksum of its upload, while its readers get something else (decisions 0120 and 0133).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from refstore.core.ids import Address, is_own
from refstore.records.location_records import Content
from refstore.records.staging_records import StoredEntry

EntryPair = tuple[StoredEntry | None, StoredEntry | None]
"""What two sides have at a path; None: nothing."""

AreEqual = Callable[[Sequence[EntryPair]], list[bool]]
"""Returns of each pair whether both sides are equal."""


def needs_contents(left: StoredEntry | None, right: StoredEntry | None) -> bool:
    """Return whether only the contents of both can tell: they are own objects of different identities, and the rest is
    equal.
    """
    return (
        left is not None
        and right is not None
        and left.address != right.address
        and is_own(left.address)
        and is_own(right.address)
        and _have_same_metadata(left, right)
    )


def are_equal(left: StoredEntry | None, right: StoredEntry | None, contents: Mapping[Address, Content]) -> bool:
    """Return whether two entries are equal. `contents`: of identities that a purge has replaced, what readers get now.

    When it was put is not what an own object is. A foreign object is described by all that is known of it, because its
    owner may write it again: to name it elsewhere, or with another time, is a change.
    """
    if left is None or right is None:
        return left is right
    if not (is_own(left.address) and is_own(right.address)):
        return _metadata_key(left) == _metadata_key(right)
    if not _have_same_metadata(left, right):
        return False
    return left.address == right.address or _have_same_bytes(_content(left, contents), _content(right, contents))


def _have_same_bytes(left: Content, right: Content) -> bool:
    """Return whether both are the same bytes. Only checksums that refstore computed itself count (those with an MD5),
    because a linker may give any. An erased content has none.
    """
    return bool(left.md5 and right.md5) and (left.size_bytes, left.checksum) == (right.size_bytes, right.checksum)


def _content(entry: StoredEntry, contents: Mapping[Address, Content]) -> Content:
    return contents.get(entry.address) or Content(entry.address, entry.size_bytes, entry.checksum, entry.md5)


def _have_same_metadata(left: StoredEntry, right: StoredEntry) -> bool:
    return (left.metadata, left.content_type, left.s3) == (right.metadata, right.content_type, right.s3)


def _metadata_key(entry: StoredEntry) -> tuple[object, ...]:
    return (
        entry.address,
        entry.size_bytes,
        entry.checksum,
        entry.mtime_ms,
        entry.metadata,
        entry.content_type,
        entry.s3,
    )
