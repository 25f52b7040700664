"""A short look at the data sets of a document that is onboarded: has each of them objects, and its identifier?

A mistyped prefix or identifier is told at once, not by the first run. The look reads a few heads and the first few
objects below each prefix: the schema of those that have one, and others only if they are small. What it cannot look at,
it says nothing of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, BinaryIO, Final

import numpy as np

from refstore.core.ids import is_own
from refstore.purge_document.document import ERASE, Dataset
from refstore.records.staging_records import Entry
from refstore.repository import Repository
from refstore_purge import purge_tasks
from refstore_purge.dataset_results import describe_empty, describe_missing_identifier
from refstore_purge.formats.base import FormatTask, IdKind, MissingColumnError, find_column_type
from refstore_purge.formats.registry import load_format
from refstore_purge.purge_error import PurgeError
from refstore_purge.purge_plan import identifier_in_names, is_data
from refstore_purge.untyped_pandas import pa

BRANCHES: Final = 10
PATHS: Final = 200
"""How many paths of each branch are asked for an identifier in their names or metadata."""
LISTED_MAX: Final = 1000
"""How many are listed to find these: some are no data."""
OBJECTS: Final = 3
"""How many objects of a data set are opened."""
TEXT_BYTES_MAX: Final = 4 * 1024 * 1024


class _EmptyIdMatcher:
    """Ids that nothing matches, of the kind that values have."""

    def __init__(self, kind: IdKind) -> None:
        self.kind: IdKind = kind

    def matches(self, values: Any) -> Any:
        return np.zeros(len(values), dtype=np.bool_)

    def may_match(self, minimum: Any, maximum: Any) -> bool:  # noqa: ARG002  # statistics rule out every row group
        return False


def find_unmatched_datasets(repo: Repository, datasets: Sequence[Dataset]) -> list[str]:
    """Return a sentence for each data set in which a run would find no row, as far as the look tells. Raises nothing
    of what it meets in the lake.
    """
    found: list[str] = []
    for dataset in datasets:
        with suppress(Exception):  # whatever an object does to a reader, the document is set
            reason = _unmatched_reason(repo, dataset)
            if reason:
                found.append(f"data set {dataset.name!r}: {reason}; is it mistyped?")
    return found


def _unmatched_reason(repo: Repository, dataset: Dataset) -> str:
    entries = list(islice(_entries(repo, dataset), BRANCHES * PATHS))
    if not entries:
        return describe_empty(dataset, "at the heads")
    if any(identifier_in_names(dataset, path, entry) is not None for path, entry in entries):
        return ""
    if dataset.mode == ERASE:
        return describe_missing_identifier(dataset, f"none of the first {len(entries)} objects")
    own = {entry.address: entry for _, entry in entries if is_own(entry.address)}
    looks = [_has_column(repo, dataset, entry) for entry in islice(own.values(), OBJECTS)]
    answers = [has_column for has_column in looks if has_column is not None]
    return (
        describe_missing_identifier(dataset, f"none of the first {len(answers)} objects")
        if answers and not any(answers)
        else ""
    )


def _entries(repo: Repository, dataset: Dataset) -> Iterator[tuple[str, Entry]]:
    """Yield the first objects of a data set, staged ones too, at a few heads."""
    branches = (name for name, record in repo.branches() if not record.is_hidden and dataset.has_branch(name))
    for branch in islice(branches, BRANCHES):
        listed = islice(repo.list(branch, prefix=dataset.prefix), LISTED_MAX)
        data = ((path, entry) for path, entry in listed if entry is not None and is_data(dataset, path))
        yield from islice(data, PATHS)


def _has_column(repo: Repository, dataset: Dataset, entry: Entry) -> bool | None:
    """Return whether an object has the identifier; None: it does not tell. Raises PurgeError."""
    assert dataset.format is not None  # noqa: S101  # the document's check says so
    if load_format(dataset.format).schema_of is None and entry.size_bytes > TEXT_BYTES_MAX:
        return None
    return purge_tasks.read_in_process(
        repo.context, entry.address, entry.size_bytes, partial(_has_readable_column, dataset)
    )


def _has_readable_column(dataset: Dataset, source: BinaryIO) -> bool | None:
    assert dataset.format is not None  # noqa: S101  # the document's check says so
    task = FormatTask(tuple(dataset.identifier.split(".")), dataset.map_part)
    format_ = load_format(dataset.format)
    if format_.schema_of is not None:
        try:
            schema = format_.schema_of(source)
        except (pa.ArrowException, OSError, PurgeError):
            return None
        return find_column_type(schema, task.identifier, task.map_part) is not None
    kinds: tuple[IdKind, ...] = ("string", "integer")
    for kind in kinds:
        with suppress(PurgeError):  # the values are of another kind, or the file is damaged
            try:
                found = format_.find(source, task, _EmptyIdMatcher(kind))
            except MissingColumnError:
                return False
            return found.has_identifier if found.rows or found.has_identifier else None
        source.seek(0)
    return None
