"""Records of the offline job: marks of commits, and runs."""

from __future__ import annotations

from collections.abc import Iterable

from refstore.records.encoding import Record


class StoredMark(Record, frozen=True, tag=31):
    """`<repo>/marks/<commit_id>`: the commit is expired and will be swept (rules 13 and 14)."""

    since_ms: int
    deletes_at_ms: int
    mark_id: str = ""
    sweeping_ms: int = 0
    """When its sweep began; from then on nobody can unmark it. 0: not yet."""
    swept_ms: int = 0
    """When everything that only this commit named was deleted. 0: not yet."""
    prefixes: tuple[str, ...] = ()
    """Only its entries at paths with these prefixes have expired; (): all of them."""
    earlier_marks: bytes = b""
    """The encoded mark that this one replaced, where a part of the commit was swept before; unmark restores it."""
    tagged_ms: int = 0
    """When everything that only this commit named was tagged for the bucket to delete (`--mode tag`). 0: not tagged."""

    def covers(self, paths: Iterable[str]) -> bool:
        """Return whether any of the paths has expired."""
        return not self.prefixes or any(path.startswith(self.prefixes) for path in paths)


class NothingToDelete(Record, frozen=True, tag=36):
    """`<repo>/gc/complete/<commit_id>`: the commit has expired, but by the last run none of its data is deleted.

    This is only shown to users: the commit is not marked, and every decision is made by the mark.
    """

    since_ms: int
    """When a run found this first; every run since found the same."""
    mark_id: str
    """That run's."""


class GcFlag(Record, frozen=True, tag=34):
    """`<repo>/gc/on`: while it exists, a copy of an entry without a reference pins the address first (rule 13)."""

    mark_id: str
    """The run's mark id, which is used once, so no run takes another's flag for its own."""
    since_ms: int
    beat_ms: int
    """The run's last heartbeat, which only tells a live run from a dead one."""
    owner: str = ""


class GcRun(Record, frozen=True, tag=35):
    """`<repo>/gc/runs/<mark id>`: a run of the offline job (`refstore/gc_marks`)."""

    write_id: str
    state: str
    began_ms: int
    grace_ms: int
    deletes_at_ms: int
    """The earliest time of the sweep."""
    rules_digest: str
    disregarded_marks: tuple[str, ...] = ()
    """Earlier marks whose commits this run treats as expired, too."""
    marked_ms: int = 0
    """When its last commit was marked; the run waits for operations that began before. 0: not yet."""
    finished_ms: int = 0
    mark_counts: dict[str, int] = {}
    question: str = ""
    """What an operator has to confirm before the sweep; '': nothing."""
    confirmed_by: str = ""
    confirmed_ms: int = 0
    sweep_began_ms: int = 0
    swept_ms: int = 0
    sweep_counts: dict[str, int] = {}
    """What the sweep counted."""
    end_reason: str = ""
    """Why it was abandoned."""
    tagged_ms: int = 0
    """When all its objects were tagged for the bucket to delete; it is swept once the bucket did so. 0: not tagged."""
