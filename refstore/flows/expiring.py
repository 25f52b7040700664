"""Staged objects that a path rule lets expire: reset one by one as a user would reset them (rule 15), and reaped like those.

An object counts as staged when its reference list last changed: not before it was placed, whatever its date says. What is staged without
a reference (a name for what was committed, or lies outside) holds nothing that could go, and stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final, NamedTuple

from refstore import deadline, keys
from refstore.branches import Branches
from refstore.context import Context
from refstore.errors import BranchNotFound, Contention
from refstore.flows.reading import resolve_many
from refstore.flows.refs import Ref
from refstore.flows.removing import take_staged
from refstore.ids import BranchName, CommitId, Path, Token, is_own
from refstore.records import Entry, Listed, decode_reference_many, decode_staged
from refstore.retention.paths import uncommitted_before
from refstore.retention.rules import Rules
from refstore.staging import Staging

PAGE: Final = 1000
EXPIRED: Final = "expired"
"""The cause that `trash` and the journal show."""


class Expired(NamedTuple):
    """One page of a branch's staged changes, or all of them, done."""

    objects: int = 0
    """How many were reset."""
    next_after: str = ""
    """Where to go on; '' at the end."""
    left: bool = False
    """Not all of it could be looked at: the branch has an unfinished commit, or was committed, reset or deleted meanwhile."""
    size_bytes: int = 0

    def __add__(self, other: Expired) -> Expired:  # type: ignore[override]  # of counts, not of tuples
        return Expired(self.objects + other.objects, other.next_after, self.left or other.left, self.size_bytes + other.size_bytes)


def any_rule(rules: Rules) -> bool:
    return any(rule.expiration.uncommitted or rule.expiration.all for rule in rules.path_rules)


def expire_branch(ctx: Context, rules: Rules, branch: BranchName, *, dry_run: bool = False) -> Expired:
    """Reset what has expired of a branch's staged changes, page by page, each an operation of its own. `dry_run`: only count it."""
    total = Expired()
    while any_rule(rules):
        with deadline.operation(ctx.clock, ctx.safety.operation_deadline_seconds):
            total += expire_page(ctx, rules, branch, total.next_after, dry_run=dry_run)
        if not total.next_after:
            break
    return total


def expire_page(ctx: Context, rules: Rules, branch: BranchName, after: str, *, dry_run: bool = False) -> Expired:
    """Reset what has expired of the next staged changes behind the path `after`."""
    branches = Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock)
    try:
        record = branches.open(branch).record
        if record.sealed:
            return Expired(left=True)
        page = list(islice(Staging(ctx.kv, ctx.repo).scan(record.token, after=after), PAGE))
        due = _due(ctx, rules, branch, record.token, page)
        gone, stood_still = (due, True) if dry_run or not due else take_staged(ctx, branches, branch, record.token, due, cause=EXPIRED)
        if not stood_still:
            gone = _not_there(ctx, branch, gone)
    except (BranchNotFound, Contention):
        return Expired(left=True)
    size_bytes = sum(entry.size_bytes for _, value in gone if isinstance(entry := decode_staged(value), Entry))
    return Expired(len(gone), page[-1][0] if stood_still and len(page) == PAGE else "", left=not stood_still, size_bytes=size_bytes)


def _not_there(ctx: Context, branch: BranchName, gone: Sequence[tuple[Path, bytes]]) -> list[tuple[Path, bytes]]:
    """Of what was taken away while the branch was committed or reset: what did go. The rest a commit had read before."""
    now = resolve_many(ctx, Ref(branch, branch, CommitId(""), from_history=False), [path for path, _ in gone])
    return [
        (path, value)
        for path, value in gone
        if isinstance(entry := decode_staged(value), Entry) and not (path in now and now[path].entry.address == entry.address)
    ]


def _due(ctx: Context, rules: Rules, branch: BranchName, token: Token, page: Sequence[tuple[str, bytes]]) -> list[tuple[Path, bytes]]:
    """The staged objects whose time is over, as they were read."""
    now = ctx.clock.now_ms()
    asked: list[tuple[Path, bytes, Entry, int]] = []
    for path, value in page:
        entry = decode_staged(value)
        before = uncommitted_before(rules, branch, path, now) if isinstance(entry, Entry) and is_own(entry.address) else None
        if before is not None and isinstance(entry, Entry):
            asked.append((Path(path), value, entry, before))
    records = decode_reference_many(ctx.kv.get_many(keys.reference_many(ctx.repo, [entry.address for _, _, entry, _ in asked])))
    return [
        (path, value)
        for (path, value, entry, before), record in zip(asked, records, strict=True)
        if isinstance(record, Listed)
        and record.changed_ms < before
        and any(each.token == token and each.path == path and each.id == entry.reference_id for each in record.references)
    ]
