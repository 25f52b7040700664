"""The deadline of the operation under way.

Rules 9 and 13 rest on "the longest operation": no operation works on anything that is older. So every SDK operation
that writes runs under a deadline, which is checked before each request to a store: a request that starts before the
deadline lands at most `io_timeout_seconds` after it, and none starts later. Nested operations share the outermost one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from refstore.core.clock import Clock
from refstore.errors import DeadlineExceeded


class _Deadline(NamedTuple):
    clock: Clock
    at_seconds: float
    seconds: float
    is_abandoned: Callable[[], bool] | None = None
    """Tells of a read whether its client has gone."""


_deadline: ContextVar[_Deadline | None] = ContextVar("refstore_deadline", default=None)


@contextmanager
def _run_under(deadline: _Deadline | None) -> Generator[None, None, None]:
    token = _deadline.set(deadline)
    try:
        yield
    finally:
        _deadline.reset(token)


def limit_operation(clock: Clock, seconds: float) -> AbstractContextManager[None]:
    """Run the block under a deadline `seconds` from now, or under the outer one if there is one."""
    return _run_under(_deadline.get() or _Deadline(clock, clock.monotonic_seconds() + seconds, seconds))


def limit_reads(clock: Clock, seconds: float, is_abandoned: Callable[[], bool]) -> AbstractContextManager[None]:
    """Run a block that only reads, and all operations in it, for at most `seconds` and only while its client waits."""
    return _run_under(_Deadline(clock, clock.monotonic_seconds() + seconds, seconds, is_abandoned))


def lift() -> AbstractContextManager[None]:
    """Run the block without a deadline, only to undo a write that came too late, or to log an outcome."""
    return _run_under(None)


def check() -> None:
    """Raise DeadlineExceeded if the time of the current operation is up, or its client has gone."""
    standing = _deadline.get()
    if standing is None:
        return
    if standing.is_abandoned is not None and standing.is_abandoned():
        raise DeadlineExceeded("the read was given up, as whoever asked for it has gone")
    if standing.clock.monotonic_seconds() >= standing.at_seconds:
        if standing.is_abandoned is not None:
            raise DeadlineExceeded(
                f"the read did not end within {standing.seconds:g} s; ask for less: fewer items, a "
                "longer prefix, fewer filters, a shorter part of history"
            )
        raise DeadlineExceeded(
            f"the operation did not end within its deadline of {standing.seconds:g} s; what it wrote is safe, and it "
            "may be made again, in smaller parts or after: refstore config --set operation_deadline=..."
        )


def check_each(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the chunks of a body, and check the deadline before each, so that a slow body ends too."""
    for chunk in chunks:
        check()
        yield chunk
