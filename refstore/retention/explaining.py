"""Why a commit is active or not, and what the rules come to on each branch: for people who ask before something is deleted."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from refstore.ids import CommitId
from refstore.retention.active import FOREVER_MS, Lives, Refs, State, Why
from refstore.retention.history import NONE
from refstore.retention.rules import DAY_MS, Periods, Rules

SOON_DAYS: Final = (1, 7, 30)


class Reason(NamedTuple):
    """One of the things that hold a commit, or held it."""

    why: Why
    name: str
    """The branch or tag; of a dangling line the commit at its tip."""
    rule: str
    until_ms: int


class Line(NamedTuple):
    """A branch: its rule, and the commits on its line of first parents."""

    branch: str
    days: int | None
    rule: str
    commits: int
    active: int
    """By whatever holds them, not by this branch alone."""
    expired: int
    next_expires_ms: int | None


class Totals(NamedTuple):
    commits: int
    active: int
    expired: int
    unlanded: int
    """Never landed: on their way, or given up."""
    dangling: int
    """Of the landed ones, those on no branch's line."""
    next_expires_ms: int | None
    soon: dict[int, int]
    """How many expire within so many days."""
    dated_ahead: int
    """Their dates have not come yet: their periods begin late."""
    dated_back: int
    """Dated before their first parents: the later of the two dates counts."""


@dataclass(frozen=True, slots=True)
class _Children:
    """By first parent."""

    first: array[int]
    next: array[int]

    @classmethod
    def of(cls, first_parents: array[int]) -> _Children:
        first, following = array("i", [NONE]) * len(first_parents), array("i", [NONE]) * len(first_parents)
        for child, parent in enumerate(first_parents):
            if parent >= 0:
                following[child], first[parent] = first[parent], child
        return cls(first, following)

    def among(self, number: int) -> Iterator[int]:
        child = self.first[number]
        while child != NONE:
            yield child
            child = self.next[child]


def reasons(lives: Lives, refs: Refs, rules: Rules, commit: CommitId) -> list[Reason]:
    """All that holds or held a commit, what lasts longest first. Looks at all that descends from it, once."""
    history, periods = lives.history, Periods(rules)
    me = history.number(commit, "the question")
    ids = history.ids()
    heads: dict[int, list[str]] = {}
    for branch, head in refs.heads.items():
        heads.setdefault(history.number(head, f"branch {branch!r}"), []).append(branch)
    found = [Reason(Why.HEAD, branch, "heads never expire", FOREVER_MS) for branch in heads.get(me, [])]
    found += [Reason(Why.TAG, tag, "pins.tags", FOREVER_MS) for tag, at in refs.tags.items() if at == commit and rules.holds_tag(tag)]
    if commit in rules.pins.commits:
        found.append(Reason(Why.PIN, commit, "pins", FOREVER_MS))
    children = _Children.of(array("i", history.first_parents))
    landed = [child for child in children.among(me) if lives.why[child] != Why.NOTHING]
    if not landed and me not in heads and lives.why[me] != Why.NOTHING:
        found.append(Reason(Why.DANGLING, commit, periods.default.rule, _after(history.created_ms[me], periods.default.period_ms)))
    found += [Reason(Why.KEEP_LAST, branch, f"keep_last {rules.keep_last}", FOREVER_MS) for branch in heads.get(me, []) if rules.keep_last]
    found += [Reason(Why.LATEST_VIEW, branch, "keep_latest_view", FOREVER_MS) for branch in heads.get(me, []) if rules.keep_latest_view]
    for child in landed:
        left_ms = max(history.created_ms[child], history.created_ms[me])
        waiting = [(child, 1, rules.keep_latest_view)]
        while waiting:
            below, steps, same_view = waiting.pop()
            same_view = same_view and not history.begins_view[below]
            for branch in heads.get(below, []):
                chosen = periods.of(branch)
                found.append(Reason(Why.BRANCH, branch, chosen.rule, _after(left_ms, chosen.period_ms)))
                if steps < rules.keep_last:
                    found.append(Reason(Why.KEEP_LAST, branch, f"keep_last {rules.keep_last}", FOREVER_MS))
                if same_view:
                    found.append(Reason(Why.LATEST_VIEW, branch, "keep_latest_view", FOREVER_MS))
            further = [(each, steps + 1, same_view) for each in children.among(below) if lives.why[each] != Why.NOTHING]
            if not further and below not in heads:
                found.append(Reason(Why.DANGLING, ids[below], periods.default.rule, _after(left_ms, periods.default.period_ms)))
            waiting += further
    return sorted(found, key=lambda reason: (-reason.until_ms, reason.why, reason.name))


def lines(lives: Lives, refs: Refs, rules: Rules) -> list[Line]:
    """Every branch, in order of name. Each commit is counted once, down from the roots, however many branches share it."""
    history, periods = lives.history, Periods(rules)
    count, first = len(history), history.first_parents
    children = _Children.of(array("i", first))
    states = lives.states()
    depth, active, following = array("i", [0]) * count, array("i", [0]) * count, array("q", [FOREVER_MS]) * count
    waiting = [number for number in range(count) if first[number] == NONE]
    while waiting:
        me = waiting.pop()
        parent = first[me]
        is_active = states[me] == State.ACTIVE
        depth[me] = 1 + (depth[parent] if parent >= 0 else 0)
        active[me] = is_active + (active[parent] if parent >= 0 else 0)
        following[me] = min(following[parent] if parent >= 0 else FOREVER_MS, lives.expires_ms[me] if is_active else FOREVER_MS)
        waiting += children.among(me)
    found: list[Line] = []
    for branch in lives.branches:
        head = history.number(refs.heads[branch], f"branch {branch!r}")
        chosen = periods.of(branch)
        expired = depth[head] - active[head]
        found.append(Line(branch, chosen.days, chosen.rule, depth[head], active[head], expired, _known(following[head])))
    return found


def totals(lives: Lives) -> Totals:
    history, now = lives.history, lives.now_ms
    states = lives.states()
    active = [until for until, state in zip(lives.expires_ms, states, strict=True) if state == State.ACTIVE and until != FOREVER_MS]
    return Totals(
        commits=len(history),
        active=states.count(State.ACTIVE),
        expired=states.count(State.EXPIRED),
        unlanded=states.count(State.UNLANDED),
        dangling=sum(state != State.UNLANDED and not on for state, on in zip(states, lives.on_branch, strict=True)),
        next_expires_ms=min(active, default=None),
        soon={days: sum(until <= now + days * DAY_MS for until in active) for days in SOON_DAYS},
        dated_ahead=sum(at > now for at in history.created_ms),
        dated_back=sum(
            parent >= 0 and history.created_ms[parent] > at for parent, at in zip(history.first_parents, history.created_ms, strict=True)
        ),
    )


def _after(at_ms: int, period_ms: int | None) -> int:
    return FOREVER_MS if period_ms is None else min(at_ms + period_ms, FOREVER_MS)


def _known(at_ms: int) -> int | None:
    return None if at_ms == FOREVER_MS else at_ms
