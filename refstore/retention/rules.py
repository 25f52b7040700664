"""The rules document: one JSON text for each repository that says how long committed data stays.

    {
      "default_retention_days": 21,
      "branches": [{"branch_id": "main", "retention_days": 28}, {"branch_id": "release/*", "retention_days": 365}],
      "keep_last": 1,
      "keep_latest_view": true,
      "grace_days": 7,
      "pins": {"tags": true, "commits": ["6e40..."]},
      "legal_holds": [{"prefix": "contracts/", "reason": "case 4711"}],
      "rules": [{"filter": {"prefix": "tmp/"}, "status": "enabled", "expiration": {"noncurrent": {"days": 1}}}],
      "allow_deletion_from_latest_view": false,
      "hide_marked": false
    }

The first two fields are lakeFS's garbage collection rules as they are; `rules` is lakeFS's first design of retention
(seed 001), in which a prefix is `branch/path`. Whether a prefix begins with a branch's name only a repository can say:
`refstore/operations/rule_filters.py` asks it when a document is set, and from then on the rule has `branch` and the
rest of the prefix. `docs/retention.md` explains each field. A missing field keeps data: without a default, branches
that no rule names never expire. An unknown field is refused, because it may be a misspelt hold.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from refstore.core import ids
from refstore.core.json_documents import read
from refstore.core.units import DAY_MS
from refstore.errors import InvalidName, InvalidPath, InvalidRules
from refstore.retention import globs

GLOBS_MAX: Final = 100
"""How many globs over branches a document may have: each is compared with each other, and with each branch."""
DAYS_MAX: Final = 2**31 - 1
"""The most days that lakeFS's own format can hold."""
GRACE_DAYS_MAX: Final = 365
"""The longest grace; garbage that waits longer is never decided about."""
KEEP_LAST_MAX: Final = 1_000_000
ALL_BRANCHES: Final = "*"

Days = Annotated[int, msgspec.Meta(ge=0, le=DAYS_MAX)]


class _RulesPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of the document."""


class BranchRule(_RulesPart, frozen=True):
    """How long the commits of the branches with a name stay."""

    branch_id: str
    """A branch's name, or a glob (`globs.py`)."""
    retention_days: Days


class Pins(_RulesPart, frozen=True):
    """Commits that never expire."""

    tags: bool | tuple[str, ...] = True
    """Whether tags hold the commits that they name, or which tags do (names and globs)."""
    commits: tuple[str, ...] = ()


class LegalHold(_RulesPart, frozen=True):
    """Everything that was ever committed at these paths stays, whatever other rules say."""

    prefix: str
    reason: str = ""


class RulePeriod(_RulesPart, frozen=True):
    days: Annotated[int, msgspec.Meta(ge=0, le=DAYS_MAX)] = 0
    weeks: Annotated[int, msgspec.Meta(ge=0, le=DAYS_MAX // 7)] = 0

    @property
    def total_days(self) -> int:
        return self.days + 7 * self.weeks


class Expiration(_RulesPart, frozen=True):
    all: RulePeriod | None = None
    """How long after the object was made."""
    noncurrent: RulePeriod | None = None
    """How long after the last branch head that named the object."""
    uncommitted: RulePeriod | None = None
    """How long after the object was staged, if it was not committed."""

    @property
    def periods(self) -> dict[str, RulePeriod]:
        """The kinds that the rule has."""
        kinds = {"all": self.all, "noncurrent": self.noncurrent, "uncommitted": self.uncommitted}
        return {kind: period for kind, period in kinds.items() if period is not None}


class PathRuleFilter(_RulesPart, frozen=True):
    prefix: str = ""
    branch: str = ""
    """Only entries committed or staged on this branch. '': all branches, and lines without one; `*`: the same."""

    @property
    def own_branch(self) -> str:
        """'' for all."""
        return "" if self.branch == ALL_BRANCHES else self.branch

    def covers(self, branch: str | None) -> bool:
        """`branch`: None for lines that have no branch any more."""
        return self.own_branch in ("", branch)


class PathRule(_RulesPart, frozen=True):
    """The rule for paths that start with a prefix; of several enabled ones the longest prefix is a path's only rule."""

    expiration: Expiration
    filter: PathRuleFilter = PathRuleFilter()
    status: Literal["enabled", "disabled"] = "enabled"
    description: str = ""
    """For people."""


class Rules(_RulesPart, frozen=True):
    default_retention_days: Days | None = None
    """For branches that no rule names, and for commits that are on no branch any more. None: those never expire."""
    branches: tuple[BranchRule, ...] = ()
    keep_last: Annotated[int, msgspec.Meta(ge=0, le=KEEP_LAST_MAX)] = 0
    """How many commits of each branch never expire, whatever their age; a branch's head never does."""
    keep_latest_view: bool | None = None
    """Whether to keep each branch's latest view: its commits back to the latest one that begins a view (metadata
    `refstore.transaction=SNAPSHOT`). None: of branches that use transaction types (`keeps_latest_view`).
    """
    grace_days: Annotated[int, msgspec.Meta(ge=0, le=GRACE_DAYS_MAX)] = 7
    """Between mark and sweep."""
    pins: Pins = Pins()
    legal_holds: tuple[LegalHold, ...] = ()
    rules: tuple[PathRule, ...] = ()
    allow_deletion_from_latest_view: bool = False
    """Whether `all` of a path rule may take what a branch's head names: data that is in use. It also lifts the default
    of `keep_latest_view`.
    """
    description: str = ""
    """For people."""
    hide_marked: bool = False
    """Whether marked commits are hidden from the mark on, instead of only after their sweep."""

    @property
    def is_extended(self) -> bool:
        """Whether the document has more than lakeFS's format can express."""
        return msgspec.structs.replace(self, default_retention_days=None, branches=()) != Rules()

    def keeps_latest_view(self, *, uses_types: bool) -> bool:
        """Return whether the latest view of a branch is kept. `uses_types`: whether some commit on its line of first
        parents says its transaction type; without types the view would be the whole branch.
        """
        if self.keep_latest_view is not None:
            return self.keep_latest_view
        return uses_types and not self.allow_deletion_from_latest_view

    @property
    def allows_latest_view_expiry(self) -> bool:
        """Whether these rules let something expire that the default keeps: data of the latest view of a branch."""
        return self.allow_deletion_from_latest_view or self.keep_latest_view is False

    @property
    def latest_view_rule(self) -> str:
        """The rule by which a latest view is kept, as a text."""
        return "keep_latest_view" if self.keep_latest_view else "keep_latest_view by default: it uses transaction types"

    @property
    def path_rules(self) -> tuple[PathRule, ...]:
        """The enabled path rules: the longest prefix first, and of one prefix the rules of a branch first."""
        enabled = (rule for rule in self.rules if rule.status == "enabled")
        return tuple(sorted(enabled, key=lambda rule: (-len(rule.filter.prefix), not rule.filter.own_branch)))

    def path_rule(self, path: str, branch: str | None) -> PathRule | None:
        """Return the rule that decides about a path on a branch, or (None) on lines without a branch."""
        return next(
            (rule for rule in self.path_rules if rule.filter.covers(branch) and path.startswith(rule.filter.prefix)),
            None,
        )

    def holds_tag(self, name: str) -> bool:
        tags = self.pins.tags
        return tags if isinstance(tags, bool) else any(globs.matches_glob(glob, name) for glob in tags)

    def digest(self) -> str:
        """Return a hash that is equal for documents that mean the same, whatever their descriptions."""
        bare = tuple(msgspec.structs.replace(rule, description="") for rule in self.rules)
        return hashlib.sha256(_encoder.encode(msgspec.structs.replace(self, description="", rules=bare))).hexdigest()


class GcRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """lakeFS's part of the rules, as its API has it."""

    default_retention_days: Days
    branches: tuple[BranchRule, ...]


class BranchPeriod(NamedTuple):
    """The period of a branch, and the rule that it comes from."""

    days: int | None
    """None: never expires."""
    branch_id: str | None
    """The name or glob of the branch rule; None: the default applies."""

    @property
    def rule(self) -> str:
        """`branch 'main'`, `glob 'release/*'`, `default`, or `no default`."""
        if self.branch_id is None:
            return "no default" if self.days is None else "default"
        return f"{'glob' if globs.is_glob(self.branch_id) else 'branch'} {self.branch_id!r}"

    @property
    def period_ms(self) -> int | None:
        return None if self.days is None else self.days * DAY_MS


class BranchPeriods:
    """Finds the period of a branch: a rule with its name, else the most specific glob, else the default."""

    def __init__(self, rules: Rules) -> None:
        self.default = BranchPeriod(rules.default_retention_days, None)
        self._exact = {
            rule.branch_id: rule.retention_days for rule in rules.branches if not globs.is_glob(rule.branch_id)
        }
        among = [rule for rule in rules.branches if globs.is_glob(rule.branch_id)]
        self._globs = sorted(among, key=lambda rule: globs.specificity(rule.branch_id), reverse=True)

    def period_of(self, branch: str) -> BranchPeriod:
        days = self._exact.get(branch)
        if days is not None:
            return BranchPeriod(days, branch)
        for rule in self._globs:
            if globs.matches_glob(rule.branch_id, branch):
                return BranchPeriod(rule.retention_days, rule.branch_id)
        return self.default


class ParsedRules(NamedTuple):
    rules: Rules
    read_as: Mapping[str, str] = {}
    """Filter prefixes that were split as `branch/path` in a repository, and the branch of each."""


def read_rules(text: str) -> ParsedRules:
    """Parse a rules document. Raises InvalidRules with the place and the reason."""
    rules = read(text, Rules, InvalidRules, _FIELDS)
    for check in (_check_branches, _check_pins, _check_holds, _check_path_rules):
        check(rules)
    return ParsedRules(rules)


def check_rules(rules: Rules) -> Rules:
    """Return rules that nobody has read from a document. Raises InvalidRules as for the document that has them."""
    return read_rules(_encoder.encode(rules).decode()).rules


def render_rules(rules: Rules) -> str:
    """Return the rules as a document for people to read."""
    return msgspec.json.format(_encoder.encode(rules), indent=2).decode() + "\n"


def gc_rules(rules: Rules) -> GcRules | None:
    """Return lakeFS's part of the rules; None where they have none. No default is shown as the longest period."""
    if rules.default_retention_days is None and not rules.branches:
        return None
    return GcRules(DAYS_MAX if rules.default_retention_days is None else rules.default_retention_days, rules.branches)


def replace_gc_rules(rules: Rules | None, new: GcRules | None) -> Rules:
    """Replace lakeFS's part of the rules (None: remove it). Raises InvalidRules if the result is not valid."""
    replaced = msgspec.structs.replace(
        rules or Rules(),
        default_retention_days=None if new is None else new.default_retention_days,
        branches=() if new is None else new.branches,
    )
    return check_rules(replaced)


def rule_warnings(rules: Rules) -> Iterator[str]:
    """Yield warnings of rules that are valid, and may still not be meant."""
    if rules.default_retention_days is None:
        yield "there is no default_retention_days: branches that no rule names, and commits on no branch, never expire"
    alls = any(rule.expiration.all for rule in rules.path_rules)
    if rules.allow_deletion_from_latest_view and alls and not rules.keep_last:
        yield (
            "allow_deletion_from_latest_view is on: data that branches show now is deleted when its rule says so, "
            "and cannot be read then"
        )
    if not rules.keeps_latest_view(uses_types=True):
        option = (
            "allow_deletion_from_latest_view is on, and keep_latest_view does not say true"
            if rules.keep_latest_view is None
            else "keep_latest_view is false"
        )
        yield (
            f"{option}: commits of the latest view expire by their age on branches that use transaction types, too; "
            "data that only these commits name is deleted, and incremental jobs that read them may fail"
        )
    elif rules.allow_deletion_from_latest_view and not alls:
        yield "allow_deletion_from_latest_view is on, but no enabled rule has 'all': it changes nothing"
    if alls and not rules.allow_deletion_from_latest_view:
        yield "a rule has 'all', but allow_deletion_from_latest_view is off: what a branch's head names stays"
    if rules.allow_deletion_from_latest_view and alls and rules.keep_last:
        yield "keep_last holds what each branch shows now: with it, 'all' takes nothing of that"
    if rules.grace_days == 0:
        yield "grace_days is 0: what is marked is swept at once, and there is no time to take it back"


_encoder: Final = msgspec.json.Encoder(order="sorted")
_FIELDS: Final = sorted(
    {
        name
        for kind in (Rules, BranchRule, Pins, LegalHold, PathRule, PathRuleFilter, Expiration, RulePeriod)
        for name in kind.__struct_fields__
    }
)


def _check_branches(rules: Rules) -> None:
    _refuse_duplicates([rule.branch_id for rule in rules.branches], "branches[{}].branch_id", "branch")
    patterns: list[tuple[int, str]] = []
    for index, rule in enumerate(rules.branches):
        name, place = rule.branch_id, f"branches[{index}].branch_id"
        if globs.is_glob(name):
            if not globs.is_valid(name):
                raise InvalidRules(f"{name[:80]!r} is not a glob over branch names; {globs.GLOB_FORM}", place=place)
            patterns.append((index, name))
        else:
            _check_by(ids.branch_name, name, place)
    if len(patterns) > GLOBS_MAX:
        raise InvalidRules(
            f"more than {GLOBS_MAX} globs; use fewer, wider ones", place=f"branches[{patterns[GLOBS_MAX][0]}].branch_id"
        )
    for at, (index, name) in enumerate(patterns):
        for other_index, other in patterns[:at]:
            if globs.specificity(name) == globs.specificity(other) and globs.may_overlap(name, other):
                raise InvalidRules(
                    f"globs {other!r} (branches[{other_index}]) and {name!r} can match one name, and neither is more "
                    "specific; spell one of them out further",
                    place=f"branches[{index}].branch_id",
                )


def _check_pins(rules: Rules) -> None:
    tags = rules.pins.tags if not isinstance(rules.pins.tags, bool) else ()
    for index, tag in enumerate(tags):
        if not globs.is_valid(tag):
            raise InvalidRules(
                f"{tag[:80]!r} is neither a tag's name nor a glob; {globs.GLOB_FORM}", place=f"pins.tags[{index}]"
            )
    for index, commit in enumerate(rules.pins.commits):
        _check_by(ids.commit_id, commit, f"pins.commits[{index}]")
    _refuse_duplicates(tags, "pins.tags[{}]", "tag")
    _refuse_duplicates(rules.pins.commits, "pins.commits[{}]", "commit")


def _check_holds(rules: Rules) -> None:
    prefixes = [hold.prefix for hold in rules.legal_holds]
    for index, prefix in enumerate(prefixes):
        _check_by(ids.path_prefix, prefix, f"legal_holds[{index}].prefix")
    _refuse_duplicates(prefixes, "legal_holds[{}].prefix", "the legal hold of prefix")


def _check_path_rules(rules: Rules) -> None:
    for index, rule in enumerate(rules.rules):
        place = f"rules[{index}]"
        _check_by(ids.path_prefix, rule.filter.prefix, f"{place}.filter.prefix")
        if branch := rule.filter.own_branch:
            _check_by(ids.branch_name, branch, f"{place}.filter.branch", more="; or '*' for all branches")
        periods = rule.expiration.periods
        if not periods:
            raise InvalidRules(
                "no kind of expiration; give at least one of all, noncurrent, uncommitted", place=f"{place}.expiration"
            )
        for kind, period in periods.items():
            if not 1 <= period.total_days <= DAYS_MAX:
                raise InvalidRules(
                    f"{period.total_days} days; a path rule has 1 to {DAYS_MAX}", place=f"{place}.expiration.{kind}"
                )
    check_own_filters(rules)


def check_own_filters(rules: Rules) -> None:
    """Raise InvalidRules where two enabled rules have one filter."""
    seen: dict[tuple[str, str], int] = {}
    for index, rule in enumerate(rules.rules):
        own = prefix, branch = rule.filter.prefix, rule.filter.own_branch
        if rule.status == "enabled" and seen.setdefault(own, index) != index:
            of = f" on branch {branch!r}" if branch else ""
            raise InvalidRules(
                f"a second enabled rule for prefix {prefix!r}{of} (first is rules[{seen[own]}]); make one rule of them",
                place=f"rules[{index}]",
            )


def _check_by(check: Callable[[str], object], value: str, place: str, *, more: str = "") -> None:
    try:
        check(value)
    except (InvalidName, InvalidPath) as error:
        raise InvalidRules(f"{error}{more}", place=place) from None


def _refuse_duplicates(values: Sequence[str], place: str, what: str) -> None:
    """`place`: where a value stands, with `{}` for its number."""
    seen: set[str] = set()
    for index, value in enumerate(values):
        if value in seen:
            raise InvalidRules(f"{what} {value!r} is there twice; keep one of them", place=place.format(index))
        seen.add(value)
