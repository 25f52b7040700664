"""A unit of work: `with repository.transaction(...) as tx` (rule 24, `refstore/operations/transaction.py`)."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from refstore.core import deadline
from refstore.core.ids import BranchName, CommitId
from refstore.errors import Invalid
from refstore.handles import Branch
from refstore.operations import transaction

if TYPE_CHECKING:
    from refstore.operations.commit import CommitOptions
    from refstore.repository import Repository


class Transaction(Branch):
    """The handle of a branch of its own: reads see the target as it was at the beginning, and own writes.

    At the end of its `with` statement the branch is committed and merged into the target as one commit; after an
    exception it is deleted as any branch is, so that what it staged is in the trash. Threads may share it.
    """

    def __init__(self, repository: Repository, target: BranchName, options: CommitOptions, lease_ms: int) -> None:
        super().__init__(repository, "")
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
        """Renew the lease now. Every other call does so as it begins, when half of the lease is over; so does one of
        another handle that is given this one. Call this if half of the lease is shorter than what you compute between
        two calls, or than a call takes. Raises TransactionEnded.
        """
        self._hold(0)

    def _hold(self, until_ms: int) -> BranchName:
        name = self.name
        until_ms = transaction.hold(self._repository.context, name, until_ms, self._lease_ms)
        if self._begun is not None:  # another thread may have ended it
            self._begun = self._begun._replace(lease_until_ms=until_ms)
        return name

    @property
    def repository(self) -> Repository:
        """The repository, for a call on the branch; the lease holds. Raises TransactionEnded."""
        self._use()
        return self._repository

    def _use(self) -> str:
        return self._hold(self._begun.lease_until_ms if self._begun else 0)

    def __enter__(self) -> Transaction:
        if self._begun is not None:
            raise Invalid("this transaction has begun; begin another one with `Repository.transaction`")
        ctx = self._repository.context
        with deadline.limit_operation(ctx.clock, ctx.safety.operation_deadline_seconds):
            self._begun = transaction.begin(ctx, self.target, self._lease_ms)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        begun, self._begun = self._begun, None
        assert begun is not None  # noqa: S101  # `__enter__` has set it
        if kind is None:
            self.merged_commit = transaction.finish(self._repository.context, begun, self._options)
        else:
            transaction.abandon(self._repository.context, begun)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        branch = self._begun.branch if self._begun else ""
        return f"<Transaction {branch!r} for {self.target!r} of {self._repository.name!r}>"
