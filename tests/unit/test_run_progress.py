"""What a step on an engine tells about how far it is."""

from __future__ import annotations

import threading

import pytest

from refstore.core.step_progress import StepProgress
from refstore_gc import run_progress
from refstore_gc.engines.local import LocalEngine
from refstore_gc.run_progress import RunSteps


class HalfDone(LocalEngine):
    """Has done five of ten tasks, whenever it is asked."""

    def count_tasks(self) -> tuple[int, int]:
        return 5, 10


def test_the_estimate_is_of_the_whole_step_and_not_of_one_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_progress, "LOOK_SECONDS", 0.01)
    told: list[StepProgress] = []
    heard = threading.Event()

    def tell(now: StepProgress) -> None:
        told.append(now)
        if now.total_items == 30:
            heard.set()

    steps = RunSteps("sales", HalfDone(), tell)
    with steps.step("looking"):
        steps.set_call(1, 3)
        assert heard.wait(30)
    last = told[-1]
    assert (last.repository, last.step, last.done_items, last.total_items) == ("sales", "looking", 15, 30)
    assert last.remaining == last.elapsed
