"""Plan a run: which objects belong to an onboarded data set, by partition; and what is left alone.

Hidden files (`_SUCCESS`, `.part.crc`) are no data. Everything else below a data set's prefix is. The summary files of
Parquet (`_metadata`) are planned apart, because they follow the data. `plan_heads` looks at the heads;
`version_plan.py` at every version.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import unquote

import msgspec

from refstore.core.ids import is_own
from refstore.core.records import Content, Entry
from refstore.errors import BranchNotFound
from refstore.purging.document import ERASE, Dataset
from refstore.repository import Repository
from refstore_purge import tables
from refstore_purge.formats.registry import format_of


class Name(NamedTuple):
    """A path on a branch."""

    branch: str
    """Or a commit, or 'trash of' a branch, where every version is looked at."""
    path: str


class Piece(msgspec.Struct):
    """One distinct object of a data set, and every name that it has there."""

    address: str
    """That commits name."""
    size_bytes: int
    """Of its content."""
    metadata: dict[str, str]
    content_type: str
    names: list[Name]
    """Of an object in many versions: the first one."""
    content: str = ""
    """Where its content lies; at its address, unless a run has replaced it."""
    value: str | None = None
    """The identifier's value, if the object's names or metadata tell it."""
    original: Content | None = None
    """Its content as it was uploaded, where every version is looked at."""


class Unit(msgspec.Struct):
    """One partition of a data set."""

    dataset: Dataset
    partition: str
    """'' for what lies in no partition folder."""
    pieces: dict[str, Piece]
    """By address."""

    @property
    def order(self) -> tuple[str, str]:
        return self.dataset.prefix, self.partition

    @property
    def watermark(self) -> str:
        """What a later run is given to leave out the partitions up to this one."""
        return f"{self.dataset.prefix}{self.partition}"

    @property
    def identifier_value(self) -> str | None:
        """The identifier's value, if a partition folder has it; else None."""
        return value_of(self.dataset, self.partition)


class NotPurged(msgspec.Struct, frozen=True):
    """An object that the run leaves alone."""

    branch: str
    """Or a commit, or 'trash of' a branch, where every version is looked at."""
    path: str
    reason: str


class Plan(NamedTuple):
    heads: dict[str, str]
    """The commit at which each branch was looked at."""
    units: list[Unit]
    """In order of prefix and partition."""
    not_purged: list[NotPurged]
    summaries: Sequence[Unit] = ()
    """The summary files of Parquet data sets, of all partitions."""
    seen: frozenset[str] = frozenset()
    """The data sets below whose prefix anything lies."""
    identified: frozenset[str] = frozenset()
    """The data sets of which any name or metadata has the identifier."""
    is_of_versions: bool = False
    """Whether every version was looked at, not the heads."""


class Planner:
    """Sorts objects into units as they are seen."""

    def __init__(self, repo: Repository, ids: Mapping[str, str], *, replaces_content: bool = False) -> None:
        """`ids`: which set of ids each data set has. `replaces_content`: what is purged changes under all names that an
        object has.
        """
        self._ids = ids
        self._replaces_content = replaces_content
        self.held_prefixes = held_prefixes(repo)
        self.not_purged: list[NotPurged] = []
        self._units: dict[tuple[str, str], Unit] = {}
        self._places: dict[str, Unit] = {}
        """By address: an object is in the unit of the first name that is seen."""
        self._told: set[tuple[str, str]] = set()
        """(path, address) of what is left alone, so that many versions of it are told once."""
        self._left_alone: set[str] = set()
        """Addresses that no unit may have, whatever other names they have."""
        self._seen: set[str] = set()
        self._identified: set[str] = set()

    def add(self, dataset: Dataset, name: Name, entry: Entry, *, is_held: bool) -> Piece | None:
        """Return the entry's object; None: it is left alone, and the reason is written down."""
        path = name.path
        self.note(dataset)
        if not is_own(entry.address):
            if entry.address:  # else it was erased
                self._tell(entry.address, name, "foreign: its data lies outside the repository")
            return None
        if is_held:
            self._tell(entry.address, name, "a legal hold covers it")
            return None
        partition = partition_of(path[len(dataset.prefix) :])
        value = value_in(dataset, path, entry)
        if value is not None:
            self._identified.add(dataset.name)
        known = self._places.get(entry.address)
        if known is None:
            known = self._units.setdefault((dataset.prefix, partition), Unit(dataset, partition, {}))
            self._places[entry.address] = known
            known.pieces[entry.address] = Piece(
                entry.address, entry.size_bytes, entry.metadata, entry.content_type, [], entry.address, value
            )
        elif known.pieces[entry.address].value != value:
            place = f"in partition {known.partition!r}" if known.partition else "elsewhere in it"
            reason = f"the same object lies {place}, of another {dataset.identifier}"
            self.leave(entry.address, name, f"{reason}; upload it anew in one of the two")
        elif self._ids[known.dataset.name] != self._ids[dataset.name]:
            reason = f"data set {known.dataset.name!r} has the same object, and other ids"
            self.leave(entry.address, name, f"{reason}; upload it anew in one of the two")
        elif _task(known.dataset) != _task(dataset):
            reason = f"data set {known.dataset.name!r} has the same object, and is purged in another way"
            if self._replaces_content:
                self._left_alone.add(entry.address)
            self._tell(entry.address, name, reason)
        return known.pieces[entry.address]

    def note(self, dataset: Dataset) -> None:
        """Note that something lies below a data set's prefix."""
        self._seen.add(dataset.name)

    def leave(self, address: str, name: Name, reason: str) -> None:
        """Leave an object alone, under all of its names."""
        self._left_alone.add(address)
        self._tell(address, name, reason)

    def _tell(self, address: str, name: Name, reason: str) -> None:
        if not self._replaces_content or (name.path, address) not in self._told:
            self._told.add((name.path, address))
            self.not_purged.append(NotPurged(*name, reason))

    def plan(self, heads: dict[str, str], summaries: Planner, *, is_of_versions: bool = False) -> Plan:
        """Return what was sorted, with the summary files that another one sorted."""
        return Plan(
            heads,
            self.units(),
            [*self.not_purged, *summaries.not_purged],
            summaries.units(),
            frozenset(self._seen),
            frozenset(self._identified),
            is_of_versions,
        )

    def units(self) -> list[Unit]:
        """Return the units in order of prefix and partition."""
        for address in self._left_alone.intersection(self._places):
            self._places[address].pieces.pop(address, None)
        return sorted((unit for unit in self._units.values() if unit.pieces), key=lambda unit: unit.order)


def plan_heads(
    repo: Repository, datasets: Sequence[Dataset], ids: Mapping[str, str], *, branches: Collection[str] | None = None
) -> Plan:
    """Look at the heads of all branches, or of these. `ids`: which set of ids each data set has. Raises Invalid where
    a table lies (`tables.py`).
    """
    planner, summaries = Planner(repo, ids), Planner(repo, ids)
    heads: dict[str, str] = {}
    for branch, record in list(repo.branches()):
        if record.hidden or (branches is not None and branch not in branches):
            continue
        purged = [dataset for dataset in datasets if dataset.has_branch(branch)]
        for folder in tables.folders_around(purged):
            tables.refuse_parts(purged, (path for path, _ in repo.list(record.head, prefix=folder)))
        for dataset in purged:
            heads[branch] = record.head
            for path, entry in repo.list(record.head, prefix=dataset.prefix):
                if entry is not None and (is_data(dataset, path) or is_summary(dataset, path)):
                    name = Name(branch, path)
                    of_kind = planner if is_data(dataset, path) else summaries
                    piece = of_kind.add(dataset, name, entry, is_held=path.startswith(planner.held_prefixes))
                    if piece is not None:
                        piece.names.append(name)
            with suppress(BranchNotFound):  # it has just been deleted
                staged = list(_staged(repo, branch, dataset))
                planner.not_purged += staged
                if staged:
                    planner.note(dataset)
    return planner.plan(heads, summaries)


def held_prefixes(repo: Repository) -> tuple[str, ...]:
    """Return the prefixes of the legal holds that are in force now."""
    retention = repo.retention()
    return tuple(hold.prefix for hold in retention.rules.legal_holds) if retention is not None else ()


def is_data(dataset: Dataset, path: str) -> bool:
    """Return whether a path below a data set's prefix is data. Raises Invalid for a table's (`tables.py`)."""
    tables.refuse_within(dataset, path)
    return not path.rpartition("/")[2].startswith(("_", "."))


def is_summary(dataset: Dataset, path: str) -> bool:
    """Return whether a path is a summary file of a data set, which describes other files. Raises MissingExtra."""
    if dataset.format is None or dataset.mode == ERASE:
        return False
    return path.rpartition("/")[2] in format_of(dataset.format).SUMMARIES


def partition_of(below: str) -> str:
    """Return the partition of a path below its data set: its folders of the form `key=value`. Others, such as the
    `original/` and the timestamps of Gobblin's purger, say where a partition lies, and belong to no partition's name.
    """
    return "/".join(folder for folder in below.split("/")[:-1] if "=" in folder.strip("="))


def is_within(partition: str, outer: str) -> bool:
    """Return whether a partition is another one, or a part of it: `day=1/hour=2` of `day=1`."""
    return f"{partition}/".startswith(f"{outer}/")


def value_of(dataset: Dataset, partition: str) -> str | None:
    """Return the identifier's value in a partition, as Hive writes it (`%` and two hexadecimal digits for what a path
    cannot have); None: no folder has the identifier's name, so a column has it.
    """
    for folder in partition.split("/"):
        name, equals, value = folder.partition("=")
        if equals and unquote(name) == dataset.identifier:
            return unquote(value)
    return None


def value_in(dataset: Dataset, path: str, entry: Entry) -> str | None:
    """Return the identifier's value if a name or, in the mode `erase`, the metadata of an object has it."""
    below = path[len(dataset.prefix) :]
    if dataset.template is not None:
        return dataset.template.value_of(below)
    value = value_of(dataset, partition_of(below))
    return entry.metadata.get(dataset.identifier) if value is None and dataset.mode == ERASE else value


def _task(dataset: Dataset) -> tuple[object, ...]:
    return dataset.mode, dataset.format, dataset.identifier, dataset.map_part, dataset.set_null, dataset.path


def _staged(repo: Repository, branch: str, dataset: Dataset) -> Iterator[NotPurged]:
    """Yield what is staged below a data set: it is not committed yet, so no run can replace it by a commit."""
    for change in repo.diff(branch, prefix=dataset.prefix):
        yield NotPurged(branch, change.path, "staged: commit it, then run the purge again")
