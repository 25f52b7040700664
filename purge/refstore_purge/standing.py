"""Where objects stand: the names that branches, tags, commits and sweeps have for them, from the firmest on.

`every_name` reads everything that names objects, in the order of `Standing`; what many trees share is read once, with
the first of them. So the first name that is seen of an object says how firmly it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core import keys
from refstore.core.batches import batched
from refstore.core.ids import Address, BranchName, CommitId, Token
from refstore.core.records import Branch, Commit, Deleting, Entry, Issued, decode, decode_staged_many
from refstore.gc_marks.commit_marks import CommitMarks
from refstore.operations import rules_document, tagging
from refstore.operations.commit_entries import entries_of_commit
from refstore.operations.referenced_entries import referenced_entries
from refstore.retention.rules import Rules
from refstore.versioning import due_hints
from refstore_purge.publish import METADATA

PAGE: Final = 1000


class Standing(IntEnum):
    BRANCH = 0
    """At a head, or staged."""
    TAG = 1
    """In a commit that a tag or a pin keeps."""
    COMMIT = 2
    """In another commit, which can be read or unmarked."""
    HIDDEN = 3
    """On a hidden branch, which a run of the purge made."""
    SWEEP = 4
    """In commits alone whose sweep began."""


class ObjectName(NamedTuple):
    standing: Standing
    ref: str
    """The branch, or the commit."""
    path: str
    entry: Entry


def every_name(ctx: Context, *, prefix: str = "") -> Iterator[ObjectName]:
    """Yield every entry below a prefix, from the firmest standing on. Raises CorruptRange, Unavailable."""
    shown: dict[BranchName, Branch] = {}
    hidden: dict[BranchName, Branch] = {}
    for name, record in list(ctx.branches.scan_open()):
        (hidden if record.hidden else shown)[name] = record
    seen: set[tuple[str, str]] = set()
    yield from _of_branches(ctx, Standing.BRANCH, shown, prefix, seen)
    pinned = _pinned(ctx)
    yield from _of_commits(ctx, Standing.TAG, [(commit, commit) for commit in pinned], prefix, seen)
    swept: list[CommitId] = []
    hidden_heads = {record.head for record in hidden.values()}
    for page in batched(ctx.kv.scan_all(keys.commits(ctx.repo)), PAGE):
        marks = CommitMarks(ctx).of([CommitId(name) for name, _ in page])
        for (name, value), mark in zip(page, marks, strict=True):
            if mark is not None and not mark.prefixes and mark.sweeping_ms:  # nobody can read or unmark it
                if not mark.swept_ms:
                    swept.append(CommitId(name))
                continue
            commit = decode(value, Commit)
            if name not in hidden_heads or METADATA not in commit.metadata:  # else a run made it for the hidden branch
                for path, entry in entries_of_commit(ctx, CommitId(name), commit, prefix, seen):
                    yield ObjectName(Standing.COMMIT, name, path, entry)
    yield from _of_branches(ctx, Standing.HIDDEN, hidden, prefix, seen)
    yield from _of_commits(ctx, Standing.SWEEP, [(commit, commit) for commit in swept], prefix, seen)


class LostName(NamedTuple):
    """A name that a reference has for an object; it may be the only one that is left."""

    address: Address
    path: str
    entry: Entry | None
    """None: it is not known."""


def lost_names(ctx: Context, prefixes: Sequence[str]) -> Iterator[LostName]:
    """Yield what has a reference below the prefixes: what is staged or in the undo trash, what the reaper deletes, and
    what was issued and not linked. Read it before `every_name`: so whatever moves meanwhile is met.

    Raises CorruptRecord, Unavailable.
    """
    for each in referenced_entries(ctx, prefixes):
        yield LostName(each.entry.address, each.path, each.entry if each.is_described else None)
    for shard in range(keys.SHARDS):
        page = due_hints.scan_due(ctx.kv, ctx.repo, shard, now_ms=None, limit=due_hints.PAGE)
        while page:
            addresses = [address for hint in page for address in hint.addresses]
            for address, record in zip(addresses, ctx.references.get_many(addresses), strict=True):
                if isinstance(record, Issued | Deleting):
                    path = record.path if isinstance(record, Issued) else record.last.path
                    if path.startswith(tuple(prefixes)):
                        yield LostName(address, path, None)
            after = page[-1].key.name
            page = due_hints.scan_due(ctx.kv, ctx.repo, shard, now_ms=None, limit=due_hints.PAGE, after=after)


def _of_branches(
    ctx: Context, standing: Standing, branches: dict[BranchName, Branch], prefix: str, seen: set[tuple[str, str]]
) -> Iterator[ObjectName]:
    for name, record in branches.items():
        for token in record.live:
            yield from _staged(ctx, standing, name, token, prefix)
    yield from _of_commits(ctx, standing, [(name, record.head) for name, record in branches.items()], prefix, seen)


def _staged(ctx: Context, standing: Standing, name: BranchName, token: Token, prefix: str) -> Iterator[ObjectName]:
    for page in batched(ctx.staging.scan(token, prefix=prefix), PAGE):
        entries = decode_staged_many([value for _, value in page])
        for (path, _), entry in zip(page, entries, strict=True):
            if isinstance(entry, Entry):
                yield ObjectName(standing, name, path, entry)


def _of_commits(
    ctx: Context, standing: Standing, named: Iterable[tuple[str, CommitId]], prefix: str, seen: set[tuple[str, str]]
) -> Iterator[ObjectName]:
    for page in batched(named, PAGE):
        values = ctx.kv.get_many([keys.commit(ctx.repo, commit) for _, commit in page])
        for (ref, commit_id), value in zip(page, values, strict=True):
            if isinstance(value, bytes):
                for path, entry in entries_of_commit(ctx, commit_id, decode(value, Commit), prefix, seen):
                    yield ObjectName(standing, ref, path, entry)


def _pinned(ctx: Context) -> list[CommitId]:
    """Return the commits that tags and pins keep, by the rules in force."""
    own = rules_document.get(ctx)
    rules = own.rules if own is not None else Rules()
    tagged = [tag.commit for name, tag in tagging.scan(ctx, prefix="", after="") if rules.holds_tag(name)]
    return list(dict.fromkeys([*tagged, *(CommitId(commit) for commit in rules.pins.commits)]))
