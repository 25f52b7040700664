"""Read the entries of all chains, newest first, without verifying them; `audit_verification.py` does that."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final, NamedTuple

from refstore.audit.audit_entries import ENTRY_BYTES_MAX, AuditEntry, decode_entry, entry_key
from refstore.errors import Corrupt, ObjectNotFound
from refstore.kv.base import KV
from refstore.objects.base import ObjectStore
from refstore.records import keys
from refstore.records.encoding import decode
from refstore.records.lake_records import AuditHead

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
