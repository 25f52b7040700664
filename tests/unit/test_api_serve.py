"""`refstore serve` and `refstore keys`: the first key, ports, signals, workers."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from reaper.priority import NICE
from refstore.cli import serve
from refstore.settings import Settings
from tests.commands import Command

SECONDS = 60.0


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
        return httpx.get(f"{self.url}{path}", auth=auth, timeout=SECONDS)

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(SECONDS)


@contextmanager
def serving(folder: Path, *arguments: str, **environment: str) -> Iterator[Serving]:
    log = folder / f"serve-{len(list(folder.glob('serve-*')))}.log"
    own = {name: value for name, value in os.environ.items() if not name.startswith("REFSTORE_")} | {"REFSTORE_DATA": str(folder / "lake")}
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


def first_key(said: str) -> tuple[str, str] | None:
    found = re.search(r"REFSTORE_ACCESS_KEY_ID=(\S+)\s+REFSTORE_SECRET_ACCESS_KEY=(\S+)", said)
    return (found[1], found[2]) if found else None


def test_the_first_key_is_printed_once_and_works(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        assert service.get("/api/v1/user").status_code == 401
        key = first_key(service.said)
        assert key is not None
        assert service.get("/api/v1/user", auth=key).json()["user"]["friendly_name"] == "operator"
        assert service.said.count(key[1]) == 1
        assert service.end() == 0
    with serving(tmp_path) as again:
        assert again.get("/api/v1/user", auth=key).status_code == 200
        assert first_key(again.said) is None
        assert key[1] not in again.said


def test_a_key_of_the_environment_works_and_is_not_printed(tmp_path: Path) -> None:
    secret = "the-secret-of-the-environment"
    with serving(tmp_path, REFSTORE_ACCESS_KEY_ID="AKIAENV", REFSTORE_SECRET_ACCESS_KEY=secret) as service:
        assert service.get("/api/v1/user", auth=("AKIAENV", secret)).status_code == 200
        assert secret not in service.said
        assert first_key(service.said) is None


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"REFSTORE_ACCESS_KEY_ID": "AKIAENV"}, "must be given together"),
        ({"REFSTORE_SECRET_ACCESS_KEY": "x" * 30}, "must be given together"),
        ({"REFSTORE_ACCESS_KEY_ID": "AKIAENV", "REFSTORE_SECRET_ACCESS_KEY": "short"}, "needs at least"),
        ({"REFSTORE_ACCESS_KEY_ID": "a b", "REFSTORE_SECRET_ACCESS_KEY": "x" * 30}, "is not an access key id"),
    ],
)
def test_a_key_of_the_environment_that_is_none_is_refused(tmp_path: Path, environment: dict[str, str], said: str) -> None:
    with serving(tmp_path, **environment) as service:
        assert service.process.wait(SECONDS) == 2
        assert said in service.said
        assert "x" * 30 not in service.said


def test_a_port_that_is_taken_is_said_so_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, serving(tmp_path, "--port", str(taken.getsockname()[1])) as service:
        assert service.process.wait(SECONDS) == 2
        assert "choose another --host or --port" in service.said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("reaper", ["--reaper", "--no-reaper"])
def test_it_ends_in_order_when_it_is_asked_to(tmp_path: Path, number: int, reaper: str) -> None:
    with serving(tmp_path, reaper) as service:
        assert service.get("/healthcheck").status_code == 204
        assert service.end(number) == 0
        assert "Traceback" not in service.said


def test_workers_answer_log_as_one_and_end_together(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", "2", "--no-reaper") as service:
        for _ in range(8):
            assert service.get("/api/v1/user").status_code == 401
        workers = children(service.process.pid)
        assert len(workers) == 2
        assert '"event": "request"' in service.said
        assert service.end() == 0
        assert not [worker for worker in workers if lives(worker)]


def test_a_worker_that_dies_is_replaced(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", "2", "--no-reaper") as service:
        assert service.get("/healthcheck").status_code == 204
        before = children(service.process.pid)
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: len(found := children(service.process.pid)) == 2 and before[0] not in found)
        assert service.get("/healthcheck").status_code == 204
        assert service.end() == 0


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    """Else they would keep the port, and nobody would stop or replace them."""
    with serving(tmp_path, "--workers", "2", "--no-reaper") as service:
        assert service.get("/healthcheck").status_code == 204
        workers = children(service.process.pid)
        service.process.kill()
        wait_until(lambda: not [worker for worker in workers if lives(worker)])


def test_the_reaper_is_a_process_that_lets_the_service_go_first(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        assert service.get("/healthcheck").status_code == 204
        wait_until(lambda: "reaper_started" in service.said)
        (reaper,) = children(service.process.pid)
        assert os.getpriority(os.PRIO_PROCESS, reaper) == max(NICE, os.getpriority(os.PRIO_PROCESS, service.process.pid))
        assert os.sched_getscheduler(reaper) == os.SCHED_BATCH
        assert os.sched_getscheduler(service.process.pid) == os.SCHED_OTHER
        assert len(os.sched_getaffinity(reaper)) == 1
        assert os.sched_getaffinity(service.process.pid) == os.sched_getaffinity(0)
        assert service.end() == 0
        assert "reaper_ended" in service.said, "it was asked, not killed"
        assert not lives(reaper)


def test_a_reaper_that_is_killed_is_replaced_and_the_service_does_not_notice(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        wait_until(lambda: "reaper_started" in service.said)
        (killed,) = children(service.process.pid)
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: service.said.count("reaper_started") == 2)
        assert '"exit_code": -9' in service.said
        (other,) = children(service.process.pid)
        assert other != killed
        assert service.get("/healthcheck").status_code == 204
        assert service.end() == 0
        assert not lives(other)


def test_the_reaper_ends_with_the_service_that_started_it(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        wait_until(lambda: "reaper_started" in service.said)
        (reaper,) = children(service.process.pid)
        service.process.kill()
        wait_until(lambda: not lives(reaper))


def test_what_only_the_service_sees_is_reaped_by_the_service(tmp_path: Path) -> None:
    with serving(tmp_path, "--kv", "memory://x", "--objects", "memory://x") as service:
        assert service.get("/healthcheck").status_code == 204
        wait_until(lambda: "reaper_started" in service.said)
        assert not children(service.process.pid)
        assert service.end() == 0
        assert "reaper_ended" in service.said


def test_a_memory_kv_is_one_processes_own(refstore: Command) -> None:
    ran = refstore("serve", "--kv", "memory://x", "--objects", "memory://x", "--workers", "2")
    assert ran.code == 2
    assert "one worker" in ran.err


def test_keys_are_created_listed_and_revoked(refstore: Command) -> None:
    made = refstore.json("keys", "create", "--role", "reader", "--repository", "sales", "--description", "the dashboard")
    assert made["role"] == "reader"
    listed = refstore.ok("keys", "list", "--json")
    assert made["secret_access_key"] not in listed.out
    assert made["access_key_id"] in listed.out
    revoked = refstore.json("keys", "revoke", made["access_key_id"], "--yes")
    assert revoked == {"access_key_id": made["access_key_id"], "revoked": True}
    assert made["access_key_id"] not in refstore.ok("keys", "list", "--json").out
    assert refstore("keys", "revoke", made["access_key_id"], "--yes").code == 3


def test_a_role_that_there_is_not_is_refused(refstore: Command) -> None:
    ran = refstore("keys", "create", "--role", "admin")
    assert ran.code == 2
    assert "use reader, writer or operator" in ran.err


def children(pid: int) -> list[int]:
    """The worker processes; not the helper that Python starts beside them."""
    found = [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    return sorted(child for child in found if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes())


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

    def start(_process: object) -> None:
        nonlocal tried
        tried += 1
        if tried == 3:
            over.set()
        raise OSError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(multiprocessing.get_context("spawn").Process, "start", start)
    monkeypatch.setattr(serve, "RESTART_SECONDS", 0.001)
    serve._keep_reaping(Settings(data=None, kv="sqlite:///nowhere/kv", objects="file:///nowhere"), over)
    assert tried == 3
