"""The commits of a repository as arrays: a number for each commit, its first parent's number, its date.

A million commits take some 200 MB here, most of it their ids. Commits come in any order, a parent often after its
child; at the end each parent must be there. Second parents of merges must exist too, but are not stored: their changes
are the merge commit's own.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from refstore.core.ids import CommitId
from refstore.core.user_metadata import TRANSACTION
from refstore.errors import CorruptRecord

NONE: Final = -1
"""The number of no commit."""
SNAPSHOT: Final = "SNAPSHOT"
"""The value by which a commit begins a view. Any other value, by convention APPEND, continues the view before it."""
_DATE_MS_MAX: Final = 2**62
_UNKNOWN: Final = 2


class TransactionType(IntEnum):
    """What a commit's metadata says about its transaction."""

    NONE = 0
    """Nothing."""
    APPEND = 1
    """It continues the view before it."""
    SNAPSHOT = 2
    """It begins a view."""

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> TransactionType:
        value = metadata.get(TRANSACTION)
        return cls.NONE if value is None else cls.SNAPSHOT if value == SNAPSHOT else cls.APPEND


class CommitRow(NamedTuple):
    id: CommitId
    parents: Sequence[CommitId]
    created_ms: int
    """The date that counts (`StoredCommit.retention_date_ms`)."""
    has_landed: bool = True
    """Whether a branch's head was ever moved to it. Otherwise the commit is under way, or was given up."""
    transaction: TransactionType = TransactionType.NONE


@dataclass(frozen=True, slots=True)
class CommitHistory:
    numbers: dict[CommitId, int]
    """Commit id -> number, in the order of the numbers."""
    first_parents: Sequence[int]
    """NONE: a root."""
    created_ms: Sequence[int]
    landed_flags: bytearray
    transactions: bytearray
    """The `TransactionType` of each."""
    uses_types: bytearray
    """Whether the commit, or one before it on its line of first parents, says its transaction type."""

    @classmethod
    def from_rows(cls, rows: Iterable[CommitRow]) -> CommitHistory:
        """Raises CorruptRecord: a parent is missing, a commit is there twice, or a date cannot be one."""
        builder = CommitHistoryBuilder()
        for row in rows:
            builder.add(row)
        return builder.build()

    def __len__(self) -> int:
        return len(self.created_ms)

    def number(self, commit: CommitId, what: str) -> int:
        """Return a commit's number. Raises CorruptRecord: `what` names a commit that does not exist."""
        index = self.numbers.get(commit)
        if index is None:
            raise CorruptRecord(
                f"{what} names commit {commit}, which has no record; restore the KV from a backup before anything "
                "expires"
            )
        return index

    def ids(self) -> list[CommitId]:
        """Return the commit ids by number."""
        return list(self.numbers)


class CommitHistoryBuilder:
    """Collects commits as they are read, and tells which are missing, so that the caller can fetch these by id."""

    def __init__(self) -> None:
        self._numbers: dict[CommitId, int] = {}
        self._first = array("i")
        self._created = array("q")
        self._landed = bytearray()
        self._transactions = bytearray()
        self._seen = bytearray()

    def add(self, row: CommitRow) -> None:
        me = self._assign_number(row.id)
        if self._seen[me]:
            raise CorruptRecord(f"commit {row.id} was read twice; read the commits again")
        if not -_DATE_MS_MAX <= row.created_ms <= _DATE_MS_MAX:
            raise CorruptRecord(f"commit {row.id} has the date {row.created_ms}; restore its record from a backup")
        self._seen[me], self._created[me], self._landed[me], self._transactions[me] = (
            1,
            row.created_ms,
            row.has_landed,
            row.transaction,
        )
        parents = [self._assign_number(parent) for parent in row.parents]
        if parents:
            self._first[me] = parents[0]

    def find_missing(self, named: Iterable[CommitId] = ()) -> list[CommitId]:
        """Return the parents, and those of `named`, that were not added yet."""
        missing_commits = {commit for commit in named if commit not in self._numbers}
        if 0 in self._seen:
            missing_commits |= {commit for commit, at in self._numbers.items() if not self._seen[at]}
        return sorted(missing_commits)

    def build(self) -> CommitHistory:
        """Raises CorruptRecord: a parent is missing."""
        missing = self.find_missing()
        if missing:
            raise CorruptRecord(
                f"commit {missing[0]} is some commit's parent and has no record; restore the KV from a backup before "
                "anything expires"
            )
        uses_types = _lines_with_types(self._first, self._transactions)
        return CommitHistory(self._numbers, self._first, self._created, self._landed, self._transactions, uses_types)

    def _assign_number(self, commit: CommitId) -> int:
        index = self._numbers.setdefault(commit, len(self._first))
        if index == len(self._first):
            self._first.append(NONE)
            self._created.append(0)
            self._landed.append(0)
            self._transactions.append(0)
            self._seen.append(0)
        return index


def _lines_with_types(first_parents: Sequence[int], transactions: bytearray) -> bytearray:
    """Return whether the line that ends with each commit uses transaction types. Each commit is visited once."""
    if not any(transactions):
        return bytearray(len(transactions))
    typed_lines = bytearray([_UNKNOWN]) * len(transactions)
    for tip in range(len(transactions)):
        line: list[int] = []
        number = tip
        while number != NONE and typed_lines[number] == _UNKNOWN:
            # so that the walk ends where a commit descends from itself; `compute_expiry` refuses it
            typed_lines[number] = 0
            line.append(number)
            number = first_parents[number]
        typed = number != NONE and typed_lines[number] == 1
        for commit in reversed(line):
            typed = typed or transactions[commit] != TransactionType.NONE
            typed_lines[commit] = typed
    return typed_lines
