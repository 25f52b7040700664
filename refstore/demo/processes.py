"""Start, read, kill and end the demo's own processes, each by its pid, whatever happens to the demo."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from types import TracebackType
from typing import Final, NamedTuple

from refstore.demo import steps
from refstore.errors import RefstoreError

END_SECONDS: Final = 15
"""How long a process may take to end after the request. It finishes its current step first."""
ERROR_LINES: Final = 15


class Told(NamedTuple):
    client: str
    event: steps.AnyEvent | None
    """None: its output has ended."""


class Processes:
    """Use as a context manager: at its end, no process that it started is left."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = dict(environment)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._readers: list[Thread] = []
        self._told: Queue[Told] = Queue()

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        for process in self._running.values():
            if process.poll() is None:
                process.terminate()
        for process in self._running.values():
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdin is not None:
                process.stdin.close()
        for reader in self._readers:
            reader.join()
        self._running.clear()

    def start_client(self, name: str, job: steps.Job) -> None:
        file = self._folder / f"{name}.job.json"
        file.write_bytes(steps.encode(job))
        process = self._start(name, ["-m", "refstore.demo.client", str(file)], stdout=subprocess.PIPE)
        reader = Thread(target=self._listen, args=(name, process), name=f"listen-{name}", daemon=True)
        reader.start()
        self._readers.append(reader)

    def start_command(self, name: str, arguments: Sequence[str]) -> None:
        """Start a `refstore` command beside the clients. Its output goes to a file."""
        self._start(name, ["-m", "refstore", *arguments], stdout=None)

    def run_command(self, name: str, arguments: Sequence[str]) -> bytes:
        """Run a `refstore` command, and return its output. Raises RefstoreError."""
        process = self._start(name, ["-m", "refstore", *arguments], stdout=subprocess.PIPE)
        output, _ = process.communicate()
        self.ended(name)
        return output

    def next_event(self, seconds: float) -> Told | None:
        """Return the next report of a client, or None if there is none within that time."""
        try:
            return self._told.get(timeout=seconds)
        except Empty:
            return None

    def running(self, name: str) -> bool:
        return self._running[name].poll() is None

    def tell_end(self, name: str) -> None:
        """Close a client's standard input, so that it finishes."""
        stdin = self._running[name].stdin
        if stdin is not None:
            stdin.close()

    def kill(self, name: str) -> int:
        """Kill a process with SIGKILL, and return its exit code."""
        process = self._running[name]
        process.kill()
        return process.wait()

    def terminate(self, name: str) -> None:
        """Send SIGTERM, and wait until the process has finished its step. Raises RefstoreError if it does not end, or
        fails.
        """
        process = self._running[name]
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            raise RefstoreError(
                f"{name} did not end within {END_SECONDS} s of SIGTERM; its log: {self.log(name)}"
            ) from None
        self.ended(name)

    def ended(self, name: str) -> None:
        """Wait for a process that is about to end. Raises RefstoreError if it failed."""
        code = self._running[name].wait()
        if code != 0:
            raise RefstoreError(f"{name} ended with {code}:\n{self.last_words(name)}")

    def log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def last_words(self, name: str) -> str:
        return "\n".join(self.log(name).read_text(errors="replace").splitlines()[-ERROR_LINES:])

    def _start(self, name: str, arguments: Sequence[str], stdout: int | None) -> subprocess.Popen[bytes]:
        # if the demo itself is killed, its processes end with it, where the system supports that
        setpriv = shutil.which("setpriv")
        ends_with_us = [setpriv, "--pdeathsig", "TERM"] if setpriv else []
        with self.log(name).open("ab") as log, _uninterrupted():
            # a session of its own: Ctrl-C reaches the demo alone, which then ends its processes in order
            process = subprocess.Popen(  # noqa: S603  # this interpreter, with arguments of our own
                [*ends_with_us, sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=log if stdout is None else stdout,
                stderr=log,
                env=self._environment,
                cwd=self._folder,
                start_new_session=True,
            )
            self._running[name] = process
        return process

    def _listen(self, name: str, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None  # noqa: S101  # a pipe was asked for
        with process.stdout:
            for line in process.stdout:
                if line.endswith(b"\n"):  # a killed client's last line may be half of one
                    self._told.put(Told(name, steps.decode_event(line)))
        self._told.put(Told(name, None))


@contextmanager
def _uninterrupted() -> Generator[None, None, None]:
    """Delay signals until the end of the block, so that every started process is known by then. They are not blocked,
    because the started process would inherit that.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # no other thread is interrupted
        return
    caught: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: caught.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in caught:
            signal.raise_signal(number)
