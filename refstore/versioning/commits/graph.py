"""The commit graph: pure walks over `get_commit`, which raises CommitNotFound for a missing commit.

Every walk goes down by generation (the longest distance from a root), so a commit is met only after all its
descendants, each once. A parent whose generation is not below its child's cannot have been written by refstore: it
raises CorruptRecord, which also bounds every walk. Only the frontier is in memory, never the whole
graph.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from refstore.core.ids import CommitId
from refstore.errors import CorruptRecord
from refstore.records.commit_records import StoredCommit
from refstore.records.encoding import encode

GetCommit = Callable[[CommitId], StoredCommit]

_LEFT: Final = 1
_RIGHT: Final = 2
_BOTH: Final = 3


def commit_id(commit: StoredCommit) -> CommitId:
    """Return the SHA-256 of the commit's canonical encoding: equal commits have one id."""
    return CommitId(hashlib.sha256(encode(commit)).hexdigest())


def next_generation(parents: Iterable[StoredCommit]) -> int:
    """Return the generation of a commit with these parents."""
    return 1 + max((parent.generation for parent in parents), default=-1)


def log(
    get_commit: GetCommit, head: CommitId, *, first_parent: bool = False, since_ms: int | None = None
) -> Iterator[tuple[CommitId, StoredCommit]]:
    """Yield `head` and its ancestors: no commit before its descendants, otherwise the newest first.

    `first_parent`: follow only first parents, the branch's own line. `since_ms`: end each line before its first commit
    that is older; other lines may have newer commits.
    """
    frontier = _Frontier(get_commit)
    frontier.push(head, 0)
    while frontier:
        current, commit, _ = frontier.pop()
        if since_ms is not None and commit.created_ms < since_ms:
            continue
        yield current, commit
        for parent in commit.parents[:1] if first_parent else commit.parents:
            frontier.push(parent, 0, child=commit)


def merge_base(get_commit: GetCommit, left: CommitId, right: CommitId) -> CommitId | None:
    """Return the best common ancestor; None if there is none.

    A common ancestor is best if no other one descends from it. After a criss-cross merge there are several. The highest
    generation wins, then the newest commit, then the greatest id: the same whichever side is left.
    """
    frontier = _Frontier(get_commit)
    frontier.push(left, _LEFT)
    frontier.push(right, _RIGHT)
    while frontier:
        current, commit, sides = frontier.pop()
        if sides == _BOTH:
            return current  # all its descendants were met before, and none of them was common
        for parent in commit.parents:
            frontier.push(parent, sides, child=commit)
    return None


class _Frontier:
    """The commits to visit next, highest generation first, each with the sides that it was reached from."""

    def __init__(self, get_commit: GetCommit) -> None:
        self._get_commit = get_commit
        self._heap: list[tuple[int, int, int]] = []
        self._waiting: dict[CommitId, tuple[StoredCommit, int]] = {}

    def push(self, current: CommitId, sides: int, *, child: StoredCommit | None = None) -> None:
        pending = self._waiting.get(current)
        if pending is not None:
            self._waiting[current] = (pending[0], pending[1] | sides)
            return
        commit = self._get_commit(current)
        if child is not None and commit.generation >= child.generation:
            raise CorruptRecord(
                f"commit {current} has generation {commit.generation}, not below its child's {child.generation}; "
                "restore the commit records from a backup"
            )
        self._waiting[current] = (commit, sides)
        heapq.heappush(self._heap, (-commit.generation, -commit.created_ms, -int(current, 16)))

    def pop(self) -> tuple[CommitId, StoredCommit, int]:
        current = CommitId(f"{-heapq.heappop(self._heap)[2]:064x}")
        commit, sides = self._waiting.pop(current)
        return current, commit, sides

    def __bool__(self) -> bool:
        return bool(self._heap)
