"""Which commits are active, until when, and why: lakeFS's algorithm over the first parents, in one walk over all commits.

A commit is active while it was a branch's HEAD at any time within that branch's period. It was HEAD from its own date until the date of
the commit that came next on the branch; so the first commit older than the period is active still, and a HEAD always is. Where clocks
went backwards the later of the two dates counts: what was made within the period is active, whatever the next commit's date says.

A commit's next one is a child by first parent; those make trees. What a commit owes to its descendants comes up to it from its
children, each visited once: the longest period among the branches that the child is on.

Dangling (on no branch's first-parent line): as if a child of the same date were a HEAD under the default period.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from refstore.errors import CorruptRecord
from refstore.ids import CommitId
from refstore.retention.history import NONE, History
from refstore.retention.rules import DAY_MS, Periods, Rules

FOREVER_MS: Final = 2**63 - 1
"""A time that does not come, as long as nothing changes."""
_NO_BRANCH: Final = 2**31 - 1
"""The holder of a dangling line's period; sorts behind every branch."""

_UNKNOWN: Final = -2
_NONE: Final = -1
"""The period of a branch that is asked to hold nothing: shorter than one of no days."""


class Why(IntEnum):
    """What holds a commit longest; of several that hold it for ever, the first of these."""

    NOTHING = 0
    """It never landed: it is on its way, or was given up. Neither active nor expired; see `State`."""
    HEAD = 1
    TAG = 2
    PIN = 3
    KEEP_LAST = 4
    BRANCH = 5
    """It was a branch's HEAD, and the branch's period is counted from when it was so last."""
    DANGLING = 6
    """Likewise on a line that has no branch any more, under the default period."""
    LATEST_VIEW = 7
    """It is part of what a branch's latest view was made of (`keep_latest_view`)."""


class State(IntEnum):
    EXPIRED = 0
    ACTIVE = 1
    UNLANDED = 2
    """A job may take it for expired only if it still has not landed when every operation that was under way is over."""


@dataclass(frozen=True, slots=True)
class Refs:
    """What names commits: read after the commits, so that no head's history is newer than what was read."""

    heads: Mapping[str, CommitId]
    tags: Mapping[str, CommitId]


@dataclass(frozen=True, slots=True)
class Lives:
    """By number of `history`."""

    history: History
    now_ms: int
    expires_ms: Sequence[int]
    """The first moment at which it is not active any more, if nothing changes until then; FOREVER_MS: none."""
    why: Sequence[int]
    """`Why`: what holds it until `expires_ms`."""
    holder: Sequence[int]
    """The number of the branch that does, in `branches`; NONE: no branch."""
    branches: Sequence[str]
    on_branch: bytearray
    """Whether it is on some branch's first-parent line."""
    holds: bytearray
    """All that hold it for ever, not only the first: a bit `1 << Why` for each of HEAD, TAG, PIN, KEEP_LAST,
    LATEST_VIEW."""

    def state(self, number: int) -> State:
        if self.why[number] == Why.NOTHING:
            return State.UNLANDED
        return State.ACTIVE if self.expires_ms[number] > self.now_ms else State.EXPIRED

    def states(self) -> bytearray:
        """`State` of all, by number."""
        now, nothing = self.now_ms, Why.NOTHING
        return bytearray(
            2 if why == nothing else expires > now  # UNLANDED, ACTIVE, EXPIRED
            for why, expires in zip(self.why, self.expires_ms, strict=True)
        )

    def commits(self, state: State) -> list[CommitId]:
        states = self.states()
        return [commit for commit, number in self.history.numbers.items() if states[number] == state]


MostDays = Callable[[str | None], int | None]
"""The longest that a branch's period may be, or (asked with None) that of a line without a branch; None: as long as it is."""


def lives(
    history: History,
    refs: Refs,
    rules: Rules,
    now_ms: int,
    *,
    most_days: MostDays = lambda _branch: None,
    but_for: Set[str | None] = frozenset(),
) -> Lives:
    """Until when each commit is active. Raises CorruptRecord: a name without its commit, or a loop in the history.

    `most_days`: what path rules cut periods to. `but_for`: branches (None: lines without one) that are asked to hold nothing, neither by
    their period, as their head nor as their latest view: what is active then, others hold.
    """
    count, first, created = len(history), history.first_parents, history.created_ms
    branches = sorted(refs.heads)
    periods = Periods(rules)
    period = array("q", [_UNKNOWN]) * count
    """The longest period among the branches that it is on; _UNKNOWN: it is on none, and no dangling line was met below it."""
    holder = array("i", [_NO_BRANCH]) * count
    """Whose that is; of several branches with one period the first by name, so that it is the same however commits were read."""
    keep = array("i", [0]) * count
    viewed = bytearray(count)
    """Whether it is in the latest view of some branch."""
    on_branch, landed = bytearray(count), bytearray(history.landed)
    expires = array("q", [-FOREVER_MS]) * count
    why, holds = bytearray(count), bytearray(count)
    held_by = array("i", [NONE]) * count

    def hold(number: int, reason: Why, branch: int = NONE) -> None:
        landed[number] = 1
        holds[number] |= 1 << reason
        if expires[number] != FOREVER_MS or reason < why[number]:
            expires[number], why[number], held_by[number] = FOREVER_MS, reason, branch

    def ends(left_ms: int, period_ms: int) -> int:
        """When a period is over that began then. Where nothing is held it is over, however far ahead that is dated."""
        return min(left_ms, now_ms) if period_ms == _NONE else _after(left_ms, period_ms)

    for at, branch in enumerate(branches):
        head = history.number(refs.heads[branch], f"branch {branch!r}")
        on_branch[head] = landed[head] = 1
        if branch in but_for:
            _longer(expires, why, held_by, head, ends(created[head], _NONE), Why.BRANCH, at)
        else:
            hold(head, Why.HEAD, at)
        own = _NONE if branch in but_for else _shorter(periods.of(branch).period_ms, most_days(branch))
        if own > period[head]:
            period[head], holder[head] = own, at
        keep[head] = rules.keep_last
        viewed[head] = rules.keep_latest_view and branch not in but_for
    for tag, commit in refs.tags.items():
        if rules.holds_tag(tag):
            hold(history.number(commit, f"tag {tag!r}"), Why.TAG)
    for commit in rules.pins.commits:
        hold(history.number(CommitId(commit), "a pin of the retention rules"), Why.PIN)
    default = _NONE if None in but_for else _shorter(periods.default.period_ms, most_days(None))

    waiting = array("i", [0]) * count
    for parent in first:
        if parent >= 0:
            waiting[parent] += 1
    ready = [number for number in range(count) if not waiting[number]]
    done = 0
    while ready:
        me = ready.pop()
        done += 1
        parent = first[me]
        if landed[me]:
            if period[me] == _UNKNOWN:  # no branch and no dangling line goes through it: it is the tip of one
                period[me] = default
                _longer(expires, why, held_by, me, ends(created[me], default), Why.DANGLING, NONE)
            if keep[me]:
                hold(me, Why.KEEP_LAST)
            if viewed[me]:
                hold(me, Why.LATEST_VIEW)
            if parent >= 0:
                viewed[parent] |= viewed[me] and not history.begins_view[me]
                landed[parent] = 1
                on_branch[parent] |= on_branch[me]
                keep[parent] = max(keep[parent], keep[me] - 1)
                until = ends(max(created[me], created[parent]), period[me])
                if holder[me] == _NO_BRANCH:
                    _longer(expires, why, held_by, parent, until, Why.DANGLING, NONE)
                else:
                    _longer(expires, why, held_by, parent, until, Why.BRANCH, holder[me])
                if period[me] > period[parent] or (period[me] == period[parent] and holder[me] < holder[parent]):
                    period[parent], holder[parent] = period[me], holder[me]
        if parent >= 0:
            waiting[parent] -= 1
            if not waiting[parent]:
                ready.append(parent)
    if done != count:
        raise CorruptRecord(
            f"{count - done} commits descend from themselves; restore the commit records from a backup before anything expires"
        )
    for number in range(count):
        if why[number] == Why.NOTHING:
            expires[number] = FOREVER_MS  # who looks only at the time must not take it for expired
    return Lives(history, now_ms, expires, why, held_by, branches, on_branch, holds)


def _shorter(period_ms: int | None, most_days: int | None) -> int:
    own = FOREVER_MS if period_ms is None else period_ms
    return own if most_days is None else min(own, most_days * DAY_MS)


def _after(at_ms: int, period_ms: int) -> int:
    """The end of a period; one without end has none."""
    return FOREVER_MS if period_ms == FOREVER_MS else min(at_ms + period_ms, FOREVER_MS)


def _longer(expires: array[int], why: bytearray, held_by: array[int], number: int, until_ms: int, reason: Why, branch: int) -> None:
    """Note what holds a commit, if it holds it longer than what was known, or as long and is named before it."""
    known = expires[number]
    if until_ms > known or (until_ms == known and (reason, branch) < (why[number], held_by[number])):
        expires[number], why[number], held_by[number] = until_ms, reason, branch
