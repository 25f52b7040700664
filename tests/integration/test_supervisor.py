"""However a test run is ended, it leaves no process: no server, no orphan in a session of its own, no reaper."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import supervisor

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS_MAX = 120.0
GONE_SECONDS_MAX = 120.0
TRACEBACK_SECONDS = 5.0
"""How long a process may take to write its tracebacks, before it is ended."""

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives orphans to a process of one's choice"),
]

TESTS = '''
import os, pathlib, subprocess, sys, time

from tests.servers.redis_servers import RedisServer

FOLDER = pathlib.Path(os.environ["FOLDER"])
REFSTORE = [sys.executable, "-m", "refstore", "--data", str(FOLDER / "lake")]
ORPHAN = """
import subprocess
quiet = dict.fromkeys(["stdin", "stdout", "stderr"], subprocess.DEVNULL)
print(subprocess.Popen(["sleep", "1000"], start_new_session=True, env={}, **quiet).pid)
"""


def test_starts_processes():
    redis = RedisServer(FOLDER / "redis").start()
    orphan = int(subprocess.run([sys.executable, "-c", ORPHAN], check=True, capture_output=True).stdout)
    subprocess.run([*REFSTORE, "repo", "create", "sales"], check=True)
    reaper = subprocess.Popen([*REFSTORE, "reaper"], start_new_session=True)
    pids = (os.getpid(), os.getppid(), redis.pid, orphan, reaper.pid)
    (FOLDER / "pids.new").write_text(" ".join(map(str, pids)))
    (FOLDER / "pids.new").rename(FOLDER / "pids")
    if "ENDS" not in os.environ:
        time.sleep(1000)
'''


class Run:
    """A run of pytest whose test starts processes. `workers`: how many of xdist run it; 0: pytest itself does."""

    def __init__(self, folder: Path, *, workers: int, **variables: str) -> None:
        (folder / "test_processes.py").write_text(TESTS)
        (folder / "pytest.ini").write_text("[pytest]\n")
        self.log = folder / "run.log"
        plugins = ["-p", "tests.supervisor", "-p", "no:cacheprovider"]
        plugins += ["-p", "xdist", "-n", str(workers)] if workers else []
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment |= {
            "FOLDER": str(folder),
            "PYTHONPATH": str(ROOT),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONFAULTHANDLER": "1",
            **variables,
        }
        with self.log.open("wb") as log:
            self.pytest = subprocess.Popen(
                [sys.executable, "-m", "pytest", *plugins, str(folder)],
                cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._started = {self.pytest.pid: start_time(self.pytest.pid)}
        pids = folder / "pids"
        self._wait(pids.exists, READY_SECONDS_MAX)
        started = [int(pid) for pid in pids.read_text().split()]
        self.tests, self.parent = started[:2]
        """The process that runs the tests, and its parent: of a worker xdist's controller, else the supervisor."""
        self._started.update({pid: start_time(pid) for pid in started})

    @property
    def alive(self) -> dict[int, str]:
        """What it has started and is there still."""
        return {
            pid: supervisor.command_of(pid)
            for pid, began in self._started.items()
            if began and start_time(pid) == began
        }

    def wait(self) -> int:
        """Return the exit status of pytest, when nothing is left that it has started."""
        self._wait(lambda: self.pytest.poll() is not None, GONE_SECONDS_MAX)
        self._wait(lambda: not self.alive, GONE_SECONDS_MAX)
        return self.pytest.returncode

    def _wait(self, is_over: Callable[[], bool], seconds_max: float) -> None:
        """Fail where it takes longer; then end all that was started, and show what pytest's processes were doing."""
        until = time.monotonic() + seconds_max
        while not is_over():
            if time.monotonic() > until:
                alive = self.alive
                for pid in reversed(alive):
                    os.kill(pid, signal.SIGABRT)
                time.sleep(TRACEBACK_SECONDS)
                for pid in self.alive:
                    os.kill(pid, signal.SIGKILL)
                self.pytest.wait()
                pytest.fail(f"not over, and alive are {alive}\n{self.log.read_text()}")
            time.sleep(0.05)


def stat(pid: int) -> list[str]:
    """The fields of a process behind its name; none where it is gone, or only waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [] if fields[0] == "Z" else fields


def start_time(pid: int) -> str:
    return stat(pid)[19] if stat(pid) else ""


ASKED = {pytest.ExitCode.INTERRUPTED, 128 + signal.SIGKILL}
"""How a run ends that is asked to: by itself, or, where the machine is too busy for that, by its supervisor."""


def end_pytest(run: Run) -> None:
    run.pytest.terminate()


def interrupt_the_process_group(run: Run) -> None:
    os.killpg(run.pytest.pid, signal.SIGINT)


def kill_pytest(run: Run) -> None:
    run.pytest.kill()


def kill_controller_and_worker(run: Run) -> None:
    for pid in (run.parent, run.tests):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("end", "statuses"),
    [
        (end_pytest, ASKED),
        (interrupt_the_process_group, ASKED),
        (kill_pytest, {-signal.SIGKILL}),
        (kill_controller_and_worker, {128 + signal.SIGKILL}),
    ],
)
def test_a_run_that_is_ended_leaves_no_process(tmp_path: Path, end: Callable[[Run], None], statuses: set[int]) -> None:
    run = Run(tmp_path, workers=1)
    assert len(run.alive) == 6, "pytest, its controller and worker, and what the test started"
    end(run)
    assert run.wait() in statuses, run.log.read_text()


def test_a_run_that_passes_names_what_its_tests_left_and_its_cpu_time(tmp_path: Path) -> None:
    run = Run(tmp_path, workers=0, ENDS="yes")
    assert run.wait() == pytest.ExitCode.OK
    log = run.log.read_text()
    assert "the tests left 3 processes, which are ended now:" in log
    assert "CPU-seconds (user " in log.rpartition("\ntests: ")[2]
