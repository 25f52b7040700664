"""A byte that flips on its way from S3: whoever reads a whole object hears of it, and nobody takes the copy for whole.

A proxy before the S3 server flips the last byte of what it answers; moto answers quickly, Ceph RGW for real.
"""

from __future__ import annotations

import http.client
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from refstore.core.ids import is_own
from refstore.errors import CorruptObject
from refstore.lake import Lake, open_lake_at
from refstore.operations.upload import Link
from refstore.repository import Repository
from tests.api.conftest import KEY_ID, SECRET, serving
from tests.api.service import application
from tests.commands import Command
from tests.servers.s3_base import S3Server
from tests.servers.s3_proxy import ProxiedRequest, Rewrite, S3FaultProxy

SMALL = b"small"
LARGE = bytes(range(256)) * 10_000
"""Three chunks."""
BODIES = {"large": LARGE, "small": SMALL, "empty": b""}

RGW = pytest.param("rgw_server", marks=[pytest.mark.server, pytest.mark.root, pytest.mark.slow])


class Way(NamedTuple):
    """The way to an S3 server."""

    proxy: S3FaultProxy
    url: str

    def flip(self) -> None:
        """From now on flip the last byte of all data."""
        self.proxy.plan = flip_data

    def heal(self) -> None:
        self.proxy.plan = None


def flip_data(request: ProxiedRequest) -> Rewrite | None:
    return Rewrite(flipped) if request.is_get_object and "/data/" in request.target else None


def flipped(body: bytes) -> bytes:
    return body[:-1] + bytes([body[-1] ^ 4]) if body else body


@pytest.fixture(params=["moto_s3_server", RGW])
def way(request: pytest.FixtureRequest) -> Iterator[Way]:
    server: S3Server = request.getfixturevalue(request.param)
    with S3FaultProxy(server.endpoint) as proxy:
        yield Way(proxy, server.url().replace(server.endpoint, proxy.endpoint))


def filled(lake: Lake) -> Repository:
    repo = lake.create_repository("sales")
    for path, body in BODIES.items():
        repo.upload("main", path, body)
    return repo


def test_the_sdk_raises_before_the_last_chunk(way: Way) -> None:
    with open_lake_at("memory://", way.url) as lake:
        repo = filled(lake)
        assert {path: repo.read("main", path) for path in BODIES} == BODIES
        issued = repo.issue("main", "linked")
        repo.context.objects.put(issued.address, LARGE)
        repo.link_many("main", [Link(path="linked", token=issued.token, checksum="0" * 64)])
        way.flip()
        for path in ("large", "small"):
            chunks: list[bytes] = []
            with pytest.raises(CorruptObject, match=f"'{path}' on 'main' did not arrive as it was uploaded"):
                chunks.extend(repo.get("main", path))  # what came before the error is kept
            with pytest.raises(CorruptObject):
                list(repo.get("main", path, end=len(LARGE)))
            assert BODIES[path].startswith(b"".join(chunks))
            assert len(b"".join(chunks)) < len(BODIES[path])
        assert repo.read("main", "empty") == b""
        # a part cannot be checked, nor what only a linker has hashed
        assert b"".join(repo.get("main", "large", start=1)) == flipped(LARGE)[1:]
        assert repo.read("main", "linked") == flipped(LARGE)
        way.heal()
        assert {path: repo.read("main", path) for path in BODIES} == BODIES


def test_the_commands_leave_no_file(way: Way, refstore: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REFSTORE_DATA")
    monkeypatch.setenv("REFSTORE_KV", f"sqlite:///{refstore.folder}/kv.sqlite")
    monkeypatch.setenv("REFSTORE_OBJECTS", way.url)
    refstore.ok("repo", "create", "sales")
    for path, body in BODIES.items():
        refstore.ok("upload", "sales", "main", "-", f"in/{path}", stdin=body)
    way.flip()
    kept = refstore.folder / "kept"
    kept.write_bytes(b"before")
    ran = refstore("cat", "sales", "main", "in/large")
    assert (ran.code, LARGE.startswith(ran.out_bytes), len(ran.out_bytes) < len(LARGE)) == (6, True, True)
    for words in (["in/large", "kept"], ["in/small", "kept"]):
        ran = refstore("download", "sales", "main", *words, "--json")
        assert (ran.code, ran.error["code"]) == (6, "corrupt_object")
    assert refstore("download", "-r", "sales", "main", "in/", "got").code == 6
    assert kept.read_bytes() == b"before"
    assert [file.name for file in refstore.folder.rglob("*") if file.name.endswith(".part")] == []
    assert [file.name for file in Path("got").iterdir()] in ([], ["empty"])
    way.heal()
    refstore.ok("download", "-r", "sales", "main", "in/", "got")
    assert {file.name: file.read_bytes() for file in Path("got").iterdir()} == BODIES


def test_the_service_ends_the_body_early(way: Way) -> None:
    with application(objects=way.url) as app:
        filled(app.lake)
        place = "/repositories/sales/refs/main/objects?path="
        way.flip()
        small = app("GET", f"{place}small")
        assert (small.status_code, small.json()["code"]) == (500, "corrupt_object")
        with pytest.raises(AssertionError):  # httpx's transport: the application ended, and the body has not
            app("GET", f"{place}large")
        part = app("GET", f"{place}large", headers={"Range": "bytes=1-"})
        assert (part.status_code, part.content) == (206, flipped(LARGE)[1:])
        with pytest.raises(AssertionError):
            app("GET", f"{place}large", headers={"Range": "bytes=0-"})
        way.heal()
        assert {path: app("GET", place + path).content for path in BODIES} == BODIES


@pytest.mark.server
@pytest.mark.root
@pytest.mark.slow
def test_a_client_does_not_take_the_body_for_whole(rgw_server: S3Server, tmp_path: Path) -> None:
    with S3FaultProxy(rgw_server.endpoint) as proxy:
        way = Way(proxy, rgw_server.url().replace(rgw_server.endpoint, proxy.endpoint))
        with serving(tmp_path, f"sqlite:///{tmp_path}/kv.sqlite", way.url) as service:
            with service.open() as lake:
                address = filled(lake).stat("main", "large").address
            assert is_own(address)
            way.flip()
            where = urlsplit(service.url)
            authorization = "Basic " + b64encode(f"{KEY_ID}:{SECRET}".encode()).decode()
            for headers in ({}, {"Range": "bytes=0-"}):
                connection = http.client.HTTPConnection(where.netloc, timeout=60)
                connection.request(
                    "GET",
                    "/api/v1/repositories/sales/refs/main/objects?path=large",
                    headers={"Authorization": authorization, **headers},
                )
                answer = connection.getresponse()
                assert (answer.status, answer.getheader("Content-Length")) == (206 if headers else 200, str(len(LARGE)))
                with pytest.raises(http.client.IncompleteRead):
                    answer.read()
                connection.close()
            log = service.log.read_text()
            assert f"the object at {address} did not arrive as it was uploaded" in log
