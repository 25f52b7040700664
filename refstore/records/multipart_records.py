"""Records of multipart uploads: `<repo>/uploads`, and of their parts: `<repo>/parts/<upload id>` (rule 23)."""

from __future__ import annotations

from refstore.records.encoding import Record
from refstore.records.s3_attributes import S3Attributes
from refstore.records.staging_records import StoredEntry


class MultipartUpload(Record, frozen=True, tag=100):
    """What is known of an upload in parts. Whether it is open, the reference key of its address decides."""

    token_id: str
    """What its address, and the addresses of its parts, were issued with."""
    begun_ms: int
    expires_ms: int
    metadata: dict[str, str] = {}
    """Given when it was begun, for the object."""
    content_type: str = ""
    store_upload: str = ""
    """The store's own id of the upload; '': each part is an object of its own."""
    parts_digest: str = ""
    """Of the parts that are joined, since a completion fixed them."""
    closed_ms: int = 0
    """When it was completed or aborted, or found to be over; 0: it was not."""
    entry: StoredEntry | None = None
    """What a completion staged: a repeated one answers it again."""
    s3: S3Attributes | None = None
    """Given when it was begun, for the object. Its content has no more than the algorithm and kind of the checksum."""


class UploadedPart(Record, frozen=True, tag=101):
    """A part that is written. Its key names its number and its address, which is the upload's own where the store keeps
    the parts.
    """

    size_bytes: int
    etag: str
    """Hex MD5 of the part, or what the store gave instead."""
    written_ms: int
    checksums: dict[str, str] = {}
    """By algorithm, for S3 clients; refstore decides nothing by them."""
    sources: tuple[str, ...] = ()
    """The addresses from which its bytes were copied (`ContentDescription.sources`)."""
