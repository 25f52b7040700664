"""An object that something cut off, emptied or made longer in its store: no read and no copy passes it on as whole. One
with other bytes of the same length is found by whoever computes a checksum.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from botocore.exceptions import BotoCoreError
from hypothesis import given
from hypothesis import strategies as st
from urllib3.exceptions import HTTPError

from refstore.core.safety import Safety
from refstore.errors import CorruptObject, RefstoreError
from refstore.kv.memory import MemoryKV
from refstore.lake import Lake, open_lake_at
from refstore.objects import make_objects
from refstore.operations.upload import Link
from refstore.repository import Repository
from tests.api.service import Application, application
from tests.commands import Command
from tests.purging import rewrite
from tests.reaping import reap_all
from tests.s3.served_gateway import REPOSITORY, ServedGateway, serve_gateway
from tests.s3.test_gateway_objects import code_of
from tests.servers.s3_base import S3Server
from tests.servers.s3_proxy import ProxiedRequest, Reply, S3FaultProxy

SIZE = 600_000
BODY = bytes(range(256)) * (SIZE // 256) + bytes(SIZE % 256)
DAMAGES = {"cut off": BODY[:1000], "a byte short": BODY[:-1], "emptied": b"", "longer": BODY + b"x"}
"""Those of another length."""
OTHER_BYTES = BODY[:-1] + b"x"

RGW = pytest.param("rgw_server", marks=[pytest.mark.server, pytest.mark.root, pytest.mark.slow])


class Store(NamedTuple):
    url: str
    is_folder: bool


@pytest.fixture(params=["folder", "moto_s3_server", RGW])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "folder":
        made = Store(f"file://{tmp_path}/objects?fsync=0", True)
        make_objects(made.url)
        return made
    server: S3Server = request.getfixturevalue(request.param)
    return Store(server.url(), False)


def damage(repo: Repository, body: bytes, path: str = "a", ref: str = "main") -> None:
    """Put other bytes where the content of the object lies."""
    repo.context.objects.put(repo.stat(ref, path).address, body)


SDK_READS: dict[str, Callable[[Repository], bytes]] = {
    "whole": lambda repo: repo.read("main", "a"),
    "up to its end": lambda repo: b"".join(repo.get("main", "a", end=SIZE)),
    "past its end": lambda repo: b"".join(repo.get("main", "a", end=SIZE + 1000)),
    "from the second byte": lambda repo: b"".join(repo.get("main", "a", start=1)),
    "the first bytes": lambda repo: b"".join(repo.get("main", "a", end=100)),
    "the last bytes": lambda repo: b"".join(repo.get("main", "a", start=SIZE - 10)),
    "nothing": lambda repo: b"".join(repo.get("main", "a", start=7, end=7)),
}
WHOLE = ("whole", "up to its end", "past its end")


def test_the_sdk(store: Store) -> None:
    with Lake(MemoryKV(), store.url) as lake:
        repo = lake.create_repository("sales")
        repo.upload("main", "a", BODY)
        before = {name: read(repo) for name, read in SDK_READS.items()}
        assert {before[name] for name in WHOLE} == {BODY}
        for body in DAMAGES.values():
            damage(repo, body)
            for read in SDK_READS.values():
                with pytest.raises(CorruptObject, match=f"'a' on 'main' .*has {len(body)} bytes .*had {SIZE} when"):
                    read(repo)
        damage(repo, OTHER_BYTES)
        for name in WHOLE:
            with pytest.raises(CorruptObject, match="size or checksum differs"):
                SDK_READS[name](repo)
        damage(repo, BODY)
        assert {name: read(repo) for name, read in SDK_READS.items()} == before


def test_objects_that_are_empty_linked_purged_or_old(store: Store) -> None:
    with Lake(MemoryKV(), store.url) as lake:
        repo = lake.create_repository("sales")
        repo.upload("main", "empty", b"")
        repo.upload("main", "purged", BODY)
        issued = repo.issue("main", "linked")
        repo.context.objects.put(issued.address, BODY)
        repo.link_many("main", [Link(path="linked", token=issued.token, checksum="anything")])
        repo.commit("main", "c")
        rewrite(repo, "main", "purged", BODY[:5000])
        assert [len(repo.read("main", path)) for path in ("empty", "linked", "purged")] == [0, SIZE, 5000]
        for path in ("empty", "linked", "purged"):
            damage(repo, b"some", path)
            with pytest.raises(CorruptObject, match="has 4 bytes"):
                repo.read("main", path)
            with pytest.raises(CorruptObject, match="has 4 bytes"):
                list(repo.get("main", path, end=0))


def test_a_file_that_is_cut_off_while_it_is_read(tmp_path: Path) -> None:
    with Lake(MemoryKV(), f"file://{tmp_path}") as lake:
        repo = lake.create_repository("sales")
        entry = repo.upload("main", "a", BODY * 8)
        folder = repo.context.objects.local_folder
        assert folder is not None
        chunks = repo.get("main", "a")
        next(chunks)
        os.truncate(folder / entry.address, SIZE * 4)
        with pytest.raises(CorruptObject, match="became shorter while it was read"):
            list(chunks)


@given(
    body=st.binary(max_size=40),
    damaged=st.binary(max_size=40),
    start=st.integers(0, 45),
    end=st.none() | st.integers(0, 45),
)
def test_a_read_returns_what_was_uploaded_or_fails(body: bytes, damaged: bytes, start: int, end: int | None) -> None:
    """Where it returns something, it is as long as it was. What it returns differs only where the length does not."""
    with Lake(MemoryKV(), f"memory://{secrets.token_hex(8)}") as lake:
        repo = lake.create_repository("sales")
        repo.upload("main", "a", body)
        damage(repo, damaged)
        error: RefstoreError | None = None
        try:
            read = b"".join(repo.get("main", "a", start=start, end=end))
        except RefstoreError as raised:
            error, read = raised, damaged[start:end]
        assert isinstance(error, CorruptObject) == (len(damaged) != len(body))
        assert read == damaged[start:end]


def test_the_commands(store: Store, refstore: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REFSTORE_DATA")
    kv = f"sqlite:///{refstore.folder}/kv.sqlite"
    monkeypatch.setenv("REFSTORE_KV", kv)
    monkeypatch.setenv("REFSTORE_OBJECTS", store.url)
    refstore.ok("repo", "create", "sales")
    refstore.ok("upload", "sales", "main", "-", "a", stdin=BODY)
    for body in (*DAMAGES.values(), OTHER_BYTES):
        with open_lake_at(kv, store.url) as lake:
            damage(lake.repository("sales"), body)
        ran = refstore("cat", "sales", "main", "a")
        assert (ran.code, ran.out_bytes) == (6, b"")
        for words in (["a", "one"], ["-r", "", "all"]):
            ran = refstore("download", *words[:-2], "sales", "main", *words[-2:], "--json")
            assert (ran.code, ran.error["code"]) == (6, "corrupt_object")
    assert [file for file in refstore.folder.rglob("*") if file.name in ("one", "a")] == []


API = "/repositories/sales/refs/main/objects?path=a"


def test_the_api(store: Store) -> None:
    with application(objects=store.url) as app:
        repo = app.lake.create_repository("sales")
        repo.upload("main", "a", BODY)
        assert [app("GET", API, headers=headers).content for headers in _ranges()] == [BODY, BODY, BODY[5:10]]
        if store.is_folder:
            assert _read_signed(app) == (200, BODY)
        for body in DAMAGES.values():
            damage(repo, body)
            for headers in _ranges():
                answer = app("GET", API, headers=headers)
                assert (answer.status_code, answer.json()["code"]) == (500, "corrupt_object")
                assert app("HEAD", API).headers["Content-Length"] == str(SIZE)
            if store.is_folder:  # a store that signs URLs answers them itself
                assert _read_signed(app)[0] == 500
                assert _read_signed(app, {"Range": "bytes=0-9"})[0] == 500


def _ranges() -> list[dict[str, str]]:
    return [{}, {"Range": "bytes=0-"}, {"Range": "bytes=5-9"}]


def _read_signed(app: Application, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    url = app("GET", f"{API}&presign=true").headers["Location"]
    answer = app("GET", url, headers=headers or {}, auth=None)
    return answer.status_code, answer.content


@pytest.fixture
def gateway(store: Store) -> Iterator[ServedGateway]:
    with serve_gateway(objects=store.url) as served:
        served.lake.create_repository("other")
        served.repository.upload("main", "a", BODY)
        yield served


SOURCE = {"Bucket": REPOSITORY, "Key": "main/a"}
COPIES: dict[str, dict[str, Any]] = {
    "to another repository": {"Bucket": "other"},
    "with a checksum": {"Bucket": REPOSITORY, "ChecksumAlgorithm": "CRC32"},
    "with a condition": {"Bucket": REPOSITORY, "IfNoneMatch": "*"},
}
PARTS: dict[str, dict[str, Any]] = {
    "whole": {"Bucket": REPOSITORY},
    "a range": {"Bucket": REPOSITORY, "CopySourceRange": f"bytes=1000-{SIZE - 1}"},
    "the first bytes": {"Bucket": REPOSITORY, "CopySourceRange": "bytes=0-99"},
    "of another repository": {"Bucket": "other"},
    "with a checksum": {"Bucket": REPOSITORY, "ChecksumAlgorithm": "CRC32"},
}


def test_the_gateway_reads(gateway: ServedGateway) -> None:
    s3 = gateway.client()
    for body in DAMAGES.values():
        damage(gateway.repository, body)
        for options in ({}, {"Range": "bytes=0-"}, {"Range": "bytes=5-9"}, {"PartNumber": 1}):
            assert code_of(s3.get_object, **SOURCE, **options) == ("InternalError", 500)
        assert s3.head_object(**SOURCE)["ContentLength"] == SIZE


def test_a_client_of_the_gateway_does_not_take_other_bytes_for_the_object(gateway: ServedGateway, store: Store) -> None:
    """The answer has begun when the last chunk differs, so the connection ends before it."""
    s3, body = gateway.client(), BODY * 4
    gateway.repository.upload("main", "a", body)
    damage(gateway.repository, body[:-1] + b"x")
    answer = s3.get_object(**SOURCE)
    assert answer["ContentLength"] == len(body)
    with pytest.raises((HTTPError, BotoCoreError)):
        answer["Body"].read()


@pytest.mark.parametrize("options", COPIES.values(), ids=COPIES)
def test_the_gateway_copies(gateway: ServedGateway, options: dict[str, Any]) -> None:
    s3 = gateway.client()
    copy = {**options, "Key": "main/copied", "CopySource": SOURCE}
    repo = gateway.lake.repository(options["Bucket"])
    before = _blobs(gateway)
    for body in (*DAMAGES.values(), OTHER_BYTES):
        damage(gateway.repository, body)
        assert code_of(s3.copy_object, **copy) == ("InternalError", 500)
        assert not repo.stat_many("main", ["copied"])
        assert _blobs(gateway) == before, "nothing is stored"
    damage(gateway.repository, BODY)
    s3.copy_object(**copy)
    assert repo.read("main", "copied") == BODY


@pytest.mark.parametrize("options", PARTS.values(), ids=PARTS)
def test_the_gateway_copies_parts(gateway: ServedGateway, options: dict[str, Any]) -> None:
    s3 = gateway.client(request_checksum_calculation="when_required")
    own = dict(options)
    upload = {"Bucket": own.pop("Bucket"), "Key": "main/copied"}
    checksum = {"ChecksumAlgorithm": own.pop("ChecksumAlgorithm")} if "ChecksumAlgorithm" in own else {}
    upload["UploadId"] = s3.create_multipart_upload(**upload, **checksum)["UploadId"]
    copy = {**upload, **own, "PartNumber": 1, "CopySource": SOURCE}
    before = _blobs(gateway)
    for body in DAMAGES.values():
        damage(gateway.repository, body)
        assert code_of(s3.upload_part_copy, **copy) == ("InternalError", 500)
        assert "Parts" not in s3.list_parts(**upload)
        assert _blobs(gateway) == before, "nothing is stored"
    damage(gateway.repository, BODY)
    etag = s3.upload_part_copy(**copy)["CopyPartResult"]["ETag"]
    s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]})
    start, _, last = own.get("CopySourceRange", f"bytes=0-{SIZE - 1}").removeprefix("bytes=").partition("-")
    assert gateway.lake.repository(upload["Bucket"]).read("main", "copied") == BODY[int(start) : int(last) + 1]


def test_a_copy_of_a_part_finds_other_bytes_where_they_pass_through(gateway: ServedGateway) -> None:
    s3 = gateway.client(request_checksum_calculation="when_required")
    upload: dict[str, Any] = {"Bucket": "other", "Key": "main/copied"}
    upload["UploadId"] = s3.create_multipart_upload(**upload)["UploadId"]
    damage(gateway.repository, OTHER_BYTES)
    assert code_of(s3.upload_part_copy, **upload, PartNumber=1, CopySource=SOURCE) == ("InternalError", 500)
    assert "Parts" not in s3.list_parts(**upload)


def _blobs(gateway: ServedGateway) -> list[str]:
    return [
        info.key
        for name in (REPOSITORY, "other")
        for info in gateway.lake.repository(name).context.objects.list("data/")
    ]


def test_a_server_that_copies_only_a_part(moto_s3_server: S3Server) -> None:
    """With `copy_linked` the store copies what a link names. What lies there then is compared with its source."""
    with S3FaultProxy(moto_s3_server.endpoint) as proxy:
        url = moto_s3_server.url().replace(moto_s3_server.endpoint, proxy.endpoint)
        with Lake(MemoryKV(), url, safety=Safety(grace_seconds=0, copy_linked="always")) as lake:
            repo = lake.create_repository("sales")
            objects = repo.context.objects
            issued = repo.issue("main", "a")
            objects.put(issued.address, BODY)

            def copy_a_part(request: ProxiedRequest) -> Reply | None:
                if "x-amz-copy-source" not in {name.lower() for name in request.headers}:
                    return None
                proxy.plan = None
                objects.put("data/" + request.target.rpartition("/data/")[2], BODY[:1000])
                return Reply(b"<CopyObjectResult><ETag>etag</ETag></CopyObjectResult>")

            proxy.plan = copy_a_part
            with pytest.raises(CorruptObject, match=f"has 1000 bytes in the store, and had {SIZE} when"):
                repo.link("main", "a", issued.token)
            assert not repo.stat_many("main", ["a"])
            reap_all(repo)
            assert [info.key for info in objects.list("data/")] == [issued.address], "what was copied goes"
            assert repo.link("main", "a", issued.token).size_bytes == SIZE
            assert repo.read("main", "a") == BODY
