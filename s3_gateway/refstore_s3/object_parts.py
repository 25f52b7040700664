"""Keep what is known of the parts that an object was joined from, so that a GET may ask for one of them: the sizes, and
the checksums by the algorithm of the object's own. They are kept where they are short enough for the object's entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from refstore.core.user_metadata import OBJECT_METADATA_BYTES_MAX, metadata_bytes
from refstore.operations.multipart import PARTS_MAX
from refstore.records.multipart_records import MultipartUpload
from refstore.records.s3_attributes import (
    ContentDescription,
    S3Attributes,
    attributes_bytes,
    content_of,
    join_attributes,
)
from refstore.records.staging_records import Entry


class ObjectPart(NamedTuple):
    number: int
    start: int
    size_bytes: int
    algorithm: str
    """'': no checksum of the part is known."""
    checksum: str


def add_parts(
    upload: MultipartUpload, content: ContentDescription, sizes_bytes: Sequence[int], checksums: Sequence[str]
) -> S3Attributes | None:
    """Return the attributes of an upload's object with what is known of its parts. `checksums`: of each, or none."""
    room = OBJECT_METADATA_BYTES_MAX - metadata_bytes(upload.metadata)
    attributes = join_attributes(upload.s3, content)
    runs = tuple((len(list(run)), size) for size, run in groupby(sizes_bytes))
    for known in (
        msgspec.structs.replace(content, part_runs=runs),
        msgspec.structs.replace(content, part_runs=runs, part_checksums=tuple(checksums)),
    ):
        longer = join_attributes(upload.s3, known)
        if attributes_bytes(longer) > room:
            break
        attributes = longer
    return attributes


def read_parts(entry: Entry) -> list[ObjectPart]:
    """Return the parts that an object was joined from; none where nothing is known of them."""
    content = content_of(entry.s3)
    # counted before they are expanded: a few bytes can stand for any number of parts
    if content is None or sum(max(count, 0) for count, _ in content.part_runs) > PARTS_MAX:
        return []
    sizes = [size for count, size in content.part_runs for _ in range(count)]
    algorithm, checksums = content.algorithm, content.part_checksums
    if len(checksums) != len(sizes):
        algorithm, checksums = "", [""] * len(sizes)
    parts: list[ObjectPart] = []
    start = 0
    for number, (size, checksum) in enumerate(zip(sizes, checksums, strict=True), 1):
        parts.append(ObjectPart(number, start, size, algorithm, checksum))
        start += size
    return parts
