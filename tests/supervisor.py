"""A test run in a process of its own, under a supervisor that ends whatever the run leaves behind.

    pytest ──┬─ supervisor ──┬─ the run ─── workers ─── servers, Javas, browsers ...
     (waits) │               └─ what was orphaned
             └─ a pipe: it closes when pytest ends, however it ends

On Linux, the kernel gives orphans of the run to the supervisor (it is their "child subreaper"), even those in sessions
of their own. So the supervisor finds every process of the run below itself, whatever program it is, and no other
process. It ends them when the run has ended, and when pytest has: SIGKILL of pytest closes the pipe. Ctrl-C and SIGTERM
reach the run once, as SIGINT, so that fixtures clean up; what has not ended after `CLEAN_UP_SECONDS_MAX` is killed.

The supervisor waits for every process of the run, so the CPU time that is printed at the end is that of all of them.

On other systems the run has no supervisor. `-p no:tests.supervisor` leaves it out.
`python -m tests.supervisor COMMAND ...` runs another command in the same way.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

import pytest

CLEAN_UP_SECONDS_MAX: Final = 15.0
"""How long fixtures may clean up after Ctrl-C or SIGTERM."""
END_SECONDS_MAX: Final = 5.0
"""How long what a finished run has left may take to end by itself. Processes that watch their parent do so."""
KILL_SECONDS_MAX: Final = 10.0
"""How long killed processes may take to be gone."""

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_FORWARDED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    if hasattr(config, "workerinput"):  # below the supervisor already
        return None
    return supervise("tests")


def supervise(name: str) -> int | None:
    """Go on in a supervised process, where this returns None; in the process that called it, return the exit status.

    `name` is what the line with the CPU time begins with.
    """
    if sys.platform != "linux":
        return None
    began = time.monotonic()
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    supervisor = os.fork()
    if not supervisor:
        os.close(writing)
        return _begin(reading)
    os.close(reading)

    def forward(_signal: int, _frame: FrameType | None) -> None:
        os.write(writing, b".")

    for each in _FORWARDED:
        if signal.getsignal(each) != signal.SIG_IGN:  # as under nohup
            signal.signal(each, forward)
    _, status = os.waitpid(supervisor, 0)
    print(f"{name}: {cpu_time(time.monotonic() - began)}", file=sys.stderr)
    return os.waitstatus_to_exitcode(status)


def cpu_time(wall_seconds: float) -> str:
    """Say how much processor time this process and its children took, those of the children included."""
    of = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    user, system = sum(each.ru_utime for each in of), sum(each.ru_stime for each in of)
    return f"{user + system:.0f} CPU-seconds (user {user:.0f}, system {system:.0f}) in {wall_seconds:.0f} s"


def _begin(pipe: int) -> None:
    """Be the supervisor, which never returns from here; return in the run."""
    os.setsid()  # a signal to pytest's process group does not reach the supervisor, nor reach the run twice
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    supervisor = os.getpid()
    run = os.fork()
    if run:
        status = 1
        try:
            status = _Supervisor(pipe, run).watch()
        finally:
            os._exit(status)
    os.close(pipe)
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        os._exit(1)


class _Supervisor:
    def __init__(self, pipe: int, run: int) -> None:
        self._pipe = pipe
        self._run = run
        self._status: int | None = None
        self._woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for each in _FORWARDED:
            signal.signal(each, signal.SIG_IGN)

    def watch(self) -> int:
        """Return the exit status of the run, when no process of it is left."""
        self._wait(lambda: self._status is not None, None)
        if self._is_told and self._status is None and os.read(self._pipe, 1):  # nothing: pytest was killed
            os.kill(self._run, signal.SIGINT)
            self._wait(lambda: self._status is not None, CLEAN_UP_SECONDS_MAX)
        elif self._status is not None:
            self._wait(lambda: not self._descendants(), END_SECONDS_MAX)
            commands = [command_of(pid) for pid in self._descendants()]
            if commands:
                text = f"the tests left {len(commands)} processes, which are ended now:"
                print(text, *commands, sep="\n  ", file=sys.stderr)
        self._kill()
        return 128 + signal.SIGKILL if self._status is None else self._status

    @property
    def _is_told(self) -> bool:
        """Whether somebody asked the run to end, or pytest is no more."""
        return bool(select.select([self._pipe], [], [], 0)[0])

    def _wait(self, is_over: Callable[[], bool], seconds_max: float | None) -> None:
        """Wait until it is over, the time is, or pytest tells something."""
        until = None if seconds_max is None else time.monotonic() + seconds_max
        self._reap()
        while not is_over() and not self._is_told:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return
            ready, _, _ = select.select([self._pipe, self._woken], [], [], left)
            if self._woken in ready:
                os.read(self._woken, 4096)
            self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self._run:
                code = os.waitstatus_to_exitcode(status)
                self._status = code if code >= 0 else 128 - code

    def _kill(self) -> None:
        """A child that is killed leaves its children here, so it takes several times."""
        until = time.monotonic() + KILL_SECONDS_MAX
        self._reap()
        while descendants := self._descendants():
            if time.monotonic() > until:
                break
            for pid in descendants:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            select.select([self._woken], [], [], 0.1)
            self._reap()

    def _descendants(self) -> list[int]:
        """The processes below this one, zombies left out: whoever started them waits for them, or this one does."""
        children: dict[int, list[int]] = {}
        zombies: set[int] = set()
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
                except (FileNotFoundError, ProcessLookupError):
                    continue
                children.setdefault(int(parent), []).append(int(folder.name))
                if state == "Z":
                    zombies.add(int(folder.name))
        found: list[int] = []
        waiting = [os.getpid()]
        while waiting:
            below = children.get(waiting.pop(), [])
            found += below
            waiting += below
        return [pid for pid in found if pid not in zombies]


def command_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return f"{pid}"
    return f"{pid} {' '.join(words)[:200]}"


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def main() -> int:
    status = supervise(Path(sys.argv[1]).name)
    if status is None:
        os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606  # the command that was given
    return status


if __name__ == "__main__":
    sys.exit(main())
