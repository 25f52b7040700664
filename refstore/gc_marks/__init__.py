"""Marks: what the offline job decides in the KV. Marking, pins, the live scan, unmark, and what a sweep
excludes (rules 13 and 14).

    run      begin --> marking --finish--> marked | needs confirmation --confirm--> marked
             marked --begin sweep--> sweeping --finish sweep--> swept
             unmark, abandon, or a run that takes over: --> abandoned (until the sweep)
    commit   active --begin--> marked --begin sweep--> sweeping --finish sweep--> swept
                                      --unmark, or unmark_nothing_to_delete--> active

A sweep that tags is sweeping until the bucket has deleted everything. `note_tagged` says since when everything is
tagged; the run is shown as "tagged".

    mark:    begin, wait, then the object listing, then scan_live, unmark_nothing_to_delete, finish
    sweep:   begin, then excluded_commits, then the deletions, finish

The caller lists, reads the trees of commits, and deletes. These scale with objects; here only `scan_live` does.

    offline_runs.py    the records of runs, and the flag of the active run
    commit_marks.py    the marks of commits
    mark_run.py        a run of marking
    live_set.py        what must be kept, in the order in which it has to be read
    mark_decisions.py  confirm a mark, unmark commits
    sweeps.py          the sweep of a mark
    mark_statuses.py   what is shown of marks
    sweep_records.py   the records of an address in the files of a run: its mark, and its outcome
"""

from __future__ import annotations

from collections.abc import Iterable

from refstore.context import Context
from refstore.core.ids import Address
from refstore.gc_marks.commit_marks import CommitMarks
from refstore.gc_marks.live_set import LiveBatch, LiveCommit, LiveSource
from refstore.gc_marks.mark_decisions import MarkDecisions
from refstore.gc_marks.mark_run import MarkRun, barrier_seconds
from refstore.gc_marks.mark_statuses import MarkStatus, MarkStatuses
from refstore.gc_marks.offline_runs import (
    OBJECTS_EXPIRED,
    OPEN_STATES,
    TAGGED,
    TAKE_OVER_MS,
    OfflineRun,
    OfflineRuns,
    RunState,
)
from refstore.gc_marks.sweeps import Sweeps
from refstore.records import keys
from refstore.records.encoding import decode_optional
from refstore.records.mark_records import GcFlag

__all__ = [
    "OBJECTS_EXPIRED",
    "OPEN_STATES",
    "TAGGED",
    "TAKE_OVER_MS",
    "LiveBatch",
    "LiveCommit",
    "LiveSource",
    "MarkStatus",
    "Marks",
    "OfflineRun",
    "RunState",
    "barrier_seconds",
    "new_mark_id",
    "pin",
]


class Marks:
    """The marks of one repository, by subject. An instance is for one thread."""

    def __init__(self, ctx: Context) -> None:
        self.runs = OfflineRuns(ctx)
        self.commits = CommitMarks(ctx)
        self.mark_run = MarkRun(ctx, self.runs, self.commits)
        self.decisions = MarkDecisions(ctx, self.runs, self.commits)
        self.sweeps = Sweeps(ctx, self.runs, self.commits)
        self.statuses = MarkStatuses(self.runs, self.commits)


def new_mark_id(ctx: Context) -> str:
    """Return a new mark id. Mark ids sort by time."""
    return ctx.ids.new_id(ctx.clock.now_ms())


def pin(ctx: Context, addresses: Iterable[Address]) -> None:
    """Pin these addresses so that the active run keeps them.

    A copy of an entry without a reference calls this before it reads the source again (rule 13). The run may have
    scanned the copy's target already, and may not find its source any more.
    """
    flag = decode_optional(ctx.kv.get(keys.gc_flag(ctx.repo)), GcFlag)
    if flag is not None:
        ctx.kv.set_many([(keys.gc_pin(ctx.repo, flag.mark_id, address), b"") for address in dict.fromkeys(addresses)])
