"""Processes of Python that the product starts, and the rule by which nothing else starts one."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from refstore.core.child_processes import NOWHERE, Connection, Pipe, PythonProcess

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60.0
WAYS = """\
import subprocess
import multiprocessing
from multiprocessing import get_context
from multiprocessing.connection import Client
from concurrent.futures import ProcessPoolExecutor
import concurrent.futures.process
from asyncio import create_subprocess_exec, create_subprocess_shell
import asyncio.subprocess
import pty
import os; os.system("python")
import os; os.popen("python")
import os; os.execv("python", [])
import os; os.spawnv(os.P_NOWAIT, "python", [])
import os; os.posix_spawn("python", [], {})
import os; os.posix_spawnp("python", [], {})
import os; os.fork()
import os; os.forkpty()
"""


@pytest.mark.parametrize("file", ["refstore/cli/planted.py", "reaper/refstore_reaper/planted.py"])
def test_lint_refuses_every_other_way_to_start_a_process(file: str) -> None:
    ruff = Path(sysconfig.get_path("scripts")) / "ruff"
    ran = subprocess.run(
        [ruff, "check", "--no-cache", "--output-format", "json", "--stdin-filename", file, "-"],
        input=WAYS,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    refused = {row["location"]["row"] for row in json.loads(ran.stdout) if row["code"] in ("TID251", "S605", "S606")}
    assert refused == {*range(1, WAYS.count("\n") + 1)}


def test_sockets_and_connections_are_shared() -> None:
    ours, theirs = Pipe()
    left, right = socket.socketpair()
    with theirs, right:
        process = PythonProcess(answer, theirs, {"sockets": [right]})
    with ours, left:
        assert ours.recv() == "a connection"
        assert left.recv(100) == b"a socket"
    assert process.wait(SECONDS) == 0


def answer(connection: Connection, other: dict[str, list[socket.socket]]) -> None:
    connection.send("a connection")
    other["sockets"][0].sendall(b"a socket")


def test_the_process_has_the_module_path_of_its_starter_without_the_working_folder() -> None:
    ours, theirs = Pipe()
    with pytest.MonkeyPatch.context() as patch, theirs:
        patch.syspath_prepend("")
        patch.syspath_prepend("/nowhere/added")
        process = PythonProcess(send_path, theirs)
        expected = [folder for folder in sys.path if folder]
    with ours:
        assert ours.recv() == expected
    assert process.wait(SECONDS) == 0


def send_path(connection: Connection) -> None:
    connection.send(sys.path)


@pytest.mark.parametrize("flags", [["-E"], ["-s"], ["-I"]])
def test_the_process_ignores_what_its_starter_ignores(flags: list[str]) -> None:
    source = (
        "import sys; from refstore.core.child_processes import PythonProcess\n"
        f"sys.path.append({str(ROOT)!r})\n"
        "from tests.unit.test_child_processes import print_flags\n"
        "print_flags(); sys.exit(PythonProcess(print_flags).wait())"
    )
    ran = subprocess.run([sys.executable, "-P", *flags, "-c", source], capture_output=True, text=True, check=True)
    ours, theirs = ran.stdout.splitlines()
    assert ours == theirs


def print_flags() -> None:
    flags = sys.flags
    print(flags.safe_path, flags.ignore_environment, flags.no_user_site, flush=True)


def test_how_it_ended() -> None:
    assert PythonProcess(sys.exit, 7).wait(SECONDS) == 7
    process = PythonProcess(signal.pause, stdout=NOWHERE)
    assert process.is_alive()
    process.join(0)
    assert process.returncode is None
    process.kill()
    process.join()
    assert (process.is_alive(), process.returncode) == (False, -signal.SIGKILL)


def test_one_that_cannot_be_started_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(FileNotFoundError):
        PythonProcess(print)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(BrokenPipeError):
        PythonProcess(print, os.urandom(1 << 20))


def test_it_learns_that_its_starter_was_killed() -> None:
    source = (
        f"import sys; sys.path.append({str(ROOT)!r})\n"
        "from refstore.core.child_processes import PythonProcess\n"
        "from tests.unit.test_child_processes import wait_for_parent\n"
        "PythonProcess(wait_for_parent).wait()"
    )
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "waiting\n"
        starter.kill()
        assert starter.stdout.read() == "ended\n"  # and both ends of the pipe are closed


def wait_for_parent() -> None:
    import threading

    from refstore.core.child_processes import when_parent_ends

    over = threading.Event()
    when_parent_ends(over.set)
    print("waiting", flush=True)
    over.wait()
    print("ended", flush=True)
