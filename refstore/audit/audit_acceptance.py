"""Accept entries that the KV does not know, because an older copy of it was restored, or it was made anew.

Such entries follow the head that the KV has, each with the hash of the one before; or they begin a chain of which the
KV knows nothing. An operator who has seen them accepts them: first that is written to the audit log, then their chains'
heads are moved behind them. From then on they are verified as all others are, `refstore audit log` shows them, and
`refstore audit verify` tells of the acceptance. What does not follow is not accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

import msgspec

from refstore.audit.audit_entries import (
    ACCEPT_ACTION,
    ENTRY_BYTES_MAX,
    PREFIX,
    Act,
    decode_entry,
    entry_key,
    parse_key,
    sha256_of,
)
from refstore.audit.audit_log import AuditLog
from refstore.audit.audit_verification import BEYOND_HEAD_MAX
from refstore.core.batches import split_batches
from refstore.errors import Corrupt
from refstore.kv.base import ABSENT, KV, Absent
from refstore.objects.base import ObjectStore
from refstore.objects.parallel_reads import read_many
from refstore.records import keys
from refstore.records.encoding import decode_optional, encode
from refstore.records.lake_records import AuditHead

CHAINS_PER_ENTRY: Final = 500
"""So that an entry names them all (`audit_entries.VALUE_BYTES_MAX`)."""

NO_HEAD: Final = AuditHead(0, "", 0)


class UnknownEntries(NamedTuple):
    """Entries of a chain that the KV does not know, and that follow what it knows."""

    chain: str
    raw_head: bytes | Absent
    first: int
    acts: Sequence[Act]
    """Without their values."""
    new_head: AuditHead
    """The head behind them."""


def find_unknown_entries(kv: KV, store: ObjectStore) -> Iterator[UnknownEntries]:
    """Yield what may be accepted, by chain. One entry behind a head is none: a crash leaves it, before the act."""
    parsed_keys = (parsed for info in store.list(PREFIX) if (parsed := parse_key(info.key)) is not None)
    for chain, numbered in groupby(parsed_keys, key=lambda parsed: parsed[0]):
        raw = kv.get(keys.audit_head(chain))
        try:
            head = decode_optional(raw, AuditHead) or NO_HEAD
        except Corrupt:
            continue
        beyond = [number for _, number in numbered if number > head.number]
        if raw is ABSENT or beyond[BEYOND_HEAD_MAX:]:
            acts, new_head = _follow(store, chain, head, beyond)
            if acts:
                yield UnknownEntries(chain, raw, head.number + 1, acts, new_head)


def accept_entries(kv: KV, audit: AuditLog, found: Sequence[UnknownEntries]) -> int:
    """Accept them, and return how many entries that were. Raises AuditUnavailable, KVUnavailable.

    A chain that moved on meanwhile stays as it is: its process has begun another one.
    """
    accepted = 0
    for batch in split_batches(found, CHAINS_PER_ENTRY):
        chains = [
            {"chain": each.chain, "first": each.first, "last": each.new_head.number, "sha256": each.new_head.sha256}
            for each in batch
        ]
        with audit.change(ACCEPT_ACTION, after={"chains": chains}):
            for each in batch:
                if kv.set_if(keys.audit_head(each.chain), each.raw_head, encode(each.new_head)):
                    accepted += len(each.acts)
    return accepted


def _follow(store: ObjectStore, chain: str, head: AuditHead, beyond: Sequence[int]) -> tuple[list[Act], AuditHead]:
    """Return the acts of the entries that follow the head without a gap, each with the hash of the one before; and the
    head behind them. `beyond`: the numbers that there are.
    """
    acts: list[Act] = []
    wanted = [entry_key(chain, number) for number in beyond]
    for _, body in read_many(store, wanted, end=ENTRY_BYTES_MAX + 1):
        try:
            entry = decode_entry(body or b"")
        except Corrupt:
            break
        expected = chain, head.number + 1, head.sha256
        if body is None or (entry.chain, entry.number, entry.previous) != expected:
            break
        acts.append(msgspec.structs.replace(entry.act, before=None, after=None))
        head = AuditHead(entry.number, sha256_of(body), entry.written_ms)
    return acts, head
