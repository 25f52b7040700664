"""Look up identifiers that stand as text: in lines of JSON and of CSV, in metadata, and in names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from refstore_purge import uuids
from refstore_purge.formats.base import IdMatcher
from refstore_purge.untyped_pandas import pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SIGNED: Final = range(-(2**63), 2**63)
_UNSIGNED: Final = range(2**63, 2**64)
_DIGITS_MAX: Final = 40
"""A number of more digits is no id, whatever its leading zeros."""


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
    places = np.flatnonzero(uuids.are_uuids(ascii_texts).to_numpy(zero_copy_only=False))
    matched[places] |= ids.matches(uuids.uuid_bytes(ascii_texts.take(pa.array(places))))
    return matched
