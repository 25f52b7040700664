"""Somebody else comes in between, or a call does not come to its end: for tests of what two calls do to one another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from refstore.core.ids import BranchName
from refstore.errors import KVUnavailable
from refstore.kv.base import SCAN_LIMIT, Exchange, Op, Result
from refstore.kv.memory import MemoryKV
from refstore.repository import Repository

Chooses = Callable[[Op], bool]


class Interrupted(MemoryKV):
    """A KV in memory. Calls `then` once: before or behind a batch with a chosen operation, or before a partition is
    scanned.
    """

    def __init__(self, *, before: Chooses | None = None, behind: Chooses | None = None) -> None:
        super().__init__()
        self.then: Callable[[], object] | None = None
        self.scanned = ""
        """The partition whose scan is waited for."""
        self._before, self._behind = before, behind

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        if self._before is not None and any(map(self._before, ops)):
            self._interrupt()
        done = super().execute(ops)
        if self._behind is not None and any(map(self._behind, ops)):
            self._interrupt()
        return done

    def scan(
        self, partition: str, *, prefix: str = "", after: str = "", limit: int = SCAN_LIMIT
    ) -> list[tuple[str, bytes]]:
        if partition == self.scanned:
            self._interrupt()
        return super().scan(partition, prefix=prefix, after=after, limit=limit)

    def _interrupt(self) -> None:
        """What comes in between is not interrupted itself."""
        if self.then is not None:
            self.then, then = None, self.then
            then()


def seal(repo: Repository, branch: str = "main") -> None:
    """What a commit does first, and a dead one last."""
    name, ctx = BranchName(branch), repo.context
    staging = ctx.staging
    ctx.branches.seal(name, lambda: staging.new_token(name, ctx.ids, ctx.clock))


def lose_reply() -> None:
    raise KVUnavailable("planted: nobody answered")


def is_entry_write(op: Op) -> bool:
    return isinstance(op, Exchange) and "/staging/" in op.key.partition
