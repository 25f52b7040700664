"""Look whether rows of the ids are left in the onboarded data sets, by other readers than those of a run.

    verify_datasets.py         which objects have rows of the ids, or could not be looked at
    verify_objects.py          the objects, at the heads or in every version, and what their names tell
    verify_reader_process.py   one object, read in a process of its own, which may crash
    verify_text.py             CSV and JSON lines; `verify_avro.py` Avro; `verify_parquet.py` Parquet
    verify_columns.py          ORC, and columns of Arrow
    verify_ids.py              the ids, looked up in values and in metadata

It shares with a run the document, the table of ids, the list of places, and what a file may cost. It never assumes an
answer: what it did not read, or what its readers do not know, is listed with the reason.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core.batches import split_batches
from refstore.core.step_progress import ReportProgress, StepProgress, ignore_progress
from refstore.errors import Invalid
from refstore.purge_document.document import ERASE, KEEP_HISTORY, Dataset
from refstore.repository import Repository
from refstore_gc.engines import worker_processes
from refstore_purge.ids_file import IdsFile, ids_folder, load_ids
from refstore_purge.object_holders import is_never_landed
from refstore_purge.purge_plan import is_summary
from refstore_purge.verify_ids import HIVE_NULL, INTEGER, ObjectFindings, RowSearch, WantedIds
from refstore_purge.verify_objects import VerifyTarget, find_contents, find_value_in_names, scan_targets
from refstore_purge.verify_reader_process import read_content

TRIES: Final = 3
"""How often an object is read, at most, that a run replaces meanwhile."""
PLACES: Final = 5
"""So many places beside the rows of an object are named."""
NOT_THERE: Final = (
    "its content is not in the store; verify again, and if it stays, do not run any collection: report it"
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
    """Why nobody could look, or where ids stand beside the rows. With no ref, and the prefix of a data set as the path:
    why none of its rows was looked at.
    """


@dataclass(slots=True)
class VerifyReport:
    """How much was looked at, and what was found, in distinct objects."""

    objects: int = 0
    """Those that were looked at, whether by their names or by their content."""
    remaining_rows: int = 0
    remaining_entries: int = 0
    affected_objects: int = 0
    """Those that have these rows or entries."""
    unexamined_objects: int = 0
    unexamined_datasets: int = 0
    """Those that have no object, or of which no object has the identifier: nobody looked at a row of theirs."""
    findings: list[RowFinding] = field(default_factory=list[RowFinding])
    """What is left, and what could not be looked at, under each of its names. Empty: nothing is left."""


def verify_datasets(
    repo: Repository,
    file: IdsFile,
    *,
    id_type: str = "",
    only: Sequence[str] = (),
    history: bool = False,
    report_progress: ReportProgress = ignore_progress,
    print_notice: Callable[[str], None] = lambda _: None,
) -> VerifyReport:
    """Find the objects of every branch, staged ones and those of open transactions too, that have rows of the ids, or
    ids beside the rows, or should be erased, or could not be looked at. Of data sets of the modes `rewrite` and
    `erase`, and with `history` of all, also those of every commit that can be read or unmarked; of these two modes,
    also those in the undo trash. Each distinct object is read once. Find, too, the data sets of which no row was looked
    at.

    `only`: names of data sets; none given: all that have ids. `print_notice`: is told which ids were read.

    Raises Invalid (the ids), NotFound (nothing is onboarded), Unavailable.
    """
    report = VerifyReport()
    document, began, done = repo.purge_document().document, time.monotonic(), 0
    known = [dataset.name for dataset in document.onboarded_datasets]
    with ids_folder() as folder, worker_processes.stop_new_after():
        ids = load_ids(file, folder, id_type=id_type, datasets=known)
        chosen = document.select_datasets(only)
        datasets = [each for each in chosen if each.name in ids.sets or "" in ids.sets]
        if not datasets:
            raise Invalid(f"{file.name} has no ids of what --dataset names; give others, or leave it out")
        others = ", ".join(each.name for each in chosen if each not in datasets)
        print_notice(f"ids: {ids.text}" + (f"; not looked at, without ids: {others}" if others else ""))
        if any(dataset.mode != ERASE for dataset in datasets):
            worker_processes.start_ahead([read_content.__module__])
        wanted = {name: WantedIds.prepare(folder, prefix, is_named=bool(name)) for name, prefix in ids.sets.items()}
        with ThreadPoolExecutor(os.cpu_count() or 1, "refstore-verify") as pool:
            for dataset in datasets:
                check = _DatasetCheck(repo.context, dataset, wanted.get(dataset.name) or wanted[""])
                is_deep = history or dataset.mode != KEEP_HISTORY
                for amount in check.examine(pool, scan_targets(repo.context, dataset, is_deep=is_deep)):
                    done += amount
                    elapsed = timedelta(seconds=time.monotonic() - began)
                    report_progress(StepProgress(repo.name, "looking at objects", done, elapsed=elapsed))
                report.findings += check.list_findings(report)
    return report


@dataclass(slots=True)
class _ObjectCheck:
    """What becomes of one distinct object."""

    target: VerifyTarget
    value: str | None
    """The identifier's, if its names tell it: a folder, the path, or the metadata."""
    other_case: str
    """A folder whose name is the identifier in another case."""
    describes_others: bool
    names: dict[tuple[str, str], None] = field(default_factory=dict[tuple[str, str], None])
    """Under which it is listed: (ref, path)."""
    findings: ObjectFindings = field(default_factory=ObjectFindings)


class _DatasetCheck:
    """Looks at the objects of a data set."""

    def __init__(self, ctx: Context, dataset: Dataset, ids: WantedIds) -> None:
        self._ctx, self._dataset, self._ids = ctx, dataset, ids
        self._objects: dict[tuple[str, str | None, str, bool], _ObjectCheck] = {}
        """Each distinct one; objects of one content differ if their names tell something else."""

    def examine(self, pool: ThreadPoolExecutor, targets: Iterator[VerifyTarget]) -> Iterator[int]:
        """Read each distinct object in the pool; yield now and then how many. Raises Unavailable."""
        for page in split_batches(self._distinct_objects(targets)):
            for each, findings in zip(page, pool.map(self._examine_object, page), strict=True):
                each.findings = findings
            yield len(page)

    def _distinct_objects(self, targets: Iterator[VerifyTarget]) -> Iterator[_ObjectCheck]:
        for target in targets:
            describes_others = is_summary(self._dataset, target.path)
            if target.path.rpartition("/")[2].startswith(("_", ".")) and not describes_others:
                continue  # it is no data
            key = (target.content, *find_value_in_names(self._dataset, target), describes_others)
            is_new = key not in self._objects
            check = self._objects.setdefault(key, _ObjectCheck(target, *key[1:]))
            check.names[target.ref, target.path] = None
            if is_new:
                yield check

    def _examine_object(self, check: _ObjectCheck) -> ObjectFindings:
        """Return what is known of an object by its names, or else by its content. Raises Unavailable."""
        value, target, dataset = check.value, check.target, self._dataset
        is_of_id = value is not None and value != HIVE_NULL and self._ids.is_name_of_id(value)
        findings = ObjectFindings(has_identifier=None if value is None else True)
        if not target.content:  # it was erased
            return findings
        findings.reason = self._describe_doubt(check)
        if dataset.mode == ERASE:
            findings.rows, findings.has_identifier = int(is_of_id), value is not None
        elif not findings.reason and (value is None or is_of_id):
            findings = self._read(check, is_of_id=is_of_id)
            if check.other_case and (findings.reason or findings.has_rows_without_identifier):
                findings.reason = "; ".join(filter(None, (findings.reason, _describe_case(check.other_case))))
        return findings

    def _read(self, check: _ObjectCheck, *, is_of_id: bool) -> ObjectFindings:
        """Return what its content has, wherever a run moves it meanwhile. Raises Unavailable."""
        address, size_bytes, findings = check.target.content, check.target.size_bytes, ObjectFindings()
        for _ in range(TRIES):
            search = RowSearch(self._dataset, self._ids, is_of_id)
            findings = read_content(self._ctx, address, size_bytes, search, describes_others=check.describes_others)
            if findings.is_there:
                return findings
            ((now, size_bytes),) = find_contents(self._ctx, [check.target.entry])
            may_be_gone = check.target.may_be_gone or is_never_landed(self._ctx, check.target.ref)
            if not now or (now == address and may_be_gone):
                return ObjectFindings(has_identifier=None)  # it was erased or deleted meanwhile
            address = now
        findings.reason = NOT_THERE
        return findings

    def _describe_doubt(self, check: _ObjectCheck) -> str:
        """Return why the names of an object do not tell whose it is; '': they do, or need not."""
        name, value = self._dataset.identifier, check.value
        if self._dataset.mode == ERASE:
            return _describe_case(check.other_case) if check.other_case else ""
        if value is not None and "\ufffd" in value:
            return f"the value of {name!r} in its path is no UTF-8"
        if value in (None, HIVE_NULL) or self._ids.kind != "integer" or INTEGER.fullmatch(value.encode()):
            return ""
        return f"the value of {name!r} in its path is no integer, and the ids are integers"

    def list_findings(self, report: VerifyReport) -> Iterator[RowFinding]:
        """Yield what is to be said of the objects, under each of their names, and count them."""
        for check in self._objects.values():
            rows, places, reason = check.findings.rows, check.findings.id_places, check.findings.reason
            report.objects += bool(check.target.content and not reason)
            report.unexamined_objects += bool(reason)
            report.affected_objects += bool(rows or places)
            report.remaining_rows += rows
            report.remaining_entries += len(places)
            for ref, path in check.names:
                if rows or places:
                    yield RowFinding(ref, path, rows, len(places), _describe_id_places(places))
                if reason:
                    yield RowFinding(ref, path, 0, 0, reason)
        prefix, name = self._dataset.prefix, self._dataset.path or self._dataset.identifier
        have = {check.findings.has_identifier for check in self._objects.values() if not check.findings.reason}
        lacks_identifier = False in have and True not in have
        if lacks_identifier or not self._objects:
            report.unexamined_datasets += 1
            told = f"no object has the identifier {name}" if lacks_identifier else f"nothing lies below {prefix}"
            yield RowFinding("", prefix, 0, 0, f"{told}; is it mistyped?")


def _describe_case(name: str) -> str:
    return f"{name!r} in its path or metadata is the identifier in another case"


def _describe_id_places(beside: Sequence[str]) -> str:
    """Return where ids stand beside the rows."""
    places = list(dict.fromkeys(beside))
    more = f", and in {len(places) - PLACES} more places" if len(places) > PLACES else ""
    return f"an id stands in {', '.join(places[:PLACES])}{more}" if places else ""
