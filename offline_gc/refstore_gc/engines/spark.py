"""The engine of Spark: executors of this machine or of a cluster."""

from __future__ import annotations

import pickle
import secrets
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from refstore import errors
from refstore.core.arrow_arrays import make_array
from refstore.errors import MissingExtra, RefstoreError, Unavailable
from refstore_gc.address_batches import ARROW, SCHEMA, Batch, BatchKind, decode_batches, encode_batches, group_by_bucket
from refstore_gc.engines import spark_session
from refstore_gc.engines.base import BatchStep, BatchStream, SharedFolder
from refstore_gc.engines.spill import FOLDER_PREFIX
from refstore_gc.private_folder import make_private_folder
from refstore_gc.untyped_arrow import pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

A = TypeVar("A")
T = TypeVar("T")

TASKS_PER_CORE: Final = 32
"""A task costs some hundredths of a second to begin; more tasks balance better, and show progress."""
BUCKETS_MAX: Final = 8
"""So many buckets share a task at most. It holds the keys of all of them."""
SMALL_BATCHES_MAX: Final = 64
"""So few batches start faster from one Arrow table."""
_REMOVALS_PER_CORE: Final = 8
_RESULTS: Final = "results binary"


class SparkEngine:
    """Implements `base.Engine`."""

    name: Literal["spark"] = "spark"

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._context: Any = spark.sparkContext

    @property
    def parallelism(self) -> int:
        return max(2, self._context.defaultParallelism)

    @property
    def is_on_one_machine(self) -> bool:
        return str(self._context.master).startswith("local")

    def start_ahead(self, modules: Sequence[str], items: int) -> None:
        """Leave it to Spark when to start its workers."""

    def map(self, work: Callable[[A], Iterable[T]], items: Sequence[A], *, is_long: bool = False) -> list[T]:  # noqa: ARG002  # its tasks start at once
        if not items:
            return []
        tasks = min(len(items), self.parallelism * TASKS_PER_CORE)
        with _translate_task_errors():
            return self._context.parallelize(items, tasks).flatMap(work).collect()

    def join(self, flows: Sequence[BatchStream], buckets: int, work: Callable[[list[Batch]], Iterable[T]]) -> list[T]:
        tasks = -(-buckets // buckets_of_task(buckets, self.parallelism))
        kept: list[DataFrame] = []
        with _translate_task_errors():
            try:
                frames = [frame for flow in flows if flow.batches for frame in self._frames(flow, kept)]
                if not frames:
                    return []
                together = reduce(lambda some, more: some.unionByName(more), frames)
                rows = (
                    together.repartitionById(tasks, "bucket")
                    .mapInArrow(partial(_join_partition, work), _RESULTS)
                    .collect()
                )
            finally:
                for frame in kept:
                    frame.unpersist()
        return [result for row in rows for result in pickle.loads(row.results)]  # noqa: S301  # our own tasks sent it

    def scratch_folder(self) -> AbstractContextManager[Path]:
        return make_private_folder(FOLDER_PREFIX)

    def share_folder(self, folder: Path) -> SharedFolder:
        if self.is_on_one_machine:
            return SharedFolder(str(folder))
        shared = SharedFolder(prefix=f"{folder.name}-{secrets.token_hex(8)}-")
        for file in sorted(folder.iterdir()):
            self._context.addFile(str(file.rename(file.with_name(f"{shared.prefix}{file.name}"))))
        return shared

    def remove_shared(self, shared: SharedFolder) -> None:
        """Remove the files from the driver and the executors. An executor that is gone keeps them until its worker's
        folder is cleaned.
        """
        if shared.folder:
            return
        _remove_files(shared)
        with suppress(Exception):  # no executor may be left
            executors = self._context._jsc.sc().getExecutorMemoryStatus().size()  # PySpark has no other way
            tasks = max(executors, self.parallelism) * _REMOVALS_PER_CORE
            self._context.parallelize(range(tasks), tasks).foreach(partial(_remove_on_executor, shared))

    def count_tasks(self) -> tuple[int, int]:
        tracker = self._context.statusTracker()
        done = total = 0
        for job_id in tracker.getActiveJobsIds():
            job = tracker.getJobInfo(job_id)
            for stage_id in list(job.stageIds) if job else []:
                stage = tracker.getStageInfo(stage_id)
                if stage is not None:
                    done += stage.numCompletedTasks
                    total += stage.numTasks
        return done, total

    def cancel(self) -> None:
        self._context.cancelAllJobs()

    def close(self) -> None:
        self._spark.stop()

    def _frames(self, flow: BatchStream, kept: list[DataFrame]) -> list[DataFrame]:
        """Return a flow's batches. `kept`: gets what is to be released after the join."""
        frame = self._frame_of(flow.batches)
        if flow.step is None:
            return [frame]
        frame = frame.mapInArrow(_as_map_in_arrow(flow.step), SCHEMA)
        if flow.second_step is None:
            return [frame]
        kept.append(frame.persist())
        to_read = f"kind = {int(BatchKind.TO_READ)}"
        second = frame.where(to_read).repartitionById(self.parallelism * 2, "bucket")
        return [frame.where(f"not ({to_read})"), second.mapInArrow(_as_map_in_arrow(flow.second_step), SCHEMA)]

    def _frame_of(self, batches: Sequence[Batch]) -> DataFrame:
        """Spread batches of the driver over the executors. They say what to read; none holds addresses."""
        if len(batches) <= SMALL_BATCHES_MAX:
            # begins in a third of the time
            return self._spark.createDataFrame(pa.Table.from_batches(list(encode_batches(batches)), schema=ARROW))
        rows = [(batch.bucket, int(batch.kind), bytearray(batch.body)) for batch in batches]
        tasks = min(self.parallelism * 2, len(rows))
        return self._spark.createDataFrame(self._context.parallelize(rows, tasks), SCHEMA)


def buckets_of_task(buckets: int, parts: int) -> int:
    """Return how many buckets share a task: few enough that every core has two tasks."""
    return max(1, min(BUCKETS_MAX, buckets // (parts * 2)))


def _as_map_in_arrow(step: BatchStep) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a step as Spark's `mapInArrow` takes it."""
    return lambda record_batches: encode_batches(step(decode_batches(record_batches)))


def _join_partition(work: Callable[[list[Batch]], Iterable[Any]], record_batches: Iterable[Any]) -> Iterator[Any]:
    """Join the buckets of one task, and yield their pickled results."""
    for batches in group_by_bucket(decode_batches(record_batches)):
        yield pa.RecordBatch.from_arrays([make_array([pickle.dumps(list(work(batches)))], pa.binary())], ["results"])


def _remove_on_executor(shared: SharedFolder, _: int) -> None:
    _remove_files(shared)
    time.sleep(0.02)  # so that each executor gets some of these tasks


def _remove_files(shared: SharedFolder) -> None:
    for file in shared.path.glob(f"{shared.prefix}*"):
        file.unlink(missing_ok=True)


@contextmanager
def _translate_task_errors() -> Generator[None, None, None]:
    """Raise what a task raised as the error that it was, so that a job that could not read a range says which."""
    try:
        yield
    except RefstoreError:
        raise
    except Exception as error:
        raised = spark_session.RAISED.findall(str(error))
        if raised:
            name, message = raised[-1]
            kind = getattr(errors, name, None)
            if isinstance(kind, type) and issubclass(kind, RefstoreError) and kind is not MissingExtra:
                raise kind(message) from error
        if type(error).__module__.startswith(("pyspark", "py4j")):
            raise Unavailable(
                f"Spark failed: {spark_session.first_error_line(error)}; run it again, or see Spark's own log"
            ) from error
        raise
