"""Start processes of Python, and programs that an operator names. No other module of the product may (`banned-api` in
pyproject.toml).

`python -c` and `python -m` look for modules in the working folder first, and there may lie what somebody downloaded: a
file with the name of any module would run as this user. So each process here runs in safe-path mode (`-P`), and has the
module path of the process that started it. `multiprocessing` and `concurrent.futures` cannot be told to start one so.
"""

from __future__ import annotations

import io
import os
import pickle
import socket
import subprocess  # noqa: TID251  # here
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe  # noqa: TID251  # they start nothing
from typing import Any, Final

__all__ = ["NOWHERE", "Connection", "Pipe", "PythonProcess", "run_command", "when_parent_ends"]

NOWHERE: Final = subprocess.DEVNULL
"""Where standard output may go."""
COMMAND_ENDS_SECONDS: Final = 10
"""How long a program has to end when it is asked to."""
_BOOT: Final = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from refstore.core import child_processes; child_processes.call_function()"
)


class PythonProcess(subprocess.Popen[bytes]):
    """A process that calls one function of the product. Its standard input is a pipe that ends with this process."""

    def __init__(
        self,
        function: Callable[..., object],
        *arguments: object,
        stdout: int | None = None,
    ) -> None:
        """Start it. The arguments are pickled; sockets and connections among them are shared. Raises OSError."""
        request = io.BytesIO()
        pickle.dump([folder for folder in sys.path if folder], request)  # '' is the working folder, as in a notebook
        pickler = _Pickler(request)
        pickler.dump((function, arguments))
        flags = ["-P", *(["-E"] if sys.flags.ignore_environment else []), *(["-s"] if sys.flags.no_user_site else [])]
        name = f"{function.__module__}.{function.__qualname__}"  # for people who look at the processes
        reading, self._writing = Pipe(duplex=False)  # no other process has the writing end
        with reading:
            super().__init__(
                [sys.executable, *flags, "-c", _BOOT, name],
                stdin=reading.fileno(),
                stdout=stdout,
                pass_fds=pickler.shared,
            )
        try:
            with open(self._writing.fileno(), "wb", closefd=False) as pipe:
                pipe.write(request.getbuffer())
        except OSError:  # it has ended already
            self.kill()
            self.wait()
            raise

    def is_alive(self) -> bool:
        return self.poll() is None

    def join(self, seconds: float | None = None) -> None:
        """Wait until it has ended, but not longer than `seconds`."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(seconds)


@contextmanager
def run_command(arguments: Sequence[str]) -> Generator[subprocess.Popen[bytes], None, None]:
    """Start a program without a shell, for the block, with a pipe for what it prints. It reads nothing, its errors go
    where this process's go, and where the block ends before it, it is ended. Raises OSError.
    """
    process = subprocess.Popen(arguments, stdin=NOWHERE, stdout=subprocess.PIPE)  # noqa: S603  # an operator named it
    try:
        yield process
    finally:
        if process.stdout is not None:
            process.stdout.close()  # what it has started ends, too, when it writes
        process.terminate()
        try:
            process.wait(COMMAND_ENDS_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def when_parent_ends(act: Callable[[], object]) -> None:
    """Call `act`, in a thread, once the process that started this one has ended, however that ended."""

    def wait_and_act() -> None:
        os.read(0, 1)
        act()

    threading.Thread(target=wait_and_act, name="refstore-parent", daemon=True).start()


def call_function() -> None:
    """Call what the parent asks for, in the process that it started."""
    function, arguments = pickle.load(sys.stdin.buffer)  # noqa: S301  # the parent's
    function(*arguments)


class _Pickler(pickle.Pickler):
    """Pickles sockets and connections as the file descriptors by which the process finds them."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.shared: list[int] = []

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, socket.socket):
            self.shared.append(obj.fileno())
            return _find_socket, (obj.fileno(),)
        if isinstance(obj, Connection):
            self.shared.append(obj.fileno())
            return _find_connection, (obj.fileno(), obj.readable, obj.writable)
        return NotImplemented


def _find_socket(descriptor: int) -> socket.socket:
    os.set_inheritable(descriptor, False)
    return socket.socket(fileno=descriptor)


def _find_connection(descriptor: int, readable: bool, writable: bool) -> Connection:
    os.set_inheritable(descriptor, False)
    return Connection(descriptor, readable, writable)
