"""What a run of the purge is given, and what all of its steps do with it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from refstore.core.batches import split_sized
from refstore.purge_document.document import KEEP_HISTORY
from refstore.repository import Repository
from refstore_gc.engines.base import Engine
from refstore_gc.run_progress import RunSteps
from refstore_purge import id_index, purge_tasks
from refstore_purge.dataset_ids import DatasetIds
from refstore_purge.formats.base import FormatTask
from refstore_purge.ids_file import IdsFile
from refstore_purge.outcomes import ObjectOutcome, ObjectResult, OutcomeKind
from refstore_purge.purge_account import PurgeAccount
from refstore_purge.purge_plan import Partition, PurgeObject
from refstore_purge.purge_tasks import ObjectTask, TaskSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeOptions:
    ids: IdsFile | None
    """None: look for the ids of the ledger, which needs a key."""
    id_type: str = ""
    """'': as the file has them."""
    datasets: tuple[str, ...] = ()
    """Purge only these. None given: all that are onboarded and have ids."""
    dry_run: bool = False
    """Find, and write nothing but the report."""
    max_partitions: int | None = None
    """How many partitions this run does at most."""
    after: str = ""
    """The watermark of an earlier run: partitions up to it are left out."""
    includes_copies: bool = False
    """Whether names outside the data sets are given the rewritten object, too."""
    ignores_statistics: bool = False
    """Whether columns are read also where the files' statistics say that none of the ids is in them."""
    share: float = 0.5
    """Stop if more than this share of the rows that were looked at would go."""
    floor_rows: int = 10_000
    """Fewer rows never stop a run."""
    purge_key: bytes | None = field(default=None, repr=False)
    """The key of the index (`refstore.purge_document.purge_key`). None: no index is read or written."""


@dataclass(frozen=True, slots=True)
class PurgeRun:
    repo: Repository
    engine: Engine
    options: PurgeOptions
    steps: RunSteps
    account: PurgeAccount
    ids: DatasetIds
    key: id_index.IndexKey | None
    until: str | None = None
    """The watermark that `max_partitions` sets, if it leaves partitions to a later run."""
    task_settings: TaskSettings | None = None
    """None: the ids are not prepared yet."""
    partition_matches: dict[str, bool] = field(default_factory=dict[str, bool])
    """By watermark, if its partition has the identifier's value: whether that is one of the ids."""
    indexes: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    """The sizes of indexes, by their folder and the content's address."""

    def move_to(self, engine: Engine) -> PurgeRun:
        """Return the run on another engine, between two steps."""
        self.steps.use_engine(engine)
        self.account.report.engine = engine.name
        return replace(self, engine=engine)

    def record(
        self, kind: OutcomeKind, purge_object: PurgeObject, result: ObjectResult | None = None, *, reason: str = ""
    ) -> None:
        """Count what became of an object."""
        self.account.record(_make_outcome(kind, purge_object, result, reason))

    def announce(self, written: Iterable[tuple[PurgeObject, ObjectResult]]) -> None:
        """Write to the report what is published next."""
        outcomes = [_make_outcome("replaced", purge_object, result) for purge_object, result in written]
        self.account.report.pending_replacements = self.account.select_uncounted(outcomes)
        self.save()

    def end_publishing(self) -> None:
        """Note that what was announced has been published and counted, or came to nothing."""
        self.account.report.pending_replacements, self.account.report.heads = [], {}
        self.save()

    def save(self) -> None:
        """Write what the run has done so far, for the case that it is killed."""
        self.account.report.seconds = self.steps.seconds
        self.account.save(self.repo.context.objects)

    def is_selected(self, partition: Partition) -> bool:
        """Return whether a partition is behind the watermark of an earlier run, and not behind that of this one."""
        watermark = partition.watermark
        return watermark > self.options.after and (self.until is None or watermark <= self.until)

    def select_objects(self, objects: Iterable[PurgeObject]) -> list[PurgeObject]:
        """Return the objects of the partitions that this run does."""
        return [each for each in objects if self.is_selected(each.partition)]

    def batch_objects(
        self, objects: Sequence[PurgeObject], per_part: int, part_bytes: int = sys.maxsize
    ) -> Iterator[Sequence[PurgeObject]]:
        """Yield what each call of the engine does: for each core at most so many objects, of about so many bytes."""
        parts = self.engine.parallelism
        batches = list(
            split_sized(objects, lambda each: each.size_bytes, size_max=parts * part_bytes, items_max=parts * per_part)
        )
        for number, batch in enumerate(batches):
            self.steps.set_call(number, len(batches))
            yield batch

    def run_tasks(self, object_tasks: list[ObjectTask]) -> list[ObjectResult]:
        """Do the tasks of some objects on the engine."""
        assert self.task_settings is not None  # noqa: S101  # the ids are prepared before anything is looked at
        return purge_tasks.run_tasks(self.engine, self.task_settings, object_tasks)

    def make_task(self, purge_object: PurgeObject, *, to: str = "") -> ObjectTask:
        """Return an object's task. `to`: where to write it again; '': only look for the ids."""
        dataset = purge_object.dataset
        assert dataset.format is not None  # noqa: S101  # the document's check says so for what tasks work on
        return ObjectTask(
            address=purge_object.content_address,
            size_bytes=purge_object.size_bytes,
            format=dataset.format,
            ids=self.ids.set_name_of(dataset),
            format_task=FormatTask(
                tuple(dataset.identifier.split(".")),
                dataset.map_part,
                tuple(tuple(name.split(".")) for name in dataset.set_null),
                matches_every_row=self.partition_matches.get(purge_object.partition.watermark, False),
                ignores_statistics=self.options.ignores_statistics,
            ),
            target_address=to,
            may_be_gone=dataset.mode != KEEP_HISTORY,
        )

    def with_index(self, object_task: ObjectTask, purge_object: PurgeObject) -> ObjectTask:
        """Return the task with the place of its object's index."""
        if self.key is None or object_task.format_task.matches_every_row:
            return object_task
        dataset = purge_object.dataset
        folder = id_index.index_folder(self.key, dataset, self.ids.ids_of(dataset).kind)
        return msgspec.structs.replace(
            object_task,
            index_key=f"{folder}{object_task.address}",
            index_bytes=self.indexes.get(folder, {}).get(object_task.address, 0),
        )

    def delete_indexes(self, objects: Iterable[PurgeObject]) -> None:
        """Delete the indexes of what was replaced. Raises ObjectsUnavailable."""
        object_tasks = [self.with_index(self.make_task(each), each) for each in objects]
        self.repo.context.objects.delete_many([each.index_key for each in object_tasks if each.index_key])


def _make_outcome(
    kind: OutcomeKind, purge_object: PurgeObject, result: ObjectResult | None, reason: str = ""
) -> ObjectOutcome:
    dataset, first = purge_object.dataset, purge_object.names[0]
    return ObjectOutcome(
        kind=kind,
        dataset=dataset.name,
        prefix=dataset.prefix,
        partition=purge_object.partition.name,
        identity=purge_object.address,
        address=purge_object.content_address,
        size_bytes=purge_object.size_bytes,
        branch=first.branch,
        path=first.path,
        branches=[name.branch for name in purge_object.names] if dataset.mode == KEEP_HISTORY else [],
        keeps_rows=bool(dataset.set_null),
        result=result or ObjectResult(address=purge_object.content_address),
        reason=reason,
    )
