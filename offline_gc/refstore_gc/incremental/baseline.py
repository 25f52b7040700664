"""The records of a run for the next one, which then reads only what changed (decision 0095).

    carried.bin              Baseline: the end of the listing, and the runs that this one builds on
    carried/<bucket>.bin     BaselineKeys: the named keys, and the listed keys that stay
    carried/unchanged*.bin   the keys that commits name of which nothing goes (`nothing_to_delete.py`)
    kept/<number>.parquet    the addresses that the KV named

A full run writes the first layer. Each incremental run after it writes another layer with the changes. Damage
raises Corrupt (`run_layout.read_value`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from refstore.core.ids import CommitId
from refstore.versioning.commits.metaranges import RangeRow
from refstore.versioning.commits.tree_store import TreeStore
from refstore_gc.address_batches import Batch, BatchKind
from refstore_gc.address_codec import CUT_BYTES
from refstore_gc.live_in_commits import (
    AddedAddressesSource,
    CommitReads,
    CommitSources,
    LiveCommits,
    TreeSource,
    open_tree_store,
)
from refstore_gc.nothing_to_delete import NothingToDeleteCommits
from refstore_gc.run_layout import RunLayout
from refstore_gc.run_summary import ObjectCount

MARKED_AGAIN: Final = "a commit was unmarked, and is marked again"


class RecordLayer(msgspec.Struct, frozen=True):
    """The records of one run."""

    cuts: list[str]
    """Where its buckets began, except the first."""
    files: dict[int, str]
    """bucket -> key. A bucket without a file has no known keys."""

    def files_between(self, first: str, end: str) -> Iterator[str]:
        """Yield the files with addresses from `first` on, before `end` ('': to the end)."""
        cuts = [cut[:CUT_BYTES] for cut in self.cuts]  # as `BucketBounds` compares them
        last = bisect_left(cuts, end[:CUT_BYTES]) if end else len(cuts)
        for bucket in range(bisect_right(cuts, first[:CUT_BYTES]), last + 1):
            if bucket in self.files:
                yield self.files[bucket]


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """The records that an incremental run builds on. The field names are part of the stored files."""

    mark_id: str
    full_mark_id: str
    """The full run that all layers build on. It listed and read everything."""
    full_mark_ms: int
    seed: int
    cutoff_ms: int
    """Objects that were written later, by the store's clock, were ignored."""
    horizon: str
    """Addresses that sort before this were listed by the cutoff, or are left to the next full run. The rest is
    listed again.
    """
    layers: list[RecordLayer]
    former_kv_files: list[str]
    """Files with the addresses that the KV named."""
    commit_reads: CommitReads
    previously_listed: ObjectCount
    """The objects that the full run listed."""
    nothing_to_delete: NothingToDeleteCommits = NothingToDeleteCommits()
    """Objects that only these commits name were never part of a mark. So the records stay valid when such a commit is
    kept again.
    """

    def cuts(self, after: str) -> list[str]:
        """Return the boundaries of the buckets that are not listed again."""
        return sorted({cut for layer in self.layers for cut in layer.cuts if after < cut < self.horizon})

    def batches(self, bounds: Sequence[str]) -> list[Batch]:
        """Return for each bucket the recorded files with its addresses."""
        edges = ["", *bounds, ""]
        return [
            Batch.from_value(bucket, BatchKind.EARLIER_KEYS, key)
            for bucket in range(len(edges) - 1)
            for layer in self.layers
            for key in layer.files_between(edges[bucket], edges[bucket + 1])
        ]

    def find_mismatch(
        self, commits: LiveCommits, reads: CommitReads | None, cutoff_ms: int, marked: Iterable[CommitId] = ()
    ) -> str:
        """Return why a run cannot build on these records; '' if it can. `reads`: those of `commits`. `marked`: what the
        run itself has marked.
        """
        if reads is None:
            return "some commits keep only a part of what they name"
        if not self.commit_reads.metaranges <= reads.metaranges:
            return "a commit was given up since"
        if any(
            commits.keeps_everything_of(commit)
            for commit in self.commit_reads.past_commits
            if commit not in self.nothing_to_delete.commits
        ):
            return "a commit keeps what it names again"
        if any(
            commit in self.commit_reads.past_commits and commit not in self.nothing_to_delete.commits
            for commit in marked
        ):
            return MARKED_AGAIN  # what it names has been no news since
        if cutoff_ms < self.cutoff_ms:
            return "the minimum age reaches further back than that of the last run"
        return ""


def changed_sources(commits: LiveCommits, reads: CommitReads, before: CommitReads, layout: RunLayout) -> CommitSources:
    """Return the sources that are read now and were not before, and those that were read before and are not now. Of the
    trees it returns only the ranges that the two do not share. Raises CorruptRange.

    `reads`: those of `commits`. The ranges of trees in `before` are on record.
    """
    trees = open_tree_store(layout)
    former, now = _ranges_of(trees, before.roots), _ranges_of(trees, reads.roots)
    # in the order of their paths: one task sees a range and the one that it replaced (`BatchBuilder`)
    changed = [(now[each], int(BatchKind.LIVE_IN_COMMITS)) for each in now.keys() - former.keys()]
    changed += [(former[each], int(BatchKind.NO_LONGER_READ)) for each in former.keys() - now.keys()]
    changed.sort(key=lambda each: (each[0].first_path, each[0].id))
    metaranges, metarange_of = commits.range_sources()
    new_trees = [TreeSource(each) for each in metaranges if each not in before.metaranges]
    new = sorted(reads.added_addresses - before.added_addresses)
    added = [AddedAddressesSource(each, BatchKind.LIVE_IN_COMMITS, metarange_of[each]) for each in new]
    added += [
        AddedAddressesSource(each, BatchKind.NO_LONGER_READ)
        for each in sorted(before.added_addresses - reads.added_addresses)
    ]
    return CommitSources(new_trees, added, [], [(row.id, kind, -1) for row, kind in changed])


def _ranges_of(trees: TreeStore, metaranges: Iterable[str]) -> dict[str, RangeRow]:
    return {row.id: row for metarange in metaranges for row in trees.metarange(metarange).rows}
