"""Records of staging areas: `<repo>/staging/<token>/<path>`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from refstore.core.ids import Address, is_own
from refstore.records.encoding import UNREADABLE, Record, corrupt_record, decode_with
from refstore.records.s3_attributes import S3Attributes, content_of


class StoredEntry(Record, frozen=True, tag=1):
    """What a path names: a physical address, and what is known of its object. Sizes are bytes, times milliseconds."""

    address: Address
    size_bytes: int
    checksum: str
    mtime_ms: int
    metadata: dict[str, str] = {}
    """The user's. Names of ours never stand there (`refstore/core/user_metadata.py`)."""
    content_type: str = ""
    reference_id: str = ""
    """The id of the reference that this entry was placed with; '' once it is committed, and where it needs none."""
    md5: str = ""
    """Hex MD5 of the content, where it is known, for S3 clients; refstore decides nothing by it."""
    s3: S3Attributes | None = None
    """What the S3 gateway keeps of the object; None: nothing."""


class Tombstone(Record, frozen=True, tag=2):
    """The path is deleted under this token, whatever the tokens and the commit below it say."""

    id: str = ""
    """Of a move's tombstone: by it the move knows its own from another's, although a reply was lost (rule 6)."""


def without_reference(entry: StoredEntry) -> StoredEntry:
    """Return the entry as a commit holds it, without its reference id."""
    return entry if not entry.reference_id else msgspec.structs.replace(entry, reference_id="")


def sources_of_copy(shown: StoredEntry) -> tuple[str, ...]:
    """Return the addresses whose bytes a copy of an object's bytes has. `shown`: with the address of its content."""
    content = content_of(shown.s3)
    return (shown.address, *(content.sources if content is not None else ())) if is_own(shown.address) else ()


StagedRecord = StoredEntry | Tombstone

_staged: Final = msgspec.msgpack.Decoder(StagedRecord)


def decode_staged(value: bytes) -> StagedRecord:
    """Decode a staging entry. All decoders raise CorruptRecord."""
    return decode_with(_staged, value, "staging entry")


def decode_staged_many(values: Iterable[bytes]) -> list[StagedRecord]:
    """Decode all values or none, for bulk operations."""
    decode = _staged.decode
    try:
        return [decode(value) for value in values]
    except UNREADABLE as error:
        raise corrupt_record("staging entry", error) from error
