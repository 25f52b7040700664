"""The live scan: everything that must be kept, read in the one order that is safe (rule 13).

What moves during the scan moves from references to staging areas, from there to heads, and from heads to commits; or it
is pinned. The scan reads in that order, after the object listing is complete, and the pins behind all. So it misses
nothing. Last it reads where purged content lies (rule 22): what a run writes stands in such a record before it is
written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from refstore.context import Context
from refstore.core import ids
from refstore.core.batches import split_batches
from refstore.core.ids import Address, CommitId, Token, is_own
from refstore.errors import CorruptRecord, InvalidName
from refstore.gc_marks.commit_marks import CommitMarks
from refstore.gc_marks.offline_runs import OfflineRun
from refstore.kv.base import ABSENT
from refstore.records import keys
from refstore.records.branch_records import StoredBranch
from refstore.records.commit_records import StoredCommit
from refstore.records.encoding import decode
from refstore.records.mark_records import StoredMark
from refstore.records.staging_records import StoredEntry, decode_staged_many


class LiveSource(StrEnum):
    REFERENCE = "reference"
    STAGED = "staged"
    HEAD = "head"
    COMMIT = "commit"
    HISTORY = "history"
    PIN = "pin"
    LOCATION = "location"


class LiveCommit(NamedTuple):
    """A commit that the scan found. Its tree is immutable, so it may be read at any time."""

    commit: CommitId
    record: StoredCommit
    expired_prefixes: tuple[str, ...] = ()
    """The commit does not keep what it names at paths with these prefixes. ('',): it keeps nothing."""


class LiveBatch(NamedTuple):
    """A part of what must be kept.

    Of each commit: its range, metarange and listing objects, of all sources (history stays readable, merges find their
    base); and the addresses that its tree names, except at `LiveCommit.expired_prefixes`.
    """

    source: LiveSource
    addresses: Sequence[Address] = ()
    commits: Sequence[LiveCommit] = ()
    identities: Sequence[Address] = ()
    """Identities whose content lies elsewhere (rule 22). It is kept among the `addresses`; whether the identity is
    live, what commits and the KV name decides.
    """


def scan_live_set(ctx: Context, run: OfflineRun, page: int) -> Iterator[LiveBatch]:
    yield from _scan_references(ctx, page)
    yield from _scan_staged(ctx, page)
    yield from _scan_heads(ctx, page)
    yield from _scan_commits(ctx, run, page)
    yield from _scan_pins(ctx, run, page)
    yield from _scan_locations(ctx, page)


def _scan_references(ctx: Context, page: int) -> Iterator[LiveBatch]:
    """Yield the addresses that have references: only the online path deletes them."""
    for shard in range(keys.SHARDS):
        for rows in split_batches(ctx.kv.scan_all(keys.references(ctx.repo, shard), page=page), page):
            yield LiveBatch(LiveSource.REFERENCE, [_parse_own_address(name) for name, _ in rows])


def _scan_staged(ctx: Context, page: int) -> Iterator[LiveBatch]:
    read: set[str] = set()
    for token, _ in ctx.kv.scan_all(keys.tokens(ctx.repo), page=page):
        read.add(token)
        yield from _scan_token(ctx, ids.staging_token(token), page)
    # a token is registered before it can be live; but a KV that lost writes (a cluster after a failover) may know the
    # branch alone
    for _, _, record in ctx.branches.scan():
        for token in (
            *(record.live_tokens if isinstance(record, StoredBranch) else ()),
            *(retired.token for retired in record.retired_tokens),
        ):
            if token not in read:
                yield from _scan_token(ctx, token, page)


def _scan_token(ctx: Context, token: Token, page: int) -> Iterator[LiveBatch]:
    for rows in split_batches(ctx.kv.scan_all(keys.staging(ctx.repo, token), page=page), page):
        entries = decode_staged_many([value for _, value in rows])
        yield LiveBatch(
            LiveSource.STAGED,
            [entry.address for entry in entries if isinstance(entry, StoredEntry) and is_own(entry.address)],
        )


def _scan_heads(ctx: Context, page: int) -> Iterator[LiveBatch]:
    """Yield the heads. A head keeps all that it names, marked or not."""
    marks = CommitMarks(ctx)
    for rows in split_batches(marks.read_commits(sorted(marks.read_heads())), page):
        yield LiveBatch(LiveSource.HEAD, commits=[LiveCommit(commit, record) for commit, record in rows])


def _scan_commits(ctx: Context, run: OfflineRun, page: int) -> Iterator[LiveBatch]:
    """Yield the commits. An unmarked commit keeps what it names, reachable or not, because it may be copied from."""
    marks = CommitMarks(ctx)
    for rows in split_batches(ctx.kv.scan_all(keys.commits(ctx.repo), page=page), page):
        commits = [(CommitId(name), decode(value, StoredCommit)) for name, value in rows]
        expired = [_expired_prefixes(run, mark) for mark in marks.read_marks([commit for commit, _ in commits])]
        kept = [LiveCommit(*commit, gone) for commit, gone in zip(commits, expired, strict=True) if gone != ("",)]
        if kept:
            yield LiveBatch(LiveSource.COMMIT, commits=kept)
        left = [LiveCommit(*commit, gone) for commit, gone in zip(commits, expired, strict=True) if gone == ("",)]
        landed = ctx.kv.get_many([keys.landed_mark(ctx.repo, commit.commit) for commit in left]) if left else []
        history = [commit for commit, value in zip(left, landed, strict=True) if value is not ABSENT]
        if history:
            yield LiveBatch(LiveSource.HISTORY, commits=history)


def _scan_pins(ctx: Context, run: OfflineRun, page: int) -> Iterator[LiveBatch]:
    prefix = f"{run.mark_id}/"
    for rows in split_batches(ctx.kv.scan_all(keys.gc_pins(ctx.repo), prefix=prefix, page=page), page):
        yield LiveBatch(LiveSource.PIN, [_parse_own_address(name.removeprefix(prefix)) for name, _ in rows])


def _scan_locations(ctx: Context, page: int) -> Iterator[LiveBatch]:
    """Yield what the records of purged objects name: contents, intents, backups. They go with their records alone."""
    if not ctx.locations.are_announced():
        return
    for rows in split_batches(ctx.locations.scan_addresses(page), page):
        kept = [address for identity, addresses in rows for address in addresses if address and address != identity]
        yield LiveBatch(LiveSource.LOCATION, kept, identities=[identity for identity, _ in rows])


def _expired_prefixes(run: OfflineRun, mark: StoredMark | None) -> tuple[str, ...]:
    """Return the prefixes that the scan disregards of a commit: by the run's own mark, by one that stood before the run
    began, or by one that is being swept.

    A mark that another run makes meanwhile does not count, because this run did not wait for the operations before it.
    """
    if mark is None:
        return ()
    if mark.sweeping_ms or mark.mark_id == run.mark_id or mark.mark_id in run.record.disregarded_marks:
        return mark.prefixes or ("",)
    if mark.earlier_marks:
        return _expired_prefixes(run, decode(mark.earlier_marks, StoredMark))
    return ()


def _parse_own_address(name: str) -> Address:
    try:
        return ids.own_address(name)
    except InvalidName as error:
        raise CorruptRecord(
            f"{name[:120]!r} is the key of a reference or a pin and no address; nothing will be deleted"
        ) from error
