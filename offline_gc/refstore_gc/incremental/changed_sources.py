"""What commits name that changed since the run before: what is read now and was not, and the other way round."""

from __future__ import annotations

from collections.abc import Iterable

from refstore.versioning.commits.metaranges import RangeRow
from refstore.versioning.commits.tree_store import TreeStore
from refstore_gc.address_batches import BatchKind
from refstore_gc.live_in_commits import (
    AddedAddressesSource,
    CommitReads,
    CommitSources,
    LiveCommits,
    TreeSource,
    open_tree_store,
)
from refstore_gc.run_layout import RunLayout


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
    ranges = [(row.id, kind, -1) for row, kind in changed]
    return CommitSources(new_trees, added, [], ranges, sum(row.rows for row, _ in changed))


def _ranges_of(trees: TreeStore, metaranges: Iterable[str]) -> dict[str, RangeRow]:
    return {row.id: row for metarange in metaranges for row in trees.metarange(metarange).rows}
