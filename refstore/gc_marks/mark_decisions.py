"""What operators decide about marks: confirm one, or make commits active again."""

from __future__ import annotations

from refstore.context import Context
from refstore.core import ids
from refstore.core.ids import CommitId
from refstore.errors import Conflict, Gone, InvalidName
from refstore.gc_marks.commit_marks import CommitMarks
from refstore.gc_marks.offline_runs import OBJECTS_EXPIRED, OfflineRun, OfflineRuns, RunState


class MarkDecisions:
    """Decisions about marks that are written to the audit log."""

    def __init__(self, ctx: Context, runs: OfflineRuns, commits: CommitMarks) -> None:
        self._ctx = ctx
        self._clock = ctx.clock
        self._runs = runs
        self._commits = commits

    def confirm(self, mark_id: str, by: str) -> OfflineRun:
        """Confirm a mark that needs it. Raises NotFound, Conflict."""
        run = self._runs.get(mark_id)
        if run.state is not RunState.NEEDS_CONFIRMATION:
            raise Conflict(f"mark {mark_id} is {run.state}; only one that needs confirmation can be confirmed")
        before = {"state": run.state.value, "question": run.record.question}
        after = {"state": RunState.MARKED.value, "confirmed_by": by}
        with self._ctx.audit.change(
            "gc.confirm", repository=self._ctx.name, target=mark_id, before=before, after=after
        ):
            return self._runs.change(run, state=RunState.MARKED, confirmed_by=by, confirmed_ms=self._clock.now_ms())

    def check_unmark(self, which: str) -> None:
        """Raise what `unmark` would raise now, and change nothing."""
        if _is_commit(which):
            self._commits.check_pending(CommitId(which))
        elif self._runs.get(which).state in (RunState.SWEEPING, RunState.SWEPT):
            raise _too_late(which)

    def unmark(self, which: str) -> int:
        """Make a commit, or all that a mark id marked, active again; return how many. Raises Gone once the sweep began
        (rule 14).

        Raises NotFound (no such mark), Conflict (the commit is not marked).
        """
        self.check_unmark(which)
        with self._ctx.audit.act("gc.unmark", repository=self._ctx.name, target=which, bounded_wait=False) as draft:
            count = self._unmark(which)
            draft.after = {"unmarked": count}
        return count

    def _unmark(self, which: str) -> int:
        if _is_commit(which):
            self._abandon_empty(self._commits.unmark_commit(CommitId(which)))
            return 1
        if self._runs.get(which).state in (RunState.SWEEPING, RunState.SWEPT) or not self._runs.abandon(
            which, "unmarked"
        ):
            raise _too_late(which)
        count = self._commits.unmark_run(which)
        self._runs.clear_flag(which)
        return count

    def _abandon_empty(self, mark_id: str) -> None:
        """Abandon a mark of which the last commit was unmarked, if it holds nothing but what expired commits named."""
        if not self._runs.exists(mark_id):
            return
        run = self._runs.get(mark_id)
        counts = run.record.mark_counts
        only_expired = OBJECTS_EXPIRED in counts and counts[OBJECTS_EXPIRED] == counts.get("objects")
        waits = run.state in (RunState.MARKED, RunState.NEEDS_CONFIRMATION)
        if waits and only_expired and next(self._commits.scan_pending(mark_id), None) is None:
            self._runs.abandon(mark_id, "unmarked")


def _too_late(mark_id: str) -> Gone:
    return Gone(f"mark {mark_id} cannot be undone any more; it has begun to delete")


def _is_commit(text: str) -> bool:
    try:
        ids.commit_id(text)
    except InvalidName:
        return False
    return True
