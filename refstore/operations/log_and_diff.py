"""Log and diff."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from refstore.context import Context
from refstore.core import deadline
from refstore.core.ids import BranchName, CommitId, Path
from refstore.core.records import Branch, Commit, Complete, Entry, Mark, decode_staged, unreferenced
from refstore.gc_marks import Marks
from refstore.operations import refs
from refstore.operations.comparing import Comparison
from refstore.operations.reading import while_still
from refstore.versioning.commits import graph
from refstore.versioning.commits.diffing import Change, Kind
from refstore.versioning.commits.filters import PathFilter

LOG_PAGE = 100
"""How many commits' marks are read in one round trip."""
PAGE = 1000
"""How many staged changes are compared with the head under one version of the branch record."""


def log(
    ctx: Context, ref: str, *, first_parent: bool, since_ms: int | None = None
) -> Iterator[tuple[CommitId, Commit]]:
    """Yield the ref's commit and its ancestors, newest first.

    Each line of history ends before its first commit that is older than `since_ms`.
    """
    head = refs.resolve(ctx, ref).commit
    return graph.log(lambda commit: refs.get_commit(ctx, commit), head, first_parent=first_parent, since_ms=since_ms)


def changed(ctx: Context, commit: Commit, only: PathFilter) -> bool:
    """Return whether the commit changed one of these paths against its first parent, by one diff for all paths."""
    deadline.check()  # cached ranges make no request, and only requests check the deadline
    if not commit.parents:
        return False  # a repository begins empty
    parent = refs.get_commit(ctx, commit.parents[0])
    changes = ctx.trees.diff(parent.metarange, commit.metarange, only=only)
    return next(Comparison(ctx).without_equal(changes), None) is not None


class Lifetime(StrEnum):
    ACTIVE = "active"
    EXAMINED = "being examined"
    """Expired, and a run under way has yet to find whether anything of it goes."""
    MARKED = "marked"
    SWEEPING = "sweeping"
    TAGGED = "tagged"
    """Tagged for the bucket to delete, which has not deleted all of it yet."""
    SWEPT = "swept"
    COMPLETE = "expired, complete"
    """Expired, but other commits keep all of its data: it can be read, copied and branched from."""


class LogEntry(NamedTuple):
    """A commit of the history, and what the offline job is going to do with it, or did."""

    commit: CommitId
    record: Commit
    mark: Mark | None
    complete: Complete | None = None
    examined_by: str = ""
    """The run that has yet to find whether anything of it goes; '': none."""

    @property
    def lifetime(self) -> Lifetime:
        """The state of the whole commit: if only a part of it has expired it is active (`mark.prefixes`)."""
        if self.mark is None and self.complete is not None:
            return Lifetime.COMPLETE
        if self.mark is None and self.examined_by:
            return Lifetime.EXAMINED
        if self.mark is None or self.mark.prefixes:
            return Lifetime.ACTIVE
        if self.mark.swept_ms:
            return Lifetime.SWEPT
        if self.mark.tagged_ms:
            return Lifetime.TAGGED
        return Lifetime.SWEEPING if self.mark.sweeping_ms else Lifetime.MARKED


def history(ctx: Context, ref: str, *, first_parent: bool) -> Iterator[LogEntry]:
    """Yield the log, each commit with its mark."""
    entries = log(ctx, ref, first_parent=first_parent)
    marks = Marks(ctx)
    while page := list(islice(entries, LOG_PAGE)):
        for (commit, record), shown in zip(page, marks.shown([commit for commit, _ in page]), strict=True):
            yield LogEntry(commit, record, *shown)


def merge_base(ctx: Context, left: str, right: str) -> CommitId | None:
    ours, theirs = (refs.resolve(ctx, ref).commit for ref in (left, right))
    return graph.merge_base(lambda commit: refs.get_commit(ctx, commit), ours, theirs)


def diff_refs(ctx: Context, left: str, right: str, *, prefix: str = "", after: str = "") -> Iterator[Change]:
    """Yield the changes from the left ref's commit to the right one's, in path order; staged changes do not count."""
    trees = [refs.get_commit(ctx, refs.resolve(ctx, ref).commit).metarange for ref in (left, right)]
    return Comparison(ctx).without_equal(ctx.trees.diff(trees[0], trees[1], prefix=prefix, after=after))


def diff_staged(ctx: Context, branch: BranchName, *, prefix: str = "", after: str = "") -> Iterator[Change]:
    """Yield the staged changes of a branch against its head, in path order, each page under one branch record."""
    while True:
        page, after = while_still(ctx, branch, lambda record, start=after: _staged_page(ctx, record, prefix, start))
        yield from page
        if not after:
            return


def _staged_page(ctx: Context, record: Branch, prefix: str, after: str) -> tuple[list[Change], str]:
    """Return (the changes, where to continue; '' at the end)."""
    staged = list(islice(ctx.staging.merged(record.live, prefix=prefix, after=after), PAGE))
    head = ctx.trees.get_many(refs.head_commit(ctx, record.head).metarange, [Path(path) for path, _, _ in staged])
    changes: list[Change] = []
    for path, value, _token in staged:
        new = decode_staged(value)
        old = head.get(Path(path))
        if isinstance(new, Entry):
            new = unreferenced(new)
            if old is None:
                changes.append(Change(Path(path), Kind.ADDED, None, new))
            else:
                changes.append(Change(Path(path), Kind.CHANGED, old, new))
        elif old is not None:
            changes.append(Change(Path(path), Kind.REMOVED, old, None))
    noticed = list(Comparison(ctx).without_equal(iter(changes)))
    return noticed, staged[-1][0] if len(staged) == PAGE else ""
