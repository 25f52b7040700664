"""Records of physical addresses and who names them: `<repo>/references/<shard>/<physical address>`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from refstore.core.ids import BranchName, Path, Token
from refstore.kv.base import ABSENT, Absent
from refstore.records.encoding import UNREADABLE, Record, corrupt_record, decode_with
from refstore.records.staging_records import StoredEntry


class Reference(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """One name of a physical address: a path under a staging token."""

    token: Token
    path: Path
    id: str = ""
    """Tells two placements of one address at one path apart, so that releasing the first does not release the second
    (rule 6). Empty where an address is placed for the first time; every later placement has its own.
    """


class Listed(Record, frozen=True, tag=10):
    """Named by at least one reference."""

    references: tuple[Reference, ...]
    """In the order they were added."""
    changed_ms: int
    """When the list last changed; the scrubber looks only at what is older than the longest operation (rule 9)."""


class Emptied(Record, frozen=True, tag=11):
    """The list is empty: the address is in grace. It takes no new copy (rule 5); `restore` may take it back."""

    since_ms: int
    last_reference: Reference
    """The reference whose removal emptied the list."""
    cause: str
    """Why it was removed: overwritten, deleted, reset, branch-deleted, committed-over, scrubbed, …"""
    entry: StoredEntry | None = None
    """The entry that named the address, where one was known; `restore` writes it again."""


class Issued(Record, frozen=True, tag=12):
    """The address was issued, and is not linked yet (rule 10)."""

    token_id: str
    expires_ms: int
    branch: BranchName
    path: Path
    in_parts: bool = False
    """Whether it is the address of a multipart upload (rule 23)."""
    parts_digest: str = ""
    """Of the parts that are joined there, since a completion fixed them; '': none did."""


class Deleting(Record, frozen=True, tag=13):
    """The reaper deletes the blob, then this key; nobody can take it back (rule 8)."""

    since_ms: int
    last_reference: Reference
    cause: str
    size_bytes: int = -1
    """-1: not known."""


ReferenceRecord = Listed | Emptied | Issued | Deleting

_reference: Final = msgspec.msgpack.Decoder(ReferenceRecord)


def decode_reference(value: bytes) -> ReferenceRecord:
    return decode_with(_reference, value, "reference")


def decode_reference_many(values: Iterable[bytes | Absent]) -> list[ReferenceRecord | None]:
    """Decode all values or none; None where there is no value."""
    decode = _reference.decode
    try:
        return [None if value is ABSENT else decode(value) for value in values]
    except UNREADABLE as error:
        raise corrupt_record("reference", error) from error
