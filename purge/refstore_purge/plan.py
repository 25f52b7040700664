"""Plan a run: which objects of the heads belong to an onboarded data set, by partition; and what is left alone.

Hidden files (`_SUCCESS`, `.part.crc`) are no data. Everything else below a data set's prefix is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import unquote

import msgspec

from refstore.core.ids import is_own
from refstore.core.records import Entry
from refstore.errors import BranchNotFound, Invalid
from refstore.purging.document import KEEP_HISTORY, Dataset
from refstore.repository import Repository

_TABLES: Final = (
    ("_delta_log/", "Delta", "`DELETE FROM`, then `VACUUM`"),
    ("metadata/", "Iceberg", "a row-level `DELETE`, then `expire_snapshots`"),
)
_ICEBERG: Final = ".metadata.json"


class Name(NamedTuple):
    """A path on a branch."""

    branch: str
    path: str


class Piece(msgspec.Struct):
    """One distinct object of a data set, and every name that it has there."""

    address: str
    size_bytes: int
    metadata: dict[str, str]
    content_type: str
    names: list[Name]


class Unit(msgspec.Struct):
    """One partition of a data set."""

    dataset: Dataset
    partition: str
    """'' for what lies in no partition folder."""
    pieces: dict[str, Piece]
    """By address."""
    has_two_values: set[str] = msgspec.field(default_factory=set[str])
    """Addresses of objects that lie in partitions with other values of the identifier, too: they are left alone."""

    @property
    def order(self) -> tuple[str, str]:
        return self.dataset.prefix, self.partition

    @property
    def identifier_value(self) -> str | None:
        """The identifier's value, if a partition folder has it; else None."""
        return value_of(self.dataset, self.partition)


class NotPurged(msgspec.Struct, frozen=True):
    """An object that the run leaves alone."""

    branch: str
    path: str
    reason: str


class Plan(NamedTuple):
    heads: dict[str, str]
    """The commit at which each branch was looked at."""
    units: list[Unit]
    """In order of prefix and partition."""
    not_purged: list[NotPurged]


def plan(repo: Repository, datasets: Sequence[Dataset], *, branches: Collection[str] | None = None) -> Plan:
    """Look at the heads of all branches, or of these. Raises Invalid for a table of Delta or Iceberg."""
    retention = repo.retention()
    held = [hold.prefix for hold in retention.rules.legal_holds] if retention is not None else []
    units: dict[tuple[str, str], Unit] = {}
    places: dict[str, Unit] = {}
    """By address: an object is in the unit of the first name that is seen."""
    not_purged: list[NotPurged] = []
    heads: dict[str, str] = {}
    for branch, record in list(repo.branches()):
        if record.hidden or (branches is not None and branch not in branches):
            continue
        for dataset in datasets:
            if dataset.mode != KEEP_HISTORY or not dataset.has_branch(branch):
                continue
            heads[branch] = record.head
            for path, entry in _below(repo, record.head, dataset):
                if not is_own(entry.address):
                    not_purged.append(NotPurged(branch, path, "foreign: its data lies outside the repository"))
                    continue
                if any(path.startswith(prefix) for prefix in held):
                    not_purged.append(NotPurged(branch, path, "a legal hold covers it"))
                    continue
                partition = partition_of(path[len(dataset.prefix) :])
                known = places.get(entry.address)
                if known is None:
                    known = units.setdefault((dataset.prefix, partition), Unit(dataset, partition, {}))
                    places[entry.address] = known
                    known.pieces[entry.address] = Piece(
                        entry.address, entry.size_bytes, entry.metadata, entry.content_type, []
                    )
                elif known.identifier_value != value_of(dataset, partition):
                    reason = f"the same object lies in partition {known.partition!r}, of another {dataset.identifier}"
                    not_purged.append(NotPurged(branch, path, f"{reason}; upload it anew in one of the two"))
                    known.has_two_values.add(entry.address)
                elif _task(known.dataset) != _task(dataset):
                    reason = f"data set {known.dataset.name!r} has the same object, and is purged in another way"
                    not_purged.append(NotPurged(branch, path, reason))
                known.pieces[entry.address].names.append(Name(branch, path))
            with suppress(BranchNotFound):  # it has just been deleted
                not_purged += list(_staged(repo, branch, dataset))
    for unit in units.values():
        for address in unit.has_two_values:
            del unit.pieces[address]
    return Plan(heads, sorted(units.values(), key=lambda unit: unit.order), not_purged)


def partition_of(below: str) -> str:
    """Return the partition of a path below its data set: its leading folders of the form `key=value`."""
    folders: list[str] = []
    for folder in below.split("/")[:-1]:
        if "=" not in folder.strip("="):
            break
        folders.append(folder)
    return "/".join(folders)


def value_of(dataset: Dataset, partition: str) -> str | None:
    """Return the identifier's value in a partition, as Hive writes it (`%` and two hexadecimal digits for what a path
    cannot have); None: no folder has the identifier's name, so a column has it.
    """
    for folder in partition.split("/"):
        name, equals, value = folder.partition("=")
        if equals and unquote(name) == dataset.identifier:
            return unquote(value)
    return None


def _task(dataset: Dataset) -> tuple[object, ...]:
    return dataset.format, dataset.identifier, dataset.map_part, dataset.set_null


def _below(repo: Repository, commit: str, dataset: Dataset) -> Iterator[tuple[str, Entry]]:
    for path, entry in repo.list(commit, prefix=dataset.prefix):
        if entry is None:
            continue
        below = path[len(dataset.prefix) :]
        _refuse_tables(dataset, below)
        if not below.rpartition("/")[2].startswith(("_", ".")):
            yield path, entry


def _refuse_tables(dataset: Dataset, below: str) -> None:
    for folder, table, way in _TABLES:
        if f"/{folder}" in f"/{below}" and (table != "Iceberg" or below.endswith(_ICEBERG)):
            raise Invalid(
                f"data set {dataset.name!r} holds a table of {table}, which records the sizes of its files: rewritten "
                f"files would break its readers. Purge it with {table}'s own means: {way}"
            )


def _staged(repo: Repository, branch: str, dataset: Dataset) -> Iterator[NotPurged]:
    """Yield what is staged below a data set: it is not committed yet, so no run can replace it by a commit."""
    for change in repo.diff(branch, prefix=dataset.prefix):
        yield NotPurged(branch, change.path, "staged: commit it, then run the purge again")
