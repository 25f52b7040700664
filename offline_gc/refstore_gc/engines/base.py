"""What an engine does for a run: it calls functions for items, and brings batches together by bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from refstore_gc.address_batches import Batch

A = TypeVar("A")
T = TypeVar("T")

EngineName = Literal["local", "spark"]

BatchStep = Callable[[Iterable[Batch]], Iterator[Batch]]
"""Makes other batches of batches, such as the keys of what they name."""

READ_BUCKETS: Final = 128
"""Into how many buckets a step deals what the step behind it reads. An engine may read several of them in one task."""


class BatchStream(NamedTuple):
    """Batches, and what is made of them on the way to their buckets."""

    batches: Sequence[Batch]
    step: BatchStep | None = None
    """None: the batches come to their buckets as they are."""
    second_step: BatchStep | None = None
    """Takes what `step` yields of the kind TO_READ: all batches of a bucket, and possibly of several, in one call."""


class SharedFolder(msgspec.Struct, frozen=True):
    """A folder's files, as functions find them."""

    folder: str = ""
    """'': where Spark puts the files that it copies."""
    prefix: str = ""
    """What the files' names begin with there."""

    @property
    def path(self) -> Path:
        if self.folder:
            return Path(self.folder)
        from pyspark import SparkFiles

        return Path(SparkFiles.getRootDirectory())

    def as_local(self) -> SharedFolder:
        """Return it for another process of this machine, which need not be one of Spark."""
        return SharedFolder(str(self.path), self.prefix)


class Engine(Protocol):
    """Runs functions over items and batches; `local.py` and `spark.py` implement it.

    Functions, items and results are pickled. An engine may call a function several times for the same item, and use one
    of the results. What a function raises is raised, and ends the work.
    """

    @property
    def name(self) -> EngineName: ...

    @property
    def parallelism(self) -> int:
        """Return into how many tasks work is cut at least: one for each core, at least two."""
        ...

    @property
    def is_on_one_machine(self) -> bool:
        """Return whether all functions see the folders of this machine."""
        ...

    def start_ahead(self, modules: Sequence[str], items: int) -> None:
        """Start processes for work that surely takes seconds on so many items, and go on while they import these
        modules. It need not be done before `map`.
        """
        ...

    def map(self, work: Callable[[A], Iterable[T]], items: Sequence[A], *, is_long: bool = False) -> Iterable[T]:
        """Yield what `work` yields for each item; the items in any order. `is_long`: it surely takes seconds."""
        ...

    def join(
        self, flows: Sequence[BatchStream], buckets: int, work: Callable[[list[Batch]], Iterable[T]]
    ) -> Iterable[T]:
        """Bring the batches of all flows together by bucket; yield what `work` yields for each bucket that has some.

        `buckets`: batches have numbers below this. The buckets come in any order.
        """
        ...

    def count_tasks(self) -> tuple[int, int]:
        """Return how many tasks of the work under way are done, and how many there are. A thread may call it."""
        ...

    def cancel(self) -> None:
        """Make the work under way raise an error soon. A thread may call it."""
        ...

    def scratch_folder(self) -> AbstractContextManager[Path]:
        """Yield a folder of this machine for the block, which nobody else can read. It is removed afterwards."""
        ...

    def share_folder(self, folder: Path) -> SharedFolder:
        """Let functions read the files of a folder of this machine, also where they run elsewhere."""
        ...

    def remove_shared(self, shared: SharedFolder) -> None:
        """Remove what was copied elsewhere of a folder, as far as that can be reached."""
        ...
