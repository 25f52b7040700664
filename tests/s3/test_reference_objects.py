"""Objects as the S3 API reference describes them: names, headers, ranges, conditions, presigned URLs and errors.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_PutObject.html, API_GetObject, API_HeadObject, API_DeleteObjects
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx
import pytest
from botocore.exceptions import ClientError
from defusedxml import ElementTree

from tests.s3.plain_bucket import SPECIAL_KEYS, PlainBucket
from tests.s3.test_gateway_objects import code_of

KEPT: Final = {
    "CacheControl": "max-age=60",
    "ContentDisposition": 'attachment; filename="a b.csv"',
    "ContentEncoding": "gzip",
    "ContentLanguage": "de, en",
    "ContentType": "text/csv; charset=utf-8",
    "Expires": datetime(2040, 2, 3, 4, 5, 6, tzinfo=UTC),
}
"""The headers that an object keeps, as boto3 names them."""
DIGITS: Final = b"0123456789"
PAST: Final = datetime(2001, 2, 3, tzinfo=UTC)
PRECONDITION: Final = ("PreconditionFailed", 412)
READS: Final = ("get_object", "head_object")


def read_kept(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {name: answer[name] for name in KEPT if name in answer and name != "ContentType"}


@pytest.mark.parametrize("key", SPECIAL_KEYS, ids=ascii)
def test_a_key_is_any_text(bucket: PlainBucket, key: str) -> None:
    s3, body = bucket.client, key.encode()
    etag = bucket.put(key, body)["ETag"]
    assert (bucket.read(key), bucket.keys()) == (body, [key])
    assert s3.head_object(**bucket.at(key))["ETag"] == etag
    s3.copy_object(**bucket.at("copy"), CopySource=bucket.at(key))
    upload = {**bucket.at("parts"), "UploadId": s3.create_multipart_upload(**bucket.at("parts"))["UploadId"]}
    part = s3.upload_part_copy(**upload, PartNumber=1, CopySource=bucket.at(key))["CopyPartResult"]
    s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]})
    assert bucket.read("copy") == bucket.read("parts") == body
    s3.put_object_tagging(**bucket.at(key), Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
    assert s3.get_object_tagging(**bucket.at(key))["TagSet"] == [{"Key": "a", "Value": "b"}]
    if "\x07" in key:  # XML, in which DeleteObjects names its keys, cannot hold it
        s3.delete_object(**bucket.at(key))
    else:
        deleted = s3.delete_objects(Bucket=bucket.name, Delete={"Objects": [{"Key": key}]})
        assert [each["Key"] for each in deleted["Deleted"]] == [key]
    assert bucket.keys() == ["copy", "parts"]


@pytest.mark.parametrize("name", KEPT)
def test_a_header_is_kept_until_the_object_is_replaced(bucket: PlainBucket, name: str) -> None:
    bucket.put("k", b"1", **{name: KEPT[name]})
    for read in READS:
        assert getattr(bucket.client, read)(**bucket.at("k"))[name] == KEPT[name]
    bucket.put("k", b"1")
    for read in READS:
        answer = getattr(bucket.client, read)(**bucket.at("k"))
        assert (read_kept(answer), answer["ContentType"]) == ({}, "binary/octet-stream")


def test_an_answer_has_the_headers_that_its_request_asks_for(bucket: PlainBucket) -> None:
    bucket.put("k", b"1", CacheControl="no-store", ContentType="image/png")
    asked = {f"Response{name}": value for name, value in KEPT.items()}
    for read in READS:
        answer = getattr(bucket.client, read)(**bucket.at("k"), **asked)
        assert {name: answer[name] for name in KEPT} == KEPT
    answer = bucket.client.head_object(**bucket.at("k"))
    assert (read_kept(answer), answer["ContentType"]) == ({"CacheControl": "no-store"}, "image/png")


def test_metadata_is_replaced_as_a_whole(bucket: PlainBucket) -> None:
    for metadata in ({"One": "a b", "two": ""}, {"three": "x" * 1000}, {}):
        bucket.put("k", b"1", Metadata=metadata)
        expected = {name.lower(): value for name, value in metadata.items()}
        for read in READS:
            assert getattr(bucket.client, read)(**bucket.at("k"))["Metadata"] == expected


@pytest.mark.parametrize(
    ("sent", "kept"), [("aws-chunked", None), ("aws-chunked,gzip", "gzip"), ("gzip, aws-chunked", "gzip")]
)
def test_an_encoding_of_the_request_only_is_not_kept(bucket: PlainBucket, sent: str, kept: str | None) -> None:
    bucket.put("k", b"1", ContentEncoding=sent)
    assert bucket.client.head_object(**bucket.at("k")).get("ContentEncoding") == kept


@pytest.mark.parametrize("body", [b"", b"1", DIGITS * 300_000], ids=len)
def test_an_object_is_what_was_put_last(bucket: PlainBucket, body: bytes) -> None:
    bucket.put("k", b"before")
    put = bucket.put("k", body)
    assert put["ETag"] == f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
    for read in READS:
        answer = getattr(bucket.client, read)(**bucket.at("k"))
        assert (answer["ContentLength"], answer["ETag"], answer["AcceptRanges"]) == (len(body), put["ETag"], "bytes")
    assert bucket.read("k") == body
    for _ in range(2):
        assert bucket.client.delete_object(**bucket.at("k"))["ResponseMetadata"]["HTTPStatusCode"] == 204
    assert code_of(bucket.client.get_object, **bucket.at("k")) == ("NoSuchKey", 404)
    assert code_of(bucket.client.head_object, **bucket.at("k")) == ("404", 404)


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [("bytes=2-4", 2, 4), ("bytes=0-0", 0, 0), ("bytes=7-", 7, 9), ("bytes=5-99", 5, 9), ("bytes=-3", 7, 9),
     ("bytes=-99", 0, 9), ("bytes=0-", 0, 9), ("bytes=9-9", 9, 9)],
)  # fmt: skip
def test_a_range_is_answered_as_a_part(bucket: PlainBucket, asked: str, first: int, last: int) -> None:
    bucket.put("k", DIGITS)
    assert bucket.read("k", Range=asked) == DIGITS[first : last + 1]
    for read in READS:
        answer = getattr(bucket.client, read)(**bucket.at("k"), Range=asked)
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == 206
        assert (answer["ContentRange"], answer["ContentLength"]) == (f"bytes {first}-{last}/10", last - first + 1)


@pytest.mark.parametrize("asked", ["bytes=4-2", "bytes=", "bytes=-", "bytes=a-b", "items=1-2", "bytes=0-1,3-4"])
def test_what_is_no_range_or_several_is_ignored(bucket: PlainBucket, asked: str) -> None:
    bucket.put("k", DIGITS)
    answer = bucket.client.get_object(**bucket.at("k"), Range=asked)
    assert (answer["ResponseMetadata"]["HTTPStatusCode"], answer["Body"].read()) == (200, DIGITS)
    assert "ContentRange" not in answer


@pytest.mark.parametrize(
    ("body", "asked"),
    [(DIGITS, "bytes=10-"), (DIGITS, "bytes=40-50"), (DIGITS, "bytes=-0"), (b"", "bytes=0-0"), (b"", "bytes=0-"),
     (b"", "bytes=-1")],
)  # fmt: skip
def test_a_range_behind_the_end_is_refused(bucket: PlainBucket, body: bytes, asked: str) -> None:
    bucket.put("k", body)
    assert code_of(bucket.client.get_object, **bucket.at("k"), Range=asked) == ("InvalidRange", 416)
    assert code_of(bucket.client.head_object, **bucket.at("k"), Range=asked) == ("416", 416)


def test_ranges_of_a_long_object(bucket: PlainBucket) -> None:
    """At and around the sizes in which bytes are read and sent."""
    body = bytes(range(251)) * 20_000
    bucket.put("k", body)
    for edge in (1 << 16, 1 << 18, 1 << 20, 4 << 20):
        for first, last in ((edge - 1, edge), (edge, edge), (edge + 1, edge + (1 << 19)), (0, edge - 1)):
            assert bucket.read("k", Range=f"bytes={first}-{last}") == body[first : last + 1]


CONDITIONS: Final[list[tuple[dict[str, Any], int]]] = [
    ({"IfMatch": "own"}, 200),
    ({"IfMatch": "other"}, 412),
    ({"IfMatch": "*"}, 200),
    ({"IfNoneMatch": "own"}, 304),
    ({"IfNoneMatch": "other"}, 200),
    ({"IfModifiedSince": PAST}, 200),
    ({"IfModifiedSince": "now"}, 304),
    ({"IfUnmodifiedSince": PAST}, 412),
    ({"IfUnmodifiedSince": "now"}, 200),
    ({"IfMatch": "own", "IfUnmodifiedSince": PAST}, 200),
    ({"IfMatch": "other", "IfUnmodifiedSince": "now"}, 412),
    ({"IfNoneMatch": "own", "IfModifiedSince": PAST}, 304),
    ({"IfNoneMatch": "other", "IfModifiedSince": "now"}, 200),
    ({"IfMatch": "own", "IfNoneMatch": "other"}, 200),
    ({"IfMatch": "own", "IfNoneMatch": "own"}, 304),
]
"""Conditions of a read, and its status: beside one on the ETag, that on the date of the same kind is ignored."""


def make_conditions(case: Mapping[str, Any], head: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    values = {"own": head["ETag"], "other": '"other"', "now": head["LastModified"] + timedelta(seconds=1)}
    return {prefix + name: values.get(value, value) for name, value in case.items()}


@pytest.mark.parametrize(("case", "status"), CONDITIONS, ids=str)
def test_conditions_of_a_read_and_which_of_two_counts(bucket: PlainBucket, case: dict[str, Any], status: int) -> None:
    bucket.put("k", b"1")
    conditions = make_conditions(case, bucket.client.head_object(**bucket.at("k")))
    for read in READS:
        try:
            answer = getattr(bucket.client, read)(**bucket.at("k"), **conditions)
        except ClientError as error:
            answer = error.response
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == status, read


@pytest.mark.parametrize(("case", "status"), CONDITIONS, ids=str)
def test_conditions_on_the_source_of_a_copy(bucket: PlainBucket, case: dict[str, Any], status: int) -> None:
    bucket.put("k", b"1")
    conditions = make_conditions(case, bucket.client.head_object(**bucket.at("k")), "CopySource")
    copy = {**bucket.at("copy"), "CopySource": bucket.at("k"), **conditions}
    if status == 200:
        bucket.client.copy_object(**copy)
        assert bucket.read("copy") == b"1"
    else:
        assert code_of(bucket.client.copy_object, **copy) == PRECONDITION
        assert bucket.keys() == ["k"]


@pytest.mark.parametrize(
    ("is_there", "condition", "expected"),
    [
        (True, {"IfMatch": "own"}, None),
        (True, {"IfMatch": "other"}, PRECONDITION),
        (True, {"IfNoneMatch": "*"}, PRECONDITION),
        (False, {"IfNoneMatch": "*"}, None),
        (False, {"IfMatch": "other"}, ("NoSuchKey", 404)),
        (False, {"IfMatch": "*"}, ("NoSuchKey", 404)),
    ],
)
@pytest.mark.parametrize("way", ["put_object", "complete_multipart_upload"])
def test_conditions_of_a_write(
    bucket: PlainBucket, way: str, is_there: bool, condition: dict[str, str], expected: tuple[str, int] | None
) -> None:
    s3 = bucket.client
    head = {"ETag": bucket.put("k", b"old")["ETag"], "LastModified": PAST}
    if not is_there:
        s3.delete_object(**bucket.at("k"))
    write = {**bucket.at("k"), **make_conditions(condition, head)}
    if way == "put_object":
        write["Body"] = b"new"
    else:
        upload = {**bucket.at("k"), "UploadId": s3.create_multipart_upload(**bucket.at("k"))["UploadId"]}
        part = s3.upload_part(**upload, PartNumber=1, Body=b"new")
        write |= {**upload, "MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}}
    if expected is None:
        getattr(s3, way)(**write)
    else:
        assert code_of(getattr(s3, way), **write) == expected
    assert bucket.keys() == (["k"] if is_there or expected is None else [])
    if bucket.keys():
        assert bucket.read("k") == (b"new" if expected is None else b"old")


def test_a_url_does_what_it_was_signed_for(bucket: PlainBucket) -> None:
    signer = bucket.gateway.client(signature_version="s3v4")

    def url_of(operation: str, **more: Any) -> str:
        url: str = signer.generate_presigned_url(operation, Params={**bucket.at("é k"), **more}, ExpiresIn=60)
        return url

    put = url_of("put_object", ContentType="text/x")
    assert httpx.put(put, content=b"1", headers={"content-type": "text/y"}).status_code == 403
    assert httpx.get(put).status_code == 403
    assert httpx.put(put.replace("k?", "other?"), content=b"1").status_code == 403
    assert bucket.keys() == []
    assert httpx.put(put, content=b"1", headers={"content-type": "text/x"}).status_code == 200
    got: Any = httpx.get(url_of("get_object", ResponseContentType="a/b"), headers={"range": "bytes=0-0"})
    assert (got.status_code, got.content, got.headers["content-type"]) == (206, b"1", "a/b")
    assert httpx.head(url_of("head_object")).headers["content-length"] == "1"
    assert httpx.get(url_of("get_object")[:-1] + "x").status_code == 403
    assert httpx.delete(url_of("delete_object")).status_code == 204
    assert bucket.keys() == []


def test_an_error_says_of_which_request_and_of_what(bucket: PlainBucket) -> None:
    url = bucket.gateway.client(signature_version="s3v4").generate_presigned_url(
        "get_object", Params=bucket.at("a&b/none")
    )
    answer: Any = httpx.get(url)
    root = ElementTree.fromstring(answer.content)
    assert answer.headers["content-type"] == "application/xml"
    assert (root.tag, root.findtext("Code"), root.findtext("Key")) == ("Error", "NoSuchKey", "a&b/none")
    assert root.findtext("RequestId") == answer.headers["x-amz-request-id"]
    assert root.findtext("Resource") == f"/{bucket.name}/a&b/none"
    assert root.findtext("Message")


@pytest.mark.parametrize("is_quiet", [False, True])
def test_a_thousand_keys_are_deleted_at_once(bucket: PlainBucket, is_quiet: bool) -> None:
    for key in ("0001", "kept"):
        bucket.put(key, b"1")
    keys = [f"{number:04}" for number in range(1000)]
    deletion = {"Objects": [{"Key": key} for key in keys], "Quiet": is_quiet}
    answer = bucket.client.delete_objects(Bucket=bucket.name, Delete=deletion)
    assert sorted(each["Key"] for each in answer.get("Deleted", ())) == ([] if is_quiet else keys)
    assert "Errors" not in answer
    assert bucket.keys() == ["kept"]
    deletion["Objects"].append({"Key": "kept"})
    assert code_of(bucket.client.delete_objects, Bucket=bucket.name, Delete=deletion) == ("MalformedXML", 400)
    wrong = {"Objects": [{"Key": "kept", "VersionId": "v1"}, {"Key": "none"}], "Quiet": True}
    refused = bucket.client.delete_objects(Bucket=bucket.name, Delete=wrong)
    assert [(each["Key"], each["Code"]) for each in refused["Errors"]] == [("kept", "NoSuchVersion")]
    assert bucket.keys() == ["kept"]


def test_a_write_is_seen_when_it_is_whole(bucket: PlainBucket) -> None:
    bucket.put("k", b"before")
    url = bucket.gateway.client(signature_version="s3v4").generate_presigned_url("put_object", Params=bucket.at("k"))
    size = 3 << 20

    def send() -> Iterator[bytes]:
        yield b"x" * (2 << 20)
        assert bucket.read("k") == b"before"
        yield b"x" * (1 << 20)

    assert httpx.put(url, content=send(), headers={"content-length": str(size)}).status_code == 200
    assert bucket.read("k") == b"x" * size


def test_a_read_has_the_object_that_it_began_with(bucket: PlainBucket) -> None:
    old, new = b"o" * (8 << 20), b"n" * (8 << 20)
    bucket.put("k", old)
    body = bucket.client.get_object(**bucket.at("k"))["Body"]
    first = body.read(1 << 16)
    bucket.put("k", new)
    assert first + body.read() == old
    assert bucket.read("k") == new


def test_of_writes_at_once_one_whole_object_stays(bucket: PlainBucket) -> None:
    """And whoever reads meanwhile has one of them whole, never a mixture."""
    bodies = [bytes([letter]) * (1 << 20) for letter in b"abcd"]
    bucket.put("k", bodies[0])
    seen: list[bytes] = []
    writers = [threading.Thread(target=bucket.put, args=("k", body)) for body in bodies]
    readers = [threading.Thread(target=lambda: seen.append(bucket.read("k"))) for _ in range(8)]
    for thread in (*writers, *readers):
        thread.start()
    for thread in (*writers, *readers):
        thread.join()
    assert len(seen) == len(readers)
    assert all(each in bodies for each in [*seen, bucket.read("k")])
