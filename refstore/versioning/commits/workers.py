"""A few threads for object requests, started only when there is more than one request to make.

Most commits write one range, for which a pool would cost more than it saves. So the first job waits until a second one
comes, or until its result is needed; then it runs in the caller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Generic, ParamSpec, TypeVar

T = TypeVar("T")
A = TypeVar("A")
P = ParamSpec("P")


class PendingResult(Generic[T]):
    def __init__(self, work: Callable[[], T]) -> None:
        self._work: Callable[[], T] | None = work
        """Released once it runs, because a result may be kept for long."""
        self._future: Future[T] | None = None

    @property
    def is_started(self) -> bool:
        return self._future is not None

    def start(self, executor: ThreadPoolExecutor) -> None:
        if self._work is not None:
            self._future = executor.submit(self._work)
            self._work = None

    def result(self) -> T:
        """Waits. Called from the thread that submitted it. Raises what the work raised."""
        if self._future is None:
            work, self._work, self._future = self._work, None, Future()
            assert work is not None  # noqa: S101  # as there is no future yet
            try:
                self._future.set_result(work())
            except BaseException as error:  # noqa: BLE001  # kept for whoever asks again, as a pool does
                self._future.set_exception(error)
        return self._future.result()


def _identity(value: T) -> T:
    return value


class Workers:
    """One operation's pool; a context manager. With fewer than two threads everything runs in the caller, in order."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._executor: ThreadPoolExecutor | None = None
        self._held: PendingResult[object] | None = None

    def submit(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> PendingResult[T]:
        job: PendingResult[T] = PendingResult(lambda: work(*args, **kwargs))
        if self.threads < 2:
            job.result()
        elif self._executor is not None:
            job.start(self._executor)
        elif self._held is None or self._held.is_started:
            self._held = job  # type: ignore[assignment]  # Job is only read from
        else:
            self._executor = ThreadPoolExecutor(self.threads, thread_name_prefix="refstore-trees")
            self._held.start(self._executor)
            job.start(self._executor)
        return job

    def map_ahead(
        self, work: Callable[[A], T], arguments: Iterable[A], *, known: Callable[[A], T | None] | None = None
    ) -> Iterator[T]:
        """Like `map`, with two requests per thread made ahead of the consumer, so that memory is bounded.

        `known` returns results that need no request, in the caller, because starting a thread takes longer.
        """
        waiting: deque[PendingResult[T]] = deque()
        for argument in arguments:
            known_result = known(argument) if known is not None else None
            if self.threads < 2:
                yield known_result if known_result is not None else work(argument)
                continue
            waiting.append(
                PendingResult(partial(_identity, known_result))
                if known_result is not None
                else self.submit(work, argument)
            )
            if len(waiting) > 2 * self.threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
