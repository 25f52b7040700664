"""The table of S3's operations: which method and which field of the query ask for which, and who answers it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from starlette.responses import Response

from refstore_s3 import (
    buckets,
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


HANDLERS: Final[Mapping[Question, Handler]] = {
    Question("service", "GET"): buckets.list_buckets,
    Question("bucket", "GET"): listings.list_objects,
    Question("bucket", "GET", "list-type"): listings.list_objects_v2,
    Question("bucket", "GET", "versions"): listings.list_object_versions,
    Question("bucket", "GET", "location"): buckets.get_bucket_location,
    Question("bucket", "GET", "versioning"): buckets.get_bucket_versioning,
    Question("bucket", "POST", "delete"): object_writes.delete_objects,
    Question("bucket", "PUT"): buckets.create_bucket,
    Question("bucket", "DELETE"): buckets.delete_bucket,
    Question("bucket", "HEAD"): buckets.head_bucket,
    Question("object", "GET"): object_reads.get_object,
    Question("object", "GET", "attributes"): object_reads.get_object_attributes,
    Question("object", "HEAD"): object_reads.head_object,
    Question("object", "PUT"): object_writes.put_object,
    Question("object", "POST", "uploads"): multipart_requests.create_multipart_upload,
    Question("object", "PUT", "partNumber+uploadId"): multipart_requests.upload_part,
    Question("object", "POST", "uploadId"): multipart_requests.complete_multipart_upload,
    Question("object", "DELETE", "uploadId"): multipart_requests.abort_multipart_upload,
    Question("object", "GET", "uploadId"): multipart_requests.list_parts,
    Question("bucket", "GET", "uploads"): multipart_requests.list_multipart_uploads,
    Question("object", "DELETE"): object_writes.delete_object,
    Question("object", "GET", "tagging"): object_tags.get_object_tagging,
    Question("object", "PUT", "tagging"): object_tags.put_object_tagging,
    Question("object", "DELETE", "tagging"): object_tags.delete_object_tagging,
}

UNKNOWN: Final = S3Operation("(none)", None)


def find_operation(request: S3Request) -> S3Operation:
    """Return the operation that a request asks for; `UNKNOWN`: one that is not there."""
    kind = "object" if request.key else "bucket" if request.bucket_name else "service"
    chosen = sorted(SUBRESOURCES.intersection(request.query))
    if request.method in ("GET", "HEAD") and chosen == ["partNumber"]:
        chosen = []  # of GetObject it chooses bytes
    question = Question(kind, request.method, "+".join(chosen))
    if question == ("object", "PUT", "") and "x-amz-copy-source" in request.headers:
        handler = object_copies.copy_object
    else:
        handler = HANDLERS.get(question)
    if handler is None:
        return UNKNOWN
    name = handler.__name__.replace("_", " ").title().replace(" ", "")  # a handler has the name of its operation
    return S3Operation(name, handler)
