"""Put right what a loss of unwitnessed writes may have left (rule 21).

A server that lost writes is another process, or another file. So when other servers answer than before, and the
operations that began before have ended, a deleter settles each repository before it deletes anything:

    markers     drop deleted markers whose decision was lost: the token is live, or a commit took it
    live        register live tokens, and put back the reference of each live entry
    commits     publish what is retired, and put what commits added beyond the reaper

The order matters: a fate travels this way. Nothing is deleted meanwhile, by anybody: who passes the fence has settled
under the same servers. After a planned switch all this finds nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from refstore.context import Context
from refstore.core import event_log
from refstore.core.batches import split_batches
from refstore.core.ids import Address, Path, Token, is_own
from refstore.errors import CommitNotFound, Contention
from refstore.kv.base import ABSENT, Absent
from refstore.operations.commit_references import delete_added_references, process_committed
from refstore.records import keys
from refstore.records.branch_records import StoredBranch, TokenRecord
from refstore.records.encoding import decode, encode
from refstore.records.reference_records import Listed, Reference, decode_reference
from refstore.records.staging_records import StoredEntry, decode_staged_many
from refstore.versioning import address_state
from refstore.versioning.manifest import CommitLanded
from refstore.versioning.markers import commit_of

PAGE: Final = 1000
ATTEMPTS: Final = 16

_log = event_log.get_logger(__name__)


def settle_repository(ctx: Context) -> None:
    """Settle one repository. Raises Corrupt, Unavailable; then nothing may be deleted."""
    _drop_lost_markers(ctx)
    for name, _ in list(ctx.branches.scan_open()):
        record = ctx.branches.read(name)
        for token in record.live_tokens if isinstance(record, StoredBranch) else ():
            _register_token(ctx, token)
            _restore_references(ctx, token)
    _settle_commits(ctx)
    _log.info("repository_settled", repository=ctx.name)


def _drop_lost_markers(ctx: Context) -> None:
    for page in split_batches([token for token, _ in ctx.markers.scan_deleted()], PAGE):
        kept = _find_live_tokens(ctx, page)
        for token in page:
            if token in kept:
                ctx.markers.remove_deleted(token)


def _find_live_tokens(ctx: Context, tokens: Sequence[Token]) -> set[Token]:
    """Return which tokens are live, or a commit took them and is not processed yet. Fates travel this way: from the
    branches to the committed markers.
    """
    kept: set[Token] = set()
    for record in ctx.branches.read_of(tokens):
        kept.update(record.live_tokens if isinstance(record, StoredBranch) else ())
        kept.update(item.token for item in record.retired_tokens if commit_of(item.fate) is not None)
    for _, marker in ctx.markers.scan_committed():
        kept.update(marker.tokens)
    return kept.intersection(tokens)


def _register_token(ctx: Context, token: Token) -> None:
    key = keys.token(ctx.repo, token)
    value = ctx.kv.get(key)
    if value is ABSENT or decode(value, TokenRecord).processed_ms:
        ctx.kv.set(key, encode(TokenRecord(created_ms=ctx.clock.now_ms())))


def _restore_references(ctx: Context, token: Token) -> None:
    """Put back the references of a live token's entries. An entry without a reference, because its address is
    committed, gets one where the address still has a key: that its commit was processed is lost, and `_settle_commits`
    removes the key.
    """
    after = ""
    while page := ctx.kv.scan(keys.staging(ctx.repo, token), after=after, limit=PAGE):
        after = page[-1][0]
        records = decode_staged_many([value for _, value in page])
        entries = [
            (Path(path), record)
            for (path, _), record in zip(page, records, strict=True)
            if isinstance(record, StoredEntry) and is_own(record.address)
        ]
        values = ctx.kv.get_many(keys.reference_keys(ctx.repo, [record.address for _, record in entries]))
        for (path, record), value in zip(entries, values, strict=True):
            if not _has_reference(value, Reference(token, path, record.reference_id)):
                _restore_reference(ctx, token, path, record)


def _has_reference(value: bytes | Absent, reference: Reference) -> bool:
    """Return whether the list has the reference. A missing key stays missing: the address is committed, or beyond the
    online path.
    """
    if value is ABSENT:
        return True
    record = decode_reference(value)
    return isinstance(record, Listed) and reference in record.references


def _restore_reference(ctx: Context, token: Token, path: Path, entry: StoredEntry) -> None:
    """Put back the reference of a live entry, whatever stands there.

    The entry must be live still: another deleter may have settled already, and gone on.
    """

    def is_entry_live() -> bool:
        now = ctx.kv.get(keys.entry(ctx.repo, token, path))
        return now is not ABSENT and decode_staged_many([now])[0] == entry and ctx.branches.has_live([token])

    relist_reference(ctx, Address(entry.address), Reference(token, path, entry.reference_id), only_if=is_entry_live)


def relist_reference(
    ctx: Context, address: Address, reference: Reference, *, only_if: Callable[[], bool] = lambda: True
) -> None:
    """Put a reference on an address's list, whatever stands there; a missing key stays missing. Raises Contention."""
    key = keys.reference(ctx.repo, address)
    for _ in range(ATTEMPTS):
        value = ctx.kv.get(key)
        if _has_reference(value, reference) or not only_if():
            return
        assert value is not ABSENT  # noqa: S101  # a missing key holds everything
        after = address_state.list_again(decode_reference(value), reference, ctx.clock.now_ms())
        if ctx.kv.set_if(key, value, encode(after)):
            return
    raise Contention(f"others kept changing the references of {address}; the next pass tries again")


def _settle_commits(ctx: Context) -> None:
    for name, _, record in list(ctx.branches.scan()):
        if record.retired_tokens or not isinstance(record, StoredBranch):
            ctx.markers.publish(ctx.branches, name)
    for commit, marker in list(ctx.markers.scan_committed()):
        if not ctx.branches.has_live(marker.tokens):  # else the decision was lost: the marker is left alone
            process_committed(ctx, commit, marker)
    for entry in ctx.manifest.read_waiting():
        if isinstance(entry, CommitLanded):
            with suppress(CommitNotFound):  # lost with a deleted repository; in another one nobody would settle yet
                delete_added_references(ctx, entry.commit)
