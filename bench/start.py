"""The processor time of starting: a lake, a command, a commit and the service, against what they cannot do without.

Every side is a process of its own. Its time is user and system time of the whole process, children included. The sides
of a turn run one after the other, so what slows the machine slows both.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import refstore
from bench.measure import Row, Series, at_most, in_turns
from bench.workshop import Workshop

BASE: Final = "import apsw, msgspec"
"""What every process of refstore imports besides its own modules: SQLite and the records' encoding."""
OPEN: Final = "import refstore\nwith refstore.open() as lake: lake.repository('staged').stat('main', '3.csv')"
COMMIT: Final = """
import os, refstore
with refstore.create() as lake:
    repo = lake.repository("committed")
    repo.upload_many("main", [refstore.Upload(path=f"{n}.csv", body=os.urandom(8)) for n in range(10)])
    repo.commit("main", "ten files")
print(open("/proc/self/status").read())
"""
"""It says how much memory it had. `ru_maxrss` would not: a process begins that with its parent's."""
PREPARE: Final = """
import refstore
with refstore.create() as lake:
    staged = lake.create_repository("staged")
    staged.upload_many("main", [refstore.Upload(path=f"{n}.csv", body=b"1") for n in range(10)])
    lake.create_repository("committed")
"""
AGED: Final = """
import refstore
with refstore.create() as lake:
    repo = lake.create_repository("aged")
    repo.upload_many("main", [refstore.Upload(path=f"{n}.csv", body=b"%d" % n) for n in range(1_000)])
    repo.commit("main", "a thousand files")
    repo.set_retention('{"default_retention_days": 30}')
"""
NIGHTLY: Final = """
import sys
from refstore import cli
sys.argv = ["refstore", "gc", "run", "aged", "--json"]
try:
    cli.main()
finally:
    print(open("/proc/self/status").read())
"""
SHORT_WAIT: Final = refstore.Safety(operation_deadline_seconds=3, io_timeout_seconds=1, clock_skew_seconds=0)
"""The wait of a marking takes seconds with these, and no processor time."""
AGED_SECONDS: Final = 3 * 86_400
EMPTY_APP: Final = "from fastapi import FastAPI\napp = FastAPI()\n@app.get('/')\ndef root() -> dict: return {}\n"
ANSWER_SECONDS_MAX: Final = 120.0
CHECK_SECONDS: Final = 0.01


class Ended(NamedTuple):
    cpu_seconds: float
    output: str


def run(shop: Workshop) -> Iterator[Row]:
    folder = shop.on_disk("start")
    (folder / "empty_app.py").write_text(EMPTY_APP)
    environ = {**os.environ, "REFSTORE_DATA": str(folder / "lake")}
    _run([sys.executable, "-c", PREPARE], environ)
    turns = shop.scale.started
    base = [sys.executable, "-c", BASE]
    peaks: list[float] = []

    def commit(_turn: int) -> float:
        ended = _run([sys.executable, "-c", COMMIT], environ)
        peaks.append(_peak_mib(ended.output))
        return ended.cpu_seconds

    _run([sys.executable, "-c", COMMIT], environ)  # compiles what is not compiled yet; so does each first command
    listing = [sys.executable, "-m", "refstore", "ls", "staged", "main"]
    _run(listing, environ)
    shop.say("start: a lake, a command and a commit")
    bases, opens, listings, commits = in_turns(
        turns,
        lambda _turn: _run(base, environ).cpu_seconds,
        lambda _turn: _run([sys.executable, "-c", OPEN], environ).cpu_seconds,
        lambda _turn: _run(listing, environ).cpu_seconds,
        commit,
    )
    shop.say("start: the nightly job of a thousand objects")
    nightly = _nightly(folder / "nightly", turns, base)
    other, name = Series(bases, "CPU-s"), f"python -c '{BASE}'"
    for what, seconds, limit in (
        ("refstore.open and one stat of a staged name", opens, 4),
        ("refstore ls of ten staged names", listings, 6),
        ("a commit of ten files by the SDK, pandas installed", commits, 10),
    ):
        yield Row(what=what, ours=Series(seconds, "CPU-s"), other=other, other_name=name, bar=at_most(limit))
    yield Row(
        what="a commit of ten files by the SDK, pandas installed: peak memory",
        ours=Series((max(peaks),), "MiB"),
        bar=at_most(110),
    )
    yield Row(
        what="the first full gc run of 1,000 objects",
        ours=Series(nightly.seconds, "CPU-s"),
        other=Series(nightly.bases, "CPU-s"),
        other_name=name,
        bar=at_most(12),
    )
    yield Row(
        what="the first full gc run of 1,000 objects: peak memory",
        ours=Series((max(nightly.peaks),), "MiB"),
        bar=at_most(200),
    )
    shop.say("start: the service")
    empty = ["-m", "uvicorn", "--app-dir", str(folder), "empty_app:app"]
    service = ["-m", "refstore", "serve"]
    bare, served, asked = in_turns(
        max(2, turns // 2),
        lambda _turn: _until_answer(empty, "/", environ),
        lambda _turn: _until_answer(service, "/healthcheck", environ),
        lambda _turn: _until_answer(service, "/api/v1/repositories", environ),
    )
    other, name = Series(bare, "CPU-s"), "an empty FastAPI application under uvicorn"
    yield Row(
        what="refstore serve, its reaper included, until it answers /healthcheck",
        ours=Series(served, "CPU-s"),
        other=other,
        other_name=name,
        bar=at_most(1.6),
    )
    yield Row(
        what="refstore serve, its reaper included, until it answers a call of the API",
        ours=Series(asked, "CPU-s"),
        other=other,
        other_name=name,
    )


class Nightly(NamedTuple):
    seconds: tuple[float, ...]
    bases: tuple[float, ...]
    peaks: list[float]


def _nightly(folder: Path, turns: int, base: Sequence[str]) -> Nightly:
    peaks: list[float] = []

    def night(turn: int) -> float:
        lake = folder / str(turn)
        environ = {**os.environ, "REFSTORE_DATA": str(lake)}
        with refstore.create(lake, safety=SHORT_WAIT):
            pass
        _run([sys.executable, "-c", AGED], environ)
        aged = time.time() - AGED_SECONDS
        for file in (lake / "objects").rglob("*"):
            os.utime(file, (aged, aged))
        ended = _run([sys.executable, "-c", NIGHTLY], environ)
        assert '"listed"' in ended.output, ended.output
        peaks.append(_peak_mib(ended.output))
        return ended.cpu_seconds

    night(-1)
    seconds, bases = in_turns(turns, night, lambda _turn: _run(base, os.environ).cpu_seconds)
    return Nightly(seconds, bases, peaks)


def _peak_mib(status: str) -> float:
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def _run(command: Sequence[str], environ: Mapping[str, str]) -> Ended:
    """Run a command to its end."""
    process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    with process.stdout:
        output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}: {output[-2000:]}")
    return Ended(usage.ru_utime + usage.ru_stime, output)


def _until_answer(module: Sequence[str], path: str, environ: Mapping[str, str]) -> float:
    """Start a server, ask until it answers, and return the processor time that it and its children took until then."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, *module, "--port", str(port)],
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + ANSWER_SECONDS_MAX
        while not _answers(port, path):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{module} did not answer")
            time.sleep(CHECK_SECONDS)
        return sum(map(_cpu_seconds, _with_children(process.pid)))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _answers(port: int, path: str) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS_MAX) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        return bool(connection.recv(16))
    return False


def _with_children(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            for child in (task / "children").read_text().split():
                yield from _with_children(int(child))


def _cpu_seconds(pid: int) -> float:
    """What a running process took so far, by the scheduler's count, which is finer than the clock's ticks."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9
