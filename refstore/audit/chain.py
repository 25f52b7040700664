"""Write a chain of entries; only one process appends to it.

    1. once: a head with number 0 in the KV       so a chain without a head was forged
    2. the entry, create-only, to the store
    3. the entry's number and hash to its head    so a tail that was cut is noticed

After any failure the writer leaves its chain and begins another one with the next entry. Its last write may have
arrived, or may arrive later; nothing is ever linked to it. So at most one entry lies beyond the head of a chain, and it
was never confirmed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Lock
from typing import Final, NamedTuple

from refstore.audit.audit_entries import VERSION, Act, AuditEntry, EntryPosition, encode_entry, entry_key, sha256_of
from refstore.core.clock import Clock
from refstore.core.ids import Ids
from refstore.errors import AlreadyExists, ObjectsUnavailable
from refstore.kv.base import ABSENT, KV
from refstore.objects.base import ObjectStore
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.lake_records import AuditHead

_ATTEMPTS: Final = 2
"""The second attempt uses a new chain, because another process's object blocks the first chain."""


class _ChainTail(NamedTuple):
    chain: str
    number: int
    sha256: str
    head: bytes
    """The head as the KV stores it."""


class ChainWriter:
    """Append to the chain of this process, from any thread; after a fork the child begins a chain of its own."""

    def __init__(self, kv: KV, store: Callable[[], ObjectStore], clock: Clock, ids: Ids) -> None:
        self._kv = kv
        self._store = store
        self._clock = clock
        self._ids = ids
        self._tail: _ChainTail | None = None
        self._lock = Lock()
        self._process = os.getpid()

    def append(self, act: Act, *, patience_seconds: float) -> EntryPosition:
        """Write the act as the next entry, and return its position. Raises what the stores raise; then it counts as not
        written.

        `patience_seconds`: how long to wait for other threads, whose writes a store may delay.
        """
        with self._take_turn(patience_seconds):
            for _ in range(_ATTEMPTS):
                tail, self._tail = self._tail or self._begin_chain(), None
                now = self._clock.now_ms()
                number = tail.number + 1
                body = encode_entry(AuditEntry(VERSION, tail.chain, number, tail.sha256, now, act))
                store = self._store()
                try:
                    store.put(entry_key(tail.chain, number), body, if_absent=store.conditional_put)
                except AlreadyExists:
                    continue
                sha256 = sha256_of(body)
                head = encode(AuditHead(number, sha256, now))
                if self._kv.set_if(keys.audit_head(tail.chain), tail.head, head):
                    self._tail = _ChainTail(tail.chain, number, sha256, head)
                    return EntryPosition(tail.chain, number)
        raise ObjectsUnavailable(
            "another process changed this process's chain of the audit log; look at it with: refstore audit verify"
        )

    def _begin_chain(self) -> _ChainTail:
        now = self._clock.now_ms()
        chain = self._ids.new_id(now)
        head = encode(AuditHead(0, "", now))
        if not self._kv.set_if(keys.audit_head(chain), ABSENT, head):
            raise ObjectsUnavailable(f"chain {chain} of the audit log exists already; make the same call again")
        return _ChainTail(chain, 0, "", head)

    @contextmanager
    def _take_turn(self, patience_seconds: float) -> Generator[None, None, None]:
        if self._process != os.getpid():  # after a fork the lock may belong to a thread of the parent
            self._lock, self._tail, self._process = Lock(), None, os.getpid()
        if not self._lock.acquire(timeout=patience_seconds):
            raise ObjectsUnavailable(
                "the object store is still busy with earlier entries of the audit log; make the same call again"
            )
        try:
            yield
        finally:
            self._lock.release()
