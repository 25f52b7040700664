"""Record acts in the audit log. `change` refuses an act whose entry cannot be written; `act` needs no store for it.

    change   entry `begun` --> the change --> entry `done`, `failed` or `unknown`, which names the first
             The first cannot be written: AuditUnavailable, and nothing was changed. The last cannot: it waits in the
             KV.
    act      waits in the KV as `begun` --> the act --> entry with its outcome --> waits no more
             If the entry cannot be written, it waits, with its outcome, for `write_waiting`.

A process that dies leaves an entry or a waiting record that says `begun`, so its outcome is unknown. If a record was
written but not removed before a crash, it is written again; then two entries have the same act's id.

Each process writes a chain of entries of its own (`ChainWriter`):

    1. once: a head with number 0 in the KV       so a chain without a head was forged
    2. the entry, create-only, to the store
    3. the entry's number and hash to its head    so a tail that was cut is noticed

After any failure the writer leaves its chain and begins another one with the next entry. Its last write may have
arrived, or may arrive later; nothing is ever linked to it. So at most one entry lies beyond the head of a chain, and it
was never confirmed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final, NamedTuple

import msgspec

from refstore.audit.audit_entries import (
    VERSION,
    Act,
    Actor,
    ActOutcome,
    AuditEntry,
    EntryPosition,
    current_actor,
    decode_act,
    encode_entry,
    entry_key,
    format_timestamp,
    sha256_of,
    shorten_name,
    shorten_values,
)
from refstore.core import deadline, event_log
from refstore.core.clock import Clock
from refstore.core.ids import Ids
from refstore.core.redaction import redact_text
from refstore.core.safety import Durations
from refstore.errors import (
    AlreadyExists,
    AuditRefused,
    AuditUnavailable,
    Contention,
    Corrupt,
    KVUnavailable,
    LakeReadOnly,
    ObjectsUnavailable,
    RefstoreError,
)
from refstore.kv.base import ABSENT, KV, Key
from refstore.objects.base import ObjectStore
from refstore.records import keys
from refstore.records.encoding import decode, encode
from refstore.records.lake_records import AuditHead, WaitingAct

WAITING_MAX: Final = 10_000
"""When more entries than this wait for the store, deletions of branches, tags and repositories are refused, because no
entry may be dropped.
"""
WRITE_BATCH: Final = 1000
"""How many waiting entries one call writes at most."""
WRITE_WITH_ACT: Final = 20
"""How many waiting entries an act writes after its own."""
PAUSE_SECONDS: Final = 30.0
"""How long a process waits after the store refused an entry before it tries again, so that not every act waits for a
failure.
"""
APPEND_WAIT_SECONDS: Final = 1.0
"""How long an act waits for other threads' entries before its own waits in the KV."""

_log = event_log.get_logger(__name__)


class EntryDraft:
    """The contents of an act's entry; the act may complete them before it ends."""

    def __init__(self, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> None:
        self.before = before
        self.after = after
        self.happened = True
        """False: another process did it first, so nothing was done. Then `act` writes no entry, and `change` writes one
        that says so.
        """
        self.landed = False
        """True: the act took effect, even if a later step fails."""


class AuditLog:
    """Write the audit log of one lake; one instance per process."""

    def __init__(self, kv: KV, store: Callable[[], ObjectStore], clock: Clock, ids: Ids, durations: Durations) -> None:
        self._kv = kv
        self._clock = clock
        self._ids = ids
        self._durations = durations
        self._io_seconds = durations.safety.objects_io_seconds
        self._chain = ChainWriter(kv, store, clock, ids)
        self._failed_at: float | None = None

    @contextmanager
    def change(
        self,
        action: str,
        *,
        repository: str = "",
        target: str = "",
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
    ) -> Generator[EntryDraft, None, None]:
        """Run the block after its entry was written. Raises AuditUnavailable; then the block was not run."""
        act = self._new_act(action, repository, target, before, after, None)
        try:
            begun = self._append_act(act, self._io_seconds)
        except (KVUnavailable, AuditUnavailable, LakeReadOnly):
            raise
        except RefstoreError as error:
            kind = AuditUnavailable if error.retryable else AuditRefused
            raise kind(
                f"the audit log cannot be written ({redact_text(str(error))}), so nothing was changed; repair the "
                "lake's object store, then make the same call again"
            ) from error
        draft = EntryDraft(before, after)
        try:
            yield draft
        except Exception as error:
            self._finish_change(_with_outcome(act, draft, error), begun)
            raise
        self._finish_change(_with_outcome(act, draft, None), begun)

    @contextmanager
    def act(
        self,
        action: str,
        *,
        repository: str = "",
        target: str = "",
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
        actor: Actor | None = None,
        bounded_wait: bool = True,
    ) -> Generator[EntryDraft, None, None]:
        """Run the block. Its entry is written by the end, or waits in the KV for the store. Raises KVUnavailable before
        the block.

        `bounded_wait`: refuse the block if too many entries wait already. Raises AuditUnavailable then.
        """
        act = self._new_act(action, repository, target, before, after, actor)
        count = self._kv.count(keys.AUDIT_WAITING, limit=WAITING_MAX + 1)
        if bounded_wait and count > WAITING_MAX:
            raise AuditUnavailable(
                f"more than {WAITING_MAX} entries of the audit log wait for the lake's object store, so this was not "
                "done; repair the store, run the reaper, then make the same call again"
            )
        key, raw = self._store_waiting(act)
        draft = EntryDraft(before, after)
        try:
            yield draft
        except Exception as error:
            self._finish_act(key, raw, _with_outcome(act, draft, error) if draft.happened else None)
            raise
        self._finish_act(key, raw, _with_outcome(act, draft, None) if draft.happened else None, others_wait=count > 0)

    def write_waiting(self, *, limit: int = WRITE_BATCH) -> int:
        """Write the entries that wait in the KV while the store accepts them; return how many. Raises KVUnavailable.

        An entry that says `begun` is left alone while its process may still be acting; after that its outcome is
        unknown.
        """
        pairs = self._kv.scan(keys.AUDIT_WAITING, limit=limit)
        return sum(
            1
            for name, raw in pairs
            if not self._is_pausing() and self._write_waiting(Key(keys.AUDIT_WAITING, name), raw)
        )

    def _write_waiting(self, key: Key, raw: bytes) -> bool:
        try:
            record = decode(raw, WaitingAct)
            act = decode_act(record.act)
        except Corrupt as error:
            _log.error("audit_waiting_unreadable", id=key.name, error=str(error))
            return False
        now = self._clock.now_ms()
        is_open = act.outcome == "begun"
        if now - max(record.since_ms if is_open else 0, record.claimed_ms) < self._longest_ms:
            return False
        claim = encode(msgspec.structs.replace(record, claim=self._ids.new_id(now), claimed_ms=now))
        if not self._kv.set_if(key, raw, claim):
            return False  # another process is writing it
        try:
            self._append_act(msgspec.structs.replace(act, outcome="unknown") if is_open else act, APPEND_WAIT_SECONDS)
        except RefstoreError as error:
            self._kv.set_if(key, claim, raw)
            _log.warning("audit_waits", action=act.action, error=redact_text(str(error)))
            return False
        self._kv.set_if(key, claim, ABSENT)
        return True

    @property
    def _longest_ms(self) -> int:
        """Return the longest time in ms that a process may take for an act."""
        safety = self._durations.waits
        return int(
            1000 * (safety.operation_deadline_seconds + 2 * safety.objects_io_seconds + safety.clock_skew_seconds)
        )

    def _new_act(
        self,
        action: str,
        repository: str,
        target: str,
        before: Mapping[str, Any] | None,
        after: Mapping[str, Any] | None,
        actor: Actor | None,
    ) -> Act:
        now = self._clock.now_ms()
        by = actor or current_actor()
        return Act(
            id=self._ids.new_id(now),
            time=format_timestamp(now),
            actor=Actor(*(shorten_name(text) for text in (by.kind, by.id, by.address, by.command))),
            action=action,
            repository=shorten_name(repository),
            target=shorten_name(target),
            before=shorten_values(before),
            after=shorten_values(after),
        )

    def _append_act(self, act: Act, patience_seconds: float) -> EntryPosition:
        try:
            begun = self._chain.append(act, patience_seconds=patience_seconds)
        except RefstoreError as error:
            if not isinstance(error, KVUnavailable):
                self._failed_at = self._clock.monotonic_seconds()
            raise
        self._failed_at = None
        return begun

    def _is_pausing(self) -> bool:
        return self._failed_at is not None and self._clock.monotonic_seconds() - self._failed_at < PAUSE_SECONDS

    def _append_or_pause(self, act: Act) -> None:
        """Append the act. Raises RefstoreError, without a call to the store if the store has just failed."""
        if self._is_pausing():
            raise ObjectsUnavailable(
                "the object store refused the entry before this one; make the same call again, later"
            )
        self._append_act(act, APPEND_WAIT_SECONDS)

    def _store_waiting(self, act: Act) -> tuple[Key, bytes]:
        """Store the act in the KV to be written later. Raises KVUnavailable."""
        now = self._clock.now_ms()
        key = keys.audit_waiting(self._ids.new_id(now))
        raw = encode(WaitingAct(msgspec.json.encode(act), now))
        self._kv.set(key, raw)
        return key, raw

    def _finish_change(self, act: Act, begun: EntryPosition) -> None:
        """Write the outcome of a change. It raises nothing, because the change is over."""
        act = msgspec.structs.replace(act, begin_entry=begun)
        try:
            with deadline.lift():
                try:
                    self._append_act(act, self._io_seconds)
                except RefstoreError as error:
                    self._store_waiting(act)
                    _log.warning("audit_waits", action=act.action, error=redact_text(str(error)))
                else:
                    self.write_waiting(limit=WRITE_WITH_ACT)
        except Exception as error:  # noqa: BLE001  # the act is over: no error may replace its result
            _log.error(
                "audit_outcome_unwritten", action=act.action, outcome=act.outcome, error=redact_text(repr(error))
            )

    def _finish_act(self, key: Key, raw: bytes, act: Act | None, *, others_wait: bool = False) -> None:
        """Write the outcome of an act; None: nothing happened. It raises nothing, because the act is over."""
        try:
            with deadline.lift():
                if act is not None:
                    try:
                        self._append_or_pause(act)
                    except RefstoreError as error:
                        ended = WaitingAct(msgspec.json.encode(act), decode(raw, WaitingAct).since_ms)
                        if not self._kv.set_if(key, raw, encode(ended)):
                            self._store_waiting(act)  # another process took this one for dead
                        _log.warning("audit_waits", action=act.action, error=redact_text(str(error)))
                        return
                self._kv.set_if(key, raw, ABSENT)
                if others_wait:
                    self.write_waiting(limit=WRITE_WITH_ACT)
        except Exception as error:  # noqa: BLE001  # the act is over: no error may replace its result
            _log.error(
                "audit_outcome_unwritten", action="" if act is None else act.action, error=redact_text(repr(error))
            )


def _with_outcome(act: Act, draft: EntryDraft, error: Exception | None) -> Act:
    """Return the act with its outcome. An act that may have taken effect before an error is not called failed."""
    outcome: ActOutcome = "done" if draft.happened else "failed"
    if error is not None and not draft.landed:
        outcome = "failed" if isinstance(error, RefstoreError) and not error.may_have_landed else "unknown"
    code = "" if draft.happened else Contention.code
    if error is not None:
        code = error.code if isinstance(error, RefstoreError) else "unexpected"
    after = shorten_values(draft.after) if outcome != "failed" else None
    return msgspec.structs.replace(act, before=shorten_values(draft.before), after=after, outcome=outcome, error=code)


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
