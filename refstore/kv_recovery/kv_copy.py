"""Copy the KV of a stopped lake to another KV, of any kind, and let the lake go on there.

    the old KV   open ----------> leaving --------------------------------> gone
    the new KV   empty -------------------> arriving -> checked ------------------> open

`configuration/copy` has the state, and every process that opens a lake, or reads its durations again, looks there: so
the lake is open in one of the two KVs, or in none, and never in both. What was done stays done after a crash, and the
same call goes on. Until the old KV is `gone`, `give_up` opens it again; from then on the lake can only go forward.

Each call has an id, which the new KV has in its state. So a call that others took for dead ends at its next page.

A process that was not stopped hears of the move after `REREAD_SECONDS`, and what it began goes on until its deadline.
All that is waited for before the two KVs are compared, unless the caller knows that there is none.

Every record is copied as it is, but for the state itself and the lake's id, which the new KV gets last. Then both are
read as a whole, and compared by the number of keys and a digest for each partition. A partition that differs is copied
once more: a process that was not stopped has written to it. The deleters' positions come along, so that rule 21 sees
what happened: a planned switch to another server.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Final, NamedTuple, Protocol

import msgspec

from refstore import lake_identity
from refstore.agreed_durations import REREAD_SECONDS, durations_in_force, longest_durations, read_record
from refstore.core import event_log
from refstore.core.batches import split_batches
from refstore.core.clock import format_utc
from refstore.errors import Conflict, Corrupt, NotFound, WrongStore
from refstore.kv.base import ABSENT, KV, Key
from refstore.kv_recovery.lake_parts import NO_PROGRESS, LakeAccess, Progress
from refstore.records import keys
from refstore.records.encoding import decode, decode_optional, encode
from refstore.records.lake_records import KvCopy, LakeRecord
from refstore.records.reaper_records import Heartbeat

NOT_COPIED: Final = (keys.LAKE, keys.KV_COPY)
"""Each of the two KVs has its own."""
PAGE: Final = 1000
WAIT_SECONDS: Final = 5.0
NOTED_EVERY: Final = 20
"""After so many pages the new KV notes how far the copy has come."""
SILENT_SECONDS: Final = 60
"""A reaper without a heartbeat for so long is not running, as far as can be told."""

_log = event_log.get_logger(__name__)


class KvContents(NamedTuple):
    """What a KV holds, as far as it is copied."""

    keys: int
    partitions: int
    bytes: int
    sha256: str


class _PartitionDigest(NamedTuple):
    keys: int
    bytes: int
    sha256: str


class MovingLake(LakeAccess, Protocol):
    """A lake, by one of the two KVs."""

    def take_stores(self, *, dry_run: bool = False, must_answer: bool = False) -> list[str]: ...


def copy_kv(
    source: MovingLake,
    target: MovingLake,
    *,
    shown: tuple[str, str],
    clients_stopped: bool = False,
    progress: Progress = NO_PROGRESS,
) -> KvContents:
    """Copy the lake's KV, and open the lake in the new one. Return what was copied.

    `source`, `target`: the lake by either KV, used by nobody. `shown`: how messages name the two KVs.
    `clients_stopped`: no operation is under way, so do not wait for any. Raises WrongStore (the old KV is not of the
    lake that the object store is of), Conflict (the new KV is not empty, the lake is in use, another call goes on with
    the copy, or it was given up), Corrupt (the two still differ), AuditUnavailable, Unavailable.
    """
    leaving = _close_source(source, target.kv, shown)
    arriving = _claim_target(target.kv, leaving, shown, source.ids.new_id(source.clock.now_ms()))
    if arriving.state == "arriving":
        arriving = _copy_all(source.kv, target.kv, arriving, progress)
        if not clients_stopped:
            _wait_for_operations(source, leaving, progress)
        contents = msgspec.json.encode(_check_all(source.kv, target.kv, arriving, progress)).decode()
        arriving = _advance(target.kv, arriving, state="checked", contents=contents)
    _advance(source.kv, leaving, state="gone")
    contents = msgspec.json.decode(arriving.contents, type=KvContents)
    _check_run(target.kv, arriving)
    after = {"kv": shown[1], **contents._asdict()}
    with target.audit.change("kv.copy", before={"kv": shown[0]}, after=after) as draft:
        target.take_stores()
        # the id before the state, which is what keeps others out
        target.kv.set_if(keys.LAKE, ABSENT, encode(LakeRecord(_id_of(source), is_confirmed=True)))
        if not target.kv.set_if(keys.KV_COPY, encode(arriving), ABSENT):
            draft.happened = False
            raise _another_run()
    return contents


def give_up(source: LakeAccess) -> None:
    """Open the old KV again; the new one stays closed. Raises Conflict: there is no copy, or it has come too far."""
    raw = source.kv.get(keys.KV_COPY)
    record = decode_optional(raw, KvCopy)
    if record is None or record.state != "leaving":
        raise Conflict(
            f"the lake has moved to {record.other}, and cannot be opened here again; copy it back from there"
            if record is not None and record.state == "gone"
            else "no copy of this KV is under way, so there is nothing to give up"
        )
    with source.audit.change("kv.copy.give_up", before={"to": record.other}) as draft:
        if not source.kv.set_if(keys.KV_COPY, raw, ABSENT):
            draft.happened = False
            raise Conflict("the copy has just ended, or was given up by another process; look with `refstore doctor`")


def _close_source(source: MovingLake, target: KV, shown: tuple[str, str]) -> KvCopy:
    """Close the lake in the old KV, and return the state that it has there then."""
    known = decode_optional(source.kv.get(keys.KV_COPY), KvCopy)
    if known is not None and known.state in ("leaving", "gone"):
        if known.other != shown[1]:
            raise Conflict(f"the lake is being copied, or was copied, to {known.other}; name that KV")
        return known
    lake_identity.check_kv_open(source.kv)
    lake_id = _id_of(source)
    if held := source.take_stores(dry_run=True, must_answer=True):  # nobody looks in the new KV
        raise WrongStore(
            f"another copy of this lake's folder holds {', '.join(held)}, and would share it with the new KV; copy the "
            "KV of that one, or give it up with `refstore kv reconcile`"
        )
    if target.partitions():
        raise Conflict(
            f"{shown[1]} holds something already; name a KV that is empty (with Redis another `prefix` may do)"
        )
    _check_stopped(source)
    now = source.clock.now_ms()
    leaving = KvCopy(source.ids.new_id(now), "leaving", shown[1], now)
    with source.audit.change("kv.copy.begin", target=lake_id, before={"kv": shown[0]}, after={"kv": shown[1]}) as draft:
        if not source.kv.set_if(keys.KV_COPY, ABSENT, encode(leaving)):
            draft.happened = False
            raise Conflict("another process has just begun to copy this KV; wait until it has ended")
    return leaving


def _id_of(source: LakeAccess) -> str:
    """Return the lake's id, which the object store has to have, too. Raises NotFound, WrongStore."""
    known, stored = lake_identity.read_both(source.kv, source.own_store)
    if not known:
        raise NotFound("the KV to copy from has no lake; name the one that your processes use (`refstore config`)")
    if known != stored:
        raise WrongStore(
            f"the KV to copy from is of lake {known}, and the object store of {stored or 'none'}; name the object "
            "store of that lake (--objects, or --data)"
        )
    return known


def _check_stopped(source: LakeAccess) -> None:
    """Raise Conflict if a reaper has given a sign of life just now."""
    after_ms = source.clock.now_ms() - SILENT_SECONDS * 1000
    for name, raw in source.kv.scan_all(keys.REAPERS):
        beat = decode(raw, Heartbeat)
        if beat.beat_ms > after_ms:
            raise Conflict(
                f"the reaper {name} was at work at {format_utc(beat.beat_ms)}; stop every process that uses the lake, "
                f"then make the same call again. (One that was killed counts for {SILENT_SECONDS} s.)"
            )


def _claim_target(target: KV, leaving: KvCopy, shown: tuple[str, str], run: str) -> KvCopy:
    """Let the new KV be this copy's and this call's, closed to all others, and return the state that it has there."""
    known = decode_optional(target.get(keys.KV_COPY), KvCopy)
    if known is None:
        if leaving.state == "gone":
            raise Conflict(
                f"the lake has moved to {shown[1]}, at {format_utc(leaving.since_ms)}; use it there. If it was lost "
                "there, restore it from a backup of that KV"
            )
        if target.partitions():
            raise Conflict(f"{shown[1]} holds what is not of this copy; empty it, then make the same call again")
        known = KvCopy(leaving.id, "arriving", shown[0], leaving.since_ms, run=run)
        if not target.set_if(keys.KV_COPY, ABSENT, encode(known)):
            raise Conflict("another process has just begun to fill the new KV; wait until it has ended")
    if known.id != leaving.id:
        raise Conflict(f"{shown[1]} has what is left of another copy; empty it, then make the same call again")
    return _advance(target, known, run=run)


def _copy_all(source: KV, target: KV, arriving: KvCopy, progress: Progress) -> KvCopy:
    """Copy what an earlier call has not."""
    progress.describe("copying")
    pages = 0
    for partition in source.partitions():
        if partition < arriving.partition:
            continue
        after = arriving.after if partition == arriving.partition else ""
        while True:
            page = source.scan(partition, after=after, limit=PAGE)
            _put(target, partition, page, arriving)
            progress.advance(len(page))
            pages += 1
            if page:
                after = page[-1][0]
            if pages % NOTED_EVERY == 0:
                arriving = _advance(target, arriving, partition=partition, after=after)
            if len(page) < PAGE:
                break
    return arriving


def _put(target: KV, partition: str, page: Sequence[tuple[str, bytes]], arriving: KvCopy) -> None:
    pairs = [(Key(partition, name), value) for name, value in page]
    _check_run(target, arriving)
    target.set_many([pair for pair in pairs if pair[0] not in NOT_COPIED])


def _wait_for_operations(source: LakeAccess, leaving: KvCopy, progress: Progress) -> None:
    """Wait until processes that were not stopped have heard of the move, and what they began before has ended."""
    waits, record = source.durations.waits, read_record(source.kv)
    if record is not None:
        waits = longest_durations(durations_in_force(record, leaving.since_ms), waits)
    ends_ms = waits.operations_end_ms(leaving.since_ms + int(REREAD_SECONDS * 1000))
    while (left := (ends_ms - source.clock.now_ms()) / 1000) > 0:
        progress.describe(f"waiting {left:.0f} s for operations that began before")
        source.clock.sleep(min(left, WAIT_SECONDS))


def _check_all(source: KV, target: KV, arriving: KvCopy, progress: Progress) -> KvContents:
    """Compare the two, and copy once more what differs. Raises Corrupt."""
    found, differing = _compare(source, target, progress)
    for partition in differing:
        _log.warning("kv_copy_differs", partition=partition)
        there = (Key(partition, name) for name, _ in target.scan_all(partition))
        for page in split_batches([key for key in there if key not in NOT_COPIED]):
            _check_run(target, arriving)
            target.delete_many(page)
        for pairs in split_batches(source.scan_all(partition)):
            _put(target, partition, pairs, arriving)
    if differing:
        found, differing = _compare(source, target, progress)
    if differing:
        raise Corrupt(
            f"the two KVs differ in {len(differing)} partitions, such as {differing[0]!r}, which was copied twice: a "
            "process still writes, or a KV does not keep what it acknowledged; stop all processes and make the same "
            "call again, or open the old KV with --give-up"
        )
    return found


def _compare(source: KV, target: KV, progress: Progress) -> tuple[KvContents, list[str]]:
    """Return what the old KV holds, and the partitions that differ."""
    progress.describe("comparing")
    found: dict[str, _PartitionDigest] = {}
    differing: list[str] = []
    for partition in sorted({*source.partitions(), *target.partitions()}):
        found[partition] = _digest(source, partition)
        progress.advance(found[partition].keys)
        if _digest(target, partition) != found[partition]:
            differing.append(partition)
    return _sum_up(found), differing


def _digest(kv: KV, partition: str) -> _PartitionDigest:
    digest, count, size = sha256(), 0, 0
    for name, value in kv.scan_all(partition):
        if Key(partition, name) in NOT_COPIED:
            continue
        for text in (name.encode(), value):
            digest.update(len(text).to_bytes(8))
            digest.update(text)
            size += len(text)
        count += 1
    return _PartitionDigest(count, size, digest.hexdigest())


def _sum_up(found: dict[str, _PartitionDigest]) -> KvContents:
    kept = {partition: each for partition, each in found.items() if each.keys}
    whole = sha256(msgspec.json.encode(sorted((partition, *each) for partition, each in kept.items())))
    return KvContents(
        sum(each.keys for each in kept.values()),
        len(kept),
        sum(each.bytes for each in kept.values()),
        whole.hexdigest(),
    )


def _advance(kv: KV, known: KvCopy, **changes: str) -> KvCopy:
    """Write the next state. Raises Conflict: another process has changed it."""
    following = msgspec.structs.replace(known, **changes)
    if following != known and not kv.set_if(keys.KV_COPY, encode(known), encode(following)):
        raise _another_run()
    return following


def _check_run(target: KV, arriving: KvCopy) -> None:
    """Raise Conflict if a later call goes on with the copy: it may have opened the new KV."""
    if target.get(keys.KV_COPY) != encode(arriving):
        raise _another_run()


def _another_run() -> Conflict:
    return Conflict("another process copies this KV, too, or has given the copy up; make the call in one of them")
