"""A run of marking: it marks commits, waits, looks, and lets its mark stand (rule 13)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from refstore.context import Context
from refstore.core.batches import split_batches
from refstore.core.ids import CommitId
from refstore.core.safety import Safety
from refstore.errors import Conflict
from refstore.gc_marks.commit_marks import PAGE, CommitMarks
from refstore.gc_marks.live_set import LiveBatch, scan_live_set
from refstore.gc_marks.offline_runs import OPEN_STATES, OfflineRun, OfflineRuns, RunState
from refstore.records.mark_records import GcRun, NothingToDelete, StoredMark

BEAT_SECONDS: Final = 60.0
CHECK_SECONDS: Final = 1.0
"""How often a wait asks whether it is to end."""


def barrier_seconds(waits: Safety) -> float:
    """Return how long to wait after the last mark, until every operation that did not see it has ended.

    This contains the time of a request twice: the mark may land so late where its first reply was lost, and so may the
    operation's last write.
    """
    return waits.operation_deadline_seconds + 2 * waits.io_timeout_seconds + waits.clock_skew_seconds


class MarkRun:
    """The steps of a run of marking."""

    def __init__(self, ctx: Context, runs: OfflineRuns, commits: CommitMarks) -> None:
        self._ctx = ctx
        self._clock = ctx.clock
        self._runs = runs
        self._commits = commits

    def begin(
        self,
        rules_digest: str,
        grace_ms: int,
        commits: Iterable[CommitId],
        mark_id: str,
        *,
        partly: Iterable[tuple[CommitId, tuple[str, ...]]] = (),
        owner: str = "",
        take_over: bool = False,
    ) -> OfflineRun:
        """Set the run flag and mark `commits`, except heads of branches and tags, and what is marked already.

        `partly`: commits of which only some paths have expired, with the prefixes of these paths. The active run is
        abandoned if it is dead, or with `take_over`; else this raises Conflict. Raises AlreadyExists: a mark id is for
        one run; after a crash, begin under a new one.
        """
        self._runs.check_new(mark_id)
        self._runs.take_flag(mark_id, owner, take_over=take_over)
        disregards = self._end_earlier(mark_id)
        now = self._clock.now_ms()
        deletes_at = now + grace_ms
        run = self._runs.create(
            mark_id, GcRun(self._runs.write_id(), RunState.MARKING, now, grace_ms, deletes_at, rules_digest, disregards)
        )
        heads = self._commits.read_heads()
        counts = {"commits_marked": 0, "commits_partly_marked": 0, "heads_left_out": 0}
        wanted = ((commit, StoredMark(now, deletes_at, mark_id)) for commit in commits)
        part = (
            (commit, StoredMark(now, deletes_at, mark_id, prefixes=tuple(sorted(set(prefixes)))))
            for commit, prefixes in partly
            if prefixes
        )
        for name, marks in (("commits_marked", wanted), ("commits_partly_marked", part)):
            for page in split_batches(marks, PAGE):
                # one that was taken over stops here; what it marked since is cleared by the next
                self._runs.check_flag(mark_id)
                counts["heads_left_out"] += sum(commit in heads for commit, _ in page)
                counts[name] += self._commits.mark_commits(
                    {commit: mark for commit, mark in page if commit not in heads}
                )
        run = self._runs.change(run, marked_ms=self._clock.now_ms(), mark_counts=counts)
        return run._replace(marked_at_seconds=self._clock.monotonic_seconds())

    def barrier_over_at(self, run: OfflineRun) -> int:
        """Return when every operation that began before the last mark has ended. List and scan after that."""
        return run.record.marked_ms + math.ceil(barrier_seconds(self._ctx.waits) * 1000)

    def wait(self, run: OfflineRun, *, check: Callable[[float], None] | None = None) -> None:
        """Wait until the barrier is over. Raises Conflict if the run was taken over meanwhile.

        `check` is called every few seconds with the seconds that are left; what it raises ends the wait.
        """
        left = (self.barrier_over_at(run) - self._clock.now_ms()) / 1000
        if run.marked_at_seconds is not None:
            left = max(left, run.marked_at_seconds + barrier_seconds(self._ctx.waits) - self._clock.monotonic_seconds())
        since_beat = 0.0
        if check is not None and left > 0:
            check(left)
        while left > 0:
            step = min(left, BEAT_SECONDS if check is None else CHECK_SECONDS)
            self._clock.sleep(step)
            left -= step
            since_beat += step
            if check is not None:
                check(left)
            if left > 0 and since_beat >= BEAT_SECONDS:
                since_beat = 0.0
                self.beat(run)

    def beat(self, run: OfflineRun) -> None:
        """Say that the run is alive; its process calls this now and then. Raises Conflict if the run was taken over."""
        self._runs.beat(run.mark_id)

    def scan_live(self, run: OfflineRun, *, page: int = PAGE) -> Iterator[LiveBatch]:
        """Yield everything that must be kept, in the reading order of rule 13. The object listing must be *complete*
        before this begins.

        Read it to its end: only then is it known that the run was active throughout. Raises Conflict (too early, or
        taken over), Corrupt (nothing may be marked then).
        """
        if self._clock.now_ms() < self.barrier_over_at(run):
            raise Conflict(
                f"mark {run.mark_id} has to wait for operations that began before it; look again when they are over"
            )
        yield from scan_live_set(self._ctx, run, page)
        self._runs.check_flag(run.mark_id)

    def may_have_nothing_to_delete(self, run: OfflineRun) -> Iterator[CommitId]:
        """Yield what this run marked, and may unmark where it names no garbage: no commit of which a part was swept."""
        for page in self._commits.scan_run(run.mark_id):
            yield from (
                item.commit
                for item in page
                if item.mark and item.is_pending_for(run.mark_id) and not item.mark.earlier_marks
            )

    def unmark_nothing_to_delete(self, run: OfflineRun, commits: Collection[CommitId]) -> int:
        """Make active again what this run marked and found complete: no mark takes anything that it names. Return how
        many of them were marked as a whole.

        Call this after the live scan, and before `finish` (rule 13): only landed commits. Raises Conflict if
        the run was taken over.
        """
        self._runs.check_flag(run.mark_id)
        whole = self._commits.unmark_nothing_to_delete(run.mark_id, commits)
        self._commits.record_nothing_to_delete(whole, NothingToDelete(self._clock.now_ms(), run.mark_id))
        return len(whole)

    def marked_again(self, run: OfflineRun, commits: Iterable[CommitId]) -> list[CommitId]:
        """Return those of `commits`, which `run` marks, that an earlier mark had before. What they name drops out of
        that mark (rule 14), so it goes with this run or not at all.
        """
        wanted = dict.fromkeys(commits)
        earlier = set(run.record.disregarded_marks)
        for mark_id in run.record.disregarded_marks:
            earlier.update(self._runs.get(mark_id).record.disregarded_marks)
        if not wanted:
            return []
        listed = {commit for mark_id in earlier for commit in self._commits.scan_marked(mark_id)}
        return [commit for commit in wanted if commit in listed]

    def finish(self, run: OfflineRun, counts: Mapping[str, int], *, question: str = "") -> OfflineRun:
        """Let the mark stand. `question`: what an operator has to confirm before the sweep. Raises Conflict."""
        self._runs.check_flag(run.mark_id)
        state = RunState.NEEDS_CONFIRMATION if question else RunState.MARKED
        counted = {**run.record.mark_counts, **counts}
        after = {
            "state": state.value,
            "counts": counted,
            "question": question,
            "deletes_at_ms": run.record.deletes_at_ms,
        }
        with self._ctx.audit.act(
            "gc.mark", repository=self._ctx.name, target=run.mark_id, after=after, bounded_wait=False
        ):
            done = self._runs.change(
                run, state=state, finished_ms=self._clock.now_ms(), mark_counts=counted, question=question
            )
        self._runs.clear_flag(run.mark_id)
        return done

    def abandon(self, run: OfflineRun, why: str = "given up") -> None:
        """End a run that marks nothing: its commits are active again. A run whose sweep began stays as it is."""
        if self._runs.abandon(run.mark_id, why):
            self._commits.unmark_run(run.mark_id)
        self._runs.clear_flag(run.mark_id)

    def _end_earlier(self, mark_id: str) -> tuple[str, ...]:
        """Clear what failed runs left; return the open marks. The flag is ours, so no other run will finish."""
        open_marks: list[str] = []
        for run in list(self._runs.scan()):
            state = run.state
            if state is RunState.MARKING and self._runs.abandon(
                run.mark_id, f"taken over by {mark_id}", unfinished_only=True
            ):
                state = RunState.ABANDONED
            if state in OPEN_STATES:
                open_marks.append(run.mark_id)
            elif state is RunState.ABANDONED:
                self._commits.unmark_run(run.mark_id)  # also what it marked after it was taken over
        self._runs.drop_late_pins()
        return tuple(open_marks)
