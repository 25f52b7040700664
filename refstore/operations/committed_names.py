"""Find out whether a commit names an address that has no reference: a missing key does not tell (rule 4).

A commit names the addresses that it added against its first parent, which its listing says, and those it inherited.
So the listings are searched first, beginning with the commits dated soonest after the address was made. (Dates can be
set by hand, so the other commits follow.) Then the trees are searched of commits that may have inherited the address.
The search is bounded; where a bound is reached, the answer is that it is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from refstore.context import Context
from refstore.core import ids
from refstore.core.batches import split_batches
from refstore.core.ids import Address, CommitId, Path
from refstore.kv.base import ABSENT
from refstore.operations import tag as tag_operation
from refstore.operations.refs import get_commit, head_commit, swept_mark
from refstore.records import keys
from refstore.records.commit_records import StoredCommit
from refstore.records.encoding import decode

ADDED_FILES_MAX: Final = 128
"""How many listings are read."""
CHANGES_MAX: Final = 1_000_000
"""How many changed paths are searched for those at which a commit put an address."""
TREES_MAX: Final = 1000
"""How many commits' trees are searched."""
_PAGE: Final = 1000


class CommittedName(NamedTuple):
    """What committed history says of an address."""

    commit: CommitId | None = None
    """A commit that names the address and is not swept; None: no such commit was found."""
    path: Path | None = None
    """The path at which that commit names it."""
    swept_commit: CommitId | None = None
    """A commit that named the address, and is swept."""
    is_complete: bool = True
    """Whether everything was searched."""
    is_tagged: bool = False
    """Whether the sweep of `swept_commit` has tagged what it takes, and the bucket has yet to delete it."""


def committed_name(ctx: Context, address: Address) -> CommittedName:
    """Search committed history for a name of the address. Raises CorruptRange, Unavailable."""
    swept: CommitId | None = None
    is_tagged = False
    paths: set[Path] = set()
    lowest, complete = -1, True
    for adding in adding_commits(ctx, address):
        if adding is None:
            complete = False
            break
        commit, record = adding
        changed_paths = _find_put_paths(ctx, record, address)
        if changed_paths is None:
            complete = False
            continue
        paths |= set(changed_paths)
        lowest = record.generation if lowest < 0 else min(lowest, record.generation)
        marks = [(path, swept_mark(ctx, commit, path)) for path in changed_paths]
        unswept = [path for path, mark in marks if mark is None]
        if unswept:
            return CommittedName(commit, unswept[0])
        swept, is_tagged = commit, any(mark.tagged_ms and not mark.swept_ms for _, mark in marks if mark is not None)
    if not paths:
        return CommittedName(is_complete=complete)
    for number, (commit, record) in enumerate(_other_commits(ctx, lowest)):
        if number == TREES_MAX:
            complete = False
            break
        for path, entry in ctx.trees.get_many(record.metarange, sorted(paths)).items():
            if entry.address == address and swept_mark(ctx, commit, Path(path)) is None:
                return CommittedName(commit, Path(path))
    return CommittedName(None, None, swept, complete, is_tagged)


def is_named_by(ctx: Context, address: Address, commits: Iterable[tuple[CommitId, StoredCommit]]) -> bool:
    """Return whether one of these commits is known to name the address. Raises CorruptRange, Unavailable."""
    few = list(islice(commits, TREES_MAX))
    if not few:
        return False
    paths: set[Path] = set()
    for adding in adding_commits(ctx, address):
        paths |= set((adding and _find_put_paths(ctx, adding[1], address)) or ())
    return any(
        entry.address == address
        for _, record in few
        for entry in ctx.trees.get_many(record.metarange, sorted(paths)).values()
    )


def adding_commits(ctx: Context, address: Address) -> Iterator[tuple[CommitId, StoredCommit] | None]:
    """Yield the commits whose listing has the address, and None at the end if not all listings were read."""
    address_ms = ids.address_time_ms(address)
    made_ms = address_ms - int(ctx.waits.clock_skew_seconds * 1000) if address_ms is not None else 0
    rows = [(commit, record) for commit, record in landed_commits(ctx) if record.added_addresses_id]
    rows.sort(key=lambda row: (row[1].created_ms < made_ms, abs(row[1].created_ms - made_ms)))
    for commit, record in rows[:ADDED_FILES_MAX]:
        # a listing is sorted, but is read whole: its hash is verified before anything is given out
        if any(
            batch[0] <= address <= batch[-1] and address in batch
            for batch in ctx.trees.read_added_addresses(record.added_addresses_id)
            if batch
        ):
            yield commit, record
    if len(rows) > ADDED_FILES_MAX:
        yield None


def landed_commits(ctx: Context) -> Iterator[tuple[CommitId, StoredCommit]]:
    """Yield every commit that landed, in order of id."""
    for page in split_batches(ctx.kv.scan_all(keys.commits(ctx.repo)), _PAGE):
        landed = ctx.kv.get_many([keys.landed_mark(ctx.repo, CommitId(name)) for name, _ in page])
        for (name, value), mark in zip(page, landed, strict=True):
            if mark is not ABSENT:
                yield CommitId(name), decode(value, StoredCommit)


def _find_put_paths(ctx: Context, record: StoredCommit, address: Address) -> list[Path] | None:
    """Return the paths at which a commit put an address; None: the commit has too many changes to search."""
    parent = get_commit(ctx, record.parents[0]).metarange if record.parents else ""
    changes = ctx.trees.diff(parent, record.metarange)
    paths = [
        Path(each.path)
        for each in islice(changes, CHANGES_MAX)
        if each.right is not None and each.right.address == address
    ]
    return paths if paths or next(changes, None) is None else None


def _other_commits(ctx: Context, lowest: int) -> Iterator[tuple[CommitId, StoredCommit]]:
    """Yield commits that may have inherited the address: heads and tagged commits first."""
    yielded: set[CommitId] = set()
    heads = [record.head for _, record in ctx.branches.scan_open()]
    heads += [tag.commit for _, tag in tag_operation.scan_tags(ctx, prefix="", after="")]
    for commit in heads:
        if commit not in yielded:
            yielded.add(commit)
            yield commit, head_commit(ctx, commit)
    for commit, record in landed_commits(ctx):
        if commit not in yielded and record.generation > lowest:
            yield commit, record
