"""Look with code of its own whether rows of the ids are left in the onboarded data sets.

    verify.py                  which objects have rows of the ids, or could not be looked at
    verify_objects.py          the objects, at the heads or in every version
    verify_names.py            whether their paths or metadata tell the identifier
    verify_reader_process.py   objects, read in a process of its own, which may crash
    verify_rows.py             one object: what stands at the identifier
    verify_columns.py          Parquet and ORC
    verify_avro.py             Avro; `verify_avro_file.py` its blocks, `verify_avro_schema.py` its schema
    verify_file_metadata.py    what stands beside the rows: metadata, and summary files of Parquet
    verify_footer.py           the footer of Parquet
    verify_text.py             CSV and JSON lines, and their compression
    verify_ids.py              the lookup of ids
    verify_table.py            the table of ids

It shares with a run only the document, how the form of a table of ids is told, how Parquet is opened whose other
columns pyarrow has no types for, and what a file may cost (`file_allowance.py`). It never assumes an answer: what it
did not read, or does not understand as a run does, is listed with the reason.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from refstore.core.batches import split_sized
from refstore.errors import Invalid, ObjectsRefused, RefstoreError, Unavailable
from refstore.purge_document.document import ERASE, KEEP_HISTORY, Dataset
from refstore.repository import Repository
from refstore_gc.engines import worker_processes
from refstore_gc.run_progress import ReportProgress, StepProgress, ignore_progress
from refstore_purge.ids_file import IdsFile
from refstore_purge.verify_file_metadata import is_summary
from refstore_purge.verify_ids import RowCount, WantedIds
from refstore_purge.verify_names import describe_other_case, find_doubt, find_value_in_names
from refstore_purge.verify_objects import (
    VerifyTarget,
    branch_names,
    count_commits,
    find_replaced_content,
    scan_head_targets,
    scan_version_targets,
)
from refstore_purge.verify_reader_process import ContentToVerify, check_identifier_type, read_contents
from refstore_purge.verify_table import read_ids

GROUP_BYTES: Final = 128 * 1024 * 1024
GROUP_OBJECTS: Final = 500
GROUPS_WAITING: Final = 2 * (os.cpu_count() or 1)
PLACES: Final = 5
"""So many places beside the rows of an object are named."""
RETRIES_MAX: Final = 3
"""How often an object is read, at most, that another run replaces meanwhile."""
IGNORE_STATISTICS: Final = (
    "the statistics of the file exclude ids that are in it; if a run left them, run again with --ignore-statistics"
)


class RowFinding(NamedTuple):
    """An object that has rows of the ids, or ids beside the rows, or that could not be looked at."""

    ref: str
    path: str
    rows: int
    """How many are left."""
    entries: int
    """How many entries of its metadata, and statistics of a summary file, have an id. With no rows, and no entries:
    nobody could look.
    """
    reason: str
    """Why nobody could look, where ids stand beside the rows, or why a run does not find the rows; '': there is nothing
    to say. With no ref, and the prefix of a data set as the path: why none of its rows was looked at.
    """


@dataclass(slots=True)
class VerifyCounts:
    """How much was looked at, and what was found."""

    objects: int = 0
    """Distinct objects that were looked at, whether by their names or by their content."""
    versions: int = 0
    """Commits; where only heads are looked at, branches."""
    remaining_rows: int = 0
    remaining_entries: int = 0
    """Entries of metadata, and statistics of summary files, that have an id."""
    affected_objects: int = 0
    """Distinct objects that have these rows or entries."""
    unexamined_objects: int = 0
    """Distinct objects."""
    unexamined_datasets: int = 0
    """Those that have no object, or of which no object has the identifier: nobody looked at a row of theirs."""


@dataclass(slots=True)
class _DatasetCheck:
    """What is known of a data set."""

    is_empty: bool = True
    """Whether nothing lies below its prefix; what was erased counts."""
    lacks_identifier: bool = False
    """Whether an object has rows, and no identifier in any of them; of the mode `erase`, none in its names."""
    has_identifier: bool = False
    """Whether an object has it."""

    def note_names(self, dataset: Dataset, value: str | None) -> None:
        """Note an object by its names. `value`: the identifier's, if they tell it."""
        self.is_empty = False
        self.has_identifier |= value is not None
        self.lacks_identifier |= value is None and dataset.mode == ERASE

    def note_rows(self, look: _ObjectCheck) -> None:
        """Note an object whose rows were looked at."""
        if look.dataset.mode != ERASE and look.value is None and not look.reason:
            self.has_identifier |= look.count.has_identifier is True
            self.lacks_identifier |= look.count.has_identifier is False

    def describe(self, dataset: Dataset) -> str:
        """Return why none of its rows was looked at; '': some were, or none is there."""
        if self.is_empty:
            return f"nothing lies below {dataset.prefix}; is it mistyped?"
        if self.lacks_identifier and not self.has_identifier:
            return f"no object has the identifier {dataset.path or dataset.identifier}; is it mistyped?"
        return ""


@dataclass(slots=True)
class _ObjectCheck:
    """What becomes of one distinct object."""

    dataset: Dataset
    target: VerifyTarget
    value: str | None
    """The identifier's, if its names tell it: a folder, the path, or the metadata."""
    names: dict[tuple[str, str], None]
    """Under which it is listed: (ref, path)."""
    is_of_id: bool = False
    """Whether this value is one of the ids."""
    count: RowCount = field(default_factory=RowCount)
    other_case: str = ""
    """A folder whose name is the identifier in another case."""
    reason: str = ""
    """Why it could not be looked at."""


def verify(
    repo: Repository,
    file: Path,
    *,
    column: str = "",
    dataset_column: str = "",
    delimiter: str = ",",
    no_header: bool = False,
    empty_id: bool = False,
    id_type: str = "",
    only: Sequence[str] = (),
    history: bool = False,
    counts: VerifyCounts | None = None,
    report_progress: ReportProgress = ignore_progress,
    print_notice: Callable[[str], None] = lambda _: None,
) -> Iterator[RowFinding]:
    """Yield the objects of every branch, staged ones too, that have rows of the ids, or ids beside the rows, or should
    be erased, or could not be looked at. Of data sets of the modes `rewrite` and `erase`, and with `history` of all,
    also those of every commit that can be read or unmarked; of these two modes, also those in the undo trash. Each
    distinct object is read once. Yield, too, the data sets of which no row was looked at. `counts` is filled on the
    way.

    `only`: names of data sets; none given: all that have ids. `print_notice`: is told which ids were read.

    Raises Invalid (the ids), NotFound (nothing is onboarded), Unavailable.
    """
    counts = counts if counts is not None else VerifyCounts()
    document = repo.purge_document().document
    ids = read_ids(
        IdsFile(file, column, dataset_column, delimiter, has_header=not no_header, takes_empty_id=empty_id),
        id_type=id_type,
        datasets=[dataset.name for dataset in document.onboarded_datasets],
    )
    chosen = document.select_datasets(only)
    datasets = [each for each in chosen if ids.ids_of(each.name) is not None]
    if not datasets:
        raise Invalid(f"{file.name} has no ids of the data sets that --dataset names; give others, or leave it out")
    others = ", ".join(each.name for each in chosen if each not in datasets)
    print_notice(f"ids: {ids.text}" + (f"; not looked at, without ids: {others}" if others else ""))
    deep = [dataset for dataset in datasets if history or dataset.mode != KEEP_HISTORY]
    counts.versions = count_commits(repo.context) if deep else len(branch_names(repo))
    shown = _CheckProgress(report_progress)
    with worker_processes.stop_new_after():
        if any(dataset.mode != ERASE for dataset in datasets):
            worker_processes.start_ahead([read_contents.__module__])
        with ThreadPoolExecutor(os.cpu_count() or 1, "refstore-verify") as pool:
            for dataset in datasets:
                wanted = ids.ids_of(dataset.name)
                assert wanted is not None  # noqa: S101  # the others were left out above
                targets = scan_version_targets(repo, dataset) if dataset in deep else scan_head_targets(repo, dataset)
                check = _DatasetCheck()
                looks = _check_types(repo, _distinct_objects(dataset, targets, wanted, check))
                for look in _examine_all(repo, pool, looks, wanted, shown):
                    check.note_rows(look)
                    yield from _findings(look, counts)
                if reason := check.describe(dataset):
                    counts.unexamined_datasets += 1
                    yield RowFinding("", dataset.prefix, 0, 0, reason)


def _check_types(repo: Repository, looks: Iterator[_ObjectCheck]) -> Iterator[_ObjectCheck]:
    """Yield the looks. Raises Invalid if the first object that is read shows that no id can be at the identifier."""
    is_checked = False
    for look in looks:
        if not is_checked and look.dataset.mode != ERASE and look.value is None and not look.reason:
            is_checked = check_identifier_type(repo.context, _content_to_verify(look))
        yield look


def _findings(look: _ObjectCheck, counts: VerifyCounts) -> Iterator[RowFinding]:
    """Yield what is to be said of an object, under each of its names."""
    counts.objects += not look.reason
    counts.unexamined_objects += bool(look.reason)
    rows, entries = look.count.rows, len(look.count.id_places)
    counts.affected_objects += bool(rows or entries)
    counts.remaining_rows += rows
    counts.remaining_entries += entries
    told = "; ".join(
        filter(None, (IGNORE_STATISTICS * look.count.is_excluded, _describe_id_places(look.count.id_places)))
    )
    for ref, path in look.names:
        if rows or entries:
            yield RowFinding(ref, path, rows, entries, told)
        if look.reason:
            yield RowFinding(ref, path, 0, 0, look.reason)


def _describe_id_places(beside: Sequence[str]) -> str:
    """Return where ids stand beside the rows."""
    places = list(dict.fromkeys(beside))
    more = f", and in {len(places) - PLACES} more places" if len(places) > PLACES else ""
    return f"an id stands in {', '.join(places[:PLACES])}{more}" if places else ""


def _distinct_objects(
    dataset: Dataset, targets: Iterator[VerifyTarget], ids: WantedIds, check: _DatasetCheck
) -> Iterator[_ObjectCheck]:
    """Yield each distinct object of a data set once; its further names are told to the first look."""
    looks: dict[tuple[str, str | None, str, bool], _ObjectCheck] = {}
    for target in targets:
        value, other_case = find_value_in_names(dataset, target)
        describes_others = is_summary(dataset, target.path)
        check.note_names(dataset, value)
        if not target.content:
            continue  # erased
        key = target.content, value, other_case, describes_others
        known = looks.get(key)
        if known is not None:
            known.names[target.ref, target.path] = None
            continue
        reason = find_doubt(dataset, value, other_case, ids)
        looks[key] = _ObjectCheck(
            dataset, target, value, {(target.ref, target.path): None}, other_case=other_case, reason=reason
        )
        yield looks[key]


class _CheckProgress:
    """Shows how many objects were looked at."""

    def __init__(self, report_progress: ReportProgress) -> None:
        self._tell = report_progress
        self._began = time.monotonic()
        self._done = 0

    def add(self, done: int) -> None:
        self._done += done
        self._tell(StepProgress("looking at objects", self._done, None, time.monotonic() - self._began))


def _examine_all(
    repo: Repository, pool: ThreadPoolExecutor, looks: Iterator[_ObjectCheck], ids: WantedIds, shown: _CheckProgress
) -> Iterator[_ObjectCheck]:
    """Yield the looks when all are over, and all of their names are known. A thread looks at some objects at a time."""
    every: list[_ObjectCheck] = []
    waiting: deque[Future[int]] = deque()
    for group in _groups(looks, ids):
        every += group
        waiting.append(pool.submit(_examine_objects, repo, group, ids))
        while len(waiting) > GROUPS_WAITING:
            shown.add(waiting.popleft().result())
    for future in waiting:
        shown.add(future.result())
    yield from every


def _examine_objects(repo: Repository, looks: Sequence[_ObjectCheck], ids: WantedIds) -> int:
    """Look at some objects; return how many. Raises Unavailable."""
    to_read: list[_ObjectCheck] = []
    for look, is_of_id in zip(looks, ids.find_ids([look.value for look in looks]), strict=True):
        look.is_of_id = is_of_id
        if look.reason or (look.value is not None and not is_of_id):
            continue  # the value in its names tells
        if look.dataset.mode == ERASE:
            look.count.rows += is_of_id
        else:
            to_read.append(look)
    waiting = to_read
    for _ in range(RETRIES_MAX):
        results = read_contents(repo.context, [_content_to_verify(look) for look in waiting], ids)
        for look, result in zip(waiting, results, strict=True):
            look.count, look.reason = result.count, result.reason
        missing = [look for look, result in zip(waiting, results, strict=True) if not result.is_there]
        waiting = [look for look in missing if _is_still_readable(repo, look)]
    for look in waiting:
        look.reason = "its content was replaced again and again; run verify again"
    for look in to_read:
        if look.other_case and (look.reason or look.count.rows_without_identifier):
            look.reason = f"{look.reason or 'rows have no identifier'}; {describe_other_case(look.other_case)}"
    return len(looks)


def _content_to_verify(look: _ObjectCheck) -> ContentToVerify:
    describes_others = is_summary(look.dataset, look.target.path)
    return ContentToVerify(look.dataset, look.target.content, look.target.size_bytes, look.is_of_id, describes_others)


def _is_still_readable(repo: Repository, look: _ObjectCheck) -> bool:
    """Return whether somebody can still read what was not there, wherever it lies by now. Raises Unavailable."""
    try:
        target = find_replaced_content(repo, look.target)
    except RefstoreError as error:
        if isinstance(error, Unavailable) and not isinstance(error, ObjectsRefused):
            raise
        look.reason = str(error)
        return False
    if target is None or not target.content:
        return False
    look.target = target
    return True


def _groups(looks: Iterator[_ObjectCheck], ids: WantedIds) -> Iterator[list[_ObjectCheck]]:
    """Yield groups that are worth the table that Arrow makes of the ids for each."""
    size_max, items_max = max(GROUP_BYTES, ids.values.nbytes), max(GROUP_OBJECTS, len(ids.values) // GROUP_OBJECTS)

    def size_of(look: _ObjectCheck) -> int:
        return look.target.size_bytes if look.value is None else 0

    return split_sized(looks, size_of, size_max=size_max, items_max=items_max)
