"""From decided fates to released references: the middle of the way `retired -> markers -> references -> empty`.

Committed first (rule 7): a committed marker deletes the reference keys of the commit's added addresses, and only then hands
its tokens over as deleted, so that what was overwritten or tombstoned before the commit loses its reference.

A corrupt record, range or listing raises, and what depends on it is left as it is. All of this may be done again, by anybody,
from any point: what was done before is found done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from refstore import keys
from refstore.branches import Branches
from refstore.context import Context
from refstore.deletions.journal_format import Doomed
from refstore.errors import CorruptRecord
from refstore.flows import refs
from refstore.ids import Address, BranchName, CommitId, Path, Token, are_own, is_own
from refstore.kv.base import ABSENT
from refstore.markers import COMMITTED, Markers
from refstore.records import (
    Branch,
    CommittedTokens,
    DeletedToken,
    Entry,
    Reference,
    TokenRecord,
    decode,
    decode_branch,
    decode_staged_many,
    encode,
)
from refstore.references import References, Release

PAGE: Final = 5000
"""Entries of a token that are released with shared round trips: on SQLite, one transaction of some 40 ms."""


Settle = Callable[[], object]

DeleteNow = Callable[[list[Doomed]], Settle | None]
"""Deletes what is handed over, or begins to: then it returns what waits until that is done."""


class Processed(NamedTuple):
    """What processing one token did, counted as it was seen to happen."""

    entries: int
    released: int
    """References taken off their lists."""
    emptied: int
    """Addresses that lost their last reference."""
    finished: bool = True
    """Whether the whole token was processed, and its marker is gone."""


def publish(ctx: Context, *, on_corrupt: Callable[[BranchName, CorruptRecord], None] | None = None) -> int:
    """Publish what operations retired and did not live to publish (rule 3); how many tokens.

    A branch record that cannot be read is told, and stops no other branch; without `on_corrupt` it raises.
    """
    branches = Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock)
    markers = Markers(ctx.kv, ctx.repo, ctx.clock)
    pending: list[BranchName] = []
    for name, raw in ctx.kv.scan_all(keys.branches(ctx.repo)):
        try:
            record = decode_branch(raw)
        except CorruptRecord as error:
            if on_corrupt is None:
                raise
            on_corrupt(BranchName(name), error)
            continue
        if record.retired or not isinstance(record, Branch):
            pending.append(BranchName(name))
    return sum(markers.publish(branches, name) for name in pending)


def process_committed(
    ctx: Context, commit_id: CommitId, marker: CommittedTokens, *, go_on: Callable[[], bool] | None = None, page: int = PAGE
) -> int | None:
    """Forget the references of what a commit added, then hand its tokens over as deleted; how many addresses it added.

    None: `go_on` said no in between; the marker stays, and it begins again. Raises CommitNotFound, CorruptRange: then nothing of
    it was released, and the marker stays.
    """
    commit = refs.get_commit(ctx, commit_id)
    references = References(ctx.kv, ctx.repo, ctx.clock)
    markers = Markers(ctx.kv, ctx.repo, ctx.clock)
    count = 0
    if commit.added:
        for batch in ctx.trees.read_added(commit.added):
            for start in range(0, len(batch), page):
                if go_on is not None and not go_on():
                    return None
                references.forget(batch[start : start + page])
            count += len(batch)
    markers.set_deleted(marker.tokens, f"{COMMITTED}{commit_id}")
    markers.remove_committed(commit_id)
    return count


def process_deleted(
    ctx: Context,
    token: Token,
    marker: DeletedToken,
    *,
    grace_seconds: float,
    delete_now: DeleteNow | None = None,
    may_delete_now: Callable[[int], bool] | None = None,
    on_released: Callable[[int, int], None] | None = None,
    go_on: Callable[[], bool] | None = None,
    page: int = PAGE,
) -> Processed:
    """Release every reference under a token, page by page, then drop its entries, then the marker.

    With `delete_now`, what loses its last reference becomes `deleting` at once and is handed over, page by page; without, or
    where `may_delete_now` says no to so many, it enters its grace window. A page's entries go only after its references, and
    after what was handed over is settled: a crash leaves entries whose references are gone, and who processes them again
    finishes what was begun. `on_released` is told of each page how many references were taken off, and how many addresses lost their
    last one: also of those before an error. Raises CorruptRecord: the page that it stands on was not touched.
    """
    references = References(ctx.kv, ctx.repo, ctx.clock)
    staging = keys.staging(ctx.repo, token)
    entries = released = emptied = 0
    behind = _Behind(ctx, staging)
    guess = not marker.cause.startswith(COMMITTED)  # what a commit took has mostly no list any more
    after = ""
    while pairs := ctx.kv.scan(staging, after=after, limit=page):
        if go_on is not None and not go_on():
            behind.drop()
            return Processed(entries, released, emptied, finished=False)
        after = pairs[-1][0]
        items = _releases(token, marker.cause, pairs)
        direct = delete_now is not None and (may_delete_now is None or may_delete_now(len(items)))
        done = references.release(items, grace_seconds=grace_seconds, direct=direct, whole_token=True, guess=guess)
        guess = guess and not done.missed  # reading a page is cheaper than to guess it wrong
        entries += len(pairs)
        released += done.removed
        emptied += len(done.emptied)
        if on_released is not None:
            on_released(done.removed, len(done.emptied))
        settle = delete_now(_doomed(items, done.emptied)) if delete_now is not None and direct and done.emptied else None
        behind.drop()
        behind = _Behind(ctx, staging, pairs[0][0], pairs[-1][0], settle)
    behind.drop()
    _stamp_processed(ctx, token)
    Markers(ctx.kv, ctx.repo, ctx.clock).remove_deleted(token)
    return Processed(entries, released, emptied)


class _Behind:
    """The page before the one in hand: its blobs may still be on their way out while the next one's references are released."""

    def __init__(self, ctx: Context, staging: str, first: str = "", last: str = "", settle: Settle | None = None) -> None:
        self._ctx = ctx
        self._staging = staging
        self._first = first
        self._last = last
        self._settle = settle

    def drop(self) -> None:
        """The page's entries go, once everything that was begun with them is done."""
        if self._settle is not None:
            self._settle()
        if self._last:
            self._ctx.kv.delete_range(self._staging, self._first, self._last)


def _releases(token: Token, cause: str, pairs: Sequence[tuple[str, bytes]]) -> list[Release]:
    """The references of a page's entries; tombstones, and data that is not ours, have none."""
    records = decode_staged_many([value for _, value in pairs])
    entries = [(path, record) for (path, _), record in zip(pairs, records, strict=True) if isinstance(record, Entry)]
    if not are_own([record.address for _, record in entries]):
        entries = [(path, record) for path, record in entries if is_own(record.address)]
    return [Release(record.address, Reference(token, Path(path), record.reference_id), cause, record) for path, record in entries]


def _doomed(items: Sequence[Release], emptied: Sequence[Address]) -> list[Doomed]:
    by_address = {item.address: item for item in items}
    return [
        Doomed(address, item.reference.token, item.reference.path, item.cause, item.entry.size_bytes if item.entry else -1)
        for address in emptied
        for item in (by_address[address],)
    ]


def _stamp_processed(ctx: Context, token: Token) -> None:
    """Note in the registry when the token was processed: late writes into it are scrubbed some time after (rule 9)."""
    key = keys.token(ctx.repo, token)
    found = ctx.kv.get(key)
    record = TokenRecord(created_ms=ctx.clock.now_ms()) if found is ABSENT else decode(found, TokenRecord)
    ctx.kv.set(key, encode(msgspec.structs.replace(record, processed_ms=ctx.clock.now_ms())))
