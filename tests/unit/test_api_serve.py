"""`refstore serve` and `refstore keys`: the first key, ports, signals, workers."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from refstore.cli import serve
from refstore.configuration.settings import Settings, embedded_urls
from refstore.core.file_modes import make_folder
from refstore.kv import open_kv
from refstore.lake import open_lake_at
from refstore.service import access_keys
from refstore_api import server
from refstore_reaper.process_priority import NICE
from tests.commands import Command, Ran
from tests.kit.clock import FakeClock
from tests.kit.short_durations import constants_environment
from tests.servers.redis_servers import RedisServer

SECONDS = 60.0
OWN_KEY = ("AKIAENV", "the-secret-of-the-environment")

on_open_service = pytest.mark.xdist_group("open service")  # one worker starts it, not each


class Serving:
    """A `refstore serve` of the test's own."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def said(self) -> str:
        return self.log.read_text()

    @property
    def url(self) -> str:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            if found := re.search(r"refstore serves (http://\S+)", self.said):
                return found[1]
            time.sleep(0.02)  # for another process, which has no clock of ours
        raise AssertionError(f"the service did not start:\n{self.said}")

    def get(self, path: str, auth: tuple[str, str] | None = None) -> httpx.Response:
        url = self.url.replace("0.0.0.0", "127.0.0.1")  # noqa: S104  # replaced
        return httpx.get(f"{url}{path}", auth=auth, timeout=SECONDS)

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(SECONDS)


@contextmanager
def serving(folder: Path, *arguments: str, **environment: str) -> Iterator[Serving]:
    log = folder / f"serve-{len(list(folder.glob('serve-*')))}.log"
    own = {name: value for name, value in os.environ.items() if not name.startswith("REFSTORE_")} | {
        "REFSTORE_DATA": str(folder / "lake"),
        "XDG_STATE_HOME": str(folder / "state"),
        "TMPDIR": str(folder),
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "refstore", "serve", "--port", "0", *arguments],
            stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=own | environment, cwd=Path(__file__).parents[2],
        )  # fmt: skip
    try:
        yield Serving(process, log)
    finally:
        process.kill()
        process.wait()


def first_key_file(said: str) -> Path | None:
    found = re.search(r"first access key, an operator's, is in (\S+);", said)
    return Path(found[1]) if found else None


def first_key(said: str) -> tuple[str, str] | None:
    place = first_key_file(said)
    if place is None:
        return None
    found = dict(line.split("=", 1) for line in place.read_text().splitlines())
    return found["REFSTORE_ACCESS_KEY_ID"], found["REFSTORE_SECRET_ACCESS_KEY"]


@pytest.fixture(scope="module")
def open_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A service that serves several tests: beyond loopback, with a key of the environment, and without a reaper."""
    with serving(
        tmp_path_factory.mktemp("open"),
        "--host",
        "0.0.0.0",  # noqa: S104  # a test's
        "--no-reaper",
        REFSTORE_API_PUBLIC_URL="https://lake.example.org",
        REFSTORE_ACCESS_KEY_ID=OWN_KEY[0],
        REFSTORE_SECRET_ACCESS_KEY=OWN_KEY[1],
    ) as service:
        assert service.url
        yield service
        assert service.end() == 0
        assert "Traceback" not in service.said


@pytest.fixture
def refused(refstore: Command, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Return a function that runs `refstore serve` in this process, where the command must end before it serves."""

    def serve_nothing(*_: object) -> None:
        raise AssertionError("the service started")

    monkeypatch.setattr(server, "serve_requests", serve_nothing)

    def run(*arguments: str, **environment: str) -> Ran:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return refstore("serve", "--port", "0", "--no-reaper", *arguments)

    return run


def test_the_first_key_goes_into_a_private_file_and_works(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        assert service.get("/api/v1/user").status_code == 401
        key, place = first_key(service.said), first_key_file(service.said)
        assert key is not None
        assert place is not None
        assert place.parent == tmp_path / "lake"
        assert place.stat().st_mode & 0o7777 == 0o600
        assert service.get("/api/v1/user", auth=key).json()["user"]["friendly_name"] == "operator"
        assert service.end() == 0
        assert key[1] not in service.said
    with serving(tmp_path) as again:
        assert again.get("/api/v1/user", auth=key).status_code == 200
        assert first_key(again.said) is None
        assert key[1] not in again.said


def test_with_memory_stores_it_reaps_in_a_thread_and_its_first_key_goes_to_the_users_state(tmp_path: Path) -> None:
    """No other process could see what is to be reaped, and there is no data folder."""
    with serving(tmp_path, "--kv", "memory://x", "--objects", "memory://x") as service:
        assert service.get("/api/v1/user").status_code == 401
        assert service.get("/api/v1/user", auth=first_key(service.said)).status_code == 200
        place = first_key_file(service.said)
        assert place is not None
        assert place.parent == tmp_path / "state" / "refstore"
        assert place.parent.stat().st_mode & 0o7777 == 0o700
        assert place.stat().st_mode & 0o7777 == 0o600
        wait_until(lambda: "reaper_started" in service.said)
        assert not children(service.process.pid)
        assert service.end() == 0
        assert "reaper_ended" in service.said


def test_where_the_first_key_cannot_be_written_none_is_made(tmp_path: Path, refused: Callable[..., Ran]) -> None:
    """Else the only key would be one whose secret nobody has."""
    (tmp_path / "file").touch()
    stores = ("--kv", f"sqlite://{tmp_path}/kv", "--objects", f"file://{tmp_path}/objects")
    ran = refused(*stores, XDG_STATE_HOME=str(tmp_path / "file"))
    assert ran.code == 2
    assert "REFSTORE_ACCESS_KEY_ID" in ran.err
    with contextlib.closing(open_kv(f"sqlite://{tmp_path}/kv")) as kv:
        assert not access_keys.has_any_key(kv)


@on_open_service
def test_a_key_of_the_environment_works_and_is_not_printed(open_service: Serving) -> None:
    assert open_service.get("/api/v1/user", auth=OWN_KEY).status_code == 200
    assert OWN_KEY[1] not in open_service.said
    assert first_key(open_service.said) is None


def test_a_secret_of_the_environment_that_a_rotation_ended_stays_ended(tmp_path: Path) -> None:
    """The service starts with its other keys, and says so."""
    secret = "the-secret-of-the-environment"
    make_folder(tmp_path / "lake")
    with open_lake_at(*embedded_urls(tmp_path / "lake")) as lake:
        access_keys.ensure_key(lake, "AKIAENV", secret)
        rotated = access_keys.rotate_secret(lake, "AKIAENV", overlap_ms=0)
    with serving(tmp_path, REFSTORE_ACCESS_KEY_ID="AKIAENV", REFSTORE_SECRET_ACCESS_KEY=secret) as service:
        assert service.get("/api/v1/user", auth=("AKIAENV", secret)).status_code == 401
        assert service.get("/api/v1/user", auth=("AKIAENV", rotated.secret)).status_code == 200
        assert "give its new secret" in service.said
        assert secret not in service.said


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"REFSTORE_ACCESS_KEY_ID": "AKIAENV"}, "must be given together"),
        ({"REFSTORE_SECRET_ACCESS_KEY": "x" * 30}, "must be given together"),
        ({"REFSTORE_ACCESS_KEY_ID": "AKIAENV", "REFSTORE_SECRET_ACCESS_KEY": "short"}, "needs at least"),
        ({"REFSTORE_ACCESS_KEY_ID": "a b", "REFSTORE_SECRET_ACCESS_KEY": "x" * 30}, "is not an access key id"),
    ],
)
def test_a_key_of_the_environment_that_is_none_is_refused(
    refused: Callable[..., Ran], environment: dict[str, str], said: str
) -> None:
    ran = refused(**environment)
    assert ran.code == 2
    assert said in ran.err
    assert "x" * 30 not in ran.err + ran.out


def test_a_port_that_is_taken_is_said_so_before_anything_starts(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        serving(tmp_path, "--port", str(taken.getsockname()[1])) as service,
    ):
        assert service.process.wait(SECONDS) == 2
        assert "choose another --host or --port" in service.said


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "lake.example.org", "192.0.2.1"])  # noqa: S104  # nothing listens
def test_beyond_loopback_it_must_be_told_how_clients_reach_it(
    tmp_path: Path, refused: Callable[..., Ran], host: str
) -> None:
    """Else signed URLs follow whatever Host a request names."""
    ran = refused("--host", host)
    assert ran.code == 2
    assert "REFSTORE_API_PUBLIC_URL" in ran.err
    assert not (tmp_path / "lake").exists()


@on_open_service
def test_beyond_loopback_it_serves_when_it_was_told(open_service: Serving) -> None:
    assert "refstore serves http://0.0.0.0:" in open_service.said
    assert open_service.get("/healthcheck").status_code == 204


@pytest.mark.parametrize("reaper", ["--reaper", "--no-reaper"])
def test_it_ends_in_order_when_it_is_interrupted(tmp_path: Path, reaper: str) -> None:
    """The tests below end theirs by SIGTERM."""
    with serving(tmp_path, reaper) as service:
        assert service.get("/healthcheck").status_code == 204
        assert service.end(signal.SIGINT) == 0
        assert "Traceback" not in service.said


def test_workers_answer_and_log_as_one_are_replaced_and_end_together(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", "2", "--no-reaper") as service:
        for _ in range(8):
            assert service.get("/api/v1/user").status_code == 401
        before = children(service.process.pid)
        assert len(before) == 2
        assert '"event": "request"' in service.said
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: len(found := children(service.process.pid)) == 2 and before[0] not in found)
        assert service.get("/healthcheck").status_code == 204
        workers = children(service.process.pid)
        assert service.end() == 0
        assert not [worker for worker in workers if lives(worker)]


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    """Else they would keep the port, and nobody would stop or replace them."""
    with serving(tmp_path, "--workers", "2", "--no-reaper") as service:
        assert service.get("/healthcheck").status_code == 204
        workers = children(service.process.pid)
        service.process.kill()
        wait_until(lambda: not [worker for worker in workers if lives(worker)])


def test_the_reaper_is_a_process_that_lets_the_service_go_first_and_is_replaced(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        assert service.get("/healthcheck").status_code == 204
        wait_until(lambda: "reaper_started" in service.said)
        (killed,) = children(service.process.pid)
        assert os.getpriority(os.PRIO_PROCESS, killed) == max(
            NICE, os.getpriority(os.PRIO_PROCESS, service.process.pid)
        )
        assert os.sched_getscheduler(killed) == os.SCHED_BATCH
        assert os.sched_getscheduler(service.process.pid) == os.SCHED_OTHER
        assert len(os.sched_getaffinity(killed)) == 1
        assert os.sched_getaffinity(service.process.pid) == os.sched_getaffinity(0)
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: service.said.count("reaper_started") == 2)
        assert '"exit_code": -9' in service.said
        (other,) = children(service.process.pid)
        assert other != killed
        assert service.get("/healthcheck").status_code == 204
        assert "reaper_ended" not in service.said
        assert service.end() == 0
        assert "reaper_ended" in service.said, "it was asked, not killed"
        assert "Traceback" not in service.said
        assert not lives(other)


def test_the_reaper_ends_with_the_service_that_started_it(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        wait_until(lambda: "reaper_started" in service.said)
        processes = children(service.process.pid)
        assert len(processes) == 1
        service.process.kill()
        wait_until(lambda: not [process for process in processes if lives(process)])


@on_open_service
def test_a_service_without_a_reaper_has_no_metrics_of_one(open_service: Serving) -> None:
    said = open_service.get("/metrics", auth=OWN_KEY).text
    assert "refstore_api_" in said
    assert "refstore_reaper_" not in said


def test_a_memory_kv_is_one_processes_own(refstore: Command) -> None:
    ran = refstore("serve", "--kv", "memory://x", "--objects", "memory://x", "--workers", "2")
    assert ran.code == 2
    assert "one worker" in ran.err


def test_keys_are_created_listed_and_revoked(refstore: Command) -> None:
    made = refstore.json(
        "keys", "create", "--role", "reader", "--repository", "sales", "--description", "the dashboard"
    )
    assert made["role"] == "reader"
    listed = refstore.ok("keys", "list", "--json")
    assert made["secret_access_key"] not in listed.out
    assert made["access_key_id"] in listed.out
    revoked = refstore.json("keys", "revoke", made["access_key_id"], "--yes")
    assert revoked == {"access_key_id": made["access_key_id"], "revoked": "the key"}
    assert made["access_key_id"] not in refstore.ok("keys", "list", "--json").out
    assert refstore("keys", "revoke", made["access_key_id"], "--yes").code == 3


def test_a_role_that_there_is_not_is_refused(refstore: Command) -> None:
    ran = refstore("keys", "create", "--role", "admin")
    assert ran.code == 2
    assert "use reader, writer or operator" in ran.err


def children(pid: int) -> list[int]:
    """The worker processes."""
    found = [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return sorted(child for child in found if b"refstore.cli.serve" in Path(f"/proc/{child}/cmdline").read_bytes())


def lives(pid: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def wait_until(holds: object) -> None:
    assert callable(holds)
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end, "it does not come to hold"
        time.sleep(0.02)  # for another process, which has no clock of ours


def test_a_reaper_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when there is no memory for a moment."""
    over, tried = threading.Event(), 0

    def start(*_: object) -> None:
        nonlocal tried
        tried += 1
        if tried == 3:
            over.set()
        raise OSError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(serve, "PythonProcess", start)
    monkeypatch.setattr(serve, "RESTART_SECONDS", 0.001)
    serve.keep_reaping(Settings(data=None, kv="sqlite:///nowhere/kv", objects="file:///nowhere"), Path("nowhere"), over)
    assert tried == 3


@pytest.mark.parametrize("workers", [1, 2])
def test_metrics_of_the_service_hold_those_of_its_reaper(tmp_path: Path, workers: int) -> None:
    with serving(
        tmp_path,
        "--workers",
        str(workers),
        REFSTORE_SAFETY_GRACE="1s",
        **constants_environment({"ReaperSettings": {"pause_seconds": 0.1}}),
    ) as service:
        url, key = service.url, first_key(service.said)
        assert key is not None

        def post(path: str, **what: Any) -> None:
            assert httpx.post(f"{url}/api/v1{path}", auth=key, timeout=SECONDS, **what).is_success

        post(
            "/repositories",
            json={
                "name": "sales",
                "storage_namespace": f"file://{tmp_path}/lake/objects/sales",
                "default_branch": "main",
            },
        )
        post("/repositories/sales/branches/main/objects?path=a", content=b"12345")
        assert httpx.put(
            f"{url}/api/v1/repositories/sales/branches/main", json={"type": "reset"}, auth=key, timeout=SECONDS
        ).is_success
        end = time.monotonic() + SECONDS
        wanted = 'refstore_reaper_deleted_bytes_total{repository="sales"} 5.0'
        while wanted not in (said := service.get("/metrics", auth=key).text):
            assert time.monotonic() < end, said
            time.sleep(0.1)  # for another process, which has no clock of ours
        assert "refstore_api_requests_total" in said
        assert "refstore_reaper_beat_timestamp_seconds" in said
        assert service.end() == 0


@pytest.mark.server
def test_a_redis_that_may_evict_by_now_is_noticed_while_the_service_runs(tmp_path: Path) -> None:
    """It is not ready then, and deletes nothing: a record that was evicted cannot say any more that a blob is
    needed.
    """
    stores = {"REFSTORE_DATA": "", "REFSTORE_OBJECTS": f"file://{tmp_path}/objects"}
    with RedisServer(tmp_path / "redis") as server, contextlib.closing(server.client()) as redis:
        own = stores | {
            "REFSTORE_KV": server.url,
            "REFSTORE_SAFETY_GRACE": "0",
            **constants_environment({"ReaperSettings": {"pause_seconds": 0.2}}),
        }
        frozen = FakeClock(
            time.time_ns() // 1_000_000
        )  # a client that goes on believing what the server told it at first
        with (
            serving(tmp_path, **own) as service,
            open_lake_at(server.url, stores["REFSTORE_OBJECTS"], clock=frozen) as lake,
        ):
            repo = lake.create_repository("sales")
            wait_until(lambda: service.get("/readiness").status_code == 200)
            redis.config_set("maxmemory", "100mb")
            redis.config_set("maxmemory-policy", "allkeys-lru")
            wait_until(lambda: service.get("/readiness").status_code == 503)
            assert service.get("/readiness").json() == {"status": "not ready"}
            wait_until(lambda: '"event": "not_ready"' in service.said and "store_misconfigured" in service.said)
            wait_until(lambda: service.said.count('"event": "kv_may_evict"') >= 2)  # the service's, and its reaper's
            blob = tmp_path / "objects" / repo.context.repo / repo.upload("main", "a", b"1").address
            repo.reset("main")
            time.sleep(1)  # for another process: several of the reaper's passes, were there any
            assert blob.exists()
            redis.config_set("maxmemory-policy", "noeviction")
            wait_until(lambda: service.get("/readiness").status_code == 200)
            wait_until(lambda: not blob.exists())
            assert "Traceback" not in service.said
