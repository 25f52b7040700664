"""Remove the remains of crashed operations (rule 9), by a full pass over one shard at a time.

- A reference whose token is dead (neither live nor retired, and without a marker) is dropped.
- A reference of a current token whose entry does not name the address is released (`release_unnamed`).
- An empty list, an issued address or a `deleting` key without a due hint gets one.
- A staging area whose token is long dead is removed, and the token forgotten.
- What is left of a multipart upload that is long over is removed, and the upload forgotten (rule 23).

The scrubber ignores what was made within the time of the longest operation. The order of reading matters: the
**branch first, then the committed markers, then the deleted ones**, in which a token's fate is recorded. In any other
order a token can be missed, and its references dropped while a commit takes them.

Each unit, `scrub/` with a shard of the references or with one of the other things that are scrubbed, is scrubbed once
per interval (`ScrubSchedule`). A stamp in the KV says when a reaper scrubbed it last.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from random import Random
from typing import Final, NamedTuple

import msgspec

from refstore.context import Context
from refstore.core.ids import Address, BranchName, Token, branch_of, staging_token
from refstore.errors import CorruptRecord, ObjectsUnavailable
from refstore.kv.base import ABSENT, Key, SetIf
from refstore.operations import multipart
from refstore.records import keys
from refstore.records.branch_records import StoredBranch, TokenRecord
from refstore.records.encoding import decode, encode
from refstore.records.multipart_records import MultipartUpload
from refstore.records.reaper_records import StampRecord
from refstore.records.reference_records import Issued, Listed, Reference, ReferenceRecord, decode_reference
from refstore.records.staging_records import StoredEntry, decode_staged
from refstore.versioning import due_hints
from refstore.versioning.address_state import (
    Unnamed,
    after_release,
    changed_ms,
    may_delete_at_ms,
    reference_time_ms,
)
from refstore.versioning.multipart_uploads import RegisteredUpload, UploadName
from refstore_reaper.readable_records import OnCorrupt, raise_error, readable

PAGE: Final = 1000

SCRUBBED_CAUSE: Final = "scrubbed"


class ScrubResult(NamedTuple):
    references: int
    """References of dead tokens that were dropped."""
    hints: int
    """Due hints that were missing."""
    tokens: int
    """Dead tokens whose staging area was removed, or multipart uploads that were forgotten."""
    failed: int = 0
    """Multipart uploads that the store did not abort; they are tried again."""
    finished: bool = True
    """Whether the shard was scrubbed completely."""


class ReadAddress(NamedTuple):
    """An address with the record of its references, as it was read."""

    address: Address
    value: bytes
    record: ReferenceRecord


def scrub_references(
    ctx: Context,
    shard: int,
    *,
    on_corrupt: OnCorrupt = raise_error,
    go_on: Callable[[], bool] = lambda: True,
) -> ScrubResult:
    """Scrub one shard of the references.

    A reference record that cannot be read is left. A branch or marker that cannot be read always raises, because any
    token might be in it.
    """
    partition = keys.references(ctx.repo, shard)
    dropped = hinted = 0
    after = ""
    while page := ctx.kv.scan(partition, after=after, limit=PAGE):
        if not go_on():
            return ScrubResult(dropped, hinted, 0, finished=False)
        after = page[-1][0]
        before = ctx.clock.now_ms() - int(ctx.waits.scrub_after_seconds * 1000)
        read = [
            ReadAddress(Address(name), value, record)
            for name, value, record in readable(page, decode_reference, on_corrupt)
        ]
        hinted += _write_missing_hints(ctx, [item for item in read if changed_ms(item.record) < before])
        dropped += _drop_dead_references(ctx, read, before)
    return ScrubResult(dropped, hinted, 0)


def scrub_tokens(ctx: Context, *, on_corrupt: OnCorrupt = raise_error) -> ScrubResult:
    """Remove the staging areas of tokens that have been dead for longer than the longest operation."""
    before = ctx.clock.now_ms() - int(ctx.waits.scrub_after_seconds * 1000)
    registry = ctx.kv.scan_all(keys.tokens(ctx.repo))
    old = {
        staging_token(name): value
        for name, value, record in readable(registry, lambda raw: decode(raw, TokenRecord), on_corrupt)
        if max(record.created_ms, record.processed_ms) < before
    }
    forgotten = 0
    for token in sorted(dead_tokens(ctx, old)):
        # references that it still has are dropped as those of a dead token
        ctx.kv.delete_range(keys.staging(ctx.repo, token), "", keys.LAST_CODE_POINT)
        # a token that was processed meanwhile may still have late writers: its stamp makes this fail
        forgotten += ctx.kv.set_if(keys.token(ctx.repo, token), old[token], ABSENT)
    return ScrubResult(0, 0, forgotten)


def scrub_uploads(
    ctx: Context,
    *,
    on_error: Callable[[str, CorruptRecord | ObjectsUnavailable], None] = raise_error,
    go_on: Callable[[], bool] = lambda: True,
) -> ScrubResult:
    """Let go what is left of multipart uploads that are over, and forget them (rule 23).

    One whose record is young may be about to be issued. One that is found to be over is closed first, and forgotten
    when everybody has ended who may still write a part. `on_error` gets the uploads that cannot be read, and those that
    the store does not abort; they are left, and the others go.
    """
    forgotten = failed = 0

    def leave(name: str, error: CorruptRecord | ObjectsUnavailable) -> None:
        nonlocal failed
        failed += isinstance(error, ObjectsUnavailable)
        on_error(name, error)

    after = ""
    while page := ctx.kv.scan(keys.uploads(ctx.repo), after=after, limit=PAGE):
        after = page[-1][0]
        before = ctx.clock.now_ms() - int(ctx.waits.scrub_after_seconds * 1000)
        old = [
            RegisteredUpload(UploadName(*keys.parse_upload(name)), value, record)
            for name, value, record in readable(page, lambda raw: decode(raw, MultipartUpload), leave)
            if max(record.begun_ms, record.closed_ms) < before
        ]
        states = ctx.references.get_many([item.name.address for item in old])
        for item, state in zip(old, states, strict=True):
            if isinstance(state, Issued) or (isinstance(state, Listed) and state.changed_ms >= before):
                continue  # it is open, or its address was taken a short time ago, and its entry may be on its way
            if not go_on():
                return ScrubResult(0, 0, forgotten, failed, finished=False)
            try:
                forgotten += _end_upload(ctx, item)
            except (CorruptRecord, ObjectsUnavailable) as error:
                leave(item.name.upload_id, error)
    return ScrubResult(0, 0, forgotten, failed)


def _end_upload(ctx: Context, upload: RegisteredUpload) -> bool:
    """Close the upload, or, if it is closed for long, forget it. Return whether it was forgotten."""
    if not upload.record.closed_ms:
        closed = msgspec.structs.replace(upload.record, closed_ms=ctx.clock.now_ms())
        if ctx.uploads.change(upload, closed) is not None:
            multipart.end_upload(ctx, upload.name, upload.record.token_id)
        return False
    multipart.end_upload(ctx, upload.name, upload.record.token_id)
    return ctx.uploads.forget(upload)


def open_upload_keys(ctx: Context) -> set[str]:
    """Return the keys of the uploads that are registered: the store's sweep of old ones is to leave them alone."""
    # from the keys alone: a record that cannot be read keeps no sweep from its work
    return {UploadName(*keys.parse_upload(name)).address for name, _ in ctx.kv.scan_all(keys.uploads(ctx.repo))}


def dead_tokens(ctx: Context, tokens: Iterable[Token]) -> set[Token]:
    """Return tokens that are not live, retired or marked. Branches are read first, as a fate travels (rule 9)."""
    branches = ctx.branches
    markers = ctx.markers
    left = set(tokens)
    if not left:
        return left
    names: list[BranchName] = sorted({branch_of(token) for token in left})
    for raw in ctx.kv.get_many([branches.key(name) for name in names]):
        record = branches.decode(raw)
        if record is not None:
            left -= {retired.token for retired in record.retired_tokens}
        if isinstance(record, StoredBranch):
            left -= set(record.live_tokens)
    for _, marker in markers.scan_committed():
        left -= set(marker.tokens)
    candidates = sorted(left)
    values = ctx.kv.get_many([keys.deleted_token(ctx.repo, token) for token in candidates])
    return {token for token, value in zip(candidates, values, strict=True) if value is ABSENT}


def old_references(item: ReadAddress, before: int) -> set[Reference]:
    """Return the references of an address that were made before that time. A list that changes all the time has old
    ones, too; only where an id does not say when it was made, the last change of the list counts.
    """
    if not isinstance(item.record, Listed):
        return set()
    made_ms = {ref: reference_time_ms(item.address, ref) for ref in item.record.references}
    return {ref for ref, at_ms in made_ms.items() if (item.record.changed_ms if at_ms is None else at_ms) < before}


def _drop_dead_references(ctx: Context, addresses: Sequence[ReadAddress], before: int) -> int:
    old = {item.address: references for item in addresses if (references := old_references(item, before))}
    dead = dead_tokens(ctx, {ref.token for references in old.values() for ref in references})
    _register(ctx, dead)
    useless = {address: {ref for ref in references if ref.token in dead} for address, references in old.items()}
    return sum(drop_references(ctx, addresses, useless).values())


def drop_references(
    ctx: Context, addresses: Sequence[ReadAddress], useless: Mapping[Address, Collection[Reference]]
) -> dict[Address, int]:
    """Drop references from the lists that are still as they were read, and return how many of which address. What lost
    its last one enters its grace window.
    """
    now = ctx.clock.now_ms()
    writes: list[SetIf] = []
    planned: list[tuple[Address, int, ReferenceRecord]] = []
    for address, value, record in addresses:
        drop = useless.get(address)
        if drop and isinstance(record, Listed):
            left = tuple(ref for ref in record.references if ref not in drop)
            after = after_release(left, record.references[-1], SCRUBBED_CAUSE, None, now)
            writes.append(SetIf(keys.reference(ctx.repo, address), value, encode(after)))
            planned.append((address, len(record.references) - len(left), after))
    won = ctx.kv.set_if_many(writes) if writes else []
    dropped = [plan for plan, ok in zip(planned, won, strict=True) if ok]
    due_hints.write(ctx.kv, ctx.repo, _due_times(ctx, [(address, after) for address, _, after in dropped]))
    return {address: count for address, count, _ in dropped}


def _register(ctx: Context, dead: Iterable[Token]) -> None:
    """Register dead tokens that the registry does not know, so that `scrub_tokens` removes their areas.

    A KV that was restored from a backup does not know tokens that were made since, although clients may have written
    under them. Only these references still name such a token, so it is registered before they are dropped. A token with
    an empty area is not registered: the registry knew it, and has removed it.
    """
    tokens = sorted(dead)
    values = ctx.kv.get_many([keys.token(ctx.repo, token) for token in tokens]) if tokens else []
    unknown = [token for token, value in zip(tokens, values, strict=True) if value is ABSENT]
    left = [token for token in unknown if ctx.kv.scan(keys.staging(ctx.repo, token), limit=1)]
    if left:
        record = encode(TokenRecord(created_ms=ctx.clock.now_ms()))
        ctx.kv.set_many([(keys.token(ctx.repo, token), record) for token in left])


def _write_missing_hints(ctx: Context, old: Sequence[ReadAddress]) -> int:
    """Write the due hints that a crash left out. Return how many."""
    hints = _due_times(ctx, [(address, record) for address, _, record in old])
    missing = [
        hint for hint, known in zip(hints, due_hints.have_hints(ctx.kv, ctx.repo, hints), strict=True) if not known
    ]
    due_hints.write(ctx.kv, ctx.repo, missing)
    return len(missing)


def _due_times(ctx: Context, states: Iterable[tuple[Address, ReferenceRecord]]) -> list[tuple[int, Address]]:
    """Return when the objects may be deleted that nothing names."""
    delays = ctx.deletion_delays
    return [(may_delete_at_ms(state, delays), address) for address, state in states if isinstance(state, Unnamed)]


ATTEMPTS: Final = 8
"""How often references are released from a list that others change meanwhile; the next scrub tries again."""


def release_unnamed(
    ctx: Context,
    shard: int,
    *,
    check_servers: Callable[[], None],
    on_corrupt: OnCorrupt = raise_error,
    go_on: Callable[[], bool] = lambda: True,
) -> ScrubResult:
    """Release the references of current tokens, in one shard, whose entry does not name their address (rule 9).

    A writer died between its reference and its entry; or whoever replaced an entry died before it released the
    reference of the old one. The token is current, perhaps for years, so nothing else would find what was left. In this
    order:

    1. The lists are read. A reference counts that is older than the longest operation: no entry of it is on its way.
    2. The entries at the references' paths are read. One that does not name the address leaves its reference unnamed.
    3. The branches are read. No commit can have read what stood under a token that is still current now. References of
       sealed tokens go with their token.
    4. The servers are compared with those at the beginning of the pass: an entry that was lost meanwhile looks as if it
       had never been written, and the release would explain the loss (rule 21).
    5. The references are released by `set_if` on the list as it was read, into the grace window, and never straight to
       deletion.

    What cannot be read is left: a reference record, and what an entry may name. A branch that cannot be read raises
    CorruptRecord. `check_servers` raises where the repository's KV is not served as it was when the pass began.
    """
    partition = keys.references(ctx.repo, shard)
    released = 0
    after = ""
    while page := ctx.kv.scan(partition, after=after, limit=PAGE):
        if not go_on():
            return ScrubResult(released, 0, 0, finished=False)
        after = page[-1][0]
        before = ctx.clock.now_ms() - int(ctx.waits.scrub_after_seconds * 1000)
        addresses = [
            ReadAddress(Address(name), value, record)
            for name, value, record in readable(page, decode_reference, on_corrupt)
        ]
        for _ in range(ATTEMPTS):
            old = {item.address: references for item in addresses if (references := old_references(item, before))}
            unnamed = _find_unnamed(ctx, old, on_corrupt)
            if not unnamed:
                break
            check_servers()
            dropped = drop_references(ctx, addresses, unnamed)
            released += sum(dropped.values())
            addresses = _read_again(ctx, sorted(unnamed.keys() - dropped.keys()))
    return ScrubResult(released, 0, 0)


def _find_unnamed(
    ctx: Context, old: Mapping[Address, set[Reference]], on_corrupt: OnCorrupt
) -> dict[Address, set[Reference]]:
    pairs = [(address, ref) for address, references in old.items() for ref in references]
    values = ctx.kv.get_many([keys.entry(ctx.repo, ref.token, ref.path) for _, ref in pairs]) if pairs else []
    left = [
        (address, ref)
        for (address, ref), value in zip(pairs, values, strict=True)
        if value is ABSENT or not _may_name(value, address, ref, on_corrupt)
    ]
    current = _current_tokens(ctx, {branch_of(ref.token) for _, ref in left})  # behind the entries
    unnamed: dict[Address, set[Reference]] = {}
    for address, ref in left:
        if ref.token in current:
            unnamed.setdefault(address, set()).add(ref)
    return unnamed


def _may_name(value: bytes, address: Address, reference: Reference, on_corrupt: OnCorrupt) -> bool:
    try:
        entry = decode_staged(value)
    except CorruptRecord as error:
        on_corrupt(f"{reference.token}/{reference.path}", error)
        return True
    return isinstance(entry, StoredEntry) and entry.address == address


def _current_tokens(ctx: Context, branches: Iterable[BranchName]) -> set[Token]:
    names = sorted(branches)
    values = ctx.kv.get_many([ctx.branches.key(name) for name in names]) if names else []
    records = [ctx.branches.decode(value) for value in values]
    return {record.token for record in records if isinstance(record, StoredBranch)}


def _read_again(ctx: Context, addresses: Sequence[Address]) -> list[ReadAddress]:
    values = ctx.kv.get_many(keys.reference_keys(ctx.repo, addresses)) if addresses else []
    return [
        ReadAddress(address, value, decode_reference(value))
        for address, value in zip(addresses, values, strict=True)
        if value is not ABSENT
    ]


TOKENS: Final = "tokens"
UPLOADS: Final = "uploads"
TEMPORARY: Final = "temporary"
"""What is scrubbed besides the shards of the references."""


class ScrubSchedule:
    def __init__(self, ctx: Context, every_seconds: float, requested_ms: int | None, random: Random) -> None:
        """`requested_ms`: everything that was not scrubbed since then is due, whatever the interval says."""
        self._ctx = ctx
        self._every_ms = int(every_seconds * 1000)
        self._requested_ms = requested_ms
        self._random = random

    def find_due_units(self) -> list[str]:
        """Return the units whose interval is over, in any order. New units are spread over the interval, so that a
        repository is not scrubbed all at once.
        """
        units = [
            f"scrub/{what}" for what in (*(f"{shard:02x}" for shard in range(keys.SHARDS)), TOKENS, UPLOADS, TEMPORARY)
        ]
        now = self._ctx.clock.now_ms()
        stamps = dict(self._ctx.kv.scan(keys.reaper_states(self._ctx.repo), prefix="scrubbed/", limit=len(units) * 2))
        due: list[str] = []
        new: list[tuple[Key, bytes]] = []
        for number, unit in enumerate(units, start=1):
            raw = stamps.get(self._stamp_of(unit).name)
            if raw is None and self._requested_ms is None:
                spread_ms = now - self._every_ms + self._every_ms * number // len(units)
                new.append((self._stamp_of(unit), encode(StampRecord(spread_ms))))
            elif raw is None or not self._is_fresh(raw, now):
                due.append(unit)
        if new:
            self._ctx.kv.set_many(new)
        self._random.shuffle(due)
        return due

    def record_scrubbed(self, unit: str) -> None:
        self._ctx.kv.set(self._stamp_of(unit), encode(StampRecord(self._ctx.clock.now_ms())))

    def _is_fresh(self, raw: bytes, now: int) -> bool:
        try:
            at_ms = decode(raw, StampRecord).at_ms
        except CorruptRecord:
            return False
        return at_ms <= now < at_ms + self._every_ms and (self._requested_ms is None or self._requested_ms < at_ms)

    def _stamp_of(self, unit: str) -> Key:
        return keys.reaper_state(self._ctx.repo, f"scrubbed/{unit.removeprefix('scrub/')}")
