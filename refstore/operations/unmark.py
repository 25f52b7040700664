"""Unmark commits, and tell which of them the next run will mark again because the rules still let them expire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from refstore.context import Context
from refstore.core.ids import CommitId
from refstore.gc_marks import Marks
from refstore.operations import refs, rules_document
from refstore.operations.rules_in_force import rules_in_force
from refstore.retention.active_commits import ExpiryState
from refstore.retention.path_rules import make_plan


class UnmarkResult(NamedTuple):
    commits: Sequence[CommitId]
    """The marked commits that can be unmarked, or were."""
    unmarked_commits: int
    expired_commits: Sequence[CommitId]
    """Those of the commits that have expired by the rules, as a whole or in part: the next run marks them again."""
    is_pinned: bool


def preview_unmark(ctx: Context, which: str) -> UnmarkResult:
    """Return what `unmark` would make active again. Raises NotFound."""
    marks = Marks(ctx)
    commits = list(marks.commits.scan_pending(which)) if marks.runs.exists(which) else [refs.resolve(ctx, which).commit]
    return UnmarkResult(commits, 0, _find_expired(ctx, commits), False)


def unmark(ctx: Context, which: str, *, pin: bool = False, by: str = "") -> UnmarkResult:
    """Make a ref's commit, or all commits of a mark id, active again, until the sweep has begun.

    `pin`: first add these commits to the pins of the rules, so that no run marks them again. Raises NotFound, Conflict
    (not marked), Gone (too late: then nothing is pinned either), InvalidRules.
    """
    marks, before = Marks(ctx), preview_unmark(ctx, which)
    mark_id = which if marks.runs.exists(which) else None
    marks.decisions.check_unmark(mark_id or before.commits[0])
    if pin and before.commits:
        rules_document.pin_commits(ctx, before.commits, by=by)
    count = marks.decisions.unmark(mark_id or before.commits[0])
    return UnmarkResult(before.commits, count, _find_expired(ctx, before.commits), pin)


def _find_expired(ctx: Context, commits: Sequence[CommitId]) -> list[CommitId]:
    rules = rules_in_force(ctx)
    history, names = rules_document.read_history(ctx)
    current_plan = make_plan(history, names, rules, ctx.clock.now_ms())
    partly = {commit for commit, _ in current_plan.partly_expired_commits()}
    return [
        commit
        for commit in commits
        if commit in partly
        or (
            (number := history.numbers.get(commit)) is not None
            and current_plan.expiry.state(number) == ExpiryState.EXPIRED
        )
    ]
