"""What path rules and legal holds change: an active commit loses some paths, or an expired one keeps some.

Paths fall into classes by prefix, and the longest prefix decides. Below a legal hold every class is on hold. Path rules
never take from a commit that a tag, a pin or `keep_last` holds. They take from a branch's HEAD only by `all`, and only
with `allow_deletion_from_latest_view`.

The promise that every unmarked commit keeps what it names (rule 13 of the protocol) is broken by a path rule that acts
on an active commit: a copy made from it at such a path would name what is about to go.
`RetentionPlan.partly_expired_commits` says which commits and prefixes must refuse that first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from refstore.core.ids import CommitId
from refstore.core.units import DAY_MS
from refstore.retention.active_commits import CommitExpiry, ExpiryState, Refs, RetentionReason, compute_expiry
from refstore.retention.commit_arrays import CommitHistory
from refstore.retention.rules import Rules


class KeepLevel(IntEnum):
    """What a commit keeps of its entries at the paths of a class."""

    NOTHING = 0
    YOUNG = 1
    """It keeps entries of objects that were made at `PathClass.made_from_ms` or later."""
    ALL = 2


@dataclass(frozen=True, slots=True)
class PathClass:
    prefix: str
    """The class has the paths that start with this, but with no longer prefix of another class."""
    on_hold: bool
    """Whether a legal hold keeps what any commit names here."""
    keep_levels: bytes
    """`KeepLevel` of each commit, by its number. A commit that did not land keeps all, because it still may land."""
    made_from_ms: int | None
    has_path_rule: bool
    """Whether a path rule acts on what was committed here."""


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What stays and what may go, by the rules alone."""

    expiry: CommitExpiry
    classes: tuple[PathClass, ...]
    """The longest prefix first; the last is '', that of all other paths."""

    def class_of(self, path: str) -> PathClass:
        return next(each for each in self.classes if path.startswith(each.prefix))

    def partly_expired_commits(self) -> Iterator[tuple[CommitId, tuple[str, ...]]]:
        """Yield the active commits that do not keep all their entries, with the prefixes where they do not."""
        narrow = [each for each in self.classes if each.has_path_rule]
        if not narrow:
            return
        states = self.expiry.states()
        for commit, number in self.expiry.history.numbers.items():
            if states[number] == ExpiryState.ACTIVE:
                prefixes = tuple(each.prefix for each in narrow if each.keep_levels[number] != KeepLevel.ALL)
                if prefixes:
                    yield commit, prefixes


_HELD_CLASS: Final = 1 << RetentionReason.TAG | 1 << RetentionReason.PIN | 1 << RetentionReason.KEEP_LAST


def make_plan(history: CommitHistory, refs: Refs, rules: Rules, now_ms: int) -> RetentionPlan:
    """Compute what each commit keeps, by class of paths. Raises CorruptRecord."""
    general = compute_expiry(history, refs, rules, now_ms)
    classes: list[PathClass] = []
    for prefix in sorted(
        {"", *(hold.prefix for hold in rules.legal_holds), *(rule.filter.prefix for rule in rules.path_rules)}, key=len
    ):
        on_hold = any(prefix.startswith(hold.prefix) for hold in rules.legal_holds)
        classes.append(_make_class(general, refs, rules, prefix, on_hold=on_hold))
    return RetentionPlan(general, tuple(reversed(classes)))


def uncommitted_expiry_ms(rules: Rules, branch: str, path: str, now_ms: int) -> int | None:
    """Return the time before which staged objects at the path have expired, by the shorter of `uncommitted` and `all`.

    None: none expire.
    """
    if any(path.startswith(hold.prefix) for hold in rules.legal_holds):
        return None
    rule = rules.path_rule(path, branch)
    kinds = (rule.expiration.uncommitted, rule.expiration.all) if rule is not None else ()
    return _days_ago(now_ms, min((period.total_days for period in kinds if period is not None), default=None))


@dataclass(frozen=True, slots=True)
class LatestViewRule:
    """What one `all` rule lets expire of one branch's head."""

    prefix: str
    days: int
    made_before_ms: int
    excluded_prefixes: tuple[str, ...]
    """Longer prefixes, which other rules or legal holds decide about."""

    def expires(self, path: str, made_ms: int | None) -> bool:
        """Return whether an entry at a path expires. If its address does not tell when it was made, it stays."""
        return (
            made_ms is not None
            and made_ms < self.made_before_ms
            and path.startswith(self.prefix)
            and not path.startswith(self.excluded_prefixes)
        )


def latest_view_rules(rules: Rules, branch: str, now_ms: int) -> Iterator[LatestViewRule]:
    """Yield what may expire of a branch's head, if no tag and no pin holds it."""
    if not rules.allow_deletion_from_latest_view or rules.keep_last:
        return
    holds = [hold.prefix for hold in rules.legal_holds]
    own = [rule for rule in rules.path_rules if rule.filter.covers(branch)]
    prefixes = {*holds, *(rule.filter.prefix for rule in own)}
    for rule in own:
        prefix, period = rule.filter.prefix, rule.expiration.all
        if period is not None and rules.path_rule(prefix, branch) == rule and not prefix.startswith(tuple(holds)):
            others = tuple(sorted(other for other in prefixes if other != prefix and other.startswith(prefix)))
            yield LatestViewRule(prefix, period.total_days, now_ms - period.total_days * DAY_MS, others)


def _make_class(general: CommitExpiry, refs: Refs, rules: Rules, prefix: str, *, on_hold: bool) -> PathClass:
    """Compute what each commit keeps at the paths of a class.

    Of several branches the one that keeps a commit longest decides, so a rule of one branch takes nothing that another
    branch holds. If several have `all`, the longest of their periods decides for all.
    """
    if on_hold:
        return PathClass(prefix, True, bytes([KeepLevel.ALL]) * len(general.history), None, False)
    expirations = {
        branch: rule.expiration
        for branch in (*refs.heads, None)
        if (rule := rules.path_rule(prefix, branch)) is not None
    }
    capped = {branch: each.noncurrent.total_days for branch, each in expirations.items() if each.noncurrent is not None}
    aged = {branch: each.all.total_days for branch, each in expirations.items() if each.all is not None}
    own = compute_expiry(general.history, refs, rules, general.now_ms, most_days=capped.get) if capped else general
    states = own.states()
    if not aged:
        return PathClass(
            prefix,
            False,
            bytes(KeepLevel.NOTHING if state == ExpiryState.EXPIRED else KeepLevel.ALL for state in states),
            None,
            bool(capped),
        )
    others = compute_expiry(
        general.history, refs, rules, general.now_ms, most_days=capped.get, ignored_branches=aged.keys()
    ).states()
    always = (
        _HELD_CLASS
        if rules.allow_deletion_from_latest_view
        else _HELD_CLASS | 1 << RetentionReason.HEAD | 1 << RetentionReason.LATEST_VIEW
    )
    keeps = bytes(
        KeepLevel.NOTHING
        if state == ExpiryState.EXPIRED
        else KeepLevel.YOUNG
        if state == ExpiryState.ACTIVE and other != ExpiryState.ACTIVE and not holds & always
        else KeepLevel.ALL
        for state, other, holds in zip(states, others, own.retained_by, strict=True)
    )
    return PathClass(prefix, False, keeps, _days_ago(general.now_ms, max(aged.values())), has_path_rule=True)


def _days_ago(now_ms: int, days: int | None) -> int | None:
    return None if days is None else now_ms - days * DAY_MS
