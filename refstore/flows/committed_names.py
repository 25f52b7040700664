"""Whether a commit names an address that has no reference: a key that is missing does not say so (rule 4).

A commit names what it added against its first parent, which its listing says, and what it has from there. So the listings are looked
through, of the commits first that are dated next after the address was made (dates can be set by hand, so the others follow); then the
trees of those that may have it from a commit that added it. All of it within bounds: where they end the answer is that it is not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from refstore import ids, keys
from refstore.branches import Branches
from refstore.context import Context
from refstore.flows import tagging
from refstore.flows.refs import get_commit, head_commit
from refstore.ids import Address, CommitId, Path
from refstore.kv.base import ABSENT
from refstore.records import Commit, Mark, decode, maybe

LISTINGS_MAX: Final = 128
"""Listings that are read."""
CHANGES_MAX: Final = 1_000_000
"""Changed paths that are looked through for those at which a commit put an address."""
TREES_MAX: Final = 1000
"""Commits whose trees are looked into."""
_PAGE: Final = 1000


class CommittedName(NamedTuple):
    """What committed history says of an address."""

    commit: CommitId | None = None
    """A commit that names it and is not swept; None: none was found."""
    path: Path | None = None
    """Where."""
    swept: CommitId | None = None
    """A commit that named it, and is swept."""
    complete: bool = True
    """Whether everything was looked at."""


def committed_name(ctx: Context, address: Address) -> CommittedName:
    """Raises CorruptRange, Unavailable: something cannot be read."""
    swept: CommitId | None = None
    paths: set[Path] = set()
    lowest, complete = -1, True
    for found in adding_commits(ctx, address):
        if found is None:
            complete = False
            break
        commit, record = found
        put = _paths_put(ctx, record, address)
        if put is None:
            complete = False
            continue
        paths |= set(put)
        lowest = record.generation if lowest < 0 else min(lowest, record.generation)
        left = [path for path in put if not _is_swept(ctx, commit, path)]
        if left:
            return CommittedName(commit, left[0])
        swept = commit
    if not paths:
        return CommittedName(complete=complete)
    for number, (commit, record) in enumerate(_others(ctx, lowest)):
        if number == TREES_MAX:
            complete = False
            break
        for path, entry in ctx.trees.get_many(record.metarange, sorted(paths)).items():
            if entry.address == address and not _is_swept(ctx, commit, Path(path)):
                return CommittedName(commit, Path(path))
    return CommittedName(None, None, swept, complete)


def adding_commits(ctx: Context, address: Address) -> Iterator[tuple[CommitId, Commit] | None]:
    """Yield the commits whose listing has the address, and None at the end if not all listings were read."""
    made = ids.made_ms(address)
    made_ms = made - int(ctx.safety.clock_skew_seconds * 1000) if made is not None else 0
    rows = [(commit, record) for commit, record in landed_commits(ctx) if record.added]
    rows.sort(key=lambda row: (row[1].created_ms < made_ms, abs(row[1].created_ms - made_ms)))
    for commit, record in rows[:LISTINGS_MAX]:
        # a listing is sorted, but is read whole: its hash is verified before anything is given out
        if any(batch[0] <= address <= batch[-1] and address in batch for batch in ctx.trees.read_added(record.added) if batch):
            yield commit, record
    if len(rows) > LISTINGS_MAX:
        yield None


def landed_commits(ctx: Context) -> Iterator[tuple[CommitId, Commit]]:
    """Yield every commit that landed. Both partitions are in order of id, so neither is held."""
    rows = ctx.kv.scan_all(keys.commits(ctx.repo))
    while page := list(islice(rows, _PAGE)):
        landed = ctx.kv.get_many([keys.landed(ctx.repo, CommitId(name)) for name, _ in page])
        for (name, value), mark in zip(page, landed, strict=True):
            if mark is not ABSENT:
                yield CommitId(name), decode(value, Commit)


def _paths_put(ctx: Context, record: Commit, address: Address) -> list[Path] | None:
    """The paths at which a commit put an address; None: it changed too much to be looked through."""
    parent = get_commit(ctx, record.parents[0]).metarange if record.parents else ""
    changes = ctx.trees.diff(parent, record.metarange)
    found = [Path(each.path) for each in islice(changes, CHANGES_MAX) if each.right is not None and each.right.address == address]
    return found if found or next(changes, None) is None else None


def _others(ctx: Context, lowest: int) -> Iterator[tuple[CommitId, Commit]]:
    """Commits that may have the address from one that added it: heads, and what tags name, first."""
    seen: set[CommitId] = set()
    named = [record.head for _, record in Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock).scan_open()]
    named += [tag.commit for _, tag in tagging.scan(ctx, prefix="", after="")]
    for commit in named:
        if commit not in seen:
            seen.add(commit)
            yield commit, head_commit(ctx, commit)
    for commit, record in landed_commits(ctx):
        if commit not in seen and record.generation > lowest:
            yield commit, record


def _is_swept(ctx: Context, commit: CommitId, path: Path) -> bool:
    """Whether what a commit alone names at a path was deleted, or is being."""
    mark = maybe(ctx.kv.get(keys.mark(ctx.repo, commit)), Mark)
    if mark is not None and mark.earlier and not mark.sweeping_ms:
        mark = decode(mark.earlier, Mark)  # a part was swept before the rest was marked
    return mark is not None and bool(mark.sweeping_ms) and mark.covers((path,))
