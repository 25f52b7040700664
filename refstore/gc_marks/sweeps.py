"""The sweep of a mark, and what it must leave (rule 14).

    will_exclude, unmark_untouched, begin, then excluded_commits, then the deletions, finish

The caller must read `excluded_commits` *after* `begin` returned, and must not delete what these commits name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from refstore.context import Context
from refstore.core.ids import CommitId
from refstore.errors import Conflict, Gone
from refstore.gc_marks.commit_marks import CommitMarks, RunCommit
from refstore.gc_marks.offline_runs import OfflineRun, OfflineRuns, RunState
from refstore.records.commit_records import StoredCommit
from refstore.records.mark_records import NothingToDelete, StoredMark


class Sweeps:
    """The steps of sweeps."""

    def __init__(self, ctx: Context, runs: OfflineRuns, commits: CommitMarks) -> None:
        self._clock = ctx.clock
        self._runs = runs
        self._commits = commits

    def will_exclude(self, run: OfflineRun) -> Iterator[tuple[CommitId, StoredCommit]]:
        """Yield what `excluded_commits` would yield if the sweep began now."""
        disregarded, heads = _disregarded_marks(run), self._commits.read_heads()

        def is_taken(item: RunCommit) -> bool:
            return item.is_swept_by(*disregarded) or (item.is_pending_for(run.mark_id) and item.commit not in heads)

        return self._others(run, is_taken)

    def unmark_untouched(self, run: OfflineRun, commits: Collection[CommitId]) -> int:
        """Unmark commits of which the sweep would delete nothing, because others that it leaves name all that they
        name (rule 14). Return how many were unmarked.

        Call it before `begin`: afterwards the sweep of a later mark may count on it that these commits are swept. They
        stay in the run's list, so that both sweeps leave what they name.
        """
        expired: list[CommitId] = []

        def is_untouched(commit: CommitId, mark: StoredMark) -> bool:
            if commit in commits and not mark.prefixes:
                expired.append(commit)
            return commit in commits

        count = self._commits.unmark_run(run.mark_id, is_untouched)
        self._commits.add_nothing_to_delete(expired, NothingToDelete(self._clock.now_ms(), run.mark_id))
        return count

    def begin(self, mark_id: str) -> OfflineRun:
        """Begin the sweep: from here on the mark cannot be taken back. Heads are unmarked. Call it again after a crash.

        Raises Conflict (not due, not confirmed, not finished), Gone (unmarked), NotFound. A run that was swept is
        returned as it is.
        """
        run = self._start(mark_id)
        if run.state is RunState.SWEEPING:
            self._commits.begin_sweep(mark_id, self._commits.read_heads(), self._clock.now_ms())
        return run

    def excluded_commits(self, run: OfflineRun) -> Iterator[tuple[CommitId, StoredCommit]]:
        """Yield commits that the live scan disregarded and that are not being swept: a sweep must not delete what they
        name.

        They were unmarked since, marked by a later run since, or stand under an older mark that is not swept yet. Read
        this after `begin`: from then on none can be added.
        """
        disregarded = _disregarded_marks(run)
        return self._others(run, lambda item: item.is_swept_by(*disregarded))

    def taken_back(self, run: OfflineRun) -> Iterator[tuple[CommitId, StoredCommit]]:
        """Yield the commits that the live scan disregarded and that are not marked by one of these runs any more: they
        were unmarked, or are marked by a later run. The sweep will exclude them, whatever becomes of them.
        """
        disregarded = _disregarded_marks(run)
        return self._others(run, lambda item: item.mark is not None and item.mark.mark_id in disregarded)

    def _others(
        self, run: OfflineRun, is_taken: Callable[[RunCommit], bool]
    ) -> Iterator[tuple[CommitId, StoredCommit]]:
        """Yield the commits that the live scan disregarded, without those that `is_taken` says a sweep takes."""
        for mark_id in _disregarded_marks(run):
            for page in self._commits.scan_run(mark_id):
                yield from self._commits.read_commits(item.commit for item in page if not is_taken(item))

    def note_tagged(self, mark_id: str, counts: Mapping[str, int]) -> OfflineRun:
        """Note that everything is tagged, and the sweep waits for the bucket. Call it again after a crash."""
        run = self._runs.get(mark_id)
        if run.state is not RunState.SWEEPING:
            raise Conflict(f"mark {mark_id} is {run.state_text}; begin its sweep first")
        if run.is_tagged:
            return run
        now = self._clock.now_ms()
        self._commits.stamp_swept_marks(mark_id, "tagged_ms", now)
        return self._runs.change(run, tagged_ms=now, sweep_counts=dict(counts))

    def finish(self, mark_id: str, counts: Mapping[str, int]) -> OfflineRun:
        """Finish the sweep after all deletions: the commits are swept. Call it again after a crash."""
        run = self._runs.get(mark_id)
        if run.state is RunState.SWEPT:
            return run
        if run.state is not RunState.SWEEPING:
            raise Conflict(f"mark {mark_id} is {run.state}; begin its sweep first")
        now = self._clock.now_ms()
        self._commits.stamp_swept_marks(mark_id, "swept_ms", now)
        counted = {**counts, **self._commits.count_run(mark_id)}
        return self._runs.change(run, state=RunState.SWEPT, swept_ms=now, sweep_counts=counted)

    def _start(self, mark_id: str) -> OfflineRun:
        run = self._runs.get(mark_id)
        match run.state:
            case RunState.SWEPT | RunState.SWEEPING:
                return run
            case RunState.MARKING:
                raise Conflict(f"mark {mark_id} was not finished; run the marking again")
            case RunState.ABANDONED:
                raise Gone(
                    f"mark {mark_id} is abandoned ({run.record.end_reason}) and will not be swept; run the marking "
                    f"again"
                )
            case RunState.NEEDS_CONFIRMATION:
                raise Conflict(f"mark {mark_id} needs confirmation: {run.record.question}; confirm it first")
            case RunState.MARKED:
                now = self._clock.now_ms()
                if now < run.record.deletes_at_ms:
                    raise Conflict(
                        f"mark {mark_id} is not due for another {(run.record.deletes_at_ms - now) // 1000} s; wait, or "
                        "unmark it"
                    )
                return self._runs.change(run, state=RunState.SWEEPING, sweep_began_ms=now)


def _disregarded_marks(run: OfflineRun) -> tuple[str, ...]:
    """Return the run and those whose commits its live scan disregarded."""
    return (run.mark_id, *run.record.disregarded_marks)
