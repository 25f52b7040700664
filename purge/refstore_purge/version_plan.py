"""Plan a run over every version: the objects below a data set's prefix in every commit, tag, branch and staging area.

Commits that nothing leads to any more count, too, until they are swept: they can be read by their ids, and expired ones
can be unmarked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from refstore.context import Context
from refstore.core.batches import batched
from refstore.core.ids import Address, is_own
from refstore.core.records import Content
from refstore.operations.every_version import every_entry
from refstore.purging.document import Dataset
from refstore.repository import Repository
from refstore_purge.plan import Name, Plan, Planner, Unit, is_data

PAGE: Final = 1000


def plan_versions(repo: Repository, datasets: Sequence[Dataset]) -> Plan:
    """Look at every version. Raises Invalid for a table of Delta or Iceberg, CorruptRange, Unavailable."""
    ctx, planner = repo.context, Planner(repo, replaces_content=True)
    held: dict[str, Name] = {}
    for dataset in datasets:
        for ref, path, entry in every_entry(ctx, prefix=dataset.prefix):
            name = Name(ref, path)
            if not is_data(dataset, name.path):
                continue
            if is_own(entry.address) and name.path.startswith(planner.held_prefixes):
                held.setdefault(entry.address, name)
                continue
            piece = planner.add(dataset, name, entry, is_held=False)
            if piece is not None and not piece.names:
                piece.names.append(name)
                piece.original = Content(Address(entry.address), entry.size_bytes, entry.checksum, entry.md5)
    for address, name in held.items():
        planner.leave(address, name, "a legal hold covers it")
    units = planner.units()
    look_up_contents(ctx, units)
    return Plan({}, [unit for unit in units if unit.pieces], planner.not_purged)


def look_up_contents(ctx: Context, units: Sequence[Unit]) -> None:
    """Set where the contents lie, and drop objects that are erased, or being deleted."""
    if not ctx.locations.are_announced():
        return
    every = [(unit, piece) for unit in units for piece in unit.pieces.values()]
    for page in batched(every, PAGE):
        records = ctx.locations.get_many([Address(piece.address) for _, piece in page])
        for (unit, piece), record in zip(page, records, strict=True):
            if record is None:
                continue
            if record.current is None or record.current.is_erased:
                del unit.pieces[piece.address]
                continue
            piece.content, piece.size_bytes = record.current.address, record.current.size_bytes


def names_outside(ctx: Context, prefixes: tuple[str, ...], addresses: Mapping[str, object]) -> dict[str, list[Name]]:
    """Return, by address, the different paths outside the prefixes in any version, each with one of its versions."""
    found: dict[str, list[Name]] = {}
    for ref, path, entry in every_entry(ctx):
        name = Name(ref, path)
        if entry.address in addresses and not name.path.startswith(prefixes):
            names = found.setdefault(entry.address, [])
            if all(name.path != other.path for other in names):
                names.append(name)
    return found
