"""Retries around any KV, safe for writes whose outcome is not known.

A driver raises `KVUnavailable`. Where it is certain that nothing was done (no connection, a lock that it did not get),
`RetryingKV` simply repeats the batch. Where any operation may have landed, it repeats the batch run by run:

- It repeats Get, Set and Delete: twice is as good as once.
- It repeats SetIf, followed by a Get. The write took effect if SetIf says so now, or if the key holds the new value
  (protocol.md, "A lost reply": our own write landed before the reply was lost). It reads after the write, so that it
  also recognises a first attempt that lands late.
- It never repeats a SetIf that creates (`expected` is ABSENT), but reads the key. Our value means True, another value
  False, and no value raises `OutcomeUnknown`: the key may have been created and removed again. Creating it again would
  revive a used name (an address that another reaper is about to delete, a token). The caller continues with a new name.
- It never repeats an Exchange, or a SetIf with `once`; they raise `OutcomeUnknown`. After the first attempt landed,
  another client may have replaced the value and acted on the old one. Writing it again would bring back a value that
  this client released (protocol.md, rule 6). Only the caller can continue, with a new value.

Two cases remain. A SetIf that landed and was then overwritten by another client counts as failed, as if it had come
second. Values for which that matters contain a write id. A repeated Set overwrites writes of other clients since its
first attempt, as a later call would.

A KV that refuses this process (`KVRefused`) is not asked again: an operator must act first.

Attempts are bounded. Waits grow to a bound and have jitter, so that many clients do not return at once. Clock and
randomness are passed in. `check` is called before each attempt; an exception from it (DeadlineExceeded) ends the
retries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from random import Random, SystemRandom
from typing import Final, TypeVar, cast

from refstore.core import event_log
from refstore.core.clock import Clock, SystemClock
from refstore.errors import KVRefused, KVUnavailable, LakeClosed, OutcomeUnknown
from refstore.kv.base import ABSENT, KV, SCAN_LIMIT, Exchange, Get, Op, Result, Server, SetIf

ATTEMPTS: Final = 8
"""All attempts, including the first. With the waits below they take about five seconds, in which a Sentinel or a
Cluster fails over.
"""
WAIT_FIRST_SECONDS: Final = 0.05
WAIT_MAX_SECONDS: Final = 2.0

T = TypeVar("T")

_log = event_log.get_logger(__name__)


def wait_seconds(attempt: int, random: Random) -> float:
    """Return how long to wait after the attempt of that number, from 1."""
    return min(WAIT_FIRST_SECONDS * 2 ** (attempt - 1), WAIT_MAX_SECONDS) * (0.5 + random.random() / 2)


class RetryingKV(KV):
    def __init__(
        self,
        kv: KV,
        *,
        attempts: int = ATTEMPTS,
        clock: Clock | None = None,
        random: Random | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        self._kv = kv
        self._attempts = max(attempts, 1)
        self._clock = clock or SystemClock()
        self._random = random or SystemRandom()
        self._check = check or _no_check

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        if not ops:
            return []
        self._check()
        try:
            return self._kv.execute(ops)
        except KVUnavailable as error:
            return self._retry_batch(ops, error)

    def scan(
        self, partition: str, *, prefix: str = "", after: str = "", limit: int = SCAN_LIMIT
    ) -> list[tuple[str, bytes]]:
        return self._call_idempotent(lambda: self._kv.scan(partition, prefix=prefix, after=after, limit=limit))

    def delete_range(self, partition: str, first: str, last: str) -> None:
        self._call_idempotent(lambda: self._kv.delete_range(partition, first, last))

    def count(self, partition: str, *, limit: int) -> int:
        return self._call_idempotent(lambda: self._kv.count(partition, limit=limit))

    def partitions(self) -> list[str]:
        return self._call_idempotent(self._kv.partitions)

    def servers(self) -> list[Server]:
        return self._call_idempotent(self._kv.servers)

    @property
    def local_files(self) -> Sequence[Path]:
        return self._kv.local_files

    def risks(self) -> Sequence[str]:
        return self._call_idempotent(self._kv.risks)

    def close(self) -> None:
        self._kv.close()

    def close_for_good(self) -> None:
        """Close the KV. Later calls raise LakeClosed: a driver would connect again, and nobody would close that."""
        self._check = _refuse_closed
        self._kv.close()

    def _call_idempotent(self, call: Callable[[], T]) -> T:
        self._check()
        try:
            return call()
        except KVUnavailable as error:
            return self._retry(error, call)

    def _retry_batch(self, ops: Sequence[Op], error: KVUnavailable) -> list[Result]:
        """Repeat all of `ops`; once any may have landed, run by run. A run that succeeded is not repeated again."""
        results: list[Result] = []
        runs = [list(run) for _, run in groupby(ops, key=type)]
        unknown = _is_unknown(ops, error)

        def repeat() -> list[Result]:
            nonlocal unknown
            if not unknown:
                try:
                    return self._kv.execute(ops)
                except KVUnavailable as latest:
                    unknown = _is_unknown(ops, latest)
                    raise
            while runs:
                results.extend(self._repeat_run(runs[0]))
                del runs[0]
            return results

        return self._retry(error, repeat)

    def _repeat_run(self, run: Sequence[Op]) -> list[Result]:
        """Repeat one run (neighbouring operations of one kind) that may have landed."""
        if not isinstance(run[0], SetIf):
            return self._kv.execute(run)
        set_ifs = cast("Sequence[SetIf]", run)
        if any(op.expected is ABSENT for op in set_ifs):
            return self._resolve_creations(set_ifs)
        answers = self._kv.execute([*set_ifs, *(Get(op.key) for op in set_ifs)])
        won, current = answers[: len(set_ifs)], answers[len(set_ifs) :]
        return [bool(ok) or value == op.value for op, ok, value in zip(set_ifs, won, current, strict=True)]

    def _resolve_creations(self, set_ifs: Sequence[SetIf]) -> list[Result]:
        """Read the keys that a run creates, and repeat its other operations."""
        created = [op for op in set_ifs if op.expected is ABSENT]
        current = dict(zip((op.key for op in created), self._kv.execute([Get(op.key) for op in created]), strict=True))
        if any(value is ABSENT and op.value is not ABSENT for op, value in zip(created, current.values(), strict=True)):
            raise OutcomeUnknown(
                "the KV did not answer while a key was created; it may have been created and removed again"
            )
        others = iter(
            self._repeat_run(others) if (others := [op for op in set_ifs if op.expected is not ABSENT]) else ()
        )
        return [current[op.key] == op.value if op.expected is ABSENT else next(others) for op in set_ifs]

    def _retry(self, error: KVUnavailable, call: Callable[[], T]) -> T:
        """Repeat `call` until it succeeds or the attempts are used up. The first attempt ended with `error`."""
        for attempt in range(1, self._attempts):
            if isinstance(error, KVRefused):
                break
            seconds = wait_seconds(attempt, self._random)
            _log.warning(
                "kv_retry",
                attempt=attempt,
                attempts=self._attempts,
                wait_seconds=round(seconds, 3),
                **({"error": str(error)} if attempt == 1 else {}),  # the cause is told once
            )
            self._clock.sleep(seconds)
            self._check()
            try:
                return call()
            except KVUnavailable as latest:
                error = latest
        raise error


def _is_unknown(ops: Sequence[Op], error: KVUnavailable) -> bool:
    """Return whether any of `ops` may have landed. Raises OutcomeUnknown where that cannot be found out."""
    if error.nothing_done or isinstance(error, KVRefused):
        return False
    if any(isinstance(op, Exchange) or (isinstance(op, SetIf) and op.once) for op in ops):
        raise OutcomeUnknown("the KV did not answer while an entry was written; the write may have landed") from error
    return True


def _no_check() -> None:
    return


def _refuse_closed() -> None:
    raise LakeClosed("the lake was closed before this call; open it again, or make the call before it is closed")
