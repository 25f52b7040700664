"""Deletion from the latest view: what an `all` rule lets expire of what a branch shows is removed by a commit on that branch.

So nothing that a head names is ever deleted under it. The branch moves on first, as by anybody's commit; what was removed is history from
then on, which the ordinary path rules take, after a mark and a grace in which it can be taken back: revert that commit.

A branch with staged changes is left as it is, for they are its users' to commit; so is one whose head a tag or a pin holds.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from refstore import deadline
from refstore.branches import Branches
from refstore.context import Context
from refstore.errors import BranchNotFound, Contention, DirtyBranch, NothingToCommit
from refstore.flows import committing, refs, tagging
from refstore.flows.committing import CommitOptions
from refstore.ids import Address, BranchName, CommitId, is_own, made_ms
from refstore.records import Branch
from refstore.retention.paths import Outdated
from refstore.retention.rules import Rules
from refstore.staging import Staging

COMMITTER: Final = "refstore"
REMOVED_MAX: Final = 50_000
"""Of one commit: it ends well within an operation's deadline."""
RANGES_MAX: Final = 1_000
"""That one page looks at."""
NEVER_MS: Final = 2**63 - 1


class Removed(NamedTuple):
    """What became of a branch, or of a page of it."""

    objects: int = 0
    size_bytes: int = 0
    commits: int = 0
    left: str = ""
    """Why not all of it was looked at; '' if it was."""


@dataclass(slots=True)
class Ranges:
    """When the oldest object of a range was made. Ranges never change, and branches share them: each is read once in a run."""

    oldest_ms: dict[str, int] = field(default_factory=dict[str, int])

    def oldest(self, ctx: Context, range_id: str) -> int:
        found = self.oldest_ms.get(range_id)
        if found is None:
            found = self.oldest_ms[range_id] = _oldest(ctx.trees.addresses_of_range(range_id))
        return found


class _Page(NamedTuple):
    """What is to go, of as much of a tree as one commit is made for."""

    paths: list[str]
    size_bytes: int
    next_after: str
    """'' at the end."""


_NOTHING: Final = _Page([], 0, "")


def held_heads(ctx: Context, rules: Rules) -> set[CommitId]:
    """Commits from whose entries nothing goes, heads or not."""
    tagged = {tag.commit for name, tag in tagging.scan(ctx, prefix="", after="") if rules.holds_tag(name)}
    return tagged | {CommitId(commit) for commit in rules.pins.commits}


def remove_outdated(
    ctx: Context, branch: BranchName, rule: Outdated, held: Set[CommitId], known: Ranges, *, dry_run: bool = False
) -> Removed:
    """Remove what a rule lets expire from a branch's head, by as many commits as are needed. `dry_run`: only count it."""
    branches = Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock)
    total, after = Removed(), ""
    while True:
        try:
            with deadline.operation(ctx.clock, ctx.safety.operation_deadline_seconds):
                page, was_made = _remove_page(ctx, branches, branch, rule, held, known, after, dry_run=dry_run)
        except BranchNotFound:
            return total
        except (DirtyBranch, Contention) as error:
            return total._replace(left="it has uncommitted changes" if isinstance(error, DirtyBranch) else "it kept being changed")
        total = Removed(total.objects + len(page.paths), total.size_bytes + page.size_bytes, total.commits + was_made)
        if not page.next_after:
            return total
        after = page.next_after


def _remove_page(
    ctx: Context,
    branches: Branches,
    branch: BranchName,
    rule: Outdated,
    held: Set[CommitId],
    known: Ranges,
    after: str,
    *,
    dry_run: bool,
) -> tuple[_Page, bool]:
    """(what went, whether by a commit)"""
    record = branches.open(branch).record
    page = _page(ctx, record.head, rule, held, known, after)
    if not page.paths:
        return page, False
    if dry_run:
        _check_clean(ctx, branch, record)
        return page, False

    def paths_of(head: CommitId) -> list[str]:
        nonlocal page
        # anew: between the look and the commit the branch may have moved on, and shows something else there
        page = _page(ctx, head, rule, held, known, after)
        return page.paths

    message = f"Remove what was made more than {rule.days} days ago" + (f" below {rule.prefix!r}" if rule.prefix else "")
    try:
        committing.remove(ctx, branch, CommitOptions(message=message, committer=COMMITTER, metadata=metadata_of(rule)), paths_of)
    except NothingToCommit:
        return page, False
    return page, True


def _page(ctx: Context, head: CommitId, rule: Outdated, held: Set[CommitId], known: Ranges, after: str) -> _Page:
    if head in held:
        return _NOTHING
    paths: list[str] = []
    size_bytes = 0
    stretches = ctx.trees.stretches(refs.head_commit(ctx, head).metarange, prefix=rule.prefix, after=after)
    for number, row in enumerate(stretches):
        if number >= RANGES_MAX or len(paths) >= REMOVED_MAX:
            return _Page(paths, size_bytes, stretches[number - 1].last_path)
        if known.oldest(ctx, row.id) >= rule.made_before_ms:
            continue
        for path, entry in ctx.trees.entries_of_range(row.id, prefix=rule.prefix, after=after):
            if rule.has(path, _made_ms(entry.address)):
                paths.append(path)
                size_bytes += entry.size_bytes
    return _Page(paths, size_bytes, "")


def _oldest(addresses: Sequence[Address]) -> int:
    """When the oldest of them was made. Own addresses sort by that, and asking one is cheaper than asking all."""
    first = min(addresses, default=None)
    made = _made_ms(first) if first is not None else None
    if made is not None:
        return made
    return min((each for each in map(_made_ms, addresses) if each is not None), default=NEVER_MS)


def _made_ms(address: Address) -> int | None:
    return made_ms(address) if is_own(address) else None


def _check_clean(ctx: Context, branch: BranchName, record: Branch) -> None:
    staging = Staging(ctx.kv, ctx.repo)
    if not all(staging.is_empty(token) for token in record.live):
        raise DirtyBranch(f"branch {branch!r} has uncommitted changes; commit or reset them first")


def metadata_of(rule: Outdated) -> dict[str, str]:
    """What the commit says of why it was made."""
    return {"refstore.rule": "all", "refstore.rule.prefix": rule.prefix, "refstore.rule.days": str(rule.days)}


def open_branches(ctx: Context) -> list[BranchName]:
    return [name for name, _ in Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock).scan_open()]
