"""Release references after a token's fate is decided: the middle of `retired -> markers -> references -> empty`.

Committed markers come first (rule 7), or what a commit names is released: each deletes the keys of what it added.
Only then it hands its tokens over as deleted, so that entries that were overwritten or deleted before the commit lose
their references.

A corrupt record, range or listing raises, and everything that depends on it stays unchanged. Any reaper may repeat any
step: a step that was done already changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, cast

import msgspec

from refstore.context import Context
from refstore.core.ids import BranchName, CommitId, Path, Token, is_own
from refstore.deletion_history.journal_format import PendingDelete
from refstore.kv.base import ABSENT
from refstore.kv_recovery.settlement import delete_added_references
from refstore.records import keys
from refstore.records.branch_records import Branch, CommittedTokens, DeletedToken, TokenRecord, decode_branch
from refstore.records.encoding import decode, encode
from refstore.records.reference_records import Reference
from refstore.records.staging_records import Entry, decode_staged_many
from refstore.versioning.address_state import DeletionDelays
from refstore.versioning.markers import COMMITTED_CAUSE_PREFIX
from refstore.versioning.references import Release
from refstore_reaper.batch_pipeline import BatchSteps, Pipeline
from refstore_reaper.deletion import pending_delete
from refstore_reaper.readable_records import OnCorrupt, raise_error, readable

PAGE: Final = 5000
"""Entries of a token that are released with shared round trips. On SQLite that is one transaction of about 40 ms."""


DeleteNow = Callable[[list[PendingDelete]], BatchSteps]
"""Deletes the blobs of a page; it may pause while the store does."""


def publish_markers(ctx: Context, *, on_corrupt: OnCorrupt = raise_error) -> int:
    """Publish the markers of retired tokens whose operations died before (rule 3). Return the number of tokens."""
    branches = ctx.branches
    markers = ctx.markers
    pending = [
        BranchName(name)
        for name, _, record in readable(ctx.kv.scan_all(keys.branches(ctx.repo)), decode_branch, on_corrupt)
        if record.retired_tokens or not isinstance(record, Branch)
    ]
    return sum(markers.publish(branches, name) for name in pending)


def process_committed(
    ctx: Context,
    commit_id: CommitId,
    marker: CommittedTokens,
    *,
    go_on: Callable[[], bool] = lambda: True,
    page: int = PAGE,
) -> bool:
    """Delete the references of a commit's added addresses, then hand its tokens over as deleted. Return whether it was
    finished.

    If `go_on` returns False in between, the marker stays, and the next call begins again. Raises CommitNotFound,
    CorruptRange; then nothing was released, and the marker stays.
    """
    if not delete_added_references(ctx, commit_id, go_on=go_on, page=page):
        return False
    ctx.markers.set_deleted(marker.tokens, f"{COMMITTED_CAUSE_PREFIX}{commit_id}")
    ctx.markers.remove_committed(commit_id)
    return True


def process_deleted(
    ctx: Context,
    token: Token,
    marker: DeletedToken,
    *,
    delays: DeletionDelays | None = None,
    delete_now: DeleteNow | None = None,
    may_delete_now: Callable[[int], bool] = lambda _: True,
    on_released: Callable[[int, int], None] = lambda _references, _emptied: None,
    go_on: Callable[[], bool] = lambda: True,
    page: int = PAGE,
) -> bool:
    """Release every reference under a token, page by page, then remove its entries, then the marker.

    Return whether the whole token was processed; `go_on` may return False between pages. With `delete_now`, addresses
    that lose their last reference become `deleting` at once and are deleted, if `delays` leave no window. Otherwise, or
    if `may_delete_now` refuses that many, they enter their grace window. `on_released` is called for each page with the
    numbers of released references and of addresses that lost their last one. Raises CorruptRecord before it changes the
    page with that record.
    """
    references = ctx.references
    staging = keys.staging(ctx.repo, token)
    guess = not marker.cause.startswith(COMMITTED_CAUSE_PREFIX)  # what a commit took has mostly no list any more

    def process_page(pairs: Sequence[tuple[str, bytes]]) -> BatchSteps:
        """Release the page's references; delete what that left unnamed; only then drop its entries.

        A crash in between leaves entries whose references are gone. Processed again, they finish what was begun.
        """
        nonlocal guess
        items = _releases(token, marker.cause, cast("Sequence[tuple[Path, bytes]]", pairs))
        direct = delete_now is not None and may_delete_now(len(items))
        released = references.release(items, at_once=delays if direct else None, whole_token=True, guess=guess)
        guess = guess and not released.wrong_guesses  # reading a page is cheaper than to guess it wrong
        on_released(released.removed_references, released.emptied)
        if delete_now is not None and released.deleting:
            yield from delete_now([pending_delete(*each) for each in released.deleting.items()])
        ctx.kv.delete_range(staging, pairs[0][0], pairs[-1][0])

    after = ""
    with Pipeline() as pipeline:
        while pairs := ctx.kv.scan(staging, after=after, limit=page):
            if not go_on():
                return False
            after = pairs[-1][0]
            pipeline.start(process_page(pairs))
    _stamp_processed(ctx, token)
    ctx.markers.remove_deleted(token)
    return True


def _releases(token: Token, cause: str, pairs: Sequence[tuple[Path, bytes]]) -> list[Release]:
    """Return the references of a page's entries; tombstones, and data that is not ours, have none."""
    records = decode_staged_many([value for _, value in pairs])
    return [
        Release(record.address, Reference(token, path, record.reference_id), cause, record)
        for (path, _), record in zip(pairs, records, strict=True)
        if isinstance(record, Entry) and is_own(record.address)
    ]


def _stamp_processed(ctx: Context, token: Token) -> None:
    """Record in the registry when the token was processed: later writes under it are scrubbed (rule 9)."""
    key = keys.token(ctx.repo, token)
    raw = ctx.kv.get(key)
    record = TokenRecord(created_ms=ctx.clock.now_ms()) if raw is ABSENT else decode(raw, TokenRecord)
    ctx.kv.set(key, encode(msgspec.structs.replace(record, processed_ms=ctx.clock.now_ms())))
