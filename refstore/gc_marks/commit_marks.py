"""The marks of single commits. Each is changed by `set_if` from the bytes that were read, so unmark and sweep cannot
both win.

A commit stands in its run's list before it is marked, so that the sweep, and a run that clears up, finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Final, Literal, NamedTuple

import msgspec

from refstore.context import Context
from refstore.core import ids
from refstore.core.batches import split_batches
from refstore.core.ids import CommitId
from refstore.errors import Conflict, Contention, Corrupt, Gone
from refstore.gc_marks.offline_runs import ATTEMPTS
from refstore.kv.base import ABSENT, Absent, SetIf
from refstore.kv.unknown_outcomes import UnknownOutcomes
from refstore.records import keys
from refstore.records.branch_records import StoredBranch, StoredTag, decode_branch
from refstore.records.commit_records import StoredCommit
from refstore.records.encoding import decode, decode_optional, encode
from refstore.records.mark_records import NothingToDelete, StoredMark

PAGE: Final = 1000
"""How many keys share a round trip."""
NOTHING_TO_DELETE: Final = b"complete"
"""In a run's list: the run unmarked the commit itself, because it names no garbage (rule 13)."""


class RunCommit(NamedTuple):
    """A commit of a run's list, with the mark that it has now."""

    commit: CommitId
    raw: bytes | Absent
    mark: StoredMark | None

    def is_pending_for(self, mark_id: str) -> bool:
        """Return whether this run marked it, and it can still be unmarked."""
        return self.mark is not None and self.mark.mark_id == mark_id and not self.mark.sweeping_ms

    def is_swept_by(self, *mark_ids: str) -> bool:
        """Return whether one of these runs sweeps it, or did."""
        return self.mark is not None and self.mark.mark_id in mark_ids and bool(self.mark.sweeping_ms)


class CommitMarks:
    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._kv = ctx.kv
        self._repo = ctx.repo

    def read_marks(self, commits: Sequence[CommitId]) -> list[StoredMark | None]:
        return [item.mark for item in self._read_run_commits(commits)]

    def scan(self) -> Iterator[tuple[CommitId, StoredMark]]:
        """Yield every commit that is marked, being swept, or swept."""
        for name, value in self._kv.scan_all(keys.marks(self._repo)):
            yield CommitId(name), decode(value, StoredMark)

    def scan_run(self, mark_id: str) -> Iterator[list[RunCommit]]:
        """Yield what a run marked and did not find complete, in pages."""
        for commits in split_batches(self.scan_marked(mark_id), PAGE):
            yield self._read_run_commits(commits)

    def scan_marked(self, mark_id: str) -> Iterator[CommitId]:
        """Yield the same without the marks."""
        listed = self._kv.scan_all(keys.gc_marked_commits(self._repo, mark_id))
        return (CommitId(name) for name, value in listed if value != NOTHING_TO_DELETE)

    def scan_pending(self, mark_id: str) -> Iterator[CommitId]:
        """Yield what this run marked and can still be unmarked."""
        return (item.commit for page in self.scan_run(mark_id) for item in page if item.is_pending_for(mark_id))

    def mark_commits(self, wanted: Mapping[CommitId, StoredMark]) -> int:
        """Mark commits of one run, unless they are marked as much already; return how many are marked by it."""
        count = 0
        left = list(wanted)
        unknown = UnknownOutcomes(self._ctx.clock)
        for _ in range(ATTEMPTS):
            asked: list[tuple[CommitId, SetIf]] = []
            for commit, raw, old in self._read_run_commits(left):
                new = _merge_marks(old, wanted[commit])
                if new is not None:
                    asked.append((commit, SetIf(keys.mark(self._repo, commit), raw, encode(new))))
                elif old is not None and old.mark_id == wanted[commit].mark_id:
                    count += 1
            if not asked:
                return count
            left = [commit for commit, _ in asked]
            self._kv.set_many(
                [(keys.gc_marked_commit(self._repo, wanted[commit].mark_id, commit), b"") for commit in left]
            )
            with unknown.tolerate():  # once more then: the same mark twice is one mark
                self._kv.set_if_many([op for _, op in asked])
        raise Contention("others kept marking and unmarking the same commits; make the same call again")

    def unmark_run(
        self, mark_id: str, which: Callable[[CommitId, StoredMark], bool] = lambda _commit, _mark: True
    ) -> int:
        """Make active again what a run marked and `which` chooses, but what is being swept; return how many."""
        count = 0
        for page in self.scan_run(mark_id):
            asked = [
                self._unmark_operation(item)
                for item in page
                if item.mark and item.is_pending_for(mark_id) and which(item.commit, item.mark)
            ]
            count += sum(self._kv.set_if_many(asked)) if asked else 0
        return count

    def unmark_nothing_to_delete(self, mark_id: str, commits: Iterable[CommitId]) -> set[CommitId]:
        """Unmark commits that their run found complete; return those that were marked as a whole. Raises Contention.

        The marks go first, then the run's list: a run that dies in between is abandoned, and the next run clears up by
        that list.
        """
        whole: set[CommitId] = set()
        unknown = UnknownOutcomes(self._ctx.clock)
        for page in split_batches(commits, PAGE):
            for _ in range(ATTEMPTS):
                waiting = [item for item in self._read_run_commits(page) if item.is_pending_for(mark_id)]
                if not waiting:
                    break
                whole.update(item.commit for item in waiting if item.mark and not item.mark.prefixes)
                with unknown.tolerate():
                    self._kv.set_if_many([self._unmark_operation(item) for item in waiting])
            else:
                raise Contention("others kept changing the marks of the same commits; run the marking again")
            self._kv.set_many(
                [(keys.gc_marked_commit(self._repo, mark_id, commit), NOTHING_TO_DELETE) for commit in page]
            )
        return whole

    def record_nothing_to_delete(self, commits: Set[CommitId], record: NothingToDelete) -> None:
        """Record which commits are complete. Those that were complete before keep their date."""
        old = {CommitId(name) for name, _ in self._kv.scan_all(keys.gc_nothing_to_delete(self._repo))}
        self.add_nothing_to_delete(commits - old, record)
        for commit in old - commits:
            self._kv.delete(keys.gc_nothing_to_delete_commit(self._repo, commit))

    def add_nothing_to_delete(self, commits: Iterable[CommitId], record: NothingToDelete) -> None:
        """Record that these commits are complete, too."""
        for page in split_batches(commits, PAGE):
            self._kv.set_many(
                [(keys.gc_nothing_to_delete_commit(self._repo, commit), encode(record)) for commit in page]
            )

    def read_nothing_to_delete(self, commits: Sequence[CommitId]) -> list[NothingToDelete | None]:
        """Return which of them have expired and were found complete by the last run."""
        names = [keys.gc_nothing_to_delete_commit(self._repo, commit) for commit in commits]
        return [decode_optional(value, NothingToDelete) for value in self._kv.get_many(names)]

    def count_run(self, mark_id: str) -> dict[str, int]:
        """Count what a run marked, by what became of it: marked as a whole or in part, or not under its mark any
        more.
        """
        whole = partly = unmarked = 0
        for page in self.scan_run(mark_id):
            for item in page:
                is_own = item.mark is not None and item.mark.mark_id == mark_id
                whole += is_own and item.mark is not None and not item.mark.prefixes
                partly += is_own and item.mark is not None and bool(item.mark.prefixes)
                unmarked += not is_own
        return {"commits_marked": whole, "commits_partly_marked": partly, "commits_unmarked": unmarked}

    def check_pending(self, commit: CommitId) -> RunCommit:
        """Raises Conflict (not marked), Gone (its sweep began)."""
        raw = self._kv.get(keys.mark(self._repo, commit))
        mark = decode_optional(raw, StoredMark)
        if mark is None:
            raise Conflict(f"commit {commit} is not marked; nothing is to be undone")
        if mark.sweeping_ms:
            raise Gone(f"commit {commit} cannot be unmarked any more; mark {mark.mark_id} has begun to delete its data")
        return RunCommit(commit, raw, mark)

    def unmark_commit(self, commit: CommitId) -> str:
        """Unmark a commit, and return the mark id that it had. Raises Conflict (not marked), Gone (its sweep began)."""
        for _ in range(ATTEMPTS):
            item = self.check_pending(commit)
            if self._kv.set_if_many([self._unmark_operation(item)])[0]:
                return item.mark.mark_id if item.mark is not None else ""
        raise Contention(f"others kept changing the mark of commit {commit}; make the same call again")

    def begin_sweep(self, mark_id: str, heads: Set[CommitId], now_ms: int) -> None:
        """Begin to sweep the commits of a run: nobody can unmark them any more. Heads become active again."""
        for page in self.scan_run(mark_id):
            self._kv.set_if_many(
                [
                    self._unmark_operation(item)
                    if item.commit in heads
                    else self._change_operation(item, sweeping_ms=now_ms)
                    for item in page
                    if item.is_pending_for(mark_id)
                ]
            )

    def stamp_swept_marks(self, mark_id: str, field: Literal["swept_ms", "tagged_ms"], now_ms: int) -> None:
        """Write once into the marks that a run sweeps when their data was deleted, or tagged: from then on it may be
        gone.
        """
        for page in self.scan_run(mark_id):
            unnoted = [item for item in page if item.is_swept_by(mark_id) and not getattr(item.mark, field)]
            self._kv.set_if_many([self._change_operation(item, **{field: now_ms}) for item in unnoted])

    def read_commits(self, commits: Iterable[CommitId]) -> Iterator[tuple[CommitId, StoredCommit]]:
        """Raises Corrupt where one is missing: nothing that depends on it may be deleted."""
        for page in split_batches(commits, PAGE):
            for commit, value in zip(
                page, self._kv.get_many([keys.commit(self._repo, commit) for commit in page]), strict=True
            ):
                if value is ABSENT:
                    raise Corrupt(
                        f"commit {commit} has no record; restore the KV from a backup before anything is collected"
                    )
                yield commit, decode(value, StoredCommit)

    def read_heads(self) -> set[CommitId]:
        """Return what branches and tags name. Heads are active, marked or not."""
        branches = self._ctx.branches
        heads = {record.head for _, record in branches.scan_open()}
        return heads | {decode(value, StoredTag).commit for _, value in self._kv.scan_all(keys.tags(self._repo))}

    def given_up(self) -> Iterator[CommitId]:
        """Yield commits that never landed and never will. The next run marks them, so that a sweep deletes what they
        left.

        The branch is read before the landed mark, in the direction in which a commit moves. A commit whose tokens are
        not all sealed any more can never land, because a token is sealed once.
        """
        markers = self._ctx.markers
        for page in split_batches(self._kv.scan_all(keys.commits(self._repo)), PAGE):
            names = [CommitId(name) for name, _ in page]
            landed = self._kv.get_many([keys.landed_mark(self._repo, name) for name in names])
            for name, (_, value), known, mark in zip(names, page, landed, self.read_marks(names), strict=True):
                tokens = decode(value, StoredCommit).tokens
                if (
                    known is ABSENT
                    and mark is None
                    and tokens
                    and not self._may_land(tokens)
                    and not markers.has_landed(name)
                ):
                    yield name

    def _may_land(self, tokens: Sequence[str]) -> bool:
        value = self._kv.get(keys.branch(self._repo, ids.branch_of(ids.staging_token(tokens[0]))))
        record = decode_branch(value) if value is not ABSENT else None
        return isinstance(record, StoredBranch) and set(tokens) <= {record.token, *record.sealed_tokens}

    def _read_run_commits(self, commits: Sequence[CommitId]) -> list[RunCommit]:
        raws = self._kv.get_many([keys.mark(self._repo, commit) for commit in commits])
        return [
            RunCommit(commit, raw, decode_optional(raw, StoredMark)) for commit, raw in zip(commits, raws, strict=True)
        ]

    def _unmark_operation(self, item: RunCommit) -> SetIf:
        earlier = item.mark.earlier_marks if item.mark is not None else b""
        return SetIf(keys.mark(self._repo, item.commit), item.raw, earlier or ABSENT)

    def _change_operation(self, item: RunCommit, **changes: int) -> SetIf:
        assert item.mark is not None  # noqa: S101  # asked for those that have one
        return SetIf(
            keys.mark(self._repo, item.commit), item.raw, encode(msgspec.structs.replace(item.mark, **changes))
        )


def _merge_marks(old: StoredMark | None, new: StoredMark) -> StoredMark | None:
    """Return the mark that replaces `old`; None where `old` says as much already.

    The expired part of a commit only grows. A part that was swept stays swept, whatever becomes of the rest.
    """
    if old is None:
        return new
    if not old.prefixes or set(new.prefixes or ("",)) <= set(old.prefixes):
        return None
    prefixes = tuple(sorted({*old.prefixes, *new.prefixes})) if new.prefixes else ()
    return msgspec.structs.replace(
        new, prefixes=prefixes, earlier_marks=encode(old) if old.sweeping_ms else old.earlier_marks
    )
