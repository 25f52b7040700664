"""Keep what is known of the parts that an object was joined from, so that a GET may ask for one of them.

    s3:parts                sizes, as COUNTxSIZE,... in order
    s3:checksum-parts       the checksums of the parts, by the algorithm of the object's own

They are kept where they are short enough for the object's metadata.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from refstore.core.user_metadata import CONTENT_CHECKSUM, CONTENT_PARTS, metadata_bytes
from refstore.operations.upload import METADATA_BYTES_MAX
from refstore_s3.checksums import ALGORITHMS

PART_CHECKSUMS: Final = CONTENT_CHECKSUM + "parts"
_SIZES: Final = re.compile(r"[0-9]{1,5}x[0-9]{1,16}(,[0-9]{1,5}x[0-9]{1,16})*")
_CHECKSUM: Final = re.compile(r"[A-Za-z0-9+/]{1,86}={0,2}")


class ObjectPart(NamedTuple):
    number: int
    start: int
    size_bytes: int
    algorithm: str
    """'': no checksum of the part is known."""
    checksum: str


def add_parts(attributes: Mapping[str, str], sizes_bytes: Sequence[int], checksums: Sequence[str]) -> dict[str, str]:
    """Return the attributes of an object with what is known of its parts. `checksums`: of each; empty: none."""
    sizes = ",".join(f"{len(list(run))}x{size}" for size, run in groupby(sizes_bytes))
    found = dict(attributes)
    for name, text in ((CONTENT_PARTS, sizes), (PART_CHECKSUMS, ",".join(checksums))):
        if text and metadata_bytes(found) + len(name) + len(text) <= METADATA_BYTES_MAX:
            found[name] = text
    return found


def read_parts(metadata: Mapping[str, str]) -> list[ObjectPart]:
    """Return the parts that an object was joined from; none where nothing is known of them."""
    text = metadata.get(CONTENT_PARTS, "")
    if not _SIZES.fullmatch(text):
        return []
    runs = [(int(count), int(size)) for count, _, size in (run.partition("x") for run in text.split(","))]
    sizes = [size for count, size in runs for _ in range(min(count, 10_000))]
    algorithm = next((each for each in ALGORITHMS if CONTENT_CHECKSUM + each in metadata), "")
    checksums = metadata.get(PART_CHECKSUMS, "").split(",")
    if len(checksums) != len(sizes) or not all(map(_CHECKSUM.fullmatch, checksums)):
        algorithm, checksums = "", [""] * len(sizes)
    parts: list[ObjectPart] = []
    start = 0
    for number, (size, checksum) in enumerate(zip(sizes, checksums, strict=True), 1):
        parts.append(ObjectPart(number, start, size, algorithm, checksum))
        start += size
    return parts
