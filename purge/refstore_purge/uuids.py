"""Read UUIDs that stand as text, in any of their usual forms (RFC 9562)."""

from __future__ import annotations

from typing import Any, Final

from refstore_purge.untyped_pandas import pa, pc

UUID_BYTES: Final = 16
_FORM: Final = r"\A(?:urn:uuid:)?\{?[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}\}?\z"
_CHUNK: Final = 100_000


def are_uuids(texts: Any) -> Any:
    """Return for each text of an array whether it is a UUID; null for null."""
    return pc.match_substring_regex(texts, _FORM, ignore_case=True)


def uuid_bytes(texts: Any) -> Any:
    """Return the 16 bytes of each UUID of an array that has no null, and nothing else."""
    parts = [pa.array([], pa.binary(UUID_BYTES))]
    for start in range(0, len(texts), _CHUNK):
        some = texts.slice(start, _CHUNK)
        digits = pc.replace_substring_regex(pc.utf8_lower(some), r"^urn:uuid:|[^0-9a-f]", "")
        body = pa.py_buffer(bytes.fromhex("".join(digits.to_pylist())))
        parts.append(pa.Array.from_buffers(pa.binary(UUID_BYTES), len(some), [None, body]))
    return pa.concat_arrays(parts)
