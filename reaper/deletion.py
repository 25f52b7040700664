"""Hard deletion: `empty, or issued and expired -> deleting -> blob -> key`, one way (rule 8).

Work is found by the due hints, so it costs what is due, whatever else the repository holds. A hint decides nothing: the
reference record does. Any reaper may finish another's `deleting`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from reaper.processing import Doomed
from refstore import keys
from refstore.context import Context
from refstore.errors import CorruptRecord
from refstore.ids import Address, Token
from refstore.kv.base import ABSENT, Absent, Key, SetIf
from refstore.objects.base import Deletion
from refstore.records import Deleting, Due, Emptied, Issued, Reference, decode_reference, encode

EXPIRED: Final = "issued and not linked"

PAGE: Final = 5000
"""Hints that are counted together."""

_DUE: Final = encode(Due())


class Journal(Protocol):
    """Where deletions are written down: before the blobs go, and again with what the store confirmed."""

    def began(self, doomed: Sequence[Doomed]) -> None:
        """Raises what the place it is written to does: then no blob goes."""
        ...

    def ended(self, doomed: Sequence[Doomed], confirmed: Deletion) -> None: ...


class Hint(NamedTuple):
    key: Key
    due_ms: int
    address: Address


class Deleted(NamedTuple):
    """What the store confirmed."""

    objects: int
    """Blobs that went now."""
    missing: int
    """Blobs that were gone already, where the store can tell."""
    failed: tuple[Address, ...]
    """Blobs that the store did not confirm, after retries; they stay `deleting`."""
    bytes: int
    """Of the blobs that went, as far as their size was known."""


def due_hints(ctx: Context, shard: int, *, now_ms: int | None, limit: int, after: str = "") -> list[Hint]:
    """The shard's oldest hints, at most `limit`: those due by `now_ms`, or all of them (None). Raises CorruptRecord."""
    partition = keys.due_shard(ctx.repo, shard)
    bound = keys.due_time(now_ms) if now_ms is not None else "~"
    hints: list[Hint] = []
    for name, _ in ctx.kv.scan(partition, after=after, limit=limit):
        if name[: len(bound)] > bound:
            break
        due_ms, address = keys.parse_due(name)
        hints.append(Hint(Key(partition, name), due_ms, address))
    return hints


def count_condemnable(ctx: Context, *, now_ms: int | None, grace_seconds: float, limit: int) -> int:
    """What `condemn` would take of the hints that are due by `now_ms`, or of all (None), counted no further than `limit`.

    Reads the record of each: an address that was issued and linked, or restored, keeps its hint until somebody looks.
    """
    due: set[Address] = set()
    for shard in range(keys.SHARDS):
        after = ""
        with suppress(CorruptRecord):  # a shard that cannot be read whole: nothing of it goes behind the bad key
            while len(due) < limit and (page := due_hints(ctx, shard, now_ms=now_ms, limit=PAGE, after=after)):
                after = page[-1].key.name
                addresses = list({hint.address for hint in page} - due)
                found = ctx.kv.get_many(keys.reference_many(ctx.repo, addresses))
                due.update(address for address, value in zip(addresses, found, strict=True) if _is_due(ctx, value, grace_seconds))
    return min(len(due), limit)


def _is_due(ctx: Context, value: bytes | Absent, grace_seconds: float) -> bool:
    """As `condemn` decides; what cannot be read is left there, too."""
    now = ctx.clock.now_ms()
    try:
        match None if value is ABSENT else decode_reference(value):
            case Emptied(since_ms):
                return since_ms + grace_seconds * 1000 <= now
            case Issued(_, expires_ms):
                return expires_ms + int(ctx.safety.clock_skew_seconds * 1000) <= now
            case Deleting():
                return True
            case _:
                return False
    except CorruptRecord:
        return False


def condemn(
    ctx: Context,
    hints: Sequence[Hint],
    *,
    grace_seconds: float,
    on_corrupt: Callable[[Address, CorruptRecord], None] | None = None,
) -> tuple[list[Doomed], list[Hint]]:
    """Make what is due `deleting`. (What is to be deleted now, hints that have become pointless.)

    An address is due when its list has been empty for the grace window, or when it was issued, has expired, and was not
    linked. Losing the `set_if` means that it was restored, linked, or taken by another reaper: its hint stays for the next
    look. One that is not due yet gets a hint at the time when it is, if its hints say another, so that it is not looked at in
    every pass until then. A record that cannot be read is told, and left; without `on_corrupt` it raises CorruptRecord, and
    nothing of the batch was touched.
    """
    now = ctx.clock.now_ms()
    hints_of: dict[Address, list[Hint]] = {}
    for hint in hints:
        hints_of.setdefault(hint.address, []).append(hint)
    names = keys.reference_many(ctx.repo, hints_of)
    found = ctx.kv.get_many(names)
    doomed: list[Doomed] = []
    asked: list[Doomed] = []
    writes: list[SetIf] = []
    stale: list[Hint] = []
    early: list[tuple[Address, int]] = []
    for address, key, value in zip(hints_of, names, found, strict=True):
        try:
            record = None if value is ABSENT else decode_reference(value)
        except CorruptRecord as error:
            if on_corrupt is None:
                raise
            on_corrupt(address, error)
            continue
        match record:
            case Emptied(since_ms, last, cause, entry):
                if since_ms + grace_seconds * 1000 > now:
                    early.append((address, since_ms + int(ctx.grace_seconds * 1000)))
                    continue
                size_bytes = entry.size_bytes if entry else -1
            case Issued(_, expires_ms, _, path):
                # the clock that issued it may be behind this one
                expired_ms = expires_ms + int(ctx.safety.clock_skew_seconds * 1000)
                if expired_ms > now:
                    early.append((address, expired_ms))
                    continue
                last, cause, size_bytes = Reference(Token(""), path), EXPIRED, -1
            case Deleting(_, last, cause, size_bytes):
                doomed.append(Doomed(address, last.token, last.path, cause, size_bytes))
                continue
            case _:
                stale += hints_of[address]  # named again, or gone
                continue
        asked.append(Doomed(address, last.token, last.path, cause, size_bytes))
        writes.append(SetIf(key, value, encode(Deleting(now, last, cause, size_bytes))))
    won = ctx.kv.set_if_many(writes) if writes else []
    doomed += [item for item, ok in zip(asked, won, strict=True) if ok]
    stale += _put_off(ctx, early, hints_of)
    return doomed, stale


def destroy(ctx: Context, doomed: Sequence[Doomed], journal: Journal) -> Deleted:
    """Delete the blobs of `deleting` addresses, then the keys of those that the store confirmed.

    What the store did not confirm stays `deleting`, for the next look. Raises ObjectsUnavailable: then nothing is confirmed.
    """
    return confirm(ctx, doomed, erase(ctx, doomed, journal), journal) if doomed else Deleted(0, 0, (), 0)


def erase(ctx: Context, doomed: Sequence[Doomed], journal: Journal) -> Deletion:
    """The store's half of `destroy`; it may run beside other work."""
    journal.began(doomed)
    return ctx.objects.delete_many([item.address for item in doomed])


def confirm(ctx: Context, doomed: Sequence[Doomed], confirmed: Deletion, journal: Journal) -> Deleted:
    """The KV's half of `destroy`."""
    deleted = set(confirmed.deleted)
    gone = deleted.union(confirmed.missing)
    # an address is never given again, so a `deleting` key can only go one way: nobody can have changed it
    ctx.kv.delete_many(keys.reference_many(ctx.repo, [item.address for item in doomed if item.address in gone]))
    journal.ended(doomed, confirmed)
    return Deleted(
        len(deleted),
        len(gone) - len(deleted),
        tuple(item.address for item in doomed if item.address not in gone),
        sum(item.size_bytes for item in doomed if item.size_bytes > 0 and item.address in deleted),
    )


def destroy_unhinted(ctx: Context, doomed: Sequence[Doomed], journal: Journal) -> Deleted:
    """`destroy`, for addresses that were released straight to `deleting`: what is left over gets its due hint now."""
    left: Sequence[Address] = [item.address for item in doomed]
    try:
        done = destroy(ctx, doomed, journal)
        left = done.failed
        return done
    finally:
        hint_now(ctx, left)


def hint_now(ctx: Context, addresses: Sequence[Address]) -> None:
    """Make the next pass look at the addresses."""
    now = ctx.clock.now_ms()
    if addresses:
        ctx.kv.set_many([(keys.due(ctx.repo, now, address), _DUE) for address in addresses])


def drop_hints(ctx: Context, hints: Sequence[Hint]) -> None:
    """Forget hints that have done their work."""
    if hints:
        ctx.kv.delete_many([hint.key for hint in hints])


def _put_off(ctx: Context, early: Sequence[tuple[Address, int]], hints_of: dict[Address, list[Hint]]) -> list[Hint]:
    """See that each address has a hint at the given time; its other hints, which then say nothing."""
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
