"""Deletion from the latest view: a commit on the branch removes the paths that an `all` rule lets expire.

So nothing that a head names is ever deleted. The branch moves on first, as by any commit. From then on the removed
objects are history, and the ordinary path rules apply to them: they are marked, and during the grace a revert of that
commit takes them back.

A branch with staged changes is not changed, because its users will commit them. Nor is a branch whose head a tag or a
pin holds.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core import deadline
from refstore.core.ids import Address, BranchName, CommitId, address_time_ms, is_own
from refstore.core.units import sum_sizes
from refstore.errors import BranchNotFound, Contention, DirtyBranch, NothingToCommit
from refstore.operations import commit as commit_operation
from refstore.operations import refs
from refstore.operations import tag as tag_operation
from refstore.operations.commit import CommitOptions
from refstore.retention.path_rules import LatestViewRule
from refstore.retention.rules import Rules

COMMITTER: Final = "refstore"
REMOVED_MAX: Final = 50_000
"""How many paths one commit removes, so that it ends well within an operation's deadline."""
RANGES_MAX: Final = 1_000
"""How many ranges one page reads."""
NEVER_MS: Final = 2**63 - 1


class HeadExpiry(NamedTuple):
    """What was removed from a branch."""

    objects: int = 0
    size_bytes: int = 0
    commits: int = 0
    remaining_reason: str = ""
    """Why paths may be left; '' where none are."""


@dataclass(slots=True)
class RangeAges:
    """When the oldest object of each range was made.

    Ranges never change, and branches share them, so each is read once in a run.
    """

    oldest_ms: dict[str, int] = field(default_factory=dict[str, int])

    def oldest_made_ms(self, ctx: Context, range_id: str) -> int:
        oldest_ms = self.oldest_ms.get(range_id)
        if oldest_ms is None:
            made_ms = map(_entry_made_ms, ctx.trees.addresses_of_range(range_id))
            oldest_ms = min((each for each in made_ms if each is not None), default=NEVER_MS)
            self.oldest_ms[range_id] = oldest_ms
        return oldest_ms


class _RemovalPage(NamedTuple):
    """The paths that one commit removes."""

    paths: list[str]
    size_bytes: int
    next_after: str
    """'' at the end."""


_NOTHING: Final = _RemovalPage([], 0, "")


def protected_commits(ctx: Context, rules: Rules) -> set[CommitId]:
    """Return the commits that tags and pins hold: nothing is removed from a branch whose head is one of them."""
    tagged = {tag.commit for name, tag in tag_operation.scan_tags(ctx, prefix="", after="") if rules.holds_tag(name)}
    return tagged | {CommitId(commit) for commit in rules.pins.commits}


def expire_head(
    ctx: Context,
    branch: BranchName,
    rule: LatestViewRule,
    protected: Set[CommitId],
    ages: RangeAges,
    *,
    dry_run: bool = False,
) -> HeadExpiry:
    """Remove the paths that a rule lets expire from a branch's head, by as many commits as are needed.

    `dry_run`: only count them.
    """
    total, after = HeadExpiry(), ""
    while True:
        try:
            with deadline.limit_operation(ctx.clock, ctx.safety.operation_deadline_seconds):
                page, was_made = _remove_page(ctx, branch, rule, protected, ages, after, dry_run=dry_run)
        except BranchNotFound:
            return total
        except (DirtyBranch, Contention) as error:
            return total._replace(
                remaining_reason="it has uncommitted changes"
                if isinstance(error, DirtyBranch)
                else "it kept being changed"
            )
        total = HeadExpiry(
            total.objects + len(page.paths), total.size_bytes + page.size_bytes, total.commits + was_made
        )
        if not page.next_after:
            return total
        after = page.next_after


def _remove_page(
    ctx: Context,
    branch: BranchName,
    rule: LatestViewRule,
    protected: Set[CommitId],
    ages: RangeAges,
    after: str,
    *,
    dry_run: bool,
) -> tuple[_RemovalPage, bool]:
    """Return the removed page, and whether a commit was made."""
    head = ctx.branches.read_open(branch).record.head
    page = _next_removal_page(ctx, head, rule, protected, ages, after)
    if not page.paths:
        return page, False
    if dry_run:
        commit_operation.check_clean(ctx, branch)
        return page, False

    def paths_of(head: CommitId) -> list[str]:
        nonlocal page
        # read again: the branch may have moved on since, and may show something else there
        page = _next_removal_page(ctx, head, rule, protected, ages, after)
        return page.paths

    message = f"Remove what was made more than {rule.days} days ago" + (
        f" below {rule.prefix!r}" if rule.prefix else ""
    )
    notes = {"rule": "all", "prefix": rule.prefix, "days": str(rule.days)}  # why it was made
    options = CommitOptions(message=message, committer=COMMITTER).with_notes(notes)
    try:
        commit_operation.commit_removal(ctx, branch, options, paths_of)
    except NothingToCommit:
        return page, False
    return page, True


def _next_removal_page(
    ctx: Context, head: CommitId, rule: LatestViewRule, protected: Set[CommitId], ages: RangeAges, after: str
) -> _RemovalPage:
    if head in protected:
        return _NOTHING
    paths: list[str] = []
    size_bytes = 0
    ranges = ctx.trees.overlapping_ranges(refs.head_commit(ctx, head).metarange, prefix=rule.prefix, after=after)
    for number, row in enumerate(ranges):
        if number >= RANGES_MAX or len(paths) >= REMOVED_MAX:
            return _RemovalPage(paths, size_bytes, ranges[number - 1].last_path)
        if ages.oldest_made_ms(ctx, row.id) >= rule.made_before_ms:
            continue
        for path, entry in ctx.trees.entries_of_range(row.id, prefix=rule.prefix, after=after):
            if rule.expires(path, _entry_made_ms(entry.address)):
                paths.append(path)
                size_bytes = sum_sizes((size_bytes, entry.size_bytes))
    return _RemovalPage(paths, size_bytes, "")


def _entry_made_ms(address: Address) -> int | None:
    return address_time_ms(address) if is_own(address) else None
