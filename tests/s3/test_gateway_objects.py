"""Objects through the gateway with boto3: put, get, head, delete, and what is refused."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from botocore.exceptions import ClientError

from refstore.service.access_keys import Role
from tests.s3.served_gateway import REPOSITORY, ServedGateway

BODY = b"some bytes of an object " * 100


@pytest.fixture
def s3(gateway: ServedGateway) -> Any:
    return gateway.client()


def code_of(call: Any, **options: Any) -> tuple[str, int]:
    with pytest.raises(ClientError) as caught:
        call(**options)
    answer = caught.value.response
    return answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]


def test_an_object_is_put_read_and_deleted(gateway: ServedGateway, s3: Any) -> None:
    key = {"Bucket": REPOSITORY, "Key": "main/folder/a b+c/ä.csv"}
    put = s3.put_object(**key, Body=BODY, ContentType="text/csv", Metadata={"owner": "ann"}, CacheControl="no-store")
    assert put["ETag"] == f'"{hashlib.md5(BODY, usedforsecurity=False).hexdigest()}"'
    assert put["ChecksumCRC32"]
    got = s3.get_object(**key, ChecksumMode="ENABLED")
    assert got["Body"].read() == BODY
    assert (got["ETag"], got["ContentType"], got["Metadata"]) == (put["ETag"], "text/csv", {"owner": "ann"})
    assert (got["CacheControl"], got["ChecksumCRC32"]) == ("no-store", put["ChecksumCRC32"])
    assert gateway.repository.read("main", "folder/a b+c/ä.csv") == BODY
    head = s3.head_object(**key)
    assert (head["ContentLength"], head["ETag"]) == (len(BODY), put["ETag"])
    assert head["ResponseMetadata"]["HTTPHeaders"]["x-amz-request-id"]
    assert s3.get_object(**key, Range="bytes=5-9")["Body"].read() == BODY[5:10]
    s3.delete_object(**key)
    assert code_of(s3.get_object, **key) == ("NoSuchKey", 404)
    s3.delete_object(**key)


def test_a_long_body_streams(gateway: ServedGateway, s3: Any) -> None:
    body = BODY * 2000
    put = s3.put_object(Bucket=REPOSITORY, Key="main/long", Body=body, ChecksumAlgorithm="CRC64NVME")
    head = s3.head_object(Bucket=REPOSITORY, Key="main/long", ChecksumMode="ENABLED")
    assert head["ChecksumCRC64NVME"] == put["ChecksumCRC64NVME"]
    assert s3.get_object(Bucket=REPOSITORY, Key="main/long")["Body"].read() == body


@pytest.mark.parametrize("size", [10, 5 << 20])
def test_a_wrong_checksum_stores_nothing(gateway: ServedGateway, s3: Any, size: int) -> None:
    put = {"Bucket": REPOSITORY, "Key": "main/wrong", "Body": b"x" * size}
    assert code_of(s3.put_object, **put, ChecksumCRC32="AAAAAA==") == ("BadDigest", 400)
    assert code_of(s3.put_object, **put, ContentMD5="1B2M2Y8AsgTpgAmY7PhCfg==") == ("BadDigest", 400)
    assert code_of(s3.head_object, Bucket=REPOSITORY, Key="main/wrong") == ("404", 404)
    assert not gateway.repository.stat_many("main", ["wrong"])


def test_a_key_is_written_once_if_it_must_be_free(s3: Any) -> None:
    key = {"Bucket": REPOSITORY, "Key": "main/once"}
    s3.put_object(**key, Body=b"1", IfNoneMatch="*")
    assert code_of(s3.put_object, **key, Body=b"2", IfNoneMatch="*") == ("PreconditionFailed", 412)
    assert code_of(s3.put_object, **key, Body=b"2" * (2 << 20), IfNoneMatch="*") == ("PreconditionFailed", 412)
    assert s3.get_object(**key)["Body"].read() == b"1"


def test_what_is_missing_is_named(s3: Any) -> None:
    with pytest.raises(ClientError, match="'nowhere' is neither a branch") as caught:
        s3.get_object(Bucket=REPOSITORY, Key="nowhere/x")
    assert caught.value.response["Error"]["Code"] == "NoSuchKey"
    assert code_of(s3.put_object, Bucket=REPOSITORY, Key="nowhere/x", Body=b"") == ("NoSuchKey", 404)
    assert code_of(s3.get_object, Bucket="no-such-repository", Key="main/x") == ("NoSuchBucket", 404)
    assert code_of(s3.get_object, Bucket="Not_A_Name", Key="main/x") == ("InvalidBucketName", 400)
    assert code_of(s3.head_bucket, Bucket="no-such-repository") == ("404", 404)


def test_commits_and_tags_are_read_only(gateway: ServedGateway, s3: Any) -> None:
    gateway.repository.upload("main", "kept", b"kept")
    commit = gateway.repository.commit("main", "one").id
    gateway.repository.create_tag("v1", ref="main")
    for ref in ("v1", commit, "main@"):
        assert s3.get_object(Bucket=REPOSITORY, Key=f"{ref}/kept")["Body"].read() == b"kept"
        with pytest.raises(ClientError, match="never changes"):
            s3.put_object(Bucket=REPOSITORY, Key=f"{ref}/kept", Body=b"")
        assert code_of(s3.delete_object, Bucket=REPOSITORY, Key=f"{ref}/kept") == ("AccessDenied", 403)


def test_a_branch_with_a_slash_is_reached(gateway: ServedGateway, s3: Any) -> None:
    gateway.repository.create_branch("team/x", source="main")
    longest = "x" * 1024
    for path in ("a", longest):
        s3.put_object(Bucket=REPOSITORY, Key=f"team%2Fx/{path}", Body=b"1")
        assert gateway.repository.read("team/x", path) == b"1"
    too_long = {"Bucket": REPOSITORY, "Key": f"team%2Fx/{longest}x"}
    assert code_of(s3.put_object, **too_long, Body=b"1") == ("KeyTooLongError", 400)


def test_roles_and_repositories_count(gateway: ServedGateway) -> None:
    gateway.lake.create_repository("other")
    gateway.add_key("READER", Role.READER)
    gateway.add_key("ELSEWHERE", Role.WRITER, ("other",))
    gateway.repository.upload("main", "seen", b"1")
    reader, elsewhere = gateway.client("READER"), gateway.client("ELSEWHERE")
    assert reader.get_object(Bucket=REPOSITORY, Key="main/seen")["Body"].read() == b"1"
    assert code_of(reader.put_object, Bucket=REPOSITORY, Key="main/x", Body=b"") == ("AccessDenied", 403)
    assert code_of(elsewhere.get_object, Bucket=REPOSITORY, Key="main/seen") == ("AccessDenied", 403)
    assert [each["Name"] for each in elsewhere.list_buckets()["Buckets"]] == ["other"]
    assert {"lake", "other"} <= {each["Name"] for each in reader.list_buckets()["Buckets"]}


def test_a_wrong_secret_and_an_unknown_key_are_refused(gateway: ServedGateway) -> None:
    assert code_of(gateway.client(secret="wrong").list_buckets) == ("SignatureDoesNotMatch", 403)
    assert code_of(gateway.client("NOBODY").list_buckets) == ("InvalidAccessKeyId", 403)


def test_what_is_not_there_is_not_implemented(s3: Any) -> None:
    assert code_of(s3.get_bucket_policy, Bucket=REPOSITORY) == ("NotImplemented", 501)
    key = {"Bucket": REPOSITORY, "Key": "main/x"}
    for call, asked in (
        (s3.put_object, {**key, "ServerSideEncryption": "AES256"}),
        (s3.put_object, {**key, "ACL": "public-read"}),
        (s3.put_object, {**key, "StorageClass": "GLACIER"}),
        (s3.get_object, {**key, "SSECustomerAlgorithm": "AES256", "SSECustomerKey": "k" * 32}),
        (s3.copy_object, {**key, "CopySource": key, "CopySourceSSECustomerAlgorithm": "AES256"}),
        (s3.create_bucket, {"Bucket": REPOSITORY, "ObjectLockEnabledForBucket": True}),
    ):
        assert code_of(call, **asked) == ("NotImplemented", 501), asked
    assert "Status" not in s3.get_bucket_versioning(Bucket=REPOSITORY)


def test_the_requests_are_counted(gateway: ServedGateway, s3: Any) -> None:
    for _ in range(2):  # a request is counted behind its answer, and before the next one of its connection
        s3.list_buckets()
    assert b"s3:ListBuckets" in gateway.metrics.render()


def test_the_folder_of_a_branch_is_there_already(s3: Any) -> None:
    """Clients that think in folders put an empty object at the first one before they write below it."""
    assert s3.put_object(Bucket=REPOSITORY, Key="main/", Body=b"")["ETag"]
    assert code_of(s3.put_object, Bucket=REPOSITORY, Key="nowhere/", Body=b"") == ("NoSuchKey", 404)
    assert code_of(s3.put_object, Bucket=REPOSITORY, Key="main/", Body=b"1") == ("InvalidArgument", 400)
