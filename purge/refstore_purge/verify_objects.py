"""List what `verify` looks at: the objects of a data set at the heads, or in every version and the undo trash, as a run
lists them; and tell whether their names have the identifier.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple
from urllib.parse import unquote

from refstore.context import Context
from refstore.core.batches import split_batches
from refstore.core.ids import Address, CommitId
from refstore.operations.commit_entries import entries_of_commit
from refstore.operations.log_and_diff import merge_base
from refstore.operations.read import current_contents
from refstore.operations.referenced_entries import referenced_entries
from refstore.operations.transaction import TRANSACTION_BRANCHES
from refstore.operations.version_entries import read_commits, staged_entries
from refstore.purge_document.document import ERASE, KEEP_HISTORY, Dataset
from refstore.records.staging_records import StoredEntry
from refstore_purge.object_holders import HolderKind, scan_names


class VerifyTarget(NamedTuple):
    """An object under one of its names."""

    ref: str
    """The branch, the commit, or 'trash of' a branch."""
    path: str
    entry: StoredEntry
    content: Address
    """The address of its content; '': it was erased."""
    size_bytes: int
    may_be_gone: bool
    """Whether a sweep or the reaper may delete the content."""


def scan_targets(ctx: Context, dataset: Dataset, *, is_deep: bool) -> Iterator[VerifyTarget]:
    """Yield the objects of a data set, each distinct one at least once. `is_deep`: of every version.

    Raises CorruptRange, Unavailable.
    """
    for page in split_batches(_entries_of_versions(ctx, dataset) if is_deep else _entries_of_heads(ctx, dataset)):
        located = find_contents(ctx, [entry for _, _, entry, _ in page])
        for (ref, path, entry, may_be_gone), (content, size_bytes) in zip(page, located, strict=True):
            yield VerifyTarget(ref, path, entry, content, size_bytes, may_be_gone)


def find_contents(ctx: Context, entries: list[StoredEntry]) -> list[tuple[Address, int]]:
    """Return where the contents of entries lie, and their sizes; '': erased."""
    located = current_contents(ctx, entries) if ctx.locations.are_announced() else {}
    return [(each.address, each.size_bytes) for each in (located.get(entry.address, entry) for entry in entries)]


def _entries_of_heads(ctx: Context, dataset: Dataset) -> Iterator[tuple[str, str, StoredEntry, bool]]:
    """Yield what is committed and staged at the branches that the data set has. And what transactions have staged, or
    committed on their branches: these may be merged into any.
    """
    branches = list(ctx.branches.scan_open())
    shown = {name: record for name, record in branches if not record.is_hidden}
    chosen = {name: record for name, record in shown.items() if dataset.has_branch(name)}
    begun = {name: record for name, record in branches if name.startswith(TRANSACTION_BRANCHES)}
    for name, record in [*begun.items(), *chosen.items()]:
        for token in record.live_tokens:
            yield from ((name, *each, False) for each in staged_entries(ctx, token, dataset.prefix))
    heads = {record.head for record in shown.values()}
    chosen |= {name: record for name, record in begun.items() if not _is_in_history(ctx, record.head, heads)}
    seen: set[tuple[str, str]] = set()
    for ref, commit_id, commit in read_commits(ctx, [(name, record.head) for name, record in chosen.items()]):
        yield from ((ref, *each, False) for each in entries_of_commit(ctx, commit_id, commit, dataset.prefix, seen))


def _is_in_history(ctx: Context, commit: CommitId, heads: Collection[CommitId]) -> bool:
    """Return whether a commit is one of these heads, or an ancestor of one."""
    return commit in heads or any(merge_base(ctx, commit, head) == commit for head in heads)


def _entries_of_versions(ctx: Context, dataset: Dataset) -> Iterator[tuple[str, str, StoredEntry, bool]]:
    """Yield the entries of every version, and behind them what only the trash has."""
    # references are read first, so that whatever a restore or a commit moves meanwhile is met
    references = referenced_entries(ctx, [dataset.prefix]) if dataset.mode != KEEP_HISTORY else ()
    only_there = {(each.entry.address, each.path): each for each in references}
    for name in scan_names(ctx, prefix=dataset.prefix):
        assert name.entry is not None  # noqa: S101  # a version has it
        only_there.pop((name.entry.address, name.path), None)
        yield name.ref, name.path, name.entry, name.holder == HolderKind.SWEEP
    yield from ((each.ref, each.path, each.entry, True) for each in only_there.values())


# ---- names


def find_value_in_names(dataset: Dataset, target: VerifyTarget) -> tuple[str | None, str]:
    """Return the identifier's value if a folder, the path or the metadata has it; else a name of one of these that is
    the identifier in another case only.
    """
    below, metadata = target.path[len(dataset.prefix) :], target.entry.metadata if dataset.mode == ERASE else {}
    if dataset.template is not None:
        return dataset.template.identifier_of(below), ""
    folders = [folder.partition("=") for folder in below.split("/")[:-1] if "=" in folder.strip("=")]
    names = [*((unquote(name), unquote(value)) for name, _, value in folders), *metadata.items()]
    for name, value in names:
        if name == dataset.identifier:
            return value, ""
    return None, next((name for name, _ in names if name.casefold() == dataset.identifier.casefold()), "")
