"""Explain to people why a commit is active or not, and what the rules mean for each branch."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from refstore.core.ids import CommitId
from refstore.core.units import DAY_MS
from refstore.retention.active_commits import FOREVER_MS, CommitExpiry, ExpiryState, Refs, RetentionReason
from refstore.retention.commit_arrays import NONE, TransactionType
from refstore.retention.rules import BranchPeriods, Rules

SOON_DAYS: Final = (1, 7, 30)


class HoldReason(NamedTuple):
    """One reason that keeps a commit active, or kept it."""

    reason: RetentionReason
    name: str
    """The branch or tag; of a dangling line the commit at its tip."""
    rule: str
    until_ms: int


class BranchLine(NamedTuple):
    """A branch: its rule, and the commits on its line of first parents."""

    branch: str
    days: int | None
    rule: str
    commits: int
    active_commits: int
    """How many are active for any reason, not only by this branch."""
    expired_commits: int
    next_expires_ms: int | None
    uses_types: bool = False
    """Whether some of its commits say their transaction types."""
    keeps_latest_view: bool = False


class ExpiryTotals(NamedTuple):
    commits: int
    active_commits: int
    expired_commits: int
    unlanded_commits: int
    """How many never landed: under way, or given up."""
    dangling_commits: int
    """How many landed ones are on no branch's line."""
    next_expires_ms: int | None
    expiring_soon: dict[int, int]
    """How many expire within so many days."""
    future_dated: int
    """How many have dates in the future: their periods begin late."""
    back_dated: int
    """How many are dated before their first parents: the later of the two dates counts."""


@dataclass(frozen=True, slots=True)
class _CommitChildren:
    """The children of each commit by first parent, as linked lists."""

    first: array[int]
    next: array[int]

    @classmethod
    def from_parents(cls, first_parents: array[int]) -> _CommitChildren:
        first, following = array("i", [NONE]) * len(first_parents), array("i", [NONE]) * len(first_parents)
        for child, parent in enumerate(first_parents):
            if parent >= 0:
                following[child], first[parent] = first[parent], child
        return cls(first, following)

    def children_of(self, number: int) -> Iterator[int]:
        child = self.first[number]
        while child != NONE:
            yield child
            child = self.next[child]


def hold_reasons(expiry: CommitExpiry, refs: Refs, rules: Rules, commit: CommitId) -> list[HoldReason]:
    """Return all reasons that keep or kept a commit, the longest first. Each descendant is visited once."""
    history, periods = expiry.history, BranchPeriods(rules)
    me = history.number(commit, "the question")
    ids = history.ids()
    heads: dict[int, list[str]] = {}
    for branch, head in refs.heads.items():
        heads.setdefault(history.number(head, f"branch {branch!r}"), []).append(branch)
    reasons = [
        HoldReason(RetentionReason.TAG, tag, "pins.tags", FOREVER_MS)
        for tag, at in refs.tags.items()
        if at == commit and rules.holds_tag(tag)
    ]
    if commit in rules.pins.commits:
        reasons.append(HoldReason(RetentionReason.PIN, commit, "pins", FOREVER_MS))
    children = _CommitChildren.from_parents(array("i", history.first_parents))
    waiting = [(me, 0, True, history.created_ms[me])]
    while waiting:
        at, steps, same_view, left_ms = waiting.pop()
        is_view_kept = same_view and rules.keeps_latest_view(uses_types=bool(history.uses_types[at]))
        for branch in heads.get(at, []):
            chosen = periods.period_of(branch)
            if at == me:
                reasons.append(HoldReason(RetentionReason.HEAD, branch, "heads never expire", FOREVER_MS))
            else:
                until_ms = _period_end_ms(left_ms, chosen.period_ms)
                reasons.append(HoldReason(RetentionReason.BRANCH, branch, chosen.rule, until_ms))
            if steps < rules.keep_last:
                reasons.append(
                    HoldReason(RetentionReason.KEEP_LAST, branch, f"keep_last {rules.keep_last}", FOREVER_MS)
                )
            if is_view_kept:
                reasons.append(HoldReason(RetentionReason.LATEST_VIEW, branch, rules.latest_view_rule, FOREVER_MS))
        landed = [child for child in children.children_of(at) if expiry.reasons[child] != RetentionReason.NOTHING]
        if not landed and at not in heads and expiry.reasons[at] != RetentionReason.NOTHING:
            until_ms = _period_end_ms(left_ms, periods.default.period_ms)
            reasons.append(HoldReason(RetentionReason.DANGLING, ids[at], periods.default.rule, until_ms))
        waiting += [
            (
                child,
                steps + 1,
                same_view and history.transactions[child] != TransactionType.SNAPSHOT,
                max(history.created_ms[child], left_ms) if at == me else left_ms,
            )
            for child in landed
        ]
    return sorted(reasons, key=lambda reason: (-reason.until_ms, reason.reason, reason.name))


def branch_lines(expiry: CommitExpiry, refs: Refs, rules: Rules) -> list[BranchLine]:
    """Return the counts of every branch, in order of name. Each commit is visited once, from the roots on."""
    history, periods = expiry.history, BranchPeriods(rules)
    count, first = len(history), history.first_parents
    children = _CommitChildren.from_parents(array("i", first))
    states = expiry.states()
    depth, active, following = array("i", [0]) * count, array("i", [0]) * count, array("q", [FOREVER_MS]) * count
    waiting = [number for number in range(count) if first[number] == NONE]
    while waiting:
        me = waiting.pop()
        parent = first[me]
        is_active = states[me] == ExpiryState.ACTIVE
        depth[me] = 1 + (depth[parent] if parent >= 0 else 0)
        active[me] = is_active + (active[parent] if parent >= 0 else 0)
        following[me] = min(
            following[parent] if parent >= 0 else FOREVER_MS, expiry.expires_ms[me] if is_active else FOREVER_MS
        )
        waiting += children.children_of(me)
    branch_lines: list[BranchLine] = []
    for branch in expiry.branches:
        head = history.number(refs.heads[branch], f"branch {branch!r}")
        chosen = periods.period_of(branch)
        uses_types = bool(history.uses_types[head])
        branch_lines.append(
            BranchLine(
                branch,
                chosen.days,
                chosen.rule,
                depth[head],
                active[head],
                depth[head] - active[head],
                following[head] if following[head] != FOREVER_MS else None,
                uses_types,
                rules.keeps_latest_view(uses_types=uses_types),
            )
        )
    return branch_lines


def expiry_totals(expiry: CommitExpiry) -> ExpiryTotals:
    history, now = expiry.history, expiry.now_ms
    states = expiry.states()
    active = [
        until
        for until, state in zip(expiry.expires_ms, states, strict=True)
        if state == ExpiryState.ACTIVE and until != FOREVER_MS
    ]
    return ExpiryTotals(
        commits=len(history),
        active_commits=states.count(ExpiryState.ACTIVE),
        expired_commits=states.count(ExpiryState.EXPIRED),
        unlanded_commits=states.count(ExpiryState.UNLANDED),
        dangling_commits=sum(
            state != ExpiryState.UNLANDED and not on for state, on in zip(states, expiry.on_branch, strict=True)
        ),
        next_expires_ms=min(active, default=None),
        expiring_soon={days: sum(until <= now + days * DAY_MS for until in active) for days in SOON_DAYS},
        future_dated=sum(at > now for at in history.created_ms),
        back_dated=sum(
            parent >= 0 and history.created_ms[parent] > at
            for parent, at in zip(history.first_parents, history.created_ms, strict=True)
        ),
    )


def _period_end_ms(at_ms: int, period_ms: int | None) -> int:
    return FOREVER_MS if period_ms is None else min(at_ms + period_ms, FOREVER_MS)
