"""The embedded SDK: one repository, every use case.

    import refstore

    lake = refstore.open(data="./lake")
    repo = lake.create_repository("sales")
    repo.upload("main", "2026/11/21.csv", b"...")
    repo.commit("main", "first day")
    repo.reset("main")

Each method runs under the operation deadline (`Safety.operation_deadline_seconds`) and may be called again after any error
that says so (`error.retryable`): every protocol step is idempotent. A Repository is safe to share between threads. Methods
raise the errors of `refstore.errors`; those that every method may raise (InvalidName, InvalidPath, NotFound, Contention,
Unavailable, Corrupt) are not repeated below. A `ref` is an expression of `refstore/flows/refs.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from itertools import islice
from typing import Concatenate, ParamSpec, TypeVar

from refstore import deadline, ids
from refstore.commits.diffing import Change
from refstore.commits.filters import PathFilter
from refstore.context import Context
from refstore.deletions import explain
from refstore.deletions.explain import PathWhy, Why
from refstore.errors import AlreadyExists, AlreadyLinked, Contention
from refstore.flows import (
    branching,
    committing,
    comparing,
    copying,
    expiring,
    importing,
    reading,
    refs,
    removing,
    restoring,
    retaining,
    rule_review,
    tagging,
    trash,
    unmarking,
    uploading,
    viewing,
)
from refstore.flows.committing import CommitOptions
from refstore.flows.comparing import Logged
from refstore.flows.copying import Copy
from refstore.flows.expiring import Expired
from refstore.flows.importing import Imported, Watch
from refstore.flows.reading import Listed, Page, Resolved
from refstore.flows.restoring import Outcome, Restored, Wanted
from refstore.flows.retaining import Retention
from refstore.flows.rule_review import Review
from refstore.flows.trash import InGrace
from refstore.flows.uploading import IssuedAddress, Link, Stage, Upload
from refstore.flows.viewing import AddressView
from refstore.ids import BranchName, CommitId, RepositoryName, TagName
from refstore.marks import Marks
from refstore.objects.base import Body
from refstore.records import Branch, Commit, Entry, ImportSource, Mark, RepositoryRecord, Tag
from refstore.retention.rules import GcRules, Rules

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def _operation(method: Callable[Concatenate[Repository, P], R]) -> Callable[Concatenate[Repository, P], R]:
    """Run the method under the operation deadline."""

    @wraps(method)
    def run(self: Repository, *args: P.args, **kwargs: P.kwargs) -> R:
        with deadline.operation(self.context.clock, self.context.safety.operation_deadline_seconds):
            return method(self, *args, **kwargs)

    return run


class Repository:
    def __init__(self, context: Context, record: RepositoryRecord) -> None:
        self.context = context
        self.record = record

    @property
    def name(self) -> RepositoryName:
        return self.context.name

    @property
    def default_branch(self) -> BranchName:
        return self.record.default_branch

    # ---- data in

    def upload(
        self,
        branch: str,
        path: str,
        body: Body,
        *,
        metadata: dict[str, str] | None = None,
        content_type: str = "",
        mtime_ms: int | None = None,
        if_absent: bool = False,
    ) -> Entry:
        """Upload one object; what stood at the path under the same staging token is released at once.

        `if_absent`: raises AlreadyExists where something is at the path, and leaves it.
        """
        item = Upload(path=path, body=body, metadata=metadata or {}, content_type=content_type, mtime_ms=mtime_ms, if_absent=if_absent)
        return self._upload_batch(branch, [item])[0]

    def upload_many(self, branch: str, uploads: Iterable[Upload]) -> Sequence[Entry]:
        """Upload any number of objects, batch by batch with shared round trips; their entries, in the same order.

        One that is refused by its `if_absent` ends it, before its batch is written where that can be told, else behind its batch, which
        is uploaded; `upload_each` says of each what became of it.
        """
        return list(self.iter_upload_many(branch, uploads))

    def iter_upload_many(self, branch: str, uploads: Iterable[Upload]) -> Iterator[Entry]:
        """As `upload_many`, for a stream: a batch is uploaded when the first of its entries is asked for, and nothing before."""
        for batch in _batched(uploads, uploading.BATCH):
            yield from self._upload_batch(branch, batch)

    @_operation
    def _upload_batch(self, branch: str, batch: Sequence[Upload]) -> Sequence[Entry]:
        return uploading.upload_many(self.context, ids.branch_name(branch), batch)

    @_operation
    def upload_each(self, branch: str, uploads: Sequence[Upload]) -> Sequence[Entry | AlreadyExists | Contention]:
        """As `upload_many`, for a bounded number, with a word on each: those that are refused by their `if_absent` fail nobody else's."""
        return uploading.upload_each(self.context, ids.branch_name(branch), uploads)

    def stage(
        self, branch: str, path: str, url: str, *, size_bytes: int, checksum: str = "", metadata: dict[str, str] | None = None
    ) -> Entry:
        """Name an object outside the namespace. It is not refstore's to delete, and never is deleted."""
        item = Stage(path=path, url=url, size_bytes=size_bytes, checksum=checksum, metadata=metadata or {})
        return self._stage_batch(branch, [item])[0]

    def stage_many(self, branch: str, items: Iterable[Stage]) -> Sequence[Entry]:
        """As `stage`, batch by batch; their entries, in the same order."""
        return list(self.iter_stage_many(branch, items))

    def iter_stage_many(self, branch: str, items: Iterable[Stage]) -> Iterator[Entry]:
        """As `stage_many`, for a stream: a batch is staged when the first of its entries is asked for, and nothing before."""
        for batch in _batched(items, uploading.BATCH):
            yield from self._stage_batch(branch, batch)

    @_operation
    def _stage_batch(self, branch: str, batch: Sequence[Stage]) -> Sequence[Entry]:
        return uploading.stage_many(self.context, ids.branch_name(branch), batch)

    def import_objects(
        self,
        branch: str,
        sources: Sequence[ImportSource],
        message: str,
        *,
        committer: str = "",
        metadata: dict[str, str] | None = None,
        allow_empty: bool = False,
        dry_run: bool = False,
        watch: Watch = importing.nothing_to_tell,
    ) -> Imported:
        """Name the objects of others, single ones or all below a prefix, in one commit, without reading them. They are never deleted.

        What is at a prefix's destination is replaced as a whole: paths that the source does not have are gone from the branch. The
        listing may take as long as it takes; the commit behind it is made under the operation deadline. `watch` is told how many were
        listed, and how many left out; what it raises ends the import. `dry_run`: only list and count.

        Raises Invalid (also: the source lies in a namespace of this lake), ObjectNotFound (it holds nothing), DirtyBranch,
        NothingToCommit (all of it is there already).
        """
        options = _options(message, committer, metadata, None, allow_empty)
        name = ids.branch_name(branch)
        return importing.import_objects(self.context, name, sources, options, watch=watch, dry_run=dry_run)

    def issue(self, branch: str, path: str) -> IssuedAddress:
        """A physical address to write to, and the token that links it, once, to this branch and path."""
        return self.issue_many(branch, [path])[0]

    @_operation
    def issue_many(self, branch: str, paths: Sequence[str]) -> Sequence[IssuedAddress]:
        return uploading.issue_many(self.context, ids.branch_name(branch), paths)

    def link(
        self,
        branch: str,
        path: str,
        token: str,
        *,
        size_bytes: int | None = None,
        checksum: str = "",
        metadata: dict[str, str] | None = None,
    ) -> Entry:
        """Put an issued address, now written to, on the branch. Raises InvalidToken, AlreadyLinked, ObjectNotFound."""
        item = Link(path=path, token=token, size_bytes=size_bytes, checksum=checksum, metadata=metadata or {})
        return self._link_batch(branch, [item])[0]

    def link_many(self, branch: str, items: Iterable[Link]) -> Sequence[Entry]:
        """As `link`, batch by batch; their entries, in the same order."""
        return list(self.iter_link_many(branch, items))

    def iter_link_many(self, branch: str, items: Iterable[Link]) -> Iterator[Entry]:
        """As `link_many`, for a stream: a batch is linked when the first of its entries is asked for, and nothing before."""
        for batch in _batched(items, uploading.BATCH):
            yield from self._link_batch(branch, batch)

    @_operation
    def _link_batch(self, branch: str, batch: Sequence[Link]) -> Sequence[Entry]:
        return uploading.link_many(self.context, ids.branch_name(branch), batch)

    @_operation
    def link_each(self, branch: str, items: Sequence[Link]) -> Sequence[Entry | AlreadyLinked | AlreadyExists | Contention]:
        """As `link_many`, for a bounded number, with a word on each: those that were linked before, or are refused by their `if_absent`,
        fail nobody else's."""
        return uploading.link_each(self.context, ids.branch_name(branch), items)

    def copy(self, source: str, path: str, branch: str, destination: str | None = None) -> Entry:
        """Give `path` of the ref `source` another name on `branch`, without reading the data."""
        return self._copy_batch(source, branch, [Copy(path, destination or path)])[0]

    def copy_many(self, source: str, branch: str, copies: Iterable[Copy]) -> Sequence[Entry]:
        """As `copy`, in batches of 1,000, each as if at once; the one after sees what the one before made."""
        return list(self.iter_copy_many(source, branch, copies))

    def iter_copy_many(self, source: str, branch: str, copies: Iterable[Copy]) -> Iterator[Entry]:
        """As `copy_many`, for a stream: a batch is copied when the first of its entries is asked for, and nothing before."""
        for batch in _batched(copies, uploading.BATCH):
            yield from self._copy_batch(source, branch, batch)

    @_operation
    def _copy_batch(self, source: str, branch: str, batch: Sequence[Copy]) -> Sequence[Entry]:
        return copying.copy_many(self.context, source, ids.branch_name(branch), batch)

    def move(self, branch: str, path: str, destination: str) -> Entry:
        """Copy within a branch, then delete the source. A crash in between leaves both names."""
        return self.move_many(branch, [Copy(path, destination)])[0]

    @_operation
    def move_many(self, branch: str, moves: Sequence[Copy], *, to: str | None = None) -> Sequence[Entry]:
        """Copy within a branch, or to the branch `to`, then delete the sources that are still what was copied."""
        return copying.move_many(self.context, ids.branch_name(branch), ids.branch_name(branch if to is None else to), moves)

    # ---- data out

    @_operation
    def resolve(self, ref: str, path: str) -> Resolved:
        """What the path is, and whether it is staged or committed. Raises ObjectNotFound."""
        return reading.resolve(self.context, refs.resolve(self.context, ref), ids.object_path(path))

    def stat(self, ref: str, path: str) -> Entry:
        """Raises ObjectNotFound."""
        return self.resolve(ref, path).entry

    @_operation
    def stat_many(self, ref: str, paths: Sequence[str]) -> dict[str, Entry]:
        """The entries of the paths that are there."""
        found = reading.resolve_many(self.context, refs.resolve(self.context, ref), [ids.object_path(path) for path in paths])
        return {path: resolved.entry for path, resolved in found.items()}

    @_operation
    def get(self, ref: str, path: str, *, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The bytes [start, end) in chunks, of foreign data as well. Raises ObjectNotFound, Gone before the first chunk."""
        return reading.open_object(self.context, ref, ids.object_path(path), start, end)

    def read(self, ref: str, path: str) -> bytes:
        """The whole object."""
        return b"".join(self.get(ref, path))

    @_operation
    def page(self, ref: str, *, prefix: str = "", after: str = "", amount: int = 1000, delimiter: str = "") -> Page:
        """One page of a listing, strictly after the path or common prefix `after`."""
        ids.path_prefix(prefix)
        return reading.list_page(
            self.context, refs.resolve(self.context, ref), prefix=prefix, after=after, amount=amount, delimiter=delimiter
        )

    def list(self, ref: str, *, prefix: str = "", after: str = "", delimiter: str = "", page: int = 1000) -> Iterator[Listed]:
        """Every object, in path order, page by page: each page is consistent, the whole may see changes made meanwhile."""
        while True:
            found = self.page(ref, prefix=prefix, after=after, amount=page, delimiter=delimiter)
            yield from found.results
            if not found.has_more:
                return
            after = found.next_after

    # ---- data away

    def delete(self, branch: str, path: str) -> None:
        """Delete one path, whether it is there or not."""
        self.delete_many(branch, [path])

    def delete_many(self, branch: str, paths: Iterable[str]) -> None:
        """As `delete`, batch by batch."""
        for batch in _batched(paths, removing.BATCH):
            self._delete_batch(branch, batch)

    @_operation
    def _delete_batch(self, branch: str, batch: Sequence[str]) -> None:
        removing.delete_many(self.context, ids.branch_name(branch), batch)

    @_operation
    def delete_prefix(self, branch: str, prefix: str) -> int:
        """Delete every path with the prefix; how many there were."""
        return removing.delete_prefix(self.context, ids.branch_name(branch), prefix)

    @_operation
    def reset(self, branch: str, *, path: str | None = None, prefix: str | None = None) -> None:
        """Throw away what is staged: of the whole branch (one step, however much), of a path, or of a prefix (raises Conflict
        while a commit is unfinished)."""
        name = ids.branch_name(branch)
        if path is None and prefix is None:
            branching.reset(self.context, name)
        else:
            removing.reset_paths(self.context, name, path=path, prefix=prefix)

    def restore(self, branch: str, address: str, path: str | None = None, *, force: bool = False) -> Entry:
        """Take back an address that lost its last name, at the path that it had or another; the entry that is there now.

        What was written to the path since stays, and the call raises AlreadyExists, unless `force` says that it may be replaced. Where
        the branch has the address at that path already, nothing is changed. Raises Gone, AddressNotFound, ObjectNotFound.
        """
        done = self.restore_and_tell(branch, address, path, force=force)
        assert done.entry is not None  # noqa: S101  # what was not restored raised
        return done.entry

    def restore_and_tell(
        self, branch: str, address: str, path: str | None = None, *, force: bool = False, dry_run: bool = False
    ) -> Restored:
        """As `restore`, with the path that it was put at, and whether that changed anything. `dry_run`: what it would do."""
        (done,) = self._restore_batch(branch, [Wanted(address, path)], force=force, dry_run=dry_run)
        if done.error is not None:
            raise done.error
        return done

    def restore_many(
        self,
        branch: str,
        *,
        lost_on: str | None = None,
        prefix: str = "",
        path: str | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> Sequence[Restored]:
        """Take back what a branch lost and can still be restored, each at the path that it had; what became of each.

        `lost_on`: what another branch lost, which may be deleted; else the branch's own. `prefix`: only paths that start with it; or
        `path`: this one. Of several versions of a path the one that was lost last is taken; what was only overwritten is left, but for
        a `path`. `force` and `dry_run` as above. Holds a record of each object that is restored in memory.
        """
        source = ids.branch_name(branch if lost_on is None else lost_on)
        self.get_branch(branch)
        found = trash.in_grace(self.context, branch=source, prefix=prefix if path is None else ids.object_path(path))
        wanted, older = restoring.choose((item for item in found if path is None or item.path == path), by_path=path is not None)
        done = [Restored(item.address, item.path, None, Outcome.OLDER) for item in older]
        for batch in _batched((Wanted(item.address, item.path) for item in wanted), restoring.BATCH):
            done += self._restore_batch(branch, batch, force=force, dry_run=dry_run)
        return done

    @_operation
    def _restore_batch(self, branch: str, batch: Sequence[Wanted], *, force: bool, dry_run: bool) -> Sequence[Restored]:
        return restoring.restore_many(self.context, ids.branch_name(branch), batch, force=force, dry_run=dry_run)

    def in_grace(self, *, branch: str | None = None, prefix: str = "", after: str = "") -> Iterator[InGrace]:
        """What could be restored now, behind the cursor `after`. What the reaper passes meanwhile may be listed twice."""
        name = ids.branch_name(branch) if branch is not None else None
        return trash.in_grace(self.context, branch=name, prefix=prefix, after=after)

    @_operation
    def address(self, address: str) -> AddressView:
        """Who names a physical address, and in which state."""
        return viewing.view(self.context, address)

    def why(self, address: str, *, commits: bool = False) -> Why:
        """What is known of a physical address: who names it, or when it was deleted, by whom, and under which rule.

        `commits`: which commits named it, where it was deleted, too. Raises AddressNotFound: nothing is known of it.
        """
        return explain.explain_address(self.context, address, commits=commits)

    def why_path(self, ref: str, path: str) -> PathWhy:
        """What became of a path: the objects that were there, and of each what `why` says. `ref`: also a branch that is gone.

        Raises ObjectNotFound: nothing is known of it.
        """
        return explain.explain_path(self.context, ref, path)

    # ---- history

    def commit(
        self,
        branch: str,
        message: str,
        *,
        committer: str = "",
        metadata: dict[str, str] | None = None,
        date_ms: int | None = None,
        allow_empty: bool = False,
    ) -> CommitId:
        """Commit what is staged. Raises NothingToCommit."""
        same = self.commit_and_get(branch, message, committer=committer, metadata=metadata, date_ms=date_ms, allow_empty=allow_empty)
        return same[0]

    @_operation
    def commit_and_get(
        self,
        branch: str,
        message: str,
        *,
        committer: str = "",
        metadata: dict[str, str] | None = None,
        date_ms: int | None = None,
        allow_empty: bool = False,
    ) -> tuple[CommitId, Commit]:
        """As `commit`, with what `get_commit` would answer: a read behind it could fail, and say so of a commit that landed."""
        options = _options(message, committer, metadata, date_ms, allow_empty)
        return committing.commit(self.context, ids.branch_name(branch), options)

    @_operation
    def merge(
        self,
        source: str,
        branch: str,
        message: str = "",
        *,
        strategy: str = "",
        squash: bool = False,
        committer: str = "",
        metadata: dict[str, str] | None = None,
        date_ms: int | None = None,
        allow_empty: bool = False,
    ) -> CommitId:
        """Merge a ref into a branch. Raises MergeConflict, DirtyBranch, NothingToCommit, Gone.

        `strategy`: '' reports conflicts, 'dest-wins' and 'source-wins' decide them.
        """
        options = _options(message or f"Merge {source!r} into {branch!r}", committer, metadata, date_ms, allow_empty)
        return committing.merge(self.context, source, ids.branch_name(branch), options, strategy=strategy, squash=squash)[0]

    @_operation
    def revert(
        self,
        branch: str,
        ref: str,
        *,
        parent: int = 0,
        message: str = "",
        committer: str = "",
        metadata: dict[str, str] | None = None,
        allow_empty: bool = False,
    ) -> CommitId:
        """Undo a commit on top of the branch. Raises MergeConflict, DirtyBranch, NothingToCommit, Gone."""
        options = _options(message or f"Revert {ref}", committer, metadata, None, allow_empty)
        return committing.revert(self.context, ids.branch_name(branch), ref, options, parent=parent)[0]

    def cherry_pick(
        self,
        branch: str,
        ref: str,
        *,
        parent: int = 0,
        message: str = "",
        committer: str = "",
        metadata: dict[str, str] | None = None,
        allow_empty: bool = False,
    ) -> CommitId:
        """Do a commit's changes again on top of the branch. Raises MergeConflict, DirtyBranch, NothingToCommit, Gone."""
        same = self.cherry_pick_and_get(
            branch, ref, parent=parent, message=message, committer=committer, metadata=metadata, allow_empty=allow_empty
        )
        return same[0]

    @_operation
    def cherry_pick_and_get(
        self,
        branch: str,
        ref: str,
        *,
        parent: int = 0,
        message: str = "",
        committer: str = "",
        metadata: dict[str, str] | None = None,
        allow_empty: bool = False,
    ) -> tuple[CommitId, Commit]:
        """As `cherry_pick`, with what `get_commit` would answer."""
        options = _options(message or f"Cherry-pick {ref}", committer, metadata, None, allow_empty)
        return committing.cherry_pick(self.context, ids.branch_name(branch), ref, options, parent=parent)

    @_operation
    def get_commit(self, ref: str) -> tuple[CommitId, Commit]:
        commit = refs.resolve(self.context, ref).commit
        return commit, refs.get_commit(self.context, commit)

    def log(self, ref: str, *, first_parent: bool = False, since_ms: int | None = None) -> Iterator[tuple[CommitId, Commit]]:
        """The ref's commit and its ancestors, newest first; each line as far as its first commit that is older than `since_ms`."""
        return comparing.log(self.context, ref, first_parent=first_parent, since_ms=since_ms)

    def history(self, ref: str, *, first_parent: bool = False) -> Iterator[Logged]:
        """The same, each commit with its mark: active, marked since when and when its data goes, swept on which day, by which mark; or
        expired and complete, where nothing of its data goes."""
        return comparing.history(self.context, ref, first_parent=first_parent)

    @_operation
    def changed(self, commit: Commit, only: PathFilter) -> bool:
        """Whether a commit changed one of these paths, against its first parent."""
        return comparing.changed(self.context, commit, only)

    def marks(self) -> Iterator[tuple[CommitId, Mark]]:
        """Every commit that has expired: marked, on its way, or swept."""
        return Marks(self.context).scan()

    def unmark(self, which: str, *, pin: bool = False, by: str = "") -> int:
        """Make a ref's commit, or all that a mark id marked, active again; how many were. Until the sweep begins: then raises Gone.

        The next run marks again what the rules still call expired (`expired_of`). `pin`: first add the commits to the pins of the rules,
        by whom, so that it does not. Raises NotFound, Conflict (the commit is not marked).
        """
        return unmarking.unmark(self.context, which, pin=pin, by=by).unmarked

    def expired_of(self, which: str) -> Sequence[CommitId]:
        """Of a ref's commit, or of all that a mark id marked, what the rules in force call expired. Raises NotFound."""
        return unmarking.look(self.context, which).expired

    def diff(self, left: str, right: str | None = None, *, prefix: str = "", after: str = "") -> Iterator[Change]:
        """Between the commits of two refs; or, with one branch, between its head and what is staged on it. In path order."""
        if right is None:
            return comparing.diff_staged(self.context, ids.branch_name(left), prefix=prefix, after=after)
        return comparing.diff_refs(self.context, left, right, prefix=prefix, after=after)

    @_operation
    def merge_base(self, left: str, right: str) -> CommitId | None:
        """The best common ancestor of the commits of two refs; None if there is none."""
        return comparing.merge_base(self.context, left, right)

    # ---- branches and tags

    @_operation
    def create_branch(self, name: str, source: str, *, hidden: bool = False) -> CommitId:
        """Raises AlreadyExists, Gone (the commit has expired)."""
        return branching.create(self.context, ids.branch_name(name), source, hidden=hidden)

    @_operation
    def get_branch(self, name: str) -> Branch:
        return branching.get(self.context, ids.branch_name(name))

    def branches(self, *, prefix: str = "", after: str = "") -> Iterator[tuple[BranchName, Branch]]:
        """The open branches, in order of name."""
        return branching.scan(self.context, prefix=prefix, after=after)

    @_operation
    def delete_branch(self, name: str) -> None:
        """Delete a branch and everything uncommitted on it: one step, however much. Raises Conflict for the default branch."""
        branching.delete(self.context, ids.branch_name(name), default=self.default_branch)

    @_operation
    def create_tag(self, name: str, ref: str) -> CommitId:
        """Raises AlreadyExists, Gone."""
        return tagging.create(self.context, ids.tag_name(name), ref)

    @_operation
    def get_tag(self, name: str) -> Tag:
        """Raises TagNotFound."""
        return tagging.get(self.context, ids.tag_name(name))

    @_operation
    def delete_tag(self, name: str) -> None:
        tagging.delete(self.context, ids.tag_name(name))

    def tags(self, *, prefix: str = "", after: str = "") -> Iterator[tuple[TagName, Tag]]:
        return tagging.scan(self.context, prefix=prefix, after=after)

    # ---- retention

    @_operation
    def retention(self) -> Retention | None:
        """The rules in force; None: there are none, and nothing that was committed expires."""
        return retaining.get(self.context)

    @_operation
    def set_retention(self, document: str, *, by: str = "") -> Retention:
        """Set the rules, the whole document at once (`docs/retention.md`). Raises InvalidRules, Contention."""
        return retaining.set_rules(self.context, document, by=by)

    @_operation
    def review_retention(self, document: str | None = None) -> Review:
        """What to know of rules before they act: names and filters that match nothing here, and how many commits expire tonight.

        `document`: instead of the rules in force. Reads the whole history. Raises InvalidRules, CorruptRecord.
        """
        if document is not None:
            return rule_review.review(self.context, retaining.check(self.context, document).rules)
        own = retaining.get(self.context)
        return rule_review.review(self.context, own.rules if own is not None else Rules())

    @_operation
    def delete_retention(self) -> Retention:
        """Take all rules away, legal holds among them: nothing that was committed expires then. Raises NotFound, Conflict (others changed
        them meanwhile)."""
        return retaining.delete(self.context)

    @_operation
    def set_gc_rules(self, rules: GcRules | None, *, by: str = "") -> Retention | None:
        """Set, or with None take away, what lakeFS's format can say of the rules. Pins, holds and the rest stay. Raises InvalidRules."""
        return retaining.set_gc_rules(self.context, rules, by=by)

    def expire_uncommitted(self, rules: Rules | None = None) -> Expired:
        """Reset the staged objects that a path rule lets expire, on every branch; what was reset stays in its grace window.

        `rules`: other ones than those in force. A branch with an unfinished commit is left for the next time, and `left` says so.
        """
        if rules is None:
            own = self.retention()
            rules = own.rules if own is not None else Rules()
        total = Expired()
        for name in [name for name, _ in self.branches()] if expiring.any_rule(rules) else []:
            total += expiring.expire_branch(self.context, rules, name)
        return total


def _options(message: str, committer: str, metadata: dict[str, str] | None, date_ms: int | None, allow_empty: bool) -> CommitOptions:
    return CommitOptions(message=message, committer=committer, metadata=metadata or {}, date_ms=date_ms, allow_empty=allow_empty)


def _batched(items: Iterable[T], size: int) -> Iterator[Sequence[T]]:
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch
