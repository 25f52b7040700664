"""Plan a run over every version: the objects below a data set's prefix in every commit, tag, branch and staging area,
and in the trash.

Commits that nothing leads to any more count, too, until they are swept: they can be read by their ids, and expired ones
can be unmarked. So do objects that a restore could bring back, until the reaper deletes them. An object of a
swept commit that is still there has another name, and belongs to the data set of that name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from refstore.context import Context
from refstore.core.batches import split_batches
from refstore.core.ids import Address, is_own
from refstore.operations.referenced_entries import read_new_entries, referenced_entries, referenced_names
from refstore.operations.version_entries import scan_versions
from refstore.purge_document.document import Dataset
from refstore.records.location_records import Content
from refstore.records.staging_records import Entry
from refstore.repository import Repository
from refstore_purge import table_formats
from refstore_purge.purge_plan import BranchPath, PurgeObject, PurgePlan, PurgePlanner, is_data, is_summary


def plan_versions(repo: Repository, datasets: Sequence[Dataset], ids: Mapping[str, str]) -> PurgePlan:
    """Look at references, then at every version: so whatever moves meanwhile is met. `ids`: which set of ids each data
    set has. Raises Invalid where a table lies (`table_formats.py`), CorruptRange, Unavailable.
    """
    ctx, planner = repo.context, PurgePlanner(repo, ids, replaces_content=True)
    summaries = PurgePlanner(repo, ids, replaces_content=True)
    held: dict[str, tuple[PurgePlanner, BranchPath]] = {}
    planned: set[str] = set()

    def add(dataset: Dataset, name: BranchPath, entry: Entry) -> None:
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
