"""Move: copy, then delete the source, under the rules of both. There is no lock, so there is no stale lock.

Whoever deletes the source has moved it (rule 6):

    copies of all pairs  ->  set_if(source as it was read -> a tombstone with an id of this call)
        deleted:      release what the copy replaced
        not deleted:  others moved, deleted or replaced the source: put back what the copy replaced, and say so

A copy is taken back only where it was written once, under a token that is current behind that. Otherwise a commit may
have it: it stays, and the caller hears Contention. If the mover dies in between, both names stay.

A source that another pair of the same call writes over is deleted by that write.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from refstore.context import Context
from refstore.core import argument_types, ids
from refstore.core.ids import BranchName, Path, Token
from refstore.errors import Contention, InvalidPath, ObjectNotFound, OutcomeUnknown, PathChanged, RefstoreError
from refstore.kv.base import ABSENT, Absent, SetIf
from refstore.kv.unknown_outcomes import UnknownOutcomes
from refstore.operations.copy import Copy, copy_entries
from refstore.operations.read import ResolvedEntry, is_unchanged, resolve_many
from refstore.operations.refs import ResolvedRef
from refstore.operations.stage_entries import (
    DELETED_CAUSE,
    Overwrite,
    release_replaced,
    releases_of_replaced,
    take_back,
)
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.staging_records import StoredEntry, Tombstone
from refstore.versioning.staging import TOMBSTONE

ATTEMPTS: Final = 16
"""How often the sources are read again because the branch or one of them changed."""


class Move(Copy):
    """One move: a copy whose source path is deleted after it."""

    __slots__ = ()


def move_many(ctx: Context, branch: BranchName, to: BranchName, moves: Sequence[Move]) -> list[StoredEntry]:
    """Copy from the branch to the same or another branch, then delete the sources.

    Raises for the first pair whose source this call did not delete, after it has moved the others: ObjectNotFound,
    PathChanged, or Contention where nobody can tell.
    """
    argument_types.check_items(moves, Copy)
    pairs = {ids.object_path(item.source): ids.object_path(item.destination) for item in moves}
    if len(pairs) < len(moves):
        raise InvalidPath("a path is moved twice in one call; move it once, and copy it to the other paths")
    overwrites: list[Overwrite] = []
    errors: dict[Path, RefstoreError] = {}
    try:
        copied = copy_entries(ctx, branch, to, moves, overwrites)
        sources = dict(zip(pairs, [item.source for item in copied], strict=True))
        written_over = set(pairs.values()) & set(pairs) if branch == to else set[Path]()
        errors = delete_sources(
            ctx, branch, {path: source.entry for path, source in sources.items() if path not in written_over}
        )
        for write in overwrites:
            path = write.placement.path
            if path in written_over and not _is_what_was_read(write, sources[path]):
                errors[path] = _error(branch, path, is_there=True, is_owed=write.replaced is None)
        _take_copies_back(ctx, to, pairs, errors, overwrites, moved_away=written_over - set(errors))
    finally:
        release_replaced(ctx, overwrites)
    for path in pairs:
        if path in errors:
            raise errors[path]
    return [item.entry for item in copied]


def _is_what_was_read(write: Overwrite, source: ResolvedEntry) -> bool:
    """Return whether a write over a source replaced it as it was read, and nothing that others put there."""
    return write.replaced == (encode(source.entry) if write.token == source.token else ABSENT)


def delete_sources(ctx: Context, branch: BranchName, copied: dict[Path, StoredEntry]) -> dict[Path, RefstoreError]:
    """Delete the paths that still have the entry that was copied, and return why others were not deleted.

    What somebody wrote there meanwhile stays, even if it is the same object: a move back put it there. Contention
    means that nobody can tell who deleted it: the tombstone of this call fell under a token that moved on, so that a
    commit may have missed it, or it may land yet.
    """
    tombstone = encode(Tombstone(ctx.ids.new_id(ctx.clock.now_ms())))
    left = dict(copied)
    owed: set[Path] = set()
    errors: dict[Path, RefstoreError] = {}
    unknown = UnknownOutcomes(ctx.clock)
    for _ in range(ATTEMPTS):
        token = ctx.branches.read_open(branch).record.token
        paths = sorted(left)
        raws = dict(zip(paths, ctx.kv.get_many(keys.entries(ctx.repo, token, paths)), strict=True))
        current = resolve_many(ctx, ResolvedRef.of_branch(branch), paths)
        for path in paths:
            is_own = raws[path] == tombstone
            is_there = path in current and is_unchanged(ctx, current[path], left[path])
            if not (is_own or is_there or (path in owed and path not in current and raws[path] is ABSENT)):
                errors[path] = _error(branch, path, is_there=path in current, is_owed=path in owed)
                del left[path]
        if not left:
            break
        try:
            fallen, is_current = _write_tombstones(ctx, branch, token, {path: raws[path] for path in left}, tombstone)
        except OutcomeUnknown as error:
            unknown.wait(error)
            owed |= set(left)
            continue
        if is_current:
            # a tombstone whose reply was lost is read as its own: what it replaced is what was copied
            old = [(path, encode(left[path]) if raws[path] == tombstone else raws[path]) for path in fallen]
            ctx.references.release(releases_of_replaced(token, old, DELETED_CAUSE), guess=True)
            for path in fallen:
                del left[path]
            if not left:
                break
        else:
            owed |= fallen
    return errors | {path: _error(branch, path, is_there=True, is_owed=True) for path in left}


def _write_tombstones(
    ctx: Context, branch: BranchName, token: Token, raws: dict[Path, bytes | Absent], tombstone: bytes
) -> tuple[set[Path], bool]:
    """Replace exactly what was read: the staged entry, or nothing where a sealed token or a commit has the source.

    Return the paths that have the tombstone, and whether the token is current behind that (rule 2).
    """
    wanted = [(path, raw) for path, raw in raws.items() if raw != tombstone]
    *outcomes, raw_branch = ctx.kv.execute(
        [
            # over nothing it is made once: nothing may come back
            *(SetIf(keys.entry(ctx.repo, token, path), raw, tombstone, once=raw is ABSENT) for path, raw in wanted),
            ctx.branches.get_operation(branch),
        ]
    )
    refused = {path for (path, _), ok in zip(wanted, outcomes, strict=True) if not ok}
    return set(raws) - refused, ctx.branches.parse_open(branch, raw_branch).record.token == token


def _take_copies_back(
    ctx: Context,
    branch: BranchName,
    pairs: dict[Path, Path],
    errors: dict[Path, RefstoreError],
    overwrites: Sequence[Overwrite],
    moved_away: set[Path],
) -> None:
    """Take back the copies of sources that others took. Where one has to stay, its error says so.

    `moved_away`: destinations at which the call has moved what was there, so that nothing is put back.
    """
    refused = {pairs[path]: path for path, error in errors.items() if not isinstance(error, Contention)}
    writes: dict[Path, list[Overwrite]] = {}
    for write in overwrites:
        writes.setdefault(write.placement.path, []).append(write)
    once = [writes[path][0] for path in refused if [write.was_current for write in writes[path]] == [True]]
    staying = set(refused)
    for token, group in groupby(sorted(once, key=lambda write: write.token), key=lambda write: write.token):
        some = [write._replace(replaced=TOMBSTONE) if write.placement.path in moved_away else write for write in group]
        if take_back(ctx, branch, token, some):
            staying -= {write.placement.path for write in some}
    for path in staying:
        errors[refused[path]] = Contention(
            f"{errors[refused[path]]} But its copy stays at {path!r} on {branch!r}, because that branch was committed "
            "or reset meanwhile, or the KV did not answer; look what is there now"
        )


def _error(branch: BranchName, path: Path, *, is_there: bool, is_owed: bool) -> RefstoreError:
    if is_owed:
        return Contention(
            f"{path!r} on {branch!r} was changed by others while it was moved, and nobody can tell who was first; look "
            "what is there, and at its new path, now"
        )
    if is_there:
        return PathChanged(f"{path!r} on {branch!r} was changed by others while it was moved, and was not moved.")
    return ObjectNotFound(f"{path!r} is not on {branch!r} any more: others moved or deleted it meanwhile.")
