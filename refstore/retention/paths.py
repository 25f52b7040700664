"""What path rules and legal holds change: for some paths a commit keeps less than all, or an expired one keeps what it named.

Paths fall into classes by prefix, the longest prefix deciding; below a legal hold every class is held. Path rules only ever take away
from what a commit keeps, and never from one that a tag, a pin or `keep_last` holds; from a branch's HEAD only by `all`, and only if
`allow_deletion_from_latest_view` says so.

The promise that every unmarked commit keeps what it names (rule 13 of the protocol) is broken by a path rule that acts on an active
commit: a copy made from it at such a path would name what is about to go. `Plan.partly` says which commits and prefixes must refuse that
first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from refstore.ids import CommitId
from refstore.retention.active import Lives, Refs, State, Why, lives
from refstore.retention.history import History
from refstore.retention.rules import DAY_MS, Rules


class Keeps(IntEnum):
    """What a commit keeps of its entries at the paths of a class."""

    NOTHING = 0
    YOUNG = 1
    """Those of objects that were made at `PathClass.made_from_ms` or later."""
    ALL = 2


@dataclass(frozen=True, slots=True)
class PathClass:
    prefix: str
    """Of the paths that start with it, those that start with no longer prefix of another class."""
    held: bool
    """A legal hold: what any commit names stays."""
    keeps: bytes
    """`Keeps` of each commit, by its number. A commit that did not land keeps all: it may be on its way."""
    made_from_ms: int | None
    narrows: bool
    """Whether a path rule acts on what was committed here."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What stays and what may go, by the rules alone."""

    lives: Lives
    classes: tuple[PathClass, ...]
    """The longest prefix first; the last is '', that of all other paths."""

    def class_of(self, path: str) -> PathClass:
        return next(each for each in self.classes if path.startswith(each.prefix))

    def keeps(self, number: int, path: str, made_ms: int) -> bool:
        """Whether a commit's entry keeps its object: what any faster way of asking must agree with."""
        found = self.class_of(path)
        kept = found.keeps[number]
        return kept == Keeps.ALL or (kept == Keeps.YOUNG and found.made_from_ms is not None and made_ms >= found.made_from_ms)

    def partly(self) -> Iterator[tuple[CommitId, tuple[str, ...]]]:
        """The active commits that do not keep all that they name, each with the prefixes where they do not."""
        narrow = [each for each in self.classes if each.narrows]
        if not narrow:
            return
        states = self.lives.states()
        for commit, number in self.lives.history.numbers.items():
            if states[number] == State.ACTIVE:
                prefixes = tuple(each.prefix for each in narrow if each.keeps[number] != Keeps.ALL)
                if prefixes:
                    yield commit, prefixes


_HELD: Final = 1 << Why.TAG | 1 << Why.PIN | 1 << Why.KEEP_LAST


def plan(history: History, refs: Refs, rules: Rules, now_ms: int) -> Plan:
    """Raises CorruptRecord, as `lives` does."""
    general = lives(history, refs, rules, now_ms)
    found: list[PathClass] = []
    for prefix in sorted({"", *(hold.prefix for hold in rules.legal_holds), *(rule.filter.prefix for rule in rules.path_rules)}, key=len):
        held = any(prefix.startswith(hold.prefix) for hold in rules.legal_holds)
        found.append(_class(general, refs, rules, prefix, held=held))
    return Plan(general, tuple(reversed(found)))


def uncommitted_before(rules: Rules, branch: str, path: str, now_ms: int) -> int | None:
    """What was staged on a branch at a path before that time has expired, by the shorter of `uncommitted` and `all`; None: nothing has."""
    if any(path.startswith(hold.prefix) for hold in rules.legal_holds):
        return None
    rule = rules.path_rule(path, branch)
    kinds = (rule.expiration.uncommitted, rule.expiration.all) if rule is not None else ()
    return _ago(now_ms, min((period.total_days for period in kinds if period is not None), default=None))


@dataclass(frozen=True, slots=True)
class Outdated:
    """What one rule lets expire of what one branch shows now."""

    prefix: str
    days: int
    made_before_ms: int
    but_for: tuple[str, ...]
    """Longer prefixes, of which others decide: rules and legal holds."""

    def has(self, path: str, made_ms: int | None) -> bool:
        """Whether an entry at a path goes. One whose object does not say when it was made stays."""
        return made_ms is not None and made_ms < self.made_before_ms and path.startswith(self.prefix) and not path.startswith(self.but_for)


def latest_view(rules: Rules, branch: str, now_ms: int) -> Iterator[Outdated]:
    """What may go of a branch's head, if no tag and no pin holds it."""
    if not rules.allow_deletion_from_latest_view or rules.keep_last:
        return
    holds = [hold.prefix for hold in rules.legal_holds]
    own = [rule for rule in rules.path_rules if rule.filter.covers(branch)]
    prefixes = {*holds, *(rule.filter.prefix for rule in own)}
    for rule in own:
        prefix, period = rule.filter.prefix, rule.expiration.all
        if period is not None and rules.path_rule(prefix, branch) == rule and not prefix.startswith(tuple(holds)):
            others = tuple(sorted(other for other in prefixes if other != prefix and other.startswith(prefix)))
            yield Outdated(prefix, period.total_days, now_ms - period.total_days * DAY_MS, others)


def _class(general: Lives, refs: Refs, rules: Rules, prefix: str, *, held: bool) -> PathClass:
    """Of several branches the one that keeps it longest decides, here as everywhere: so a rule of one branch takes nothing that another
    branch holds, and where several have `all`, what is young by the longest of their periods is kept for all of them."""
    if held:
        return PathClass(prefix, True, bytes([Keeps.ALL]) * len(general.history), None, False)
    expirations = {branch: rule.expiration for branch in (*refs.heads, None) if (rule := rules.path_rule(prefix, branch)) is not None}
    capped = {branch: each.noncurrent.total_days for branch, each in expirations.items() if each.noncurrent is not None}
    aged = {branch: each.all.total_days for branch, each in expirations.items() if each.all is not None}
    own = lives(general.history, refs, rules, general.now_ms, most_days=capped.get) if capped else general
    states = own.states()
    if not aged:
        return PathClass(
            prefix, False, bytes(Keeps.NOTHING if state == State.EXPIRED else Keeps.ALL for state in states), None, bool(capped)
        )
    others = lives(general.history, refs, rules, general.now_ms, most_days=capped.get, but_for=aged.keys()).states()
    always = _HELD if rules.allow_deletion_from_latest_view else _HELD | 1 << Why.HEAD | 1 << Why.LATEST_VIEW
    keeps = bytes(
        Keeps.NOTHING
        if state == State.EXPIRED
        else Keeps.YOUNG
        if state == State.ACTIVE and other != State.ACTIVE and not holds & always
        else Keeps.ALL
        for state, other, holds in zip(states, others, own.holds, strict=True)
    )
    return PathClass(prefix, False, keeps, _ago(general.now_ms, max(aged.values())), narrows=True)


def _ago(now_ms: int, days: int | None) -> int | None:
    return None if days is None else now_ms - days * DAY_MS
