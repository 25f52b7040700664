"""Look for the ids in what a run's plan leaves out, so that the report lists every place that still has their rows.

Behind the run each object below the data sets' prefixes is known by its name: those of branches and commits, the undo
trash, what the reaper or a sweep has begun to delete, and uploads to issued addresses. Of each of them the contents are
taken that the record names: the current one, backups, trash, attempts, and what is retired. What the run has looked at
is known already; the rest is looked at here. Only earlier commits of the mode `keep-history`, and partitions that this
run leaves, are not: they are listed as such.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from refstore.context import Context
from refstore.core.batches import split_batches
from refstore.core.ids import Address, is_own
from refstore.errors import Invalid, ObjectNotFound
from refstore.purge_document.document import ERASE, KEEP_HISTORY, Dataset
from refstore.records.location_records import Location
from refstore.records.staging_records import Entry
from refstore_purge import purge_tasks, row_search, summary_files
from refstore_purge.formats.base import PurgeError
from refstore_purge.object_holders import HolderKind, scan_lost_names, scan_names
from refstore_purge.purge_plan import (
    BranchPath,
    Partition,
    PurgeObject,
    identifier_in_names,
    is_data,
    is_summary,
    legal_hold_prefixes,
    partition_of,
)
from refstore_purge.purge_run_state import PurgeRun
from refstore_purge.purge_tasks import ObjectTask, TaskSettings
from refstore_purge.remaining_places import Place, RunContent

PARTITION_LEFT_REASON: Final = "its partition was left out"
HISTORY_REASON: Final = "earlier commits of the mode keep-history are not looked at"
HELD_REASON: Final = "a legal hold covers it"
OTHER_BRANCH_REASON: Final = "the purge document leaves this branch out"
OPEN_UPLOAD_REASON: Final = "an upload in parts that is open"


class _UnplannedContent(NamedTuple):
    """A content, with the name that decides about its object."""

    dataset: Dataset
    holder: HolderKind | None
    """None: nothing names it any more, or not yet."""
    ref: str
    path: str
    identity: Address
    entry: Entry | None
    address: Address
    is_open_upload: bool = False


def find_unplanned(run: PurgeRun, job: TaskSettings, datasets: Sequence[Dataset]) -> None:
    """Note every content of the data sets that has rows of the ids and that the run did not look at.

    Raises CorruptRange, Unavailable.
    """
    run.state.update_report()
    with run.steps.step("looking at what is left"):
        for page in split_batches(_contents(run, datasets)):
            _examine_contents(run, job, page)


def _contents(run: PurgeRun, datasets: Sequence[Dataset]) -> Iterator[_UnplannedContent]:
    """Yield each content that the run did not look at, once."""
    ctx = run.repo.context
    announced = ctx.locations.are_announced()
    looked_at = run.state.examined_contents
    changing: dict[Address, Location] = dict(ctx.locations.scan_changing()) if announced else {}
    for page in split_batches(_objects(run, ctx, datasets)):
        unknown = [
            each.identity
            for each in page
            if announced and each.identity not in changing and each.identity not in looked_at.get(each.dataset.name, ())
        ]
        records = dict(zip(unknown, ctx.locations.get_many(unknown), strict=True)) if unknown else {}
        for each in page:
            record = changing.get(each.identity) or records.get(each.identity)
            addresses = record.addresses() if record is not None else (each.identity,)
            known = looked_at.get(each.dataset.name, ())
            yield from (each._replace(address=address) for address in addresses if address not in known)


def _objects(run: PurgeRun, ctx: Context, datasets: Sequence[Dataset]) -> Iterator[_UnplannedContent]:
    """Yield each object of the data sets once, by its firmest name, with its identity as the address."""
    lost_ones = list(scan_lost_names(ctx, [dataset.prefix for dataset in datasets]))
    for dataset in datasets:
        seen: set[str] = set()
        outside: set[str] = set()
        for name in scan_names(ctx, prefix=dataset.prefix):
            address = name.entry.address
            if not (is_data(dataset, name.path) or is_summary(dataset, name.path)):
                continue
            if not is_own(address):
                outside.update([address] if address else [])
            elif address not in seen:
                seen.add(address)
                if name.holder is HolderKind.SWEEP:  # of no plan, and looked into here
                    run.state.present_datasets.add(dataset.name)
                yield _UnplannedContent(dataset, name.holder, name.ref, name.path, address, name.entry, address)
        for lost in lost_ones:
            is_below = lost.path.startswith(dataset.prefix) and lost.address not in seen
            if is_below and (is_data(dataset, lost.path) or is_summary(dataset, lost.path)):
                seen.add(lost.address)
                yield _UnplannedContent(
                    dataset, None, "", lost.path, lost.address, lost.entry, lost.address, lost.is_open_upload
                )
        if outside:
            reason = "their data lies outside the repository; purge them where they are"
            run.state.places.append(
                Place(
                    kind="outside",
                    dataset=dataset.name,
                    reason=reason,
                    objects=len(outside),
                    has_rows=False,
                    is_as_of_run=True,
                )
            )


class _ContentToExamine(NamedTuple):
    """A content to look into, as the object of a unit."""

    content: _UnplannedContent
    size_bytes: int
    reason: str
    partition: Partition

    @property
    def is_summary(self) -> bool:
        return is_summary(self.partition.dataset, self.content.path)

    @property
    def purge_object(self) -> PurgeObject:
        content = self.content
        names = [BranchPath(content.ref, content.path)]
        return PurgeObject(content.identity, self.size_bytes, {}, "", None, names, content.address)


def _examine_contents(run: PurgeRun, job: TaskSettings, contents: Sequence[_UnplannedContent]) -> None:
    """Note which of the contents that are there have rows of the ids."""
    infos = run.repo.context.objects.head_many([each.address for each in contents])
    held = legal_hold_prefixes(run.repo)
    told = {each.path: each.reason for each in run.state.report.skipped_objects}
    todo: list[_ContentToExamine] = []
    for content, info in zip(contents, infos, strict=True):
        if content.is_open_upload:
            _record_content(run, content, 0, OPEN_UPLOAD_REASON, has_rows=False)
            continue
        if info is None:
            continue
        unit = Partition(content.dataset, partition_of(content.path[len(content.dataset.prefix) :]), {})
        reason = HELD_REASON if content.path.startswith(held) else told.get(content.path, "")
        if not run.select_partitions([unit]):
            _record_content(run, content, info.size_bytes, PARTITION_LEFT_REASON, has_rows=False)
        elif content.dataset.mode == KEEP_HISTORY and content.holder in (HolderKind.TAG, HolderKind.COMMIT):
            _record_content(run, content, info.size_bytes, HISTORY_REASON, has_rows=False)
        else:
            if content.holder is HolderKind.BRANCH and not content.dataset.has_branch(content.ref):
                reason = OTHER_BRANCH_REASON
            todo.append(_ContentToExamine(content, info.size_bytes, reason, unit))
            run.note_examined(unit, content.address)
    _examine_names(run, [each for each in todo if each.partition.dataset.mode == ERASE])
    of_rows = [each for each in todo if each.partition.dataset.mode != ERASE]
    _examine_summaries(run, [each for each in of_rows if each.is_summary])
    _examine_rows(run, job, [each for each in of_rows if not each.is_summary])


def _examine_names(run: PurgeRun, todo: Sequence[_ContentToExamine]) -> None:
    """Note the objects of the mode `erase` whose names or metadata have one of the ids."""
    for each in todo:
        content = each.content
        value = identifier_in_names(content.dataset, content.path, content.entry or Entry(content.identity, 0, "", 0))
        (is_one,) = row_search.find_ids(run.ids.all_ids_of(content.dataset), [value])
        if value is None and content.entry is None:
            _record_content(run, each.content, each.size_bytes, "its metadata is not known", has_rows=False)
        elif is_one:
            _record_content(run, each.content, each.size_bytes, each.reason, has_rows=True)


def _examine_summaries(run: PurgeRun, todo: Sequence[_ContentToExamine]) -> None:
    """Note the summary files of Parquet that have an id, and those that could not be read."""
    for each in todo:
        with suppress(ObjectNotFound):
            try:
                if summary_files.have_ids(run, each.partition, each.purge_object):
                    _record_content(run, each.content, each.size_bytes, each.reason, has_rows=True)
            except PurgeError as error:
                _record_content(run, each.content, each.size_bytes, str(error), has_rows=False)


def _examine_rows(run: PurgeRun, job: TaskSettings, todo: Sequence[_ContentToExamine]) -> None:
    """Note the contents with rows of the ids, and those that could not be read."""
    readable: list[tuple[_ContentToExamine, ObjectTask]] = []
    for each in todo:
        try:
            row_search.match_partitions(run, [each.partition])
        except Invalid as error:
            _record_content(run, each.content, each.size_bytes, str(error), has_rows=False)
            continue
        if run.state.by_partition.get(each.partition.watermark) is not False:
            readable.append(
                (each, msgspec.structs.replace(run.make_task(each.partition, each.purge_object), may_be_gone=True))
            )
    if not readable:
        return
    for (each, _), done in zip(
        readable, purge_tasks.run_tasks(run.engine, job, [work for _, work in readable]), strict=True
    ):
        if done.failure:
            _record_content(run, each.content, each.size_bytes, done.failure, has_rows=False)
        elif done.has_ids:
            _record_content(run, each.content, each.size_bytes, each.reason, has_rows=True)


def _record_content(run: PurgeRun, content: _UnplannedContent, size_bytes: int, reason: str, *, has_rows: bool) -> None:
    dataset = content.dataset
    run.state.contents.append(
        RunContent(
            content.address,
            content.identity,
            dataset.name,
            dataset.prefix,
            size_bytes,
            has_rows,
            reason,
            is_open_upload=content.is_open_upload,
        )
    )
