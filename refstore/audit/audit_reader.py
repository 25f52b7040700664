"""Read the entries of all chains, newest first, without verifying them; `audit_verification.py` does that. And read
which states a record of the KV has had, and which state each was changed to (`read_histories`).

A change of an access key, of retention rules or of a purge document has the record's values in its entry, before and
after it. So the log says of a state whether it was changed since, whatever the KV holds: a KV that was restored from an
older copy holds such a state. No clock decides, because each change names the state from which it was made. No state
comes again, because its values have the record's `write_id`. For this the whole log is read from the store, also what
the KV knows nothing of.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from refstore.audit.audit_entries import (
    ENTRY_BYTES_MAX,
    PREFIX,
    Act,
    AuditEntry,
    AuditValues,
    decode_act,
    decode_entry,
    entry_key,
    parse_key,
    shorten_values,
)
from refstore.core.batches import split_batches
from refstore.errors import Corrupt, ObjectNotFound
from refstore.kv.base import KV
from refstore.objects.base import ObjectStore
from refstore.objects.parallel_reads import read_many
from refstore.records import keys
from refstore.records.encoding import decode
from refstore.records.lake_records import AuditHead, WaitingAct

CHAINS_AT_ONCE: Final = 10_000
"""How many chain ends are held in memory; a lake may have had many more processes."""


class NumberedAuditEntry(NamedTuple):
    chain: str
    number: int
    entry: AuditEntry | None
    """None: the entry is missing, or cannot be read."""


class _ChainEnd(NamedTuple):
    """A chain's newest entry, as its head says."""

    written_ms: int
    chain: str
    number: int


def entries_newest_first(kv: KV, store: ObjectStore) -> Iterator[NumberedAuditEntry]:
    """Yield the confirmed entries, the newest first. Raises Unavailable.

    A chain is read backward from its end, and only once no other chain's end is newer. So a short answer reads little.
    """
    bound: _ChainEnd | None = None
    heap: list[tuple[int, str, int, NumberedAuditEntry]] = []
    """A heap, by negative time."""
    while True:
        ends = heapq.nlargest(CHAINS_AT_ONCE, (end for end in _read_ends(kv) if bound is None or end < bound))
        for end in ends:
            while heap and -heap[0][0] >= end.written_ms:
                yield _take_newest(store, heap)
            _push_entry(store, heap, end.chain, end.number, end.written_ms)
        if len(ends) < CHAINS_AT_ONCE:
            break
        bound = ends[-1]
    while heap:
        yield _take_newest(store, heap)


def entries_since(
    kv: KV, store: ObjectStore, since_ms: int, *, clock_skew_seconds: float
) -> Iterator[NumberedAuditEntry]:
    """Yield the confirmed entries that were written since then, the newest first, and those that cannot be read.

    Behind an older one a newer one may come: its process's clock was set back in between, by as much as clocks may be
    apart.
    """
    for read in entries_newest_first(kv, store):
        written_ms = read.entry.written_ms if read.entry is not None else since_ms
        if written_ms < since_ms - clock_skew_seconds * 1000:
            return
        if written_ms >= since_ms:
            yield read


def _take_newest(store: ObjectStore, heap: list[tuple[int, str, int, NumberedAuditEntry]]) -> NumberedAuditEntry:
    """Take the newest entry from the heap, and add the one before it in its chain."""
    minus_ms, chain, number, read = heapq.heappop(heap)
    _push_entry(store, heap, chain, number - 1, -minus_ms)
    return read


def _push_entry(
    store: ObjectStore, heap: list[tuple[int, str, int, NumberedAuditEntry]], chain: str, number: int, at_most_ms: int
) -> None:
    if number < 1:
        return
    entry = _read_entry(store, chain, number)
    # a clock may have been set back; keep the chain's order
    written_ms = min(entry.written_ms, at_most_ms) if entry is not None else at_most_ms
    heapq.heappush(heap, (-written_ms, chain, number, NumberedAuditEntry(chain, number, entry)))


def _read_ends(kv: KV) -> Iterator[_ChainEnd]:
    for chain, raw in kv.scan_all(keys.AUDIT_HEADS):
        try:
            head = decode(raw, AuditHead)
        except Corrupt:
            continue  # `audit_verification.py` reports it
        if head.number:
            yield _ChainEnd(head.written_ms, chain, head.number)


def _read_entry(store: ObjectStore, chain: str, number: int) -> AuditEntry | None:
    try:
        return decode_entry(b"".join(store.get(entry_key(chain, number), end=ENTRY_BYTES_MAX)))
    except (ObjectNotFound, Corrupt):
        return None


RECORD_ACTIONS: Final = ("key.", "rules.", "purge.onboard", "durations.")
"""What the actions begin with whose entries have a record's values, before and after."""

READ_BATCH: Final = 1000


class RecordChange(NamedTuple):
    """One act that changed a record, or may have."""

    act: Act
    written_ms: int

    @property
    def is_done(self) -> bool:
        """Whether it was done. Otherwise nobody knows: it counts as done where no other act excludes it."""
        return self.act.outcome == "done"

    def describe(self) -> str:
        doubt = "" if self.is_done else ", whose outcome is not known"
        return f"{self.act.action} of {self.act.time} by {self.act.actor.kind}:{self.act.actor.id}{doubt}"


class RecordHistory:
    """The changes of one record, the first first."""

    def __init__(self, changes: Iterable[RecordChange]) -> None:
        self._changes = sorted(changes, key=lambda change: change.written_ms)

    @property
    def last_done(self) -> RecordChange | None:
        return next((change for change in reversed(self._changes) if change.is_done), None)

    def drop_before(self, at_ms: int) -> RecordHistory:
        """Return the history without what was written before."""
        return RecordHistory(change for change in self._changes if change.written_ms >= at_ms)

    def follow(self, state: AuditValues | None) -> list[RecordChange]:
        """Return the changes that led on from a state; []: the log knows of none, so it is the newest one.

        Of several changes from one state the last one that was done counts, and else the last one that may have been.
        """
        found: list[RecordChange] = []
        while (change := self._change_from(state)) is not None:
            found.append(change)
            state = change.act.after
            if state is None or len(found) > len(self._changes):
                break  # a record that is made after a removal is another one
        return found

    def find_lost(self) -> RecordChange | None:
        """Return the change that led to the newest state of a record that the KV does not have; None: it was removed,
        or never made.
        """
        made = [change for change in self._changes if change.act.before is None and change.act.after is not None]
        for change in reversed(made):
            if change.is_done and (last := [change, *self.follow(change.act.after)][-1]).act.after is not None:
                return last
        return None

    def find_newer(self, values: AuditValues | None) -> RecordChange | None:
        """Return the change that led to the newest state of a record; None: the KV, which has these values, has it.
        `values` is None where the KV has no record.
        """
        if values is None:
            return self.find_lost()
        changes = self.follow(as_logged(values))
        return changes[-1] if changes else None

    def _change_from(self, state: AuditValues | None) -> RecordChange | None:
        wanted = _mark(state)
        found = [
            change
            for change in self._changes
            if _mark(change.act.before) == wanted and _mark(change.act.after) != wanted
        ]
        return max(found, key=lambda change: (change.is_done, change.written_ms), default=None)


Subject = tuple[str, str, str]
"""What an act is about: the kind of record (`key`, `rules`, ...), the repository, and the target."""


def read_histories(kv: KV, store: ObjectStore) -> dict[Subject, RecordHistory]:
    """Read the histories of all records. Raises Unavailable. Entries that cannot be read are left out:
    `audit_verification.py` names them.
    """
    acts: dict[str, RecordChange] = {}
    for act, written_ms in _read_acts(kv, store):
        known = acts.get(act.id)
        if act.action.startswith(RECORD_ACTIONS) and (known is None or known.act.outcome in ("begun", "unknown")):
            acts[act.id] = RecordChange(act, written_ms)
    by_subject: dict[Subject, list[RecordChange]] = {}
    for change in acts.values():
        if change.act.outcome != "failed":
            subject = change.act.action.partition(".")[0], change.act.repository, change.act.target
            by_subject.setdefault(subject, []).append(change)
    return {subject: RecordHistory(changes) for subject, changes in by_subject.items()}


def as_logged(values: AuditValues) -> AuditValues:
    """Return the values as an entry has them, to compare them."""
    return shorten_values(values) or {}


def _read_acts(kv: KV, store: ObjectStore) -> Iterator[tuple[Act, int]]:
    """Yield the acts of all entries, then of those that wait in the KV."""
    entry_keys = (info.key for info in store.list(PREFIX) if parse_key(info.key) is not None)
    for page in split_batches(entry_keys, READ_BATCH):
        for _, body in read_many(store, page, end=ENTRY_BYTES_MAX):
            try:
                entry = decode_entry(body or b"")
            except Corrupt:
                continue
            yield entry.act, entry.written_ms
    for _, raw in kv.scan_all(keys.AUDIT_WAITING):
        try:
            record = decode(raw, WaitingAct)
            yield decode_act(record.act), record.since_ms
        except Corrupt:
            continue


def _mark(state: AuditValues | None) -> bytes:
    return msgspec.json.encode(state, order="sorted")
