"""Look for the ids in what a run's plan leaves out, so that the report lists every place that still has their rows.

Behind the run each object below the data sets' prefixes is known by its name: those of branches and commits, the undo
trash, what the reaper or a sweep has begun to delete, and uploads to issued addresses. Of each of them the contents are
taken that the record names: the current one, backups, trash, attempts, and what is retired. What the run has looked at
is known already; the rest is looked at here. Only earlier commits of the mode `keep-history`, and partitions that this
run leaves, are not: they are listed as such.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

import msgspec

from refstore.context import Context
from refstore.core.batches import split_batches
from refstore.core.ids import Address, is_own
from refstore.errors import Invalid, ObjectNotFound
from refstore.purge_document.document import ERASE, KEEP_HISTORY, Dataset
from refstore.records.staging_records import StoredEntry
from refstore_purge import row_search, summary_files
from refstore_purge.object_holders import HolderKind, ObjectName, scan_lost_names, scan_names
from refstore_purge.outcomes import OPEN_UPLOAD_REASON, PARTITION_LEFT_REASON, ObjectResult
from refstore_purge.purge_context import PurgeRun
from refstore_purge.purge_error import PurgeError
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
from refstore_purge.purge_report import RemainingPlace

HISTORY_REASON: Final = "earlier commits of the mode keep-history are not looked at"
HELD_REASON: Final = "a legal hold covers it"
OTHER_BRANCH_REASON: Final = "the purge document leaves this branch out"


_Unplanned = tuple[PurgeObject, ObjectName]
"""A content, as that of an object, and the name that decides about it."""


def find_unplanned(run: PurgeRun, datasets: Sequence[Dataset]) -> None:
    """Note every content of the data sets that has rows of the ids and that the run did not look at.

    Raises CorruptRange, Unavailable.
    """
    run.account.update_report()
    with run.steps.step("looking at what is left"):
        for page in split_batches(_contents(run, datasets)):
            _examine_contents(run, page)


def _contents(run: PurgeRun, datasets: Sequence[Dataset]) -> Iterator[_Unplanned]:
    """Yield each content that the run did not look at, once."""
    ctx = run.repo.context
    announced = ctx.locations.are_announced()
    for page in split_batches(_objects(run, ctx, datasets)):
        identities = [Address(whole.address) for whole, _ in page]
        records = ctx.locations.get_many(identities) if announced else [None] * len(page)
        for (whole, name), record in zip(page, records, strict=True):
            for address in record.addresses() if record is not None else (whole.address,):
                if (whole.dataset.name, address) not in run.account.examined:
                    yield msgspec.structs.replace(whole, content_address=address), name


def _objects(run: PurgeRun, ctx: Context, datasets: Sequence[Dataset]) -> Iterator[_Unplanned]:
    """Yield each object of the data sets once, by its firmest name."""
    lost = list(scan_lost_names(ctx, [dataset.prefix for dataset in datasets]))
    for dataset in datasets:
        seen: set[str] = set()
        outside: set[str] = set()
        below = (name for name in lost if name.path.startswith(dataset.prefix))
        for name in chain(scan_names(ctx, prefix=dataset.prefix), below):
            address, path = name.address, name.path
            if address in seen or not (is_data(dataset, path) or is_summary(dataset, path)):
                continue
            if not is_own(address):
                outside.update([address] if address and name.holder is not None else [])
                continue
            seen.add(address)
            if name.holder is HolderKind.SWEEP:  # of no plan, and looked into here
                run.account.present_datasets.add(dataset.name)
            partition = Partition(dataset, partition_of(path[len(dataset.prefix) :]))
            names = [BranchPath(name.ref, path)]
            yield PurgeObject(partition, address, 0, {}, "", None, names, address), name
        if outside:
            reason = "their data lies outside the repository; purge them where they are"
            run.account.places.append(
                RemainingPlace(
                    kind="outside",
                    dataset=dataset.name,
                    reason=reason,
                    objects=len(outside),
                    has_rows=False,
                    is_as_of_run=True,
                )
            )


def _examine_contents(run: PurgeRun, contents: Sequence[_Unplanned]) -> None:
    """Note which of the contents that are there have rows of the ids."""
    infos = run.repo.context.objects.head_many([each.content_address for each, _ in contents])
    held = legal_hold_prefixes(run.repo)
    reasons = {each.path: each.reason for each in run.account.report.skipped_objects}
    of_rows: list[tuple[PurgeObject, str]] = []
    for (purge_object, name), info in zip(contents, infos, strict=True):
        dataset = purge_object.dataset
        if name.is_open_upload:
            run.record("found", purge_object, reason=OPEN_UPLOAD_REASON)
            continue
        if info is None:
            continue
        purge_object.size_bytes = info.size_bytes
        if not run.is_selected(purge_object.partition):
            run.record("found", purge_object, reason=PARTITION_LEFT_REASON)
            continue
        if dataset.mode == KEEP_HISTORY and name.holder in (HolderKind.TAG, HolderKind.COMMIT):
            run.record("found", purge_object, reason=HISTORY_REASON)
            continue
        reason = HELD_REASON if name.path.startswith(held) else reasons.get(name.path, "")
        if name.holder is HolderKind.BRANCH and not dataset.has_branch(name.ref):
            reason = OTHER_BRANCH_REASON
        run.account.examined.add((dataset.name, purge_object.content_address))
        if dataset.mode == ERASE:
            _note_found(run, purge_object, _examine_name(run, purge_object, name.entry), reason)
        elif is_summary(dataset, name.path):
            _note_found(run, purge_object, _examine_summary(run, purge_object), reason)
        else:
            of_rows.append((purge_object, reason))
    _examine_rows(run, of_rows)


def _note_found(run: PurgeRun, purge_object: PurgeObject, result: ObjectResult, reason: str) -> None:
    if result.has_ids or result.failure:
        run.record("found", purge_object, result, reason=reason)


def _examine_name(run: PurgeRun, purge_object: PurgeObject, entry: StoredEntry | None) -> ObjectResult:
    """Look for the ids in the name and the metadata of an object of the mode `erase`."""
    dataset, path, identity = purge_object.dataset, purge_object.names[0].path, Address(purge_object.address)
    value = identifier_in_names(dataset, path, entry or StoredEntry(identity, 0, "", 0))
    if value is None and entry is None:
        return ObjectResult(address=purge_object.content_address, failure="its metadata is not known")
    (is_one,) = row_search.find_ids(run.ids.all_ids_of(dataset), [value])
    return ObjectResult(address=purge_object.content_address, matched_rows=int(is_one))


def _examine_summary(run: PurgeRun, purge_object: PurgeObject) -> ObjectResult:
    """Look for the ids in a summary file of Parquet."""
    result = ObjectResult(address=purge_object.content_address)
    try:
        return msgspec.structs.replace(result, matched_entries=int(summary_files.have_ids(run, purge_object)))
    except ObjectNotFound:
        return result
    except PurgeError as error:
        return msgspec.structs.replace(result, failure=str(error))


def _examine_rows(run: PurgeRun, contents: Sequence[tuple[PurgeObject, str]]) -> None:
    """Look for the ids in contents with rows."""
    readable: list[tuple[PurgeObject, str]] = []
    for purge_object, reason in contents:
        try:
            row_search.match_partitions(run, [purge_object])
        except Invalid as error:
            run.record("found", purge_object, reason=str(error))
            continue
        if run.partition_matches.get(purge_object.partition.watermark) is not False:
            readable.append((purge_object, reason))
    tasks = [msgspec.structs.replace(run.make_task(each), may_be_gone=True) for each, _ in readable]
    for (purge_object, reason), result in zip(readable, run.run_tasks(tasks), strict=True):
        _note_found(run, purge_object, result, reason)
