"""Find the summary files of Parquet data sets (`_metadata`, `_common_metadata`) that a run must write again, and do so.

One must be written again if it has an id, or describes a file that was replaced: then its offsets are those of the old
content. The driver does this when the files that it describes are as they will stay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import BinaryIO, cast

from refstore.core.batches import split_batches
from refstore.core.ids import is_own
from refstore.errors import Gone, InvalidName, InvalidPath, NotFound, ObjectNotFound, RefstoreError
from refstore.objects.stored_file import open_object
from refstore.operations.referenced_entries import TRASH_REF_PREFIX
from refstore.public_types import stored_entry
from refstore.records.staging_records import StoredEntry
from refstore_purge.formats import parquet_summary
from refstore_purge.formats.base import unknown_failure
from refstore_purge.formats.parquet_summary import ParquetSummary
from refstore_purge.purge_context import PurgeRun
from refstore_purge.purge_error import PurgeError
from refstore_purge.purge_plan import BranchPath, PurgeObject
from refstore_purge.reader_process import read_in_process

IsReplaced = Callable[[str], bool]
"""Returns whether a run wrote the content at an address."""


def find_stale_summaries(run: PurgeRun, summaries: Sequence[PurgeObject], is_replaced: IsReplaced) -> list[PurgeObject]:
    """Return the summary files in any version that must be written again: those that have an id, and
    those that describe replaced files at none of their names.
    """
    stale: list[PurgeObject] = []
    for purge_object, summary in _summaries(run, summaries):
        with _report_failures(run, purge_object):
            told = [_is_current(run, purge_object, summary, name, is_replaced) for name in purge_object.names]
            if _has_id(run, purge_object, summary) or (False in told and True not in told):
                stale.append(purge_object)
    return stale


def _is_current(
    run: PurgeRun, purge_object: PurgeObject, summary: ParquetSummary, name: BranchPath, is_replaced: IsReplaced
) -> bool | None:
    """Return whether a summary file describes the replaced files as they are now; None: none of them was, or the
    summary file is in the trash, where nobody reads it.
    """
    if not _is_stored(run, purge_object, name):
        return None
    entries = _entries(run, name, summary)
    results = [run.account.results.get((purge_object.dataset.name, entry.address)) for entry in entries.values()]
    if run.options.dry_run and any(result is not None and result.has_ids for result in results):
        return False  # it would be replaced
    replaced = {path: entry for path, entry in entries.items() if is_replaced(entry.address)}
    if purge_object.content_address != purge_object.address:
        replaced = entries  # a restore may have brought back what it describes no more
    if not replaced:
        return None
    return len(entries) == len(summary.files) and all(
        _describes(run, summary, path, entry) for path, entry in replaced.items()
    )


def _is_stored(run: PurgeRun, purge_object: PurgeObject, name: BranchPath) -> bool:
    try:
        return run.repo.resolve(name.branch, name.path).entry.address == purge_object.address
    except (Gone, NotFound, InvalidName):  # the trash of a branch is no ref
        return False


def have_ids(run: PurgeRun, purge_object: PurgeObject) -> bool:
    """Return whether a summary file has an id. Raises PurgeError, ObjectNotFound."""
    with _translate_read_errors():
        return _has_id(
            run, purge_object, _read_at(run, purge_object, purge_object.content_address, purge_object.size_bytes)
        )


def find_affected_summaries(
    run: PurgeRun, summaries: Sequence[PurgeObject], rewritten: Collection[BranchPath]
) -> list[PurgeObject]:
    """Return the summary files at the heads that must be written again, once these files are."""
    affected: list[PurgeObject] = []
    for purge_object, summary in _summaries(run, summaries):
        described = {
            BranchPath(name.branch, _folder(name) + path) for name in purge_object.names for path in summary.files
        }
        if _has_id(run, purge_object, summary) or not described.isdisjoint(rewritten):
            affected.append(purge_object)
    return affected


@contextmanager
def _translate_read_errors() -> Generator[None, None, None]:
    """Raise PurgeError where a library fails at a file in a way that nobody knows."""
    try:
        yield
    except (PurgeError, RefstoreError, MemoryError):
        raise
    except Exception as error:
        raise PurgeError(unknown_failure(error)) from error


@_translate_read_errors()
def rewrite_summary(
    run: PurgeRun,
    purge_object: PurgeObject,
    names: Sequence[BranchPath],
    is_replaced: IsReplaced,
    target: BinaryIO,
) -> None:
    """Write a summary file of the files that it describes at one of its names. Raises PurgeError.

    That is a name at which all of these files are there, and were uploaded as it says: at others somebody has changed
    some since it was written.
    """
    task, source = (
        run.make_task(purge_object).format_task,
        _open(run, purge_object.content_address, purge_object.size_bytes),
    )
    uploaded = _read_uploaded(run, purge_object)
    summary = _read(run, purge_object)
    complete = [name for name in names if len(_entries(run, name, summary)) == len(summary.files)]
    counts = [_count_changed(run, purge_object, name, uploaded or summary, is_replaced) for name in complete]
    # what it said when it was uploaded is gone with its backup; then some files may have been restored since
    if not counts or (min(counts) and uploaded is not None):
        raise PurgeError(
            "the files that it describes are others by now, or cannot be read; delete it, or write it again"
        )
    entries = _entries(run, complete[counts.index(min(counts))], summary)
    files = ((path, _open(run, entries[path].address, entries[path].size_bytes)) for path in summary.files)
    parquet_summary.write_summary(source, target, files, task, run.ids.ids_of(purge_object.dataset))


def _read_uploaded(run: PurgeRun, purge_object: PurgeObject) -> ParquetSummary | None:
    """Return what a summary file said when it was uploaded; None: that is gone."""
    size = (
        purge_object.size_bytes if purge_object.original_content is None else purge_object.original_content.size_bytes
    )
    try:
        return _read_at(run, purge_object, purge_object.address, size)
    except ObjectNotFound:
        return None


def _count_changed(
    run: PurgeRun, purge_object: PurgeObject, name: BranchPath, summary: ParquetSummary, is_replaced: IsReplaced
) -> int:
    """Return how many files were uploaded otherwise than a summary file says; those whose uploaded content is gone are
    not counted.
    """
    changed = 0
    shown = _entries(run, name, summary)
    for path in summary.files:
        # the heads are planned as readers see them, every version as it was uploaded
        entry = (
            shown[path]
            if purge_object.original_content is None
            else stored_entry(run.repo.resolve(_ref_of(name), _folder(name) + path).entry)
        )
        if not is_replaced(entry.address):
            with suppress(ObjectNotFound):
                changed += not _describes(run, summary, path, entry)
    return changed


def _summaries(run: PurgeRun, summaries: Sequence[PurgeObject]) -> Iterator[tuple[PurgeObject, ParquetSummary]]:
    """Yield what each summary file says; report those that cannot be read."""
    for purge_object in summaries:
        with _report_failures(run, purge_object):
            yield purge_object, _read(run, purge_object)


def _read(run: PurgeRun, purge_object: PurgeObject) -> ParquetSummary:
    """Return what a summary file says, with the files that it describes no more because they lost all of their rows: a
    restore may have brought these back.
    """
    summary = _read_at(run, purge_object, purge_object.content_address, purge_object.size_bytes)
    if purge_object.content_address == purge_object.address or (uploaded := _read_uploaded(run, purge_object)) is None:
        return summary
    return summary._replace(files={**{path: [] for path in uploaded.files}, **summary.files})


def _read_at(run: PurgeRun, purge_object: PurgeObject, address: str, size_bytes: int) -> ParquetSummary:
    """Return what one content of a summary file says."""
    read = partial(parquet_summary.read_summary, task=run.make_task(purge_object).format_task)
    ctx = run.repo.context
    return read_in_process(ctx.objects.url, ctx.safety.objects_io_seconds, address, size_bytes, read)


def _has_id(run: PurgeRun, purge_object: PurgeObject, summary: ParquetSummary) -> bool:
    return summary.has_ids(run.ids.ids_of(purge_object.dataset))


@contextmanager
def _report_failures(run: PurgeRun, purge_object: PurgeObject) -> Generator[None, None, None]:
    """Report a summary file that fails as not purged. One that is gone needs nothing."""
    try:
        with _translate_read_errors():
            yield
    except ObjectNotFound:
        return
    except PurgeError as error:
        run.record("left", purge_object, reason=str(error))


def _entries(run: PurgeRun, name: BranchPath, summary: ParquetSummary) -> dict[str, StoredEntry]:
    """Return the files that a summary file describes, by path from its folder, as a reader of this version gets them;
    without those that are not there, or lie outside the lake.
    """
    folder = _folder(name)
    found: dict[str, StoredEntry] = {}
    for page in split_batches(list(summary.files)):
        try:
            there = run.repo.stat_many(_ref_of(name), [folder + path for path in page])
        except (Gone, NotFound, InvalidPath):  # an expired commit that the rules hide; a path that no object has
            return {}
        found |= {path[len(folder) :]: stored_entry(entry) for path, entry in there.items() if is_own(entry.address)}
    return found


def _describes(run: PurgeRun, summary: ParquetSummary, path: str, entry: StoredEntry) -> bool:
    store, seconds = run.repo.context.objects, run.repo.context.safety.objects_io_seconds
    read = parquet_summary.row_groups_of
    return read_in_process(store.url, seconds, entry.address, entry.size_bytes, read) == summary.files[path]


def _ref_of(name: BranchPath) -> str:
    """Return where to look for the files that a summary file describes; of one in the trash on its branch."""
    return name.branch.removeprefix(TRASH_REF_PREFIX)


def _folder(name: BranchPath) -> str:
    return name.path.rpartition("/")[0] + "/"


def _open(run: PurgeRun, address: str, size_bytes: int) -> BinaryIO:
    return cast(BinaryIO, open_object(run.repo.context.objects, address, size_bytes))
