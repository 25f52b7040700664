"""Compare two rules documents: what is added, removed and changed, and what protects data until it is removed.

A legal hold or a pin keeps data whatever the other rules say. So nobody removes one by accident: whoever sets rules
without it names it. The names:

    hold:contracts/     a legal hold, by its prefix
    pin:6e40...         a pinned commit
    tag:v*              the tags that `pins.tags` names; `tag:*` where it says true, as it does by default
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from refstore.errors import ConsentNeeded
from refstore.retention.rules import PathRule, Pins, Rules

NO_RULES: Final = Rules(pins=Pins(tags=False))
"""What a first document is compared with: where there are no rules, nothing expires, and no pin was set."""
UNREADABLE: Final = "unreadable"
"""Names rules that cannot be read, and may have legal holds."""
_ALL_TAGS: Final = "tag:*"
_SETTINGS: Final = (
    "default_retention_days",
    "keep_last",
    "keep_latest_view",
    "grace_days",
    "allow_deletion_from_latest_view",
    "hide_marked",
)


class ChangeKind(StrEnum):
    """How a rule differs."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


class RuleChange(msgspec.Struct, frozen=True, kw_only=True):
    """One difference between two documents."""

    change: ChangeKind
    subject: str
    """`legal hold`, `pin`, `branch rule`, `path rule`, or `setting`."""
    name: str
    """What it applies to; of a legal hold or a pin the name that removes it."""
    before: str = ""
    after: str = ""
    needs_consent: bool = False
    """Whether it stops to protect data, so that whoever sets the rules has to name it."""

    @property
    def text(self) -> str:
        """Return the change as a line."""
        values = " -> ".join(value for value in (self.before, self.after) if value)
        return f"{self.change.value}: {self.subject} {self.name}{f' ({values})' if values else ''}"


def compare_rules(old: Rules, new: Rules) -> tuple[RuleChange, ...]:
    """Return the differences: of legal holds and pins first."""
    return (
        *_differences("legal hold", _hold_texts(old), _hold_texts(new), lost=_removed_holds(old, new)),
        *_differences("pin", _pin_texts(old), _pin_texts(new), lost=_removed_pins(old, new)),
        *_differences("branch rule", _branch_rules(old), _branch_rules(new)),
        *_differences("path rule", _path_rules(old), _path_rules(new)),
        *_setting_changes(old, new),
    )


def check_consent(old: Rules, new: Rules, remove: Collection[str]) -> None:
    """Raise ConsentNeeded where the new rules remove a legal hold or a pin that `remove` does not name."""
    unnamed = [each.name for each in compare_rules(old, new) if each.needs_consent and each.name not in remove]
    if unnamed:
        raise ConsentNeeded(
            f"these rules remove {', '.join(unnamed)}, which keeps data whatever other rules say; put it back, or name "
            "each that is to go in the parameter remove",
            unnamed,
        )


def add_protection(rules: Rules, other: Rules) -> Rules:
    """Return the rules with the legal holds and pins that the other ones have, too."""
    own = {hold.prefix for hold in rules.legal_holds}
    holds = (*rules.legal_holds, *(hold for hold in other.legal_holds if hold.prefix not in own))
    commits = tuple(dict.fromkeys((*rules.pins.commits, *other.pins.commits)))
    tags: bool | tuple[str, ...] = rules.pins.tags is True or other.pins.tags is True
    if not tags:
        tags = tuple(dict.fromkeys((*_tag_globs(rules), *_tag_globs(other)))) or False
    return msgspec.structs.replace(rules, legal_holds=holds, pins=Pins(tags, commits))


def may_delete_more(rules: Rules, other: Rules) -> bool:
    """Return whether the rules may let something expire that the other ones keep, legal holds and pins aside. Where
    that takes more than a comparison of numbers, they may.
    """
    days, other_days = _days_by_rule(rules), _days_by_rule(other)
    if set(days.values()) == {math.inf} and not _bare_path_rules(rules):
        return False  # nothing expires
    return (
        days.keys() != other_days.keys()
        or any(days[name] < other_days[name] for name in days)
        or (bool(_bare_path_rules(rules)) and _bare_path_rules(rules) != _bare_path_rules(other))
        or rules.keep_last < other.keep_last
        or rules.grace_days < other.grace_days
        or (rules.keep_latest_view is not True and rules.keep_latest_view != other.keep_latest_view)
        or (rules.allow_deletion_from_latest_view and not other.allow_deletion_from_latest_view)
    )


def _days_by_rule(rules: Rules) -> dict[str, float]:
    """Return the days that each branch rule keeps, and (under '') the default."""
    default = math.inf if rules.default_retention_days is None else rules.default_retention_days
    return {"": default, **{rule.branch_id: rule.retention_days for rule in rules.branches}}


def _bare_path_rules(rules: Rules) -> list[PathRule]:
    return [msgspec.structs.replace(rule, description="") for rule in rules.path_rules]


def _tag_globs(rules: Rules) -> tuple[str, ...]:
    return () if isinstance(rules.pins.tags, bool) else rules.pins.tags


def _differences(
    what: str, old: Mapping[str, str], new: Mapping[str, str], *, lost: Collection[str] = ()
) -> Iterator[RuleChange]:
    for name in dict.fromkeys((*old, *new)):
        before, after = old.get(name), new.get(name)
        if after is None:
            yield RuleChange(
                change=ChangeKind.REMOVED, subject=what, name=name, before=before or "", needs_consent=name in lost
            )
        elif before is None:
            yield RuleChange(change=ChangeKind.ADDED, subject=what, name=name, after=after)
        elif before != after:
            yield RuleChange(change=ChangeKind.CHANGED, subject=what, name=name, before=before, after=after)


def _hold_texts(rules: Rules) -> dict[str, str]:
    return {f"hold:{hold.prefix}": hold.reason for hold in rules.legal_holds}


def _removed_holds(old: Rules, new: Rules) -> set[str]:
    """Return the holds that no hold on a shorter prefix replaces."""
    prefixes = tuple(hold.prefix for hold in new.legal_holds)
    return {f"hold:{hold.prefix}" for hold in old.legal_holds if not hold.prefix.startswith(prefixes)}


def _pin_texts(rules: Rules) -> dict[str, str]:
    tags = rules.pins.tags
    globs = (("*",) if tags else ()) if isinstance(tags, bool) else tags
    return {**{f"pin:{commit}": "" for commit in rules.pins.commits}, **{f"tag:{glob}": "" for glob in globs}}


def _removed_pins(old: Rules, new: Rules) -> set[str]:
    left = _pin_texts(new)
    return {
        name for name in _pin_texts(old) if name not in left and not (name.startswith("tag:") and _ALL_TAGS in left)
    }


def _branch_rules(rules: Rules) -> dict[str, str]:
    return {rule.branch_id: f"{rule.retention_days} days" for rule in rules.branches}


def _path_rules(rules: Rules) -> dict[str, str]:
    texts: dict[str, str] = {}
    for rule in rules.rules:
        where = f" on {rule.filter.own_branch}" if rule.filter.own_branch else ""
        name = f"{rule.filter.prefix}*{where}{'' if rule.status == 'enabled' else ', disabled'}"
        periods = ", ".join(f"{kind} {period.total_days} days" for kind, period in rule.expiration.periods.items())
        texts[name] = "; ".join(filter(None, (texts.get(name), periods)))
    return texts


def _setting_changes(old: Rules, new: Rules) -> Iterator[RuleChange]:
    for name in _SETTINGS:
        before, after = (str(getattr(rules, name)).lower() for rules in (old, new))
        if before != after:
            yield RuleChange(change=ChangeKind.CHANGED, subject="setting", name=name, before=before, after=after)
