"""Copies, tags, checksums and uploads in parts as the S3 API reference describes them.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_CopyObject.html, API_PutObjectTagging, API_GetObjectAttributes,
API_CreateMultipartUpload; https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity.html
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from tests.s3.plain_bucket import PlainBucket
from tests.s3.test_gateway_multipart import BIG, begin, end, etag_of, send
from tests.s3.test_gateway_objects import code_of

ATTRIBUTES: Final[dict[str, Any]] = {
    "CacheControl": "max-age=60",
    "ContentDisposition": "inline",
    "ContentEncoding": "gzip",
    "ContentLanguage": "de",
    "ContentType": "text/csv",
    "Expires": datetime(2040, 2, 3, tzinfo=UTC),
    "Metadata": {"a": "b", "empty": ""},
}
DEFAULTS: Final[dict[str, Any]] = {"ContentType": "binary/octet-stream", "Metadata": {}}


def describe(bucket: PlainBucket, key: str, name: str = "") -> dict[str, Any]:
    head = bucket.client.head_object(Bucket=name or bucket.name, Key=key)
    return {name: head[name] for name in ATTRIBUTES if name in head}


def tags_of(bucket: PlainBucket, key: str, name: str = "") -> dict[str, str]:
    tags = bucket.client.get_object_tagging(Bucket=name or bucket.name, Key=key)["TagSet"]
    return {each["Key"]: each["Value"] for each in tags}


def make_tags(tags: dict[str, str]) -> dict[str, Any]:
    return {"TagSet": [{"Key": key, "Value": value} for key, value in tags.items()]}


# copies


@pytest.mark.parametrize("size", [0, 10, 6 << 20])
@pytest.mark.parametrize("is_other", [False, True])
def test_a_copy_has_what_its_source_has_or_what_its_request_gives(
    bucket: PlainBucket, size: int, is_other: bool
) -> None:
    s3, name = bucket.client, f"{bucket.name}-2" if is_other else bucket.name
    s3.create_bucket(Bucket=name)
    etag = bucket.put("k", b"x" * size, **ATTRIBUTES, Tagging="t=1")["ETag"]
    copy = {"Bucket": name, "CopySource": bucket.at("k")}
    result = s3.copy_object(**copy, Key="same")["CopyObjectResult"]
    assert result["ETag"] == etag
    assert result["LastModified"] == s3.head_object(Bucket=name, Key="same")["LastModified"]
    assert (describe(bucket, "same", name), tags_of(bucket, "same", name)) == (ATTRIBUTES, {"t": "1"})
    s3.copy_object(**copy, Key="ignored", MetadataDirective="COPY", Metadata={"c": "d"}, ContentType="a/b")
    assert describe(bucket, "ignored", name) == ATTRIBUTES, "what a request gives counts with REPLACE only"
    s3.copy_object(**copy, Key="bare", MetadataDirective="REPLACE", TaggingDirective="REPLACE")
    assert (describe(bucket, "bare", name), tags_of(bucket, "bare", name)) == (DEFAULTS, {})
    given = {"Metadata": {"c": "d"}, "ContentType": "a/b", "CacheControl": "no-store"}
    s3.copy_object(**copy, Key="given", MetadataDirective="REPLACE", **given)
    assert (describe(bucket, "given", name), tags_of(bucket, "given", name)) == (given, {"t": "1"})
    for key in ("same", "ignored", "bare", "given"):
        assert s3.get_object(Bucket=name, Key=key)["Body"].read() == b"x" * size
    assert describe(bucket, "k") == ATTRIBUTES


def test_a_copy_onto_itself_changes_something(bucket: PlainBucket) -> None:
    bucket.put("k", b"1", Metadata={"a": "b"})
    copy = {**bucket.at("k"), "CopySource": bucket.at("k")}
    assert code_of(bucket.client.copy_object, **copy) == ("InvalidRequest", 400)
    bucket.client.copy_object(**copy, MetadataDirective="REPLACE", Metadata={"c": "d"})
    assert (bucket.read("k"), describe(bucket, "k")["Metadata"]) == (b"1", {"c": "d"})


def test_a_copy_is_an_object_of_its_own(bucket: PlainBucket) -> None:
    bucket.put("k", b"old")
    bucket.client.copy_object(**bucket.at("copy"), CopySource=bucket.at("k"))
    bucket.put("k", b"new")
    assert bucket.read("copy") == b"old"
    bucket.client.delete_object(**bucket.at("copy"))
    assert bucket.read("k") == b"new"


@pytest.mark.parametrize(
    ("source", "code"),
    [("{}/none", "NoSuchKey"), ("/{}/none", "NoSuchKey"), ("missing-bucket/k", "NoSuchBucket"),
     ("{}", "InvalidArgument"), ("{}/", "InvalidArgument"),
     ("{}/k?versionId=v1", "NoSuchVersion")],
)  # fmt: skip
def test_a_source_that_is_not_there(bucket: PlainBucket, source: str, code: str) -> None:
    bucket.put("k", b"1")
    s3, text = bucket.client, source.format(bucket.name)
    assert code_of(s3.copy_object, **bucket.at("copy"), CopySource=text)[0] == code
    upload = begin(s3, "copy", bucket.name)
    assert code_of(s3.upload_part_copy, **upload, PartNumber=1, CopySource=text)[0] == code
    assert (bucket.keys(), "Parts" in s3.list_parts(**upload)) == (["k"], False)


# tags


@pytest.mark.parametrize(
    ("tags", "is_valid"),
    [
        ({}, True),
        ({f"k{number}": "v" for number in range(10)}, True),
        ({f"k{number}": "v" for number in range(11)}, False),
        ({"k" * 128: "v" * 256}, True),
        ({"k" * 129: "v"}, False),
        ({"k": "v" * 257}, False),
        ({"é +-=._:/@": "日本 &<>"}, True),
    ],
    ids=["none", "ten", "eleven", "longest", "long key", "long value", "letters"],
)
def test_how_many_and_how_long_tags_may_be(bucket: PlainBucket, tags: dict[str, str], is_valid: bool) -> None:
    s3 = bucket.client
    bucket.put("k", b"1", Tagging="before=1")
    put = {**bucket.at("k"), "Tagging": make_tags(tags)}
    if is_valid:
        s3.put_object_tagging(**put)
        assert tags_of(bucket, "k") == tags
        for read in (s3.get_object, s3.head_object):
            assert read(**bucket.at("k")).get("TagCount", 0) == len(tags)
    else:
        assert code_of(s3.put_object_tagging, **put) == ("InvalidTag", 400)
        assert tags_of(bucket, "k") == {"before": "1"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1&b=", {"a": "1", "b": ""}),
        ("a%20b=c%26d&%C3%A9=%2B", {"a b": "c&d", "é": "+"}),
        ("a=1&a=2", "InvalidTag"),
        ("=1", "InvalidTag"),
        (f"{'k' * 129}=1", "InvalidTag"),
        (f"k={'v' * 257}", "InvalidTag"),
        ("a=%FF", "InvalidArgument"),
    ],
)
def test_tags_that_come_with_an_object(bucket: PlainBucket, text: str, expected: dict[str, str] | str) -> None:
    if isinstance(expected, dict):
        bucket.put("k", b"1", Tagging=text)
        assert tags_of(bucket, "k") == expected
        bucket.put("k", b"1")
        assert tags_of(bucket, "k") == {}, "they are of the object, not of its key"
    else:
        assert code_of(bucket.put, key="k", Tagging=text) == (expected, 400)
        assert code_of(begin, s3=bucket.client, key="k", bucket=bucket.name, Tagging=text) == (expected, 400)
        assert bucket.keys() == []


def test_tags_are_replaced_and_deleted_as_a_whole(bucket: PlainBucket) -> None:
    s3 = bucket.client
    etag = bucket.put("k", b"1", Metadata={"a": "b"})["ETag"]
    for tags in ({"a": "1", "b": "2"}, {"c": "3"}, {}):
        s3.put_object_tagging(**bucket.at("k"), Tagging=make_tags(tags))
        assert tags_of(bucket, "k") == tags
    for _ in range(2):
        assert s3.delete_object_tagging(**bucket.at("k"))["ResponseMetadata"]["HTTPStatusCode"] == 204
    head = s3.head_object(**bucket.at("k"))
    assert (head["ETag"], head["Metadata"], bucket.read("k")) == (etag, {"a": "b"}, b"1")
    twice = {"TagSet": [{"Key": "a", "Value": "1"}, {"Key": "a", "Value": "2"}]}
    assert code_of(s3.put_object_tagging, **bucket.at("k"), Tagging=twice) == ("InvalidTag", 400)
    for call, more in ((s3.put_object_tagging, {"Tagging": make_tags({})}), (s3.delete_object_tagging, {})):
        assert code_of(call, **bucket.at("none"), **more) == ("NoSuchKey", 404)


# checksums


def encode(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def crc(polynomial: int, bits: int) -> Callable[[bytes], bytes]:
    """A reflected CRC whose register begins, and is inverted in the end, as all ones."""

    def compute(data: bytes) -> bytes:
        value = ones = (1 << bits) - 1
        for byte in data:
            value ^= byte
            for _ in range(8):
                value = (value >> 1) ^ (polynomial if value & 1 else 0)
        return (value ^ ones).to_bytes(bits // 8, "big")

    return compute


DIGESTS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "CRC32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "CRC32C": crc(0x82F63B78, 32),
    "CRC64NVME": crc(0x9A6C9329AC4BC9B5, 64),
    "SHA1": lambda data: hashlib.sha1(data, usedforsecurity=False).digest(),
    "SHA256": lambda data: hashlib.sha256(data).digest(),
}
BODY: Final = b"a body with a checksum"
WHOLE_AND_COMPOSITE: Final = [
    *[(name, "FULL_OBJECT") for name in ("CRC32", "CRC32C", "CRC64NVME")],
    *[(name, "COMPOSITE") for name in ("CRC32", "CRC32C", "SHA1", "SHA256")],
]


@pytest.mark.parametrize("algorithm", DIGESTS)
def test_a_checksum_is_checked_kept_and_shown(bucket: PlainBucket, algorithm: str) -> None:
    name = f"Checksum{algorithm}"
    right, wrong = encode(DIGESTS[algorithm](BODY)), encode(DIGESTS[algorithm](BODY + b"x"))
    assert code_of(bucket.put, key="k", body=BODY, **{name: wrong}) == ("BadDigest", 400)
    for text in ("no base64", right[:-4], encode(DIGESTS[algorithm](BODY) + b"x")):
        assert code_of(bucket.put, key="k", body=BODY, **{name: text}) == ("InvalidRequest", 400)
    assert bucket.keys() == []
    assert bucket.put("k", BODY, **{name: right})[name] == right
    assert bucket.put("k", BODY, ChecksumAlgorithm=algorithm)[name] == right
    for read in (bucket.client.get_object, bucket.client.head_object):
        shown = read(**bucket.at("k"), ChecksumMode="ENABLED")
        assert (shown[name], shown["ChecksumType"]) == (right, "FULL_OBJECT")
        assert name not in read(**bucket.at("k"), ChecksumMode="ENABLED", Range="bytes=1-2"), "it is of the whole"
    asked = ["Checksum", "ETag", "ObjectParts", "ObjectSize", "StorageClass"]
    told = bucket.client.get_object_attributes(**bucket.at("k"), ObjectAttributes=asked)
    assert told["Checksum"] == {name: right, "ChecksumType": "FULL_OBJECT"}
    assert (told["ObjectSize"], told["StorageClass"], told["ETag"]) == (
        len(BODY), "STANDARD", hashlib.md5(BODY, usedforsecurity=False).hexdigest(),
    )  # fmt: skip
    assert "ObjectParts" not in told
    few = bucket.client.get_object_attributes(**bucket.at("k"), ObjectAttributes=["ObjectSize"])
    assert {*few} == {"ResponseMetadata", "ObjectSize", "LastModified"}


@pytest.mark.parametrize(("algorithm", "kind"), WHOLE_AND_COMPOSITE)
def test_the_checksum_of_an_object_in_parts(bucket: PlainBucket, algorithm: str, kind: str) -> None:
    s3, name, digest = bucket.client, f"Checksum{algorithm}", DIGESTS[algorithm]
    upload = begin(s3, "k", bucket.name, ChecksumAlgorithm=algorithm, ChecksumType=kind)
    wrong = {name: encode(digest(b"other"))}
    assert code_of(send, s3=s3, upload=upload, number=1, body=BODY, **wrong) == ("BadDigest", 400)
    part = send(s3, upload, 1, BODY, ChecksumAlgorithm=algorithm)
    assert part[name] == encode(digest(BODY))
    expected = part[name] if kind == "FULL_OBJECT" else f"{encode(digest(digest(BODY)))}-1"
    assert code_of(end, s3=s3, upload=upload, parts=[{**part, **wrong}]) == ("InvalidPart", 400)
    made = end(s3, upload, [part], **{name: expected})
    assert (made[name], made["ChecksumType"], made["ETag"]) == (expected, kind, etag_of(BODY))
    shown = s3.head_object(**bucket.at("k"), ChecksumMode="ENABLED")
    assert (shown[name], shown["ChecksumType"]) == (expected, kind)
    told = s3.get_object_attributes(**bucket.at("k"), ObjectAttributes=["Checksum", "ObjectParts"])
    assert told["Checksum"] == {name: expected, "ChecksumType": kind}
    assert told["ObjectParts"]["TotalPartsCount"] == 1


@pytest.mark.parametrize(("algorithm", "kind"), WHOLE_AND_COMPOSITE)
def test_a_checksum_over_several_parts(bucket: PlainBucket, algorithm: str, kind: str) -> None:
    s3, name = bucket.client, f"Checksum{algorithm}"
    upload = begin(s3, "k", bucket.name, ChecksumAlgorithm=algorithm, ChecksumType=kind)
    parts = [send(s3, upload, number, body, ChecksumAlgorithm=algorithm) for number, body in ((1, BIG), (2, BODY))]
    made = end(s3, upload, parts)[name]
    if kind == "FULL_OBJECT":
        assert made == bucket.put("whole", BIG + BODY, ChecksumAlgorithm=algorithm)[name]
    else:
        joined = b"".join(base64.b64decode(part[name]) for part in parts)
        assert made == f"{encode(DIGESTS[algorithm](joined))}-2"


# uploads in parts


def test_an_object_in_parts_has_what_its_upload_was_begun_with(bucket: PlainBucket) -> None:
    upload = begin(bucket.client, "k", bucket.name, **ATTRIBUTES, Tagging="t=1")
    made = end(bucket.client, upload, [send(bucket.client, upload, 1, b"1")])
    assert (made["Bucket"], made["Key"], bool(made["Location"])) == (bucket.name, "k", True)
    assert (describe(bucket, "k"), tags_of(bucket, "k")) == (ATTRIBUTES, {"t": "1"})
    assert bucket.client.list_multipart_uploads(Bucket=bucket.name).get("Uploads", []) == []


def test_a_part_that_is_sent_again_replaces_the_first(bucket: PlainBucket) -> None:
    s3 = bucket.client
    upload = begin(s3, "k", bucket.name, ChecksumAlgorithm="CRC32")
    first, tail = send(s3, upload, 1, BIG), send(s3, upload, 2, b"tail")
    again = send(s3, upload, 1, BIG[::-1])
    (listed, _) = s3.list_parts(**upload)["Parts"]
    assert (listed["ETag"], listed["ChecksumCRC32"]) == (again["ETag"], again["ChecksumCRC32"])
    assert code_of(end, s3=s3, upload=upload, parts=[first, tail]) == ("InvalidPart", 400)
    assert end(s3, upload, [again, tail])["ETag"] == etag_of(BIG[::-1], b"tail")
    assert bucket.read("k") == BIG[::-1] + b"tail"


def test_a_key_keeps_its_object_until_an_upload_is_completed(bucket: PlainBucket) -> None:
    s3 = bucket.client
    bucket.put("k", b"before")
    uploads = [begin(s3, "k", bucket.name) for _ in range(3)]
    parts = [send(s3, upload, 1, f"of {number}".encode()) for number, upload in enumerate(uploads)]
    assert len(s3.list_multipart_uploads(Bucket=bucket.name)["Uploads"]) == 3
    s3.abort_multipart_upload(**uploads[0])
    assert bucket.read("k") == b"before"
    for number in (2, 1):
        end(s3, uploads[number], [parts[number]])
        assert bucket.read("k") == f"of {number}".encode()
    assert code_of(end, s3=s3, upload=uploads[0], parts=parts[:1]) == ("NoSuchUpload", 404)
    assert bucket.read("k") == b"of 1"


def test_only_the_parts_that_a_completion_names_are_joined(bucket: PlainBucket) -> None:
    s3 = bucket.client
    upload = begin(s3, "k", bucket.name)
    parts = {number: send(s3, upload, number, body) for number, body in ((9, b"end"), (2, BIG), (5, b"left out"))}
    end(s3, upload, [parts[2], parts[9]])
    assert bucket.read("k") == BIG + b"end"
    assert bucket.read("k", PartNumber=2) == b"end"


def test_what_the_listings_of_uploads_and_parts_have(bucket: PlainBucket) -> None:
    s3 = bucket.client
    upload = begin(s3, "é k", bucket.name, ChecksumAlgorithm="SHA256")
    part = send(s3, upload, 3, b"1", ChecksumAlgorithm="SHA256")
    (row,) = s3.list_multipart_uploads(Bucket=bucket.name)["Uploads"]
    assert (row["Key"], row["UploadId"], row["StorageClass"]) == ("é k", upload["UploadId"], "STANDARD")
    assert (row["ChecksumAlgorithm"], row["ChecksumType"]) == ("SHA256", "COMPOSITE")
    assert row["Initiated"] <= datetime.now(UTC)
    page = s3.list_parts(**upload)
    assert (page["Bucket"], page["Key"], page["UploadId"]) == (bucket.name, "é k", upload["UploadId"])
    assert (page["StorageClass"], page["IsTruncated"], page["MaxParts"]) == ("STANDARD", False, 1000)
    assert {*row} & {*page} >= {"Owner", "Initiator"}
    (listed,) = page["Parts"]
    assert {name: listed[name] for name in part} == part
    assert listed["Size"] == 1
