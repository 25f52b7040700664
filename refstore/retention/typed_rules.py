"""The rules document as applications write it: `refstore.Retention`, whose periods are of type `timedelta`.

`rules.py` has the same document as JSON has it, in whole days; jobs work with that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from refstore.errors import InvalidRules
from refstore.retention.rules import (
    DAYS_MAX,
    BranchRule,
    Expiration,
    LegalHold,
    PathRule,
    PathRuleFilter,
    Pins,
    RulePeriod,
    Rules,
    check_rules,
    read_rules,
    render_rules,
)

DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRetention:
    """How long the objects below a prefix stay. Give at least one period; the longest prefix of a path decides."""

    prefix: str = ""
    branch: str = ""
    """Only what is committed or staged on this branch; '' or '*': on all. With '', a prefix that begins with a branch's
    name is taken for `branch/path`, as lakeFS writes it."""
    all: timedelta | None = None
    """How long after the object was made."""
    noncurrent: timedelta | None = None
    """How long after the last branch head that named the object."""
    uncommitted: timedelta | None = None
    """How long after the object was staged, if it was not committed."""
    is_enabled: bool = True
    description: str = ""
    """For people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long committed data stays (`docs/retention.md`). What is not given keeps data. Periods are whole days;
    `timedelta.max` is for ever. Raises InvalidRules, as `from_json` does, with the place in the JSON document.

        Retention(default=timedelta(days=30), branches={"main": timedelta(days=90), "release/*": timedelta.max})
    """

    default: timedelta | None = None
    """For branches that `branches` does not name, and for commits that are on no branch. None: those never expire."""
    branches: Mapping[str, timedelta] = field(default_factory=dict[str, timedelta])
    """By a branch's name, or a glob over names."""
    keep_last: int = 0
    """How many commits of each branch never expire, whatever their age; a branch's head never does."""
    keep_latest_view: bool | None = None
    """Whether to keep each branch's commits back to the latest one that begins a view. None: of branches that use
    transaction types."""
    grace: timedelta = timedelta(days=7)
    """Between the mark and the sweep of what has expired; at most a year."""
    pins: Pins = field(default_factory=Pins)
    """Tags and commits that never expire."""
    legal_holds: Sequence[LegalHold] = ()
    """Prefixes below which everything stays that was ever committed, whatever the other rules say."""
    paths: Sequence[PathRetention] = ()
    allow_deletion_from_latest_view: bool = False
    """Whether `PathRetention.all` may take what a branch's head names: data that is in use."""
    hide_marked: bool = False
    """Whether marked commits are hidden from the mark on, instead of only after their sweep."""
    description: str = ""
    """For people."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "branches", dict(self.branches))
        object.__setattr__(self, "legal_holds", tuple(self.legal_holds))
        object.__setattr__(self, "paths", tuple(self.paths))
        check_rules(self.to_rules())

    @staticmethod
    def from_json(text: str) -> Retention:
        """Read a document. Raises InvalidRules with the place and the reason."""
        return Retention.from_rules(read_rules(text).rules)

    def to_json(self) -> str:
        """Return the document as people read it."""
        return render_rules(self.to_rules())

    @staticmethod
    def from_rules(rules: Rules) -> Retention:
        """Return the rules that a job works with as an application reads them."""
        return Retention(
            default=_to_period(rules.default_retention_days),
            branches={rule.branch_id: _to_timedelta(rule.retention_days) for rule in rules.branches},
            keep_last=rules.keep_last,
            keep_latest_view=rules.keep_latest_view,
            grace=_to_timedelta(rules.grace_days),
            pins=rules.pins,
            legal_holds=rules.legal_holds,
            paths=[_read_path_rule(rule) for rule in rules.rules],
            allow_deletion_from_latest_view=rules.allow_deletion_from_latest_view,
            hide_marked=rules.hide_marked,
            description=rules.description,
        )

    def to_rules(self) -> Rules:
        """Return the rules as a job works with them. Raises InvalidRules for a period that is not in whole days."""
        return Rules(
            default_retention_days=None if self.default is None else _to_days(self.default, "default_retention_days"),
            branches=tuple(
                BranchRule(name, _to_days(period, f"branches[{index}].retention_days"))
                for index, (name, period) in enumerate(self.branches.items())
            ),
            keep_last=self.keep_last,
            keep_latest_view=self.keep_latest_view,
            grace_days=_to_days(self.grace, "grace_days"),
            pins=self.pins,
            legal_holds=tuple(self.legal_holds),
            rules=tuple(_make_path_rule(each, f"rules[{index}].expiration") for index, each in enumerate(self.paths)),
            allow_deletion_from_latest_view=self.allow_deletion_from_latest_view,
            hide_marked=self.hide_marked,
            description=self.description,
        )


def _read_path_rule(rule: PathRule) -> PathRetention:
    return PathRetention(
        prefix=rule.filter.prefix,
        branch=rule.filter.branch,
        **{kind: _to_timedelta(period.total_days) for kind, period in rule.expiration.periods.items()},
        is_enabled=rule.status == "enabled",
        description=rule.description,
    )


def _make_path_rule(path: PathRetention, place: str) -> PathRule:
    kinds = {"all": path.all, "noncurrent": path.noncurrent, "uncommitted": path.uncommitted}
    periods = {
        kind: RulePeriod(days=_to_days(period, f"{place}.{kind}"))
        for kind, period in kinds.items()
        if period is not None
    }
    return PathRule(
        Expiration(**periods),
        PathRuleFilter(path.prefix, path.branch),
        "enabled" if path.is_enabled else "disabled",
        path.description,
    )


def _to_period(days: int | None) -> timedelta | None:
    return None if days is None else _to_timedelta(days)


def _to_timedelta(days: int) -> timedelta:
    """lakeFS's format holds more days than a `timedelta`."""
    return timedelta(days=days) if days <= timedelta.max.days else timedelta.max


def _to_days(period: timedelta, place: str) -> int:
    if not isinstance(period, timedelta):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may not check types
        raise InvalidRules(f"a {type(period).__name__} is no period; write timedelta(days=...)", place=place)
    if period == timedelta.max:
        return DAYS_MAX
    days, rest = divmod(period, DAY)
    if rest:
        raise InvalidRules(f"{period} is no whole number of days; write timedelta(days=...)", place=place)
    return days
