"""Reset staged objects that a path rule lets expire, one by one as a user would (rule 15); the reaper deletes them.

An object's age counts from the last change of its reference list, whatever its own date says. An entry without a
reference (of a committed or a foreign object) stays, because nothing could be deleted with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core import deadline
from refstore.core.ids import BranchName, Path, Token, is_own
from refstore.core.units import sum_sizes
from refstore.errors import BranchNotFound, Contention
from refstore.operations.delete import remove_staged
from refstore.operations.read import resolve_many
from refstore.operations.refs import ResolvedRef
from refstore.records.reference_records import Listed
from refstore.records.staging_records import StoredEntry, decode_staged
from refstore.retention.path_rules import uncommitted_expiry_ms
from refstore.retention.rules import Rules

PAGE: Final = 1000
EXPIRED_CAUSE: Final = "expired"
"""The cause that `trash` and the journal show."""


class StagedExpiry(NamedTuple):
    """What was reset on one page of a branch's staged changes, or on all of them."""

    objects: int = 0
    """How many were reset."""
    next_after: str = ""
    """The path after which to continue; '' at the end."""
    is_incomplete: bool = False
    """Whether changes were left: the branch has an unfinished commit, or was committed, reset or deleted meanwhile."""
    size_bytes: int = 0

    def __add__(self, other: StagedExpiry) -> StagedExpiry:  # type: ignore[override]  # of counts, not of tuples
        return StagedExpiry(
            self.objects + other.objects,
            other.next_after,
            self.is_incomplete or other.is_incomplete,
            self.size_bytes + other.size_bytes,
        )


def has_uncommitted_rule(rules: Rules) -> bool:
    return any(rule.expiration.uncommitted or rule.expiration.all for rule in rules.path_rules)


def expire_staged_entries(ctx: Context, rules: Rules, branch: BranchName, *, dry_run: bool = False) -> StagedExpiry:
    """Reset a branch's expired staged changes page by page, each page in an operation of its own.

    `dry_run`: only count them.
    """
    total = StagedExpiry()
    while has_uncommitted_rule(rules):
        with deadline.limit_operation(ctx.clock, ctx.safety.operation_deadline_seconds):
            total += expire_page(ctx, rules, branch, total.next_after, dry_run=dry_run)
        if not total.next_after:
            break
    return total


def expire_page(ctx: Context, rules: Rules, branch: BranchName, after: str, *, dry_run: bool = False) -> StagedExpiry:
    """Reset the expired ones among the next page of staged changes after the path `after`."""
    try:
        record = ctx.branches.read_open(branch).record
        if record.sealed_tokens:
            return StagedExpiry(is_incomplete=True)
        page = list(islice(ctx.staging.scan(record.token, after=after), PAGE))
        due = _find_expired(ctx, rules, branch, record.token, page)
        removed, stood_still = (
            (due, True) if dry_run or not due else remove_staged(ctx, branch, record.token, due, cause=EXPIRED_CAUSE)
        )
        if not stood_still:
            removed = _find_removed(ctx, branch, removed)
    except (BranchNotFound, Contention):
        return StagedExpiry(is_incomplete=True)
    size_bytes = sum_sizes(
        entry.size_bytes for _, value in removed if isinstance(entry := decode_staged(value), StoredEntry)
    )
    return StagedExpiry(
        len(removed),
        page[-1][0] if stood_still and len(page) == PAGE else "",
        is_incomplete=not stood_still,
        size_bytes=size_bytes,
    )


def _find_removed(ctx: Context, branch: BranchName, removed: Sequence[tuple[Path, bytes]]) -> list[tuple[Path, bytes]]:
    """Return the removed entries that the branch does not show any more.

    The branch was committed or reset meanwhile, and the commit may have read the other ones before.
    """
    current = resolve_many(ctx, ResolvedRef.of_branch(branch), [path for path, _ in removed])
    return [
        (path, value)
        for path, value in removed
        if isinstance(entry := decode_staged(value), StoredEntry)
        and not (path in current and current[path].entry.address == entry.address)
    ]


def _find_expired(
    ctx: Context, rules: Rules, branch: BranchName, token: Token, page: Sequence[tuple[str, bytes]]
) -> list[tuple[Path, bytes]]:
    """Return the expired staged objects of a page, as they were read."""
    now = ctx.clock.now_ms()
    candidates: list[tuple[Path, bytes, StoredEntry, int]] = []
    for path, value in page:
        entry = decode_staged(value)
        before = (
            uncommitted_expiry_ms(rules, branch, path, now)
            if isinstance(entry, StoredEntry) and is_own(entry.address)
            else None
        )
        if before is not None and isinstance(entry, StoredEntry):
            candidates.append((Path(path), value, entry, before))
    records = ctx.references.get_many([entry.address for _, _, entry, _ in candidates])
    return [
        (path, value)
        for (path, value, entry, before), record in zip(candidates, records, strict=True)
        if isinstance(record, Listed)
        and record.changed_ms < before
        and any(
            each.token == token and each.path == path and each.id == entry.reference_id for each in record.references
        )
    ]
