"""Keep the sizes of an object's parts, so that a GET may ask for one of them: `COUNTxSIZE,...`, in order.

They are kept where that is short, as it is where all parts but the last have one size.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

from refstore.core.user_metadata import CONTENT_PARTS
from refstore_api.headers import ByteRange

_TEXT_MAX: Final = 100
_FORM: Final = re.compile(r"[0-9]{1,5}x[0-9]{1,16}(,[0-9]{1,5}x[0-9]{1,16})*")


def part_attributes(sizes_bytes: Sequence[int]) -> dict[str, str]:
    """Return what an object keeps of the sizes of its parts."""
    text = ",".join(f"{len(list(run))}x{size}" for size, run in groupby(sizes_bytes))
    return {CONTENT_PARTS: text} if len(text) <= _TEXT_MAX else {}


def count_parts(metadata: Mapping[str, str]) -> int:
    """Return how many parts an object has; 0: nobody knows of any."""
    return sum(count for count, _ in _read_runs(metadata))


def find_part(metadata: Mapping[str, str], number: int) -> ByteRange | None:
    """Return the bytes of a part; None: there is no such part."""
    start, left = 0, number - 1
    for count, size in _read_runs(metadata):
        if left < count:
            start += left * size
            return ByteRange(start, start + size)
        start, left = start + count * size, left - count
    return None


def _read_runs(metadata: Mapping[str, str]) -> list[tuple[int, int]]:
    text = metadata.get(CONTENT_PARTS, "")
    if not _FORM.fullmatch(text):
        return []
    return [(int(count), int(size)) for count, _, size in (run.partition("x") for run in text.split(","))]
