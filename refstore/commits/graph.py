"""The commit graph: pure walks over `get_commit`, which raises CommitNotFound for a commit that is not there.

Every walk goes down by generation (the longest distance from a root), so a commit is met only after all its descendants, each
once. A parent whose generation is not below its child's cannot have been written by refstore: it raises CorruptRecord,
which also bounds every walk, whatever is stored. Only the frontier is in memory, never the whole graph.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from refstore.errors import CommitNotFound, CorruptRecord, Invalid
from refstore.ids import CommitId
from refstore.records import Commit, encode

GetCommit = Callable[[CommitId], Commit]

_LEFT: Final = 1
_RIGHT: Final = 2
_BOTH: Final = 3


def commit_id(commit: Commit) -> CommitId:
    """SHA-256 of the commit's canonical encoding: equal commits have one id."""
    return CommitId(hashlib.sha256(encode(commit)).hexdigest())


def next_generation(parents: Iterable[Commit]) -> int:
    """The generation of a commit with these parents."""
    return 1 + max((parent.generation for parent in parents), default=-1)


def log(
    get_commit: GetCommit, head: CommitId, *, first_parent: bool = False, since_ms: int | None = None
) -> Iterator[tuple[CommitId, Commit]]:
    """`head` and its ancestors: no commit before its descendants, otherwise the newest first.

    With `first_parent` only the line of first parents: what the branch itself went through. With `since_ms` each line only as far as its
    first commit that is older: beside that one there may be another line with newer ones.
    """
    frontier = _Frontier(get_commit)
    frontier.push(head, 0)
    while frontier:
        found, commit, _ = frontier.pop()
        if since_ms is not None and commit.created_ms < since_ms:
            continue
        yield found, commit
        for parent in commit.parents[:1] if first_parent else commit.parents:
            frontier.push(parent, 0, child=commit)


def is_ancestor(get_commit: GetCommit, older: CommitId, newer: CommitId) -> bool:
    """Whether `newer` is `older` or descends from it. Looks no further down than `older` is."""
    if older == newer:
        return True
    lowest = get_commit(older).generation
    frontier = _Frontier(get_commit)
    frontier.push(newer, 0)
    while frontier:
        found, commit, _ = frontier.pop()
        if found == older:
            return True
        if commit.generation <= lowest:
            continue
        for parent in commit.parents:
            frontier.push(parent, 0, child=commit)
    return False


def merge_base(get_commit: GetCommit, left: CommitId, right: CommitId) -> CommitId | None:
    """The best common ancestor; None if there is none.

    A common ancestor is best if no other one descends from it. After a criss-cross merge several are; the one of the highest
    generation is taken, then the newest, then the one with the greatest id: the same whichever side is called left.
    """
    frontier = _Frontier(get_commit)
    frontier.push(left, _LEFT)
    frontier.push(right, _RIGHT)
    while frontier:
        found, commit, sides = frontier.pop()
        if sides == _BOTH:
            return found  # all descendants of it were met before, and none of them was common
        for parent in commit.parents:
            frontier.push(parent, sides, child=commit)
    return None


def nth_first_parent(get_commit: GetCommit, head: CommitId, count: int) -> CommitId:
    """`head~count`. Raises CommitNotFound if the history is shorter."""
    if count < 0:
        raise Invalid(f"{count} is no number of steps back; use 0 or more")
    found = head
    for step in range(count):
        parents = get_commit(found).parents
        if not parents:
            raise CommitNotFound(f"{head}~{count} goes further back than the history does; there are only {step} commits before {head}")
        found = parents[0]
    return found


class _Frontier:
    """The commits to be met next, highest generation first; each with the sides that it was reached from."""

    def __init__(self, get_commit: GetCommit) -> None:
        self._get_commit = get_commit
        self._heap: list[tuple[int, int, int]] = []
        self._waiting: dict[CommitId, tuple[Commit, int]] = {}

    def push(self, found: CommitId, sides: int, *, child: Commit | None = None) -> None:
        known = self._waiting.get(found)
        if known is not None:
            self._waiting[found] = (known[0], known[1] | sides)
            return
        commit = self._get_commit(found)
        if child is not None and commit.generation >= child.generation:
            raise CorruptRecord(
                f"commit {found} has generation {commit.generation}, not below its child's {child.generation}; restore the commit records"
                " from a backup"
            )
        self._waiting[found] = (commit, sides)
        heapq.heappush(self._heap, (-commit.generation, -commit.created_ms, -int(found, 16)))

    def pop(self) -> tuple[CommitId, Commit, int]:
        found = CommitId(f"{-heapq.heappop(self._heap)[2]:064x}")
        commit, sides = self._waiting.pop(found)
        return found, commit, sides

    def __bool__(self) -> bool:
        return bool(self._heap)
