"""Unmark, and what the rules say of what was unmarked: the next run marks again what they still call expired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from refstore.context import Context
from refstore.flows import refs, retaining
from refstore.ids import CommitId
from refstore.marks import Marks
from refstore.retention.active import State
from refstore.retention.paths import plan
from refstore.retention.rules import Rules


class Unmarked(NamedTuple):
    commits: Sequence[CommitId]
    """What was marked, and can be unmarked or was."""
    unmarked: int
    expired: Sequence[CommitId]
    """Of these, what the rules call expired, as a whole or in part: the next run marks it again."""
    pinned: bool


def look(ctx: Context, which: str) -> Unmarked:
    """What `unmark` would make active again. Raises NotFound."""
    marks = Marks(ctx)
    commits = list(marks.pending(which)) if marks.knows(which) else [refs.resolve(ctx, which).commit]
    return Unmarked(commits, 0, _expired(ctx, commits), False)


def unmark(ctx: Context, which: str, *, pin: bool = False, by: str = "") -> Unmarked:
    """Make a ref's commit, or all that a mark id marked, active again, until the sweep has begun.

    `pin`: first add these commits to the pins of the rules, so that no run marks them again. Raises NotFound, Conflict (not marked),
    Gone (too late: then nothing is pinned either), InvalidRules.
    """
    marks, found = Marks(ctx), look(ctx, which)
    mark_id = which if marks.knows(which) else None
    marks.check_unmark(mark_id or found.commits[0])
    if pin and found.commits:
        retaining.pin(ctx, found.commits, by=by)
    count = marks.unmark(mark_id or found.commits[0])
    return Unmarked(found.commits, count, _expired(ctx, found.commits), pin)


def _expired(ctx: Context, commits: Sequence[CommitId]) -> list[CommitId]:
    own = retaining.get(ctx)
    history, names = retaining.read_history(ctx)
    made = plan(history, names, own.rules if own is not None else Rules(), ctx.clock.now_ms())
    partly = {commit for commit, _ in made.partly()}
    return [
        commit
        for commit in commits
        if commit in partly or ((number := history.numbers.get(commit)) is not None and made.lives.state(number) == State.EXPIRED)
    ]
