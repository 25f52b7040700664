"""Copy: a second name for the same physical address, made without reading a byte of it.

The source's address is held before the copy's entry is written, or it is committed (rules 4 and 5):

    source staged:     list has it -> reference for the copy, then the entry
                       list empty  -> the source has changed: start over
                       no key      -> read the source again: if it is unchanged, it is committed; else start over
                                      (while a run marks commits, the address is pinned before that, rule 13)
    source committed:  no reference; the commit's mark is checked before and after (rule 13)

Pairs of one call are copied as if at once: a->b and b->c leave at c what was at b. So while b->c starts over, a->b
waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from refstore import gc_marks
from refstore.context import Context
from refstore.core import argument_types, ids, user_metadata
from refstore.core.ids import Address, BranchName, CommitId, Path, is_own
from refstore.errors import Conflict, Contention, InvalidPath, ObjectNotFound
from refstore.operations import refs
from refstore.operations.read import ResolvedEntry, resolve_many
from refstore.operations.refs import ResolvedRef
from refstore.operations.stage_entries import Overwrite, Placement, TokenMoved, check_distinct, place
from refstore.public_types import Entry, stored_entry
from refstore.records.reference_records import Reference
from refstore.records.s3_attributes import content_of, join_attributes
from refstore.records.staging_records import StoredEntry
from refstore.versioning.address_state import AddOutcome

ATTEMPTS: Final = 16
"""How often a copy whose source keeps changing starts over."""


class Copy(NamedTuple):
    """One copy: from a path of the source ref to a path of the destination branch."""

    source: str
    destination: str
    change: Callable[[Entry], Entry] | None = None
    """Returns the source's entry with the metadata and the content type of the copy (`Entry.replace`), or raises; None:
    as they are. The copy keeps the description of the content, which is the same.
    """


class CopiedEntry(NamedTuple):
    source: ResolvedEntry
    """The source as it was read: a move deletes this entry, and no other that names the same address."""
    entry: StoredEntry


def copy_many(ctx: Context, source_ref: str, branch: BranchName, copies: Sequence[Copy]) -> list[StoredEntry]:
    """Copy up to a batch of paths. Raises ObjectNotFound; pairs that were copied by then stay copied.

    Raises InvalidPath for a copy onto itself: `change_metadata` changes what is said of an object.
    """
    return [copied.entry for copied in copy_entries(ctx, source_ref, branch, copies)]


def copy_entries(
    ctx: Context,
    source_ref: str,
    branch: BranchName,
    copies: Sequence[Copy],
    overwrites: list[Overwrite] | None = None,
) -> list[CopiedEntry]:
    """Copy as `copy_many` does, and return the sources as well. `overwrites`: as of `stage_entries.place`."""
    argument_types.check_items(copies, Copy)
    pairs = [(ids.object_path(item.source), ids.object_path(item.destination)) for item in copies]
    check_distinct([destination for _, destination in pairs])
    onto_itself = next(
        (source for source, destination in pairs if source_ref == branch and source == destination), None
    )
    if onto_itself is not None:  # it would undo what somebody writes or deletes there meanwhile (rule 20)
        raise InvalidPath(
            f"{onto_itself!r} of {branch!r} cannot be copied or moved onto itself; give another destination"
        )
    changes = {destination: item.change for item, (_, destination) in zip(copies, pairs, strict=True) if item.change}
    copied: dict[Path, CopiedEntry] = {}
    over: dict[Path, Address] = {}
    for _ in range(ATTEMPTS):
        waiting = [pair for pair in pairs if pair[1] not in copied]
        if not waiting:
            return [copied[destination] for _, destination in pairs]
        copied |= _copy_once(ctx, refs.resolve(ctx, source_ref), branch, waiting, over, changes, overwrites)
    raise Contention(f"the source on {source_ref!r} kept changing while it was copied; make the same call again")


def _copy_once(
    ctx: Context,
    source: ResolvedRef,
    branch: BranchName,
    pairs: Sequence[tuple[Path, Path]],
    over: dict[Path, Address],
    changes: Mapping[Path, Callable[[Entry], Entry]],
    overwrites: list[Overwrite] | None,
) -> dict[Path, CopiedEntry]:
    """Try each pair once, and return the entries of those that were copied. The caller tries the others again.

    `changes`: of the copies' metadata, by destination. `over` collects, over all tries, the addresses that this call
    wrote over its own sources. Raises Conflict if such a source must be read again, because its earlier entry is no
    longer known.
    """
    if source.is_pinned_to_commit:
        refs.check_mark(ctx, source.commit, [path for path, _ in pairs])
    resolved = resolve_many(ctx, source, [path for path, _ in pairs])
    missing = [path for path, _ in pairs if path not in resolved]
    if missing:
        raise ObjectNotFound(f"{missing[0]!r} is not on {source.text!r}")
    overwritten = [path for path, _ in pairs if over.get(path) == resolved[path].entry.address]
    if overwritten:
        raise Conflict(
            f"{branch!r} was committed or reset while {overwritten[0]!r} was copied and overwritten in one call; check "
            "what is there now"
        )
    sources: dict[CommitId, list[Path]] = {}
    for src, _ in pairs:
        commit = resolved[src].commit
        if commit is not None:
            sources.setdefault(commit, []).append(src)
    for commit, paths in sources.items():
        # a branch's head is checked too: a branch that was made at an expired commit, and not deleted again because of
        # a crash, has a marked head. The check comes before the entry is written as well as after it, because somebody
        # could copy the entry on before it is taken back
        if not (source.is_pinned_to_commit and commit == source.commit):
            refs.check_mark(ctx, commit, paths)
    token = ctx.branches.read_open(branch).record.token
    now = ctx.clock.now_ms()
    copies = {dst: make_copy(ctx, src, resolved[src].entry, now, changes.get(dst)) for src, dst in pairs}
    staged = [
        (src, dst) for src, dst in pairs if resolved[src].token is not None and is_own(resolved[src].entry.address)
    ]
    holds = ctx.references.add(
        [(copies[dst].address, Reference(token, dst, copies[dst].reference_id)) for _, dst in staged], on_empty=False
    )
    outcome = {dst: hold for (_, dst), hold in zip(staged, holds, strict=True)}
    committed = find_committed_sources(
        ctx, source, resolved, [src for src, dst in staged if outcome[dst] is AddOutcome.NO_RECORD]
    )
    placements: list[Placement] = []
    for src, dst in pairs:
        entry = copies[dst]
        match outcome.get(dst):
            case AddOutcome.LISTED:
                placements.append(Placement(dst, entry=entry, is_referenced=True))
            case None:
                placements.append(Placement(dst, entry=entry, is_referenced=False))
            case AddOutcome.NO_RECORD if src in committed:
                placements.append(Placement(dst, entry=entry, is_referenced=False))
            case _:
                continue
    if source.branch == branch:
        placements = _drop_overwriting(pairs, placements)
        # a commit may take these entries while the reference of another pair cannot follow; that pair then starts over
        over |= {
            item.path: item.entry.address
            for item in placements
            if item.entry is not None
            and item.path in resolved
            and item.entry.address != resolved[item.path].entry.address
        }
    source_of = {dst: resolved[src] for src, dst in pairs}
    copied = {item.path: CopiedEntry(source_of[item.path], item.entry) for item in placements if item.entry is not None}
    if placements:
        try:
            place(ctx, branch, token, placements, on_empty=False, sources=sources, overwrites=overwrites)
        except TokenMoved as moved:
            for item in moved.placements:
                copied.pop(item.path)
    return copied


def _drop_overwriting(pairs: Sequence[tuple[Path, Path]], placements: Sequence[Placement]) -> list[Placement]:
    """Return the placements that overwrite no source still to be copied.

    The references of the others stay until their token is processed.
    """
    ready = {item.path: item for item in placements}
    source_of = {dst: src for src, dst in pairs}
    waiting = [src for src, dst in pairs if dst not in ready]
    for path in waiting:
        if ready.pop(path, None) is not None:
            # that placement waits too now: the list grows while the loop runs
            waiting.append(source_of[path])  # noqa: PERF401
    return list(ready.values())


def find_committed_sources(
    ctx: Context, source: ResolvedRef, before: dict[Path, ResolvedEntry], paths: Sequence[Path]
) -> frozenset[Path]:
    """Return the sources without a key that still have the same entry: these are committed, not reaped (rule 4)."""
    if not paths:
        return frozenset()
    gc_marks.pin(ctx, [before[path].entry.address for path in paths])
    current = resolve_many(ctx, refs.resolve(ctx, source.text), paths)
    return frozenset(path for path in paths if path in current and current[path] == before[path])


def make_copy(
    ctx: Context, path: Path, source: StoredEntry, now_ms: int, change: Callable[[Entry], Entry] | None
) -> StoredEntry:
    """Return the copy's entry: the source's, with a modification time and a reference of its own. Raises Invalid."""
    described = source
    if change is not None:
        described = stored_entry(change(Entry(path, source)))
        user_metadata.check_object_metadata(described.metadata)
        ids.content_type(described.content_type)
    return msgspec.structs.replace(
        source,
        mtime_ms=now_ms,
        reference_id=ctx.ids.new_id(now_ms),
        metadata=described.metadata,
        content_type=described.content_type,
        s3=join_attributes(described.s3, content_of(source.s3)),
    )
