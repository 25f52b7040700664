"""What is shown of marks: to people, and over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from refstore.core.ids import CommitId
from refstore.gc_marks.commit_marks import CommitMarks
from refstore.gc_marks.offline_runs import OPEN_STATES, OfflineRun, OfflineRuns, RunState
from refstore.records.encoding import decode
from refstore.records.mark_records import NothingToDelete, StoredMark


class MarkStatus(NamedTuple):
    """What is shown of a commit."""

    mark: StoredMark | None = None
    nothing_to_delete: NothingToDelete | None = None
    examining_run: str = ""
    """The run that has marked it for its look, and has yet to find whether anything of it goes."""


class MarkStatuses:
    """The marks as they are shown."""

    def __init__(self, runs: OfflineRuns, commits: CommitMarks) -> None:
        self._runs = runs
        self._commits = commits

    def read(self, commits: Sequence[CommitId]) -> list[MarkStatus]:
        """Return what to show of each: its mark, or that it is complete. By the mark of a run that has yet to find what
        goes nothing is going to be deleted: such a commit is shown as before that run, or as examined by it.
        """
        marks, complete = self._commits.read_marks(commits), self._commits.read_nothing_to_delete(commits)
        states = self._runs.read_states({mark.mark_id for mark in marks if mark is not None and not mark.sweeping_ms})
        return [
            self._status_of(mark, nothing_to_delete, states.get(mark.mark_id) if mark is not None else None)
            for mark, nothing_to_delete in zip(marks, complete, strict=True)
        ]

    @staticmethod
    def _status_of(mark: StoredMark | None, complete: NothingToDelete | None, state: RunState | None) -> MarkStatus:
        if mark is None:
            return MarkStatus(None, complete)
        if state not in (RunState.MARKING, RunState.ABANDONED):
            return MarkStatus(mark)
        if complete is not None:
            return MarkStatus(None, complete)
        if mark.earlier_marks:
            return MarkStatus(decode(mark.earlier_marks, StoredMark))
        is_examined = state is RunState.MARKING and not mark.prefixes
        return MarkStatus(examining_run=mark.mark_id if is_examined else "")

    def read_counts(self, run: OfflineRun) -> dict[str, int]:
        """Return what a run counted. Of a mark that stands, the commits are those that it still has, and
        `commits_unmarked` are the others: what these name stays, so the mark holds at most the objects that it counted.
        Of a swept mark the commits are those that were swept.
        """
        counts = run.record.mark_counts
        if run.state in OPEN_STATES:
            return counts | self._commits.count_run(run.mark_id)
        if run.state is RunState.SWEPT:  # its sweep counted them
            swept = run.record.sweep_counts
            return counts | {name: count for name, count in swept.items() if name.startswith("commits_")}
        return counts
