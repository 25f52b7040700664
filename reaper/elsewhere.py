"""A second process that deletes the files of a local store while this one works on the KV.

Deleting a hundred thousand files is as many system calls, and so is the KV's work; two threads of one Python would take turns
at them and be slower than one. Only for `file://` stores: across a network the store is what is waited for, and a thread does.

It is asked one batch at a time, answers what the store confirmed, and keeps nothing. It ends when its parent does, however that
ends, after the batch in hand. It imports little (no structlog, no msgspec), so that it is there within a tenth of a second.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import IO, Any, Final, NamedTuple

from refstore.errors import ObjectsUnavailable, RefstoreError
from refstore.objects import open_objects
from refstore.objects.base import Deletion, ObjectStore

END_SECONDS: Final = 60.0
"""How long it may take over the batch in hand when it is to end."""

PIPE_BYTES: Final = 1 << 20
"""A batch fits in, so that asking does not wait until it was read. Linux lets everybody have so much, unless it is told otherwise."""

_LENGTH_BYTES: Final = 4


class Ask(NamedTuple):
    url: str
    keys: Sequence[str]


class Answer(NamedTuple):
    deleted: int
    """How many; which ones follows from the others."""
    missing: Sequence[str]
    failed: Sequence[tuple[str, str]]
    error: str
    """Set if the batch as a whole went wrong: then nothing is confirmed."""


class Elsewhere:
    """Not for several threads. Started with the first batch."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._asked: tuple[Sequence[str], Future[Deletion]] | None = None

    def delete(self, url: str, keys: Sequence[str]) -> Callable[[], Deletion]:
        """Begin to delete a batch, once the one before it is done. What it returns waits for this one."""
        self.wait()
        done: Future[Deletion] = Future()
        try:
            _send(_pipe(self._running().stdin), Ask(url, keys))
            self._asked = keys, done
        except OSError as error:
            done.set_exception(self._broken(error))

        def result() -> Deletion:
            if not done.done():
                self.wait()
            return done.result()

        return result

    def wait(self) -> None:
        """Until the batch that was asked for last is done."""
        if self._asked is None:
            return
        (keys, done), self._asked = self._asked, None
        try:
            answer = Answer(*_receive(_pipe(self._running().stdout)))
        except (OSError, EOFError, ValueError, TypeError) as error:
            done.set_exception(self._broken(error))
            return
        others = {*answer.missing, *(key for key, _ in answer.failed)}
        deleted = tuple(key for key in keys if key not in others)
        if answer.error:
            done.set_exception(ObjectsUnavailable(answer.error))
        elif len(deleted) != answer.deleted:
            done.set_exception(ObjectsUnavailable(f"of {len(keys)} keys the store confirmed {answer.deleted}, not {len(deleted)}"))
        else:
            done.set_result(Deletion(deleted, tuple(answer.missing), tuple((key, reason) for key, reason in answer.failed)))

    def close(self) -> None:
        """After the batch in hand."""
        self.wait()
        if self._process is not None:
            process, self._process = self._process, None
            with process:
                try:
                    _pipe(process.stdin).close()
                    process.wait(END_SECONDS)
                except (OSError, subprocess.TimeoutExpired):
                    process.kill()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            # In a process group of its own: an interrupt typed at the terminal must not stop the batch in hand. Not in a session of its
            # own: Linux gives each session an equal share (sched(7), "The autogroup feature"), and our niceness would count for nothing.
            command = [sys.executable, "-m", __name__]
            self._process = subprocess.Popen(  # noqa: S603  # this very Python
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
            )
            for pipe in (self._process.stdin, self._process.stdout):
                # only faster: who may not, because of the system's limit or of all pipes of this user together, waits a little instead
                with contextlib.suppress(OSError, AttributeError):
                    fcntl.fcntl(_pipe(pipe), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        return self._process

    def _broken(self, error: Exception) -> ObjectsUnavailable:
        """What is left of the process is done away with; the next batch starts another."""
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            with contextlib.suppress(OSError), process:
                pass
        import structlog

        structlog.stdlib.get_logger(__name__).error("erasing_process_ended", error=repr(error))
        return ObjectsUnavailable(f"the process that deletes files ended ({error!r}); another is started with the next batch")


def serve(asks: IO[bytes], answers: IO[bytes]) -> None:
    """Answer until nobody asks any more."""
    stores: dict[str, ObjectStore] = {}
    with contextlib.suppress(EOFError):
        while True:
            ask = Ask(*_receive(asks))
            try:
                if ask.url not in stores:
                    stores[ask.url] = open_objects(ask.url)
                done = stores[ask.url].delete_many(ask.keys)
                answer = Answer(len(done.deleted), done.missing, done.failed, "")
            except RefstoreError as error:
                answer = Answer(0, (), (), str(error))
            _send(answers, answer)


def _send(pipe: IO[bytes], message: Ask | Answer) -> None:
    body = json.dumps(message).encode()
    pipe.write(len(body).to_bytes(_LENGTH_BYTES, "big"))
    pipe.write(body)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> list[Any]:
    """Raises EOFError."""
    length = int.from_bytes(_read(pipe, _LENGTH_BYTES), "big")
    return json.loads(_read(pipe, length))


def _read(pipe: IO[bytes], size: int) -> bytes:
    found = pipe.read(size)
    if len(found) < size:
        raise EOFError
    return found


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None  # noqa: S101  # it was asked for
    return pipe


def _main() -> None:
    """What is printed goes to standard error: standard output is for answers."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    _main()
