"""Hard deletion: `empty, or issued and expired -> deleting -> blob -> key`, one way (rule 8).

`BatchDeleter.delete_batch` shows all steps of a batch. Due hints name the addresses to check, so the work depends on
what is due and not on the size of the repository. The reference record decides, never the hint. Any reaper may finish
an address that another one marked `deleting`. From when an address may be deleted says
`refstore.versioning.address_state`.

Batches overlap (`Pipeline`): the store deletes the blobs of one, in a thread (`AsyncDeleter`), while the reaper
prepares the next one in the KV. A batch is a generator that reads from top to bottom and pauses while it waits for the
store. Within a batch each step follows the one before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from refstore.context import Context
from refstore.core.ids import Address
from refstore.errors import CorruptRecord, ObjectsUnavailable
from refstore.kv.base import ABSENT, Absent, Key, set_ifs
from refstore.kv_recovery.fence import DeletionFence
from refstore.objects.base import DeleteResult, ObjectStore
from refstore.operations.delete_contents import Journal, delete_contents
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.pending_deletes import PendingDelete
from refstore.records.reference_records import (
    Deleting,
    Listed,
    ReferenceRecord,
    decode_reference,
    decode_reference_many,
)
from refstore.versioning import due_hints
from refstore.versioning.address_state import (
    NOT_LINKED,
    UPLOAD_CAUSES,
    UPLOAD_EXPIRED,
    DeletionDelays,
    begin_deletion,
    may_delete,
    may_delete_at_ms,
)
from refstore.versioning.due_hints import DueHint
from refstore_reaper.breaker import Breaker, Permit
from refstore_reaper.pass_summary import Tally
from refstore_reaper.readable_records import OnCorrupt, raise_error, readable


class DueAddress(NamedTuple):
    """An address that a hint names."""

    address: Address
    hint: DueHint


class BatchDeleter:
    """Deletes the batches of one pass over a repository."""

    def __init__(
        self,
        ctx: Context,
        breaker: Breaker,
        tally: Tally,
        journal: Journal,
        *,
        delays: DeletionDelays,
        async_deleter: AsyncDeleter | None,
        fence: DeletionFence,
        on_corrupt: OnCorrupt,
    ) -> None:
        """`delays`: what this pass waits for. Without `async_deleter`, no batch pauses."""
        self._ctx = ctx
        self._breaker = breaker
        self._tally = tally
        self._journal = journal
        self._delays = delays
        self._async_deleter = async_deleter
        self._fence = fence
        self._on_corrupt = on_corrupt
        self._in_flight: set[Address] = set()
        """The addresses of batches that are not finished."""
        self._begun: dict[Key, DueHint] = {}
        """The hints of which some addresses need them no longer, and others do."""

    def delete_batch(self, permit: Permit, due: Sequence[DueAddress]) -> BatchSteps:
        """Delete one batch of due addresses, in the order of rule 8.

        Marked first, so that no restore names a blob that is deleted. It pauses once, while the store deletes; another
        batch may begin meanwhile.
        """
        marked, stale = mark_deleting(self._ctx, due, delays=self._delays, on_corrupt=self._on_corrupt)
        self._settle(stale)
        batch = [item for item in marked if item.address not in self._in_flight]
        if not batch:
            self._breaker.report_deleted(permit, 0)
            return
        addresses = left = [item.address for item in batch]
        self._in_flight.update(addresses)
        confirmed = DeleteResult((), (), ())
        try:
            self._fence.pass_through()  # behind the marks: a KV that lost a name since must not cost the blob (rule 21)
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
            self._breaker.report_deleted(permit, len(confirmed.deleted_keys))
        gone = set(addresses).difference(left)
        self._settle([each for each in due if each.address in gone])

    def shorten_hints(self) -> None:
        """Take the addresses that are gone off the hints that others still need.

        Otherwise the next pass would read these addresses again, and with a low rate limit never come to the others.
        """
        rest = due_hints.encode_many(
            self._ctx.repo,
            [(hint.due_ms, address) for hint in self._begun.values() for address in sorted(hint.pending_addresses)],
        )
        if rest:
            self._ctx.kv.set_many(rest)
            written = {key for key, _ in rest}
            self._ctx.kv.delete_many([key for key in self._begun if key not in written])
        self._begun.clear()

    def _settle(self, due: Sequence[DueAddress]) -> None:
        """Remove each hint that none of its addresses needs any more."""
        settled = settle(due)
        if settled:
            self._ctx.kv.delete_many(settled)
        for hint in dict.fromkeys([hint for _, hint in due]):
            if hint.pending_addresses:
                self._begun[hint.key] = hint
            else:
                self._begun.pop(hint.key, None)

    def _count(self, batch: Sequence[PendingDelete], confirmed: DeleteResult, left: Sequence[Address]) -> None:
        deleted, failed, kept = set(confirmed.deleted_keys), set(left), {key for key, _ in confirmed.kept_keys}
        sizes = [(item.address, item.size_bytes) for item in batch if item.size_bytes > 0 and item.address in deleted]
        kept_bytes = sum([size for address, size in sizes if address in kept])
        self._tally.count(
            deleted=len(deleted),
            bytes=sum([size for _, size in sizes]) - kept_bytes,
            kept=len(kept),
            kept_bytes=kept_bytes,
            missing=len(batch) - len(deleted) - len(failed),
            failed=len(failed),
            expired=len(
                [item for item in batch if item.cause in (NOT_LINKED, UPLOAD_EXPIRED) and item.address not in failed]
            ),
        )


def due_addresses(hints: Sequence[DueHint]) -> list[DueAddress]:
    return [DueAddress(address, hint) for hint in hints for address in hint.addresses]


def settle(due: Sequence[DueAddress]) -> list[Key]:
    """Note that the addresses need their hints no more. Return the keys of the hints that nothing needs any more."""
    for address, hint in due:
        hint.pending_addresses.discard(address)
    return [hint.key for hint in dict.fromkeys([hint for _, hint in due]) if not hint.pending_addresses]


def count_deletable(ctx: Context, *, now_ms: int | None, delays: DeletionDelays, limit: int) -> int:
    """Count the addresses that `mark_deleting` would mark, of the hints due by `now_ms`, or of all (None), up to
    `limit`.

    This reads each record, because an address that was linked or restored keeps its hint until a reaper reads it.
    """
    deletable: set[Address] = set()
    for shard in range(keys.SHARDS):
        after = ""
        with suppress(CorruptRecord):  # a damaged shard: nothing after the bad key is deleted
            while len(deletable) < limit and (
                page := due_hints.scan_due(ctx.kv, ctx.repo, shard, now_ms=now_ms, limit=due_hints.PAGE, after=after)
            ):
                after = page[-1].key.name
                addresses = list({address for hint in page for address in hint.addresses} - deletable)
                values = ctx.kv.get_many(keys.reference_keys(ctx.repo, addresses))
                deletable.update(
                    address
                    for address, value in zip(addresses, values, strict=True)
                    if _is_deletable(ctx, value, delays)
                )
    return min(len(deletable), limit)


def _is_deletable(ctx: Context, value: bytes | Absent, delays: DeletionDelays) -> bool:
    """Return whether an address may be deleted. If its record cannot be read it may not; `mark_deleting` leaves it,
    too.
    """
    try:
        return value is not ABSENT and may_delete(decode_reference(value), ctx.clock.now_ms(), delays)
    except CorruptRecord:
        return False


def mark_deleting(
    ctx: Context,
    due: Sequence[DueAddress],
    *,
    delays: DeletionDelays,
    on_corrupt: OnCorrupt = raise_error,
) -> tuple[list[PendingDelete], list[DueAddress]]:
    """Mark due addresses `deleting`. Return the addresses to delete now, and those that need their hints no more.

    If the `set_if` fails, the address was restored, linked, or marked by another reaper: its hint stays for the next
    pass. An address that is not due yet gets a hint at its due time, unless it has one; otherwise every pass until then
    would read it. That is the repository's own time, whatever this pass waits for. A record that cannot be read
    stays unchanged.
    """
    now = ctx.clock.now_ms()
    names = keys.reference_keys(ctx.repo, dict.fromkeys([address for address, _ in due]))
    values = ctx.kv.get_many(names)
    marked: list[PendingDelete] = []
    attempts: list[PendingDelete] = []
    writes: list[tuple[Key, bytes | Absent, bytes]] = []
    settled: set[Address] = set()
    early: dict[Address, int] = {}
    for key, value, record in _readable(names, values, on_corrupt):
        address = Address(key.name)
        if record is None or isinstance(record, Listed):
            settled.add(address)  # deleted, or named again
        elif isinstance(record, Deleting):
            marked.append(pending_delete(address, record))
        elif (deleting := begin_deletion(record, now, delays)) is None:
            early[address] = may_delete_at_ms(record, ctx.deletion_delays)
        else:
            attempts.append(pending_delete(address, deleting))
            writes.append((key, value, encode(deleting)))
    won = ctx.kv.set_if_many(set_ifs(*zip(*writes, strict=True))) if writes else []
    marked += [item for item, ok in zip(attempts, won, strict=True) if ok]
    stale = [each for each in due if each.address in settled] if settled else []
    return marked, stale + _reschedule(ctx, early, due)


def _readable(
    names: Sequence[Key], values: Sequence[bytes | Absent], on_corrupt: OnCorrupt
) -> Iterable[tuple[Key, bytes | Absent, ReferenceRecord | None]]:
    """Return each key whose record can be read, or that has none."""
    try:
        return zip(names, values, decode_reference_many(values), strict=True)
    except CorruptRecord:  # only then one by one, which takes longer
        by_name = {key.name: (key, value) for key, value in zip(names, values, strict=True)}
        there = [(name, value) for name, (_, value) in by_name.items() if value is not ABSENT]
        absent = [(key, value, None) for key, value in by_name.values() if value is ABSENT]
        return absent + [(*by_name[name], record) for name, _, record in readable(there, decode_reference, on_corrupt)]


def pending_delete(address: Address, record: Deleting) -> PendingDelete:
    return PendingDelete(
        address, record.last_reference.token, record.last_reference.path, record.cause, record.size_bytes
    )


def remove_keys(ctx: Context, addresses: Sequence[Address], confirmed: DeleteResult) -> list[Address]:
    """Remove the keys of `deleting` addresses whose blobs are deleted. Return the other addresses, which stay
    `deleting`.

    An address is never reused, and nothing but a removal can happen to a `deleting` key, so no other process can have
    changed it.
    """
    gone = {*confirmed.deleted_keys, *confirmed.missing_keys}
    going = [address for address in addresses if address in gone]
    ctx.kv.delete_many(keys.reference_keys(ctx.repo, going))
    return [] if len(going) == len(addresses) else [address for address in addresses if address not in gone]


def _reschedule(ctx: Context, early: Mapping[Address, int], due: Sequence[DueAddress]) -> list[DueAddress]:
    """Make sure that each address has a hint at the given time. Return its other hints, which it needs no more."""
    if not early:
        return []
    hinted = {address for address, hint in due if hint.due_ms == early.get(address)}
    due_hints.write(ctx.kv, ctx.repo, [(at_ms, address) for address, at_ms in early.items() if address not in hinted])
    return [each for each in due if each.address in early and each.hint.due_ms != early[each.address]]


def delete_blobs(objects: ObjectStore, batch: Sequence[PendingDelete], journal: Journal) -> DeleteResult:
    """Write the batch to the journal, then delete its blobs. Raises ObjectsUnavailable: then nothing is confirmed.

    At the address of a multipart upload the store is asked for uploads that are pending there: who began it may have
    died before it recorded what the store knows (rule 23).
    """
    journal.record_start(batch)
    pending = _abort_uploads(objects, batch)
    deleted = objects.delete_many([item.address for item in batch if item.address not in pending])
    return deleted._replace(failed_keys=(*deleted.failed_keys, *pending.items())) if pending else deleted


def _abort_uploads(objects: ObjectStore, batch: Sequence[PendingDelete]) -> dict[str, str]:
    """Abort what is pending at the addresses of multipart uploads. Return those of which an upload is left, and why."""
    left: dict[str, str] = {}
    for item in batch:
        if item.cause in UPLOAD_CAUSES:
            try:
                objects.abort_uploads(item.address)
            except ObjectsUnavailable as error:  # or the store refuses it, for lack of a right perhaps
                left[item.address] = str(error)
    return left


class AsyncDeleter:
    """Deletes blobs batch by batch in a thread of its own. Close it."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="refstore-delete")

    def submit(self, objects: ObjectStore, batch: Sequence[PendingDelete], journal: Journal) -> Future[DeleteResult]:
        """Begin `delete_blobs`."""
        return self._thread.submit(delete_blobs, objects, batch, journal)

    def close(self) -> None:
        """Close after the batches that were submitted."""
        self._thread.shutdown()


BatchSteps = Generator[None, None, None]
"""One batch: it yields where it waits for the store, so that the next batch may begin."""


class Pipeline:
    """Keeps at most one batch paused. Leaving the `with` block finishes it, also after an error."""

    def __init__(self) -> None:
        self._paused: deque[BatchSteps] = deque()

    def start(self, batch: BatchSteps) -> None:
        """Run the batch up to its pause, then finish those before it."""
        for _ in batch:
            self._paused.append(batch)
            break
        self._finish(most_paused=1)

    def _finish(self, *, most_paused: int) -> None:
        """Finish batches, oldest first. The first error is raised after all others were finished."""
        errors: list[Exception] = []
        while len(self._paused) > most_paused:
            try:
                next(self._paused.popleft(), None)
            except Exception as error:  # noqa: BLE001  # raised below
                errors.append(error)
        if errors:
            raise errors[0]

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self._finish(most_paused=0)
