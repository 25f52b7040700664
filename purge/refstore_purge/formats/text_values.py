"""Look up identifiers that stand as text: in lines of JSON and of CSV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from refstore_purge.formats.base import Ids
from refstore_purge.untyped_arrow import pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SIGNED: Final = range(-(2**63), 2**63)
_UNSIGNED: Final = range(2**63, 2**64)
_DIGITS_MAX: Final = 40
"""A number of more digits is no id, whatever its leading zeros."""


def match_strings(texts: Sequence[bytes], ids: Ids) -> NDArray[np.bool_]:
    """Return which texts in UTF-8 are ids."""
    return ids.matches(pa.array(texts, pa.binary()).cast(pa.string(), safe=False))


def match_integers(texts: Sequence[str], ids: Ids) -> NDArray[np.bool_]:
    """Return which decimal numbers are ids. Raises ValueError for a text that is no integer."""
    numbers = [int(text) if len(text) < _DIGITS_MAX else 2**64 for text in texts]
    matched = np.zeros(len(numbers), dtype=np.bool_)
    for within, type_ in ((_SIGNED, pa.int64()), (_UNSIGNED, pa.uint64())):
        chosen = [place for place, number in enumerate(numbers) if number in within]
        if chosen:
            matched[chosen] = ids.matches(pa.array([numbers[place] for place in chosen], type_))
    return matched
