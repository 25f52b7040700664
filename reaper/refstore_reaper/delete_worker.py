"""A second process that deletes the files of a local store while this one works on the KV.

Deleting a hundred thousand files takes as many system calls, and so does the KV's work. Two threads of one Python
process would take turns, and be slower than one. The worker is for `file://` stores only: across a network most of the
time is waiting, which a thread can do.

The worker deletes one batch at a time, answers what the store confirmed, and keeps no state. It ends with its parent,
however that ends, after the current batch. It imports little (no logging, no msgspec), so that it starts within a
tenth of a second.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

from refstore.core.child_processes import Connection, Pipe, PythonProcess
from refstore.errors import ObjectsUnavailable, RefstoreError
from refstore.objects import open_objects
from refstore.objects.base import DeleteResult, ObjectStore

END_SECONDS: Final = 60.0
"""How long the worker may take for its current batch after the request to end."""


class DeleteWorker:
    """Deletes batches in the process, which starts with the first batch. For one thread at a time."""

    def __init__(self) -> None:
        self.process: PythonProcess | None = None
        """None before the first batch, and after one that failed."""
        self._pipe: Connection | None = None

    def delete(self, url: str, keys: Sequence[str]) -> DeleteResult:
        """Delete a batch. Raises ObjectsUnavailable; then nothing is confirmed."""
        try:
            pipe = self._pipe or self._start()
            pipe.send((url, keys))
            answer = pipe.recv()
        except (OSError, EOFError) as error:
            self._kill()
            from refstore.core import event_log

            event_log.get_logger(__name__).error("delete_worker_ended", error=repr(error))
            raise ObjectsUnavailable(
                f"the process that deletes files ended ({error!r}); the next batch starts another"
            ) from error
        if isinstance(answer, DeleteResult):
            return answer
        raise ObjectsUnavailable(answer)

    def close(self) -> None:
        """End the process after the current batch."""
        if self.process is not None and self._pipe is not None:
            self._pipe.close()
            self.process.join(END_SECONDS)
            self._kill()

    def _start(self) -> Connection:
        # In a process group of its own: an interrupt typed at the terminal must not stop the current batch. Not in
        # a session of its own: Linux gives each session an equal share (sched(7), "The autogroup feature"), and our
        # niceness would count for nothing.
        self._pipe, worker_end = Pipe()
        with worker_end:
            # to standard error: nothing that is printed there may end up in our own output
            self.process = PythonProcess(serve, worker_end, stdout=2, process_group=0)
        return self._pipe

    def _kill(self) -> None:
        """Kill the process. The next batch starts another one."""
        pipe, process, self._pipe, self.process = self._pipe, self.process, None, None
        if pipe is not None:
            pipe.close()
        if process is not None:
            process.kill()
            process.wait()


def serve(pipe: Connection) -> None:
    """Delete batch after batch until the parent closes the pipe."""
    stores: dict[str, ObjectStore] = {}
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            url, keys = pipe.recv()
            try:
                if url not in stores:
                    stores[url] = open_objects(url)
                answer = stores[url].delete_many(keys)
            except RefstoreError as error:
                answer = str(error)
            pipe.send(answer)
