"""Delete what purges have written for objects that no commit names any more (rule 22).

The content of a purged object lies elsewhere than its identity, the address that commits name. So it stands and falls
with its identity: a full run compares the identities of all location records with what is named (files of the
mark), and the sweep deletes what the records of those name that nobody names.

The identity's own object goes first. Behind it a run of the purge finds nothing to read, and a record that is `gone`
gets no new content. The record goes last.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Final

from refstore.context import Context
from refstore.core.batches import split_batches
from refstore.core.ids import Address, Path, Token
from refstore.deletion_history.causes import UNNAMED_IDENTITY
from refstore.deletion_history.deletion_journal import JournalWriter
from refstore.operations.delete_contents import delete_contents, delete_recorded
from refstore.records.pending_deletes import PendingDelete
from refstore_gc.bucket_join import BucketRow, DeadIdentities
from refstore_gc.live_in_commits import LiveCommits
from refstore_gc.run_layout import RunLayout, read_table
from refstore_gc.run_summary import FAILURES_SHOWN, PurgedObjects

PAGE: Final = 1000


def dead_identity_files(rows: Iterable[BucketRow]) -> list[str]:
    """Return the files of identities that nothing names."""
    return sorted(row.key for row in rows if isinstance(row, DeadIdentities))


def delete_dead_identities(
    ctx: Context, layout: RunLayout, files: Sequence[str], excluded: LiveCommits
) -> PurgedObjects:
    """Delete the contents of the objects in the files that no excluded commit names.

    Call it after the sweep of what was listed, behind the fence; made again it goes on. Raises Corrupt, Unavailable.
    """
    journal = JournalWriter(ctx.objects, f"gc-{layout.mark_id}-{secrets.token_hex(4)}", ctx.clock, count())
    done = PurgedObjects()
    for identities in find_unexcluded_identities(ctx, files, excluded):
        for page in split_batches(identities, PAGE):
            done += _delete(ctx, journal, page)
    return done


def find_unexcluded_identities(ctx: Context, files: Sequence[str], excluded: LiveCommits) -> Iterator[list[Address]]:
    """Yield the identities in each file that no excluded commit names."""
    if not files or not ctx.locations.are_announced():
        return
    named_again = {
        address
        for metarange in excluded.metaranges()
        for addresses in ctx.trees.addresses(metarange)
        for address in addresses
    }
    for key in files:
        addresses: list[str] = read_table(ctx.objects, key, ["address"]).column("address").to_pylist()
        yield [Address(each) for each in addresses if each not in named_again]


def _delete(ctx: Context, journal: JournalWriter, identities: Sequence[Address]) -> PurgedObjects:
    batch = [PendingDelete(identity, Token(""), Path(""), UNNAMED_IDENTITY, -1) for identity in identities]
    own = delete_recorded(ctx.objects, batch, journal)
    confirmed, contents, ended = delete_contents(ctx, batch, own, journal)
    failures = [f"{address}: {why}" for address, why in confirmed.failed_keys[:FAILURES_SHOWN]]
    return PurgedObjects(objects=ended, contents=contents, failed_objects=len(confirmed.failed_keys), failures=failures)
