"""Look up identifiers that stand as text: in lines of JSON and of CSV, in metadata, and in names; and
read UUIDs that stand as text, in any of their usual forms (RFC 9562).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from refstore_purge.formats.base import IdMatcher
from refstore_purge.untyped_pandas import pa, pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SIGNED: Final = range(-(2**63), 2**63)
_UNSIGNED: Final = range(2**63, 2**64)
_DIGITS_MAX: Final = 40
"""A number of more digits is no id, whatever its leading zeros."""
UUID_BYTES: Final = 16
_FORM: Final = r"\A(?:urn:uuid:)?\{?[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}\}?\z"
_CHUNK: Final = 100_000


def match_texts(texts: Sequence[bytes], ids: IdMatcher) -> NDArray[np.bool_]:
    """Return which texts in UTF-8 are ids. Where these are integers, raises ValueError for a text that is none."""
    match ids.kind:
        case "integer":
            return match_integers(texts, ids)
        case "string":
            return match_strings(texts, ids)
        case "binary":
            return match_binary(texts, ids)


def match_strings(texts: Sequence[bytes], ids: IdMatcher) -> NDArray[np.bool_]:
    """Return which texts in UTF-8 are ids."""
    return ids.matches(pa.array(texts, pa.binary()).cast(pa.string(), safe=False))


def match_integers(texts: Sequence[str] | Sequence[bytes], ids: IdMatcher) -> NDArray[np.bool_]:
    """Return which decimal numbers are ids. Raises ValueError for a text that is no integer."""
    numbers = [int(text) if len(text) < _DIGITS_MAX else 2**64 for text in texts]
    matched = np.zeros(len(numbers), dtype=np.bool_)
    for within, type_ in ((_SIGNED, pa.int64()), (_UNSIGNED, pa.uint64())):
        chosen = [place for place, number in enumerate(numbers) if number in within]
        if chosen:
            matched[chosen] = ids.matches(pa.array([numbers[place] for place in chosen], type_))
    return matched


def match_binary(texts: Sequence[bytes], ids: IdMatcher) -> NDArray[np.bool_]:
    """Return which texts are ids that are binary: by their own bytes, or as UUIDs by the 16 bytes of these."""
    matched = np.array(ids.matches(pa.array(texts, pa.binary())), dtype=np.bool_)
    ascii_texts = pa.array([text.decode() if text.isascii() else "" for text in texts], pa.string())
    places = np.flatnonzero(are_uuids(ascii_texts).to_numpy(zero_copy_only=False))
    matched[places] |= ids.matches(uuid_bytes(ascii_texts.take(pa.array(places))))
    return matched


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
