"""Put back into the KV what a repository's manifest has, and the KV does not know.

    commits    the record, its landed mark, then what it added is put beyond the reaper
    branches   made again with the id that they had, or moved on; a branch that has moved elsewhere since, or a tag that
               has its name, stays, and the lost commit becomes the head of a new branch `lost/...`
    tags       written again; where the name stands for something else by now, as `lost/...`
    contents   of purged objects: their locations are written again; where another run has published under the same
               number since, its content stays
    objects    that were linked or restored, if that was witnessed, are staged again; where something else is staged at
               the path, at `lost/...`

Every step may be repeated after a crash. Nothing is deleted meanwhile, because all deleters are blocked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec

from refstore.context import Context
from refstore.core import ids
from refstore.core.batches import split_batches
from refstore.core.ids import Address, BranchName, CommitId, Path, Token, branch_of
from refstore.errors import AlreadyExists, CommitNotFound, CorruptRange, Gone, WrongStore
from refstore.kv.base import ABSENT
from refstore.kv_recovery.lake_parts import Entries, LakeAccess, Progress, RestoredRecord, index_entries
from refstore.kv_recovery.manifest_check import find_lost_entries, is_removed
from refstore.kv_recovery.settlement import relist_reference
from refstore.namespaces import folder_url
from refstore.objects.parallel_reads import READERS
from refstore.operations import refs
from refstore.operations.commit_references import delete_added_references
from refstore.operations.reference_lookup import have_content
from refstore.operations.stage_entries import Placement, place
from refstore.operations.transaction import LEASE_MS
from refstore.records import keys
from refstore.records.branch_records import ClosedBranch, StoredBranch, StoredTag
from refstore.records.commit_records import StoredCommit
from refstore.records.encoding import decode, decode_optional
from refstore.records.location_records import Location
from refstore.records.reference_records import Reference
from refstore.records.repository_records import RepositoryRecord
from refstore.records.staging_records import StoredEntry, decode_staged
from refstore.versioning.branches import ATTEMPTS
from refstore.versioning.commits import graph
from refstore.versioning.manifest import (
    BranchCreated,
    BranchDeleted,
    CommitLanded,
    EntriesPlaced,
    LocationsPublished,
    PlacedEntry,
    RecordCreated,
    RepositoryCreated,
    accept_loss,
)

PAGE: Final = 1000
NAME_CHARACTERS: Final = 230
"""How much of a branch's name its `lost/...` branch keeps; a name has at most 255 characters."""

PATH_BYTES: Final = 900
"""How much of an object's path its `lost/...` path keeps; a path has at most 1,024 bytes."""

BranchGroup = tuple[BranchName, str]
"""A branch and its id."""


class RecordRestore:
    """Puts one repository's records back."""

    def __init__(self, ctx: Context, entries: Entries, progress: Progress, *, dry_run: bool, protect: bool) -> None:
        """`protect`: put what the commits added beyond the reaper; a KV that is made anew has no references."""
        self._ctx = ctx
        self._entries = entries
        self._progress = progress
        self._dry_run = dry_run
        self._protect = protect
        self._known: dict[CommitId, StoredCommit] = {}
        """Commits of the manifest, by their ids."""

    def run(self, *, commits_only: bool = False, servers_changed: bool = False) -> list[RestoredRecord]:
        """Return what was done. `commits_only`: the repository is deleted, and its branches and tags stay so.
        `servers_changed`: as in `find_lost_entries`.
        """
        every = list(self._entries.values())
        lost = find_lost_entries(self._ctx, every, explained_by=self._entries, servers_changed=servers_changed)
        for entry in every:
            if isinstance(entry, CommitLanded):
                self._known[entry.commit] = decode(entry.record, StoredCommit)
        done = self._restore_commits(
            [item.entry for item in lost if isinstance(item.entry, CommitLanded) and not item.may_be_deleted]
        )
        if commits_only:
            return done
        groups = {
            group for item in lost if (group := branch_group_of(item.entry)) is not None and not self._is_deleted(group)
        }
        done += self._restore_branches(every, groups)
        done += self._restore_locations([item.entry for item in lost if isinstance(item.entry, LocationsPublished)])
        for item in lost:
            if isinstance(item.entry, RecordCreated) and item.entry.partition == keys.tags(self._ctx.repo):
                done += self._restore_tag(item.entry)
        if self._protect:  # a KV that is made anew has nothing staged
            for item in lost:
                if isinstance(item.entry, EntriesPlaced):
                    done += self._restore_placed(item.entry)
        return done

    # ---- commits

    def _restore_commits(self, commits: Sequence[CommitLanded]) -> list[RestoredRecord]:
        ctx = self._ctx
        done = [RestoredRecord(ctx.name, "commit", entry.commit, "put back", entry.commit) for entry in commits]
        if self._dry_run:
            return done
        for page in split_batches(commits, PAGE):
            ctx.kv.set_many([(keys.commit(ctx.repo, entry.commit), entry.record) for entry in page])
            ctx.kv.set_many([(keys.landed_mark(ctx.repo, entry.commit), b"") for entry in page])
            if self._protect:
                protect_commits(ctx, [entry.commit for entry in page])
            self._progress.advance(len(page))
        return done

    # ---- where content lies

    def _restore_locations(self, lost: Sequence[LocationsPublished]) -> list[RestoredRecord]:
        ctx = self._ctx
        newest: dict[Address, Location] = {}
        for entry in lost:
            told = decode(entry.items[0].record, Location)
            known = newest.get(entry.items[0].identity)
            if known is None or known.replacement_count < told.replacement_count:
                newest[entry.items[0].identity] = told
        if newest and not self._dry_run:
            ctx.locations.announce()
        done: list[RestoredRecord] = []
        for page in split_batches(list(newest.items()), PAGE):
            contents = [told.current.address if told.current is not None else Address("") for _, told in page]
            infos = ctx.objects.head_many([address for address in contents if address])
            there = {info.key for info in infos if info is not None}
            whole = [item for item, address in zip(page, contents, strict=True) if not address or address in there]
            outcomes = ctx.locations.restore_records(whole, dry_run=self._dry_run)
            done += [
                RestoredRecord(ctx.name, "content", identity, outcome)
                for (identity, _), outcome in zip(whole, outcomes, strict=True)
            ]
            done += [
                RestoredRecord(ctx.name, "content", identity, f"left: {address} is not there")
                for (identity, _), address in zip(page, contents, strict=True)
                if address and address not in there
            ]
            self._progress.advance(len(page))
        return done

    # ---- branches

    def _restore_branches(self, every: Sequence[object], groups: set[BranchGroup]) -> list[RestoredRecord]:
        """Put back the branches that are lost or behind, each at the newest commit that landed on it."""
        created: dict[BranchGroup, BranchCreated] = {}
        landed: dict[BranchGroup, list[CommitLanded]] = {}
        for entry in every:
            if isinstance(entry, BranchCreated) and not is_removed(entry, self._entries):
                created[(entry.branch, entry.branch_id)] = entry
            elif (
                isinstance(entry, CommitLanded)
                and (group := branch_group_of(entry)) is not None
                and group in groups
                and not is_removed(entry, self._entries)
            ):
                landed.setdefault(group, []).append(entry)
        done: list[RestoredRecord] = []
        for group in sorted(groups):
            done += self._restore_branch(group, created.get(group), landed.get(group, []))
        return done

    def _is_deleted(self, group: BranchGroup) -> bool:
        return (BranchDeleted, group) in self._entries

    def _restore_branch(
        self, group: BranchGroup, created: BranchCreated | None, landed: Sequence[CommitLanded]
    ) -> list[RestoredRecord]:
        ctx, (name, branch_id) = self._ctx, group
        wanted = {entry.commit for entry in landed}
        if created is not None and self._find_commit(created.head) is not None:
            wanted.add(created.head)
        there = self._head_of(group)
        missing = wanted - self._commits_on_line(there, wanted) if there is not None else wanted
        if not missing:
            return []  # or its head is lost, too: then `verify` goes on naming it
        head = self._newest_commit(missing)
        reason = self._expiry_note(head)
        if reason:
            return [RestoredRecord(ctx.name, "branch", name, reason, head)]
        made = created or BranchCreated(name, branch_id, head, self._get_commit(head).created_ms)
        outcome = self._move_or_create_branch(made, head)
        done = [RestoredRecord(ctx.name, "branch", name, outcome, head)] if outcome not in ("", UNCHANGED) else []
        if outcome:
            if created is None and not self._dry_run:
                ctx.manifest.add(made)
            missing -= self._commits_on_line(head, missing)
        elif there is None and created is not None and not self._dry_run:
            ctx.manifest.add(accept_loss(created))  # another branch, or a tag, has its name
        while missing:  # what is on no line of the branch becomes a branch of its own
            head = self._newest_commit(missing)
            line = self._commits_on_line(head, missing)
            done.append(self._restore_beside(made, head, [entry for entry in landed if entry.commit in line]))
            missing -= line
        return done

    def _restore_beside(self, branch: BranchCreated, head: CommitId, landed: Sequence[CommitLanded]) -> RestoredRecord:
        """Make a branch `lost/...` at a commit that landed on another one, which goes without it from now on."""
        ctx = self._ctx
        other = ids.branch_name(_name_beside(branch.branch, head))
        reason = self._expiry_note(head)
        if not reason and not self._dry_run:
            if not isinstance(ctx.branches.read(other), StoredBranch):  # else made before a crash
                ctx.markers.publish(ctx.branches, other)  # what a crash left of its creation
                self._create_branch(BranchCreated(other, "", head, ctx.clock.now_ms(), branch.is_hidden), head)
            record = ctx.branches.read_open(other).record
            ctx.manifest.add(BranchCreated(other, record.id, head, record.created_ms, record.is_hidden))
            for entry in landed:
                ctx.manifest.add(accept_loss(entry))
        return RestoredRecord(ctx.name, "branch", branch.branch, reason or f"put back as {other}", head)

    def _move_or_create_branch(self, branch: BranchCreated, head: CommitId) -> str:
        """Make the branch, or move it on. Return what was done; '' if it has moved elsewhere, or its name stands for
        another one or a tag.
        """
        ctx, name = self._ctx, branch.branch
        for _ in range(ATTEMPTS):
            raw = ctx.branches.read_raw(name)
            record = ctx.branches.decode(raw)
            if record is None or isinstance(record, ClosedBranch):
                if ctx.branches.has_tag(name):
                    return ""
                if self._dry_run:
                    return "put back"
                ctx.markers.publish(ctx.branches, name)  # a deleted branch of the same name
                with suppress(AlreadyExists):  # a tag by now
                    if self._create_branch(branch, head):
                        return "put back"
                continue
            if record.id != branch.branch_id:
                return ""
            if self._commits_on_line(record.head, {head}):
                return UNCHANGED
            if not self._commits_on_line(head, {record.head}):
                return ""
            if self._dry_run or ctx.branches.change(name, ctx.branches.parse_open(name, raw), head=head):
                return "moved on"
        raise ctx.branches.contention(name)

    def _create_branch(self, branch: BranchCreated, head: CommitId) -> bool:
        """Make a branch with the id that it had; '': with a new one. Raises AlreadyExists if a tag has its name."""
        ctx, name = self._ctx, branch.branch
        token = ctx.staging.new_token(name, ctx.ids, ctx.clock)
        raw = ctx.branches.create(
            name,
            head,
            token,
            hidden=branch.is_hidden,
            branch_id=branch.branch_id,
            created_ms=branch.created_ms,
            # renewals are not in the manifest, and its writer may be there
            lease_until_ms=branch.lease_until_ms and max(branch.lease_until_ms, ctx.clock.now_ms() + LEASE_MS),
        )
        return raw is not None

    def _head_of(self, group: BranchGroup) -> CommitId | None:
        """Return the head of the branch; None if it is not there, or another one has its name."""
        record = self._ctx.branches.read(group[0])
        return record.head if isinstance(record, StoredBranch) and record.id == group[1] else None

    def _newest_commit(self, commits: Iterable[CommitId]) -> CommitId:
        return max(
            commits,
            key=lambda commit: (self._get_commit(commit).generation, self._get_commit(commit).created_ms, commit),
        )

    def _expiry_note(self, commit: CommitId) -> str:
        try:
            refs.check_mark(self._ctx, commit)
        except Gone:
            return f"left: commit {commit[:12]} has expired"
        return ""

    # ---- tags

    def _restore_tag(self, entry: RecordCreated) -> list[RestoredRecord]:
        ctx, commit = self._ctx, decode(entry.value, StoredTag).commit
        if self._find_commit(commit) is None:
            return [RestoredRecord(ctx.name, "tag", entry.name, "left: its commit is lost", commit)]
        if self._dry_run:
            is_put_back = ctx.kv.get(entry.key) is ABSENT and not ctx.branches.has_branch(ids.tag_name(entry.name))
        else:
            is_put_back = self._write_tag(entry)
        if is_put_back:
            return [RestoredRecord(ctx.name, "tag", entry.name, "put back", commit)]
        other = keys.tag(ctx.repo, ids.tag_name(_name_beside(entry.name, commit)))
        if not self._dry_run:
            ctx.kv.set_if(other, ABSENT, entry.value)  # else it was put back before a crash
            ctx.manifest.add_record(other, entry.value, f"tag {other.name!r} was created")
            ctx.manifest.add(accept_loss(entry))
        return [RestoredRecord(ctx.name, "tag", entry.name, f"put back as {other.name}", commit)]

    def _write_tag(self, entry: RecordCreated) -> bool:
        """Write a tag as `create_tag` does. Return False if its name stands for something else by now."""
        ctx, name = self._ctx, ids.tag_name(entry.name)
        if ctx.branches.has_branch(name) or not ctx.kv.set_if(entry.key, ABSENT, entry.value):
            return False
        if ctx.branches.has_branch(name):
            ctx.kv.set_if(entry.key, entry.value, ABSENT)
            return False
        return True

    # ---- what was linked or restored

    def _restore_placed(self, call: EntriesPlaced) -> list[RestoredRecord]:
        done = [self._restore_object(item) for item in call.entries]
        if not self._dry_run and all(item.outcome.startswith("put back") for item in done):
            self._ctx.manifest.add(accept_loss(call))  # the entries that were placed instead have been witnessed
        return done

    def _restore_object(self, placed: PlacedEntry) -> RestoredRecord:
        ctx, path, name = self._ctx, placed.path, branch_of(placed.token)
        entry = decode(placed.record, StoredEntry)
        outcome = "put back"
        branch = ctx.branches.read(name)
        if not isinstance(branch, StoredBranch):
            outcome = f"left: branch {name!r} is not there"
        elif not have_content(ctx, [entry.address])[0]:
            outcome = "left: its object is not in the store"
        else:
            values = ctx.kv.get_many([keys.entry(ctx.repo, token, path) for token in branch.live_tokens])
            staged = next((decode_staged(value) for value in values if value is not ABSENT), None)
            is_there = isinstance(staged, StoredEntry) and staged.address == entry.address
            if staged is not None and not is_there:
                shortened = path.encode()[:PATH_BYTES].decode(errors="ignore")
                path = ids.object_path(f"lost/{shortened}.{(entry.reference_id or entry.address)[-12:]}")
                outcome = f"put back as {path}"
            if not (is_there or self._dry_run):
                self._stage_entry(name, branch.token, path, entry)
        return RestoredRecord(ctx.name, "object", placed.path, outcome)

    def _stage_entry(self, branch: BranchName, token: Token, path: Path, entry: StoredEntry) -> None:
        ctx = self._ctx
        entry = msgspec.structs.replace(entry, reference_id=ctx.ids.new_id(ctx.clock.now_ms()))
        relist_reference(ctx, Address(entry.address), Reference(token, path, entry.reference_id))
        place(ctx, branch, token, [Placement(path, entry=entry, is_referenced=True)], on_empty=True, witness=True)

    # ---- the graph

    def _find_commit(self, commit: CommitId) -> StoredCommit | None:
        if commit not in self._known:
            record = decode_optional(self._ctx.kv.get(keys.commit(self._ctx.repo, commit)), StoredCommit)
            if record is None:
                return None
            self._known[commit] = record
        return self._known[commit]

    def _get_commit(self, commit: CommitId) -> StoredCommit:
        record = self._find_commit(commit)
        if record is None:
            raise CommitNotFound(f"commit {commit} is neither in the KV nor in the manifest")
        return record

    def _commits_on_line(self, head: CommitId, wanted: set[CommitId]) -> set[CommitId]:
        """Return which of the commits, all of which are known, the head is or follows."""
        left = {commit for commit in wanted if self._find_commit(commit) is not None}
        lowest = min((self._get_commit(commit).generation for commit in left), default=0)
        found: set[CommitId] = set()
        try:
            for commit, record in graph.log(self._get_commit, head):
                if record.generation < lowest or found == left:
                    break
                if commit in left:
                    found.add(commit)
        except CommitNotFound:  # what is older is lost
            return found
        return found


UNCHANGED: Final = "unchanged"


def _name_beside(name: str, commit: CommitId) -> str:
    """Return under which name a branch or a tag comes back whose own name stands for something else by now."""
    return f"lost/{name[:NAME_CHARACTERS]}-{commit[:12]}"


def branch_group_of(entry: object) -> BranchGroup | None:
    """Return the branch that an entry is about."""
    if isinstance(entry, CommitLanded | BranchCreated) and entry.branch_id:
        return entry.branch, entry.branch_id
    return None


def protect_commits(ctx: Context, commits: Iterable[CommitId]) -> list[CommitId]:
    """Put what commits added beyond the reaper; if its list cannot be read, all that the commit names. Return the
    commits for which neither can be read.
    """
    wanted = list(commits)
    with ThreadPoolExecutor(READERS, thread_name_prefix="protect") as workers:
        done = list(workers.map(partial(_is_protected, ctx), wanted))
    return [commit for commit, is_done in zip(wanted, done, strict=True) if not is_done]


def _is_protected(ctx: Context, commit: CommitId) -> bool:
    try:
        delete_added_references(ctx, commit)
    except CorruptRange:
        try:
            for addresses in ctx.trees.addresses(refs.get_commit(ctx, commit).metarange):
                for page in split_batches(addresses, PAGE):
                    ctx.references.delete_records(page)
        except CorruptRange:
            return False
    return True


def own_context(lake: LakeAccess, entry: RepositoryCreated) -> Context | None:
    """Return the context of a lost repository; None if its namespace does not say that it is the repository's."""
    try:
        return lake.context(entry.name, decode(entry.record, RepositoryRecord))
    except WrongStore:
        return None


def restore_contents(
    lake: LakeAccess,
    entry: RepositoryCreated,
    progress: Progress,
    *,
    dry_run: bool,
    protect: bool,
    is_name_taken: bool,
) -> tuple[list[RestoredRecord], str]:
    """Put back what a lost repository had; its name comes last, and is the caller's (`write_repository_record`). Return
    what was done, and why the repository cannot be put back; '' if it can.
    """
    ctx = own_context(lake, entry)
    if is_name_taken:
        return [], "another repository has its name"
    if ctx is None:
        return [], "its namespace is not its own any more"
    if not dry_run:
        key = keys.namespace(folder_url(decode(entry.record, RepositoryRecord).namespace))
        if not lake.kv.set_if(key, ABSENT, entry.id.encode()) and lake.kv.get(key) != entry.id.encode():
            return [], "its namespace belongs to another repository"
    entries = index_entries(ctx.manifest.read_all())
    return RecordRestore(ctx, entries, progress, dry_run=dry_run, protect=protect).run(), ""


def report_repository(entry: RepositoryCreated, reason: str) -> RestoredRecord:
    return RestoredRecord(entry.name, "repository", entry.name, f"left: {reason}" if reason else "put back")


def write_repository_record(lake: LakeAccess, entry: RepositoryCreated) -> str:
    """Write a repository's record, as the last step. Return why that is not possible; '' if it was done."""
    key = keys.repository(entry.name)
    if lake.kv.set_if(key, ABSENT, entry.record):
        return ""
    there = decode_optional(lake.kv.get(key), RepositoryRecord)
    return "" if there is not None and there.id == entry.id else "another repository has its name"
