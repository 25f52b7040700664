"""The look: everything that must be kept, read in the one order that is safe (rule 13).

What moves while we look moves from references to staging areas, from there to heads, from heads to commits; or it is pinned. Reading in
that order, with the object listing complete before and the pins last, nothing can pass behind our back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from refstore import ids, keys
from refstore.branches import Branches
from refstore.context import Context
from refstore.errors import CorruptRecord, InvalidName
from refstore.ids import Address, CommitId, Token, is_own
from refstore.kv.base import ABSENT
from refstore.marks.commits import CommitMarks, pages
from refstore.marks.runs import Run
from refstore.records import Branch, Commit, Entry, Mark, decode, decode_staged_many


class Source(StrEnum):
    REFERENCE = "reference"
    STAGED = "staged"
    HEAD = "head"
    COMMIT = "commit"
    HISTORY = "history"
    PIN = "pin"


class Kept(NamedTuple):
    """A commit. Its tree is immutable, so when that is read makes no difference."""

    commit: CommitId
    record: Commit
    but_for: tuple[str, ...] = ()
    """What it names at paths that start so it does not keep for itself; ('',): nothing of what it names."""


class Named(NamedTuple):
    """A batch of what must be kept.

    Of each commit: its range, metarange and listing objects, of all sources (history stays readable, merges find their base); and the
    addresses that its tree names, but for `Kept.but_for`.
    """

    source: Source
    addresses: Sequence[Address] = ()
    commits: Sequence[Kept] = ()


def everything(ctx: Context, run: Run, page: int) -> Iterator[Named]:
    yield from _references(ctx, page)
    yield from _staged(ctx, page)
    yield from _heads(ctx, page)
    yield from _commits(ctx, run, page)
    yield from _pins(ctx, run, page)


def _references(ctx: Context, page: int) -> Iterator[Named]:
    """Whatever a reference's key says, its address is the online path's to delete."""
    for shard in range(keys.SHARDS):
        for found in pages(ctx.kv.scan_all(keys.references(ctx.repo, shard), page=page), page):
            yield Named(Source.REFERENCE, [_own(name) for name, _ in found])


def _staged(ctx: Context, page: int) -> Iterator[Named]:
    read: set[str] = set()
    for token, _ in ctx.kv.scan_all(keys.tokens(ctx.repo), page=page):
        read.add(token)
        yield from _under(ctx, ids.staging_token(token), page)
    # a token is registered before it can be live; but a KV that lost writes (a cluster after a failover) may know the branch alone
    for _, _, record in Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock).scan():
        for token in (*(record.live if isinstance(record, Branch) else ()), *(retired.token for retired in record.retired)):
            if token not in read:
                yield from _under(ctx, token, page)


def _under(ctx: Context, token: Token, page: int) -> Iterator[Named]:
    for found in pages(ctx.kv.scan_all(keys.staging(ctx.repo, token), page=page), page):
        entries = decode_staged_many([value for _, value in found])
        yield Named(Source.STAGED, [entry.address for entry in entries if isinstance(entry, Entry) and is_own(entry.address)])


def _heads(ctx: Context, page: int) -> Iterator[Named]:
    """A head keeps all that it names, marked or not."""
    marks = CommitMarks(ctx)
    for found in pages(marks.records(sorted(marks.heads())), page):
        yield Named(Source.HEAD, commits=[Kept(commit, record) for commit, record in found])


def _commits(ctx: Context, run: Run, page: int) -> Iterator[Named]:
    """Every unmarked commit keeps what it names, reachable or not: it may still be copied from."""
    marks = CommitMarks(ctx)
    for found in pages(ctx.kv.scan_all(keys.commits(ctx.repo), page=page), page):
        commits = [(CommitId(name), decode(value, Commit)) for name, value in found]
        expired = [_expired(run, mark) for mark in marks.of([commit for commit, _ in commits])]
        kept = [Kept(*commit, gone) for commit, gone in zip(commits, expired, strict=True) if gone != ("",)]
        if kept:
            yield Named(Source.COMMIT, commits=kept)
        left = [Kept(*commit, gone) for commit, gone in zip(commits, expired, strict=True) if gone == ("",)]
        landed = ctx.kv.get_many([keys.landed(ctx.repo, commit.commit) for commit in left]) if left else []
        history = [commit for commit, value in zip(left, landed, strict=True) if value is not ABSENT]
        if history:
            yield Named(Source.HISTORY, commits=history)


def _pins(ctx: Context, run: Run, page: int) -> Iterator[Named]:
    prefix = f"{run.mark_id}/"
    for found in pages(ctx.kv.scan_all(keys.gc_pins(ctx.repo), prefix=prefix, page=page), page):
        yield Named(Source.PIN, [_own(name.removeprefix(prefix)) for name, _ in found])


def _expired(run: Run, mark: Mark | None) -> tuple[str, ...]:
    """What the look disregards of a commit: by its own mark, one that stood before the run began, or one that is beyond recall.

    A mark that another run makes meanwhile does not count: nobody has waited for the operations that began before it.
    """
    if mark is None:
        return ()
    if mark.sweeping_ms or mark.mark_id == run.mark_id or mark.mark_id in run.record.disregards:
        return mark.prefixes or ("",)
    if mark.earlier:
        return _expired(run, decode(mark.earlier, Mark))
    return ()


def _own(name: str) -> Address:
    try:
        return ids.own_address(name)
    except InvalidName as error:
        raise CorruptRecord(f"{name[:120]!r} is the key of a reference or a pin and no address; nothing will be deleted") from error
