"""Bounds of a running service: on bodies, heads, time and memory; and what broken or racing uploads leave behind."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from refstore.configuration.settings import ReaperSettings, embedded_urls
from refstore.errors import AlreadyExists, Conflict
from refstore.lake import open_lake_at
from refstore.operations.upload import Link
from refstore.public_types import stored_entry
from refstore.records import keys
from refstore.repository import Repository
from refstore.service import access_keys
from refstore_http.service import Service
from refstore_reaper.daemon import Reaper
from tests.api.conftest import KEY_ID, SECRET, Running, serving
from tests.api.service import application
from tests.kit.short_durations import constants_environment
from tests.servers.redis_servers import RedisServer

UPLOAD: Final = "/repositories/alpha/branches/main/objects"
READ: Final = "/repositories/alpha/refs/main/objects"
MIB: Final = 1 << 20
UPLOAD_BYTES_MAX: Final = 3 * MIB
IDLE_SECONDS: Final = 0.3


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service whose limits are low, without a reaper: the tests reap themselves."""
    folder = tmp_path_factory.mktemp("limited")
    (folder / "lake").mkdir()
    environment = {
        "REFSTORE_SAFETY_GRACE": "0",
        **constants_environment(
            {"ApiSettings": {"upload_bytes_max": UPLOAD_BYTES_MAX, "upload_idle_seconds": IDLE_SECONDS}}
        ),
    }
    with serving(folder, *embedded_urls(folder / "lake"), "--no-reaper", environment=environment) as running:
        with running.open() as lake:
            lake.create_repository("alpha", grace_seconds=0)
        yield running


@pytest.fixture
def http(limited: Running) -> Iterator[httpx.Client]:
    with limited.http() as found:
        yield found


def authorization() -> str:
    import base64

    return "Basic " + base64.b64encode(f"{KEY_ID}:{SECRET}".encode()).decode()


def raw(running: Running, head: str, *parts: bytes, end: bool = False) -> bytes:
    """One request written by hand, part after part; what comes back until the connection ends or nothing comes for
    long.
    """
    host, port = running.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(head.replace("\n", "\r\n").encode())
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for part in parts:
                connection.sendall(part)
        if end:
            return b""
        found = b""
        with contextlib.suppress(TimeoutError, ConnectionResetError):
            while chunk := connection.recv(65536):
                found += chunk
                if b"\r\n\r\n" in found and _whole(found):
                    break
        return found


def _whole(answer: bytes) -> bool:
    head, _, body = answer.partition(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0
    )
    return len(body) >= length


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


def head_of(method: str, path: str, *fields: str) -> str:
    return "\n".join(
        [f"{method} /api/v1{path} HTTP/1.1", "Host: lake", f"Authorization: {authorization()}", *fields, "", ""]
    )


# ---- too much


JSON_ROUTES: Final = [
    ("POST", "/auth/login"),
    ("POST", "/repositories"),
    ("DELETE", "/repositories/alpha/metadata"),
    ("POST", "/repositories/alpha/branches"),
    ("PUT", "/repositories/alpha/branches/main"),
    ("POST", "/repositories/alpha/branches/main/objects/delete"),
    ("PUT", "/repositories/alpha/branches/main/objects?path=p"),
    ("POST", "/repositories/alpha/refs/main/merge/objects"),
    ("POST", "/repositories/objects"),
    ("PUT", "/repositories/alpha/settings/gc_rules"),
]
"""Some that take a body, and some whose path looks like that of an upload, which has another bound."""


@pytest.mark.parametrize(("method", "path"), JSON_ROUTES)
@pytest.mark.parametrize("chunked", [False, True])
def test_a_huge_json_body_is_refused_unread(
    limited: Running, http: httpx.Client, method: str, path: str, *, chunked: bool
) -> None:
    sent = 0

    def chunks() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(64 * MIB // 65536):
            sent += 65536
            yield b" " * 65536

    body: Any = chunks() if chunked else b" " * (8 * MIB + 1)
    try:
        answered = http.request(method, path, content=body, headers={"content-type": "application/json"})
    except (httpx.WriteError, httpx.RemoteProtocolError):
        assert sent < 64 * MIB
        return
    assert answered.status_code in (413, 404, 405)
    if path != "/repositories/objects":
        assert (answered.status_code, answered.json()["code"]) == (413, "too_large")


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("form", [False, True])
def test_a_huge_upload_is_refused_and_nothing_is_visible(
    limited: Running, http: httpx.Client, *, chunked: bool, form: bool
) -> None:
    body = b"x" * (UPLOAD_BYTES_MAX + 1)
    kind = "application/octet-stream"
    if form:
        kind = "multipart/form-data; boundary=b"
        body = b'--b\r\nContent-Disposition: form-data; name="content"\r\n\r\n' + body + b"\r\n--b--\r\n"
    blocks = iter([body[at : at + 65536] for at in range(0, len(body), 65536)]) if chunked else body
    try:
        answered = http.post(UPLOAD, params={"path": "huge"}, content=blocks, headers={"content-type": kind})
        assert (answered.status_code, answered.json()["code"]) == (413, "too_large")
    except (httpx.WriteError, httpx.RemoteProtocolError):
        pass  # it stopped reading, and the client noticed that first
    assert http.get(READ + "/stat", params={"path": "huge"}).status_code == 404
    assert_nothing_left(limited)


def test_an_upload_without_a_length_is_taken(limited: Running, http: httpx.Client) -> None:
    body = os.urandom(2 * MIB + 7)
    blocks = iter([body[at : at + 10_000] for at in range(0, len(body), 10_000)])
    assert http.post(UPLOAD, params={"path": "chunked"}, content=blocks).json()["size_bytes"] == len(body)
    assert http.get(READ, params={"path": "chunked"}).content == body
    http.delete(UPLOAD, params={"path": "chunked"})


@pytest.mark.parametrize("depth", [100_000 // 40])
def test_json_that_is_deep_is_refused(http: httpx.Client, depth: int) -> None:
    body = b"[" * (depth // 2) + b"]" * (depth // 2)
    assert http.post("/repositories", content=body, headers={"content-type": "application/json"}).status_code == 400


def test_json_with_a_number_that_takes_long_to_read_is_refused(http: httpx.Client) -> None:
    body = b'{"name": "abc", "x": ' + b"9" * 4000 + b", " + b'"read_only": 1e999}'
    assert http.post("/repositories", content=body, headers={"content-type": "application/json"}).status_code == 400


def test_a_head_that_is_too_large_is_refused(limited: Running) -> None:
    answer = raw(limited, head_of("GET", "/healthcheck").rstrip("\n") + "\nX-Long: ", *[b"x" * 16384] * 8)
    assert status(answer) in (400, 431, 0)
    assert status(raw(limited, head_of("GET", "/healthcheck", *[f"X-{n}: {'x' * 1000}" for n in range(200)]))) in (
        431,
        0,
    )
    assert status(raw(limited, head_of("GET", "/healthcheck"))) == 204


def test_pages_are_bounded(http: httpx.Client) -> None:
    assert http.get("/repositories", params={"amount": 1001}).status_code == 400
    assert http.get("/repositories", params={"amount": -2}).status_code == 400
    assert http.post(UPLOAD + "/delete", json={"paths": ["a"] * 1001}).status_code in (400, 413)


# ---- too slow


def test_a_slow_upload_is_given_up(limited: Running) -> None:
    answer = raw(
        limited,
        head_of("POST", "/repositories/alpha/branches/main/objects?path=slow", "Content-Length: 100"),
        b"x" * 10,
    )
    assert status(answer) == 408
    assert b'"too_slow"' in answer
    assert_nothing_left(limited)


def test_a_slow_upload_that_is_under_way_to_the_store_is_given_up(limited: Running) -> None:
    head = head_of("POST", "/repositories/alpha/branches/main/objects?path=slow", f"Content-Length: {3 * MIB}")
    assert status(raw(limited, head, b"x" * (2 * MIB + 10))) == 408
    assert_nothing_left(limited)


@pytest.mark.parametrize(
    ("path", "content_type"),
    [("/api/v1/repositories", "application/json"), ("/ui/sign-in", "application/x-www-form-urlencoded")],
)
def test_a_slow_small_body_is_given_up(limited: Running, path: str, content_type: str) -> None:
    fields = (f"Content-Type: {content_type}", "Content-Length: 100", "Sec-Fetch-Site: same-origin")
    assert status(raw(limited, head_of("POST", "", *fields).replace("/api/v1", path), b"{")) == 408


# ---- broken


@pytest.mark.parametrize("sent", [0, 10, MIB + 10, 2 * MIB + 10])
@pytest.mark.parametrize("form", [False, True])
def test_a_client_that_goes_away_in_the_middle_leaves_nothing(
    limited: Running, http: httpx.Client, sent: int, *, form: bool
) -> None:
    kind = "multipart/form-data; boundary=b" if form else "application/octet-stream"
    opening = b'--b\r\nContent-Disposition: form-data; name="content"\r\n\r\n' if form else b""
    head = head_of(
        "POST",
        "/repositories/alpha/branches/main/objects?path=broken",
        f"Content-Type: {kind}",
        f"Content-Length: {3 * MIB - 1}",
    )
    before = went_away(limited)
    raw(limited, head, opening, b"x" * sent, end=True)
    wait_until(lambda: went_away(limited) > before)
    assert http.get(READ + "/stat", params={"path": "broken"}).status_code == 404
    assert_nothing_left(limited)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--b",
        b'--b\r\nContent-Disposition: form-data; name="content"\r\n\r\nhalf',
        b'--b\r\nContent-Disposition: form-data; name="other"\r\n\r\nx\r\n--b--\r\n',
        b'--c\r\nContent-Disposition: form-data; name="content"\r\n\r\nx\r\n--c--\r\n',
    ],
)
def test_a_form_that_is_not_whole_is_refused(limited: Running, http: httpx.Client, body: bytes) -> None:
    headers = {"content-type": "multipart/form-data; boundary=b"}
    assert http.post(UPLOAD, params={"path": "form"}, content=body, headers=headers).status_code == 400
    assert http.get(READ + "/stat", params={"path": "form"}).status_code == 404
    assert_nothing_left(limited)


@pytest.mark.parametrize(
    "fields",
    [
        ("Content-Length: 5", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked", "Content-Length: 5"),
        ("Content-Length: 5", "Content-Length: 6"),
        ("Content-Length: -5",),
        ("Content-Length: 5_0",),
        ("Transfer-Encoding: xchunked",),
        ("Transfer-Encoding : chunked",),
    ],
)
def test_a_request_that_two_readers_would_read_differently_is_refused(
    limited: Running, fields: tuple[str, ...]
) -> None:
    """Request smuggling: what one takes for the body, another takes for the next request."""
    smuggled = b"0\r\n\r\nGET /api/v1/healthcheck HTTP/1.1\r\nHost: lake\r\n\r\n"
    answer = raw(limited, head_of("POST", "/repositories", "Content-Type: application/json", *fields), smuggled)
    assert status(answer) in (400, 0)
    assert answer.count(b"HTTP/1.1 ") <= 1


@pytest.mark.parametrize("path", ["/auth/login", "/repositories", "/repositories/alpha/branches/main/objects?path=p"])
@pytest.mark.parametrize("length", ["0" * 5000, "9" * 20, "0" * 19 + "5"])
def test_a_length_of_very_many_digits_is_refused(limited: Running, path: str, length: str) -> None:
    """Zeros pass the parser, and Python does not read so many of them as a number."""
    head = head_of("POST", path, "Content-Type: application/json", f"Content-Length: {length}")
    assert status(raw(limited, head, b"{}   ")) == 400
    assert "request_crashed" not in limited.log.read_text()


def test_a_client_that_goes_away_while_it_reads_leaves_no_file_open(limited: Running, http: httpx.Client) -> None:
    body = b"x" * UPLOAD_BYTES_MAX
    http.post(UPLOAD, params={"path": "big"}, content=body)
    for _ in range(20):
        raw(limited, head_of("GET", "/repositories/alpha/refs/main/objects?path=big"), end=True)
    assert http.get(READ, params={"path": "big"}).content == body
    http.delete(UPLOAD, params={"path": "big"})
    assert_nothing_left(limited)
    wait_until(lambda: not [name for name in open_files(limited) if "/data/" in name])
    assert "request_crashed" not in limited.log.read_text()


def assert_nothing_left(running: Running) -> None:
    """No branch shows anything, and once a reaper has come by, no blob is there and no reference."""
    with running.open() as lake:
        repo = lake.repository("alpha")
        wait_for_uploads(repo)
        assert list(repo.list("main")) == []
        repo.reset("main")
        with Reaper(lake, ReaperSettings(breaker_share=1.0)) as reaper:
            reaper.run_once(lambda: False)
        ctx = repo.context
        assert [found.key for found in ctx.objects.list("data/")] == []
        assert [
            place for shard in range(keys.SHARDS) for place, _ in ctx.kv.scan(keys.references(ctx.repo, shard))
        ] == []


def wait_for_uploads(repo: Repository) -> None:
    """Until no body is on its way into the store: what it is written to is locked by its writer."""
    root = Path(repo.context.objects.url.removeprefix("file://").partition("?")[0])
    wait_until(lambda: not list((root / ".tmp").glob("*")))


def wait_until(holds: Callable[[], bool]) -> None:
    for _ in range(4000):
        if holds():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it does not come to hold")


def went_away(running: Running) -> int:
    return running.log.read_text().count('"status": 499')


def open_files(running: Running) -> list[str]:
    return [str(entry.resolve()) for entry in Path(f"/proc/{running.process.pid}/fd").iterdir()]


# ---- at once


RACERS: Final = 12


def test_of_clients_that_create_one_path_at_once_one_wins(limited: Running) -> None:
    with ThreadPoolExecutor(RACERS) as pool, limited.http() as http:
        start = threading.Barrier(RACERS)

        def create(number: int) -> int:
            start.wait()
            body = f"{number}".encode() * 1000
            return http.post(UPLOAD, params={"path": "one"}, content=body, headers={"If-None-Match": "*"}).status_code

        said = list(pool.map(create, range(RACERS)))
        assert sorted(said) == [201] + [412] * (RACERS - 1)
        winner = said.index(201)
        assert http.get(READ, params={"path": "one"}).content == f"{winner}".encode() * 1000
        http.delete(UPLOAD, params={"path": "one"})
    assert_nothing_left(limited)


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.server)])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The URLs of a lake's stores."""
    kv, objects = embedded_urls(tmp_path)
    if request.param == "sqlite":
        yield kv, objects
    else:
        with RedisServer(tmp_path / "redis", fsync="no") as redis:
            yield redis.url, objects


@pytest.mark.parametrize("over", ["nothing", "a tombstone", "a link"])
def test_of_writers_in_the_sdk_that_create_one_path_at_once_one_wins(shared: tuple[str, str], over: str) -> None:
    with open_lake_at(*shared) as lake:
        repo = lake.create_repository("alpha", grace_seconds=0)
        for round_ in range(5):
            path = f"p{round_}"
            if over == "a tombstone":
                repo.upload("main", path, b"old")
                repo.commit("main", "c")
                repo.delete("main", path)
            start = threading.Barrier(8)

            def create(number: int, path: str = path, start: threading.Barrier = start) -> bool:
                body = f"{number}".encode()
                if over == "a link" and number % 2:
                    issued = repo.issue("main", path)
                    repo.context.objects.put(issued.address, body)
                start.wait()
                try:
                    if over == "a link" and number % 2:
                        repo.link_many("main", [Link(path=path, token=issued.token, if_absent=True)])
                    else:
                        repo.upload("main", path, body, if_absent=True)
                except AlreadyExists:
                    return False
                return True

            with ThreadPoolExecutor(8) as pool:
                said = list(pool.map(create, range(8)))
            assert said.count(True) == 1
            assert repo.read("main", path) == f"{said.index(True)}".encode()


def test_creating_while_others_commit_and_delete_loses_nothing(shared: tuple[str, str]) -> None:
    """Whoever was told that it is there can read it or knows who took it away; and a reaper beside them takes no blob
    that is named.
    """
    with open_lake_at(*shared) as lake:
        repo = lake.create_repository("alpha", grace_seconds=0)
        over = threading.Event()
        failures: list[BaseException] = []

        def forever(work: Any) -> None:
            while not over.is_set():
                try:
                    work()
                except Conflict:
                    pass
                except BaseException as error:  # noqa: BLE001  # told below
                    failures.append(error)
                    return

        def reap() -> None:
            with Reaper(lake, ReaperSettings(breaker_share=1.0)) as reaper:
                reaper.run_once(over.is_set)

        others = [
            threading.Thread(target=forever, args=(work,))
            for work in (lambda: repo.commit("main", "c", allow_empty=True), lambda: repo.delete("main", "p"), reap)
        ]
        for other in others:
            other.start()
        told: set[str] = set()
        for number in range(25):
            with contextlib.suppress(Conflict):
                repo.upload("main", "p", f"{number}".encode(), if_absent=True)
            with contextlib.suppress(Conflict):
                repo.upload("main", f"q{number}", b"kept", if_absent=True)
                told.add(f"q{number}")
        over.set()
        for other in others:
            other.join()
        assert failures == []
        assert told
        assert told <= {listed.path for listed in repo.list("main")}
        for listed in repo.list("main"):
            assert repo.read("main", listed.path)
        for commit in repo.log("main"):
            for listed in repo.list(commit.id):
                assert repo.read(commit.id, listed.path)


# ---- an object is what it was looked up as


def test_bytes_are_those_of_the_entry_in_the_headers_while_others_overwrite() -> None:
    """A body that was looked up as one object is never another's, whatever the path has come to since."""
    with application() as service:
        repo = service.lake.create_repository("alpha")
        first = repo.upload("main", "p", b"a" * 1000)
        found: Service = service.app.state.service
        asked = found.stat

        async def overtaken(repository: str, ref: str, path: str) -> Any:
            looked_up = await asked(repository, ref, path)
            await found.run(lambda: repo.upload("main", "p", b"b" * 1000))
            return looked_up

        found.stat = overtaken
        answered = service("GET", READ, params={"path": "p"})
        assert answered.headers["etag"].strip('"') == stored_entry(first).md5
        assert answered.content == b"a" * 1000


# ---- what the log holds


def test_no_secret_is_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    secrets: set[str] = {SECRET, authorization().split()[1]}
    environment = {"REFSTORE_LOG_LEVEL": "debug", "REFSTORE_SIGNING_KEYS": "one:" + "s" * 40}
    secrets.add("s" * 40)
    with (
        serving(tmp_path, *embedded_urls(tmp_path / "lake"), environment=environment) as running,
        running.http() as http,
    ):
        with running.open() as lake:
            lake.create_repository("alpha")
            made = access_keys.create_key(lake, access_keys.Role.READER)
        secrets.add(made.secret)
        token = http.post("/auth/login", json={"access_key_id": KEY_ID, "secret_access_key": SECRET}).json()["token"]
        issued = http.get(
            "/repositories/alpha/branches/main/staging/backing", params={"path": "p", "presign": True}
        ).json()
        url = issued["presigned_url"].rpartition("/")[2]
        secrets |= {token, issued["token"], url}
        http.put(issued["presigned_url"], content=b"body")
        http.put(issued["presigned_url"] + "x", content=b"body")
        http.get("/user", headers={"Authorization": f"Bearer {token}"})
        http.get("/user", headers={"Authorization": f"Bearer {token}x"})
        http.get("/user", auth=(KEY_ID, made.secret))
        http.post("/auth/login", json={"access_key_id": KEY_ID, "secret_access_key": [made.secret]})
        link = {"staging": {"token": issued["token"]}, "checksum": "c", "size_bytes": 4}
        http.put("/repositories/alpha/branches/main/staging/backing", params={"path": "p"}, json=link)
        http.put("/repositories/alpha/branches/main/staging/backing", params={"path": "q"}, json=link)
        shown = http.get(READ, params={"path": "p", "presign": True}).headers["location"]
        secrets.add(shown.rpartition("/")[2])
        httpx.get(shown)
        raw(running, head_of("GET", f"/signed/{url}\x01"))
    log = running.log.read_text()
    assert log.count('"event": "request"') >= 8
    assert not [secret for secret in secrets if secret in log]


# ---- memory


def test_an_object_larger_than_the_memory_goes_up_and_down(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    block, blocks = os.urandom(MIB), 256
    expected, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    for _ in range(blocks):
        expected.update(block)
        md5.update(block)

    def body() -> Iterator[bytes]:
        for _ in range(blocks):
            yield block

    kv, objects = embedded_urls(tmp_path / "lake")
    with serving(tmp_path, kv, objects + "?fsync=0") as running, running.http() as http:
        with running.open() as lake:
            lake.create_repository("alpha")
        made = http.post(UPLOAD, params={"path": "big"}, content=body())
        assert made.json()["checksum"] == md5.hexdigest()
        found, size = hashlib.sha256(), 0
        with http.stream("GET", READ, params={"path": "big"}) as answered:
            for chunk in answered.iter_raw(MIB):
                found.update(chunk)
                size += len(chunk)
        assert (size, found.hexdigest()) == (blocks * MIB, expected.hexdigest())
        lines = Path(f"/proc/{running.process.pid}/status").read_text().splitlines()
        peak_kib = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
        print(f"peak resident memory: {peak_kib >> 10} MiB")
        assert peak_kib < 200 << 10
