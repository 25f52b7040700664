"""Retries around any KV, safe for writes whose outcome is not known.

A driver raises `KVUnavailable`. Where it is certain that nothing was done (no connection, a lock that was not had), the batch is
simply done again. Where any of it may have landed, it is done again run by run:

- Get, Set and Delete simply again: twice is as good as once.
- SetIf again, with a Get behind it: it took effect if it says so now, or if the key holds its new value (protocol.md,
  "A lost reply": our own write, which landed before the reply was lost). Looking after the write, not before it, also
  recognises a first attempt that lands late, between the two.
- SetIf that creates (it expects ABSENT) is looked for, never done again: key == mine is True, another's value False, and where
  there is nothing it raises `OutcomeUnknown`. It may have landed and been used up; creating it again would revive what is spent
  (an address another reaper is about to delete, a token). The caller goes on under a new name.
- Exchange never, and no SetIf that says `once`: they raise `OutcomeUnknown`. Between a first attempt that landed and a second one,
  somebody may have replaced the value and acted on what they replaced; writing it again would bring back what they let go
  (protocol.md, rule 6). Only the caller can go on, with a value that is new.

What is left open: a SetIf that landed and was then overwritten by somebody else counts as failed, as it would had it come
second; values that matter carry a write id. A Set done twice overwrites what came in
between, as a later call would.

Attempts are bounded, waits grow to a bound and have jitter, so that many clients do not come back at once. Clock and randomness are
passed in. `check` is called before each attempt; what it raises (DeadlineExceeded) ends the retries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from random import SystemRandom
from typing import Final, Protocol, TypeVar, cast

import structlog

from refstore.clock import Clock, SystemClock
from refstore.errors import KVUnavailable, OutcomeUnknown
from refstore.kv.base import ABSENT, KV, SCAN_LIMIT, Exchange, Get, Op, Result, SetIf

ATTEMPTS: Final = 8
"""The first one included. With the waits below: some five seconds, in which a Sentinel or a Cluster fails over."""
WAIT_FIRST_SECONDS: Final = 0.05
WAIT_MAX_SECONDS: Final = 2.0

T = TypeVar("T")

_log = structlog.stdlib.get_logger(__name__)


class Random(Protocol):
    def random(self) -> float:
        """In [0, 1)."""
        ...


class Retrying(KV):
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

    @property
    def wrapped(self) -> KV:
        return self._kv

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        if not ops:
            return []
        self._check()
        try:
            return self._kv.execute(ops)
        except KVUnavailable as error:
            return self._execute_again(ops, error)

    def scan(self, partition: str, *, prefix: str = "", after: str = "", limit: int = SCAN_LIMIT) -> list[tuple[str, bytes]]:
        return self._idempotent(lambda: self._kv.scan(partition, prefix=prefix, after=after, limit=limit))

    def delete_range(self, partition: str, first: str, last: str) -> None:
        self._idempotent(lambda: self._kv.delete_range(partition, first, last))

    def count(self, partition: str, *, limit: int) -> int:
        return self._idempotent(lambda: self._kv.count(partition, limit=limit))

    def close(self) -> None:
        self._kv.close()

    def _idempotent(self, call: Callable[[], T]) -> T:
        self._check()
        try:
            return call()
        except KVUnavailable as error:
            return self._again(error, call)

    def _execute_again(self, ops: Sequence[Op], error: KVUnavailable) -> list[Result]:
        """All of `ops`. Once any may have landed, run by run; runs that were done again are not done a third time."""
        results: list[Result] = []
        runs = [list(run) for _, run in groupby(ops, key=type)]
        unknown = _is_unknown(ops, error)

        def rest() -> list[Result]:
            nonlocal unknown
            if not unknown:
                try:
                    return self._kv.execute(ops)
                except KVUnavailable as again:
                    unknown = _is_unknown(ops, again)
                    raise
            while runs:
                results.extend(self._run_again(runs[0]))
                del runs[0]
            return results

        return self._again(error, rest)

    def _run_again(self, run: Sequence[Op]) -> list[Result]:
        """One run (neighbouring ops of one kind) that may have landed."""
        if not isinstance(run[0], SetIf):
            return self._kv.execute(run)
        asked = cast("Sequence[SetIf]", run)
        if any(op.expected is ABSENT for op in asked):
            return self._look_for(asked)
        answers = self._kv.execute([*asked, *(Get(op.key) for op in asked)])
        won, now = answers[: len(asked)], answers[len(asked) :]
        return [bool(ok) or value == op.value for op, ok, value in zip(asked, won, now, strict=True)]

    def _look_for(self, asked: Sequence[SetIf]) -> list[Result]:
        """A run in which something is created: that is looked for first, and the rest done again."""
        created = [op for op in asked if op.expected is ABSENT]
        found = dict(zip((op.key for op in created), self._kv.execute([Get(op.key) for op in created]), strict=True))
        if any(value is ABSENT and op.value is not ABSENT for op, value in zip(created, found.values(), strict=True)):
            raise OutcomeUnknown("the KV did not answer while a key was created; it may have been, and be gone again")
        others = iter(self._run_again(others) if (others := [op for op in asked if op.expected is not ABSENT]) else ())
        return [found[op.key] == op.value if op.expected is ABSENT else next(others) for op in asked]

    def _again(self, error: KVUnavailable, call: Callable[[], T]) -> T:
        """`call` until it succeeds or the attempts are used up; `error` is how the first one ended."""
        for attempt in range(1, self._attempts):
            wait_seconds = min(WAIT_FIRST_SECONDS * 2 ** (attempt - 1), WAIT_MAX_SECONDS) * (0.5 + self._random.random() / 2)
            _log.warning("kv_retry", attempt=attempt, attempts=self._attempts, wait_seconds=round(wait_seconds, 3), error=str(error))
            self._clock.sleep(wait_seconds)
            self._check()
            try:
                return call()
            except KVUnavailable as again:
                error = again
        raise error


def _is_unknown(ops: Sequence[Op], error: KVUnavailable) -> bool:
    """Whether any of `ops` may have landed. Raises OutcomeUnknown where that cannot be found out."""
    if error.nothing_done:
        return False
    if any(isinstance(op, Exchange) or (isinstance(op, SetIf) and op.once) for op in ops):
        raise OutcomeUnknown("the KV did not answer while an entry was written; the write may have landed") from error
    return True


def _no_check() -> None:
    return
