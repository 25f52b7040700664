"""Where objects stand: the names that branches, tags, commits and sweeps have for them, from the firmest on.

`scan_names` reads everything that names objects, in the order of `HolderKind`; what many trees share is read once, with
the first of them. So the first name that is seen of an object says how firmly it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from refstore.context import Context
from refstore.core.batches import split_batches
from refstore.core.ids import Address, BranchName, CommitId
from refstore.gc_marks.commit_marks import CommitMarks
from refstore.kv.base import ABSENT
from refstore.operations import tag as tag_operation
from refstore.operations.commit_entries import entries_of_commit
from refstore.operations.referenced_entries import referenced_entries
from refstore.operations.rules_in_force import get_rules
from refstore.operations.version_entries import read_commits, staged_entries
from refstore.records import keys
from refstore.records.branch_records import StoredBranch
from refstore.records.commit_records import StoredCommit
from refstore.records.encoding import decode
from refstore.records.reference_records import Deleting, Issued
from refstore.records.staging_records import StoredEntry
from refstore.retention.rules import Rules
from refstore.versioning import due_hints
from refstore_purge.purge_report import PURGE_NOTE


class HolderKind(IntEnum):
    BRANCH = 0
    """At a head, or staged."""
    TAG = 1
    """In a commit that a tag or a pin keeps."""
    COMMIT = 2
    """In another commit, which can be read or unmarked."""
    HIDDEN = 3
    """On a hidden branch: of a run of the purge, of a transaction, or of somebody else."""
    SWEEP = 4
    """In commits alone whose sweep began."""


class ObjectName(NamedTuple):
    """A name that an object has, or had."""

    holder: HolderKind | None
    """None: only a reference has the name, which may be the only one that is left."""
    ref: str
    """The branch, or the commit."""
    path: str
    address: Address
    entry: StoredEntry | None
    """None: it is not known."""
    is_open_upload: bool = False
    """Whether the parts of an upload will be joined there: nobody can look into it before."""


def is_never_landed(ctx: Context, ref: str) -> bool:
    """Return whether a ref is a commit that has not landed: nobody can read it, and it keeps nothing."""
    is_commit = ctx.kv.get(keys.commit(ctx.repo, CommitId(ref))) is not ABSENT
    return is_commit and not ctx.markers.has_landed(CommitId(ref))


def scan_names(ctx: Context, *, prefix: str = "") -> Iterator[ObjectName]:
    """Yield every entry below a prefix, from the firmest holder on. Raises CorruptRange, Unavailable."""
    shown: dict[BranchName, StoredBranch] = {}
    hidden: dict[BranchName, StoredBranch] = {}
    for name, record in list(ctx.branches.scan_open()):
        (hidden if record.is_hidden else shown)[name] = record
    seen: set[tuple[str, str]] = set()
    yield from _names_on_branches(ctx, HolderKind.BRANCH, shown, prefix, seen)
    pinned = _find_pinned_commits(ctx)
    yield from _names_in_commits(ctx, HolderKind.TAG, [(commit, commit) for commit in pinned], prefix, seen)
    swept: list[CommitId] = []
    hidden_heads = {record.head for record in hidden.values()}
    for page in split_batches(ctx.kv.scan_all(keys.commits(ctx.repo))):
        marks = CommitMarks(ctx).read_marks([CommitId(name) for name, _ in page])
        for (name, value), mark in zip(page, marks, strict=True):
            if mark is not None and not mark.prefixes and mark.sweeping_ms:  # nobody can unmark it
                if not mark.swept_ms:
                    swept.append(CommitId(name))
                continue
            commit = decode(value, StoredCommit)
            if name not in hidden_heads or PURGE_NOTE not in commit.notes:  # else a run made it for the hidden branch
                for path, entry in entries_of_commit(ctx, CommitId(name), commit, prefix, seen):
                    yield ObjectName(HolderKind.COMMIT, name, path, entry.address, entry)
    yield from _names_on_branches(ctx, HolderKind.HIDDEN, hidden, prefix, seen)
    yield from _names_in_commits(ctx, HolderKind.SWEEP, [(commit, commit) for commit in swept], prefix, seen)


def scan_lost_names(ctx: Context, prefixes: Sequence[str]) -> Iterator[ObjectName]:
    """Yield what has a reference below the prefixes: what is staged or in the undo trash, what the reaper deletes, and
    what was issued and not linked. Read it before `scan_names`: so whatever moves meanwhile is met.

    Raises CorruptRecord, Unavailable.
    """
    for each in referenced_entries(ctx, prefixes):
        yield ObjectName(None, "", each.path, each.entry.address, each.entry if each.is_described else None)
    for shard in range(keys.SHARDS):
        after = ""
        while page := due_hints.scan_due(ctx.kv, ctx.repo, shard, now_ms=None, limit=due_hints.PAGE, after=after):
            after = page[-1].key.name
            addresses = [address for hint in page for address in hint.addresses]
            for address, record in zip(addresses, ctx.references.get_many(addresses), strict=True):
                if isinstance(record, Issued | Deleting):
                    path = record.path if isinstance(record, Issued) else record.last_reference.path
                    if path.startswith(tuple(prefixes)):
                        is_open_upload = isinstance(record, Issued) and record.in_parts
                        yield ObjectName(None, "", path, address, None, is_open_upload)


def _names_on_branches(
    ctx: Context, holder: HolderKind, branches: dict[BranchName, StoredBranch], prefix: str, seen: set[tuple[str, str]]
) -> Iterator[ObjectName]:
    for name, record in branches.items():
        for token in record.live_tokens:
            for path, entry in staged_entries(ctx, token, prefix):
                yield ObjectName(holder, name, path, entry.address, entry)
    yield from _names_in_commits(ctx, holder, [(name, record.head) for name, record in branches.items()], prefix, seen)


def _names_in_commits(
    ctx: Context, holder: HolderKind, named: Iterable[tuple[str, CommitId]], prefix: str, seen: set[tuple[str, str]]
) -> Iterator[ObjectName]:
    for ref, commit_id, commit in read_commits(ctx, named):
        for path, entry in entries_of_commit(ctx, commit_id, commit, prefix, seen):
            yield ObjectName(holder, ref, path, entry.address, entry)


def _find_pinned_commits(ctx: Context) -> list[CommitId]:
    """Return the commits that tags and pins keep, by the rules in force."""
    own = get_rules(ctx)
    rules = own.rules if own is not None else Rules()
    tagged = [tag.commit for name, tag in tag_operation.scan_tags(ctx, prefix="", after="") if rules.holds_tag(name)]
    return list(dict.fromkeys([*tagged, *(CommitId(commit) for commit in rules.pins.commits)]))
