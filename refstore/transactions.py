"""A unit of work: `with repository.transaction(...) as tx` (rule 24, `refstore/operations/transaction.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from refstore.core import deadline
from refstore.core.ids import BranchName, CommitId
from refstore.errors import Invalid
from refstore.operations import transaction

if TYPE_CHECKING:
    from refstore.operations.commit import CommitOptions
    from refstore.operations.read import ListedPath
    from refstore.operations.upload import Upload
    from refstore.operations.upload_bodies import UploadBody
    from refstore.records.staging_records import StoredEntry
    from refstore.repository import Repository


class Transaction:
    """The handle of a branch of its own: reads see the target as it was at the beginning, and own writes.

    At the end of its `with` statement the branch is committed and merged into the target as one commit; after an
    exception it is deleted as any branch is, so that what it staged is in the trash. Threads may share it.
    """

    def __init__(self, repository: Repository, target: BranchName, options: CommitOptions, lease_ms: int) -> None:
        self._opened_repository = repository
        self._options = options
        self._lease_ms = lease_ms
        self._begun: transaction.BegunTransaction | None = None
        self.target = target
        """The branch that it is merged into."""
        self.merged_commit: CommitId | None = None
        """The target's new commit, after the `with` statement; None: nothing was changed, or nothing was merged."""

    @property
    def name(self) -> BranchName:
        """The branch of the transaction, which listings leave out. Raises Invalid outside its `with` statement."""
        if self._begun is None:
            raise Invalid("a transaction is used inside of its `with` statement; begin another one")
        return self._begun.branch

    def renew(self) -> None:
        """Renew the lease now. Every other call does so when half of the lease is over; call this if it is shorter than
        what you compute between two calls. Raises TransactionEnded.
        """
        name, ctx = self.name, self._opened_repository.context
        with deadline.limit_operation(ctx.clock, ctx.safety.operation_deadline_seconds):
            until_ms = transaction.renew(ctx, name, self._lease_ms)
        if self._begun is not None:
            self._begun = self._begun._replace(lease_until_ms=until_ms)

    @property
    def _repository(self) -> Repository:
        """The repository, for a call on the branch; the lease holds. Raises TransactionEnded."""
        left_ms = self._begun.lease_until_ms - self._opened_repository.context.clock.now_ms() if self._begun else 0
        if left_ms * 2 < self._lease_ms:
            self.renew()
        return self._opened_repository

    def __enter__(self) -> Transaction:
        if self._begun is not None:
            raise Invalid("this transaction has begun; begin another one with `Repository.transaction`")
        ctx = self._opened_repository.context
        with deadline.limit_operation(ctx.clock, ctx.safety.operation_deadline_seconds):
            self._begun = transaction.begin(ctx, self.target, self._lease_ms)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        begun, self._begun = self._begun, None
        assert begun is not None  # noqa: S101  # `__enter__` has set it
        if kind is None:
            self.merged_commit = transaction.finish(self._opened_repository.context, begun, self._options)
        else:
            transaction.abandon(self._opened_repository.context, begun)

    def __repr__(self) -> str:
        branch = self._begun.branch if self._begun else ""
        return f"<Transaction {branch!r} for {self.target!r} of {self._opened_repository.name!r}>"

    # ---- calls on the branch, which do what the methods of Repository do

    def upload(
        self,
        path: str,
        body: UploadBody,
        *,
        metadata: dict[str, str] | None = None,
        content_type: str = "",
        if_absent: bool = False,
        if_entry: StoredEntry | None = None,
    ) -> StoredEntry:
        """Upload one object, as `Repository.upload` does."""
        return self._repository.upload(
            self.name,
            path,
            body,
            metadata=metadata,
            content_type=content_type,
            if_absent=if_absent,
            if_entry=if_entry,
        )

    def upload_many(self, uploads: Iterable[Upload]) -> Sequence[StoredEntry]:
        """Upload any number of objects, as `Repository.upload_many` does."""
        return self._repository.upload_many(self.name, uploads)

    def read(self, path: str) -> bytes:
        """Return an object's content, as `Repository.read` does."""
        return self._repository.read(self.name, path)

    def get(self, path: str) -> Iterator[bytes]:
        """Return an object's content in chunks, as `Repository.get` does."""
        return self._repository.get(self.name, path)

    def stat(self, path: str) -> StoredEntry:
        """Return the entry at a path, as `Repository.stat` does."""
        return self._repository.stat(self.name, path)

    def list(self, *, prefix: str = "", after: str = "", delimiter: str = "") -> Iterator[ListedPath]:
        """List every object, as `Repository.list` does."""
        return self._repository.list(self.name, prefix=prefix, after=after, delimiter=delimiter)

    def delete(self, path: str) -> None:
        """Delete one path, as `Repository.delete` does."""
        self._repository.delete(self.name, path)

    def delete_many(self, paths: Iterable[str]) -> None:
        """Delete any number of paths, as `Repository.delete_many` does."""
        self._repository.delete_many(self.name, paths)

    def copy(self, ref: str, path: str, *, to_path: str | None = None) -> StoredEntry:
        """Give the object at `path` of a ref a name on the branch, as `Repository.copy` does."""
        return self._repository.copy(ref, path, self.name, to_path)

    def move(self, path: str, *, to_path: str) -> StoredEntry:
        """Move an object on the branch, as `Repository.move` does."""
        return self._repository.move(self.name, path, to_path)
