"""Commit, merge, revert and cherry-pick: seal, write, advance.

    seal     make a new token current; the entries under the sealed tokens stand still from then on, but for those of
             late writers, who notice that their token moved and write again under the new one (rule 2)
    write    write ranges, metarange, the listing of added addresses and the commit record, all under new names
    advance  move the head and retire the sealed tokens with the commit's id, by one `set_if` on the branch record
             (rule 3): a committer that dies behind that leaves no token without a fate
    enter    write the commit to the manifest in the object store, so that it survives the KV (rule 21)
    publish  publish the committed marker, from which the reaper works (rule 7)

Merge, revert, cherry-pick and the removal of expired objects do the same with nothing staged: what they add is
committed already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypedDict, cast

from refstore.context import Context
from refstore.core import argument_types, user_metadata
from refstore.core.clock import to_ms
from refstore.core.ids import BranchName, CommitId, Token
from refstore.errors import (
    BranchNotFound,
    DirtyBranch,
    Invalid,
    ManifestBehind,
    NothingToCommit,
    ObjectsUnavailable,
    Unavailable,
)
from refstore.operations import refs
from refstore.operations.content_comparison import ContentComparison
from refstore.operations.read import read_consistent
from refstore.public_types import Commit, stored_commit
from refstore.records import keys
from refstore.records.branch_records import StoredBranch
from refstore.records.commit_records import StoredCommit
from refstore.records.encoding import encode
from refstore.records.staging_records import StoredEntry
from refstore.versioning.commits import graph
from refstore.versioning.commits.sorted_runs import SortedRuns
from refstore.versioning.commits.tree_merge import MergeStrategy, merge_changes
from refstore.versioning.commits.tree_rewrite import WrittenTree
from refstore.versioning.manifest import CommitLanded
from refstore.versioning.markers import NOTHING_COMMITTED_CAUSE

ATTEMPTS: Final = 8
"""How often a commit starts over because another one took its tokens first."""

EntryChanges = Iterable[tuple[str, StoredEntry | None]]
"""Changes of a tree, sorted by path; None removes."""


class CommitDetails(TypedDict, total=False):
    """Keyword arguments of every method that makes a commit; each may be left out."""

    committer: str
    metadata: Mapping[str, str]
    date: datetime | None
    """The commit's date; None: now."""
    date_is_only_shown: bool
    """Whether retention counts the commit as made now, whatever its date; otherwise the date counts."""
    allow_empty: bool
    """Whether to make a commit that changes nothing; otherwise the method raises NothingToCommit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOptions:
    message: str
    committer: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    date_ms: int | None = None
    """When the commit says it was made; None: now."""
    date_is_only_shown: bool = False
    """Whether retention counts the commit as made now, as the date is not from somebody who may let data expire."""
    allow_empty: bool = False
    notes: dict[str, str] = field(default_factory=dict[str, str], init=False)
    """What refstore itself says of the commit: no caller gives it (`with_notes`)."""

    def __post_init__(self) -> None:
        """Raises Invalid."""
        argument_types.check_text(self.message, "message")
        argument_types.check_text(self.committer, "committer")
        argument_types.check_flag(self.allow_empty, "allow_empty")
        user_metadata.check_user_metadata(self.metadata, "the commit", given=user_metadata.TRANSACTION)

    @classmethod
    def of_details(cls, message: str, details: CommitDetails) -> CommitOptions:
        """Return what a caller of the SDK gave. Raises Invalid."""
        date = details.get("date")
        if date is not None:
            argument_types.check_moment(date, "date")
        others = {name: value for name, value in details.items() if name != "date"}
        return cls(message=message, date_ms=None if date is None else to_ms(date), **cast("Any", others))

    def with_notes(self, notes: Mapping[str, str]) -> CommitOptions:
        """Return the same options with what refstore says of the commit."""
        noted = copy(self)
        object.__setattr__(noted, "notes", dict(notes))
        return noted


def commit(ctx: Context, branch: BranchName, options: CommitOptions) -> Commit:
    """Commit what is staged. Raises NothingToCommit, BranchNotFound, Contention."""
    branches = ctx.branches
    staging = ctx.staging
    for _ in range(ATTEMPTS):
        if not options.allow_empty and read_consistent(
            ctx, branch, lambda branch_record: _has_nothing_staged(ctx, branch_record)
        ):
            raise NothingToCommit(f"nothing is staged on branch {branch!r}; upload or delete something first")
        record = branches.seal(branch, lambda: staging.new_token(branch, ctx.ids, ctx.clock))
        base, sealed = record.head, record.sealed_tokens
        tree = refs.head_commit(ctx, base)
        changes = staging.scan_merged(tuple(reversed(sealed)))  # the last token that has a path decides
        written = ctx.trees.apply_encoded(tree.metarange, ((path, value) for path, value, _token in changes))
        if not options.allow_empty and ContentComparison(ctx).changes_nothing(tree.metarange, written):
            # the staged entries equal the committed ones: retire their tokens, or every later commit reads them again
            if not branches.advance(branch, base, sealed, base, NOTHING_COMMITTED_CAUSE):
                continue  # another commit took the tokens, so perhaps not all entries were read
            ctx.markers.publish(branches, branch)
            raise NothingToCommit(f"what is staged on branch {branch!r} does not change it; there is nothing to commit")
        new_commit = write_commit(ctx, options, (base,), written, sealed)
        if _advance_branch(ctx, branch, base, sealed, new_commit.id):
            _publish_commit(ctx, branch, record.id, new_commit)
            return new_commit
    raise branches.contention(branch)


def merge(
    ctx: Context, branch: BranchName, source: str, options: CommitOptions, *, strategy: str = "", squash: bool = False
) -> Commit:
    """Merge a ref into a branch, three-way. Raises MergeConflict, DirtyBranch, NothingToCommit, Gone, NotFound.

    `strategy`: '' reports conflicts; 'dest-wins' and 'source-wins' decide them (lakeFS's words).
    """
    theirs = refs.resolve(ctx, source).commit

    def base_of(ours: CommitId) -> CommitId | None:
        base = graph.merge_base(lambda commit: refs.get_commit(ctx, commit), ours, theirs)
        if base == theirs and not options.allow_empty:
            raise NothingToCommit(f"branch {branch!r} already has everything of {source!r}")
        return base

    return _merge_three_way(
        ctx, branch, options, theirs, base_of, strategy=strategy, second_parent=None if squash else theirs
    )


def revert(ctx: Context, branch: BranchName, ref: str, options: CommitOptions, *, parent: int = 0) -> Commit:
    """Undo a commit on top of the branch. `parent`, from 1, selects the parent that a merge commit is compared with."""
    undone = refs.resolve(ctx, ref).commit
    return _merge_three_way(ctx, branch, options, _select_parent(ctx, undone, parent), lambda _ours: undone)


def cherry_pick(ctx: Context, branch: BranchName, ref: str, options: CommitOptions, *, parent: int = 0) -> Commit:
    """Repeat a commit's changes on top of the branch. `parent`, from 1, selects a merge commit's parent."""
    picked = refs.resolve(ctx, ref).commit
    before = _select_parent(ctx, picked, parent)
    return _merge_three_way(ctx, branch, options, picked, lambda _ours: before)


def commit_removal(
    ctx: Context, branch: BranchName, options: CommitOptions, paths_of: Callable[[CommitId], Iterable[str]]
) -> Commit:
    """Commit the removal of the paths, in order, that `paths_of` returns for the branch's head.

    Raises DirtyBranch where the branch has staged changes, which stay as they are; NothingToCommit, BranchNotFound,
    Contention.
    """
    return _commit_tree(
        ctx, branch, options, lambda ours: _apply_changes(ctx, ours, ((path, None) for path in paths_of(ours)))
    )


def commit_replacement(
    ctx: Context,
    branch: BranchName,
    options: CommitOptions,
    spool: SortedRuns,
    prefixes: Sequence[str],
    about_to_land: Callable[[CommitId], None],
) -> tuple[Commit, WrittenTree]:
    """Commit the spooled entries in place of all that the head has below the prefixes, none of which lies in another.

    `about_to_land` is called with the commit's id before the branch is moved to it. Raises DirtyBranch,
    NothingToCommit, BranchNotFound, Contention, and what `about_to_land` raises: nothing has landed then.
    """
    written: list[WrittenTree] = []

    def write(ours: CommitId) -> WrittenTree:
        written.append(ctx.trees.replace_prefixes(_metarange_of(ctx, ours), spool, prefixes))
        return written[-1]

    return _commit_tree(ctx, branch, options, write, about_to_land=about_to_land), written[-1]


def _merge_three_way(
    ctx: Context,
    branch: BranchName,
    options: CommitOptions,
    theirs: CommitId | None,
    base_of: Callable[[CommitId], CommitId | None],
    *,
    strategy: str = "",
    second_parent: CommitId | None = None,
) -> Commit:
    """Merge `theirs` into the branch, three-way, against the base that `base_of` returns for the branch's head.

    None stands for the empty tree.
    """
    decides = _parse_strategy(strategy)

    def changes_of(ours: CommitId) -> EntryChanges:
        base, own, other = (_metarange_of(ctx, commit) for commit in (base_of(ours), ours, theirs))
        return merge_changes(ctx.trees, base, own, other, decides, ContentComparison(ctx).are_equal)

    return _commit_tree(
        ctx,
        branch,
        options,
        lambda ours: _apply_changes(ctx, ours, changes_of(ours)),
        theirs=theirs,
        second_parent=second_parent,
    )


def _commit_tree(
    ctx: Context,
    branch: BranchName,
    options: CommitOptions,
    written_on: Callable[[CommitId], WrittenTree],
    *,
    theirs: CommitId | None = None,
    second_parent: CommitId | None = None,
    about_to_land: Callable[[CommitId], None] = lambda _commit: None,
) -> Commit:
    """Commit a tree that is made of committed ones, where nothing is staged.

    `written_on` writes the tree that follows the branch's head. `theirs`: the commit whose changes it brings in.
    """
    branches = ctx.branches
    staging = ctx.staging
    for _ in range(ATTEMPTS):
        if theirs is not None:
            # Objects that only a marked commit names will be deleted. A run that marks it later waits for this call.
            refs.check_mark(ctx, theirs)
        branch_record = branches.read_open(branch).record
        if not _has_nothing_staged(ctx, branch_record):
            raise _dirty_branch(branch)
        ours = branch_record.head
        written = written_on(ours)
        if (
            second_parent is None
            and not options.allow_empty
            and ContentComparison(ctx).changes_nothing(_metarange_of(ctx, ours), written)
        ):
            raise NothingToCommit(f"branch {branch!r} has these changes already")
        record = branches.seal(branch, lambda: staging.new_token(branch, ctx.ids, ctx.clock))
        if any(not staging.is_empty(token) for token in record.sealed_tokens):
            raise _dirty_branch(branch)  # a client staged changes meanwhile; they stay staged under a sealed token
        if record.head != ours:
            continue
        parents = (ours,) if second_parent is None else (ours, second_parent)
        new_commit = write_commit(ctx, options, parents, written, record.sealed_tokens)
        about_to_land(new_commit.id)
        if _advance_branch(ctx, branch, ours, record.sealed_tokens, new_commit.id):
            _publish_commit(ctx, branch, record.id, new_commit)
            return new_commit
    raise branches.contention(branch)


def _advance_branch(ctx: Context, branch: BranchName, base: CommitId, sealed: tuple[Token, ...], new: CommitId) -> bool:
    """Return whether the branch was moved to the new commit: by this call, or by an attempt whose reply was lost."""
    try:
        return ctx.branches.advance(branch, base, sealed, new, new) or ctx.markers.has_landed(new)
    except BranchNotFound:
        if ctx.markers.has_landed(new):
            return True  # the commit landed, and the branch was deleted since
        raise


def _publish_commit(ctx: Context, branch: BranchName, branch_id: str, new_commit: Commit) -> None:
    """Write the commit to the manifest, then publish its marker. Raises ManifestBehind: the commit landed all the same.

    Publishing is best effort, because the next operation or the reaper repeats it.
    """
    try:
        ctx.manifest.add(CommitLanded(new_commit.id, encode(stored_commit(new_commit)), branch, branch_id))
    except ObjectsUnavailable as error:
        happened = (
            f"commit {new_commit.id} is on branch {branch!r}; look at the branch's log, and do not commit again: the "
            "reaper writes it to the manifest"
        )
        raise ManifestBehind(f"{happened}. Until then it is lost if the KV is ({error})", happened=happened) from error
    with suppress(Unavailable):
        ctx.markers.publish(ctx.branches, branch, own=new_commit.id)


def _parse_strategy(name: str) -> MergeStrategy:
    try:
        return MergeStrategy(name or MergeStrategy.NONE.value)
    except ValueError:
        raise Invalid(
            f"{name!r} is not a merge strategy; use one of {', '.join(item.value for item in MergeStrategy)}"
        ) from None


def write_commit(
    ctx: Context, options: CommitOptions, parents: tuple[CommitId, ...], written: WrittenTree, tokens: tuple[Token, ...]
) -> Commit:
    """Write the commit record, under an id that nothing names yet. Writing it again writes the same."""
    now_ms = ctx.clock.now_ms()
    record = StoredCommit(
        parents=parents,
        metarange=written.metarange,
        added_addresses_id=written.added_addresses_id,
        tokens=tokens,
        created_ms=now_ms if options.date_ms is None else options.date_ms,
        committer=options.committer,
        message=options.message,
        metadata=dict(options.metadata),
        generation=graph.next_generation(refs.get_commit(ctx, parent) for parent in parents),
        recorded_ms=now_ms if options.date_is_only_shown and options.date_ms is not None else None,
        notes=options.notes,
    )
    new = graph.commit_id(record)
    ctx.kv.set(keys.commit(ctx.repo, new), encode(record))
    return Commit(new, record)


def _apply_changes(ctx: Context, ours: CommitId, changes: EntryChanges) -> WrittenTree:
    return ctx.trees.apply(_metarange_of(ctx, ours), changes)


def check_clean(ctx: Context, branch: BranchName) -> None:
    """Raise DirtyBranch where something is staged. What is staged later, the commit itself refuses."""
    if not _has_nothing_staged(ctx, ctx.branches.read_open(branch).record):
        raise _dirty_branch(branch)


def _has_nothing_staged(ctx: Context, record: StoredBranch) -> bool:
    return all(ctx.staging.is_empty(token) for token in record.live_tokens)


def _metarange_of(ctx: Context, commit: CommitId | None) -> str:
    return refs.get_commit(ctx, commit).metarange if commit is not None else ""


def _select_parent(ctx: Context, commit: CommitId, number: int) -> CommitId | None:
    """Return the parent that a commit is compared with. Raises Invalid where the caller has to select one."""
    parents = refs.get_commit(ctx, commit).parents
    if number == 0 and len(parents) <= 1:
        return parents[0] if parents else None
    if not 1 <= number <= len(parents):
        raise Invalid(
            f"commit {commit} has {len(parents)} parents; say which one to compare with, from 1 to {len(parents)}"
        )
    return parents[number - 1]


def _dirty_branch(branch: BranchName) -> DirtyBranch:
    return DirtyBranch(f"branch {branch!r} has uncommitted changes; commit or reset them first")
