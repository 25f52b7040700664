"""Operations whose writes never get a reply that tells whether they landed: they wait, and call it the KV's fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from refstore.errors import OutcomeUnknown
from refstore.kv.base import ABSENT, Exchange, Op, Result, SetIf
from refstore.kv.memory import MemoryKV
from refstore.kv.retries import ATTEMPTS, wait_seconds
from refstore.lake import Lake
from refstore.repository import Repository
from tests.kit.clock import FakeClock


class Unsure(MemoryKV):
    """Once it is unsure it answers reads, and knows of no write that `Retrying` does not repeat whether it landed."""

    def __init__(self) -> None:
        super().__init__()
        self.is_unsure = False

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        if self.is_unsure and any(
            isinstance(op, Exchange) or (isinstance(op, SetIf) and (op.once or op.expected is ABSENT)) for op in ops
        ):
            raise OutcomeUnknown("planted")
        return super().execute(ops)


class Least:
    def random(self) -> float:
        return 0.0


@pytest.mark.parametrize(
    "call",
    [
        lambda repo: repo.delete("main", "a"),
        lambda repo: repo.copy("main", "a", to_branch="main", to_path="b"),
        lambda repo: repo.upload("main", "b", b"2"),
        lambda repo: repo.upload("main", "b", b"2", if_absent=True),
        lambda repo: repo.issue("main", "b"),
        lambda repo: repo.create_branch("other", source="main"),
    ],
    ids=["delete", "copy", "upload", "upload if absent", "issue", "create branch"],
)
def test_an_operation_waits_and_then_says_that_the_kv_does_not_tell(call: Callable[[Repository], object]) -> None:
    kv, clock = Unsure(), FakeClock()
    with Lake(kv, "memory://unknown-outcomes", clock=clock) as lake:
        repo = lake.create_repository("sales")
        repo.upload("main", "a", b"1")
        repo.commit("main", "first")
        began = clock.monotonic_seconds()
        kv.is_unsure = True
        with pytest.raises(OutcomeUnknown):
            call(repo)
        least_seconds = sum(wait_seconds(attempt, Least()) for attempt in range(1, ATTEMPTS))
        assert least_seconds <= clock.monotonic_seconds() - began <= 2 * least_seconds
        kv.is_unsure = False
        call(repo)
