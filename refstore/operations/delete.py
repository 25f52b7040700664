"""Delete, and reset of paths and prefixes.

Delete writes a tombstone under the current token, as any placement does. Reset removes the staged change itself, so
that the committed entry shows again. It works only under the current token, and is a conflict while tokens are sealed,
because what a commit under way has read cannot be taken back.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from refstore.context import Context
from refstore.core import ids
from refstore.core.batches import split_batches
from refstore.core.ids import BranchName, Path, Token
from refstore.errors import Conflict, Contention, OutcomeUnknown, PathChanged
from refstore.kv.base import ABSENT, SetIf
from refstore.kv.unknown_outcomes import UnknownOutcomes
from refstore.operations.read import is_unchanged, read_consistent, resolve_many, stream_entries
from refstore.operations.refs import ResolvedRef, head_commit
from refstore.operations.stage_entries import (
    DELETED_CAUSE,
    Placement,
    is_what_was_found,
    place,
    releases_of_replaced,
)
from refstore.records import keys
from refstore.records.branch_records import StoredBranch
from refstore.records.staging_records import StoredEntry
from refstore.versioning.markers import RESET_CAUSE
from refstore.versioning.staging import TOMBSTONE

ATTEMPTS: Final = 16
"""How often a deletion that depends on what it read is run again, because the branch or the path changed."""

BATCH: Final = 1000
"""Paths that share their round trips in deletions by prefix."""


def delete_many(ctx: Context, branch: BranchName, paths: Sequence[str]) -> None:
    """Delete paths, whether they exist or not. What they name under the current token is released at once (rule 6)."""
    token = ctx.branches.read_open(branch).record.token
    placements = [Placement(ids.object_path(path), entry=None, is_referenced=False) for path in paths]
    if placements:
        place(ctx, branch, token, placements, on_empty=False)


def delete_if_entry(ctx: Context, branch: BranchName, path: str, entry: StoredEntry) -> None:
    """Delete a path if it still has the entry that the caller read (rule 20).

    Raises PathChanged, and Contention where nobody can tell: what is sealed may change, and tombstones have no ids, so
    none could be taken back. Where a commit under way has the entry, nothing is deleted.
    """
    name = ids.object_path(path)
    branches = ctx.branches
    is_owed = False
    unknown = UnknownOutcomes(ctx.clock)
    for _ in range(ATTEMPTS):
        record = branches.read_open(branch).record
        key = keys.entry(ctx.repo, record.token, name)
        raw = ctx.kv.get(key)
        current = resolve_many(ctx, ResolvedRef.of_branch(branch), [name]).get(name)
        if (current is None and not is_owed) or (current is not None and not is_unchanged(ctx, current, entry)):
            raise (
                _changed_meanwhile(branch, name)
                if is_owed
                else PathChanged(
                    f"{name!r} on {branch!r} is not what was read there, and was not deleted; look what is there now"
                )
            )
        if (current is None or current.token != record.token) and record.sealed_tokens:
            raise _changed_meanwhile(branch, name)
        if current is not None and not is_what_was_found(raw, current, record.token):
            continue  # another client was faster: read again
        try:
            is_deleted = ctx.kv.set_if(key, ABSENT if current is None else raw, TOMBSTONE, once=True)
        except OutcomeUnknown as error:
            unknown.wait(error)
            is_owed = True
            continue
        if not is_deleted and current is None:
            return  # the tombstone is there, or somebody wrote there after it
        if is_deleted and branches.read_open(branch).record.token == record.token:
            ctx.references.release(releases_of_replaced(record.token, [(name, raw)], DELETED_CAUSE), guess=True)
            return
        # a commit may have read the token before the tombstone was there: it is owed under the next one
        is_owed = is_owed or is_deleted
    raise branches.contention(branch)


def _changed_meanwhile(branch: BranchName, path: Path) -> Contention:
    return Contention(f"{path!r} on {branch!r} was changed by others while it was deleted; look what is there now")


def delete_prefix(ctx: Context, branch: BranchName, prefix: str) -> int:
    """Delete every path that starts with `prefix`, page by page, and return how many there were.

    Paths that are added meanwhile may stay.
    """
    ids.path_prefix(prefix)
    count, after = 0, ""
    while True:

        def read_page(record: StoredBranch, start: str = after) -> list[str]:
            metarange = head_commit(ctx, record.head).metarange
            entries = stream_entries(ctx, record, metarange, prefix, start, BATCH)
            return [*islice((path for path, entry in entries if entry is not None), BATCH)]

        page = read_consistent(ctx, branch, read_page)
        if page:
            delete_many(ctx, branch, page)
            count += len(page)
        if len(page) < BATCH:
            return count
        after = page[-1]


def reset_paths(ctx: Context, branch: BranchName, *, path: str | None = None, prefix: str | None = None) -> int:
    """Undo the staged changes of one path, or of all paths with a prefix, and return how many there were.

    Raises Conflict while a commit is under way or was left unfinished: a part of its sealed changes cannot be reset.
    """
    open_branch = ctx.branches.read_open(branch)
    if open_branch.record.sealed_tokens:
        raise Conflict(f"branch {branch!r} has an unfinished commit; commit or reset the whole branch first")
    token = open_branch.record.token
    if path is not None:
        name = ids.object_path(path)
        value = ctx.kv.get(keys.entry(ctx.repo, token, name))
        return 0 if value is ABSENT else reset_batch(ctx, branch, token, [(name, value)])
    changes = ((Path(name), value) for name, value in ctx.staging.scan(token, prefix=ids.path_prefix(prefix or "")))
    return sum(reset_batch(ctx, branch, token, batch) for batch in split_batches(changes, BATCH))


def reset_batch(ctx: Context, branch: BranchName, token: Token, batch: Sequence[tuple[Path, bytes]]) -> int:
    """Remove staged changes that are still as they were read, and return how many were removed. Raises Contention."""
    removed, stood_still = remove_staged(ctx, branch, token, batch, cause=RESET_CAUSE)
    if not stood_still:
        raise Contention(
            f"branch {branch!r} was committed or reset meanwhile; check its changes, and reset again if needed"
        )
    return len(removed)


def remove_staged(
    ctx: Context,
    branch: BranchName,
    token: Token,
    batch: Sequence[tuple[Path, bytes]],
    *,
    cause: str,
) -> tuple[list[tuple[Path, bytes]], bool]:
    """Remove staged changes that are still as they were read; release their references if the token stayed current.

    Return the removed entries, and whether the token stayed current (rule 6). If it did not, the entries may be
    committed all the same: a commit may have read them before they were removed.
    """
    branches = ctx.branches
    *outcomes, raw = ctx.kv.execute(
        [
            *(SetIf(keys.entry(ctx.repo, token, path), value, ABSENT) for path, value in batch),
            branches.get_operation(branch),
        ]
    )
    removed = [(path, value) for (path, value), ok in zip(batch, outcomes, strict=True) if ok]
    if branches.parse_open(branch, raw).record.token != token:
        return removed, False  # their references stay until the token is processed
    ctx.references.release(releases_of_replaced(token, removed, cause), guess=True)
    return removed, True
