"""Log and diff."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from refstore import deadline
from refstore.commits import graph
from refstore.commits.diffing import Change, Kind
from refstore.commits.filters import PathFilter
from refstore.commits.ranges import alike
from refstore.context import Context
from refstore.flows import refs
from refstore.flows.reading import while_still
from refstore.ids import BranchName, CommitId, Path
from refstore.marks import Marks
from refstore.records import Branch, Commit, Complete, Entry, Mark, decode_staged, unreferenced
from refstore.staging import Staging

LOG_PAGE = 100
"""Commits whose marks are read in one round trip."""
PAGE = 1000
"""Staged changes that are compared with the head under one reading of the branch record."""


def log(ctx: Context, ref: str, *, first_parent: bool, since_ms: int | None = None) -> Iterator[tuple[CommitId, Commit]]:
    """The ref's commit and its ancestors, newest first; each line as far as its first commit that is older than `since_ms`."""
    head = refs.resolve(ctx, ref).commit
    return graph.log(lambda commit: refs.get_commit(ctx, commit), head, first_parent=first_parent, since_ms=since_ms)


def changed(ctx: Context, commit: Commit, only: PathFilter) -> bool:
    """Whether the commit changed one of these paths, against its first parent: one diff, however many paths and prefixes there are."""
    deadline.check()  # what is cached asks no store, which would look
    if not commit.parents:
        return False  # a repository begins empty
    parent = refs.get_commit(ctx, commit.parents[0])
    changes = ctx.trees.diff(parent.metarange, commit.metarange, only=only)
    return any(not _is_same_upload(change) for change in changes)


class Lifetime(StrEnum):
    ACTIVE = "active"
    MARKED = "marked"
    SWEEPING = "sweeping"
    TAGGED = "tagged"
    """For the bucket to delete, which it has not all done yet."""
    SWEPT = "swept"
    COMPLETE = "expired, complete"
    """It has expired, and nothing of what it names goes, as others keep it: it can be read, copied and branched from."""


class Logged(NamedTuple):
    """A line of the history: a commit, and what the offline job means to do with it, or did."""

    commit: CommitId
    record: Commit
    mark: Mark | None
    complete: Complete | None = None

    @property
    def lifetime(self) -> Lifetime:
        """Of the commit as a whole: one of which only a part has expired is active (`mark.prefixes`)."""
        if self.mark is None and self.complete is not None:
            return Lifetime.COMPLETE
        if self.mark is None or self.mark.prefixes:
            return Lifetime.ACTIVE
        if self.mark.swept_ms:
            return Lifetime.SWEPT
        if self.mark.tagged_ms:
            return Lifetime.TAGGED
        return Lifetime.SWEEPING if self.mark.sweeping_ms else Lifetime.MARKED


def history(ctx: Context, ref: str, *, first_parent: bool) -> Iterator[Logged]:
    """The log, each commit with its mark."""
    found = log(ctx, ref, first_parent=first_parent)
    marks = Marks(ctx)
    while page := list(islice(found, LOG_PAGE)):
        for (commit, record), (mark, complete) in zip(page, marks.shown([commit for commit, _ in page]), strict=True):
            yield Logged(commit, record, mark, complete)


def merge_base(ctx: Context, left: str, right: str) -> CommitId | None:
    ours, theirs = (refs.resolve(ctx, ref).commit for ref in (left, right))
    return graph.merge_base(lambda commit: refs.get_commit(ctx, commit), ours, theirs)


def diff_refs(ctx: Context, left: str, right: str, *, prefix: str = "", after: str = "") -> Iterator[Change]:
    """What is on the right and not on the left, and so on, by commits: what is staged does not count. In path order."""
    trees = [refs.get_commit(ctx, refs.resolve(ctx, ref).commit).metarange for ref in (left, right)]
    return (change for change in ctx.trees.diff(trees[0], trees[1], prefix=prefix, after=after) if not _is_same_upload(change))


def _is_same_upload(change: Change) -> bool:
    """Whether the file was uploaded again as it was: it has another address and another time, and nobody would call that a change."""
    return change.left is not None and change.right is not None and alike(change.left, change.right)


def diff_staged(ctx: Context, branch: BranchName, *, prefix: str = "", after: str = "") -> Iterator[Change]:
    """What is staged on a branch, against its head. In path order; each page under a branch record that stood still."""
    while True:
        page, after = while_still(ctx, branch, lambda record, start=after: _staged_page(ctx, record, prefix, start))
        yield from page
        if not after:
            return


def _staged_page(ctx: Context, record: Branch, prefix: str, after: str) -> tuple[list[Change], str]:
    """(the changes, where to go on; '' at the end)."""
    staged = list(islice(Staging(ctx.kv, ctx.repo).merged(record.live, prefix=prefix, after=after), PAGE))
    head = ctx.trees.get_many(refs.head_commit(ctx, record.head).metarange, [Path(path) for path, _, _ in staged])
    changes: list[Change] = []
    for path, value, _token in staged:
        new = decode_staged(value)
        old = head.get(Path(path))
        if isinstance(new, Entry):
            new = unreferenced(new)
            if old is None:
                changes.append(Change(Path(path), Kind.ADDED, None, new))
            elif old != new and not alike(old, new):
                changes.append(Change(Path(path), Kind.CHANGED, old, new))
        elif old is not None:
            changes.append(Change(Path(path), Kind.REMOVED, old, None))
    return changes, staged[-1][0] if len(staged) == PAGE else ""
