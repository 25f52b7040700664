"""Publish markers, and release the references of tokens that no commit took: the middle of `retired -> markers ->
references -> empty`.

Committed markers come first (rule 7), or what a commit names is released: each deletes the keys of what it added
(`refstore.operations.commit_references`). Only then it hands its tokens over as deleted, so that entries that were
overwritten or deleted before the commit lose their references.

A corrupt record raises, and everything that depends on it stays unchanged. Any reaper may repeat any step: a step that
was done already changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, cast

import msgspec

from refstore.context import Context
from refstore.core.ids import BranchName, Path, Token, is_own
from refstore.kv.base import ABSENT
from refstore.operations import transaction
from refstore.records import keys
from refstore.records.branch_records import DeletedToken, StoredBranch, TokenRecord, decode_branch
from refstore.records.encoding import decode, encode
from refstore.records.reference_records import Reference
from refstore.records.staging_records import StoredEntry, decode_staged_many
from refstore.versioning.branches import OpenBranch
from refstore.versioning.markers import COMMITTED_CAUSE_PREFIX
from refstore.versioning.references import Release, ReleaseResult
from refstore_reaper.readable_records import OnCorrupt, raise_error, readable

PAGE: Final = 5000
"""Entries of a token that are released with shared round trips. On SQLite that is one transaction of about 40 ms."""


class LeftBranches(NamedTuple):
    """What operations and transactions have left of branches when they died."""

    retired: list[BranchName]
    """With retired tokens whose markers are to be published (rule 3)."""
    run_out: list[tuple[BranchName, OpenBranch]]
    """With a lease that ran out (rule 24)."""


def find_left_branches(ctx: Context, *, on_corrupt: OnCorrupt = raise_error) -> LeftBranches:
    """Read all branch records."""
    left = LeftBranches([], [])
    for text, raw, record in readable(ctx.kv.scan_all(keys.branches(ctx.repo)), decode_branch, on_corrupt):
        name = BranchName(text)
        if record.retired_tokens or not isinstance(record, StoredBranch):
            left.retired.append(name)
        elif transaction.has_run_out(ctx, record):
            left.run_out.append((name, OpenBranch(raw, record)))
    return left


def publish_markers(ctx: Context, names: Iterable[BranchName]) -> int:
    """Publish the markers of the retired tokens of branches. Return the number of tokens."""
    return sum(ctx.markers.publish(ctx.branches, name) for name in names)


def end_transactions(ctx: Context, run_out: Iterable[tuple[BranchName, OpenBranch]]) -> int:
    """Delete branches whose lease ran out, and return how many: those stay that were renewed since they were read."""
    return sum(transaction.end(ctx, name, opened) for name, opened in run_out)


def process_deleted(ctx: Context, token: Token, marker: DeletedToken, *, page: int = PAGE) -> Iterator[ReleaseResult]:
    """Release every reference under a token and remove its entries, page by page; at the end remove the marker.

    Yield what was released of each page; whoever asks for no more leaves the rest to the next pass. Raises
    CorruptRecord before it changes the page with that record.
    """
    staging = keys.staging(ctx.repo, token)
    guess = not marker.cause.startswith(COMMITTED_CAUSE_PREFIX)  # what a commit took has mostly no list any more
    after = ""
    while pairs := ctx.kv.scan(staging, after=after, limit=page):
        after = pairs[-1][0]
        items = _releases(token, marker.cause, cast("Sequence[tuple[Path, bytes]]", pairs))
        released = ctx.references.release(items, whole_token=True, guess=guess)
        guess = guess and not released.wrong_guesses  # reading a page is cheaper than to guess it wrong
        # last: entries that a crash leaves are processed again, and finish what was begun
        ctx.kv.delete_range(staging, pairs[0][0], after)
        yield released
    _stamp_processed(ctx, token)
    ctx.markers.remove_deleted(token)


def _releases(token: Token, cause: str, pairs: Sequence[tuple[Path, bytes]]) -> list[Release]:
    """Return the references of a page's entries; tombstones, and data that is not ours, have none."""
    records = decode_staged_many([value for _, value in pairs])
    return [
        Release(record.address, Reference(token, path, record.reference_id), cause, record)
        for (path, _), record in zip(pairs, records, strict=True)
        if isinstance(record, StoredEntry) and is_own(record.address)
    ]


def _stamp_processed(ctx: Context, token: Token) -> None:
    """Record in the registry when the token was processed: later writes under it are scrubbed (rule 9)."""
    key = keys.token(ctx.repo, token)
    raw = ctx.kv.get(key)
    record = TokenRecord(created_ms=ctx.clock.now_ms()) if raw is ABSENT else decode(raw, TokenRecord)
    ctx.kv.set(key, encode(msgspec.structs.replace(record, processed_ms=ctx.clock.now_ms())))
