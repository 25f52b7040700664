"""Yield what any version names: staging areas, heads, and every commit that can still be read or unmarked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from refstore.context import Context
from refstore.core.batches import split_batches
from refstore.core.ids import CommitId, Token
from refstore.gc_marks.commit_marks import CommitMarks
from refstore.kv.base import ABSENT
from refstore.operations.commit_entries import entries_of_commit
from refstore.records import keys
from refstore.records.branch_records import StoredBranch
from refstore.records.commit_records import StoredCommit
from refstore.records.encoding import decode
from refstore.records.staging_records import StoredEntry, decode_staged, decode_staged_many


class VersionedEntry(NamedTuple):
    ref: str
    """The branch, or the commit."""
    path: str
    entry: StoredEntry


def scan_versions(ctx: Context, *, prefixes: Sequence[str] = ("",)) -> Iterator[VersionedEntry]:
    """Yield the entries of staging areas, then of commits, in the order in which entries move; of each of them those
    below any of the prefixes. An entry that stands in many commits is yielded under one of them; heads come first.
    """
    heads: dict[CommitId, str] = {}
    for branch, _, record in list(ctx.branches.scan()):
        if isinstance(record, StoredBranch):
            heads.setdefault(record.head, branch)
            for token, prefix in product(record.live_tokens, prefixes):
                yield from (VersionedEntry(branch, *each) for each in staged_entries(ctx, token, prefix))
    seen: set[tuple[str, str]] = set()
    for ref, commit_id, commit in _readable_commits(ctx, heads):
        for prefix in prefixes:
            for path, entry in entries_of_commit(ctx, commit_id, commit, prefix, seen):
                yield VersionedEntry(ref, path, entry)


def staged_entries(ctx: Context, token: Token, prefix: str) -> Iterator[tuple[str, StoredEntry]]:
    """Yield the entries of a staging area below a prefix, by path."""
    for page in split_batches(ctx.staging.scan(token, prefix=prefix)):
        entries = decode_staged_many([value for _, value in page])
        for (path, _), entry in zip(page, entries, strict=True):
            if isinstance(entry, StoredEntry):
                yield path, entry


def read_commits(ctx: Context, named: Iterable[tuple[str, CommitId]]) -> Iterator[tuple[str, CommitId, StoredCommit]]:
    """Yield those of the commits that are there, each under what names it."""
    for page in split_batches(named):
        values = ctx.kv.get_many([keys.commit(ctx.repo, commit) for _, commit in page])
        for (ref, commit_id), value in zip(page, values, strict=True):
            if isinstance(value, bytes):
                yield ref, commit_id, decode(value, StoredCommit)


def _readable_commits(ctx: Context, heads: Mapping[CommitId, str]) -> Iterator[tuple[str, CommitId, StoredCommit]]:
    """Yield the heads under their branches' names, then all other commits but those that are swept: nobody can unmark
    these, and what is left of them has another name. Those that have not landed come last: what a commit that landed
    has, too, is yielded under that one.
    """
    yield from read_commits(ctx, [(branch, head) for head, branch in heads.items()])
    not_landed: list[CommitId] = []
    for page in split_batches(ctx.kv.scan_all(keys.commits(ctx.repo))):
        commits = [CommitId(name) for name, _ in page]
        landed = ctx.kv.get_many([keys.landed_mark(ctx.repo, commit) for commit in commits])
        marks = CommitMarks(ctx).read_marks(commits)
        for commit, (_, value), is_landed, mark in zip(commits, page, landed, marks, strict=True):
            if mark is not None and mark.sweeping_ms and not mark.prefixes:
                continue
            if is_landed is ABSENT:
                not_landed.append(commit)
            else:
                yield commit, commit, decode(value, StoredCommit)
    yield from read_commits(ctx, [(commit, commit) for commit in not_landed])


def names_objects(ctx: Context) -> bool:
    """Return whether any commit, or any branch's staging area, names an object. A tag names a commit."""
    if any(decode(value, StoredCommit).metarange for _, value in ctx.kv.scan_all(keys.commits(ctx.repo))):
        return True
    return any(
        isinstance(decode_staged(value), StoredEntry)
        for _, branch in ctx.branches.scan_open()
        for _, value, _ in ctx.staging.scan_merged(branch.live_tokens)
    )
