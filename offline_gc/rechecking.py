"""The rules of today, before a sweep: days have passed since the mark, in which somebody may have set a legal hold.

    begin    rules, history -> what today's rules keep is unmarked -> begin_sweep -> the rules once more
    keep     of what is still marked, what today's rules keep all the same, by a legal hold for the most part, drops out

Nothing here lets anything go: what it finds only takes off what a mark holds. What a hold keeps of an expired commit needs no
unmarking: the commit stays marked, as if the hold had been there when it was marked, and what it names below the prefix stays.

A hold counts if it was set before the sweep began, and where one that stopped is made again, before that. Rules that cannot be read
end the sweep, and nothing is deleted.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, NamedTuple

from offline_gc.committed import ALL, NOTHING, Filter, Part, Wanted
from offline_gc.deciding import filters_of
from refstore.context import Context
from refstore.flows import retaining
from refstore.ids import CommitId
from refstore.marks import Kept, Marks, Run, State
from refstore.records import Mark
from refstore.retention.active import State as Life
from refstore.retention.paths import Keeps, Plan, plan
from refstore.retention.rules import Rules

PAGE: Final = 1000


class Begun(NamedTuple):
    run: Run
    plan: Plan | None
    """What today's rules come to; None: the mark was swept already."""
    changed: bool = False
    """Whether these are other rules than those it was marked by."""


def begin(ctx: Context, marks: Marks, mark_id: str) -> Begun:
    """`Marks.begin_sweep`, for what today's rules do not keep. Raises what that raises, and CorruptRecord."""
    found = marks.run(mark_id)
    is_due = found.state is State.MARKED and found.record.deletes_at_ms <= ctx.clock.now_ms()
    if not is_due and found.state is not State.SWEEPING:
        run = marks.begin_sweep(mark_id)
        if run.state is not State.SWEEPING:
            return Begun(run, None)
        # it was confirmed, or became due, a moment ago: what today's rules keep drops out, as where a sweep is made again
    rules = _rules(ctx)
    history, refs = retaining.read_history(ctx)
    made = plan(history, refs, rules, ctx.clock.now_ms())
    if is_due:
        marks.unmark_where(mark_id, lambda commit, mark: is_kept(made, commit, mark))
    run = marks.begin_sweep(mark_id)
    latest = _rules(ctx)  # a hold that was set while the history was read
    if latest != rules:
        made = plan(history, refs, latest, ctx.clock.now_ms())
    return Begun(run, made, latest.digest() != run.record.rules_digest)


def is_kept(made: Plan, commit: CommitId, mark: Mark) -> bool:
    """Whether a mark takes, as a whole or at one of its prefixes, what the rules keep."""
    number = _landed(made, commit)
    if number is None:
        return False
    if not mark.prefixes and made.lives.state(number) is Life.ACTIVE:
        return True
    return any(made.class_of(prefix).keeps[number] == Keeps.ALL for prefix in mark.prefixes or ("",))


def keep(marks: Marks, begun: Begun, wanted: Wanted) -> int:
    """Add to what dropped out, which `wanted` holds, what today's rules keep of commits that stay marked. How many of those that dropped
    out are active by these rules."""
    made = begun.plan
    if made is None:
        return 0
    known = set(wanted.commits())
    if begun.changed:  # else the look kept it, by the same rules
        # of all that is marked or swept, not of this mark's commits alone: what a swept one names below a new hold may have been kept
        # for the sake of another, under another name, until now
        marked = ((commit, mark) for commit, mark in marks.scan() if commit not in known and _landed(made, commit) is not None)
        kept_of = filters_of(made)
        while page := dict(islice(marked, PAGE)):
            for commit, record in marks.records(page):
                but_for = page[commit].prefixes or ("",)
                kept = _below(but_for, kept_of(Kept(commit, record, but_for)))
                if kept is None or any(part.keeps != NOTHING for part in kept.parts):
                    wanted.add(commit, record, kept)
    return sum(_is_active(made, commit) for commit in known)


def _below(but_for: tuple[str, ...], kept: Filter | None) -> Filter | None:
    """What is kept of the paths that a mark takes; no mark ever took the others."""
    if but_for == ("",):
        return kept
    parts = kept.parts if kept is not None else tuple(Part(prefix, ALL) for prefix in sorted(but_for, key=len))
    inside = tuple(part for part in parts if part.prefix.startswith(but_for))
    return Filter((Part("", NOTHING), *inside))


def _is_active(made: Plan, commit: CommitId) -> bool:
    number = _landed(made, commit)
    return number is not None and made.lives.state(number) is Life.ACTIVE


def _landed(made: Plan, commit: CommitId) -> int | None:
    """Its number; None for what was given up: whatever rules say, nobody can name it."""
    number = made.lives.history.numbers.get(commit)
    return None if number is None or made.lives.state(number) is Life.UNLANDED else number


def _rules(ctx: Context) -> Rules:
    found = retaining.get(ctx)
    return found.rules if found is not None else Rules()
