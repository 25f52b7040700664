"""Uploads in parts through the gateway with boto3: their whole life, what is listed, what is refused."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import pytest

from refstore.configuration.settings import S3Settings
from refstore.core import ids
from refstore.public_types import stored_entry
from refstore.records.staging_records import sources_of_copy
from refstore.service.access_keys import Role
from refstore.versioning.multipart_uploads import UploadName
from refstore_s3 import multipart_requests
from refstore_s3.conditions import check_conditions
from refstore_s3.object_parts import UploadChecksum
from tests.reaping import reap_all
from tests.s3.served_gateway import REPOSITORY, ServedGateway, serve_gateway
from tests.s3.test_gateway_objects import code_of

MIB = 1 << 20
BIG = bytes(range(256)) * (5 * MIB // 256)


@pytest.fixture(scope="module")
def gateway() -> Iterator[ServedGateway]:
    with serve_gateway(S3Settings(buckets=("pinned=lake:main",))) as served:
        served.repository.create_branch("team/x", source="main")
        yield served


@pytest.fixture
def s3(gateway: ServedGateway) -> Any:
    return gateway.client()


def begin(s3: Any, key: str = "main/parts", bucket: str = REPOSITORY, **options: Any) -> dict[str, Any]:
    made = s3.create_multipart_upload(Bucket=bucket, Key=key, **options)
    return {"Bucket": bucket, "Key": key, "UploadId": made["UploadId"]}


def send(s3: Any, upload: dict[str, Any], number: int, body: bytes, **options: Any) -> dict[str, Any]:
    sent = s3.upload_part(**upload, PartNumber=number, Body=body, **options)
    checksums = {name: text for name, text in sent.items() if name.startswith("Checksum")}
    return {"PartNumber": number, "ETag": sent["ETag"], **checksums}


def end(s3: Any, upload: dict[str, Any], parts: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    return s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts}, **options)


def etag_of(*bodies: bytes) -> str:
    digests = b"".join(hashlib.md5(body, usedforsecurity=False).digest() for body in bodies)
    return f'"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(bodies)}"'


@pytest.mark.parametrize(
    ("algorithm", "kind", "shown"),
    [
        ("CRC32", "", "COMPOSITE"),
        ("CRC32", "FULL_OBJECT", "FULL_OBJECT"),
        ("CRC64NVME", "", "FULL_OBJECT"),
        ("SHA256", "COMPOSITE", "COMPOSITE"),
    ],
)
def test_an_object_of_parts(gateway: ServedGateway, s3: Any, algorithm: str, kind: str, shown: str) -> None:
    options = {"ChecksumType": kind} if kind else {}
    upload = begin(s3, ChecksumAlgorithm=algorithm, Metadata={"a": "b"}, ContentType="text/x", Tagging="t=1", **options)
    parts = [send(s3, upload, number, body, ChecksumAlgorithm=algorithm) for number, body in ((3, BIG), (7, b"tail"))]
    assert all(f"Checksum{algorithm}" in part for part in parts)
    made = end(s3, upload, parts)
    assert made["ETag"] == etag_of(BIG, b"tail")
    assert made["ChecksumType"] == shown
    head = s3.head_object(Bucket=REPOSITORY, Key="main/parts", ChecksumMode="ENABLED")
    assert head[f"Checksum{algorithm}"] == made[f"Checksum{algorithm}"]
    assert (head["ETag"], head["Metadata"], head["ContentType"]) == (made["ETag"], {"a": "b"}, "text/x")
    assert (head["TagCount"], head["ContentLength"]) == (1, len(BIG) + 4)
    if shown == "FULL_OBJECT":
        whole = s3.put_object(Bucket=REPOSITORY, Key="main/whole", Body=BIG + b"tail", ChecksumAlgorithm=algorithm)
        assert whole[f"Checksum{algorithm}"] == made[f"Checksum{algorithm}"]
    else:
        assert made[f"Checksum{algorithm}"].endswith("-2")
    assert s3.get_object(Bucket=REPOSITORY, Key="main/parts")["Body"].read() == BIG + b"tail"
    assert end(s3, upload, parts)["ETag"] == made["ETag"], "a repeated completion answers the same"


def test_a_part_of_an_object_is_read(s3: Any) -> None:
    upload = begin(s3, ChecksumAlgorithm="CRC32")
    bodies = [BIG, BIG[::-1], b"tail"]
    end(s3, upload, [send(s3, upload, number, body) for number, body in enumerate(bodies, 1)])
    key = {"Bucket": REPOSITORY, "Key": "main/parts"}
    for number, body in enumerate(bodies, 1):
        got = s3.get_object(**key, PartNumber=number)
        assert (got["PartsCount"], got["ContentLength"], got["Body"].read()) == (3, len(body), body)
        assert s3.head_object(**key, PartNumber=number)["ContentLength"] == len(body)
    assert code_of(s3.get_object, **key, PartNumber=4) == ("InvalidPart", 400)
    told = s3.get_object_attributes(**key, ObjectAttributes=["ETag", "Checksum", "ObjectParts", "ObjectSize"])
    assert (told["ObjectSize"], told["ETag"]) == (2 * len(BIG) + 4, etag_of(*bodies).strip('"'))
    assert [part["Size"] for part in told["ObjectParts"]["Parts"]] == [len(BIG), len(BIG), 4]
    own = [s3.get_object(**key, PartNumber=number)["ChecksumCRC32"] for number in (1, 2, 3)]
    assert [part["ChecksumCRC32"] for part in told["ObjectParts"]["Parts"]] == own
    page = s3.get_object_attributes(**key, ObjectAttributes=["ObjectParts"], MaxParts=1, PartNumberMarker=1)
    assert [part["PartNumber"] for part in page["ObjectParts"]["Parts"]] == [2]
    assert (page["ObjectParts"]["IsTruncated"], page["ObjectParts"]["NextPartNumberMarker"]) == (True, 2)
    assert code_of(s3.get_object_attributes, **key, ObjectAttributes=["Nothing"]) == ("InvalidArgument", 400)
    s3.copy_object(Bucket=REPOSITORY, Key="main/copied parts", CopySource=key)
    assert s3.head_object(Bucket=REPOSITORY, Key="main/copied parts", PartNumber=3)["ContentLength"] == 4


def test_parts_without_checksums_of_their_own_get_them(s3: Any, gateway: ServedGateway) -> None:
    plain = gateway.client(request_checksum_calculation="when_required")
    upload = begin(plain, ChecksumAlgorithm="SHA1")
    part = send(plain, upload, 1, b"x")
    assert part["ChecksumSHA1"]
    assert code_of(s3.upload_part, **upload, PartNumber=2, Body=b"y", ChecksumAlgorithm="CRC32") == (
        "InvalidRequest",
        400,
    )
    plain.abort_multipart_upload(**upload)


def test_the_transfer_manager_of_boto3(gateway: ServedGateway, s3: Any, tmp_path: Any) -> None:
    file = tmp_path / "file"
    file.write_bytes(BIG * 4)
    s3.upload_file(str(file), "pinned", "transferred")
    assert gateway.repository.read("main", "transferred") == BIG * 4
    s3.copy({"Bucket": "pinned", "Key": "transferred"}, REPOSITORY, "team%2Fx/copied")
    assert hashlib.sha256(gateway.repository.read("team/x", "copied")).digest() == hashlib.sha256(BIG * 4).digest()


@pytest.mark.parametrize("algorithm", ["", "CRC32"])
def test_parts_are_copied(gateway: ServedGateway, s3: Any, algorithm: str) -> None:
    source = {"Bucket": REPOSITORY, "Key": "main/source"}
    etag = s3.put_object(**source, Body=BIG + b"0123456789")["ETag"]
    plain = gateway.client(request_checksum_calculation="when_required")
    upload = begin(plain, **({"ChecksumAlgorithm": algorithm} if algorithm else {}))
    copy = {**upload, "CopySource": source}
    copied = [
        plain.upload_part_copy(**copy, PartNumber=1, CopySourceRange=f"bytes=1-{len(BIG)}", CopySourceIfMatch=etag),
        plain.upload_part_copy(**copy, PartNumber=2, CopySourceRange=f"bytes={len(BIG)}-{len(BIG) + 2}"),
    ]
    results = [each["CopyPartResult"] for each in copied]
    assert [bool(each.get("ChecksumCRC32")) for each in results] == [bool(algorithm)] * 2
    end(plain, upload, [{"PartNumber": number, "ETag": each["ETag"]} for number, each in enumerate(results, 1)])
    body = BIG + b"0123456789"
    assert s3.get_object(Bucket=REPOSITORY, Key="main/parts")["Body"].read() == body[1 : len(BIG) + 1] + b"012"
    copied_from = gateway.repository.stat("main", "source").address
    assert sources_of_copy(stored_entry(gateway.repository.stat("main", "parts")))[1:] == (copied_from,)
    upload = begin(plain)
    copy = {**upload, "CopySource": source, "PartNumber": 1}
    for bounds in (f"bytes=0-{len(body)}", "bytes=99999999-99999999"):
        assert code_of(plain.upload_part_copy, **copy, CopySourceRange=bounds) == ("InvalidRange", 416)
    for bounds in ("bytes=5-1", "bytes=0-", "0-1"):
        assert code_of(plain.upload_part_copy, **copy, CopySourceRange=bounds) == ("InvalidArgument", 400)
    assert code_of(plain.upload_part_copy, **copy, CopySourceIfNoneMatch=etag) == ("PreconditionFailed", 412)
    assert code_of(plain.upload_part_copy, **{**copy, "CopySource": {"Bucket": REPOSITORY, "Key": "main/none"}}) == (
        "NoSuchKey",
        404,
    )
    plain.abort_multipart_upload(**upload)


@pytest.mark.parametrize("algorithm", ["", "CRC32"])
@pytest.mark.parametrize(("replacement", "is_reaped"), [(b"9", False), (b"9" * 20, False), (b"9" * 20, True)])
def test_a_part_is_copied_of_the_object_whose_conditions_and_length_were_read(
    gateway: ServedGateway,
    s3: Any,
    monkeypatch: pytest.MonkeyPatch,
    replacement: bytes,
    is_reaped: bool,
    algorithm: str,
) -> None:
    """Somebody replaces the source between that look and the copy: no part is a piece of the new one."""
    repo = gateway.repository
    source = {"Bucket": REPOSITORY, "Key": "main/raced-source"}
    etag = s3.put_object(**source, Body=b"0123456789")["ETag"]
    plain = gateway.client(request_checksum_calculation="when_required")
    upload = begin(plain, **({"ChecksumAlgorithm": algorithm} if algorithm else {}))
    replacements = [replacement]

    def check_then_replace(*arguments: Any, **options: Any) -> None:
        check_conditions(*arguments, **options)
        if replacements:
            address = repo.stat("main", "raced-source").address
            repo.upload("main", "raced-source", replacements.pop())
            if is_reaped:
                repo.context.objects.delete_many([address])

    monkeypatch.setattr(multipart_requests, "check_conditions", check_then_replace)
    copy = {**upload, "CopySource": source, "PartNumber": 1}
    if is_reaped:
        assert code_of(plain.upload_part_copy, **copy, CopySourceIfMatch=etag) == ("PreconditionFailed", 412)
    copied = plain.upload_part_copy(**copy, **({} if is_reaped else {"CopySourceIfMatch": etag}))
    end(plain, upload, [{"PartNumber": 1, "ETag": copied["CopyPartResult"]["ETag"]}])
    assert repo.read("main", "parts") == (replacement if is_reaped else b"0123456789")


def test_a_free_key_is_taken_once(s3: Any) -> None:
    s3.put_object(Bucket=REPOSITORY, Key="main/taken", Body=b"there")
    upload = begin(s3, "main/taken")
    parts = [send(s3, upload, 1, b"x")]
    assert code_of(end, s3=s3, upload=upload, parts=parts, IfNoneMatch="*") == ("PreconditionFailed", 412)
    assert s3.get_object(Bucket=REPOSITORY, Key="main/taken")["Body"].read() == b"there"
    s3.delete_object(Bucket=REPOSITORY, Key="main/taken")
    end(s3, upload, parts, IfNoneMatch="*")
    assert s3.get_object(Bucket=REPOSITORY, Key="main/taken")["Body"].read() == b"x"


def test_what_is_wrong_with_a_completion(s3: Any) -> None:
    upload = begin(s3, ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT")
    small, big = send(s3, upload, 1, b"small"), send(s3, upload, 2, BIG)
    for parts, code in (
        ([small, big], "EntityTooSmall"),
        ([big, small], "InvalidPartOrder"),
        ([small, small], "InvalidPartOrder"),
        ([{**big, "ETag": small["ETag"]}], "InvalidPart"),
        ([big, {**small, "PartNumber": 3}], "InvalidPart"),
        ([{**big, "ChecksumCRC32": small["ChecksumCRC32"]}], "InvalidPart"),
        ([], "MalformedXML"),
        ([{**big, "PartNumber": 0}], "InvalidArgument"),
        ([{**big, "PartNumber": 10_001}], "InvalidArgument"),
        ([{**big, "PartNumber": number} for number in range(1, 10_002)], "MalformedXML"),
    ):
        assert code_of(end, s3=s3, upload=upload, parts=parts) == (code, 400), parts[:2]
    assert code_of(end, s3=s3, upload=upload, parts=[big], MpuObjectSize=5) == ("InvalidRequest", 400)
    assert code_of(end, s3=s3, upload=upload, parts=[big], ChecksumCRC32=small["ChecksumCRC32"]) == ("BadDigest", 400)
    for number in (0, 10_001):
        assert code_of(s3.upload_part, **upload, PartNumber=number, Body=b"") == ("InvalidArgument", 400)
    assert end(s3, upload, [big], MpuObjectSize=len(BIG), ChecksumCRC32=big["ChecksumCRC32"])["ETag"] == etag_of(BIG)


def test_other_parts_are_refused_once_some_are_joined(gateway: ServedGateway, s3: Any) -> None:
    upload = begin(s3)
    part = send(s3, upload, 1, b"x")
    ctx = gateway.repository.context
    name = UploadName(ids.branch_name("main"), ids.object_path("parts"), ids.upload_id(upload["UploadId"]))
    registered = ctx.uploads.read(name)
    assert registered is not None
    ctx.references.fix_parts(name.address, registered.record.token_id, "of other parts")
    assert code_of(end, s3=s3, upload=upload, parts=[part]) == ("OperationAborted", 409)
    s3.abort_multipart_upload(**upload)


def test_a_body_that_is_not_the_one_that_was_promised_is_no_part(s3: Any) -> None:
    upload = begin(s3)
    assert code_of(s3.upload_part, **upload, PartNumber=1, Body=b"x", ChecksumCRC32="AAAAAA==") == ("BadDigest", 400)
    assert code_of(s3.upload_part, **upload, PartNumber=1, Body=BIG, ContentMD5="A" * 22 + "==") == ("BadDigest", 400)
    assert "Parts" not in s3.list_parts(**upload)
    s3.abort_multipart_upload(**upload)


def test_an_upload_that_is_over_or_another_ones(gateway: ServedGateway, s3: Any) -> None:
    upload = begin(s3)
    part = send(s3, upload, 1, b"x")
    others = [{**upload, "UploadId": "nonsense"}, {**upload, "Key": "main/other"}, {**upload, "Key": "team%2Fx/parts"}]
    s3.abort_multipart_upload(**upload)
    s3.abort_multipart_upload(**upload)  # as after a reply that was lost
    reap_all(gateway.repository)
    for other in [upload, *others]:
        for call, options in (
            (s3.upload_part, {**other, "PartNumber": 1, "Body": b"x"}),
            (s3.list_parts, other),
            (s3.abort_multipart_upload, other),
            (end, {"s3": s3, "upload": other, "parts": [part]}),
        ):
            assert code_of(call, **options) == ("NoSuchUpload", 404)
    assert code_of(begin, s3=s3, key="none/parts") == ("NoSuchKey", 404)
    assert code_of(begin, s3=s3, ChecksumAlgorithm="CRC64NVME", ChecksumType="COMPOSITE") == ("InvalidRequest", 400)


def test_what_each_role_may(gateway: ServedGateway, s3: Any) -> None:
    gateway.add_key("READERINPARTS", Role.READER)
    reader = gateway.client("READERINPARTS")
    upload = begin(s3)
    part = send(s3, upload, 1, b"x")
    assert [each["PartNumber"] for each in reader.list_parts(**upload)["Parts"]] == [1]
    for call, options in (
        (begin, {"s3": reader}),
        (reader.upload_part, {**upload, "PartNumber": 1, "Body": b"x"}),
        (end, {"s3": reader, "upload": upload, "parts": [part]}),
        (reader.abort_multipart_upload, upload),
    ):
        assert code_of(call, **options) == ("AccessDenied", 403)
    tag = gateway.repository.create_tag("v1", ref="main")
    assert tag
    assert code_of(begin, s3=s3, key="v1/parts") == ("AccessDenied", 403)
    s3.abort_multipart_upload(**upload)


def test_parts_are_listed_in_pages(s3: Any) -> None:
    upload = begin(s3, ChecksumAlgorithm="CRC32")
    for number in (1, 2, 5):
        send(s3, upload, number, b"x" * number)
    first = s3.list_parts(**upload, MaxParts=2)
    assert [(part["PartNumber"], part["Size"]) for part in first["Parts"]] == [(1, 1), (2, 2)]
    assert (first["IsTruncated"], first["NextPartNumberMarker"], first["ChecksumAlgorithm"]) == (True, 2, "CRC32")
    second = s3.list_parts(**upload, PartNumberMarker=2)
    assert [(part["PartNumber"], part["ChecksumCRC32"] != "") for part in second["Parts"]] == [(5, True)]
    assert not second["IsTruncated"]
    s3.abort_multipart_upload(**upload)


def test_uploads_are_listed_in_pages(gateway: ServedGateway, s3: Any) -> None:
    gateway.lake.create_repository("listed")
    gateway.lake.repository("listed").create_branch("side", source="main")
    keys = ["main/a", "main/b/1", "main/b/2", "main/b/2", "main/c d", "side/z"]
    uploads = [begin(s3, key, "listed") for key in keys]

    def shown(**options: Any) -> tuple[list[str], list[str], dict[str, Any]]:
        page = s3.list_multipart_uploads(Bucket="listed", **options)
        prefixes = [each["Prefix"] for each in page.get("CommonPrefixes", ())]
        return [each["Key"] for each in page.get("Uploads", ())], prefixes, page

    assert shown()[0] == keys
    assert shown(Prefix="main/b/")[0] == keys[1:4]
    assert shown(Prefix="ma")[0] == keys[:5]
    assert shown(Prefix="main/", Delimiter="/")[:2] == (["main/a", "main/c d"], ["main/b/"])
    assert shown(Delimiter="/")[:2] == ([], ["main/", "side/"])
    assert shown(Prefix="none/")[0] == []
    seen: list[str] = []
    markers: dict[str, str] = {}
    for _ in range(len(keys)):
        found, _, page = shown(MaxUploads=1, EncodingType="url", **markers)
        seen += found
        if not page["IsTruncated"]:
            break
        markers = {"KeyMarker": unquote(page["NextKeyMarker"]), "UploadIdMarker": page["NextUploadIdMarker"]}
    assert list(map(unquote, seen)) == keys
    assert shown(KeyMarker="main/b/2")[0] == keys[4:]
    for upload in uploads:
        s3.abort_multipart_upload(**upload)
    assert shown()[0] == []


def test_a_client_is_kept_waiting_with_white_space(
    gateway: ServedGateway, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is told of an error that comes after the first of it."""
    monkeypatch.setattr(multipart_requests, "WAIT_SECONDS", 0.01)
    objects = gateway.repository.context.objects
    released = threading.Event()
    join = type(objects).join

    def slow(self: Any, key: str, sources: Any) -> Any:
        assert released.wait(30)
        return join(self, key, sources)

    monkeypatch.setattr(type(objects), "join", slow)
    for breaks in (False, True):
        released.clear()
        upload = begin(s3)
        parts = [send(s3, upload, 1, b"x")]
        loop_calls: list[int] = []
        wait = asyncio.wait

        async def counted(*args: Any, calls: list[int] = loop_calls, wait: Any = wait, **options: Any) -> Any:
            calls.append(1)
            if len(calls) == 3:
                released.set()
            return await wait(*args, **options)

        monkeypatch.setattr(multipart_requests.asyncio, "wait", counted)
        if breaks:
            gateway.repository.context.objects.delete_many([info.key for info in objects.list("data/")])
            assert code_of(end, s3=s3, upload=upload, parts=parts)[0] == "InvalidPart"
        else:
            assert end(s3, upload, parts)["ETag"] == etag_of(b"x")
        assert len(loop_calls) >= 3
        monkeypatch.setattr(multipart_requests.asyncio, "wait", wait)


def test_checksums_that_an_upload_may_be_begun_for() -> None:
    assert UploadChecksum.read({}) == ("", "")
    assert UploadChecksum.read({"x-amz-checksum-algorithm": "sha1"}) == ("sha1", "COMPOSITE")
