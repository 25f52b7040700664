"""Process a committed marker (rule 7): what the commit added is beyond the reaper, then its tokens are handed over.

The reference keys of the commit's added addresses are deleted first. Only then its tokens count as deleted, so that
what was overwritten or deleted before the commit loses its references. A corrupt record, range or listing raises, and
the marker stays. Whoever does it again changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from refstore.context import Context
from refstore.core.batches import split_batches
from refstore.core.ids import CommitId
from refstore.operations import refs
from refstore.records.branch_records import CommittedTokens
from refstore.versioning.markers import COMMITTED_CAUSE_PREFIX

PAGE: Final = 5000
"""Addresses whose keys are deleted in one round trip. On SQLite that is one transaction of about 40 ms."""


def process_committed(
    ctx: Context,
    commit: CommitId,
    marker: CommittedTokens,
    *,
    go_on: Callable[[], bool] = lambda: True,
    page: int = PAGE,
) -> bool:
    """Process the marker, and return whether it was finished. Where `go_on` returns False in between, the marker stays,
    and the next call begins again. Raises CommitNotFound, CorruptRange.
    """
    if not delete_added_references(ctx, commit, go_on=go_on, page=page):
        return False
    ctx.markers.set_deleted(marker.tokens, f"{COMMITTED_CAUSE_PREFIX}{commit}")
    ctx.markers.remove_committed(commit)
    return True


def delete_added_references(
    ctx: Context, commit: CommitId, *, go_on: Callable[[], bool] = lambda: True, page: int = PAGE
) -> bool:
    """Delete the reference keys of what a commit added: it is beyond the reaper then. Return whether it was finished;
    `go_on` may return False between pages. Raises CommitNotFound, CorruptRange.
    """
    record = refs.get_commit(ctx, commit)
    if record.added_addresses_id:
        for batch in ctx.trees.read_added_addresses(record.added_addresses_id):
            for addresses in split_batches(batch, page):
                if not go_on():
                    return False
                ctx.references.delete_records(addresses)
    return True
