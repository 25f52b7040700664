"""List what `verify` looks at: the objects of a data set at the heads, or in every version.

Every version means staging areas, heads, tags, each commit that can be read or unmarked, and the undo trash: rules that
hide marked commits hide none of them here. What a sweep takes at the moment is looked at while it is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from refstore.context import Context
from refstore.core.batches import split_batches
from refstore.core.ids import Address, CommitId, Path
from refstore.errors import BranchNotFound, CorruptObject, Gone, Invalid, NotFound
from refstore.gc_marks.commit_marks import CommitMarks
from refstore.operations import refs
from refstore.operations.commit_entries import entries_of_commit
from refstore.operations.read import current_contents
from refstore.operations.referenced_entries import referenced_entries
from refstore.operations.version_entries import scan_versions
from refstore.purge_document.document import KEEP_HISTORY, Dataset
from refstore.records import keys
from refstore.records.commit_records import Commit
from refstore.records.encoding import decode
from refstore.records.staging_records import Entry
from refstore.repository import Repository
from refstore_purge.verify_file_metadata import is_read


class VerifyTarget(NamedTuple):
    """An object under one of its names."""

    ref: str
    """The branch, the commit, or 'trash of' a branch."""
    path: str
    entry: Entry
    """As it is committed or staged; of a head as it is shown."""
    content: Address
    """The address of its content; '': it was erased."""
    size_bytes: int
    is_shown: bool
    """Whether the entry is as a head shows it, with the address of its content."""


def scan_head_targets(repo: Repository, dataset: Dataset) -> Iterator[VerifyTarget]:
    """Yield the objects of a data set at the branches that it purges, staged ones too."""
    for branch in branch_names(repo):
        if dataset.has_branch(branch):
            with suppress(BranchNotFound):  # it has just been deleted
                for path, entry in repo.list(branch, prefix=dataset.prefix):
                    if entry is not None and is_read(dataset, path):
                        yield VerifyTarget(branch, path, entry, entry.address, entry.size_bytes, True)


def scan_version_targets(repo: Repository, dataset: Dataset) -> Iterator[VerifyTarget]:
    """Yield the objects of a data set in every version, each distinct one at least once."""
    ctx = repo.context
    entries = ((ref, path, entry) for ref, path, entry in _entries(ctx, dataset) if is_read(dataset, path))
    for page in split_batches(entries):
        places = _contents(ctx, [entry for _, _, entry in page])
        for (ref, path, entry), (content, size_bytes) in zip(page, places, strict=True):
            yield VerifyTarget(ref, path, entry, content, size_bytes, False)


def branch_names(repo: Repository) -> list[str]:
    return [name for name, record in repo.branches() if not record.is_hidden]


def count_commits(ctx: Context) -> int:
    """Return how many commits can be read or unmarked."""
    commits = sum(1 for _ in ctx.kv.scan_all(keys.commits(ctx.repo)))
    return commits - sum(1 for _, mark in CommitMarks(ctx).scan() if mark.swept_ms and not mark.prefixes)


def find_replaced_content(repo: Repository, target: VerifyTarget) -> VerifyTarget | None:
    """Return where a content lies that was not there: another run has replaced it meanwhile. None: nobody can read it
    any more. Raises CorruptObject where it should be there.
    """
    ctx = repo.context
    if target.is_shown:
        try:
            entry = repo.stat(target.ref, target.path)
            if entry.address != target.content:
                return target._replace(entry=entry, content=entry.address, size_bytes=entry.size_bytes)
            next(repo.get(target.ref, target.path), b"")
        except (Gone, NotFound):
            return None
        return target
    ((content, size_bytes),) = _contents(ctx, [target.entry])
    if content != target.content:
        return target._replace(content=content, size_bytes=size_bytes)
    if isinstance(ctx.kv.get(keys.commit(ctx.repo, CommitId(target.ref))), bytes):
        commit = CommitId(target.ref)
        is_named = ctx.markers.has_landed(commit) and refs.swept_mark(ctx, commit, Path(target.path)) is None
    else:
        is_named = False
        with suppress(NotFound, Gone, Invalid):  # what is in the trash has no ref
            is_named = repo.resolve(target.ref, target.path).entry.address == target.entry.address
    if is_named:
        raise CorruptObject("its content is not in the store; do not run any collection, and report this")
    return None


def _contents(ctx: Context, entries: list[Entry]) -> list[tuple[Address, int]]:
    """Return where the contents of entries lie, and their sizes; '': erased."""
    located = current_contents(ctx, entries) if ctx.locations.are_announced() else {}
    return [(each.address, each.size_bytes) for each in (located.get(entry.address, entry) for entry in entries)]


def _entries(ctx: Context, dataset: Dataset) -> Iterator[tuple[str, str, Entry]]:
    """Yield the entries of every version, and behind them what only the trash has."""
    # references are read first, so that whatever a restore or a commit moves meanwhile is met
    references = referenced_entries(ctx, [dataset.prefix]) if dataset.mode != KEEP_HISTORY else ()
    only_there = {(each.entry.address, each.path): each for each in references}
    for source in (scan_versions(ctx, prefixes=[dataset.prefix]), _scan_sweeping(ctx, dataset.prefix)):
        for ref, path, entry in source:
            only_there.pop((entry.address, path), None)
            yield ref, path, entry
    for each in only_there.values():
        yield each.ref, each.path, each.entry


def _scan_sweeping(ctx: Context, prefix: str) -> Iterator[tuple[str, str, Entry]]:
    """Yield the entries of commits whose sweep has begun and not ended: nobody can read or unmark them, and their data
    may still be there.
    """
    seen: set[tuple[str, str]] = set()
    for commit, mark in CommitMarks(ctx).scan():
        is_going = mark.sweeping_ms and not mark.swept_ms and not mark.prefixes
        value = ctx.kv.get(keys.commit(ctx.repo, commit)) if is_going else None
        if isinstance(value, bytes):
            for path, entry in entries_of_commit(ctx, commit, decode(value, Commit), prefix, seen):
                yield commit, path, entry
