"""Check the current rules before a sweep: a legal hold may have been set since the mark.

    begin    rules, history -> what today's rules keep is unmarked -> begin sweep -> the rules once more
    keep     what today's rules keep of the commits that stay marked is excluded, mostly by a legal hold

Nothing here adds garbage: it only takes objects off a mark. What a hold keeps of an expired commit
needs no unmarking: the commit stays marked, as if the hold had been there when it was marked, and what it names below
the prefix stays.

A hold counts if it was set before the sweep began, and where one that stopped is made again, before that. Rules that
cannot be read end the sweep, and nothing is deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core.ids import CommitId
from refstore.gc_marks import LiveCommit, Marks, OfflineRun, RunState
from refstore.operations import rules_document
from refstore.operations.rules_in_force import rules_to_expire_by
from refstore.records.mark_records import Mark
from refstore.retention.active_commits import ExpiryState
from refstore.retention.path_rules import KeepLevel, RetentionPlan, make_plan
from refstore_gc.live_in_commits import FilterPart, LiveCommits, TreeFilter
from refstore_gc.mark_plan import tree_filter_of

PAGE: Final = 1000


class SweepStart(NamedTuple):
    run: OfflineRun
    plan: RetentionPlan | None
    """What today's rules come to; None: the mark was swept already."""
    have_rules_changed: bool = False
    """Whether these rules differ from those of the mark."""


def begin_sweep(
    ctx: Context, marks: Marks, mark_id: str, before_begin: Callable[[SweepStart], None] = lambda _: None
) -> SweepStart:
    """Begin the sweep of what today's rules do not keep. `before_begin` is called when its commits can be unmarked for
    the last time. Raises what `Sweeps.begin` raises, and CorruptRecord.
    """
    mark = marks.runs.get(mark_id)
    is_due = mark.state is RunState.MARKED and mark.record.deletes_at_ms <= ctx.clock.now_ms()
    if not is_due and mark.state is not RunState.SWEEPING:
        run = marks.sweeps.begin(mark_id)
        if run.state is not RunState.SWEEPING:
            return SweepStart(run, None)
        # it was confirmed, or became due, a moment ago: what today's rules keep is excluded, as where a sweep is made
        # again
    rules = rules_to_expire_by(ctx)
    history, refs = rules_document.read_history(ctx)
    plan = make_plan(history, refs, rules, ctx.clock.now_ms())
    if is_due:
        marks.commits.unmark_run(mark_id, partial(is_kept, plan))
        before_begin(SweepStart(mark, plan, rules.digest() != mark.record.rules_digest))
    run = marks.sweeps.begin(mark_id)
    latest = rules_to_expire_by(ctx)  # a hold that was set while the history was read
    if latest != rules:
        plan = make_plan(history, refs, latest, ctx.clock.now_ms())
    return SweepStart(run, plan, latest.digest() != run.record.rules_digest)


def is_kept(plan: RetentionPlan, commit: CommitId, mark: Mark) -> bool:
    """Return whether a mark takes, as a whole or at one of its prefixes, what the rules keep."""
    number = _number_of(plan, commit)
    if number is None:
        return False
    if not mark.prefixes and plan.expiry.state(number) is ExpiryState.ACTIVE:
        return True
    return any(plan.class_of(prefix).keep_levels[number] == KeepLevel.ALL for prefix in mark.prefixes or ("",))


def exclude_kept_commits(marks: Marks, start: SweepStart, excluded: LiveCommits) -> int:
    """Add to the excluded commits what today's rules keep of commits that stay marked. Return how many of the
    commits that were excluded before are active by these rules.
    """
    plan = start.plan
    if plan is None:
        return 0
    known = set(excluded.commits())
    if start.have_rules_changed:  # else the live scan kept it, by the same rules
        # of all that is marked or swept, not of this mark's commits alone: what a swept one names below a new hold may
        # have been kept for the sake of another, under another name, until now
        marked = (
            (commit, mark)
            for commit, mark in marks.commits.scan()
            if commit not in known and _number_of(plan, commit) is not None
        )
        filter_of = tree_filter_of(plan)
        while page := dict(islice(marked, PAGE)):
            for commit, record in marks.commits.read_commits(page):
                expired_prefixes = page[commit].prefixes or ("",)
                kept_filter = _filter_in_prefixes(
                    expired_prefixes, filter_of(LiveCommit(commit, record, expired_prefixes))
                )
                if kept_filter is None or any(part.keep_level != KeepLevel.NOTHING for part in kept_filter.parts):
                    excluded.add(commit, record, kept_filter)
    return sum(_is_active(plan, commit) for commit in known)


def _filter_in_prefixes(expired_prefixes: tuple[str, ...], kept_filter: TreeFilter | None) -> TreeFilter | None:
    """Return what is kept of the paths that a mark takes; no mark ever took the others."""
    if expired_prefixes == ("",):
        return kept_filter
    parts = (
        kept_filter.parts
        if kept_filter is not None
        else tuple(FilterPart(prefix, KeepLevel.ALL) for prefix in sorted(expired_prefixes, key=len))
    )
    inside = tuple(part for part in parts if part.prefix.startswith(expired_prefixes))
    return TreeFilter((FilterPart("", KeepLevel.NOTHING), *inside))


def _is_active(plan: RetentionPlan, commit: CommitId) -> bool:
    number = _number_of(plan, commit)
    return number is not None and plan.expiry.state(number) is ExpiryState.ACTIVE


def _number_of(plan: RetentionPlan, commit: CommitId) -> int | None:
    """Return the commit's number. None for what was given up: whatever the rules say, nobody can name it."""
    number = plan.expiry.history.numbers.get(commit)
    return None if number is None or plan.expiry.state(number) is ExpiryState.UNLANDED else number
