"""What the gateway shares with the API: the audit log, redirections to the store, expiry, bounds and conditions that
hold while others write.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from botocore.exceptions import ClientError

from refstore.audit.audit_reader import entries_newest_first
from refstore.configuration.settings import ApiSettings, S3Settings
from refstore.service import access_keys
from refstore.service.access_keys import Role
from refstore_http import memory_budget
from refstore_http.memory_budget import MemoryBudget
from refstore_s3 import object_bodies
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


def test_large_documents_of_a_key_are_parsed_in_turn(gateway: ServedGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones, and those of other keys, do not wait for them."""
    gateway.add_key("ANOTHERDELETER", Role.WRITER)
    parsed: list[bytes] = []
    counts: list[int] = []
    released = threading.Event()
    parse = object_bodies.parse_document

    def parse_and_wait(body: bytes, name: str) -> Any:
        if len(body) > memory_budget.LARGE_BYTES and b"main/x" in body:
            parsed.append(body)
            counts.append(len(parsed))
            assert released.wait(30)
            parsed.remove(body)
        return parse(body, name)

    def delete(key_id: str, length: int, letter: str = "x") -> Any:
        keys = [{"Key": f"main/{letter}{number:0{length}}"} for number in range(900)]
        return gateway.client(key_id).delete_objects(Bucket=REPOSITORY, Delete={"Objects": keys})

    monkeypatch.setattr(object_bodies, "parse_document", parse_and_wait)
    with ThreadPoolExecutor(7) as threads:
        large = [threads.submit(delete, KEY_ID, 400) for _ in range(6)]
        try:
            wait_until(lambda: bool(parsed))
            assert len(delete("ANOTHERDELETER", 400, "y")["Deleted"]) == 900
            assert len(delete(KEY_ID, 20)["Deleted"]) == 900
        finally:
            released.set()
        assert [len(each.result()["Deleted"]) for each in large] == [900] * 6
    assert max(counts) == memory_budget.PARSED_AT_ONCE // 2


def test_answers_that_nobody_reads_are_few(gateway: ServedGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are listings or objects: past a key's share it hears SlowDown, and other keys read on."""
    gateway.add_key("ANOTHERREADER", Role.READER)
    gateway.repository.upload("main", "unread", b"x" * (16 << 20))
    memory = MemoryBudget(8 << 20)
    monkeypatch.setattr(gateway.service, "memory", memory)
    get = {"Bucket": REPOSITORY, "Key": "main/unread"}
    url = urlsplit(gateway.client(signature_version="s3v4").generate_presigned_url("get_object", Params=get))
    assert url.hostname is not None
    with ExitStack() as connections:
        for count in range(1, 5):
            connection = connections.enter_context(socket.create_connection((url.hostname, url.port or 80)))
            connection.sendall(f"GET {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\n\r\n".encode())
            wait_until(lambda count=count: memory.count_held(KEY_ID) == count << 20)
        assert code_of(gateway.client().get_object, **get) == ("SlowDown", 503)
        assert len(gateway.client("ANOTHERREADER").get_object(**get)["Body"].read()) == 16 << 20
        wait_until(lambda: memory.count_held() == 4 << 20)
    wait_until(lambda: memory.count_held() == 0)
    assert len(gateway.client().get_object(**get)["Body"].read()) == 16 << 20


def test_bodies_of_one_signed_url_are_few(gateway: ServedGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway.add_key("ANOTHERWRITER", Role.WRITER)
    memory = MemoryBudget(4 << 20)
    monkeypatch.setattr(gateway.service, "memory", memory)
    put = {"Bucket": REPOSITORY, "Key": "main/held"}
    url = urlsplit(gateway.client(signature_version="s3v4").generate_presigned_url("put_object", Params=put))
    head = f"PUT {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Length: {1 << 20}\r\n\r\n"
    assert url.hostname is not None
    with ExitStack() as connections:
        for _ in range(2):
            connection = connections.enter_context(socket.create_connection((url.hostname, url.port or 80)))
            connection.sendall(head.encode() + bytes((1 << 20) - 1))
        wait_until(lambda: memory.count_held(KEY_ID) > (1 << 20) + (3 << 18))
        assert code_of(gateway.client().put_object, **put, Body=bytes(1 << 20)) == ("SlowDown", 503)
        gateway.client("ANOTHERWRITER").put_object(**put, Body=bytes(1 << 20))
        gateway.client().put_object(**put, Body=b"a short one")
    wait_until(lambda: memory.count_held() == 0)


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
