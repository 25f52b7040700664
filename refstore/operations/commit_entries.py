"""Read the entries of one commit after another, while a sweep may delete the trees of those that never landed.

The tree of a commit that landed stays for good: where an object of it is missing, it is lost. The tree of a commit that
never landed goes with the sweep of that commit, maybe after the reader has looked at the commit's mark.
"""

from __future__ import annotations

from collections.abc import Iterator

from refstore.context import Context
from refstore.core.ids import CommitId
from refstore.errors import CorruptRange, ObjectNotFound
from refstore.records import keys
from refstore.records.commit_records import StoredCommit
from refstore.records.encoding import decode_optional
from refstore.records.mark_records import StoredMark
from refstore.records.staging_records import StoredEntry


def entries_of_commit(
    ctx: Context, commit_id: CommitId, commit: StoredCommit, prefix: str, seen: set[tuple[str, str]]
) -> Iterator[tuple[str, StoredEntry]]:
    """Yield the entries below the prefix from the ranges that were not seen with it, up to where a sweep has deleted
    the tree of a commit that never landed. Raises CorruptRange, Unavailable.

    `seen`: the id of each range that was read, with the prefix. Commits that share a range share this.
    """
    try:
        for row in ctx.trees.overlapping_ranges(commit.metarange, prefix=prefix) if commit.metarange else ():
            if (row.id, prefix) not in seen:
                entries = ctx.trees.entries_of_range(row.id, prefix=prefix)
                seen.add((row.id, prefix))  # not before it was read: where it is lost, the next commit has to tell
                yield from entries
    except CorruptRange as error:
        is_missing = isinstance(error.__cause__, ObjectNotFound)
        if not is_missing or not _tree_is_swept(ctx, commit_id):
            raise


def _tree_is_swept(ctx: Context, commit_id: CommitId) -> bool:
    """Return whether a sweep deletes, or deleted, the commit's tree (rule 13). The mark is read before the landed mark:
    what never will land alone is marked without it.
    """
    mark = decode_optional(ctx.kv.get(keys.mark(ctx.repo, commit_id)), StoredMark)
    has_begun = mark is not None and bool(mark.sweeping_ms) and not mark.prefixes
    return has_begun and not ctx.markers.has_landed(commit_id)
