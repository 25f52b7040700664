"""Yield what has a reference: staged objects, and all that `restore` can bring back.

Who looks for everything that can be read or restored reads this first, and `version_entries.scan_versions` behind it.
An object keeps its references under one key, its address, while it goes from a staging area to the trash and back, and
until a commit names it. So it is met here or, if it has no reference any more, in a commit. No order of staging areas
and the trash finds it (rule 22): a restore travels back, and shows its object in neither for a while.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core import ids
from refstore.core.batches import split_batches
from refstore.core.ids import Address, Token, branch_of
from refstore.operations.reference_lookup import describe_contents, look_up
from refstore.records import keys
from refstore.records.branch_records import StoredBranch
from refstore.records.reference_records import Emptied, Listed, Reference, ReferenceRecord, decode_reference_many
from refstore.records.staging_records import StoredEntry

PAGE: Final = 1000
TRASH_REF_PREFIX: Final = "trash of "
"""What stands before the branch, where an object is in the trash."""


class ReferencedEntry(NamedTuple):
    ref: str
    """The branch that it is staged on, or `TRASH_REF_PREFIX` the branch that it was staged on."""
    path: str
    entry: StoredEntry
    is_described: bool
    """Whether the entry is the one that named the object. Else nothing is known but what the object store says: an
    upload or a restore has not come to its entry, or died before.
    """


class _ReferencedAddress(NamedTuple):
    address: Address
    names: list[Reference]
    entry: StoredEntry | None


def referenced_entries(ctx: Context, prefixes: Sequence[str]) -> Iterator[ReferencedEntry]:
    """Yield the objects that have a reference at a path with one of the prefixes, once for each such path: staged ones,
    those that the reaper has yet to release, and those in their grace window.

    Reads all references of the repository: of what is staged, and of what the reaper has not processed.
    """
    if not prefixes:
        return
    live = _live_tokens(ctx)
    for page in split_batches(_referenced_addresses(ctx, tuple(prefixes)), PAGE):
        yield from _entries(ctx, page, live)


def referenced_names(ctx: Context, addresses: Sequence[Address]) -> Iterator[tuple[Address, str, str]]:
    """Yield the (address, ref, path) under which references name these addresses."""
    live = _live_tokens(ctx)
    for page in split_batches(addresses, PAGE):
        for address, record in zip(page, ctx.references.get_many(page), strict=True):
            for name in _references_of(record):
                yield address, _ref_of(name, live), name.path


def read_new_entries(ctx: Context, addresses: Sequence[Address]) -> dict[Address, StoredEntry]:
    """Return the entries of those whose upload or restore has come to its entry meanwhile."""
    return {
        address: next(iter(lookup.entries.values()))
        for page in split_batches(addresses, PAGE)
        for address, lookup in zip(page, look_up(ctx, page), strict=True)
        if lookup.entries
    }


def _referenced_addresses(ctx: Context, prefixes: tuple[str, ...]) -> Iterator[_ReferencedAddress]:
    for shard in range(keys.SHARDS):
        for page in split_batches(ctx.kv.scan_all(keys.references(ctx.repo, shard), page=PAGE), PAGE):
            records = decode_reference_many([value for _, value in page])
            for (address, _), record in zip(page, records, strict=True):
                names = [name for name in _references_of(record) if name.path.startswith(prefixes)]
                if names:
                    entry = record.entry if isinstance(record, Emptied) else None
                    yield _ReferencedAddress(ids.own_address(address), names, entry)


def _references_of(record: ReferenceRecord | None) -> tuple[Reference, ...]:
    match record:
        case Listed(references):
            return references
        case Emptied(last_reference=last):
            return (last,)
        case _:  # it is issued and never linked, or being deleted: nothing restores it
            return ()


def _entries(ctx: Context, page: Sequence[_ReferencedAddress], live: set[Token]) -> Iterator[ReferencedEntry]:
    waiting = [each.address for each in page if each.entry is None]
    lookups = dict(zip(waiting, look_up(ctx, waiting), strict=True))
    bare = describe_contents(ctx, [each for each, lookup in lookups.items() if not lookup.entries and not lookup.error])
    for each in page:
        lookup = lookups.get(each.address)
        for name in each.names:
            ref = _ref_of(name, live)
            if lookup is None:
                assert each.entry is not None  # noqa: S101  # else it was looked up
                yield ReferencedEntry(ref, name.path, each.entry, is_described=True)
            elif lookup.entries:
                entry = lookup.entries.get(name) or next(iter(lookup.entries.values()))
                yield ReferencedEntry(ref, name.path, entry, is_described=True)
            elif (described := bare.get(each.address)) is not None:
                yield ReferencedEntry(ref, name.path, described, is_described=False)


def _live_tokens(ctx: Context) -> set[Token]:
    return {
        token
        for _, _, record in ctx.branches.scan()
        if isinstance(record, StoredBranch)
        for token in record.live_tokens
    }


def _ref_of(name: Reference, live: set[Token]) -> str:
    branch = branch_of(name.token)
    return branch if name.token in live else f"{TRASH_REF_PREFIX}{branch}"
