"""The steps of a run as they go by: how long each took, how far it is, what is left; and a sign of life for the run's flag.

While a step runs in Spark a thread asks how many of its tasks are done, and beats for the run, so that nobody takes it for dead.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_SECONDS: Final = 0.5
BEAT_SECONDS: Final = 60.0


class Progress(NamedTuple):
    step: str
    done: int
    """Tasks of Spark, or whatever the step counts."""
    total: int | None
    seconds: float
    """Since the step began."""

    @property
    def left_seconds(self) -> float | None:
        """An estimate: that what is left goes as what is done went."""
        if not self.total or not self.done:
            return None
        return self.seconds * (self.total - self.done) / self.done


Tell = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """Tells nobody."""


class Steps:
    def __init__(self, spark: SparkSession | None, tell: Tell, beat: Callable[[], None]) -> None:
        """`beat` is called from a thread of its own, once a minute; what it raises is left to the run's own next look at its flag."""
        self._spark = spark
        self._tell = tell
        self._beat = beat
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Generator[Callable[[int], None], None, None]:
        """Run a step. Yields what it may call to say how far it is, where it does not run in Spark."""
        began = time.monotonic()
        self._tell(Progress(name, 0, None, 0.0))
        over = threading.Event()
        watching = threading.Thread(target=self._watch, args=(name, began, over), name="refstore-gc-steps", daemon=True)
        watching.start()
        try:
            yield lambda done: self._tell(Progress(name, done, None, time.monotonic() - began))
        finally:
            over.set()
            watching.join()
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - began, 3)

    def _watch(self, name: str, began: float, over: threading.Event) -> None:
        beaten = began
        while not over.wait(LOOK_SECONDS):
            now = time.monotonic()
            if now - beaten >= BEAT_SECONDS:
                beaten = now
                try:
                    self._beat()
                except Exception:  # noqa: BLE001  # the run itself looks at its flag before it concludes anything
                    return
            done, total = self._tasks()
            if total:
                self._tell(Progress(name, done, total, now - began))

    def _tasks(self) -> tuple[int, int]:
        if self._spark is None:
            return 0, 0
        tracker = self._spark.sparkContext.statusTracker()
        done = total = 0
        for job_id in tracker.getActiveJobsIds():
            job = tracker.getJobInfo(job_id)
            stages: list[int] = list(job.stageIds) if job else []  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]  # no types
            for stage_id in stages:
                stage = tracker.getStageInfo(stage_id)
                if stage is not None:
                    done += stage.numCompletedTasks
                    total += stage.numTasks
        return done, total
