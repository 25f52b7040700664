"""The steps of a run: how long each took, how far it is, and what is left; and a sign of life for the run's flag.

During a step a thread asks the engine how many tasks are done, and beats for the run, so that no other run takes it
over. It also writes the progress to the KV, and cancels the engine's work if an operator asked the run to stop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Final

from refstore.core.step_progress import ReportProgress, StepProgress
from refstore.monitoring.run_control import BEAT_SECONDS as CONTROL_SECONDS
from refstore.monitoring.run_control import RunControl
from refstore_gc.engines.base import Engine

LOOK_SECONDS: Final = 0.5
BEAT_SECONDS: Final = 60.0


class RunSteps:
    def __init__(
        self, repository: str, engine: Engine, report_progress: ReportProgress, control: RunControl | None = None
    ) -> None:
        """`control`: None, if nobody can see or stop the run, such as a simulation."""
        self._repository = repository
        self._engine = engine
        self._tell = report_progress
        self._control = control
        self._last = StepProgress(repository, "")
        self._beat: Callable[[], None] = lambda: None
        self.seconds: dict[str, float] = {}
        self._job = (0, 1)

    def use_engine(self, engine: Engine) -> None:
        """Go on with another engine, between two steps."""
        self._engine = engine

    def set_call(self, done: int, total: int) -> None:
        """Say which of a step's calls of the engine, all of about the same size, begins: its number from 0, and how
        many there are. Without this a step has one.
        """
        self._job = (done, total)

    def set_beat(self, beat: Callable[[], None]) -> None:
        """Call `beat` once a minute, from a thread of its own. What it raises is left to the run, which checks its flag
        before it concludes anything.
        """
        self._beat = beat

    def check_stop(self) -> None:
        """Raise RunStopped if an operator asked the run to stop."""
        if self._control is not None:
            self._control.check()

    def start_beat(self) -> None:
        """Write the first sign of life, before the first step. Raises RunStopped."""
        self._beat_control()
        self.check_stop()

    def wait(self, seconds: float) -> None:
        """Report that the step waits, and for how long still. Raises RunStopped."""
        self.check_stop()
        is_first = self._last.wait is None
        self._report(replace(self._last, wait=timedelta(seconds=seconds)))
        if is_first:
            self._beat_control()  # operators see at once until when it waits

    def close(self) -> None:
        """Say that the run has ended."""
        if self._control is not None:
            self._control.close()

    @contextmanager
    def step(self, name: str) -> Generator[Callable[[int], None], None, None]:
        """Run a step. Yields a function by which a step without the engine reports how far it is. Raises RunStopped."""
        began = time.monotonic()
        self._job = (0, 1)
        self._last = self._progress(name, began)
        self._beat_control()
        self._tell(self._last)
        self.check_stop()
        over = threading.Event()
        watching = threading.Thread(target=self._watch, args=(name, began, over), name="refstore-gc-steps", daemon=True)
        watching.start()

        def report(done: int) -> None:
            self.check_stop()
            self._report(self._progress(name, began, done))

        try:
            yield report
        except Exception:
            self.check_stop()  # work that was cancelled fails; the cause is the request to stop
            raise
        finally:
            over.set()
            watching.join()
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - began, 3)

    def _progress(self, step: str, began: float, done: int = 0, total: int | None = None) -> StepProgress:
        elapsed = timedelta(seconds=time.monotonic() - began)
        return StepProgress(self._repository, step, done, total_items=total, elapsed=elapsed)

    def _report(self, progress: StepProgress) -> None:
        self._last = progress
        self._tell(progress)

    def _beat_control(self) -> bool:
        """Write the progress. Return whether the run is to stop."""
        if self._control is None:
            return False
        last, left = self._last, self._last.remaining
        left_ms = -1 if left is None else left // timedelta(milliseconds=1)
        return self._control.beat(
            last.step, last.done_items, last.total_items or 0, left_ms, waits=last.wait is not None
        )

    def _watch(self, name: str, began: float, over: threading.Event) -> None:
        beaten = shown = began
        while not over.wait(LOOK_SECONDS):
            now = time.monotonic()
            if now - beaten >= BEAT_SECONDS:
                beaten = now
                try:
                    self._beat()
                except Exception:  # noqa: BLE001  # the run itself looks at its flag before it concludes anything
                    return
            done, total = self._engine.count_tasks()
            before, jobs = self._job
            if total and self._last.wait is None:  # tasks of an earlier step say nothing of a wait
                self._report(self._progress(name, began, before * total + done, jobs * total))
            if now - shown >= CONTROL_SECONDS:
                shown = now
                if self._beat_control():
                    self._engine.cancel()
