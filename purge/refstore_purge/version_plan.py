"""Plan a run over every version: the objects below a data set's prefix in every commit, tag, branch and staging area.

Commits share ranges, so each distinct range is read once. Commits that nothing leads to any more count, too, until
they are swept: they can be read by their ids, and expired ones can be unmarked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from refstore.context import Context
from refstore.core import keys
from refstore.core.batches import batched
from refstore.core.ids import Address, CommitId, is_own
from refstore.core.records import Branch, Commit, Content, Entry, decode, decode_staged_many
from refstore.gc_marks.commit_marks import CommitMarks
from refstore.purging.document import Dataset
from refstore.repository import Repository
from refstore_purge.plan import Name, Plan, Planner, Unit, is_data

PAGE: Final = 1000


def plan_versions(repo: Repository, datasets: Sequence[Dataset]) -> Plan:
    """Look at every version. Raises Invalid for a table of Delta or Iceberg, CorruptRange, Unavailable."""
    ctx, planner = repo.context, Planner(repo, replaces_content=True)
    held: dict[str, Name] = {}
    for dataset in datasets:
        for name, entry in every_entry(ctx, prefix=dataset.prefix):
            if not is_data(dataset, name.path):
                continue
            if is_own(entry.address) and name.path.startswith(planner.held):
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
    """Return, by address, names outside the prefixes in any version; of each address and range the first three."""
    found: dict[str, list[Name]] = {}
    for name, entry in every_entry(ctx):
        if entry.address in addresses and not name.path.startswith(prefixes):
            names = found.setdefault(entry.address, [])
            if all(name.path != other.path for other in names):
                names.append(name)
    return found


def every_entry(ctx: Context, *, prefix: str = "") -> Iterator[tuple[Name, Entry]]:
    """Yield the entries of staging areas, then of commits, in the order in which entries move. An entry that stands in
    many commits is yielded under one of them; heads and tags come first.
    """
    heads: dict[CommitId, str] = {}
    for branch, _, record in list(ctx.branches.scan()):
        if isinstance(record, Branch):
            heads.setdefault(record.head, branch)
            for token in record.live:
                for page in batched(ctx.staging.scan(token, prefix=prefix), PAGE):
                    entries = decode_staged_many([value for _, value in page])
                    for (path, _), entry in zip(page, entries, strict=True):
                        if isinstance(entry, Entry):
                            yield Name(branch, path), entry
    seen: set[str] = set()
    for label, commit in _commits(ctx, heads):
        for row in ctx.trees.stretches(commit.metarange, prefix=prefix) if commit.metarange else ():
            if row.id not in seen:
                seen.add(row.id)
                for path, entry in ctx.trees.entries_of_range(row.id, prefix=prefix):
                    yield Name(label, path), entry


def _commits(ctx: Context, heads: Mapping[CommitId, str]) -> Iterator[tuple[str, Commit]]:
    """Yield the heads under their branches' names, then all other commits but those that are swept: nobody can read or
    unmark these.
    """
    for page in batched(list(heads.items()), PAGE):
        values = ctx.kv.get_many([keys.commit(ctx.repo, commit) for commit, _ in page])
        for (_, branch), value in zip(page, values, strict=True):
            if isinstance(value, bytes):
                yield branch, decode(value, Commit)
    for page in batched(ctx.kv.scan_all(keys.commits(ctx.repo)), PAGE):
        marks = CommitMarks(ctx).of([CommitId(name) for name, _ in page])
        for (name, value), mark in zip(page, marks, strict=True):
            if mark is None or mark.prefixes or not mark.sweeping_ms:
                yield name, decode(value, Commit)
