"""The deadline of the operation under way.

Rules 9 and 13 rest on "the longest operation": what is older than that has no operation behind it any more. So every
SDK operation runs under a deadline, which is checked before each request to a store: a request that starts before the
deadline lands at most `io_timeout_seconds` after it, and none starts later. Nested operations share the outermost one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from refstore.clock import Clock
from refstore.errors import DeadlineExceeded

_deadline: ContextVar[tuple[Clock, float, float] | None] = ContextVar("refstore_deadline", default=None)


@contextmanager
def operation(clock: Clock, seconds: float) -> Generator[None, None, None]:
    """Run the block under a deadline `seconds` from now, or under the one that already stands."""
    if _deadline.get() is not None:
        yield
        return
    token = _deadline.set((clock, clock.monotonic_seconds() + seconds, seconds))
    try:
        yield
    finally:
        _deadline.reset(token)


@contextmanager
def lifted() -> Generator[None, None, None]:
    """Run the block without a deadline: for taking back what came too late, and nothing else."""
    token = _deadline.set(None)
    try:
        yield
    finally:
        _deadline.reset(token)


def check() -> None:
    """Raises DeadlineExceeded once the time of the operation under way is up. Without one: nothing."""
    standing = _deadline.get()
    if standing is None:
        return
    clock, at, seconds = standing
    if clock.monotonic_seconds() >= at:
        raise DeadlineExceeded(
            f"the operation did not end within its deadline of {seconds:g} s; what it wrote is safe, and it may be made again,"
            " in smaller parts or with a larger operation_deadline_seconds on every process"
        )


def checked(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """`chunks`, with the deadline checked before each: a body that trickles in must end too."""
    for chunk in chunks:
        check()
        yield chunk
