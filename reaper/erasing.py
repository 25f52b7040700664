"""Blobs on their way out: the store deletes one batch while the KV is worked on for the next.

The order within each batch is the protocol's (rule 8): it is `deleting` before it comes here; it is written down; the blobs go;
and when the batch is settled, the keys of what the store confirmed. Only different batches overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from reaper.deletion import Deleted, Journal, confirm, erase, hint_now
from reaper.elsewhere import Elsewhere
from reaper.processing import Doomed
from refstore.context import Context
from refstore.errors import RefstoreError
from refstore.ids import Address
from refstore.objects.base import Deletion
from refstore.objects.local import LocalObjects

ELSEWHERE_KEYS_MIN: Final = 500
"""A smaller batch of local files is deleted sooner than another process is told of it."""


class Beside:
    """Where blobs are deleted while the KV is worked on: local files by another process, all else by a thread. Close it."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="refstore-erase")
        self._elsewhere = Elsewhere()

    def begin(self, ctx: Context, doomed: Sequence[Doomed], journal: Journal) -> Callable[[], Deletion] | None:
        """`erase`, begun; what it returns waits for it. None: it is better done in turn."""
        if not isinstance(ctx.objects, LocalObjects):
            return self._thread.submit(erase, ctx, doomed, journal).result
        if len(doomed) < ELSEWHERE_KEYS_MIN:
            return None
        journal.began(doomed)
        return self._elsewhere.delete(ctx.objects.url, [item.address for item in doomed])

    def close(self) -> None:
        self._elsewhere.close()
        self._thread.shutdown()


class Eraser:
    def __init__(self, ctx: Context, journal: Journal, beside: Beside | None) -> None:
        """Without `beside` each batch is deleted and settled as it comes."""
        self._ctx = ctx
        self._journal = journal
        self._beside = beside
        self._open: list[Batch] = []

    def begin(
        self, doomed: Sequence[Doomed], then: Callable[[Deleted], None], *, otherwise: Callable[[], None], unhinted: bool = False
    ) -> Batch:
        """Begin to delete a batch; `then` is told what was confirmed, when it is settled.

        `otherwise` is called in its stead where nothing was: the store failed, or there was nothing left to begin. `unhinted`: the
        addresses were released straight to `deleting`, so what is left over gets its due hint. What another open batch has in hand
        already is left to that one.
        """
        self._open = [batch for batch in self._open if not batch.settled]
        in_hand = {item.address for batch in self._open for item in batch.doomed}
        if in_hand:
            doomed = [item for item in doomed if item.address not in in_hand]
        batch = Batch(self._ctx, doomed, self._journal, then, otherwise, unhinted)
        if not doomed:
            batch.give_up()
            return batch
        try:
            erasing = self._beside.begin(self._ctx, doomed, self._journal) if self._beside is not None else None
        except RefstoreError:
            batch.give_up()
            raise
        if erasing is None:
            batch.settle()
        else:
            batch.erasing = erasing
            self._open.append(batch)
        return batch

    def settle(self, *, most_open: int = 0) -> None:
        """Settle batches, oldest first, until at most so many are open. The first error is raised when all others were settled."""
        errors: list[RefstoreError] = []
        while len(self._open) > most_open:
            try:
                self._open.pop(0).settle()
            except RefstoreError as error:
                errors.append(error)
        if errors:
            raise errors[0]


class Batch:
    def __init__(
        self,
        ctx: Context,
        doomed: Sequence[Doomed],
        journal: Journal,
        then: Callable[[Deleted], None],
        otherwise: Callable[[], None],
        unhinted: bool,
    ) -> None:
        self._ctx = ctx
        self.doomed = doomed
        self._journal = journal
        self._then = then
        self._otherwise = otherwise
        self._unhinted = unhinted
        self.settled = False
        self.erasing: Callable[[], Deletion] = lambda: erase(ctx, doomed, journal)

    def settle(self) -> None:
        """Wait for the store, do the KV's half, and raise what went wrong; once."""
        if self.settled:
            return
        self.settled = True
        left: Sequence[Address] = [item.address for item in self.doomed]
        try:
            done = confirm(self._ctx, self.doomed, self._erased(), self._journal)
            left = done.failed
            self._then(done)
        finally:
            if self._unhinted:
                hint_now(self._ctx, left)

    def give_up(self) -> None:
        """It could not be begun, or there was nothing to begin."""
        self.settled = True
        if self._unhinted:
            hint_now(self._ctx, [item.address for item in self.doomed])
        self._otherwise()

    def _erased(self) -> Deletion:
        """What the store confirmed. Raises what went wrong: then it confirmed nothing."""
        try:
            return self.erasing()
        except RefstoreError:
            self._otherwise()
            raise
