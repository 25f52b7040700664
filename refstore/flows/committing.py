"""Commit, merge, revert and cherry-pick: seal, write, advance.

    seal     a new current token; what was staged before is now behind sealed tokens and stands still, but for late writers,
             who notice that their token moved and write again under the new one (rule 2)
    write    ranges, metarange, the list of added addresses, the commit record: all under names nobody reads yet
    advance  one `set_if` on the branch record moves the head and retires the sealed tokens with the commit's id (rule 3)
    publish  the committed marker, from which the reaper works (rule 7)

Merge, revert, cherry-pick and the removal of what has expired do the same with nothing staged: what they add is committed already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from refstore import keys, user_metadata
from refstore.branches import Branches
from refstore.commits import graph
from refstore.commits.applying import Written
from refstore.commits.imported import Spool
from refstore.commits.merging import Strategy
from refstore.context import Context
from refstore.errors import BranchNotFound, DirtyBranch, Invalid, NothingToCommit, Unavailable
from refstore.flows import refs
from refstore.flows.reading import while_still
from refstore.ids import BranchName, CommitId, Token
from refstore.markers import NOTHING_COMMITTED, Markers
from refstore.records import Branch, Commit, Entry, encode
from refstore.staging import Staging

ATTEMPTS: Final = 8
"""How often a commit starts over because another one took its tokens first."""

Changes = Iterable[tuple[str, Entry | None]]
"""Sorted by path; None removes."""

Made = tuple[CommitId, Commit]
"""A commit that landed, with its record: who shows it need not read it, which could fail where the commit did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOptions:
    message: str
    committer: str = ""
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    date_ms: int | None = None
    """When the commit says it was made; None: now."""
    allow_empty: bool = False

    def __post_init__(self) -> None:
        """Raises Invalid."""
        user_metadata.check(self.metadata, "the commit")


def commit(ctx: Context, branch: BranchName, options: CommitOptions) -> Made:
    """Commit what is staged. Raises NothingToCommit, BranchNotFound, Contention."""
    branches = Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock)
    staging = Staging(ctx.kv, ctx.repo)
    markers = Markers(ctx.kv, ctx.repo, ctx.clock)
    for _ in range(ATTEMPTS):
        if not options.allow_empty and while_still(ctx, branch, lambda seen: _nothing_staged(staging, seen)):
            raise NothingToCommit(f"nothing is staged on branch {branch!r}; upload or delete something first")
        record = branches.seal(branch, lambda: staging.new_token(branch, ctx.ids, ctx.clock))
        base, sealed = record.head, record.sealed
        tree = refs.head_commit(ctx, base)
        written = ctx.trees.apply_encoded(tree.metarange, _changes(staging, sealed))
        if not written.changed and not options.allow_empty:
            # what is staged is what is committed: the tokens are given up, or every later commit would read them again
            if not branches.advance(branch, base, sealed, base, NOTHING_COMMITTED):
                continue  # others took them, so perhaps not all of it was read
            markers.publish(branches, branch)
            raise NothingToCommit(f"what is staged on branch {branch!r} does not change it; there is nothing to commit")
        new, made = _write(ctx, options, (base,), written, sealed)
        if _advance(branches, markers, branch, base, sealed, new):
            _publish(branches, markers, branch)
            return new, made
    raise branches.contention(branch)


def merge(ctx: Context, source: str, branch: BranchName, options: CommitOptions, *, strategy: str = "", squash: bool = False) -> Made:
    """Merge a ref into a branch, three-way. Raises MergeConflict, DirtyBranch, NothingToCommit, Gone, NotFound.

    `strategy`: '' reports conflicts; 'dest-wins' and 'source-wins' decide them (lakeFS's words).
    """
    theirs = refs.resolve(ctx, source).commit

    def base_of(ours: CommitId) -> CommitId | None:
        base = graph.merge_base(lambda commit: refs.get_commit(ctx, commit), ours, theirs)
        if base == theirs and not options.allow_empty:
            raise NothingToCommit(f"branch {branch!r} already has everything of {source!r}")
        return base

    return _three_way(ctx, branch, options, theirs, base_of, strategy=strategy, second_parent=None if squash else theirs)


def revert(ctx: Context, branch: BranchName, ref: str, options: CommitOptions, *, parent: int = 0) -> Made:
    """Undo what a commit did to its parent, on top of the branch. `parent`, from 1, says which one of a merge commit's."""
    undone = refs.resolve(ctx, ref).commit
    return _three_way(ctx, branch, options, _parent(ctx, undone, parent), lambda _ours: undone)


def cherry_pick(ctx: Context, branch: BranchName, ref: str, options: CommitOptions, *, parent: int = 0) -> Made:
    """Do again, on top of the branch, what a commit did to its parent. `parent`, from 1, says which one of a merge commit's."""
    picked = refs.resolve(ctx, ref).commit
    before = _parent(ctx, picked, parent)
    return _three_way(ctx, branch, options, picked, lambda _ours: before)


def remove(ctx: Context, branch: BranchName, options: CommitOptions, paths_of: Callable[[CommitId], Iterable[str]]) -> Made:
    """Commit the removal of committed paths: of those, in order, that `paths_of` names for the head that is found, and that are there.

    Raises DirtyBranch: it has staged changes, which stay as they are. Raises NothingToCommit, BranchNotFound, Contention.
    """
    return _combine(ctx, branch, options, lambda ours: _applied(ctx, ours, ((path, None) for path in paths_of(ours))))


def replace(
    ctx: Context,
    branch: BranchName,
    options: CommitOptions,
    spool: Spool,
    prefixes: Sequence[str],
    about_to_land: Callable[[CommitId], None],
) -> tuple[Made, Written]:
    """Commit what the spool holds in place of all that the head has below the prefixes, none of which lies in another.

    `about_to_land` is told the commit's id before the branch is moved to it. Raises DirtyBranch, NothingToCommit, BranchNotFound,
    Contention, and what `about_to_land` raises: nothing has landed then.
    """
    written: list[Written] = []

    def write(ours: CommitId) -> Written:
        written.append(ctx.trees.replace(_tree(ctx, ours), spool, prefixes))
        return written[-1]

    return _combine(ctx, branch, options, write, about_to_land=about_to_land), written[-1]


def _three_way(
    ctx: Context,
    branch: BranchName,
    options: CommitOptions,
    theirs: CommitId | None,
    base_of: Callable[[CommitId], CommitId | None],
    *,
    strategy: str = "",
    second_parent: CommitId | None = None,
) -> Made:
    """Three-way merge of `theirs` into the branch, against the base that is found for its head. None is the empty tree."""
    decides = _strategy(strategy)

    def changes_of(ours: CommitId) -> Changes:
        return ctx.trees.merge_changes(_tree(ctx, base_of(ours)), _tree(ctx, ours), _tree(ctx, theirs), decides)

    return _combine(ctx, branch, options, lambda ours: _applied(ctx, ours, changes_of(ours)), theirs=theirs, second_parent=second_parent)


def _combine(
    ctx: Context,
    branch: BranchName,
    options: CommitOptions,
    written_on: Callable[[CommitId], Written],
    *,
    theirs: CommitId | None = None,
    second_parent: CommitId | None = None,
    about_to_land: Callable[[CommitId], None] = lambda _commit: None,
) -> Made:
    """Commit changes of what is committed, where nothing is staged. `theirs`: the commit that they bring in.

    `written_on`: write the tree that is to follow the branch's head.
    """
    branches = Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock)
    staging = Staging(ctx.kv, ctx.repo)
    markers = Markers(ctx.kv, ctx.repo, ctx.clock)
    for _ in range(ATTEMPTS):
        if theirs is not None:
            refs.check_mark(ctx, theirs)  # what it alone names is on its way out; the barrier waits for us if it is marked later
        seen = branches.open(branch).record
        if not _nothing_staged(staging, seen):
            raise _dirty(branch)
        ours = seen.head
        written = written_on(ours)
        if not written.changed and second_parent is None and not options.allow_empty:
            raise NothingToCommit(f"branch {branch!r} has these changes already")
        record = branches.seal(branch, lambda: staging.new_token(branch, ctx.ids, ctx.clock))
        if any(not staging.is_empty(token) for token in record.sealed):
            raise _dirty(branch)  # a writer came in between; its changes stay staged, behind a sealed token
        if record.head != ours:
            continue
        parents = (ours,) if second_parent is None else (ours, second_parent)
        new, made = _write(ctx, options, parents, written, record.sealed)
        about_to_land(new)
        if _advance(branches, markers, branch, ours, record.sealed, new):
            _publish(branches, markers, branch)
            return new, made
    raise branches.contention(branch)


def _advance(branches: Branches, markers: Markers, branch: BranchName, base: CommitId, sealed: tuple[Token, ...], new: CommitId) -> bool:
    """Whether the branch was moved to the new commit, by this call or by an attempt whose reply was lost and that others overtook."""
    try:
        return branches.advance(branch, base, sealed, new, new) or markers.landed(new)
    except BranchNotFound:
        if markers.landed(new):
            return True  # committed, and deleted since
        raise


def _publish(branches: Branches, markers: Markers, branch: BranchName) -> None:
    """What is behind a commit's landing. Where a store fails in it, it has landed all the same, and whoever comes next does it."""
    with suppress(Unavailable):
        markers.publish(branches, branch)


def _changes(staging: Staging, sealed: Sequence[Token]) -> Iterator[tuple[str, bytes]]:
    """What the sealed tokens change, in path order and as it is encoded: the last token that knows a path decides."""
    return ((path, value) for path, value, _token in staging.merged(tuple(reversed(sealed))))


def _strategy(name: str) -> Strategy:
    try:
        return Strategy(name or Strategy.NONE.value)
    except ValueError:
        raise Invalid(f"{name!r} is not a merge strategy; use one of {', '.join(item.value for item in Strategy)}") from None


def _write(ctx: Context, options: CommitOptions, parents: tuple[CommitId, ...], written: Written, tokens: tuple[Token, ...]) -> Made:
    """The commit record, under an id that nothing names yet. Writing it again writes the same."""
    record = Commit(
        parents=parents,
        metarange=written.metarange,
        added=written.added,
        tokens=tokens,
        created_ms=ctx.clock.now_ms() if options.date_ms is None else options.date_ms,
        committer=options.committer,
        message=options.message,
        metadata=dict(options.metadata),
        generation=1 + max(refs.get_commit(ctx, parent).generation for parent in parents),
    )
    new = graph.commit_id(record)
    ctx.kv.set(keys.commit(ctx.repo, new), encode(record))
    return new, record


def _applied(ctx: Context, ours: CommitId, changes: Changes) -> Written:
    return ctx.trees.apply(_tree(ctx, ours), changes)


def check_clean(ctx: Context, branch: BranchName) -> None:
    """Raise DirtyBranch where something is staged. That it is so while a commit is made is found out by the commit."""
    branches = Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock)
    if not _nothing_staged(Staging(ctx.kv, ctx.repo), branches.open(branch).record):
        raise _dirty(branch)


def _nothing_staged(staging: Staging, record: Branch) -> bool:
    return all(staging.is_empty(token) for token in record.live)


def _tree(ctx: Context, commit: CommitId | None) -> str:
    return refs.get_commit(ctx, commit).metarange if commit is not None else ""


def _parent(ctx: Context, commit: CommitId, number: int) -> CommitId | None:
    """The parent that a commit is compared with. Raises Invalid where it must be said which."""
    parents = refs.get_commit(ctx, commit).parents
    if number == 0 and len(parents) <= 1:
        return parents[0] if parents else None
    if not 1 <= number <= len(parents):
        raise Invalid(f"commit {commit} has {len(parents)} parents; say which one to compare with, from 1 to {len(parents)}")
    return parents[number - 1]


def _dirty(branch: BranchName) -> DirtyBranch:
    return DirtyBranch(f"branch {branch!r} has uncommitted changes; commit or reset them first")
