"""What the gateway shares with the API: the audit log, redirections to the store, expiry, bounds and conditions that
hold while others write.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from botocore.exceptions import ClientError

from refstore.audit.audit_reader import entries_newest_first
from refstore.configuration.settings import ApiSettings, S3Settings
from refstore.service import access_keys
from refstore.service.access_keys import Role
from refstore_api import large_documents
from refstore_s3 import object_bodies
from refstore_s3.s3_requests import S3Request
from tests.api.test_limits import wait_until
from tests.s3.served_gateway import KEY_ID, REPOSITORY, ServedGateway, serve_gateway
from tests.s3.test_gateway_objects import code_of


@pytest.fixture(scope="module")
def gateway() -> Iterator[ServedGateway]:
    settings = S3Settings(create_buckets=True, redirect_reads=True)
    with serve_gateway(settings, api=ApiSettings(upload_bytes_max=1 << 20)) as served:
        yield served


def test_the_audit_log_names_key_and_operation(gateway: ServedGateway) -> None:
    client = gateway.client()
    client.create_bucket(Bucket="audited")
    client.delete_bucket(Bucket="audited")
    (entry,) = (
        read.entry
        for read in entries_newest_first(gateway.lake.kv, gateway.lake.own_store)
        if read.entry is not None and read.entry.act.action == "repository.delete"
    )
    assert (entry.act.actor.id, entry.act.actor.command) == (KEY_ID, "DELETE s3:DeleteBucket")


@pytest.mark.parametrize(
    "operation", ["list_objects", "list_objects_v2", "list_object_versions", "list_multipart_uploads"]
)
def test_a_listing_waits_in_the_line_of_its_key(
    gateway: ServedGateway, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the API's expensive reads do: keys take turns."""
    taken: list[str] = []
    slots = gateway.service.reads.slots
    take = slots.take

    async def record_take(key: str) -> None:
        taken.append(key)
        await take(key)

    monkeypatch.setattr(slots, "take", record_take)
    getattr(gateway.client(), operation)(Bucket=REPOSITORY)
    assert taken == [KEY_ID]
    assert slots.count_used() == 0


def test_few_large_documents_of_a_key_are_held_at_a_time(
    gateway: ServedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small ones, and those of other keys, do not wait for them."""
    gateway.add_key("ANOTHERDELETER", Role.WRITER)
    held: list[S3Request] = []
    counts: list[int] = []
    released = threading.Event()
    receive = object_bodies.receive_document

    async def receive_and_hold(request: S3Request, *arguments: Any, **options: Any) -> bytes:
        body = await receive(request, *arguments, **options)
        if request.principal.key_id == KEY_ID and len(body) > large_documents.LARGE_BYTES:
            held.append(request)
            counts.append(len(held))
            while not released.is_set():
                await asyncio.sleep(0.001)
            held.remove(request)
        return body

    def delete(key_id: str, length: int) -> Any:
        keys = [{"Key": f"main/{number:0{length}}"} for number in range(900)]
        return gateway.client(key_id).delete_objects(Bucket=REPOSITORY, Delete={"Objects": keys})

    monkeypatch.setattr(object_bodies, "receive_document", receive_and_hold)
    with ThreadPoolExecutor(7) as threads:
        large = [threads.submit(delete, KEY_ID, 400) for _ in range(6)]
        try:
            wait_until(lambda: len(held) == large_documents.AT_ONCE // 2)
            assert len(delete("ANOTHERDELETER", 400)["Deleted"]) == 900
            assert len(delete(KEY_ID, 20)["Deleted"]) == 900
        finally:
            released.set()
        assert [len(each.result()["Deleted"]) for each in large] == [900] * 6
    assert max(counts) == large_documents.AT_ONCE // 2


def test_an_object_has_a_largest_size(gateway: ServedGateway) -> None:
    put = {"Bucket": REPOSITORY, "Key": "main/large", "Body": b"x" * ((1 << 20) + 1)}
    assert code_of(gateway.client().put_object, **put) == ("EntityTooLarge", 400)
    assert not gateway.repository.stat_many("main", ["large"])


def test_metadata_has_a_largest_size(gateway: ServedGateway) -> None:
    put = {"Bucket": REPOSITORY, "Key": "main/described", "Body": b"", "Metadata": {"a": "x" * 9000}}
    assert code_of(gateway.client().put_object, **put) == ("MetadataTooLarge", 400)


def test_a_revoked_key_is_refused(gateway: ServedGateway) -> None:
    gateway.add_key("REVOKED", Role.READER)
    access_keys.revoke_key(gateway.lake, "REVOKED")
    assert code_of(gateway.client("REVOKED").list_buckets) == ("InvalidAccessKeyId", 403)


def test_of_two_that_need_a_free_key_one_writes(gateway: ServedGateway) -> None:
    """As Delta tables commit."""
    outcomes: list[str] = []

    def write(number: int) -> None:
        put = {"Bucket": REPOSITORY, "Key": "main/_delta_log/1.json", "Body": str(number).encode()}
        try:
            gateway.client().put_object(**put, IfNoneMatch="*")
            outcomes.append(f"{number}")
        except ClientError as error:
            outcomes.append(error.response["Error"]["Code"])

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [each for each in outcomes if each.isdigit()]
    assert len(winners) == 1
    assert outcomes.count("PreconditionFailed") == len(threads) - 1
    assert gateway.repository.read("main", "_delta_log/1.json") == winners[0].encode()


@pytest.mark.server
def test_a_read_is_redirected_to_the_store(moto_s3_url: str) -> None:
    with serve_gateway(S3Settings(redirect_reads=True), objects=moto_s3_url) as gateway:
        gateway.repository.upload("main", "far", b"12345")
        client = gateway.client(signature_version="s3v4")
        url = client.generate_presigned_url("get_object", Params={"Bucket": REPOSITORY, "Key": "main/far"})
        answer: Any = httpx.get(url)
        assert answer.status_code == 307
        assert httpx.get(answer.headers["location"], headers={"range": "bytes=1-2"}).content == b"23"
        assert client.head_object(Bucket=REPOSITORY, Key="main/far")["ContentLength"] == 5
        assert code_of(client.get_object, Bucket=REPOSITORY, Key="main/far")[1] == 307, "boto3 follows none"
        shown = client.get_object(Bucket=REPOSITORY, Key="main/far", ResponseContentType="text/plain")
        assert (shown["ContentType"], shown["Body"].read()) == ("text/plain", b"12345")
