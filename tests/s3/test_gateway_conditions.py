"""Writes and deletions that depend on what is at a key: of all that read the same object, one replaces it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from botocore.exceptions import ClientError

from refstore_s3 import object_writes
from refstore_s3.conditions import read_write_condition
from tests.s3.served_gateway import REPOSITORY, ServedGateway
from tests.s3.test_gateway_objects import code_of


@pytest.fixture
def s3(gateway: ServedGateway) -> Any:
    return gateway.client()


@pytest.mark.parametrize("size", [3, 2 << 20])
def test_an_object_is_replaced_only_if_it_is_the_one_that_was_read(s3: Any, size: int) -> None:
    key = {"Bucket": REPOSITORY, "Key": f"main/replaced-{size}"}
    first = s3.put_object(**key, Body=b"1" * size)["ETag"]
    second = s3.put_object(**key, Body=b"2" * size, IfMatch=first)["ETag"]
    assert code_of(s3.put_object, **key, Body=b"3" * size, IfMatch=first) == ("PreconditionFailed", 412)
    assert s3.get_object(**key)["Body"].read() == b"2" * size
    s3.put_object(**key, Body=b"4" * size, IfMatch="*")
    assert code_of(s3.put_object, **key, Body=b"5", IfMatch=second) == ("PreconditionFailed", 412)
    missing = {"Bucket": REPOSITORY, "Key": "main/missing", "Body": b""}
    assert code_of(s3.put_object, **missing, IfMatch=first) == ("NoSuchKey", 404)
    assert code_of(s3.put_object, **missing, IfMatch="*") == ("NoSuchKey", 404)
    assert code_of(s3.put_object, **missing, IfMatch="*", IfNoneMatch="*") == ("NotImplemented", 501)


def test_of_many_that_read_the_same_object_one_replaces_it(gateway: ServedGateway) -> None:
    key = {"Bucket": REPOSITORY, "Key": "main/counter"}
    etag = gateway.client().put_object(**key, Body=b"0")["ETag"]
    outcomes: list[str] = []

    def replace(number: int) -> None:
        try:
            gateway.client().put_object(**key, Body=f"by {number}".encode(), IfMatch=etag)
            outcomes.append(f"by {number}")
        except ClientError as error:
            outcomes.append(error.response["Error"]["Code"])

    threads = [threading.Thread(target=replace, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == len(threads)
    (winner,) = [each for each in outcomes if each.startswith("by ")]
    assert set(outcomes) - {winner} <= {"PreconditionFailed", "ConditionalRequestConflict"}
    assert gateway.repository.read("main", "counter") == winner.encode()


def test_what_changes_between_the_look_and_the_write_is_not_overwritten(
    gateway: ServedGateway, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look_then_change(*arguments: Any) -> Any:
        condition = await read_write_condition(*arguments)
        gateway.repository.upload("main", "raced", b"another's")
        return condition

    key = {"Bucket": REPOSITORY, "Key": "main/raced"}
    etag = s3.put_object(**key, Body=b"1")["ETag"]
    monkeypatch.setattr(object_writes, "read_write_condition", look_then_change)
    assert code_of(s3.put_object, **key, Body=b"2", IfMatch=etag) == ("PreconditionFailed", 412)
    assert gateway.repository.read("main", "raced") == b"another's"


def test_an_object_is_deleted_only_if_it_is_the_one_that_was_read(gateway: ServedGateway, s3: Any) -> None:
    key = {"Bucket": REPOSITORY, "Key": "main/deleted"}
    etag = s3.put_object(**key, Body=b"1")["ETag"]
    gateway.repository.commit("main", "with it")
    assert code_of(s3.delete_object, **key, IfMatch='"other"') == ("PreconditionFailed", 412)
    named = {"Key": key["Key"], "ETag": '"other"'}
    refused = s3.delete_objects(Bucket=REPOSITORY, Delete={"Objects": [named]})
    assert [each["Code"] for each in refused["Errors"]] == ["PreconditionFailed"]
    assert s3.get_object(**key)["Body"].read() == b"1"
    deleted = s3.delete_objects(Bucket=REPOSITORY, Delete={"Objects": [{**named, "ETag": etag}]})
    assert [each["Key"] for each in deleted["Deleted"]] == [key["Key"]]
    assert code_of(s3.head_object, **key) == ("404", 404)
    s3.delete_object(**key, IfMatch=etag)


def test_a_completion_replaces_only_what_was_read_and_answers_the_same_again(s3: Any) -> None:
    key = {"Bucket": REPOSITORY, "Key": "main/in-parts"}
    etag = s3.put_object(**key, Body=b"1")["ETag"]
    upload = {**key, "UploadId": s3.create_multipart_upload(**key)["UploadId"]}
    part = s3.upload_part(**upload, PartNumber=1, Body=b"2")
    complete = {**upload, "MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}}
    assert code_of(s3.complete_multipart_upload, **complete, IfMatch='"x"') == ("PreconditionFailed", 412)
    made = s3.complete_multipart_upload(**complete, IfMatch=etag)["ETag"]
    assert s3.complete_multipart_upload(**complete, IfMatch=etag)["ETag"] == made
    missing = {"Bucket": REPOSITORY, "Key": "main/none-in-parts"}
    upload = {**missing, "UploadId": s3.create_multipart_upload(**missing)["UploadId"]}
    part = s3.upload_part(**upload, PartNumber=1, Body=b"2")
    complete = {**upload, "MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}}
    assert code_of(s3.complete_multipart_upload, **complete, IfMatch=etag) == ("NoSuchKey", 404)
    assert s3.get_object(**key)["Body"].read() == b"2"
