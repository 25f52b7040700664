"""Describe an object that comes in parts: its ETag, the checksum that its upload was begun for, and its parts.

An upload keeps algorithm and type of the checksum in its attributes until it is completed. What is known of the parts
lets a GET ask for one of them: the sizes, and the checksums by the algorithm of the object's own. They are kept where
they are short enough for the object's entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

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
from refstore.records.staging_records import StoredEntry
from refstore.versioning.multipart_uploads import WrittenPart
from refstore_s3 import checksums
from refstore_s3.checksums import ALGORITHMS, COMPOSITE, FULL_OBJECT
from refstore_s3.s3_errors import S3Error


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


def read_parts(entry: StoredEntry) -> list[ObjectPart]:
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


ALGORITHM_HEADER: Final = "x-amz-checksum-algorithm"
TYPE_HEADER: Final = "x-amz-checksum-type"


class UploadChecksum(NamedTuple):
    """The checksum that the parts of an upload have, and how the object's follows from them."""

    algorithm: str
    """'': none."""
    kind: str
    """`COMPOSITE` or `FULL_OBJECT`."""

    @classmethod
    def read(cls, headers: Mapping[str, str]) -> UploadChecksum:
        """Read what the request that begins an upload asks for. Raises S3Error."""
        algorithm, kind = headers.get(ALGORITHM_HEADER, "").lower(), headers.get(TYPE_HEADER, "").upper()
        if algorithm and algorithm not in ALGORITHMS:
            raise S3Error("InvalidRequest", f"{ALGORITHM_HEADER} must be one of {', '.join(ALGORITHMS)}")
        if kind not in ("", "COMPOSITE", "FULL_OBJECT"):
            raise S3Error("InvalidRequest", f"{TYPE_HEADER} must be COMPOSITE or FULL_OBJECT")
        if not algorithm:
            if kind:
                raise S3Error("InvalidRequest", f"{TYPE_HEADER} is of a checksum; name one in {ALGORITHM_HEADER}")
            return cls("", "")
        kind = kind or ("COMPOSITE" if algorithm in COMPOSITE else "FULL_OBJECT")
        if algorithm not in (FULL_OBJECT if kind == "FULL_OBJECT" else COMPOSITE):
            raise S3Error("InvalidRequest", f"a checksum of {algorithm.upper()} cannot be {kind}; ask for another")
        return cls(algorithm, kind)

    @classmethod
    def kept_by(cls, upload: MultipartUpload) -> UploadChecksum:
        content = content_of(upload.s3)
        if content is None:
            return cls("", "")
        return cls(content.algorithm, "COMPOSITE" if content.is_composite else "FULL_OBJECT")

    @property
    def description(self) -> ContentDescription | None:
        """What the upload keeps of it."""
        return ContentDescription(self.algorithm, is_composite=self.kind == "COMPOSITE") if self.algorithm else None

    @property
    def headers(self) -> dict[str, str]:
        return {ALGORITHM_HEADER: self.algorithm.upper(), TYPE_HEADER: self.kind} if self.algorithm else {}

    @property
    def content(self) -> list[tuple[str, str]]:
        """The elements that tell of it."""
        return [("ChecksumAlgorithm", self.algorithm.upper()), ("ChecksumType", self.kind)] if self.algorithm else []


def describe(upload: MultipartUpload, parts: Sequence[WrittenPart]) -> S3Attributes | None:
    """Return the attributes of the object: the upload's, and what follows from the parts."""
    checksum = UploadChecksum.kept_by(upload)
    combined = _combine_parts(checksum, parts)
    etag = checksums.multipart_etag([_md5_of(item.part.etag) for item in parts])
    texts = [item.part.checksums[checksum.algorithm] for item in parts] if combined.checksum else []
    content = msgspec.structs.replace(combined, etag=etag)
    return add_parts(upload, content, [item.part.size_bytes for item in parts], texts)


def _md5_of(etag: str) -> bytes:
    """Return a part's MD5; of another kind of ETag, which some stores have, its text."""
    try:
        digest = bytes.fromhex(etag)
    except ValueError:
        return etag.encode()
    return digest if len(digest) == 16 else etag.encode()


def _combine_parts(checksum: UploadChecksum, parts: Sequence[WrittenPart]) -> ContentDescription:
    """Return the object's checksum; nothing where a part has none."""
    algorithm = checksum.algorithm
    texts = [item.part.checksums.get(algorithm, "") for item in parts]
    if not algorithm or not all(texts):
        return ContentDescription()
    digests = [checksums.parse(algorithm, text) for text in texts]
    if checksum.kind == "FULL_OBJECT":
        sized = zip(digests, [item.part.size_bytes for item in parts], strict=True)
        text = checksums.encode(checksums.combine(algorithm, sized))
    else:
        text = checksums.compose(algorithm, digests)
    return ContentDescription(algorithm, text, checksum.kind == "COMPOSITE")
