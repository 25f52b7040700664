"""Plan a run: which objects belong to an onboarded data set, by partition; and what is left alone.

Hidden files (`_SUCCESS`, `.part.crc`) are no data. Everything else below a data set's prefix is. The summary files of
Parquet (`_metadata`) are planned apart, because they follow the data. `plan_heads` looks at the heads,
`plan_versions` at every version.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import unquote

import msgspec

from refstore.context import Context
from refstore.core.batches import split_batches
from refstore.core.ids import Address, is_own
from refstore.errors import BranchNotFound
from refstore.operations.referenced_entries import read_new_entries, referenced_entries, referenced_names
from refstore.operations.version_entries import scan_versions
from refstore.public_types import stored_entry
from refstore.purge_document.document import ERASE, Dataset
from refstore.records.location_records import Content
from refstore.records.s3_attributes import S3Attributes, join_attributes
from refstore.records.staging_records import StoredEntry
from refstore.repository import Repository
from refstore_purge import table_formats

SUMMARIES: Final = ("_metadata", "_common_metadata")


class BranchPath(NamedTuple):
    """A path on a branch."""

    branch: str
    """Or a commit, or 'trash of' a branch, where every version is looked at."""
    path: str


def describe_names(names: Sequence[BranchPath]) -> str:
    """Return the first names in words, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"{name.path!r} in {name.branch!r}" for name in names[:3]) + more


class Partition(NamedTuple):
    """One partition of a data set."""

    dataset: Dataset
    name: str
    """'' for what lies in no partition folder."""

    @property
    def watermark(self) -> str:
        """Its place among all partitions. A later run is given it to leave out those up to this one."""
        return f"{self.dataset.prefix}{self.name}"

    @property
    def identifier_value(self) -> str | None:
        """The identifier's value, if a partition folder has it; else None."""
        return identifier_of_partition(self.dataset, self.name)


class PurgeObject(msgspec.Struct):
    """One distinct object of a data set, and every name that it has there."""

    partition: Partition
    address: str
    """That commits name."""
    size_bytes: int
    """Of its content."""
    metadata: dict[str, str]
    content_type: str
    s3: S3Attributes | None
    """Without the description of the content, which is replaced."""
    names: list[BranchPath]
    """Of an object in many versions: the first one."""
    content_address: str = ""
    """Where its content lies; at its address, unless a run has replaced it."""
    identifier_value: str | None = None
    """The identifier's value, if the object's names or metadata tell it."""
    original_content: Content | None = None
    """Its content as it was uploaded, where every version is looked at."""

    @property
    def dataset(self) -> Dataset:
        return self.partition.dataset


class SkippedObject(msgspec.Struct, frozen=True):
    """An object that the run leaves alone."""

    branch: str
    """Or a commit, or 'trash of' a branch, where every version is looked at."""
    path: str
    reason: str


class PurgePlan(NamedTuple):
    heads: dict[str, str]
    """The commit at which each branch was looked at."""
    objects: list[PurgeObject]
    """In the order of their partitions' watermarks."""
    skipped_objects: list[SkippedObject]
    summaries: Sequence[PurgeObject] = ()
    """The summary files of Parquet data sets."""
    present_datasets: frozenset[str] = frozenset()
    """The data sets below whose prefix anything lies."""
    identified_datasets: frozenset[str] = frozenset()
    """The data sets of which any name or metadata has the identifier."""


class PurgePlanner:
    """Sorts objects into partitions as they are seen."""

    def __init__(self, repo: Repository, ids: Mapping[str, str], *, replaces_content: bool = False) -> None:
        """`ids`: which set of ids each data set has. `replaces_content`: what is purged changes under all names that an
        object has.
        """
        self._ids = ids
        self._replaces_content = replaces_content
        self.held_prefixes = legal_hold_prefixes(repo)
        self.skipped_objects: list[SkippedObject] = []
        self._objects: dict[str, PurgeObject] = {}
        """By address: an object is in the partition of the first name that is seen."""
        self._told: set[tuple[str, str]] = set()
        """(path, address) of what is left alone, so that many versions of it are told once."""
        self._left_alone: set[str] = set()
        """Addresses that no plan may have, whatever other names they have."""
        self._seen: set[str] = set()
        self._identified: set[str] = set()

    def add(self, dataset: Dataset, name: BranchPath, entry: StoredEntry) -> PurgeObject | None:
        """Return the entry's object; None: it is left alone, and the reason is written down."""
        path = name.path
        self.note_dataset(dataset)
        if not is_own(entry.address):
            if entry.address:  # else it was erased
                self._record_skipped(entry.address, name, "foreign: its data lies outside the repository")
            return None
        if path.startswith(self.held_prefixes):
            self._record_skipped(entry.address, name, "a legal hold covers it")
            return None
        value = identifier_in_names(dataset, path, entry)
        if value is not None:
            self._identified.add(dataset.name)
        known = self._objects.get(entry.address)
        if known is None:
            known = self._objects[entry.address] = PurgeObject(
                Partition(dataset, partition_of(path[len(dataset.prefix) :])),
                entry.address,
                entry.size_bytes,
                entry.metadata,
                entry.content_type,
                join_attributes(entry.s3, None),
                [],
                entry.address,
                value,
            )
        elif known.identifier_value != value:
            place = f"in partition {known.partition.name!r}" if known.partition.name else "elsewhere in it"
            reason = f"the same object lies {place}, of another {dataset.identifier}"
            self.skip_object(entry.address, name, f"{reason}; upload it anew in one of the two")
        elif self._ids[known.dataset.name] != self._ids[dataset.name]:
            reason = f"data set {known.dataset.name!r} has the same object, and other ids"
            self.skip_object(entry.address, name, f"{reason}; upload it anew in one of the two")
        elif _dataset_key(known.dataset) != _dataset_key(dataset):
            reason = f"data set {known.dataset.name!r} has the same object, and is purged in another way"
            if self._replaces_content:
                self._left_alone.add(entry.address)
            self._record_skipped(entry.address, name, reason)
        return known

    def note_dataset(self, dataset: Dataset) -> None:
        """Note that something lies below a data set's prefix."""
        self._seen.add(dataset.name)

    def skip_object(self, address: str, name: BranchPath, reason: str) -> None:
        """Leave an object alone, under all of its names."""
        self._left_alone.add(address)
        self._record_skipped(address, name, reason)

    def _record_skipped(self, address: str, name: BranchPath, reason: str) -> None:
        if not self._replaces_content or (name.path, address) not in self._told:
            self._told.add((name.path, address))
            self.skipped_objects.append(SkippedObject(*name, reason))

    def make_plan(self, heads: dict[str, str], summaries: PurgePlanner) -> PurgePlan:
        """Return what was sorted, with the summary files that another one sorted."""
        return PurgePlan(
            heads,
            self.objects(),
            [*self.skipped_objects, *summaries.skipped_objects],
            summaries.objects(),
            frozenset(self._seen | summaries._seen),
            frozenset(self._identified),
        )

    def objects(self) -> list[PurgeObject]:
        """Return the objects in the order of their partitions."""
        objects = (each for address, each in self._objects.items() if address not in self._left_alone)
        return sorted(objects, key=lambda each: each.partition.watermark)


def plan_heads(
    repo: Repository, datasets: Sequence[Dataset], ids: Mapping[str, str], *, branches: Collection[str] | None = None
) -> PurgePlan:
    """Look at the heads of all branches, or of these. `ids`: which set of ids each data set has. Raises Invalid where
    a table lies (`table_formats.py`).
    """
    planner, summaries = PurgePlanner(repo, ids), PurgePlanner(repo, ids)
    heads: dict[str, str] = {}
    for branch, record in list(repo.context.branches.scan_open()):
        if record.is_hidden or (branches is not None and branch not in branches):
            continue
        purged = [dataset for dataset in datasets if dataset.has_branch(branch)]
        for folder in table_formats.metadata_folders(purged):
            table_formats.refuse_table_parts(purged, (path for path, _ in repo.list(record.head, prefix=folder)))
        for dataset in purged:
            heads[branch] = record.head
            for path, entry in repo.list(record.head, prefix=dataset.prefix):
                if entry is not None and (is_data(dataset, path) or is_summary(dataset, path)):
                    name = BranchPath(branch, path)
                    of_kind = planner if is_data(dataset, path) else summaries
                    purge_object = of_kind.add(dataset, name, stored_entry(entry))
                    if purge_object is not None:
                        purge_object.names.append(name)
            with suppress(BranchNotFound):  # it has just been deleted
                staged = list(find_staged(repo, branch, dataset))
                planner.skipped_objects += staged
                if staged:
                    planner.note_dataset(dataset)
    return planner.make_plan(heads, summaries)


def legal_hold_prefixes(repo: Repository) -> tuple[str, ...]:
    """Return the prefixes of the legal holds that are in force now."""
    retention = repo.retention()
    return tuple(hold.prefix for hold in retention.rules.legal_holds) if retention is not None else ()


def is_data(dataset: Dataset, path: str) -> bool:
    """Return whether a path below a data set's prefix is data. Raises Invalid for a table's (`table_formats.py`)."""
    table_formats.refuse_table_path(dataset, path)
    return not path.rpartition("/")[2].startswith(("_", "."))


def is_summary(dataset: Dataset, path: str) -> bool:
    """Return whether a path is a summary file of a data set, which describes other files (`parquet_summary.py`)."""
    return dataset.format == "parquet" and dataset.mode != ERASE and path.rpartition("/")[2] in SUMMARIES


def partition_of(below: str) -> str:
    """Return the partition of a path below its data set: its folders of the form `key=value`. Others, such as the
    `original/` and the timestamps of Gobblin's purger, say where a partition lies, and belong to no partition's name.
    """
    return "/".join(folder for folder in below.split("/")[:-1] if "=" in folder.strip("="))


def is_within(partition: str, outer: str) -> bool:
    """Return whether a partition is another one, or a part of it: `day=1/hour=2` of `day=1`."""
    return f"{partition}/".startswith(f"{outer}/")


def identifier_of_partition(dataset: Dataset, partition: str) -> str | None:
    """Return the identifier's value in a partition, as Hive writes it (`%` and two hexadecimal digits for what a path
    cannot have); None: no folder has the identifier's name, so a column has it.
    """
    for folder in partition.split("/"):
        name, equals, value = folder.partition("=")
        if equals and unquote(name) == dataset.identifier:
            return unquote(value)
    return None


def identifier_in_names(dataset: Dataset, path: str, entry: StoredEntry) -> str | None:
    """Return the identifier's value if a name or, in the mode `erase`, the metadata of an object has it."""
    below = path[len(dataset.prefix) :]
    if dataset.template is not None:
        return dataset.template.identifier_of(below)
    value = identifier_of_partition(dataset, partition_of(below))
    return entry.metadata.get(dataset.identifier) if value is None and dataset.mode == ERASE else value


def _dataset_key(dataset: Dataset) -> tuple[object, ...]:
    return dataset.mode, dataset.format, dataset.identifier, dataset.map_part, dataset.set_null, dataset.path


def find_staged(repo: Repository, branch: str, dataset: Dataset) -> Iterator[SkippedObject]:
    """Yield what is staged below a data set: it is not committed yet, so no run can replace it by a commit."""
    for change in repo.diff(branch, prefix=dataset.prefix):
        yield SkippedObject(branch, change.path, "staged: commit it, then run the purge again")


def plan_versions(repo: Repository, datasets: Sequence[Dataset], ids: Mapping[str, str]) -> PurgePlan:
    """Look at references, then at every version: so whatever moves meanwhile is met. `ids`: which set of ids each data
    set has. Raises Invalid where a table lies (`table_formats.py`), CorruptRange, Unavailable.

    Every version is what lies below a data set's prefix in every commit, tag, branch and staging area, and in the
    trash. Commits that nothing leads to any more count, too, until they are swept: they can be read by their ids, and
    expired ones can be unmarked. So do objects that a restore could bring back, until the reaper deletes them. An
    object of a swept commit that is still there has another name, and belongs to the data set of that name.
    """
    ctx, planner = repo.context, PurgePlanner(repo, ids, replaces_content=True)
    summaries = PurgePlanner(repo, ids, replaces_content=True)
    held: dict[str, tuple[PurgePlanner, BranchPath]] = {}
    planned: set[str] = set()

    def add(dataset: Dataset, name: BranchPath, entry: StoredEntry) -> None:
        of_summary = is_summary(dataset, name.path)
        if not (of_summary or is_data(dataset, name.path)):
            return
        of_kind = summaries if of_summary else planner
        if is_own(entry.address) and name.path.startswith(planner.held_prefixes):
            of_kind.note_dataset(dataset)
            held.setdefault(entry.address, (of_kind, name))
            return
        purge_object = of_kind.add(dataset, name, entry)
        if purge_object is not None and (not purge_object.names or (of_summary and name not in purge_object.names)):
            planned.add(entry.address)
            purge_object.names.append(name)
            purge_object.original_content = Content(Address(entry.address), entry.size_bytes, entry.checksum, entry.md5)

    around = scan_versions(ctx, prefixes=table_formats.metadata_folders(datasets))
    table_formats.refuse_table_parts(datasets, (path for _, path, _ in around))
    referenced = list(referenced_entries(ctx, [dataset.prefix for dataset in datasets]))
    for dataset in datasets:
        for ref, path, entry in scan_versions(ctx, prefixes=[dataset.prefix]):
            add(dataset, BranchPath(ref, path), entry)
    unknown = [each.entry.address for each in referenced if not each.is_described and each.entry.address not in planned]
    described = read_new_entries(ctx, unknown)
    for each in referenced:  # behind the others, whose names say more to people
        if each.is_described or each.entry.address not in planned:
            dataset = next(dataset for dataset in datasets if each.path.startswith(dataset.prefix))
            add(dataset, BranchPath(each.ref, each.path), described.get(each.entry.address, each.entry))
    for address, (of_kind, name) in held.items():
        of_kind.skip_object(address, name, "a legal hold covers it")
    plan = planner.make_plan({}, summaries)
    return plan._replace(objects=_look_up_contents(ctx, plan.objects), summaries=_look_up_contents(ctx, plan.summaries))


def _look_up_contents(ctx: Context, objects: Sequence[PurgeObject]) -> list[PurgeObject]:
    """Set where the contents lie. Return the objects that are neither erased nor being deleted."""
    if not ctx.locations.are_announced():
        return list(objects)
    found: list[PurgeObject] = []
    for page in split_batches(objects):
        records = ctx.locations.get_many([Address(each.address) for each in page])
        for purge_object, record in zip(page, records, strict=True):
            if record is not None:
                if record.current is None or record.current.is_erased:
                    continue
                purge_object.content_address, purge_object.size_bytes = (
                    record.current.address,
                    record.current.size_bytes,
                )
            found.append(purge_object)
    return found


def find_outside_names(
    ctx: Context, prefixes: tuple[str, ...], addresses: Mapping[str, object]
) -> dict[str, list[BranchPath]]:
    """Return, by address, the different paths outside the prefixes in any version and in the trash, each with one of
    its versions.
    """
    found: dict[str, list[BranchPath]] = {}

    def add(address: str, name: BranchPath) -> None:
        if address in addresses and not name.path.startswith(prefixes):
            names = found.setdefault(address, [])
            if all(name.path != other.path for other in names):
                names.append(name)

    referenced = list(referenced_names(ctx, [Address(address) for address in addresses]))
    for ref, path, entry in scan_versions(ctx):
        add(entry.address, BranchPath(ref, path))
    for address, ref, path in referenced:
        add(address, BranchPath(ref, path))
    return found
