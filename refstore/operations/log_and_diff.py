"""Log and diff."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core import deadline
from refstore.core.clock import to_datetime
from refstore.core.ids import BranchName, CommitId, Path
from refstore.gc_marks import Marks, MarkStatus
from refstore.operations import refs
from refstore.operations.content_comparison import ContentComparison
from refstore.operations.hidden_commits import check_hidden, read_marks
from refstore.operations.read import read_consistent
from refstore.public_types import Commit, Mark
from refstore.records.branch_records import StoredBranch
from refstore.records.commit_records import StoredCommit
from refstore.records.staging_records import StoredEntry, decode_staged, without_reference
from refstore.versioning.commits import graph
from refstore.versioning.commits.path_filter import PathFilter
from refstore.versioning.commits.tree_diff import EntryChange, PathChangeKind

LOG_PAGE = 100
"""How many commits' marks are read in one round trip."""
PAGE = 1000
"""How many staged changes are compared with the head under one version of the branch record."""


def log(
    ctx: Context, ref: str, *, first_parent: bool, since_ms: int | None = None
) -> Iterator[tuple[CommitId, StoredCommit]]:
    """Yield the ref's commit and its ancestors, newest first.

    Each line of history ends before its first commit that is older than `since_ms`.
    """
    head = refs.resolve(ctx, ref).commit
    return graph.log(lambda commit: refs.get_commit(ctx, commit), head, first_parent=first_parent, since_ms=since_ms)


def has_changed_paths(ctx: Context, commit: StoredCommit, only: PathFilter) -> bool:
    """Return whether the commit changed one of these paths against its first parent, by one diff for all paths."""
    deadline.check()  # cached ranges make no request, and only requests check the deadline
    if not commit.parents:
        return False  # a repository begins empty
    parent = refs.get_commit(ctx, commit.parents[0])
    changes = ctx.trees.diff(parent.metarange, commit.metarange, only=only)
    return next(ContentComparison(ctx).drop_equal(changes), None) is not None


class CommitLifetime(StrEnum):
    """The state of a commit's data, under the one name that people and programs get for it."""

    ACTIVE = "active"
    EXAMINED = "being examined"
    """Expired, and a run under way has yet to find whether anything of it goes."""
    MARKED = "marked"
    SWEEPING = "sweeping"
    TAGGED = "tagged"
    """Tagged for the bucket to delete, which has not deleted all of it yet."""
    SWEPT = "swept"
    """What only expired commits named of it is deleted."""
    NOTHING_TO_DELETE = "expired, nothing to delete"
    """Expired, but other commits keep all of its data: it can be read, copied and branched from."""
    PARTLY_MARKED = "partly marked"
    """Only its paths below some prefixes have expired; so it is for the next three."""
    PARTLY_SWEEPING = "partly sweeping"
    PARTLY_TAGGED = "partly tagged"
    PARTLY_SWEPT = "partly swept"
    PARTLY_SWEPT_MARKED = "partly swept, marked"
    """A part of it was swept, and the rest, or another part, is marked."""


PARTLY_READABLE: Final = frozenset(
    (
        CommitLifetime.SWEEPING,
        CommitLifetime.TAGGED,
        CommitLifetime.SWEPT,
        CommitLifetime.PARTLY_SWEEPING,
        CommitLifetime.PARTLY_TAGGED,
        CommitLifetime.PARTLY_SWEPT,
        CommitLifetime.PARTLY_SWEPT_MARKED,
    )
)
"""A sweep has begun, so some of the commit's data may be gone."""


BEING_SWEPT: Final = frozenset(
    (
        CommitLifetime.SWEEPING,
        CommitLifetime.TAGGED,
        CommitLifetime.PARTLY_SWEEPING,
        CommitLifetime.PARTLY_TAGGED,
    )
)
"""A sweep has begun and has not ended, or the bucket has yet to delete what is tagged."""


class LogEntry(NamedTuple):
    """A commit of the history, and what the offline job is going to do with it, or did."""

    commit: Commit
    lifetime: CommitLifetime
    mark: Mark | None
    nothing_to_delete_since: datetime | None
    """Since when runs find that it has expired, and that none of its data is deleted. None: this is not so."""
    examining_run: str
    """The run that has yet to find whether anything of it goes; '': none."""


def lifetime_of(status: MarkStatus) -> CommitLifetime:
    """Return the state of a commit's data."""
    mark = status.mark
    if mark is None:
        if status.nothing_to_delete is not None:
            return CommitLifetime.NOTHING_TO_DELETE
        return CommitLifetime.EXAMINED if status.examining_run else CommitLifetime.ACTIVE
    if mark.swept_ms:
        return CommitLifetime.PARTLY_SWEPT if mark.prefixes else CommitLifetime.SWEPT
    if mark.tagged_ms:
        return CommitLifetime.PARTLY_TAGGED if mark.prefixes else CommitLifetime.TAGGED
    if mark.sweeping_ms:
        return CommitLifetime.PARTLY_SWEEPING if mark.prefixes else CommitLifetime.SWEEPING
    if mark.earlier_marks:
        return CommitLifetime.PARTLY_SWEPT_MARKED
    return CommitLifetime.PARTLY_MARKED if mark.prefixes else CommitLifetime.MARKED


def history(ctx: Context, ref: str, *, first_parent: bool) -> Iterator[LogEntry]:
    """Yield the log, each commit with its mark."""
    entries = log(ctx, ref, first_parent=first_parent)
    marks = Marks(ctx)
    while page := list(islice(entries, LOG_PAGE)):
        for (commit, record), shown in zip(page, marks.statuses.read([commit for commit, _ in page]), strict=True):
            yield LogEntry(
                Commit(commit, record),
                lifetime_of(shown),
                Mark.of_record(shown.mark) if shown.mark is not None else None,
                to_datetime(shown.nothing_to_delete.since_ms) if shown.nothing_to_delete is not None else None,
                shown.examining_run,
            )


def merge_base(ctx: Context, left: str, right: str) -> CommitId | None:
    ours, theirs = (refs.resolve(ctx, ref).commit for ref in (left, right))
    return graph.merge_base(lambda commit: refs.get_commit(ctx, commit), ours, theirs)


def diff_refs(ctx: Context, left: str, right: str, *, prefix: str = "", after: str = "") -> Iterator[EntryChange]:
    """Yield the changes from the left ref's commit to the right one's, in path order; staged changes do not count.

    What was swept counts as well: the trees of swept commits stay. Raises Gone where the rules hide one of the two.
    """
    sides = [resolve_shown(ctx, ref) for ref in (left, right)]
    return diff_commits(ctx, sides[0], sides[1], prefix=prefix, after=after)


def resolve_shown(ctx: Context, text: str) -> CommitId:
    """Return the commit that a ref names. Raises Gone where the rules hide it."""
    ref = refs.resolve(ctx, text)
    check_hidden(ctx, ref, read_marks(ctx, ref))
    return ref.commit


def changes_of(ctx: Context, commit: CommitId) -> Iterator[EntryChange]:
    """Yield what a commit changed against its first parent; nothing for a repository's first commit. Raises Gone where
    the rules hide the commit.
    """
    shown = resolve_shown(ctx, commit)
    parents = refs.get_commit(ctx, shown).parents
    return diff_commits(ctx, parents[0], shown) if parents else iter(())


def diff_commits(
    ctx: Context, left: CommitId, right: CommitId, *, prefix: str = "", after: str = ""
) -> Iterator[EntryChange]:
    """Yield the changes between two commits, hidden or not: nobody may have asked for a merge base or a parent."""
    trees = [refs.get_commit(ctx, commit).metarange for commit in (left, right)]
    return ContentComparison(ctx).drop_equal(ctx.trees.diff(trees[0], trees[1], prefix=prefix, after=after))


def diff_staged(ctx: Context, branch: BranchName, *, prefix: str = "", after: str = "") -> Iterator[EntryChange]:
    """Yield the staged changes of a branch against its head, in path order, each page under one branch record."""
    while True:
        page, after = read_consistent(ctx, branch, lambda record, start=after: _staged_page(ctx, record, prefix, start))
        yield from page
        if not after:
            return


def _staged_page(ctx: Context, record: StoredBranch, prefix: str, after: str) -> tuple[list[EntryChange], str]:
    """Return (the changes, where to continue; '' at the end)."""
    staged = list(islice(ctx.staging.scan_merged(record.live_tokens, prefix=prefix, after=after), PAGE))
    head = ctx.trees.get_many(refs.head_commit(ctx, record.head).metarange, [Path(path) for path, _, _ in staged])
    changes: list[EntryChange] = []
    for path, value, _token in staged:
        new = decode_staged(value)
        old = head.get(Path(path))
        if isinstance(new, StoredEntry):
            new = without_reference(new)
            if old is None:
                changes.append(EntryChange(Path(path), PathChangeKind.ADDED, None, new))
            else:
                changes.append(EntryChange(Path(path), PathChangeKind.CHANGED, old, new))
        elif old is not None:
            changes.append(EntryChange(Path(path), PathChangeKind.REMOVED, old, None))
    noticed = list(ContentComparison(ctx).drop_equal(iter(changes)))
    return noticed, staged[-1][0] if len(staged) == PAGE else ""
