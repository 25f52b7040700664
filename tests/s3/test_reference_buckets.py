"""Buckets as the S3 API reference describes them: names, creation, listing, and what a missing one answers.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_CreateBucket.html, API_ListBuckets, API_DeleteBucket
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from botocore import UNSIGNED

from tests.s3.plain_bucket import PlainBucket
from tests.s3.test_gateway_objects import code_of

SOURCE: Final = {"Bucket": "missing-bucket", "Key": "k"}
PART: Final = {"UploadId": "u", "PartNumber": 1}
OF_BUCKETS: Final[dict[str, dict[str, Any]]] = {
    "list_objects": {},
    "list_objects_v2": {},
    "list_object_versions": {},
    "list_multipart_uploads": {},
    "get_bucket_location": {},
    "get_bucket_versioning": {},
    "delete_objects": {"Delete": {"Objects": [{"Key": "k"}]}},
    "delete_bucket": {},
}
OF_OBJECTS: Final[dict[str, dict[str, Any]]] = {
    "get_object": {},
    "put_object": {"Body": b"1"},
    "delete_object": {},
    "copy_object": {"CopySource": SOURCE},
    "get_object_attributes": {"ObjectAttributes": ["ETag"]},
    "get_object_tagging": {},
    "put_object_tagging": {"Tagging": {"TagSet": []}},
    "delete_object_tagging": {},
    "create_multipart_upload": {},
    "upload_part": {**PART, "Body": b"1"},
    "upload_part_copy": {**PART, "CopySource": SOURCE},
    "list_parts": {"UploadId": "u"},
    "complete_multipart_upload": {"UploadId": "u", "MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": "e"}]}},
    "abort_multipart_upload": {"UploadId": "u"},
}
OPERATIONS: Final = [*OF_BUCKETS, *OF_OBJECTS]


def call(client: Any, operation: str, bucket: str) -> Any:
    arguments = OF_BUCKETS.get(operation)
    if arguments is None:
        arguments = {"Key": "k", **OF_OBJECTS[operation]}
    return getattr(client, operation)(Bucket=bucket, **arguments)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_bucket_that_is_not_there(bucket: PlainBucket, operation: str) -> None:
    assert code_of(call, client=bucket.client, operation=operation, bucket="missing-bucket") == ("NoSuchBucket", 404)
    assert code_of(bucket.client.head_bucket, Bucket="missing-bucket") == ("404", 404)


@pytest.mark.parametrize("operation", ["list_buckets", "create_bucket", *OPERATIONS])
def test_a_request_without_a_key_is_refused(bucket: PlainBucket, operation: str) -> None:
    stranger = bucket.gateway.client(signature_version=UNSIGNED)
    bucket.put("k", b"there")
    if operation in OPERATIONS:
        assert code_of(call, client=stranger, operation=operation, bucket=bucket.name) == ("AccessDenied", 403)
    else:
        arguments = {"Bucket": "by-nobody"} if operation == "create_bucket" else {}
        assert code_of(getattr(stranger, operation), **arguments) == ("AccessDenied", 403)
    assert (bucket.keys(), bucket.read("k")) == (["k"], b"there")


@pytest.mark.parametrize("name", ["abc", "a1b", "1ab", "123", "with-hyphens-in-it", "a" * 61, "a" * 63])
def test_a_name_that_a_bucket_may_have(bucket: PlainBucket, name: str) -> None:
    s3 = bucket.client
    assert s3.create_bucket(Bucket=name)["Location"] == f"/{name}"
    assert name in [each["Name"] for each in s3.list_buckets()["Buckets"]]
    s3.put_object(Bucket=name, Key="k", Body=b"1")
    s3.delete_object(Bucket=name, Key="k")
    s3.delete_bucket(Bucket=name)
    assert name not in [each["Name"] for each in s3.list_buckets()["Buckets"]]


@pytest.mark.parametrize(
    "name",
    ["a", "ab", "a" * 64, "a" * 255, "Capital", "under_score", "-first", "last-", ".first", "last.", "two..dots",
     "dot.-hyphen", "hyphen-.dot", "192.168.5.4"],
)  # fmt: skip
def test_a_name_that_no_bucket_may_have(bucket: PlainBucket, name: str) -> None:
    assert code_of(bucket.client.create_bucket, Bucket=name) == ("InvalidBucketName", 400)
    assert name not in [each["Name"] for each in bucket.client.list_buckets()["Buckets"]]


def test_a_bucket_is_created_once_and_keeps_its_objects(bucket: PlainBucket) -> None:
    bucket.put("k", b"1")
    region = {"LocationConstraint": "eu-west-1"}
    assert bucket.client.create_bucket(Bucket=bucket.name, CreateBucketConfiguration=region)["Location"]
    assert bucket.read("k") == b"1"
    headers = bucket.client.head_bucket(Bucket=bucket.name)["ResponseMetadata"]["HTTPHeaders"]
    assert headers["x-amz-bucket-region"] == "us-east-1"


def test_a_bucket_with_an_object_is_not_deleted(bucket: PlainBucket) -> None:
    bucket.put("k", b"1")
    assert code_of(bucket.client.delete_bucket, Bucket=bucket.name) == ("BucketNotEmpty", 409)
    assert bucket.read("k") == b"1"
    bucket.client.delete_object(**bucket.at("k"))
    bucket.client.delete_bucket(Bucket=bucket.name)
    assert code_of(bucket.client.delete_bucket, Bucket=bucket.name) == ("NoSuchBucket", 404)


def test_buckets_are_listed_with_their_dates_in_pages(bucket: PlainBucket) -> None:
    s3 = bucket.client
    names = [f"paged-{number}" for number in range(5)]
    before = datetime.now(UTC) - timedelta(seconds=1)  # dates have whole seconds
    for name in names:
        s3.create_bucket(Bucket=name)
    seen: list[str] = []
    page = s3.list_buckets(Prefix="paged-", MaxBuckets=2)
    while True:
        assert page["Prefix"] == "paged-"
        assert len(page["Buckets"]) <= 2
        assert all(before <= each["CreationDate"] <= datetime.now(UTC) for each in page["Buckets"])
        seen += [each["Name"] for each in page["Buckets"]]
        if "ContinuationToken" not in page:
            break
        page = s3.list_buckets(Prefix="paged-", MaxBuckets=2, ContinuationToken=page["ContinuationToken"])
    assert seen == names
    assert s3.list_buckets(Prefix="paged-none")["Buckets"] == []


@pytest.mark.parametrize(
    "operation",
    ["get_bucket_acl", "get_bucket_cors", "get_bucket_encryption", "get_bucket_lifecycle_configuration",
     "get_bucket_logging", "get_bucket_notification_configuration", "get_bucket_ownership_controls",
     "get_bucket_policy_status", "get_bucket_replication", "get_bucket_tagging", "get_bucket_website",
     "get_object_lock_configuration", "get_public_access_block", "get_object_acl", "get_object_legal_hold",
     "get_object_retention"],
)  # fmt: skip
def test_what_is_not_supported_says_so(bucket: PlainBucket, operation: str) -> None:
    key = bucket.at("k") if operation in ("get_object_acl", "get_object_legal_hold", "get_object_retention") else {}
    assert code_of(getattr(bucket.client, operation), **{"Bucket": bucket.name, **key}) == ("NotImplemented", 501)
