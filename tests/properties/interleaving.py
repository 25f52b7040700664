"""Run several operations of the real code at once, in one thread, in an order that is given; and crash them where it is
said.

Every KV call (each op of a batch on its own) and every object call is a step. Operations run as greenlets that hand
over before each step; `choices` says who goes next. So a failing run repeats to the letter, on any driver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from greenlet import getcurrent, greenlet

from refstore.kv.base import Op, Result
from refstore.objects.base import DeleteResult
from tests.kit.forwarding import ForwardingKV, ForwardingObjects


class Crash(BaseException):
    """The process died between two steps. No handler of the product may see it as an error of its own."""


@dataclass(slots=True)
class Stepper:
    """Called before each step of an operation."""

    running: bool = False
    operations: frozenset[object] = frozenset()
    crash_at: dict[object, int] = field(default_factory=dict[object, int])
    """Greenlet -> steps it has left before it dies."""

    def step(self) -> None:
        if not self.running:
            return
        me = getcurrent()
        if me not in self.operations:
            return  # a thread that an operation started
        left = self.crash_at.get(me)
        if left is not None:
            if left == 0:
                raise Crash
            self.crash_at[me] = left - 1
        me.parent.switch()


class _Stepped:
    def __init__(self, inner: Any, stepper: Stepper) -> None:
        self.inner = inner
        self._stepper = stepper

    def check(self) -> None:
        self._stepper.step()


class SteppedKV(_Stepped, ForwardingKV):
    def execute(self, ops: Sequence[Op]) -> list[Result]:
        if not self._stepper.running:
            return self.inner.execute(ops)
        results: list[Result] = []
        for op in ops:
            results += super().execute((op,))
        return results


class SteppedObjects(_Stepped, ForwardingObjects):
    def delete_many(self, keys: Sequence[str]) -> DeleteResult:
        done = [super(SteppedObjects, self).delete_many((key,)) for key in keys]
        deleted = tuple(key for each in done for key in each.deleted_keys)
        missing = tuple(key for each in done for key in each.missing_keys)
        return DeleteResult(deleted, missing, ())


@dataclass(frozen=True, slots=True)
class Outcome:
    value: Any = None
    error: Exception | None = None
    crashed: bool = False


STEPS_MAX = 20_000
"""More than any two small operations need: a run that does not end is a defect too."""


def together(
    stepper: Stepper, operations: Sequence[Callable[[], Any]], choices: Sequence[int], crashes: Sequence[int | None]
) -> list[Outcome]:
    """Run the operations to their ends; `choices` says, round and round, which of those still running makes the next
    step.

    `crashes`: for each operation, after how many steps it dies, or None.
    """
    outcomes: dict[int, Outcome] = {}

    def run(index: int) -> None:
        try:
            outcomes[index] = Outcome(value=operations[index]())
        except Crash:
            outcomes[index] = Outcome(crashed=True)
        except Exception as error:  # noqa: BLE001  # whatever it is, the caller looks at it
            outcomes[index] = Outcome(error=error)

    lets = [greenlet(lambda index=index: run(index)) for index in range(len(operations))]
    stepper.crash_at = {let: steps for let, steps in zip(lets, crashes, strict=True) if steps is not None}
    stepper.operations = frozenset(lets)
    stepper.running = True
    try:
        turns = cycle(choices or (0,))
        for _ in range(STEPS_MAX):
            alive = [let for let in lets if not let.dead]
            if not alive:
                break
            alive[next(turns) % len(alive)].switch()
        else:
            raise AssertionError(f"two operations did not end within {STEPS_MAX} steps")
    finally:
        stepper.running = False
        stepper.crash_at = {}
    return [outcomes[index] for index in range(len(operations))]
