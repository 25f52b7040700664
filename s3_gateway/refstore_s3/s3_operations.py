"""The table of S3's operations: which method and which field of the query ask for which, and who answers it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from starlette.responses import Response

from refstore_s3 import (
    buckets,
    deletions,
    listings,
    multipart_requests,
    object_copies,
    object_reads,
    object_tags,
    object_writes,
)
from refstore_s3.s3_requests import S3Request

Handler = Callable[[S3Request], Awaitable[Response]]

SUBRESOURCES: Final = frozenset(
    {
        "abac", "accelerate", "acl", "analytics", "append", "attributes", "cors", "delete", "encryption",
        "intelligent-tiering", "inventory", "legal-hold", "lifecycle", "list-type", "location", "logging",
        "metadataConfiguration", "metadataInventoryTable", "metadataJournalTable", "metadataTable", "metrics",
        "notification", "object-lock", "ownershipControls", "partNumber", "policy", "policyStatus",
        "publicAccessBlock", "renameObject", "replication", "requestPayment", "restore", "retention", "select",
        "select-type", "session", "tagging", "torrent", "uploadId", "uploads", "versioning", "versions", "website",
    }
)  # fmt: skip
"""The fields of a query that choose an operation."""


class Question(NamedTuple):
    """What chooses an operation."""

    kind: str
    """`service`, `bucket` or `object`."""
    method: str
    subresource: str = ""


class S3Operation(NamedTuple):
    name: str
    """S3's own name."""
    handler: Handler | None
    """None: it is not there."""


OPERATIONS: Final[Mapping[Question, S3Operation]] = {
    Question("service", "GET"): S3Operation("ListBuckets", buckets.list_buckets),
    Question("bucket", "GET"): S3Operation("ListObjects", listings.list_objects),
    Question("bucket", "GET", "list-type"): S3Operation("ListObjectsV2", listings.list_objects_v2),
    Question("bucket", "GET", "versions"): S3Operation("ListObjectVersions", listings.list_object_versions),
    Question("bucket", "GET", "location"): S3Operation("GetBucketLocation", buckets.get_bucket_location),
    Question("bucket", "GET", "versioning"): S3Operation("GetBucketVersioning", buckets.get_bucket_versioning),
    Question("bucket", "POST", "delete"): S3Operation("DeleteObjects", deletions.delete_objects),
    Question("bucket", "PUT"): S3Operation("CreateBucket", buckets.create_bucket),
    Question("bucket", "DELETE"): S3Operation("DeleteBucket", buckets.delete_bucket),
    Question("bucket", "HEAD"): S3Operation("HeadBucket", buckets.head_bucket),
    Question("object", "GET"): S3Operation("GetObject", object_reads.get_object),
    Question("object", "GET", "attributes"): S3Operation("GetObjectAttributes", object_reads.get_object_attributes),
    Question("object", "HEAD"): S3Operation("HeadObject", object_reads.head_object),
    Question("object", "PUT"): S3Operation("PutObject", object_writes.put_object),
    Question("object", "POST", "uploads"): S3Operation(
        "CreateMultipartUpload", multipart_requests.create_multipart_upload
    ),
    Question("object", "PUT", "partNumber+uploadId"): S3Operation("UploadPart", multipart_requests.upload_part),
    Question("object", "POST", "uploadId"): S3Operation(
        "CompleteMultipartUpload", multipart_requests.complete_multipart_upload
    ),
    Question("object", "DELETE", "uploadId"): S3Operation(
        "AbortMultipartUpload", multipart_requests.abort_multipart_upload
    ),
    Question("object", "GET", "uploadId"): S3Operation("ListParts", multipart_requests.list_parts),
    Question("bucket", "GET", "uploads"): S3Operation(
        "ListMultipartUploads", multipart_requests.list_multipart_uploads
    ),
    Question("object", "DELETE"): S3Operation("DeleteObject", object_writes.delete_object),
    Question("object", "GET", "tagging"): S3Operation("GetObjectTagging", object_tags.get_object_tagging),
    Question("object", "PUT", "tagging"): S3Operation("PutObjectTagging", object_tags.put_object_tagging),
    Question("object", "DELETE", "tagging"): S3Operation("DeleteObjectTagging", object_tags.delete_object_tagging),
}

COPY: Final = S3Operation("CopyObject", object_copies.copy_object)
UNKNOWN: Final = S3Operation("(none)", None)


def find_operation(request: S3Request) -> S3Operation:
    """Return the operation that a request asks for; `UNKNOWN`: one that is not there."""
    kind = "object" if request.key else "bucket" if request.bucket_name else "service"
    chosen = sorted(SUBRESOURCES.intersection(request.query))
    if request.method in ("GET", "HEAD") and chosen == ["partNumber"]:
        chosen = []  # of GetObject it chooses bytes
    question = Question(kind, request.method, "+".join(chosen))
    if question == ("object", "PUT", "") and "x-amz-copy-source" in request.headers:
        return COPY
    return OPERATIONS.get(question, UNKNOWN)
