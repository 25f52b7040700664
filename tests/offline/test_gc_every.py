"""`refstore gc run --every`: passes in processes of their own, until SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from refstore.cli.option_values import duration_seconds
from refstore.errors import InvalidSettings
from refstore.gc_marks import Marks, RunState, new_mark_id
from tests.commands import Command
from tests.durations import AT_ONCE_ENVIRONMENT, unchecked_lake
from tests.offline.world import World
from tests.reaping import reap_all, release_all
from tests.servers.s3_base import S3Server, free_port
from tests.servers.s3_proxy import Fault, ProxiedRequest, Refuse, S3FaultProxy

SECONDS = 300.0
"""For a pass that starts Spark on a machine that is busy with others. Generous: nothing here is judged by its time."""


class Looping:
    """A `refstore gc run --every` of the test's own."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, port: int) -> None:
        self.process = process
        self.log = log
        self._port = port

    def until(self, done: Callable[[], object]) -> None:
        end = time.monotonic() + SECONDS
        while not done():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.05)  # for another process, which has no clock of ours

    def says(self, event: str, times: int = 1) -> bool:
        return self.log.read_text().count(f'"event": "{event}"') >= times

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=10) as answer:
            return answer.read().decode()

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(SECONDS)


@contextmanager
def looping(folder: Path, *arguments: str, **settings: str) -> Iterator[Looping]:
    log, port = folder / "every.log", free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REFSTORE_")} | {
        "TMPDIR": str(folder),
    }
    where = [] if "REFSTORE_KV" in settings else ["--data", str(folder)]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "refstore", "gc", "run", *where, "--metrics-port", str(port), *arguments],
            stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment | settings, cwd=Path(__file__).parents[2],
        )  # fmt: skip
    try:
        yield Looping(process, log, port)
    finally:
        process.kill()
        process.wait()


def is_there(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_it_waits_for_others_survives_its_pass_and_leaves_no_run_behind(world: World, tmp_path: Path) -> None:
    """Every operation may take an hour, so a run that has begun waits, and is there to be disturbed."""
    marks = Marks(world.ctx)
    world.commit(days_ago=9, a=b"old")
    expired = world.commit(days_ago=8, a=b"new")
    world.commit(days_ago=7, a=b"newest")
    reap_all(world.repo)
    others = marks.mark_run.begin("digest", 0, [], new_mark_id(world.ctx), owner="another-host:1")
    with looping(world.folder, "--all", "--every", "1s") as loop:
        loop.until(lambda: loop.says("another_run_is_on"))
        assert "another-host:1" in loop.log.read_text()
        assert 'refstore_gc_runs_total{ended="another run",repository="sales"} 1.0' in loop.metrics()
        assert not loop.says("run_failed"), "it is no failure"
        marks.mark_run.abandon(others)

        def child() -> int:
            flag = marks.runs.read_flag()
            host, _, pid = flag.owner.partition(":") if flag is not None else ("", "", "0")
            return int(pid) if host == socket.gethostname() else 0

        loop.until(lambda: child() and marks.commits.read_marks([expired])[0])
        first = child()
        os.kill(first, signal.SIGKILL)  # as the system does it that runs out of memory
        loop.until(lambda: loop.says("run_failed"))
        assert '"code": "pass_ended"' in loop.log.read_text()
        loop.until(lambda: child() not in (0, first))
        second = child()
        assert loop.end() == 0
        assert not is_there(second)
        assert loop.says("run_abandoned", 2)
        assert loop.says("gc_stopped")
    assert marks.runs.read_flag() is None
    assert {run.state for run in marks.runs.scan()} == {RunState.ABANDONED}
    assert list(marks.commits.scan()) == []


def test_a_pass_tells_what_it_did_and_the_next_one_follows(world: World) -> None:
    world.commit(days_ago=9, a=b"old")
    world.commit(days_ago=8, a=b"new")
    release_all(world.repo)
    world.age()
    with looping(
        world.folder, "--all", "--every", "1s", "--json", "--min-age-seconds", "0", **AT_ONCE_ENVIRONMENT
    ) as loop:
        loop.until(lambda: loop.says("gc_pass_ended", 2))
        said = loop.metrics()
        assert loop.end() == 0
        lines = [json.loads(line) for line in loop.log.read_text().splitlines() if line.startswith('{"runs"')]
    assert [run["sweep"]["outcomes"] for run in lines[0]["runs"]] == [{"deleted": {"objects": 1, "bytes": 3}}]
    assert [run["marked"]["objects"] for run in lines[1]["runs"]] == [0]
    assert lines[0]["errors"] == lines[0]["deleted_repositories"] == []
    assert 'refstore_gc_deleted_objects_total{by="refstore",repository="sales"} 1.0' in said
    assert 'refstore_gc_deleted_bytes_total{by="refstore",repository="sales"} 3.0' in said
    assert 'refstore_gc_marked_objects_total{repository="sales"} 1.0' in said
    assert 'refstore_gc_drift_objects{repository="sales"} 0.0' in said
    assert len(world.data()) == 1


@pytest.mark.server
def test_what_a_store_refuses_the_one_repository_does_not_end_it(moto_s3_server: S3Server, tmp_path: Path) -> None:
    """Its operator may allow it before the next pass: the credentials expired, or lack a right."""
    refused: list[str] = []

    def plan(request: ProxiedRequest) -> Fault | None:
        if request.is_list and "data%2F" in request.target and len(refused) < 2:
            refused.append(request.target)
            return Refuse(status=403, code="AccessDenied")
        return None

    with S3FaultProxy(moto_s3_server.endpoint) as proxy:
        kv, url = f"sqlite://{tmp_path}/kv.sqlite", moto_s3_server.url(endpoint=proxy.endpoint)
        with unchecked_lake(kv, url) as lake:
            lake.create_repository("sales").upload("main", "a", b"x")
        proxy.plan = plan
        stores = {"REFSTORE_KV": kv, "REFSTORE_OBJECTS": url}
        with looping(tmp_path, "sales", "--every", "1s", **AT_ONCE_ENVIRONMENT, **stores) as loop:
            loop.until(lambda: loop.says("run_failed") and loop.says("gc_pass_ended", 2) and "done" in loop.metrics())
            assert '"code": "objects_refused"' in loop.log.read_text()
            with unchecked_lake(kv, url) as lake:
                lake.delete_repository("sales")  # no later pass finds it
            assert loop.process.wait(SECONDS) == 3
            assert "repository 'sales' was deleted at" in loop.log.read_text()
    assert refused


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (("sales", "--every", "1h", "--grace-days", "9999"), 2, "use 0 to 3650"),
        (("sales", "--every", "soon"), 2, "is no interval"),
        (("sales", "--every", "0s"), 2, "is no interval"),
        (("sales", "--every", "1h", "--dry-run"), 2, "goes without --dry-run"),
        (("--every", "1h"), 2, "name one repository, or give --all"),
        (("sales", "--metrics-port", "9109"), 2, "--metrics-port is for --every"),
        (("nowhere", "--every", "1h"), 3, "does not exist"),
    ],
)
def test_what_no_pass_could_do_better_ends_it_before_it_begins(
    refstore: Command, words: tuple[str, ...], code: int, what: str
) -> None:
    refstore.ok("repo", "create", "sales")
    ran = refstore("gc", "run", *words)
    assert (ran.code, what in ran.err) == (code, True)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("6h", 21_600), ("1.5d", 129_600)])
def test_an_interval_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert duration_seconds("--every", text) == seconds


@pytest.mark.parametrize("text", ["", "6", "h", "-1h", "6 hours", "400d", "0.5s", "inf"])
def test_what_is_no_interval_is_refused(text: str) -> None:
    with pytest.raises(InvalidSettings, match="is no interval"):
        duration_seconds("--every", text)
