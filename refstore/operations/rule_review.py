"""Warn of rules before they act: names and filters that match nothing here, and how much expires tonight.

A mistyped branch is no error, as branches come and go; but its rule then protects nothing, and the branch that was
meant falls under the default.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core.ids import CommitId
from refstore.core.suggestions import find_nearest
from refstore.errors import CorruptRecord
from refstore.gc_marks import Marks
from refstore.operations import rule_filters, rules_document
from refstore.operations.rules_in_force import get_rules
from refstore.retention.active_commits import CommitExpiry, ExpiryState, Refs, compute_expiry
from refstore.retention.rule_changes import NO_RULES, UNREADABLE, ChangeKind, RuleChange, compare_rules
from refstore.retention.rules import BranchPeriods, Rules, rule_warnings

MARKS_PAGE: Final = 1000
NAMES_SHOWN: Final = 5


class RuleReview(NamedTuple):
    """What rules would do to the whole history."""

    changes: tuple[RuleChange, ...]
    """What the rules add, remove and change against those in force."""
    warnings: tuple[str, ...]
    unused_rules: tuple[str, ...]
    """The `branch_id` of rules that apply to no branch that is there now."""
    expired_commits: int
    """How many commits have expired by these rules, now."""
    unmarked_commits: int
    """How many of these no run has marked yet; the next run marks them."""


def review_rules(ctx: Context, rules: Rules) -> RuleReview:
    """Review rules against the whole history. Raises CorruptRecord: a part of it cannot be read."""
    history, refs = rules_document.read_history(ctx)
    return review_history(ctx, rules, compute_expiry(history, refs, rules, ctx.clock.now_ms()), refs)


def review_history(ctx: Context, rules: Rules, expiry: CommitExpiry, refs: Refs) -> RuleReview:
    """Review rules against a history that was read already."""
    expired = expiry.commits(ExpiryState.EXPIRED)
    unmarked = _count_unmarked(ctx, expired)
    unused = _find_unused(rules, refs)
    messages = [
        *rule_warnings(rules),
        *_latest_view_warnings(rules, expiry, refs),
        *_branch_warnings(rules, refs, unused),
        *_filter_warnings(ctx, rules, refs),
    ]
    if unmarked:
        messages.append(
            f"by these rules {unmarked} of {len(expiry.history)} commits expire tonight: the next collection marks them"
        )
    return RuleReview(compare_with_current(ctx, rules), tuple(messages), unused, len(expired), unmarked)


def compare_with_current(ctx: Context, rules: Rules) -> tuple[RuleChange, ...]:
    """Return what rules change against those in force."""
    try:
        in_force = get_rules(ctx)
    except CorruptRecord as error:
        unreadable = RuleChange(
            change=ChangeKind.REMOVED, subject="rules", name=UNREADABLE, before=str(error), needs_consent=True
        )
        return (unreadable,)
    return compare_rules(in_force.rules if in_force is not None else NO_RULES, rules)


def _count_unmarked(ctx: Context, commits: list[CommitId]) -> int:
    marks = Marks(ctx)
    pages = (commits[start : start + MARKS_PAGE] for start in range(0, len(commits), MARKS_PAGE))
    return sum(mark is None or bool(mark.prefixes) for page in pages for mark in marks.commits.read_marks(page))


def _find_unused(rules: Rules, refs: Refs) -> tuple[str, ...]:
    periods = BranchPeriods(rules)
    used = {periods.period_of(name).branch_id for name in refs.heads}
    return tuple(rule.branch_id for rule in rules.branches if rule.branch_id not in used)


def _latest_view_warnings(rules: Rules, expiry: CommitExpiry, refs: Refs) -> Iterator[str]:
    """Name the branches that would keep their latest view by default, where the rules lift that."""
    if rules.keeps_latest_view(uses_types=True):
        return
    history = expiry.history
    names = [
        repr(branch)
        for branch, head in sorted(refs.heads.items())
        if history.uses_types[history.number(head, f"branch {branch!r}")]
    ]
    if names:
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        yield (
            f"these branches use transaction types, and these rules do not keep their latest view: "
            f"{', '.join(names[:NAMES_SHOWN])}{more}"
        )


def _branch_warnings(rules: Rules, refs: Refs, unused: tuple[str, ...]) -> Iterator[str]:
    periods = BranchPeriods(rules)
    for name in unused:
        yield f"{name!r} is the rule of no branch that is there now{_suggest_branch(name, refs, periods)}"


def _suggest_branch(name: str, refs: Refs, periods: BranchPeriods) -> str:
    """Suggest a branch with nearly that name, with its period."""
    close = find_nearest(name, [branch for branch in refs.heads if periods.period_of(branch).branch_id != branch])
    if not close:
        return ""
    chosen = periods.period_of(close)
    days = "never expires" if chosen.days is None else f"is kept for {chosen.days} days"
    return f"; did you mean {close!r}, which by {chosen.rule} {days}?"


def _filter_warnings(ctx: Context, rules: Rules, refs: Refs) -> Iterator[str]:
    for hold in rules.legal_holds:
        if rule_filters.has_path_with_prefix(ctx, hold.prefix) is False:
            yield (
                f"the legal hold on {hold.prefix!r} matches nothing that a branch shows "
                f"now{_suggest_branch_filter(hold.prefix, refs)}"
            )
    for rule in rules.path_rules:
        prefix, branch = rule.filter.prefix, rule.filter.own_branch
        if branch and branch not in refs.heads:
            close = find_nearest(branch, refs.heads)
            hint = f"; did you mean {close!r}?" if close else ""
            yield f"the filter for branch {branch!r} matches nothing: there is no such branch{hint}"
        elif rule_filters.has_path_with_prefix(ctx, prefix, branch) is False:
            where = f"branch {branch!r} shows" if branch else "a branch shows"
            yield (
                f"the filter for prefix {prefix!r} matches nothing that {where} "
                f"now{'' if branch else _suggest_branch_filter(prefix, refs)}"
            )


def _suggest_branch_filter(prefix: str, refs: Refs) -> str:
    """Suggest a branch where the prefix may be meant as `branch/path`."""
    first, slash, rest = prefix.partition("/")
    close = find_nearest(first, refs.heads) if slash and first not in refs.heads else None
    if close is None:
        return ""
    return f"; there is no branch {first!r} either: did you mean {close + '/' + rest!r}?"
