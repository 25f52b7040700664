"""Commits that have expired and are complete all the same: nothing of what they name goes, as others keep all of it.

They were marked so that the look sees what is kept without them (rule 13 of the protocol). Their run unmarks them again: they can be read,
copied and branched from as before, and the next run marks them anew.

Whether one is complete is decided from the mark's own files, after the comparison: none of its addresses is in the files of this
mark, or of one that stands. Trees share ranges. A range that a commit names that is kept as a whole is complete; of the
others each is read once, and of a commit of which something goes no more than the first such range.

What was read is written down for the next run, as keys. Where nothing of that goes in the next run, the commits are complete still, and
nothing is read of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from offline_gc import carried
from offline_gc.addresses import Keys, keys_of
from offline_gc.carried import CompleteCommits
from offline_gc.committed import trees_of
from offline_gc.kept import packets_of
from offline_gc.packets import SCHEMA, Packet, Side, in_spark, received
from offline_gc.places import Work, read_table, store_at, threads_at
from offline_gc.session import parts_of
from refstore.commits.workers import Workers
from refstore.ids import CommitId
from refstore.objects.base import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_HERE: Final = 20_000_000
"""Addresses of ranges that the driver reads itself: 160 MB of keys. Beyond, Spark reads them, and none are written down."""
GOING: Final = "carried/going.bin"
KNOWN: Final = "carried/complete.bin"


class Question(NamedTuple):
    """What is asked, and of what."""

    work: Work
    commits: Mapping[CommitId, str]
    """What this run marked and may unmark: the metarange of each."""
    kept: Collection[str]
    """Metaranges of trees of which everything is kept."""
    marked: Sequence[str]
    """Files of what this run marks."""
    pending: Sequence[str]
    """Files of what earlier marks are going to sweep."""
    before: CompleteCommits | None = None
    """What the run found that this one goes on from."""


class _Ranges(NamedTuple):
    of: dict[CommitId, list[str]]
    """The ranges of each commit that no kept tree has."""
    rows: dict[str, int]
    shared: dict[CommitId, list[str]]
    """Those that a kept tree has, too."""


def find(question: Question, spark: SparkSession) -> CompleteCommits:
    """The commits that are complete, and what the next run can go by. Raises Corrupt: something cannot be read."""
    work, before = question.work, question.before or CompleteCommits()
    if not question.commits:
        return CompleteCommits()
    store = store_at(work.files, work)
    kept = {row.id for metarange in question.kept for row in trees_of(work).metarange(metarange).rows}
    going = _keys(store, work, question.marked)
    again = {commit for commit in question.commits if before.watched and commit in before.commits}
    known = before
    if again and len(going):
        unkept = sorted(before.ranges - before.read - kept)
        found = dict(_read(work, unkept))
        if _meet(going, [*found.values(), *(carried.read_keys(store, key) for key in before.files)]):
            again, known = set[CommitId](), CompleteCommits()
        elif found:
            key = _written(work, found.values(), "-again")
            known = msgspec.structs.replace(before, read=before.read | found.keys(), files=[*before.files, key])
    if not again:
        known = CompleteCommits()
    new = {commit: metarange for commit, metarange in question.commits.items() if commit not in again}
    ranges = _ranges(work, new, kept | known.read)
    others = going
    if any(ranges.of.values()):
        others = np.unique(np.concatenate([going, _keys(store_at(work.url, work), work, question.pending)]))
    if sum(ranges.rows.values()) > ROWS_HERE:
        meets = _meeting_in_spark(spark, work, ranges, others)
        complete = {commit for commit, own in ranges.of.items() if meets.isdisjoint(own)}
        return CompleteCommits(commits=complete | again)
    complete, read = _complete_of(work, ranges, others)
    files = [*known.files, _written(work, read.values(), "")] if read else known.files
    # of those only: what others share with a kept tree would be read, and found to go, when that expires
    shared = {each for commit in complete for each in ranges.shared[commit]}
    return CompleteCommits(
        commits=complete | again,
        watched=True,
        ranges=known.ranges | shared,
        read=known.read | read.keys(),
        files=files,
    )


def _keys(store: ObjectStore, work: Work, files: Sequence[str]) -> Keys:
    """Of the addresses in files of a mark; in order, each once."""
    with Workers(threads_at(work)) as workers:
        found = [
            keys_of(table.column("address"), work.seed) for table in workers.ahead(lambda key: read_table(store, key, ["address"]), files)
        ]
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.uint64)


def _meet(ordered: Keys, some: Iterable[Keys]) -> bool:
    """Whether any of the keys is among `ordered`."""
    if not len(ordered):
        return False
    for keys in some:
        places = np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)
        if bool((ordered[places] == keys).any()):
            return True
    return False


def _read(work: Work, ranges: Sequence[str]) -> Iterator[tuple[str, Keys]]:
    trees = trees_of(work)
    with Workers(threads_at(work)) as workers:
        columns = workers.ahead(trees.range_addresses, ranges)
        yield from ((each, keys_of(column, work.seed)) for each, column in zip(ranges, columns, strict=True))


def _ranges(work: Work, commits: Mapping[CommitId, str], kept: Collection[str]) -> _Ranges:
    trees = trees_of(work)
    found = _Ranges({}, {}, {})
    same = {each: each for each in kept}  # one string for each range, however many trees have it

    def opened(metarange: str) -> tuple[list[tuple[str, int]], list[str]]:
        rows = trees.metarange(metarange).rows if metarange else ()
        return [(row.id, row.rows) for row in rows if row.id not in kept], [same[row.id] for row in rows if row.id in same]

    with Workers(threads_at(work)) as workers:
        for commit, (own, shared) in zip(commits, workers.ahead(opened, list(commits.values())), strict=True):
            found.of[commit] = [each for each, _ in own]
            found.rows.update(own)
            found.shared[commit] = shared
    return found


def _complete_of(work: Work, ranges: _Ranges, going: Keys) -> tuple[set[CommitId], dict[str, Keys]]:
    """(the complete ones, the keys of the ranges that were read for them). A few ranges of each at a time: the first may be enough."""
    keys: dict[str, Keys] = {}
    meets: set[str] = set()
    undecided = dict(ranges.of)
    amount = 1
    while True:
        undecided = {commit: own for commit, own in undecided.items() if meets.isdisjoint(own)}
        wanted = {each for own in undecided.values() for each in [one for one in own if one not in keys][:amount]}
        if not wanted:
            return set(undecided), {each: keys[each] for own in undecided.values() for each in own}
        for each, found in _read(work, sorted(wanted)):
            keys[each] = found
            if _meet(going, [found]):
                meets.add(each)
        amount *= 4


def _meeting_in_spark(spark: SparkSession, work: Work, ranges: _Ranges, going: Keys) -> set[str]:
    """The ranges that name something that goes, found by the executors."""
    key = work.file(GOING)
    carried.write_keys(store_at(work.files, work), key, going)
    every = sorted({each for own in ranges.of.values() for each in own})
    tasks = parts_of(spark) * 4
    each = -(-len(every) // tasks)
    told = [Packet.telling(0, Side.READ, every[at : at + each], each) for at in range(0, len(every), each)]
    rows = packets_of(spark, told, tasks).mapInArrow(in_spark(_meeting(work, key)), SCHEMA).toArrow()
    return {found for packet in received(rows.to_batches()) for found in msgspec.msgpack.decode(packet.body, type=list[str])}


def _meeting(work: Work, going_key: str) -> Callable[[Iterable[Packet]], Iterator[Packet]]:
    def find_(told: Iterable[Packet]) -> Iterator[Packet]:
        going = carried.read_keys(store_at(work.files, work), going_key)
        for packet in told:
            wanted = msgspec.msgpack.decode(packet.body, type=list[str])
            yield Packet.telling(0, Side.READ, [each for each, keys in _read(work, wanted) if _meet(going, [keys])])

    return find_


def _written(work: Work, keys: Iterable[Keys], which: str) -> str:
    key = work.file(KNOWN.replace(".bin", f"{which}.bin"))
    carried.write_keys(store_at(work.files, work), key, np.unique(np.concatenate(list(keys))))
    return key
