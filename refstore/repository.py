"""The embedded SDK's central class: one repository, and every operation on it.

Each method that changes something, and most that read, runs under the operation deadline
(`Safety.operation_deadline_seconds`); lists, which read step by step, and explanations have none. A method may be
called again after an error whose `retryable` is true, because every step of the protocol is idempotent. Threads may
share a Repository.

A call names what it reads before what it writes, and the second of two names is a keyword:
`copy("v1", "a.csv", to_branch="main")`, `merge("dev", into="main")`, `create_tag("v2", ref="main")`. A bulk call has
two forms at most: `upload_many` acts when it is called, and raises the first error; `upload_each` returns an iterator
with the outcome of each item, in their order, and acts batch by batch as it is read.

Methods raise the errors of `refstore.errors`. Every method may raise InvalidName, InvalidPath, NotFound, Contention,
Unavailable and Corrupt; the docstrings name the others. A `ref` is the name of a branch or a tag, or the id of a
commit, also with a suffix such as `main~2` (`refstore/operations/refs.py`).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from functools import cached_property, wraps
from typing import TYPE_CHECKING, BinaryIO, Concatenate, Literal, NoReturn, ParamSpec, TypeVar, Unpack, cast, overload

from refstore.core import deadline, ids
from refstore.core.batches import split_batches
from refstore.core.clock import to_datetime, to_ms
from refstore.core.ids import BranchName, CommitId, RepositoryName
from refstore.core.lazy_modules import LazyModule
from refstore.errors import AlreadyExists, AlreadyLinked, Contention, Invalid, NotFound, PathChanged, RefstoreError
from refstore.public_methods import wrap_public_methods
from refstore.public_types import Commit, Entry, Mark, NamedEntry, PathChange, TrashItem, public_entry, stored_entry
from refstore.records.staging_records import StoredEntry

if TYPE_CHECKING:
    from refstore import file_objects, handles, transactions
    from refstore.context import Context
    from refstore.deletion_history import explain
    from refstore.handles import Branch, Ref, Tag
    from refstore.operations import (
        address_info,
        change_metadata,
        log_and_diff,
        onboard,
        refs,
        rule_review,
        rules_document,
        rules_in_force,
        trash,
        upload_bodies,
    )
    from refstore.operations import branch as branch_operation
    from refstore.operations import commit as commit_operation
    from refstore.operations import copy as copy_operation
    from refstore.operations import delete as delete_operation
    from refstore.operations import import_objects as import_objects_operation
    from refstore.operations import move as move_operation
    from refstore.operations import read as read_operation
    from refstore.operations import restore as restore_operation
    from refstore.operations import tag as tag_operation
    from refstore.operations import unmark as unmark_operation
    from refstore.operations import upload as upload_operation
    from refstore.operations.address_info import AddressInfo
    from refstore.operations.commit import CommitDetails
    from refstore.operations.copy import Copy
    from refstore.operations.import_objects import ImportResult, ProgressCallback
    from refstore.operations.log_and_diff import LogEntry
    from refstore.operations.move import Move
    from refstore.operations.read import ListedPath, ListingPage
    from refstore.operations.restore import RestoreRequest, RestoreResult
    from refstore.operations.trash import LostName
    from refstore.operations.unmark import UnmarkResult
    from refstore.operations.upload import IssuedAddress, Link, Stage, Upload
    from refstore.purge_document.document import PurgeDocument
    from refstore.records.repository_records import ImportSource, RepositoryRecord
    from refstore.retention.rules import GcRules
    from refstore.retention.typed_rules import Retention
    from refstore.transactions import Transaction
    from refstore.versioning.commits.tree_diff import EntryChange
else:
    explain = LazyModule("refstore.deletion_history.explain")
    handles = LazyModule("refstore.handles")
    file_objects = LazyModule("refstore.file_objects")
    address_info = LazyModule("refstore.operations.address_info")
    branch_operation = LazyModule("refstore.operations.branch")
    change_metadata = LazyModule("refstore.operations.change_metadata")
    commit_operation = LazyModule("refstore.operations.commit")
    copy_operation = LazyModule("refstore.operations.copy")
    move_operation = LazyModule("refstore.operations.move")
    delete_operation = LazyModule("refstore.operations.delete")
    import_objects_operation = LazyModule("refstore.operations.import_objects")
    log_and_diff = LazyModule("refstore.operations.log_and_diff")
    onboard = LazyModule("refstore.operations.onboard")
    read_operation = LazyModule("refstore.operations.read")
    refs = LazyModule("refstore.operations.refs")
    restore_operation = LazyModule("refstore.operations.restore")
    rule_review = LazyModule("refstore.operations.rule_review")
    rules_document = LazyModule("refstore.operations.rules_document")
    rules_in_force = LazyModule("refstore.operations.rules_in_force")
    tag_operation = LazyModule("refstore.operations.tag")
    trash = LazyModule("refstore.operations.trash")
    unmark_operation = LazyModule("refstore.operations.unmark")
    upload_operation = LazyModule("refstore.operations.upload")
    transactions = LazyModule("refstore.transactions")


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Refused = TypeVar("Refused", bound=RefstoreError)


def _deadline(repo: Repository) -> AbstractContextManager[None]:
    return deadline.limit_operation(repo.context.clock, repo.context.safety.operation_deadline_seconds)


def _operation(method: Callable[Concatenate[Repository, P], R]) -> Callable[Concatenate[Repository, P], R]:
    """Run the method under the operation deadline."""

    @wraps(method)
    def run(self: Repository, *args: P.args, **kwargs: P.kwargs) -> R:
        with _deadline(self):
            return method(self, *args, **kwargs)

    return run


def _json_of(document: Retention | PurgeDocument | str) -> str:
    return document if isinstance(document, str) else document.to_json()


@wrap_public_methods
class Repository:
    """One repository of a lake. Open it with `Lake.repository`, or create it with `Lake.create_repository`."""

    def __init__(self, name: RepositoryName, record: RepositoryRecord, open_context: Callable[[], Context]) -> None:
        self._name = name
        self.record = record
        self._open_context = open_context

    @cached_property
    def context(self) -> Context:
        """What its operations work with; none of an application's business. The first use opens the namespace."""
        return self._open_context()

    @property
    def name(self) -> RepositoryName:
        """The name that the lake knows the repository by."""
        return self._name

    @property
    def created(self) -> datetime:
        """When the repository was created, in UTC."""
        return to_datetime(self.record.created_ms)

    @property
    def metadata(self) -> Mapping[str, str]:
        """What `Lake.create_repository` and `Lake.set_metadata` said of it, as it was when this object was made."""
        return dict(self.record.metadata)

    @property
    def default_branch(self) -> BranchName:
        """The branch that was created with the repository, and cannot be deleted."""
        return self.record.default_branch

    # ---- handles

    def ref(self, name: str) -> Ref:
        """Return a handle of a ref, which has the methods that read, without its name. Nothing is read now."""
        return handles.Ref(self, name)

    def branch(self, name: str) -> Branch:
        """Return a handle of a branch, which has the methods that read and change it. Nothing is read now."""
        return handles.Branch(self, ids.branch_name(name))

    def tag(self, name: str) -> Tag:
        """Return a handle of a tag. Nothing is read now."""
        return handles.Tag(self, ids.tag_name(name))

    # ---- data in

    def upload(
        self,
        branch: str,
        path: str,
        body: upload_bodies.UploadBody,
        *,
        metadata: Mapping[str, str] | None = None,
        content_type: str = "",
        modified: datetime | None = None,
        if_absent: bool = False,
        if_entry: Entry | None = None,
    ) -> Entry:
        """Upload one object and return its entry. An object that was staged at the path loses this name at once.

        `body`: bytes, a readable binary file, an iterable of bytes, or the path of a file (`pathlib.Path`). `modified`:
        when the content last changed (default: now). `if_absent`: raise AlreadyExists, and
        change nothing, if the path holds an object. `if_entry`: raise PathChanged, and change nothing, unless the path
        holds this entry, as it was read: of all that read the same entry, one replaces it.
        """
        item = upload_operation.Upload(
            path=path,
            body=body,
            metadata=metadata or {},
            content_type=content_type,
            modified=modified,
            if_absent=if_absent,
            if_entry=if_entry,
        )
        return self.upload_many(branch, [item])[0]

    def upload_many(self, branch: str, uploads: Iterable[Upload]) -> Sequence[Entry]:
        """Upload any number of objects in batches, and return their entries in the same order.

        An upload that its condition refuses ends the call with AlreadyExists or PathChanged. The rest of its batch is
        uploaded, unless the refusal was certain before the batch was written. Use `upload_each` for the fate of each
        upload.
        """
        name = ids.branch_name(branch)
        return list(
            self._in_batches(
                uploads, lambda batch: _entries_of(batch, upload_operation.upload_many(self.context, name, batch))
            )
        )

    def upload_each(
        self, branch: str, uploads: Iterable[Upload]
    ) -> Iterator[Entry | AlreadyExists | PathChanged | Contention]:
        """Upload any number of objects, also more than memory holds, and yield for each its entry, or the error that
        refused it. A batch is uploaded when the first of its outcomes is read.
        """
        name = ids.branch_name(branch)
        return self._suggest_later(
            self._in_batches(
                uploads, lambda batch: _outcomes_of(batch, upload_operation.upload_each(self.context, name, batch))
            )
        )

    def stage(
        self,
        branch: str,
        path: str,
        url: str,
        *,
        size_bytes: int,
        checksum: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> Entry:
        """Name an object outside the namespace, and return its entry. refstore never deletes such an object."""
        item = upload_operation.Stage(
            path=path, url=url, size_bytes=size_bytes, checksum=checksum, metadata=metadata or {}
        )
        return self.stage_many(branch, [item])[0]

    def stage_many(self, branch: str, items: Iterable[Stage]) -> Sequence[Entry]:
        """Stage any number of objects in batches, and return their entries in the same order."""
        name = ids.branch_name(branch)
        return list(
            self._in_batches(
                items, lambda batch: _entries_of(batch, upload_operation.stage_many(self.context, name, batch))
            )
        )

    def import_objects(
        self,
        branch: str,
        sources: Sequence[ImportSource],
        message: str,
        *,
        dry_run: bool = False,
        watch: ProgressCallback | None = None,
        **details: Unpack[CommitDetails],
    ) -> ImportResult:
        """Name foreign objects, single ones or all below a prefix, in one commit. No data is read, and none of these
        objects is ever deleted.

        An import replaces everything at a prefix's destination: paths that the source does not have leave the branch.
        The listing has no time limit; the commit after it runs under the operation deadline. `watch` is called with the
        numbers of objects listed and left out so far; an exception that it raises ends the import. `dry_run`: list and
        count only.

        Raises Invalid (also for a source in a namespace of this lake), ObjectNotFound (it is empty), DirtyBranch,
        NothingToCommit.
        """
        name, options = ids.branch_name(branch), commit_operation.CommitOptions.of_details(message, details)
        return import_objects_operation.import_objects(
            self.context,
            name,
            sources,
            options,
            watch=watch or import_objects_operation.ignore_progress,
            dry_run=dry_run,
        )

    def issue(self, branch: str, path: str) -> IssuedAddress:
        """Issue a physical address that another program writes to, and the token that links it once to this path."""
        return self.issue_many(branch, [path])[0]

    @_operation
    def issue_many(self, branch: str, paths: Sequence[str]) -> Sequence[IssuedAddress]:
        """Issue one address for each path, in the same order."""
        return upload_operation.issue_many(self.context, ids.branch_name(branch), paths)

    def link(
        self,
        branch: str,
        path: str,
        token: str,
        *,
        size_bytes: int | None = None,
        checksum: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> Entry:
        """Put an issued address on the branch after its object was written, and return the entry.

        `size_bytes`: refuse an object of another size. Raises InvalidToken, AlreadyLinked, ObjectNotFound (nothing was
        written to the address).
        """
        item = upload_operation.Link(
            path=path, token=token, size_bytes=size_bytes, checksum=checksum, metadata=metadata or {}
        )
        return self.link_many(branch, [item])[0]

    def link_many(self, branch: str, items: Iterable[Link]) -> Sequence[Entry]:
        """Link any number of addresses in batches, and return their entries in the same order."""
        name = ids.branch_name(branch)
        return list(
            self._in_batches(
                items, lambda batch: _entries_of(batch, upload_operation.link_many(self.context, name, batch))
            )
        )

    def link_each(
        self, branch: str, items: Iterable[Link]
    ) -> Iterator[Entry | AlreadyLinked | AlreadyExists | PathChanged | Contention]:
        """Link any number of addresses, and yield for each its entry, or the error that refused it. A batch is linked
        when the first of its outcomes is read.
        """
        name = ids.branch_name(branch)
        return self._suggest_later(
            self._in_batches(
                items, lambda batch: _outcomes_of(batch, upload_operation.link_each(self.context, name, batch))
            )
        )

    def copy(self, ref: str, path: str, *, to_branch: str, to_path: str | None = None) -> Entry:
        """Give the object at a ref's path another name on `to_branch`, at `to_path` (default: the same path). No data
        is read.

        Raises InvalidPath for a copy onto itself; `change_metadata` changes what is said of an object.
        """
        return self.copy_many(ref, [copy_operation.Copy(path, to_path or path)], to_branch=to_branch)[0]

    def copy_many(self, ref: str, copies: Iterable[Copy], *, to_branch: str) -> Sequence[Entry]:
        """Copy in batches of 1,000. Each batch happens as if at once, and reads what earlier batches wrote."""
        name = ids.branch_name(to_branch)
        return list(
            self._in_batches(
                copies, lambda batch: _copied_of(batch, copy_operation.copy_many(self.context, ref, name, batch))
            )
        )

    def move(self, branch: str, path: str, *, to_path: str | None = None, to_branch: str | None = None) -> Entry:
        """Copy an object to another path, another branch, or both, then delete its source. A crash in between leaves
        both names.

        Raises as `move_many` does.
        """
        return self.move_many(branch, [move_operation.Move(path, to_path or path)], to_branch=to_branch)[0]

    @_operation
    def change_metadata(self, branch: str, path: str, change: Callable[[Entry], Entry]) -> Entry:
        """Change what is said of the object at a path. `change` returns its entry with other metadata, or another
        content type (`Entry.replace`). What somebody writes or deletes there meanwhile is not undone.

        Raises ObjectNotFound; and Contention where a commit under way has the entry: make the call again later.
        """
        checked = ids.object_path(path)
        return Entry(checked, change_metadata.change_metadata(self.context, ids.branch_name(branch), checked, change))

    @_operation
    def move_many(self, branch: str, moves: Sequence[Move], *, to_branch: str | None = None) -> Sequence[Entry]:
        """Copy within a branch, or to `to_branch`, then delete the sources.

        Of several calls that move one path, one does; the others take their copies back. Raises ObjectNotFound if the
        source is gone, PathChanged if it was replaced meanwhile, and Contention where a commit may have a copy, which
        stays then. The other moves of the call are made first.
        """
        destination = ids.branch_name(branch if to_branch is None else to_branch)
        return _copied_of(moves, move_operation.move_many(self.context, ids.branch_name(branch), destination, moves))

    # ---- data out

    @_operation
    def resolve(self, ref: str, path: str) -> NamedEntry:
        """Return the entry at a path as it is staged or committed, and which of both. Raises ObjectNotFound."""
        checked = ids.object_path(path)
        found = read_operation.resolve(self.context, refs.resolve(self.context, ref), checked)
        return NamedEntry(Entry(checked, found.entry), found.token is not None, found.commit)

    @_operation
    def stat(self, ref: str, path: str) -> Entry:
        """Return the entry at a path. After a purge its address, size and checksums are those of the content that a
        reader gets now. Raises ObjectNotFound.
        """
        checked = ids.object_path(path)
        return Entry(checked, read_operation.stat(self.context, refs.resolve(self.context, ref), checked))

    @_operation
    def stat_many(self, ref: str, paths: Sequence[str]) -> dict[str, Entry]:
        """Return the entry of each path that holds an object, by path."""
        checked = [ids.object_path(path) for path in paths]
        entries = read_operation.stat_many(self.context, refs.resolve(self.context, ref), checked)
        return {str(path): Entry(path, entry) for path, entry in entries.items()}

    @_operation
    def get(self, ref: str, path: str, *, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Return the bytes from `start` up to, not including, `end` in chunks; foreign objects are read, too.

        Raises ObjectNotFound or Gone before the first chunk, and CorruptObject if the object is not as long as it was.
        A whole object from S3 is hashed while it is read: before its last chunk, CorruptObject is raised if it is not
        what was uploaded.
        """
        return read_operation.open_object(self.context, ref, ids.object_path(path), start, end)

    def read(self, ref: str, path: str) -> bytes:
        """Return the whole content of an object. Raises ObjectNotFound, Gone, CorruptObject."""
        return b"".join(self.get(ref, path))

    @overload
    def open(self, ref: str, path: str, mode: Literal["rb"] = "rb") -> io.BufferedReader: ...

    @overload
    def open(
        self,
        ref: str,
        path: str,
        mode: Literal["wb"],
        *,
        metadata: dict[str, str] | None = None,
        content_type: str = "",
        if_absent: bool = False,
    ) -> BinaryIO: ...

    @overload
    def open(
        self,
        ref: str,
        path: str,
        mode: Literal["r", "w"],
        *,
        encoding: str = "utf-8",
        errors: str | None = None,
        newline: str | None = None,
        metadata: dict[str, str] | None = None,
        content_type: str = "",
        if_absent: bool = False,
    ) -> io.TextIOWrapper: ...

    def open(
        self,
        ref: str,
        path: str,
        mode: str = "rb",
        *,
        encoding: str = "utf-8",
        errors: str | None = None,
        newline: str | None = None,
        metadata: dict[str, str] | None = None,
        content_type: str = "",
        if_absent: bool = False,
    ) -> BinaryIO | io.TextIOWrapper:
        """Open an object as a file: to read it ('rb', or 'r' as text), or to write it ('wb', 'w'); `ref` is a branch
        then.

        A file that is read is the object that is at the path now, whatever is uploaded there later. It is seekable, and
        requests what is read of it. A file that is written is uploaded when it is closed, as `upload` does it; nothing
        is, if an error ends its `with` block or nobody closes it. `encoding`, `errors`, `newline`: as Python's `open`
        takes them.

        Instead of refstore's own errors, opening, reading and closing raise FileNotFoundError (also where the data has
        gone since), FileExistsError (`if_absent`) and PermissionError (a store refuses).
        """
        checked = ids.object_path(path)
        if mode in {"rb", "r"}:
            file = file_objects.open_reader(self.context, ref, checked)
            return file if mode == "rb" else io.TextIOWrapper(file, encoding, errors, newline)
        if mode not in {"wb", "w"}:
            raise Invalid(f"the mode {mode!r} is not known; give 'rb' or 'wb', or for texts 'r' or 'w'")
        with file_objects.translate_errors(path):
            self.get_branch(ref)
            if if_absent and self.stat_many(ref, [path]):
                raise AlreadyExists(f"there is an object at {path!r} already; it was not changed")

        def upload(body: BinaryIO) -> None:
            self.upload(ref, path, body, metadata=metadata, content_type=content_type, if_absent=if_absent)

        written = file_objects.UploadFile(upload, path)
        return (
            cast(BinaryIO, written)
            if mode == "wb"
            else file_objects.open_text_writer(written, encoding, errors, newline)
        )

    @_operation
    def list_page(
        self, ref: str, *, prefix: str = "", after: str = "", amount: int = 1000, delimiter: str = ""
    ) -> ListingPage:
        """Return a page of a listing, with at most `amount` items of what comes after `after`, a path or common prefix.

        With a `delimiter`, paths that share a prefix up to it are listed as one common prefix. A page may have fewer
        items, even none, although `has_more`: where very many paths were deleted. The next one begins at `next_after`.
        """
        ids.path_prefix(prefix)
        resolved = refs.resolve(self.context, ref)
        return read_operation.list_page(
            self.context, resolved, prefix=prefix, after=after, amount=amount, delimiter=delimiter
        )

    def list(
        self, ref: str, *, prefix: str = "", after: str = "", delimiter: str = "", page: int = 1000
    ) -> Iterator[ListedPath]:
        """List every object in path order, in pages of `page` items.

        Each page is consistent. Between two pages the branch may change.
        """
        while True:
            result = self.list_page(ref, prefix=prefix, after=after, amount=page, delimiter=delimiter)
            yield from result.results
            if not result.has_more:
                return
            after = result.next_after

    # ---- data away

    def delete(self, branch: str, path: str) -> None:
        """Delete one path. A path that holds no object is no error."""
        self.delete_many(branch, [path])

    def delete_many(self, branch: str, paths: Iterable[str]) -> None:
        """Delete any number of paths, in batches."""
        for batch in split_batches(paths, delete_operation.BATCH):
            with _deadline(self):
                delete_operation.delete_many(self.context, ids.branch_name(branch), batch)

    @_operation
    def delete_if_entry(self, branch: str, path: str, entry: Entry) -> None:
        """Delete a path if it still holds the entry that was read there.

        Raises PathChanged; and Contention where others changed the path meanwhile, or a commit under way has the entry:
        look what is there, then make the call again.
        """
        delete_operation.delete_if_entry(self.context, ids.branch_name(branch), path, stored_entry(entry))

    @_operation
    def delete_prefix(self, branch: str, prefix: str) -> int:
        """Delete every path that starts with the prefix, and return their number."""
        return delete_operation.delete_prefix(self.context, ids.branch_name(branch), prefix)

    @_operation
    def reset(self, branch: str, *, path: str | None = None, prefix: str | None = None) -> int | None:
        """Throw away what is staged on the branch, in one step; or only what is staged at a path or below a prefix.

        With `path` or `prefix`, returns how many staged changes that were; None: all, which nobody counts. Raises
        Conflict then while a commit is unfinished.
        """
        name = ids.branch_name(branch)
        if path is not None or prefix is not None:
            return delete_operation.reset_paths(self.context, name, path=path, prefix=prefix)
        branch_operation.reset_branch(self.context, name)
        return None

    @_operation
    def restore(
        self, address: str, *, to: str, path: str | None = None, force: bool = False, dry_run: bool = False
    ) -> RestoreResult:
        """Take back to the branch `to` an address that lost its last name, at the path that it had, or at `path`.

        The result has the path, the entry that is there now, and whether the call changed anything. An object that was
        written to the path since stays, and the call raises AlreadyExists; `force` replaces it. `dry_run`: return what
        the call would do. Raises Gone, AddressNotFound, ObjectNotFound.
        """
        one, name = [restore_operation.RestoreRequest(address, path)], ids.branch_name(to)
        (restored,) = restore_operation.restore_many(self.context, name, one, force=force, dry_run=dry_run)
        if restored.error is not None:
            raise restored.error
        return restored

    def restore_many(
        self,
        branch: str,
        *,
        to: str | None = None,
        prefix: str = "",
        path: str | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> Sequence[RestoreResult]:
        """Take back what a branch lost and can still be restored, each object at the path that it had.

        `to`: restore to another branch; the one that lost the objects may be deleted by now. `prefix`: only paths that
        start with it. `path`: only this path. Of several versions of a path the call takes the one that was lost last,
        and leaves versions that were only overwritten, unless `path` asks for one. `force`, `dry_run`: see `restore`.
        The call holds a record of each restored object in memory.
        """
        source, name = ids.branch_name(branch), ids.branch_name(branch if to is None else to)
        self.get_branch(name)
        lost = trash.list_trash(self.context, branch=source, prefix=prefix if path is None else ids.object_path(path))
        latest, older = restore_operation.select_latest(
            (item for item in lost if path is None or item.path == path), by_path=path is not None
        )
        results = [
            restore_operation.RestoreResult(item.address, item.path, None, restore_operation.RestoreOutcome.OLDER)
            for item in older
        ]
        results += self._in_batches(
            (restore_operation.RestoreRequest(item.address, item.path) for item in latest),
            lambda batch: restore_operation.restore_many(self.context, name, batch, force=force, dry_run=dry_run),
        )
        return results

    def restore_each(
        self, requests: Iterable[RestoreRequest], *, to: str, force: bool = False, dry_run: bool = False
    ) -> Iterator[RestoreResult]:
        """Take back any number of addresses, and yield what happened to each, as `restore` does for one. No two of them
        may have one path. A batch is restored when the first of its results is read.
        """
        name = ids.branch_name(to)
        return self._suggest_later(
            self._in_batches(
                requests,
                lambda batch: restore_operation.restore_many(self.context, name, batch, force=force, dry_run=dry_run),
            )
        )

    def list_trash(self, *, branch: str | None = None, prefix: str = "", after: str = "") -> Iterator[TrashItem]:
        """List what could be restored now, after the cursor `after`. A reaper at work may cause repetitions."""
        name = ids.branch_name(branch) if branch is not None else None
        return map(_trash_item_of, trash.list_trash(self.context, branch=name, prefix=prefix, after=after))

    @_operation
    def address(self, address: str) -> AddressInfo:
        """Return the state of a physical address, and the paths and commits that name it."""
        return address_info.address_info(self.context, address)

    def why(self, address: str, *, commits: bool = False) -> explain.AddressReport:
        """Explain a physical address: who names it, or who deleted it, when, and under which rule.

        `commits`: for a deleted address, also find the commits that named it. Raises AddressNotFound.
        """
        return explain.explain_address(self.context, address, commits=commits)

    def why_path(self, ref: str, path: str) -> explain.PathReport:
        """Explain each object that was at a path, as `why` does, also on a deleted branch. Raises ObjectNotFound."""
        return explain.explain_path(self.context, ref, path)

    # ---- history

    @_operation
    def commit(self, branch: str, message: str, **details: Unpack[CommitDetails]) -> Commit:
        """Commit what is staged on the branch, and return the new commit. Raises NothingToCommit."""
        return commit_operation.commit(
            self.context, ids.branch_name(branch), commit_operation.CommitOptions.of_details(message, details)
        )

    def transaction(
        self,
        branch: str,
        message: str,
        *,
        metadata: dict[str, str] | None = None,
        committer: str = "",
        lease: timedelta = timedelta(days=1),
    ) -> Transaction:
        """Return a unit of work for a `with` statement: it writes to a branch of its own, which is merged into `branch`
        as one commit at the end, and deleted after an error, so that its objects are in the trash.

        `lease`: how long the writer may be silent; each call on the transaction renews it, and each with it, such as
        `repo.ref("v1").copy("a", to_branch=tx)`. One that ran out is not merged, and the reaper deletes its branch.
        The end of the statement raises TransactionEnded; and MergeConflict, DirtyBranch (`branch` keeps having staged
        changes) and BranchNotFound, which say where the data stays.
        """
        options = commit_operation.CommitOptions(message=message, committer=committer, metadata=metadata or {})
        if lease <= timedelta(0):
            raise Invalid(f"lease is {lease}; it must be longer than nothing")
        return transactions.Transaction(self, ids.branch_name(branch), options, int(lease.total_seconds() * 1000))

    @_operation
    def merge(
        self,
        source: str,
        *,
        into: str,
        message: str = "",
        strategy: str = "",
        squash: bool = False,
        **details: Unpack[CommitDetails],
    ) -> Commit:
        """Merge a ref into the branch `into`, and return the new commit. Raises MergeConflict, DirtyBranch,
        NothingToCommit, Gone.

        `strategy`: '' reports conflicts, 'dest-wins' and 'source-wins' decide them. `squash`: record one parent only.
        """
        options = commit_operation.CommitOptions.of_details(message or f"Merge {source!r} into {into!r}", details)
        name = ids.branch_name(into)
        return commit_operation.merge(self.context, name, source, options, strategy=strategy, squash=squash)

    @_operation
    def revert(
        self, ref: str, *, on: str, parent: int = 0, message: str = "", **details: Unpack[CommitDetails]
    ) -> Commit:
        """Undo a commit by a new one on the branch `on`, and return the new one.

        `parent`: for a merge commit, the parent to go back to, counted from 1. Raises MergeConflict, DirtyBranch,
        NothingToCommit, Gone.
        """
        options = commit_operation.CommitOptions.of_details(message or f"Revert {ref}", details)
        return commit_operation.revert(self.context, ids.branch_name(on), ref, options, parent=parent)

    @_operation
    def cherry_pick(
        self, ref: str, *, onto: str, parent: int = 0, message: str = "", **details: Unpack[CommitDetails]
    ) -> Commit:
        """Apply a commit's changes again by a new one on the branch `onto`, and return the new one.

        `parent`: for a merge commit, the parent to compare it with, counted from 1. Raises MergeConflict, DirtyBranch,
        NothingToCommit, Gone.
        """
        options = commit_operation.CommitOptions.of_details(message or f"Cherry-pick {ref}", details)
        return commit_operation.cherry_pick(self.context, ids.branch_name(onto), ref, options, parent=parent)

    @_operation
    def get_commit(self, ref: str) -> Commit:
        """Return the commit that a ref names; for a branch, its head."""
        commit = refs.resolve(self.context, ref).commit
        return Commit(commit, refs.get_commit(self.context, commit))

    def log(self, ref: str, *, first_parent: bool = False, since: datetime | None = None) -> Iterator[Commit]:
        """List a ref's commit and its ancestors, newest first.

        `first_parent`: leave out what merges brought in. `since`: follow each line of history as far as its first
        commit that is older.
        """
        since_ms = None if since is None else to_ms(since)
        found = log_and_diff.log(self.context, ref, first_parent=first_parent, since_ms=since_ms)
        return (Commit(commit, record) for commit, record in found)

    def history(self, ref: str, *, first_parent: bool = False) -> Iterator[LogEntry]:
        """List what `log` lists, each commit with its mark and its lifetime: active, marked, swept, or expired and
        complete (other commits keep all of its data).
        """
        return self._suggest_later(log_and_diff.history(self.context, ref, first_parent=first_parent))

    def marks(self) -> Iterator[tuple[CommitId, Mark]]:
        """List every expired commit with its mark: it waits for its sweep, is being swept, or was swept."""
        from refstore.gc_marks import Marks

        return ((commit, Mark.of_record(record)) for commit, record in Marks(self.context).commits.scan())

    @_operation
    def unmark(self, which: str, *, pin: bool = False, by: str = "", dry_run: bool = False) -> UnmarkResult:
        """Make a ref's commit, or all commits that a mark id marked, active again.

        The next run marks again what the rules still call expired (the result's `expired`). `pin`: first add the
        commits to the rules' pins, on behalf of `by`, so that it does not. `dry_run`: change nothing. Raises NotFound,
        Conflict (the commit is not marked), Gone (the sweep has begun).
        """
        if dry_run:
            return unmark_operation.preview_unmark(self.context, which)
        return unmark_operation.unmark(self.context, which, pin=pin, by=by)

    def diff(self, ref: str, *, to: str | None = None, prefix: str = "", after: str = "") -> Iterator[PathChange]:
        """List, in path order, the changes that lead from a ref's commit to the commit of the ref `to`; without `to`,
        from a branch's head to what is staged on the branch.
        """
        if to is None:
            staged = log_and_diff.diff_staged(self.context, ids.branch_name(ref), prefix=prefix, after=after)
            return self._suggest_later(map(_change_of, staged))
        return map(_change_of, log_and_diff.diff_refs(self.context, ref, to, prefix=prefix, after=after))

    @_operation
    def merge_base(self, ref: str, *, other: str) -> CommitId | None:
        """Return the best common ancestor of the commits of two refs; None if there is none."""
        return log_and_diff.merge_base(self.context, ref, other)

    # ---- branches and tags

    @_operation
    def create_branch(self, name: str, *, source: str, hidden: bool = False) -> CommitId:
        """Create a branch at a ref's commit, and return its id. Raises AlreadyExists (a branch or a tag has the name),
        Gone (the commit has expired).
        """
        return branch_operation.create_branch(self.context, ids.branch_name(name), source, hidden=hidden)

    @_operation
    def get_branch(self, name: str) -> Branch:
        """Return a branch as it is now. Raises BranchNotFound."""
        checked = ids.branch_name(name)
        return handles.Branch(self, checked, self.context.branches.read_open(checked).record)

    def branches(self, *, prefix: str = "", after: str = "") -> Iterator[Branch]:
        """List the open branches, the hidden ones included, in order of name."""
        for name, record in self.context.branches.scan_open(prefix=prefix, after=after):
            yield handles.Branch(self, name, record)

    @_operation
    def delete_branch(self, name: str) -> None:
        """Delete a branch with everything uncommitted on it, in one step. Raises Conflict for the default branch."""
        branch_operation.delete_branch(self.context, ids.branch_name(name), default=self.default_branch)

    @_operation
    def create_tag(self, name: str, *, ref: str) -> CommitId:
        """Create a tag at a ref's commit, and return its id. Raises AlreadyExists (a tag or a branch has the name),
        Gone (the commit has expired).
        """
        return tag_operation.create_tag(self.context, ids.tag_name(name), ref)

    @_operation
    def get_tag(self, name: str) -> Tag:
        """Return a tag as it is now. Raises TagNotFound."""
        checked = ids.tag_name(name)
        return handles.Tag(self, checked, tag_operation.get_tag(self.context, checked))

    @_operation
    def delete_tag(self, name: str) -> None:
        """Delete a tag. Raises TagNotFound."""
        tag_operation.delete_tag(self.context, ids.tag_name(name))

    def tags(self, *, prefix: str = "", after: str = "") -> Iterator[Tag]:
        """List the tags in order of name."""
        for name, record in tag_operation.scan_tags(self.context, prefix=prefix, after=after):
            yield handles.Tag(self, name, record)

    # ---- retention

    @_operation
    def retention(self) -> rules_in_force.RetentionRules | None:
        """Return the rules in force, typed (`.retention`) and as they were set (`.document`), and who set them when.
        None: there are none, and no commit expires.
        """
        return rules_in_force.get_rules(self.context)

    @_operation
    def set_retention(
        self, document: Retention | str, *, by: str = "", remove: Collection[str] = ()
    ) -> rules_in_force.RetentionRules:
        """Replace all rules by a document (`docs/retention.md`), on behalf of `by`. A text is its JSON.

        `remove`: the legal holds and pins that the document removes, such as `hold:contracts/`, `pin:6e40...` and
        `tag:v*`; `review_retention` names them. Raises InvalidRules, ConsentNeeded (one is missing in `remove`),
        Contention.
        """
        return rules_document.set_rules(self.context, _json_of(document), by=by, remove=remove)

    @_operation
    def review_retention(self, document: Retention | str | None = None) -> rule_review.RuleReview:
        """Review the rules in force, or a document, against the whole history: what the document adds and removes,
        names and filters that match nothing here, and how many commits expire tonight. Raises InvalidRules,
        CorruptRecord.
        """
        ctx = self.context
        rules = (
            rules_in_force.rules_in_force(ctx)
            if document is None
            else rules_document.parse_rules(ctx, _json_of(document)).rules
        )
        return rule_review.review_rules(ctx, rules)

    @_operation
    def delete_retention(self, *, remove: Collection[str] = ()) -> rules_in_force.RetentionRules:
        """Delete all rules, and return them. `remove`: see `set_retention`. Raises NotFound, ConsentNeeded, Conflict
        (they have changed).
        """
        return rules_document.delete_rules(self.context, remove=remove)

    @_operation
    def set_gc_rules(self, rules: GcRules | None, *, by: str = "") -> rules_in_force.RetentionRules | None:
        """Set, or with None delete, only the rules that lakeFS's format can express. Raises InvalidRules."""
        return rules_document.set_gc_rules(self.context, rules, by=by)

    # ---- purge

    @_operation
    def purge_document(self) -> onboard.OnboardedDocument:
        """Return which data sets are onboarded for the purge. Raises NotFound (none), CorruptRecord."""
        return onboard.get_document(self.context)

    @_operation
    def onboard_purge(
        self, document: PurgeDocument | str, *, by: str = "", dry_run: bool = False
    ) -> onboard.OnboardedDocument:
        """Replace the purge document (`docs/purge.md`), on behalf of `by`. A text is its JSON. `dry_run`: check it, and
        set nothing. Raises InvalidPurge, Contention.
        """
        return onboard.onboard(self.context, _json_of(document), by=by, dry_run=dry_run)

    # ---- helpers

    def __reduce__(self) -> NoReturn:
        raise Invalid(
            "a repository cannot be pickled or copied, as the URLs of its lake may hold secrets; in the other process, "
            f"open the lake by its URLs or settings, then call lake.repository({self.name!r})"
        )

    def __repr__(self) -> str:
        return f"<Repository {self.name!r}>"

    def _suggest(self, error: NotFound) -> None:
        """Add to the error which branch or tag may be meant."""
        refs.suggest_name(self.context, error)

    def _suggest_later(self, results: Iterator[T]) -> Iterator[T]:
        """Do that for what is raised while results are read."""
        try:
            yield from results
        except NotFound as error:
            self._suggest(error)
            raise

    def _in_batches(self, items: Iterable[T], run: Callable[[Sequence[T]], Iterable[R]]) -> Iterator[R]:
        """Run each batch under a deadline of its own when the first of its results is read."""
        for batch in split_batches(items, upload_operation.BATCH):
            with _deadline(self):
                results = run(batch)
            yield from results


def _entries_of(items: Sequence[Upload | Stage | Link], entries: Iterable[StoredEntry]) -> list[Entry]:
    return [Entry(item.path, entry) for item, entry in zip(items, entries, strict=True)]


def _outcomes_of(items: Sequence[Upload | Link], outcomes: Iterable[StoredEntry | Refused]) -> list[Entry | Refused]:
    return [
        Entry(item.path, outcome) if isinstance(outcome, StoredEntry) else outcome
        for item, outcome in zip(items, outcomes, strict=True)
    ]


def _copied_of(copies: Sequence[Copy], entries: Iterable[StoredEntry]) -> list[Entry]:
    return [Entry(item.destination, entry) for item, entry in zip(copies, entries, strict=True)]


def _change_of(change: EntryChange) -> PathChange:
    path = change.path
    return PathChange(path, change.kind, public_entry(path, change.left), public_entry(path, change.right))


def _trash_item_of(lost: LostName) -> TrashItem:
    return TrashItem(
        lost.address,
        lost.branch,
        lost.path,
        lost.cause,
        to_datetime(lost.since_ms),
        None if lost.deletes_at_ms is None else to_datetime(lost.deletes_at_ms),
        public_entry(lost.path, lost.entry),
        lost.cursor,
    )
