"""Find expired commits with nothing to delete: others keep everything that they name.

They were marked so that the live scan sees what is kept without them (rule 13 of the protocol). Their run unmarks them
again: they can be read, copied and branched from as before, and the next run marks them anew.

A commit has nothing to delete if none of its addresses is in the files of this mark. (What an older mark still holds of
such a commit it leaves: something unmarked names it.) This is decided after the anti-join. Trees share ranges. A range
that a live commit names loses nothing. Each of the other ranges is read once; of a commit that loses something, no more
than the first range that shows it.

The keys that were read are recorded for the next run. Where none of them is garbage then, the commits still lose
nothing, and nothing is read of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec
import numpy as np

from refstore.core.batches import split_batches
from refstore.core.ids import CommitId
from refstore.objects.base import ObjectStore
from refstore.versioning.commits.workers import Workers
from refstore_gc.address_codec import AddressKeys, encode_addresses
from refstore_gc.engines.base import READ_BUCKETS, Engine
from refstore_gc.live_in_commits import open_tree_store
from refstore_gc.run_layout import RunLayout, open_store, read_keys, read_table, request_threads, write_keys

ROWS_HERE: Final = 20_000_000
"""How many addresses the run's own process reads: 160 MB of keys. If there are more, tasks of the engine read them, and
none are recorded.
"""
GARBAGE_KEYS: Final = "carried/going.bin"
KNOWN_KEYS_FILE: Final = "carried/unchanged.bin"


class NothingToDeleteCommits(msgspec.Struct, frozen=True, kw_only=True):
    """The commits of a run with nothing to delete, and what it knew of what they name. The field names stand in
    files.
    """

    commits: set[CommitId] = set()
    is_tracked: bool = False
    """Whether what they name is in `read`, or in trees that were kept; else the next run reads it again."""
    ranges: set[str] = set()
    """Of their trees: at least those that are not in `read`."""
    read_ranges: set[str] = set()
    """Ranges of which every address has its key in `files`."""
    files: list[str] = []


class _CommitRanges(NamedTuple):
    by_commit: dict[CommitId, list[str]]
    """The ranges of each commit that no kept tree has."""
    row_counts: dict[str, int]
    shared_by_commit: dict[CommitId, list[str]]
    """Those that a kept tree has, too."""


def find_nothing_to_delete(
    layout: RunLayout,
    engine: Engine,
    commits: Mapping[CommitId, str],
    kept_metaranges: Collection[str],
    marked_files: Sequence[str],
    previous: NothingToDeleteCommits | None = None,
) -> NothingToDeleteCommits:
    """Return which commits have nothing to delete, and what the next run can use. Raises Corrupt: something cannot be
    read.

    `commits`: what this run marked and may unmark, with the metarange of each. `kept_metaranges`: of trees of which
    everything is kept. `marked_files`: of what this run marks. `previous`: what the run found that an incremental run
    goes on from.
    """
    before = previous or NothingToDeleteCommits()
    if not commits:
        return NothingToDeleteCommits()
    store = open_store(layout.files, layout)
    kept = {row.id for metarange in kept_metaranges for row in open_tree_store(layout).metarange(metarange).rows}
    garbage_keys = _keys(store, layout, marked_files)
    again = {commit for commit in commits if before.is_tracked and commit in before.commits}
    known = before
    if again and len(garbage_keys):
        unkept = sorted(before.ranges - before.read_ranges - kept)
        unkept_keys = dict(read_ranges(layout, unkept))
        if _have_common(garbage_keys, [*unkept_keys.values(), *(read_keys(store, key) for key in before.files)]):
            again, known = set[CommitId](), NothingToDeleteCommits()
        elif unkept_keys:
            key = _write_keys(layout, unkept_keys.values(), "-again")
            known = msgspec.structs.replace(
                before, read_ranges=before.read_ranges | unkept_keys.keys(), files=[*before.files, key]
            )
    if not again:
        known = NothingToDeleteCommits()
    new = {commit: metarange for commit, metarange in commits.items() if commit not in again}
    ranges = _ranges_of_commits(layout, new, kept | known.read_ranges)
    found, read = _find_commits(layout, engine, ranges, garbage_keys)
    if read is None:
        return NothingToDeleteCommits(commits=found | again)
    files = [*known.files, _write_keys(layout, read.values(), "")] if read else known.files
    # of those only: what others share with a kept tree would be read in vain when that tree expires
    shared = {each for commit in found for each in ranges.shared_by_commit[commit]}
    return NothingToDeleteCommits(
        commits=found | again,
        is_tracked=True,
        ranges=known.ranges | shared,
        read_ranges=known.read_ranges | read.keys(),
        files=files,
    )


def find_commits_without(
    layout: RunLayout, engine: Engine, commits: Mapping[CommitId, str], garbage_keys: AddressKeys
) -> set[CommitId]:
    """Return those of `commits`, given with their metaranges, that name none of the sorted `garbage_keys`. Raises
    Corrupt.
    """
    return _find_commits(layout, engine, _ranges_of_commits(layout, commits, ()), garbage_keys)[0]


def _keys(store: ObjectStore, layout: RunLayout, files: Sequence[str]) -> AddressKeys:
    """Return the keys of the addresses in files of a mark; in order, each once."""
    with Workers(request_threads(layout)) as workers:
        arrays = [
            encode_addresses(table.column("address"), layout.seed)
            for table in workers.map_ahead(lambda key: read_table(store, key, ["address"]), files)
        ]
    return np.unique(np.concatenate(arrays)) if arrays else np.empty(0, np.uint64)


def _have_common(ordered: AddressKeys, some: Iterable[AddressKeys]) -> bool:
    """Return whether any of the keys is among `ordered`."""
    if not len(ordered):
        return False
    for keys in some:
        places = np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)
        if bool((ordered[places] == keys).any()):
            return True
    return False


def read_ranges(layout: RunLayout, ranges: Sequence[str]) -> Iterator[tuple[str, AddressKeys]]:
    """Yield the keys of each range's addresses."""
    trees = open_tree_store(layout)
    with Workers(request_threads(layout)) as workers:
        columns = workers.map_ahead(trees.range_addresses, ranges)
        yield from ((each, encode_addresses(column, layout.seed)) for each, column in zip(ranges, columns, strict=True))


def _ranges_of_commits(layout: RunLayout, commits: Mapping[CommitId, str], kept: Collection[str]) -> _CommitRanges:
    trees = open_tree_store(layout)
    ranges = _CommitRanges({}, {}, {})
    same = {each: each for each in kept}  # one string for each range, however many trees have it

    def open_tree(metarange: str) -> tuple[list[tuple[str, int]], list[str]]:
        rows = trees.metarange(metarange).rows if metarange else ()
        return [(row.id, row.rows) for row in rows if row.id not in kept], [
            same[row.id] for row in rows if row.id in same
        ]

    with Workers(request_threads(layout)) as workers:
        for commit, (own, shared) in zip(commits, workers.map_ahead(open_tree, list(commits.values())), strict=True):
            ranges.by_commit[commit] = [each for each, _ in own]
            ranges.row_counts.update(own)
            ranges.shared_by_commit[commit] = shared
    return ranges


def _find_commits(
    layout: RunLayout, engine: Engine, ranges: _CommitRanges, garbage_keys: AddressKeys
) -> tuple[set[CommitId], dict[str, AddressKeys] | None]:
    """Return the commits with nothing to delete, and the keys of the ranges that were read for them; None: tasks read
    them. It reads a few ranges of each commit at a time, because the first may decide.
    """
    if sum(ranges.row_counts.values()) > ROWS_HERE:
        of_tasks = _garbage_ranges(engine, layout, ranges, garbage_keys)
        return {commit for commit, own in ranges.by_commit.items() if of_tasks.isdisjoint(own)}, None
    keys: dict[str, AddressKeys] = {}
    garbage_ranges: set[str] = set()
    undecided = dict(ranges.by_commit)
    amount = 1
    while True:
        undecided = {commit: own for commit, own in undecided.items() if garbage_ranges.isdisjoint(own)}
        next_ranges = {each for own in undecided.values() for each in [one for one in own if one not in keys][:amount]}
        if not next_ranges:
            return set(undecided), {each: keys[each] for own in undecided.values() for each in own}
        for each, range_keys in read_ranges(layout, sorted(next_ranges)):
            keys[each] = range_keys
            if _have_common(garbage_keys, [range_keys]):
                garbage_ranges.add(each)
        amount *= 4


def _garbage_ranges(engine: Engine, layout: RunLayout, ranges: _CommitRanges, garbage_keys: AddressKeys) -> set[str]:
    """Return the ranges that name garbage, as tasks of the engine find them."""
    key = layout.named_file_key(GARBAGE_KEYS)
    write_keys(open_store(layout.files, layout), key, garbage_keys)
    every = sorted({each for own in ranges.by_commit.values() for each in own})
    each = -(-len(every) // READ_BUCKETS)
    return set(engine.map(partial(_find_garbage_ranges, layout, key), list(split_batches(every, each))))


def _find_garbage_ranges(layout: RunLayout, garbage_key: str, ranges: Sequence[str]) -> Iterator[str]:
    garbage_keys = read_keys(open_store(layout.files, layout), garbage_key)
    for each, keys in read_ranges(layout, ranges):
        if _have_common(garbage_keys, [keys]):
            yield each


def _write_keys(layout: RunLayout, keys: Iterable[AddressKeys], which: str) -> str:
    key = layout.named_file_key(KNOWN_KEYS_FILE.replace(".bin", f"{which}.bin"))
    write_keys(open_store(layout.files, layout), key, np.unique(np.concatenate(list(keys))))
    return key
