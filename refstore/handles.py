"""Handles: a branch, a tag or any other ref of a repository, with the repository's methods and without the name in each
call.

    main = repo.branch("main")
    main.upload("2026/11/21.csv", b"...")
    main.commit("first day")
    main.merge_from("dev")

Making a handle reads nothing: a name that does not exist is an error of the first call. Each method does what the
method of `Repository` with the same name does, whose description says what it raises. Where a call takes a second ref,
it takes a handle, too. A call names what it reads before what it writes, and the second of two names is a keyword:
`repo.ref("v1").copy("a.csv", to_branch=main)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from io import BufferedReader, TextIOWrapper
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Unpack, cast, overload

from refstore.core.clock import to_datetime
from refstore.errors import Invalid

if TYPE_CHECKING:
    from refstore.core.ids import CommitId
    from refstore.errors import AlreadyExists, AlreadyLinked, Contention, PathChanged
    from refstore.operations.commit import CommitDetails
    from refstore.operations.copy import Copy
    from refstore.operations.import_objects import ImportResult, ProgressCallback
    from refstore.operations.log_and_diff import LogEntry
    from refstore.operations.move import Move
    from refstore.operations.read import ListedPath, ListingPage
    from refstore.operations.restore import RestoreRequest, RestoreResult
    from refstore.operations.upload import IssuedAddress, Link, Stage, Upload
    from refstore.operations.upload_bodies import UploadBody
    from refstore.public_types import Commit, Entry, PathChange, TrashItem
    from refstore.records.branch_records import StoredBranch, StoredTag
    from refstore.records.repository_records import ImportSource
    from refstore.repository import Repository
    from refstore.transactions import Transaction


class Ref:
    """A version of a repository's data: the name of a branch or a tag, or the id of a commit, also with a suffix such
    as `main~2`. Two are equal if they name the same in the same repository.
    """

    def __init__(self, repository: Repository, name: str) -> None:
        self._repository = repository
        self._name = name

    @property
    def repository(self) -> Repository:
        """The repository that has the ref."""
        return self._repository

    @property
    def name(self) -> str:
        """The name that the handle was made with."""
        return self._name

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ref) or type(self) is not type(other):
            return False
        return (self._repository.record.id, self._name) == (other._repository.record.id, other._name)

    def __hash__(self) -> int:
        return hash((type(self), self._repository.record.id, self._name))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, repository={str(self.repository.name)!r})"

    def __str__(self) -> str:
        return self.name

    def _use(self) -> str:
        """Return the name, for a call of another handle that reads this one, or writes to it."""
        return self.name

    @overload
    def _name_of(self, ref: str | Ref) -> str: ...

    @overload
    def _name_of(self, ref: str | Ref | None) -> str | None: ...

    def _name_of(self, ref: str | Ref | None) -> str | None:
        if not isinstance(ref, Ref):
            return ref
        if ref._repository.record.id != self._repository.record.id:
            raise Invalid(
                f"{ref!r} is of another repository than {self._repository.name!r}; a call works within one: read the "
                "object, and upload it there"
            )
        return ref._use()

    def get_commit(self) -> Commit:
        """Return the commit that the ref names; for a branch, its head."""
        return self.repository.get_commit(self.name)

    # ---- data out

    def stat(self, path: str) -> Entry:
        """Return the entry at a path."""
        return self.repository.stat(self.name, path)

    def stat_many(self, paths: Sequence[str]) -> dict[str, Entry]:
        """Return the entry of each path that holds an object, by path."""
        return self.repository.stat_many(self.name, paths)

    def get(self, path: str, *, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Return the bytes from `start` up to, not including, `end` in chunks."""
        return self.repository.get(self.name, path, start=start, end=end)

    def read(self, path: str) -> bytes:
        """Return the whole content of an object."""
        return self.repository.read(self.name, path)

    @overload
    def open(self, path: str, mode: Literal["rb"] = "rb") -> BufferedReader: ...

    @overload
    def open(
        self,
        path: str,
        mode: Literal["r"],
        *,
        encoding: str = "utf-8",
        errors: str | None = None,
        newline: str | None = None,
    ) -> TextIOWrapper: ...

    def open(
        self,
        path: str,
        mode: str = "rb",
        *,
        encoding: str = "utf-8",
        errors: str | None = None,
        newline: str | None = None,
    ) -> BufferedReader | TextIOWrapper:
        """Open an object as a file to read, as bytes ('rb') or as text ('r')."""
        repository = cast(Any, self.repository)
        return repository.open(self.name, path, mode, encoding=encoding, errors=errors, newline=newline)

    def list_page(self, *, prefix: str = "", after: str = "", amount: int = 1000, delimiter: str = "") -> ListingPage:
        """Return a page of a listing, with at most `amount` items of what comes after `after`."""
        return self.repository.list_page(self.name, prefix=prefix, after=after, amount=amount, delimiter=delimiter)

    def list(self, *, prefix: str = "", after: str = "", delimiter: str = "", page: int = 1000) -> Iterator[ListedPath]:
        """List every object in path order, in pages of `page` items."""
        return self.repository.list(self.name, prefix=prefix, after=after, delimiter=delimiter, page=page)

    def copy(self, path: str, *, to_branch: str | Branch, to_path: str | None = None) -> Entry:
        """Give the object at a path another name on a branch. No data is read."""
        return self.repository.copy(self.name, path, to_branch=self._name_of(to_branch), to_path=to_path)

    def copy_many(self, copies: Iterable[Copy], *, to_branch: str | Branch) -> Sequence[Entry]:
        """Copy in batches of 1,000."""
        return self.repository.copy_many(self.name, copies, to_branch=self._name_of(to_branch))

    # ---- history

    def log(self, *, first_parent: bool = False, since: datetime | None = None) -> Iterator[Commit]:
        """List the ref's commit and its ancestors, newest first."""
        return self.repository.log(self.name, first_parent=first_parent, since=since)

    def history(self, *, first_parent: bool = False) -> Iterator[LogEntry]:
        """List what `log` lists, each commit with its mark and its lifetime."""
        return self.repository.history(self.name, first_parent=first_parent)

    def diff(self, *, to: str | Ref, prefix: str = "", after: str = "") -> Iterator[PathChange]:
        """List, in path order, the changes that lead from this ref's commit to the commit of the ref `to`."""
        return self.repository.diff(self.name, to=self._name_of(to), prefix=prefix, after=after)

    def merge_base(self, *, other: str | Ref) -> CommitId | None:
        """Return the best common ancestor of the commits of this and another ref; None if there is none."""
        return self.repository.merge_base(self.name, other=self._name_of(other))


class Branch(Ref):
    """A branch: what a ref reads, what is staged on it, and everything that changes it.

    `head`, `created` and `is_hidden` are as `Repository.branches` or `Repository.get_branch` read them, which made the
    handle. That of `Repository.branch` reads them whenever they are used.
    """

    def __init__(self, repository: Repository, name: str, stored: StoredBranch | None = None) -> None:
        super().__init__(repository, name)
        self._stored = stored

    @property
    def head(self) -> CommitId:
        """The id of the branch's newest commit. Raises BranchNotFound."""
        return self._read_stored().head

    @property
    def created(self) -> datetime:
        """When the branch was created, in UTC. Raises BranchNotFound."""
        return to_datetime(self._read_stored().created_ms)

    @property
    def is_hidden(self) -> bool:
        """Whether listings for people leave the branch out. Raises BranchNotFound."""
        return self._read_stored().is_hidden

    def _read_stored(self) -> StoredBranch:
        return self._stored or self.repository.get_branch(self.name)._read_stored()  # which has it

    # ---- data in

    @overload
    def open(self, path: str, mode: Literal["rb"] = "rb") -> BufferedReader: ...

    @overload
    def open(
        self,
        path: str,
        mode: Literal["r", "w"],
        *,
        encoding: str = "utf-8",
        errors: str | None = None,
        newline: str | None = None,
        metadata: dict[str, str] | None = None,
        content_type: str = "",
        if_absent: bool = False,
    ) -> TextIOWrapper: ...

    @overload
    def open(
        self,
        path: str,
        mode: Literal["wb"],
        *,
        metadata: dict[str, str] | None = None,
        content_type: str = "",
        if_absent: bool = False,
    ) -> BinaryIO: ...

    def open(
        self,
        path: str,
        mode: str = "rb",
        *,
        encoding: str = "utf-8",
        errors: str | None = None,
        newline: str | None = None,
        metadata: dict[str, str] | None = None,
        content_type: str = "",
        if_absent: bool = False,
    ) -> BinaryIO | TextIOWrapper:
        """Open an object as a file: to read it ('rb', 'r'), or to write it ('wb', 'w'), which uploads it when it is
        closed.
        """
        texts: dict[str, Any] = {"encoding": encoding, "errors": errors, "newline": newline}
        writing: dict[str, Any] = {"metadata": metadata, "content_type": content_type, "if_absent": if_absent}
        return cast(Any, self.repository).open(self.name, path, mode, **texts, **writing)

    def upload(
        self,
        path: str,
        body: UploadBody,
        *,
        metadata: dict[str, str] | None = None,
        content_type: str = "",
        modified: datetime | None = None,
        if_absent: bool = False,
        if_entry: Entry | None = None,
    ) -> Entry:
        """Upload one object and return its entry."""
        return self.repository.upload(
            self.name,
            path,
            body,
            metadata=metadata,
            content_type=content_type,
            modified=modified,
            if_absent=if_absent,
            if_entry=if_entry,
        )

    def upload_many(self, uploads: Iterable[Upload]) -> Sequence[Entry]:
        """Upload any number of objects in batches, and return their entries in the same order."""
        return self.repository.upload_many(self.name, uploads)

    def upload_each(self, uploads: Iterable[Upload]) -> Iterator[Entry | AlreadyExists | PathChanged | Contention]:
        """Upload any number of objects, and yield for each its entry, or the error that refused it."""
        return self.repository.upload_each(self.name, uploads)

    def stage(
        self, path: str, url: str, *, size_bytes: int, checksum: str = "", metadata: dict[str, str] | None = None
    ) -> Entry:
        """Name an object outside the namespace, and return its entry. refstore never deletes such an object."""
        return self.repository.stage(self.name, path, url, size_bytes=size_bytes, checksum=checksum, metadata=metadata)

    def stage_many(self, items: Iterable[Stage]) -> Sequence[Entry]:
        """Stage any number of objects in batches, and return their entries in the same order."""
        return self.repository.stage_many(self.name, items)

    def import_objects(
        self,
        sources: Sequence[ImportSource],
        message: str,
        *,
        dry_run: bool = False,
        watch: ProgressCallback | None = None,
        **details: Unpack[CommitDetails],
    ) -> ImportResult:
        """Name foreign objects, single ones or all below a prefix, in one commit."""
        return self.repository.import_objects(self.name, sources, message, dry_run=dry_run, watch=watch, **details)

    def issue(self, path: str) -> IssuedAddress:
        """Issue a physical address that another program writes to, and the token that links it once to this path."""
        return self.repository.issue(self.name, path)

    def issue_many(self, paths: Sequence[str]) -> Sequence[IssuedAddress]:
        """Issue one address for each path, in the same order."""
        return self.repository.issue_many(self.name, paths)

    def link(
        self,
        path: str,
        token: str,
        *,
        size_bytes: int | None = None,
        checksum: str = "",
        metadata: dict[str, str] | None = None,
    ) -> Entry:
        """Put an issued address on the branch after its object was written, and return the entry."""
        return self.repository.link(self.name, path, token, size_bytes=size_bytes, checksum=checksum, metadata=metadata)

    def link_many(self, items: Iterable[Link]) -> Sequence[Entry]:
        """Link any number of addresses in batches, and return their entries in the same order."""
        return self.repository.link_many(self.name, items)

    def link_each(
        self, items: Iterable[Link]
    ) -> Iterator[Entry | AlreadyLinked | AlreadyExists | PathChanged | Contention]:
        """Link any number of addresses, and yield for each its entry, or the error that refused it."""
        return self.repository.link_each(self.name, items)

    def move(self, path: str, *, to_path: str | None = None, to_branch: str | Branch | None = None) -> Entry:
        """Copy an object to another path, another branch, or both, then delete its source."""
        return self.repository.move(self.name, path, to_path=to_path, to_branch=self._name_of(to_branch))

    def move_many(self, moves: Sequence[Move], *, to_branch: str | Branch | None = None) -> Sequence[Entry]:
        """Copy within the branch, or to `to_branch`, then delete the sources."""
        return self.repository.move_many(self.name, moves, to_branch=self._name_of(to_branch))

    def change_metadata(self, path: str, change: Callable[[Entry], Entry]) -> Entry:
        """Change what is said of the object at a path."""
        return self.repository.change_metadata(self.name, path, change)

    # ---- data away

    def delete(self, path: str) -> None:
        """Delete one path. A path that holds no object is no error."""
        self.repository.delete(self.name, path)

    def delete_many(self, paths: Iterable[str]) -> None:
        """Delete any number of paths, in batches."""
        self.repository.delete_many(self.name, paths)

    def delete_if_entry(self, path: str, entry: Entry) -> None:
        """Delete a path if it still holds the entry that was read there."""
        self.repository.delete_if_entry(self.name, path, entry)

    def delete_prefix(self, prefix: str) -> int:
        """Delete every path that starts with the prefix, and return their number."""
        return self.repository.delete_prefix(self.name, prefix)

    def reset(self, *, path: str | None = None, prefix: str | None = None) -> int | None:
        """Throw away what is staged on the branch, in one step; or only what is staged at a path or below a prefix."""
        return self.repository.reset(self.name, path=path, prefix=prefix)

    def delete_branch(self) -> None:
        """Delete the branch with everything uncommitted on it, in one step."""
        self.repository.delete_branch(self.name)

    # ---- undo

    def trash(self, *, prefix: str = "", after: str = "") -> Iterator[TrashItem]:
        """List what the branch lost and could be restored now, after the cursor `after`."""
        return self.repository.list_trash(branch=self.name, prefix=prefix, after=after)

    def restore(
        self, address: str, *, path: str | None = None, force: bool = False, dry_run: bool = False
    ) -> RestoreResult:
        """Take back to this branch an address that lost its last name, at the path that it had, or at `path`."""
        return self.repository.restore(address, to=self.name, path=path, force=force, dry_run=dry_run)

    def restore_many(
        self,
        *,
        to: str | Branch | None = None,
        prefix: str = "",
        path: str | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> Sequence[RestoreResult]:
        """Take back what this branch lost and can still be restored, to this branch or to the branch `to`."""
        return self.repository.restore_many(
            self.name, to=self._name_of(to), prefix=prefix, path=path, force=force, dry_run=dry_run
        )

    def restore_each(
        self, requests: Iterable[RestoreRequest], *, force: bool = False, dry_run: bool = False
    ) -> Iterator[RestoreResult]:
        """Take back any number of addresses to this branch, and yield what happened to each."""
        return self.repository.restore_each(requests, to=self.name, force=force, dry_run=dry_run)

    # ---- history

    def commit(self, message: str, **details: Unpack[CommitDetails]) -> Commit:
        """Commit what is staged on the branch, and return the new commit."""
        return self.repository.commit(self.name, message, **details)

    def transaction(
        self,
        message: str,
        *,
        metadata: dict[str, str] | None = None,
        committer: str = "",
        lease: timedelta = timedelta(days=1),
    ) -> Transaction:
        """Return a unit of work for a `with` statement, which is merged into this branch at the end."""
        return self.repository.transaction(self.name, message, metadata=metadata, committer=committer, lease=lease)

    def merge_from(
        self,
        source: str | Ref,
        *,
        message: str = "",
        strategy: str = "",
        squash: bool = False,
        **details: Unpack[CommitDetails],
    ) -> Commit:
        """Merge a ref into this branch, as `Repository.merge` does, and return the new commit."""
        return self.repository.merge(
            self._name_of(source), into=self.name, message=message, strategy=strategy, squash=squash, **details
        )

    def revert(self, ref: str | Ref, *, parent: int = 0, message: str = "", **details: Unpack[CommitDetails]) -> Commit:
        """Undo a commit by a new one on the branch, and return the new one."""
        return self.repository.revert(self._name_of(ref), on=self.name, parent=parent, message=message, **details)

    def cherry_pick(
        self, ref: str | Ref, *, parent: int = 0, message: str = "", **details: Unpack[CommitDetails]
    ) -> Commit:
        """Apply a commit's changes again by a new one on the branch, and return the new one."""
        return self.repository.cherry_pick(
            self._name_of(ref), onto=self.name, parent=parent, message=message, **details
        )

    def diff(self, *, to: str | Ref | None = None, prefix: str = "", after: str = "") -> Iterator[PathChange]:
        """List, in path order, what is staged on the branch; or the changes that lead from its head to the ref `to`."""
        return self.repository.diff(self.name, to=self._name_of(to), prefix=prefix, after=after)


class Tag(Ref):
    """A tag. `commit_id` and `created` are as the call read them that made the handle, or are read, as a branch's."""

    def __init__(self, repository: Repository, name: str, stored: StoredTag | None = None) -> None:
        super().__init__(repository, name)
        self._stored = stored

    @property
    def commit_id(self) -> CommitId:
        """The id of the commit that has the tag. Raises TagNotFound."""
        return self._read_stored().commit

    @property
    def created(self) -> datetime:
        """When the tag was created, in UTC. Raises TagNotFound."""
        return to_datetime(self._read_stored().created_ms)

    def _read_stored(self) -> StoredTag:
        return self._stored or self.repository.get_tag(self.name)._read_stored()  # which has it

    def delete_tag(self) -> None:
        """Delete the tag."""
        self.repository.delete_tag(self.name)
