"""Find the commits and branches that name an address or a path, by a bounded search of commit records and trees.

No record lists them. A commit's listing has the addresses that it added, and a tree has the entry at a path. The trees
of swept commits stay, so the search also works for deleted objects. Each answer says whether the search was complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core.clock import to_datetime
from refstore.core.ids import Address, BranchName, CommitId
from refstore.gc_marks import Marks, MarkStatus
from refstore.operations import refs
from refstore.operations.committed_names import adding_commits, landed_commits
from refstore.operations.log_and_diff import CommitLifetime, lifetime_of
from refstore.public_types import Mark
from refstore.records.commit_records import StoredCommit
from refstore.versioning.commits import graph

COMMITS_MAX: Final = 300
"""How many commits' trees are searched."""
BRANCHES_MAX: Final = 100
CHANGES_MAX: Final = 200_000
"""How many paths of one commit are compared with its parent's."""
PATHS_MAX: Final = 8


class NamingCommit(NamedTuple):
    """A commit that names an address."""

    commit: CommitId
    created: datetime
    path: str
    lifetime: CommitLifetime
    mark: Mark | None
    """If it has expired: since when, by which run, and when its data will be or was deleted."""


class NamingCommits(NamedTuple):
    """The commits and branches that name an address."""

    branches: tuple[tuple[BranchName, str], ...]
    """Branches whose heads name it, each with a path."""
    commits: tuple[NamingCommit, ...]
    """Newest first."""
    complete: bool
    """Whether everything was searched. If not, there may be more."""


class Version(NamedTuple):
    """The entry at a path of a branch, from one commit until another."""

    address: Address | None
    """None: there was no entry."""
    since: NamingCommit
    """The oldest searched commit that has it there."""
    until: NamingCommit
    """The newest one."""
    commits: int


def naming_commits(ctx: Context, address: Address) -> NamingCommits:
    """Find the commit that added an address, its paths there, and the later commits that name it. Raises Corrupt,
    Unavailable.
    """
    added_by, all_read = _added_by(ctx, address)
    if added_by is None:
        return NamingCommits((), (), complete=all_read)
    commit_id, commit = added_by
    paths, all_paths = _paths_in(ctx, commit, address)
    branches: list[tuple[BranchName, str]] = []
    naming: dict[CommitId, tuple[StoredCommit, str]] = {commit_id: (commit, paths[0])} if paths else {}
    heads = list(islice(ctx.branches.scan_open(), BRANCHES_MAX + 1))
    left = COMMITS_MAX
    complete = all_paths and len(heads) <= BRANCHES_MAX
    for branch, record in heads[:BRANCHES_MAX]:
        path = _path_of(ctx, refs.head_commit(ctx, record.head), paths, address)
        if path is not None:
            branches.append((branch, path))
        for descendant_id, descendant in islice(_line(ctx, record.head), COMMITS_MAX + 1):
            if descendant_id in naming or descendant.generation < commit.generation:
                break
            if not left:
                complete = False
                break
            left -= 1
            path_there = _path_of(ctx, descendant, paths, address)
            if path_there is not None:
                naming[descendant_id] = (descendant, path_there)
    return NamingCommits(tuple(branches), tuple(_with_marks(ctx, naming)), complete)


def versions_of(ctx: Context, ref: str | None, path: str) -> tuple[list[Version], bool]:
    """Return the committed entries of a path, newest first, and whether all of history was searched.

    `ref`: search along its line of first parents. None (its branch was deleted): search every commit that landed, by
    date. Then the answer has the entries, but not the commits that removed the path.
    """
    if ref is not None:
        line = _line(ctx, refs.resolve(ctx, ref).commit)
    else:
        rows = sorted(landed_commits(ctx), key=lambda row: -row[1].created_ms)
        line = iter(rows)
    commits = dict(islice(line, COMMITS_MAX))
    complete = next(line, None) is None
    marks = dict(zip(commits, Marks(ctx).statuses.read(list(commits)), strict=True))
    found: list[Version] = []
    for commit_id, commit in commits.items():
        entry = ctx.trees.get(commit.metarange, path)
        here = _naming_commit(commit_id, commit, path, marks[commit_id])
        address = entry.address if entry is not None else None
        at = _version_at(found, address, along=ref is not None)
        if at is None:
            found.append(Version(address, here, here, 1))
        else:
            found[at] = found[at]._replace(since=here, commits=found[at].commits + 1)
    return [version for version in found if version.address is not None or ref is not None], complete


def _version_at(found: Sequence[Version], address: Address | None, *, along: bool) -> int | None:
    if along:
        return len(found) - 1 if found and found[-1].address == address else None
    return next((at for at, version in enumerate(found) if version.address == address), None)


def _added_by(ctx: Context, address: Address) -> tuple[tuple[CommitId, StoredCommit] | None, bool]:
    """Return the commit whose listing has the address, and whether all listings needed for that were read."""
    for found in adding_commits(ctx, address):
        return found, found is not None
    return None, True


def _line(ctx: Context, head: CommitId) -> Iterator[tuple[CommitId, StoredCommit]]:
    return graph.log(lambda commit: refs.get_commit(ctx, commit), head, first_parent=True)


def _paths_in(ctx: Context, commit: StoredCommit, address: Address) -> tuple[list[str], bool]:
    """Return the paths at which a commit put an address, and whether all its changes were searched."""
    parent = refs.get_commit(ctx, commit.parents[0]).metarange if commit.parents else ""
    changes = ctx.trees.diff(parent, commit.metarange)
    paths = [
        change.path
        for change in islice(changes, CHANGES_MAX)
        if change.right is not None and change.right.address == address
    ]
    return paths[:PATHS_MAX], next(changes, None) is None and len(paths) <= PATHS_MAX


def _path_of(ctx: Context, commit: StoredCommit, paths: Iterable[str], address: Address) -> str | None:
    found = ctx.trees.get_many(commit.metarange, paths)
    return next((path for path, entry in found.items() if entry.address == address), None)


def _with_marks(ctx: Context, naming: dict[CommitId, tuple[StoredCommit, str]]) -> Iterator[NamingCommit]:
    ordered = sorted(naming, key=lambda name: -naming[name][0].created_ms)
    for name, shown in zip(ordered, Marks(ctx).statuses.read(ordered), strict=True):
        commit, path = naming[name]
        yield _naming_commit(name, commit, path, shown)


def _naming_commit(commit_id: CommitId, commit: StoredCommit, path: str, shown: MarkStatus) -> NamingCommit:
    mark = Mark.of_record(shown.mark) if shown.mark is not None else None
    return NamingCommit(commit_id, to_datetime(commit.created_ms), path, lifetime_of(shown), mark)
