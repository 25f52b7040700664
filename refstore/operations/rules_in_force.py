"""Read the retention rules that are in force (`rules_document.py` sets them)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

import msgspec

from refstore.context import Context
from refstore.core.clock import to_datetime
from refstore.errors import CorruptRecord, InvalidRules, KVWentBack
from refstore.kv.base import Absent
from refstore.records import keys
from refstore.records.encoding import decode_optional
from refstore.records.repository_records import RetentionRecord
from refstore.retention.rule_changes import NO_RULES
from refstore.retention.rules import PathRuleFilter, Rules, read_rules
from refstore.retention.typed_rules import Retention


class RetentionRules(NamedTuple):
    """The rules that are in force."""

    document: str
    """As it was set."""
    rules: Rules
    set_at: datetime
    set_by: str
    withheld: str = ""
    """Why nothing expires by them until an operator has set rules again. '': they are in force."""

    @property
    def retention(self) -> Retention:
        """The rules as an application reads and writes them."""
        return Retention.from_rules(self.rules)


def get_rules(ctx: Context) -> RetentionRules | None:
    """Return the rules in force; None: no commit expires.

    Raises CorruptRecord: then no job may go on by other rules, or by none.
    """
    return read_record(ctx)[1]


def rules_in_force(ctx: Context) -> Rules:
    """Return the rules in force; empty ones, by which nothing expires, if there are none. Raises CorruptRecord."""
    own = get_rules(ctx)
    return own.rules if own is not None else Rules()


def rules_to_expire_by(ctx: Context) -> Rules:
    """Return the rules in force, for a job that lets something expire. Raises CorruptRecord, and KVWentBack where they
    are withheld.
    """
    own = get_rules(ctx)
    if own is not None and own.withheld:
        raise KVWentBack(
            f"nothing expires in {ctx.name!r}: {own.withheld}; look with `refstore retention get {ctx.name}` and "
            "`refstore audit log`, then set the rules that you want with `refstore retention set`"
        )
    return own.rules if own is not None else Rules()


def read_record(ctx: Context) -> tuple[bytes | Absent, RetentionRules | None]:
    """Return the record as it is stored, and its rules. Raises CorruptRecord."""
    raw = ctx.kv.get(keys.retention_rules(ctx.repo))
    record = decode_optional(raw, RetentionRecord)
    if record is None:
        return raw, None
    rules = decode_rules(ctx, raw)
    return raw, RetentionRules(record.document, rules, to_datetime(record.set_ms), record.set_by, record.withheld)


def decode_rules(ctx: Context, raw: bytes | Absent) -> Rules:
    """Return the rules of a record; NO_RULES without one. Raises CorruptRecord."""
    record = decode_optional(raw, RetentionRecord)
    if record is None:
        return NO_RULES
    try:
        return bind_filters(read_rules(record.document).rules, record.read_as)
    except InvalidRules as error:
        raise CorruptRecord(
            f"the retention rules of {ctx.name!r} cannot be read ({error}); set them again before anything expires"
        ) from error


def bind_filters(rules: Rules, read_as: Mapping[str, str]) -> Rules:
    """Return `rules` with those prefixes split into branch and path that were when the document was set."""
    bound = tuple(
        msgspec.structs.replace(rule, filter=PathRuleFilter(rule.filter.prefix[len(branch) + 1 :], branch))
        if not rule.filter.branch and (branch := read_as.get(rule.filter.prefix)) is not None
        else rule
        for rule in rules.rules
    )
    return msgspec.structs.replace(rules, rules=bound)
