"""Hard deletion: `empty, or issued and expired -> deleting -> blob -> key`, one way (rule 8).

`BatchDeleter.delete_batch` shows all steps of a batch. Due hints name the addresses to check, so the work depends on
what is due and not on the size of the repository. The reference record decides, never the hint. Any reaper may finish
an address that another one marked `deleting`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core import keys
from refstore.core.ids import Address, Token
from refstore.core.records import Deleting, Due, Emptied, Issued, Reference, ReferenceRecord, decode_reference, encode
from refstore.deletions.content_deletion import Journal, delete_contents
from refstore.deletions.journal_format import PendingDelete
from refstore.errors import CorruptRecord
from refstore.kv.base import ABSENT, Absent, Key, SetIf
from refstore.losses.fence import Guard
from refstore.objects.base import Deletion
from refstore_reaper.batch_pipeline import BatchSteps
from refstore_reaper.blob_deletion import AsyncDeleter, delete_blobs
from refstore_reaper.breaker import Breaker, Permit
from refstore_reaper.cycle_summary import Tally

EXPIRED_CAUSE: Final = "issued and not linked"

PAGE: Final = 5000
"""Hints that are counted in one step."""

_DUE: Final = encode(Due())


class Hint(NamedTuple):
    key: Key
    due_ms: int
    address: Address


class BatchDeleter:
    """Deletes the batches of one pass over a repository."""

    def __init__(
        self,
        ctx: Context,
        breaker: Breaker,
        tally: Tally,
        journal: Journal,
        *,
        grace_seconds: float,
        async_deleter: AsyncDeleter | None,
        guard: Guard,
        on_corrupt: Callable[[Address, CorruptRecord], None],
    ) -> None:
        """Without `async_deleter`, no batch pauses."""
        self._ctx = ctx
        self._breaker = breaker
        self._tally = tally
        self._journal = journal
        self._grace_seconds = grace_seconds
        self._async_deleter = async_deleter
        self._guard = guard
        self._on_corrupt = on_corrupt
        self._in_flight: set[Address] = set()
        """The addresses of batches that are not finished."""

    def delete_batch(
        self, permit: Permit, *, hints: Sequence[Hint] = (), marked: Sequence[PendingDelete] = ()
    ) -> BatchSteps:
        """Delete one batch. It is given as due hints, or as addresses that are marked `deleting` and have no hints.

        The order is that of rule 8. The batch pauses once, while the store deletes; another batch may begin meanwhile.
        """
        if hints:
            marked, stale = mark_deleting(
                self._ctx, hints, grace_seconds=self._grace_seconds, on_corrupt=self._on_corrupt
            )
            drop_hints(self._ctx, stale)
        batch = [item for item in marked if item.address not in self._in_flight]
        if not batch:
            self._breaker.report_deleted(permit, 0)
            return
        addresses = left = [item.address for item in batch]
        self._in_flight.update(addresses)
        confirmed = Deletion((), (), ())
        try:
            self._guard.pass_through()  # behind the marks, and before the blobs: the order is that of rule 21
            if self._async_deleter is None:
                confirmed = delete_blobs(self._ctx.objects, batch, self._journal)
            else:
                deletion = self._async_deleter.submit(self._ctx.objects, batch, self._journal)
                yield
                confirmed = deletion.result()
            confirmed, contents, _ = delete_contents(self._ctx, batch, confirmed, self._journal)
            left = remove_keys(self._ctx, addresses, confirmed)
            self._journal.record_end(batch, confirmed)
            self._count(batch, confirmed, left)
            self._tally.count(deleted=contents)
        finally:
            self._in_flight.difference_update(addresses)
            if not hints:
                write_hints(self._ctx, left)
            self._breaker.report_deleted(permit, len(confirmed.deleted))
        gone = set(addresses).difference(left)
        drop_hints(self._ctx, [hint for hint in hints if hint.address in gone])

    def _count(self, batch: Sequence[PendingDelete], confirmed: Deletion, left: Sequence[Address]) -> None:
        deleted, failed = set(confirmed.deleted), set(left)
        self._tally.count(
            deleted=len(deleted),
            bytes=sum(item.size_bytes for item in batch if item.size_bytes > 0 and item.address in deleted),
            missing=len(batch) - len(deleted) - len(failed),
            failed=len(failed),
            expired=sum(item.cause == EXPIRED_CAUSE and item.address not in failed for item in batch),
        )


def due_hints(ctx: Context, shard: int, *, now_ms: int | None, limit: int, after: str = "") -> list[Hint]:
    """Return the shard's oldest hints, at most `limit`: those due by `now_ms`, or all (None). Raises CorruptRecord."""
    partition = keys.due_shard(ctx.repo, shard)
    bound = keys.due_time(now_ms) if now_ms is not None else "~"
    hints: list[Hint] = []
    for name, _ in ctx.kv.scan(partition, after=after, limit=limit):
        if name[: len(bound)] > bound:
            break
        due_ms, address = keys.parse_due(name)
        hints.append(Hint(Key(partition, name), due_ms, address))
    return hints


def count_deletable(ctx: Context, *, now_ms: int | None, grace_seconds: float, limit: int) -> int:
    """Count the addresses that `mark_deleting` would mark, of the hints due by `now_ms`, or of all (None), up to
    `limit`.

    This reads each record, because an address that was linked or restored keeps its hint until a reaper reads it.
    """
    deletable: set[Address] = set()
    for shard in range(keys.SHARDS):
        after = ""
        with suppress(CorruptRecord):  # a damaged shard: nothing after the bad key is deleted
            while len(deletable) < limit and (page := due_hints(ctx, shard, now_ms=now_ms, limit=PAGE, after=after)):
                after = page[-1].key.name
                addresses = list({hint.address for hint in page} - deletable)
                values = ctx.kv.get_many(keys.reference_many(ctx.repo, addresses))
                deletable.update(
                    address
                    for address, value in zip(addresses, values, strict=True)
                    if _is_deletable(ctx, value, grace_seconds)
                )
    return min(len(deletable), limit)


def _is_deletable(ctx: Context, value: bytes | Absent, grace_seconds: float) -> bool:
    """Return whether an address may be deleted. If its record cannot be read it may not; `mark_deleting` leaves it,
    too.
    """
    try:
        return value is not ABSENT and _due_ms(ctx, decode_reference(value), grace_seconds) <= ctx.clock.now_ms()
    except CorruptRecord:
        return False


def _due_ms(ctx: Context, record: ReferenceRecord | None, grace_seconds: float) -> float:
    """Return when the address may be deleted. Never if it is named or deleted."""
    match record:
        case Emptied(since_ms):
            return since_ms + grace_seconds * 1000
        case Issued(_, expires_ms):
            return expires_ms + int(ctx.waits.clock_skew_seconds * 1000)  # the issuing clock may be behind this one
        case Deleting():
            return 0
        case _:
            return inf


def mark_deleting(
    ctx: Context,
    hints: Sequence[Hint],
    *,
    grace_seconds: float,
    on_corrupt: Callable[[Address, CorruptRecord], None] | None = None,
) -> tuple[list[PendingDelete], list[Hint]]:
    """Mark due addresses `deleting`. Return the addresses to delete now, and the hints without use.

    An address is due when its list has been empty for the grace window, or when it was issued, has expired, and was not
    linked. If the `set_if` fails, the address was restored, linked, or marked by another reaper: its hint stays for the
    next pass. An address that is not due yet gets a hint at its due time, unless it has one; otherwise every pass until
    then would read it. `on_corrupt` gets each record that cannot be read, which stays unchanged. Without `on_corrupt`
    this raises CorruptRecord before it changes anything of the batch.
    """
    now = ctx.clock.now_ms()
    hints_of: dict[Address, list[Hint]] = {}
    for hint in hints:
        hints_of.setdefault(hint.address, []).append(hint)
    names = keys.reference_many(ctx.repo, hints_of)
    values = ctx.kv.get_many(names)
    marked: list[PendingDelete] = []
    attempts: list[PendingDelete] = []
    writes: list[SetIf] = []
    stale: list[Hint] = []
    early: list[tuple[Address, int]] = []
    for address, key, value in zip(hints_of, names, values, strict=True):
        try:
            record = None if value is ABSENT else decode_reference(value)
        except CorruptRecord as error:
            if on_corrupt is None:
                raise
            on_corrupt(address, error)
            continue
        if now < _due_ms(ctx, record, grace_seconds) < inf:
            early.append((address, int(_due_ms(ctx, record, ctx.grace_seconds))))
            continue
        match record:
            case Emptied(_, last, cause, entry):
                deleting = Deleting(now, last, cause, entry.size_bytes if entry else -1)
            case Issued(_, _, _, path):
                deleting = Deleting(now, Reference(Token(""), path), EXPIRED_CAUSE, -1)
            case Deleting():
                marked.append(_pending_delete(address, record))
                continue
            case _:
                stale += hints_of[address]  # named again, or deleted
                continue
        attempts.append(_pending_delete(address, deleting))
        writes.append(SetIf(key, value, encode(deleting)))
    won = ctx.kv.set_if_many(writes) if writes else []
    marked += [item for item, ok in zip(attempts, won, strict=True) if ok]
    stale += _reschedule(ctx, early, hints_of)
    return marked, stale


def _pending_delete(address: Address, record: Deleting) -> PendingDelete:
    return PendingDelete(address, record.last.token, record.last.path, record.cause, record.size_bytes)


def remove_keys(ctx: Context, addresses: Sequence[Address], confirmed: Deletion) -> list[Address]:
    """Remove the keys of `deleting` addresses whose blobs are deleted. Return the other addresses, which stay
    `deleting`.

    An address is never reused, and nothing but a removal can happen to a `deleting` key, so no other process can have
    changed it.
    """
    gone = {*confirmed.deleted, *confirmed.missing}
    ctx.kv.delete_many(keys.reference_many(ctx.repo, [address for address in addresses if address in gone]))
    return [address for address in addresses if address not in gone]


def write_hints(ctx: Context, addresses: Sequence[Address]) -> None:
    """Make the next pass look at the addresses."""
    now = ctx.clock.now_ms()
    if addresses:
        ctx.kv.set_many([(keys.due(ctx.repo, now, address), _DUE) for address in addresses])


def drop_hints(ctx: Context, hints: Sequence[Hint]) -> None:
    """Remove hints that are no longer needed."""
    if hints:
        ctx.kv.delete_many([hint.key for hint in hints])


def _reschedule(ctx: Context, early: Sequence[tuple[Address, int]], hints_of: dict[Address, list[Hint]]) -> list[Hint]:
    """Make sure that each address has a hint at the given time. Return its other hints, which are no longer needed."""
    missing: list[tuple[Key, bytes]] = []
    others: list[Hint] = []
    for address, at_ms in early:
        key = keys.due(ctx.repo, at_ms, address)
        rest = [hint for hint in hints_of[address] if hint.key != key]
        if len(rest) == len(hints_of[address]):
            missing.append((key, _DUE))
        others += rest
    if missing:
        ctx.kv.set_many(missing)
    return others
