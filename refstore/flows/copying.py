"""Copy and move: a second name for the same physical address, made without reading a byte of it.

The source's address is held before the copy's entry is written, or it is committed (rules 4 and 5):

    source staged:     list has it -> reference for the copy, then the entry
                       list empty  -> the source has changed: start over
                       no key      -> read the source again: if it still is what it was, it is committed; else start over
                       (while marks are made, the address is pinned before that, rule 13)
    source committed:  no reference; the commit's mark is looked at before and after (rule 13)

Move is copy, then delete, under the same rules: no lock, so no stale lock.

Pairs of one call are copied as if at once: a->b and b->c leave at c what was at b. So where b->c starts over, a->b waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from refstore import ids, marks
from refstore.branches import Branches
from refstore.context import Context
from refstore.errors import Conflict, Contention, InvalidPath, ObjectNotFound
from refstore.flows import refs
from refstore.flows.placing import Moved, Placement, check_distinct, place
from refstore.flows.reading import Resolved, resolve_many
from refstore.flows.refs import Ref
from refstore.flows.removing import delete_copied
from refstore.ids import Address, BranchName, CommitId, Path, is_own
from refstore.records import Entry, Reference
from refstore.references import Hold, References

ATTEMPTS: Final = 16
"""How often a copy whose source keeps changing starts over."""


class Copy(NamedTuple):
    """One copy: from a path of the source ref to a path of the destination branch."""

    source: str
    destination: str


class _Copied(NamedTuple):
    source: Entry
    """As it was read: a move deletes this one, and no other that names the same address."""
    entry: Entry


def copy_many(ctx: Context, source_ref: str, branch: BranchName, copies: Sequence[Copy]) -> list[Entry]:
    """Copy up to a batch of paths. Raises ObjectNotFound (nothing of this call that was not done yet is done then)."""
    return [copied.entry for copied in _copy_many(ctx, source_ref, branch, copies)]


def _copy_many(ctx: Context, source_ref: str, branch: BranchName, copies: Sequence[Copy]) -> list[_Copied]:
    pairs = [(ids.object_path(item.source), ids.object_path(item.destination)) for item in copies]
    check_distinct([Placement(destination, None, referenced=False) for _, destination in pairs])
    done: dict[Path, _Copied] = {}
    over: dict[Path, Address] = {}
    for _ in range(ATTEMPTS):
        waiting = [pair for pair in pairs if pair[1] not in done]
        if not waiting:
            return [done[destination] for _, destination in pairs]
        done |= _attempt(ctx, refs.resolve(ctx, source_ref), branch, waiting, over)
    raise Contention(f"the source on {source_ref!r} kept changing while it was copied; make the same call again")


def move_many(ctx: Context, branch: BranchName, to: BranchName, moves: Sequence[Copy]) -> list[Entry]:
    """Copy from the branch to that one or another, then delete the sources. A crash in between leaves both names, and the address
    referenced."""
    onto_itself = next((item.source for item in moves if branch == to and item.source == item.destination), None)
    if onto_itself is not None:
        raise InvalidPath(f"{onto_itself!r} cannot be moved onto itself; give another destination")
    copied = _copy_many(ctx, branch, to, moves)
    moved = {ids.object_path(item.source): each.source for item, each in zip(moves, copied, strict=True)}
    delete_copied(ctx, branch, moved)
    return [each.entry for each in copied]


def _attempt(
    ctx: Context, source: Ref, branch: BranchName, pairs: Sequence[tuple[Path, Path]], over: dict[Path, Address]
) -> dict[Path, _Copied]:
    """One try for each pair; the entries of those that were copied. The others' sources changed, or wait: they start over.

    `over`: what this call has written over sources of its own, kept from one try to the next. Raises Conflict where such a source is
    read again, and what it was cannot be known any more.
    """
    if source.from_history:
        refs.check_mark(ctx, source.commit, [path for path, _ in pairs])
    resolved = resolve_many(ctx, source, [path for path, _ in pairs])
    missing = [path for path, _ in pairs if path not in resolved]
    if missing:
        raise ObjectNotFound(f"{missing[0]!r} is not on {source.text!r}")
    lost = [path for path, _ in pairs if over.get(path) == resolved[path].entry.address]
    if lost:
        raise Conflict(f"{branch!r} was committed or reset while {lost[0]!r} was copied on and copied over; look what is there now")
    sources: dict[CommitId, list[Path]] = {}
    for src, _ in pairs:
        commit = resolved[src].commit
        if commit is not None:
            sources.setdefault(commit, []).append(src)
    for commit, paths in sources.items():
        # a branch's head, too: one that was made at an expired commit, and died before it took itself back, has a marked head. And
        # before the entry is written, not only behind it: somebody could copy it on before it is taken back
        if not (source.from_history and commit == source.commit):
            refs.check_mark(ctx, commit, paths)
    token = Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock).open(branch).record.token
    now = ctx.clock.now_ms()
    copies = {dst: _copied(ctx, resolved[src].entry, now) for src, dst in pairs}
    staged = [(src, dst) for src, dst in pairs if resolved[src].token is not None and is_own(resolved[src].entry.address)]
    holds = References(ctx.kv, ctx.repo, ctx.clock).hold(
        [(copies[dst].address, Reference(token, dst, copies[dst].reference_id)) for _, dst in staged], on_empty=False
    )
    outcome = {dst: hold for (_, dst), hold in zip(staged, holds, strict=True)}
    committed = _committed_after_all(ctx, source, resolved, [src for src, dst in staged if outcome[dst] is Hold.MISSING])
    placements: list[Placement] = []
    for src, dst in pairs:
        entry = copies[dst]
        match outcome.get(dst):
            case Hold.HELD:
                placements.append(Placement(dst, entry, referenced=True))
            case None:
                placements.append(Placement(dst, entry, referenced=False))
            case Hold.MISSING if src in committed:
                placements.append(Placement(dst, entry, referenced=False))
            case _:
                continue
    if source.branch == branch:
        placements = _not_over_sources(pairs, placements)
        # a commit may take these entries, while the reference of another cannot follow: that one then starts over
        over |= {
            item.path: item.entry.address
            for item in placements
            if item.entry is not None and item.path in resolved and item.entry.address != resolved[item.path].entry.address
        }
    source_of = {dst: resolved[src].entry for src, dst in pairs}
    placed = {item.path: _Copied(source_of[item.path], item.entry) for item in placements if item.entry is not None}
    if placements:
        try:
            place(ctx, branch, token, placements, on_empty=False, sources=sources)
        except Moved as moved:
            for item in moved.placements:
                placed.pop(item.path)
    return placed


def _not_over_sources(pairs: Sequence[tuple[Path, Path]], placements: Sequence[Placement]) -> list[Placement]:
    """Those that go over no source that is still to be copied. The references of the others stay until their token is processed."""
    ready = {item.path: item for item in placements}
    source_of = {dst: src for src, dst in pairs}
    waiting = [src for src, dst in pairs if dst not in ready]
    for path in waiting:
        if ready.pop(path, None) is not None:
            waiting.append(source_of[path])  # noqa: PERF401  # it waits itself now: the list grows while it is gone through
    return list(ready.values())


def _committed_after_all(ctx: Context, source: Ref, before: dict[Path, Resolved], paths: Sequence[Path]) -> frozenset[Path]:
    """Of sources whose reference key is missing: those that still resolve to the same address, which is committed then (rule 4)."""
    if not paths:
        return frozenset()
    marks.pin(ctx, [before[path].entry.address for path in paths])
    again = resolve_many(ctx, refs.resolve(ctx, source.text), paths)
    return frozenset(path for path in paths if path in again and again[path] == before[path])


def _copied(ctx: Context, source: Entry, now_ms: int) -> Entry:
    """The copy's entry: the source's, with its own time of change and its own reference."""
    return msgspec.structs.replace(source, mtime_ms=now_ms, reference_id=ctx.ids.unique(now_ms))
