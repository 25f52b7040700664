"""Start, kill and end the demo's own processes, each by its pid, whatever happens to the demo."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

END_SECONDS: Final = 15
"""How long a process may take to end after the request. It finishes its current step first."""
POLL_SECONDS: Final = 0.03
LOG_LINES: Final = 15


class ProcessFailed(Exception):
    """A process of the demo did not end as it should have."""


class Processes:
    """Use as a context manager: at its end, no process that it started is left."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = dict(environment)
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_error: object) -> None:
        for process in self._started.values():
            process.terminate()
        for process in self._started.values():
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def start(self, name: str, module: str, *arguments: str, more: Mapping[str, str] | None = None) -> None:
        """Start `python -m MODULE` with the arguments. Its output goes to a log in the folder. `more`: is added to its
        environment.
        """
        # if the demo itself is killed, its processes end with it, where the system supports that
        setpriv = shutil.which("setpriv")
        ends_with_us = [setpriv, "--pdeathsig", "TERM"] if setpriv else []
        with self._log(name).open("ab") as log, _delayed_signals():
            self._started[name] = subprocess.Popen(
                [*ends_with_us, sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self._environment, **(more or {})},
                start_new_session=True,  # Ctrl-C reaches the demo alone, which then ends its processes in order
            )

    def run(self, module: str, *arguments: str, more: Mapping[str, str] | None = None) -> bytes:
        """Run `python -m MODULE` to its end, and return what it printed. Raises ProcessFailed."""
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**self._environment, **(more or {})},
            start_new_session=True,
            check=False,
        )
        if done.returncode:
            said = done.stderr.decode(errors="replace")
            raise ProcessFailed(f"{module} {arguments[0]} ended with {done.returncode}:\n{said}")
        return done.stdout

    def check(self) -> None:
        """Raises ProcessFailed if a process has failed."""
        for name, process in self._started.items():
            if process.poll():
                raise ProcessFailed(f"{name} ended with {process.returncode}:\n{self._last_lines(name)}")

    def wait(self, names: Collection[str]) -> None:
        """Wait until these processes have ended. Raises ProcessFailed as soon as any process has failed."""
        while any(self._started[name].poll() is None for name in names):
            self.check()
            time.sleep(POLL_SECONDS)
        self.check()

    def wait_for_line(self, name: str, beginning: str) -> str:
        """Wait until a process has written a line that begins so, and return the rest of it. Raises ProcessFailed."""
        while True:
            self.check()
            for line in self._log(name).read_text(errors="replace").splitlines(keepends=True):
                if line.startswith(beginning) and line.endswith("\n"):
                    return line.removeprefix(beginning).strip()
            time.sleep(POLL_SECONDS)

    def terminate(self, names: Collection[str]) -> None:
        """Ask processes to end (SIGTERM), and wait until they have."""
        for name in names:
            self._started[name].terminate()
        self.wait(names)

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL. Raises ProcessFailed if it has ended before."""
        self._started[name].kill()
        if self._started[name].wait() != -signal.SIGKILL:
            raise ProcessFailed(f"{name} ended before it was killed:\n{self._last_lines(name)}")
        del self._started[name]

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _last_lines(self, name: str) -> str:
        return "\n".join(self._log(name).read_text(errors="replace").splitlines()[-LOG_LINES:])


@contextmanager
def _delayed_signals() -> Generator[None, None, None]:
    """Delay signals until the end of the block, so that every started process is known by then. They are not blocked,
    because the started process would inherit that.
    """
    caught: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.signal(number, lambda number, _: caught.append(number)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)
        for number in caught:
            signal.raise_signal(number)
