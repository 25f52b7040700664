"""Restore: take back what is in its grace window, as long as the reaper has not begun to delete it (rules 5 and 8)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from refstore import ids, keys
from refstore.branches import Branches
from refstore.context import Context
from refstore.errors import AddressNotFound, Gone
from refstore.flows.placing import Moved, Placement, explain_moved, place
from refstore.ids import Address, BranchName, Path, branch_of
from refstore.kv.base import ABSENT
from refstore.records import Emptied, Entry, Issued, Listed, Reference
from refstore.references import Hold, References

_PAGE = 500


class InGrace(NamedTuple):
    """An address whose last name is gone and whose blob is still there."""

    address: Address
    branch: BranchName
    path: Path
    cause: str
    since_ms: int
    deletes_at_ms: int
    entry: Entry | None


class Restored(NamedTuple):
    path: Path
    """Where it was put: the path that it had last, where none was asked for. It may have other names on the branch."""
    entry: Entry


def restore(ctx: Context, branch: BranchName, address: str, path: str | None = None) -> Restored:
    """Put an address in its grace window back on a branch, at its last path or another. Raises Gone, AddressNotFound."""
    own = ids.own_address(address)
    references = References(ctx.kv, ctx.repo, ctx.clock)
    match references.get_many((own,))[0]:
        case Emptied(_, last, _, entry):
            name = ids.object_path(path) if path is not None else last.path
        case Listed(names):
            name, entry = ids.object_path(path) if path is not None else names[0].path, None
        case Issued():
            raise AddressNotFound(f"{address} was issued and never linked; link it instead")
        case _:
            raise Gone(f"{address} is not in its grace window: it is committed, or deleted, or about to be; ask `refstore why` about it")
    if entry is None:
        info = ctx.objects.head(own)
        entry = Entry(own, info.size_bytes, "", info.mtime_ms)
    token = Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock).open(branch).record.token
    entry = msgspec.structs.replace(entry, reference_id=ctx.ids.unique(ctx.clock.now_ms()))
    held = references.hold([(own, Reference(token, name, entry.reference_id))], on_empty=True)[0]
    if held is not Hold.HELD:
        raise Gone(f"{address} left its grace window while it was being restored; nothing was changed")
    try:
        place(ctx, branch, token, [Placement(name, entry, referenced=True)], on_empty=True)
    except Moved as moved:
        explain_moved(ctx, branch, moved)
    return Restored(name, entry)


def in_grace(ctx: Context, *, branch: BranchName | None = None, prefix: str = "") -> Iterator[InGrace]:
    """What could be restored now: by shard, then by time. Reads only the due hints, never the whole of the references."""
    for shard in range(keys.SHARDS):
        page: list[tuple[int, Address]] = []
        for name, _ in ctx.kv.scan_all(keys.due_shard(ctx.repo, shard), page=_PAGE):
            page.append(keys.parse_due(name))
            if len(page) == _PAGE:
                yield from _matching(ctx, page, branch, prefix)
                page = []
        if page:
            yield from _matching(ctx, page, branch, prefix)


def _matching(ctx: Context, page: list[tuple[int, Address]], branch: BranchName | None, prefix: str) -> Iterator[InGrace]:
    records = References(ctx.kv, ctx.repo, ctx.clock).get_many([address for _, address in page])
    outdated = _outdated(ctx, page, records)
    for (due_ms, address), record in zip(page, records, strict=True):
        if not isinstance(record, Emptied) or not record.last.path.startswith(prefix) or (due_ms, address) in outdated:
            continue
        of = branch_of(record.last.token)
        if branch is None or of == branch:
            yield InGrace(address, of, record.last.path, record.cause, record.since_ms, due_ms, record.entry)


def _outdated(ctx: Context, page: list[tuple[int, Address]], records: Sequence[object]) -> set[tuple[int, Address]]:
    """Hints of an earlier window: what was restored and lost its name again has one of each time, and only the last one's date is true."""
    grace_ms = int(ctx.grace_seconds * 1000)
    now_due = {
        (due_ms, address): keys.due(ctx.repo, record.since_ms + grace_ms, address)
        for (due_ms, address), record in zip(page, records, strict=True)
        if isinstance(record, Emptied) and due_ms != record.since_ms + grace_ms
    }
    there = ctx.kv.get_many(list(now_due.values())) if now_due else []
    return {hint for hint, value in zip(now_due, there, strict=True) if value is not ABSENT}
