"""The values of the KV: frozen records and their versioned encoding.

A record is a MessagePack array `[tag, field, …]`; the tag (a small integer, append-only) says which record it is. New
fields are appended with a default, so old values still decode; a new meaning takes a new tag. Encoding is canonical:
equal records have equal bytes, which is what `set_if` compares. Times are wall-clock milliseconds since the epoch.

Rule numbers refer to `docs/protocol.md`.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from refstore.errors import CorruptRecord
from refstore.kv.base import ABSENT, Absent


class Record(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """Records hold no cycles, so Python's garbage collector may skip them: decoding a page takes half the time."""


UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError)
"""The errors of a decoder, which has none of its own for text that is not UTF-8."""

_encoder = msgspec.msgpack.Encoder(order="sorted")


def encode(record: Record) -> bytes:
    return _encoder.encode(record)


R = TypeVar("R", bound=Record)

T = TypeVar("T")

_decoders: dict[type[Record], msgspec.msgpack.Decoder[Record]] = {}


def decode(value: bytes, kind: type[R]) -> R:
    """Decode a record of a known kind. Raises CorruptRecord."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    return decode_with(decoder, value, kind.__name__)  # type: ignore[return-value]  # the table pairs kind and decoder


def decode_optional(value: bytes | Absent, kind: type[R]) -> R | None:
    """Decode a record of a known kind; None where there is no value."""
    return None if value is ABSENT else decode(value, kind)


def decode_with(decoder: msgspec.msgpack.Decoder[T], value: bytes, what: str) -> T:
    try:
        return decoder.decode(value)
    except UNREADABLE as error:
        raise corrupt_record(what, error) from error


def corrupt_record(what: str, error: Exception) -> CorruptRecord:
    return CorruptRecord(f"a {what} record cannot be decoded ({error}); nothing that depends on it will be deleted")
