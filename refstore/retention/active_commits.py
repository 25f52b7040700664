"""Which commits are active, until when, and why: lakeFS's algorithm over the first parents, in one walk over all
commits.

A commit is active while it was a branch's HEAD at any time within that branch's period. It was HEAD from its own date
until the date of the commit that came next on the branch; so the first commit older than the period is active still,
and a HEAD always is. Where clocks went backwards the later of the two dates counts: what was made within the period is
active, whatever the next commit's date says.

A commit's next one is a child by first parent; these links form trees. Each commit is visited once, after its children,
and gets from each child the longest period among the branches that the child is on.

A dangling commit is on no branch's first-parent line. It is treated as if a child of the same date were a HEAD under
the default period.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from refstore.core.ids import CommitId
from refstore.core.units import DAY_MS
from refstore.errors import CorruptRecord
from refstore.retention.commit_arrays import NONE, CommitHistory, TransactionType
from refstore.retention.rules import BranchPeriods, Rules

FOREVER_MS: Final = 2**63 - 1
"""The expiry of a commit that never expires, as long as nothing changes."""
_NO_BRANCH: Final = 2**31 - 1
"""The holder of a dangling line's period; sorts after every branch."""

_UNKNOWN: Final = -2
_NONE: Final = -1
"""The period of an ignored branch, which holds nothing: shorter than zero days."""


class RetentionReason(IntEnum):
    """What keeps a commit active longest; of several reasons without end, the first of these."""

    NOTHING = 0
    """The commit never landed: its commit operation is under way, or was given up. See `ExpiryState.UNLANDED`."""
    HEAD = 1
    TAG = 2
    PIN = 3
    KEEP_LAST = 4
    BRANCH = 5
    """It was a branch's HEAD; the branch's period counts from when it was last."""
    DANGLING = 6
    """Likewise on a line that has no branch any more, under the default period."""
    LATEST_VIEW = 7
    """It is part of what a branch's latest view was made of (`Rules.keeps_latest_view`)."""


class ExpiryState(IntEnum):
    EXPIRED = 0
    ACTIVE = 1
    UNLANDED = 2
    """A job may treat it as expired only if it has not landed after every operation under way has ended."""


@dataclass(frozen=True, slots=True)
class Refs:
    """Branches and tags, read after the commits, so that no head's history is newer than the commits read."""

    heads: Mapping[str, CommitId]
    tags: Mapping[str, CommitId]


@dataclass(frozen=True, slots=True)
class CommitExpiry:
    """Until when each commit is active, and why; sequences are indexed by the commit's number in `history`."""

    history: CommitHistory
    now_ms: int
    expires_ms: Sequence[int]
    """The first moment at which the commit is not active any more, if nothing changes until then; FOREVER_MS: never."""
    reasons: Sequence[int]
    """`RetentionReason`: the reason that keeps it until `expires_ms`."""
    holders: Sequence[int]
    """The index in `branches` of the branch that keeps it; NONE: no branch."""
    branches: Sequence[str]
    on_branch: bytearray
    """Whether the commit is on some branch's first-parent line."""
    retained_by: bytearray
    """All reasons that keep it for ever: bits `1 << RetentionReason`, of HEAD, TAG, PIN, KEEP_LAST, LATEST_VIEW."""

    def state(self, number: int) -> ExpiryState:
        if self.reasons[number] == RetentionReason.NOTHING:
            return ExpiryState.UNLANDED
        return ExpiryState.ACTIVE if self.expires_ms[number] > self.now_ms else ExpiryState.EXPIRED

    def states(self) -> bytearray:
        """Return the `ExpiryState` of all commits, by number."""
        now, nothing = self.now_ms, RetentionReason.NOTHING
        return bytearray(
            2 if why == nothing else expires > now  # UNLANDED, ACTIVE, EXPIRED
            for why, expires in zip(self.reasons, self.expires_ms, strict=True)
        )

    def commits(self, state: ExpiryState) -> list[CommitId]:
        states = self.states()
        return [commit for commit, number in self.history.numbers.items() if states[number] == state]


DaysLimit = Callable[[str | None], int | None]
"""Returns the longest period allowed for a branch, or for lines without one (called with None); None: no limit."""


def compute_expiry(
    history: CommitHistory,
    refs: Refs,
    rules: Rules,
    now_ms: int,
    *,
    most_days: DaysLimit = lambda _branch: None,
    ignored_branches: Set[str | None] = frozenset(),
) -> CommitExpiry:
    """Compute until when each commit is active. Raises CorruptRecord: a commit is missing, or descends from itself.

    `most_days` caps the period of a branch, as path rules do. `ignored_branches` hold nothing: neither by their period,
    nor as their head, nor as their latest view (None: lines without a branch). What is active then, others hold.
    """
    count, first, created = len(history), history.first_parents, history.created_ms
    branches = sorted(refs.heads)
    periods = BranchPeriods(rules)
    period = array("q", [_UNKNOWN]) * count
    """The longest period among the branches that the commit is on; _UNKNOWN: no branch and no dangling line has it."""
    holder = array("i", [_NO_BRANCH]) * count
    """The branch with that period; of several the first by name, so that the order of reading does not matter."""
    keep = array("i", [0]) * count
    viewed = bytearray(count)
    """Whether the commit is in the latest view of some branch."""
    on_branch, landed = bytearray(count), bytearray(history.landed_flags)
    expires = array("q", [-FOREVER_MS]) * count
    why, retained_by = bytearray(count), bytearray(count)
    holders = array("i", [NONE]) * count

    def retain_forever(number: int, reason: RetentionReason, branch: int = NONE) -> None:
        landed[number] = 1
        retained_by[number] |= 1 << reason
        if expires[number] != FOREVER_MS or reason < why[number]:
            expires[number], why[number], holders[number] = FOREVER_MS, reason, branch

    def period_end(left_ms: int, period_ms: int) -> int:
        """Return when a period ends that began then. An ignored branch's period is over, even if it begins later."""
        return min(left_ms, now_ms) if period_ms == _NONE else _period_end_ms(left_ms, period_ms)

    for index, branch in enumerate(branches):
        head = history.number(refs.heads[branch], f"branch {branch!r}")
        on_branch[head] = landed[head] = 1
        if branch in ignored_branches:
            _keep_longer(expires, why, holders, head, period_end(created[head], _NONE), RetentionReason.BRANCH, index)
        else:
            retain_forever(head, RetentionReason.HEAD, index)
        own = (
            _NONE
            if branch in ignored_branches
            else _limit_period(periods.period_of(branch).period_ms, most_days(branch))
        )
        if own > period[head]:
            period[head], holder[head] = own, index
        keep[head] = rules.keep_last
        viewed[head] = (
            rules.keeps_latest_view(uses_types=bool(history.uses_types[head])) and branch not in ignored_branches
        )
    for tag, commit in refs.tags.items():
        if rules.holds_tag(tag):
            retain_forever(history.number(commit, f"tag {tag!r}"), RetentionReason.TAG)
    for commit in rules.pins.commits:
        retain_forever(history.number(CommitId(commit), "a pin of the retention rules"), RetentionReason.PIN)
    default = _NONE if None in ignored_branches else _limit_period(periods.default.period_ms, most_days(None))

    waiting = array("i", [0]) * count
    for parent in first:
        if parent >= 0:
            waiting[parent] += 1
    ready = [number for number in range(count) if not waiting[number]]
    visited = 0
    while ready:
        child = ready.pop()
        visited += 1
        parent = first[child]
        if landed[child]:
            if period[child] == _UNKNOWN:  # no branch and no dangling line has it: it is the tip of a dangling line
                period[child] = default
                _keep_longer(
                    expires, why, holders, child, period_end(created[child], default), RetentionReason.DANGLING, NONE
                )
            if keep[child]:
                retain_forever(child, RetentionReason.KEEP_LAST)
            if viewed[child]:
                retain_forever(child, RetentionReason.LATEST_VIEW)
            if parent >= 0:
                viewed[parent] |= viewed[child] and history.transactions[child] != TransactionType.SNAPSHOT
                landed[parent] = 1
                on_branch[parent] |= on_branch[child]
                keep[parent] = max(keep[parent], keep[child] - 1)
                until = period_end(max(created[child], created[parent]), period[child])
                if holder[child] == _NO_BRANCH:
                    _keep_longer(expires, why, holders, parent, until, RetentionReason.DANGLING, NONE)
                else:
                    _keep_longer(expires, why, holders, parent, until, RetentionReason.BRANCH, holder[child])
                if period[child] > period[parent] or (
                    period[child] == period[parent] and holder[child] < holder[parent]
                ):
                    period[parent], holder[parent] = period[child], holder[child]
        if parent >= 0:
            waiting[parent] -= 1
            if not waiting[parent]:
                ready.append(parent)
    if visited != count:
        raise CorruptRecord(
            f"{count - visited} commits descend from themselves; restore the commit records from a backup before "
            "anything expires"
        )
    for number in range(count):
        if why[number] == RetentionReason.NOTHING:
            expires[number] = FOREVER_MS  # a caller that checks only the time must not treat it as expired
    return CommitExpiry(history, now_ms, expires, why, holders, branches, on_branch, retained_by)


def _limit_period(period_ms: int | None, most_days: int | None) -> int:
    own = FOREVER_MS if period_ms is None else period_ms
    return own if most_days is None else min(own, most_days * DAY_MS)


def _period_end_ms(at_ms: int, period_ms: int) -> int:
    """Return when a period ends; FOREVER_MS for one without end."""
    return FOREVER_MS if period_ms == FOREVER_MS else min(at_ms + period_ms, FOREVER_MS)


def _keep_longer(
    expires: array[int],
    why: bytearray,
    holders: array[int],
    number: int,
    until_ms: int,
    reason: RetentionReason,
    branch: int,
) -> None:
    """Record a reason if it keeps the commit longer than the known one, or as long and sorts before it."""
    known_ms = expires[number]
    if until_ms > known_ms or (until_ms == known_ms and (reason, branch) < (why[number], holders[number])):
        expires[number], why[number], holders[number] = until_ms, reason, branch
