"""Due hints: which addresses the reaper looks at, and when. The reference key decides, never a hint.

A hint names one address, or several of one shard with one time: what a page of a reset released is one row for each
shard instead of one for each address. A hint that names several goes when none of them needs it any more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Final

from refstore.core import ids
from refstore.core.ids import Address, RepositoryId
from refstore.errors import CorruptRecord
from refstore.kv.base import ABSENT, KV, Key
from refstore.records import keys
from refstore.records.encoding import decode, encode
from refstore.records.reaper_records import DueHintRecord, SharedDueHintRecord

ADDRESSES_MAX: Final = 100
"""The most addresses of one hint: some 4 KB."""

PAGE: Final = 500
"""Hints that are read at a time: at most 2 MB."""

_DUE: Final = encode(DueHintRecord())


class DueHint:
    """A hint as it was read, and which of its addresses still need it."""

    __slots__ = ("addresses", "due_ms", "key", "pending_addresses")

    def __init__(self, key: Key, due_ms: int, addresses: Sequence[Address]) -> None:
        self.key = key
        self.due_ms = due_ms
        self.addresses = addresses
        self.pending_addresses = set(addresses)


def encode_many(repo: RepositoryId, due: Iterable[tuple[int, Address]]) -> list[tuple[Key, bytes]]:
    """Return the hints to write for (time in ms, address) pairs.

    The key of a hint for several addresses is made of these, so that two hints with one key name the same addresses.
    """
    groups: defaultdict[tuple[int, int], list[Address]] = defaultdict(list)
    for at_ms, address in due:
        groups[at_ms, keys.shard_of(address)].append(address)
    hints: list[tuple[Key, bytes]] = []
    for (at_ms, shard), addresses in groups.items():
        for start in range(0, len(addresses), ADDRESSES_MAX):
            several = addresses[start : start + ADDRESSES_MAX]
            if len(several) == 1:
                hints.append((keys.due_hint(repo, at_ms, several[0]), _DUE))
            else:
                digest = blake2b("\n".join(several).encode(), digest_size=16).hexdigest()
                hints.append((keys.shared_due_hint(repo, shard, at_ms, digest), encode(SharedDueHintRecord(several))))
    return hints


def write(kv: KV, repo: RepositoryId, due: Iterable[tuple[int, Address]]) -> None:
    """Write hints for (time in ms, address) pairs."""
    if hints := encode_many(repo, due):
        kv.set_many(hints)


def parse(partition: str, name: str, value: bytes) -> DueHint:
    """Parse a hint. Raises CorruptRecord."""
    due_ms, address = keys.parse_due_hint(name)
    if address is not None:
        return DueHint(Key(partition, name), due_ms, (address,))
    addresses = decode(value, SharedDueHintRecord).addresses
    if not addresses or not all(map(ids.is_own, addresses)):
        raise CorruptRecord(f"the due hint {name[:120]!r} names no addresses; nothing that depends on it is deleted")
    return DueHint(Key(partition, name), due_ms, addresses)


def scan_due(
    kv: KV, repo: RepositoryId, shard: int, *, now_ms: int | None, limit: int, after: str = ""
) -> list[DueHint]:
    """Return the shard's oldest hints after the name, at most `limit`: those due by `now_ms`, or all (None).

    Raises CorruptRecord.
    """
    partition = keys.due_hint_shard(repo, shard)
    bound = keys.format_due_time(now_ms) if now_ms is not None else "~"
    hints: list[DueHint] = []
    for name, value in kv.scan(partition, after=after, limit=limit):
        if name[: len(bound)] > bound:
            break
        hints.append(parse(partition, name, value))
    return hints


def count(kv: KV, repo: RepositoryId, shard: int, *, now_ms: int | None, limit: int) -> int:
    """Count a shard's addresses with hints due by `now_ms`, or any (None), up to `limit`. A damaged hint counts as one
    address.
    """
    partition = keys.due_hint_shard(repo, shard)
    bound = keys.format_due_time(now_ms) if now_ms is not None else "~"
    counted = 0
    for name, value in kv.scan_all(partition, page=PAGE):
        if name[: len(bound)] > bound or counted >= limit:
            break
        try:
            counted += len(parse(partition, name, value).addresses)
        except CorruptRecord:
            counted += 1
    return min(counted, limit)


def have_hints(kv: KV, repo: RepositoryId, due: Sequence[tuple[int, Address]]) -> list[bool]:
    """Return whether each address has a hint of the very time. Raises CorruptRecord."""
    if not due:
        return []
    values = kv.get_many([keys.due_hint(repo, at_ms, address) for at_ms, address in due])
    rest = {
        (at_ms, keys.shard_of(address)) for (at_ms, address), value in zip(due, values, strict=True) if value is ABSENT
    }
    shared = {(at_ms, address) for at_ms, shard in rest for address in _shared_hint_addresses(kv, repo, shard, at_ms)}
    return [value is not ABSENT or pair in shared for pair, value in zip(due, values, strict=True)]


def _shared_hint_addresses(kv: KV, repo: RepositoryId, shard: int, at_ms: int) -> Iterator[Address]:
    partition = keys.due_hint_shard(repo, shard)
    for name, value in kv.scan_all(partition, prefix=keys.shared_due_hint(repo, shard, at_ms, "").name):
        yield from parse(partition, name, value).addresses
