"""Overlap batches: the store deletes the blobs of one batch while the reaper prepares the next one in the KV.

A batch is a generator that reads from top to bottom and pauses while it waits for the store. Only different batches
overlap. Within a batch each step follows the one before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator

BatchSteps = Generator[None, None, None]
"""One batch: it yields where it waits for the store, so that the next batch may begin."""


class Pipeline:
    """Keeps at most one batch paused. Leaving the `with` block finishes it, also after an error."""

    def __init__(self) -> None:
        self._paused: deque[BatchSteps] = deque()

    def start(self, batch: BatchSteps) -> None:
        """Run the batch up to its pause, then finish those before it."""
        for _ in batch:
            self._paused.append(batch)
            break
        self._finish(most_paused=1)

    def _finish(self, *, most_paused: int) -> None:
        """Finish batches, oldest first. The first error is raised after all others were finished."""
        errors: list[Exception] = []
        while len(self._paused) > most_paused:
            try:
                next(self._paused.popleft(), None)
            except Exception as error:  # noqa: BLE001  # raised below
                errors.append(error)
        if errors:
            raise errors[0]

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self._finish(most_paused=0)
