"""Find expired commits that are complete all the same: others keep everything that they name.

They were marked so that the live scan sees what is kept without them (rule 13 of the protocol). Their run unmarks them
again: they can be read, copied and branched from as before, and the next run marks them anew.

A commit is complete if none of its addresses is in the files of this mark. (What an older mark still holds of such a
commit it leaves: something unmarked names it.) This is decided after the anti-join. Trees share ranges. A range that a
live commit names is complete. Each of the other ranges is read once; of a commit that loses something, no more than the
first range that shows it.

The keys that were read are recorded for the next run. Where none of them is garbage then, the commits are still
complete, and nothing is read of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec
import numpy as np

from refstore.core.batches import batched
from refstore.core.ids import CommitId
from refstore.objects.base import ObjectStore
from refstore.versioning.commits.workers import Workers
from refstore_gc.address_codec import Keys, keys_of
from refstore_gc.checked_files import read_keys, write_keys
from refstore_gc.engines.base import READ_BUCKETS, Engine
from refstore_gc.live_in_commits import trees_of
from refstore_gc.run_layout import RunLayout, read_table, store_at, threads_at

ROWS_HERE: Final = 20_000_000
"""How many addresses the run's own process reads: 160 MB of keys. If there are more, tasks of the engine read them, and
none are recorded.
"""
GARBAGE_KEYS: Final = "carried/going.bin"
KNOWN: Final = "carried/complete.bin"


class CompleteCommits(msgspec.Struct, frozen=True, kw_only=True):
    """The complete commits of a run, and what it knew of what they name. The field names stand in files."""

    commits: set[CommitId] = set()
    watched: bool = False
    """Whether what they name is in `read`, or in trees that were kept; else the next run reads it again."""
    ranges: set[str] = set()
    """Of their trees: at least those that are not in `read`."""
    read: set[str] = set()
    """Ranges of which every address has its key in `files`."""
    files: list[str] = []


class Question(NamedTuple):
    """Which commits may be complete, and what they are compared with."""

    layout: RunLayout
    commits: Mapping[CommitId, str]
    """What this run marked and may unmark: the metarange of each."""
    kept: Collection[str]
    """Metaranges of trees of which everything is kept."""
    marked: Sequence[str]
    """Files of what this run marks."""
    before: CompleteCommits | None = None
    """What the run found that an incremental run goes on from."""


class _Ranges(NamedTuple):
    of: dict[CommitId, list[str]]
    """The ranges of each commit that no kept tree has."""
    rows: dict[str, int]
    shared: dict[CommitId, list[str]]
    """Those that a kept tree has, too."""


def find(question: Question, engine: Engine) -> CompleteCommits:
    """Return the complete commits, and what the next run can use. Raises Corrupt: something cannot be read."""
    layout, before = question.layout, question.before or CompleteCommits()
    if not question.commits:
        return CompleteCommits()
    store = store_at(layout.files, layout)
    kept = {row.id for metarange in question.kept for row in trees_of(layout).metarange(metarange).rows}
    garbage_keys = _keys(store, layout, question.marked)
    again = {commit for commit in question.commits if before.watched and commit in before.commits}
    known = before
    if again and len(garbage_keys):
        unkept = sorted(before.ranges - before.read - kept)
        unkept_keys = dict(_read_ranges(layout, unkept))
        if _overlap(garbage_keys, [*unkept_keys.values(), *(read_keys(store, key) for key in before.files)]):
            again, known = set[CommitId](), CompleteCommits()
        elif unkept_keys:
            key = _write_keys(layout, unkept_keys.values(), "-again")
            known = msgspec.structs.replace(before, read=before.read | unkept_keys.keys(), files=[*before.files, key])
    if not again:
        known = CompleteCommits()
    new = {commit: metarange for commit, metarange in question.commits.items() if commit not in again}
    ranges = _ranges_of_commits(layout, new, kept | known.read)
    if sum(ranges.rows.values()) > ROWS_HERE:
        garbage_ranges = _garbage_ranges(engine, layout, ranges, garbage_keys)
        complete = {commit for commit, own in ranges.of.items() if garbage_ranges.isdisjoint(own)}
        return CompleteCommits(commits=complete | again)
    complete, read = _find_complete(layout, ranges, garbage_keys)
    files = [*known.files, _write_keys(layout, read.values(), "")] if read else known.files
    # of those only: what others share with a kept tree would be read in vain when that tree expires
    shared = {each for commit in complete for each in ranges.shared[commit]}
    return CompleteCommits(
        commits=complete | again,
        watched=True,
        ranges=known.ranges | shared,
        read=known.read | read.keys(),
        files=files,
    )


def _keys(store: ObjectStore, layout: RunLayout, files: Sequence[str]) -> Keys:
    """Return the keys of the addresses in files of a mark; in order, each once."""
    with Workers(threads_at(layout)) as workers:
        arrays = [
            keys_of(table.column("address"), layout.seed)
            for table in workers.ahead(lambda key: read_table(store, key, ["address"]), files)
        ]
    return np.unique(np.concatenate(arrays)) if arrays else np.empty(0, np.uint64)


def _overlap(ordered: Keys, some: Iterable[Keys]) -> bool:
    """Return whether any of the keys is among `ordered`."""
    if not len(ordered):
        return False
    for keys in some:
        places = np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)
        if bool((ordered[places] == keys).any()):
            return True
    return False


def _read_ranges(layout: RunLayout, ranges: Sequence[str]) -> Iterator[tuple[str, Keys]]:
    trees = trees_of(layout)
    with Workers(threads_at(layout)) as workers:
        columns = workers.ahead(trees.range_addresses, ranges)
        yield from ((each, keys_of(column, layout.seed)) for each, column in zip(ranges, columns, strict=True))


def _ranges_of_commits(layout: RunLayout, commits: Mapping[CommitId, str], kept: Collection[str]) -> _Ranges:
    trees = trees_of(layout)
    ranges = _Ranges({}, {}, {})
    same = {each: each for each in kept}  # one string for each range, however many trees have it

    def opened(metarange: str) -> tuple[list[tuple[str, int]], list[str]]:
        rows = trees.metarange(metarange).rows if metarange else ()
        return [(row.id, row.rows) for row in rows if row.id not in kept], [
            same[row.id] for row in rows if row.id in same
        ]

    with Workers(threads_at(layout)) as workers:
        for commit, (own, shared) in zip(commits, workers.ahead(opened, list(commits.values())), strict=True):
            ranges.of[commit] = [each for each, _ in own]
            ranges.rows.update(own)
            ranges.shared[commit] = shared
    return ranges


def _find_complete(layout: RunLayout, ranges: _Ranges, garbage_keys: Keys) -> tuple[set[CommitId], dict[str, Keys]]:
    """Return the complete commits, and the keys of the ranges that were read for them. It reads a few ranges of each
    commit at a time, because the first may decide.
    """
    keys: dict[str, Keys] = {}
    garbage_ranges: set[str] = set()
    undecided = dict(ranges.of)
    amount = 1
    while True:
        undecided = {commit: own for commit, own in undecided.items() if garbage_ranges.isdisjoint(own)}
        next_ranges = {each for own in undecided.values() for each in [one for one in own if one not in keys][:amount]}
        if not next_ranges:
            return set(undecided), {each: keys[each] for own in undecided.values() for each in own}
        for each, range_keys in _read_ranges(layout, sorted(next_ranges)):
            keys[each] = range_keys
            if _overlap(garbage_keys, [range_keys]):
                garbage_ranges.add(each)
        amount *= 4


def _garbage_ranges(engine: Engine, layout: RunLayout, ranges: _Ranges, garbage_keys: Keys) -> set[str]:
    """Return the ranges that name garbage, as tasks of the engine find them."""
    key = layout.file(GARBAGE_KEYS)
    write_keys(store_at(layout.files, layout), key, garbage_keys)
    every = sorted({each for own in ranges.of.values() for each in own})
    each = -(-len(every) // READ_BUCKETS)
    return set(engine.map(partial(_find_garbage_ranges, layout, key), list(batched(every, each))))


def _find_garbage_ranges(layout: RunLayout, garbage_key: str, ranges: Sequence[str]) -> Iterator[str]:
    garbage_keys = read_keys(store_at(layout.files, layout), garbage_key)
    for each, keys in _read_ranges(layout, ranges):
        if _overlap(garbage_keys, [keys]):
            yield each


def _write_keys(layout: RunLayout, keys: Iterable[Keys], which: str) -> str:
    key = layout.file(KNOWN.replace(".bin", f"{which}.bin"))
    write_keys(store_at(layout.files, layout), key, np.unique(np.concatenate(list(keys))))
    return key
