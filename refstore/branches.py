"""The branch record: head, current token, sealed tokens, and the retired ones with their fate.

Everything that decides what becomes of staged data ends in one `set_if` here (rule 3). A record is compared by the bytes
that were read, and each version has its own write id, so a retried write recognises itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec

from refstore import keys
from refstore.clock import Clock
from refstore.errors import BranchNotFound, Contention
from refstore.ids import BranchName, CommitId, Ids, RepositoryId, Token
from refstore.kv.base import ABSENT, KV, Absent, Get, Key, Result
from refstore.records import Branch, BranchRecord, ClosedBranch, Retired, decode_branch, encode

ATTEMPTS: Final = 64
"""How often a lost race over one branch record is run again; each loss means that another operation got through."""


class Seen(NamedTuple):
    """An open branch as it was read: the bytes to compare with, and what they mean."""

    raw: bytes
    record: Branch


class Branches:
    def __init__(self, kv: KV, repo: RepositoryId, ids: Ids, clock: Clock) -> None:
        self._kv = kv
        self._repo = repo
        self._ids = ids
        self._clock = clock

    def key(self, name: BranchName) -> Key:
        return keys.branch(self._repo, name)

    def get_op(self, name: BranchName) -> Get:
        """The read that a flow puts behind its entries, in one batch: the token check of rule 2."""
        return Get(self.key(name))

    def open(self, name: BranchName) -> Seen:
        """Raises BranchNotFound, for a closed one too."""
        return self.seen(name, self._kv.get(self.key(name)))

    def seen(self, name: BranchName, value: Result) -> Seen:
        """What a `get_op` answered. Raises BranchNotFound."""
        record = self.decode(value)
        if not isinstance(value, bytes) or not isinstance(record, Branch):
            raise BranchNotFound(f"branch {name!r} does not exist; list the branches to see which do")
        return Seen(value, record)

    def decode(self, value: Result) -> BranchRecord | None:
        return decode_branch(value) if isinstance(value, bytes) else None

    def raw(self, name: BranchName) -> bytes | Absent:
        return self._kv.get(self.key(name))

    def scan(self, *, prefix: str = "", after: str = "") -> Iterator[tuple[BranchName, bytes, BranchRecord]]:
        """Every branch record, the closed ones included, in order of name."""
        for name, raw in self._kv.scan_all(keys.branches(self._repo), prefix=prefix, after=after):
            yield BranchName(name), raw, decode_branch(raw)

    def scan_open(self, *, prefix: str = "", after: str = "") -> Iterator[tuple[BranchName, Branch]]:
        """The open branches, in order of name."""
        for name, _, record in self.scan(prefix=prefix, after=after):
            if isinstance(record, Branch):
                yield name, record

    def create(self, name: BranchName, head: CommitId, token: Token, *, hidden: bool = False) -> bytes | None:
        """The new record's bytes, or None if a record stands there (an open branch, or a closed one not drained yet).

        In two steps, an empty closed record first: a write of the record itself over nothing, done again because its reply was
        lost, could bring back a branch that was deleted and drained meanwhile, with a token that is spent. `token` is for one try, and
        the id of what it made.
        """
        now = self._clock.now_ms()
        reserved = encode(ClosedBranch((), self._ids.unique(now)))
        if not self._kv.set_if(self.key(name), ABSENT, reserved):
            return None
        raw = encode(Branch(head, token, (), (), self._ids.unique(now), now, hidden, id=token))
        return raw if self._kv.set_if(self.key(name), reserved, raw) else None

    def change(self, name: BranchName, seen: Seen, **changes: object) -> bool:
        """One `set_if` from what was read to the same with `changes` (fields of Branch)."""
        new = msgspec.structs.replace(seen.record, **changes, write_id=self._write_id())
        return self._kv.set_if(self.key(name), seen.raw, encode(new))

    def seal(self, name: BranchName, new_token: Callable[[], Token]) -> Branch:
        """Make a new token current and the current one sealed; the record as it was written. Raises BranchNotFound, Contention.

        Each round has a token of its own: one that landed unnoticed, and was sealed by others, must not become current again.
        """
        for _ in range(ATTEMPTS):
            seen = self.open(name)
            sealed = (*seen.record.sealed, seen.record.token)
            new = msgspec.structs.replace(seen.record, token=new_token(), sealed=sealed, write_id=self._write_id())
            if self._kv.set_if(self.key(name), seen.raw, encode(new)):
                return new
        raise self.contention(name)

    def advance(self, name: BranchName, base: CommitId, sealed: tuple[Token, ...], head: CommitId, fate: str) -> bool:
        """Move the head from `base` to `head` and retire `sealed` with their fate, in one step (rule 3).

        False: another commit took these tokens, or a reset did; nothing happened. Sealed tokens that came later stay sealed.
        """
        for _ in range(ATTEMPTS):
            seen = self.open(name)
            record = seen.record
            if record.head != base or record.sealed[: len(sealed)] != sealed:
                return False
            retired = (*record.retired, *(Retired(token, fate) for token in sealed))
            if self.change(name, seen, head=head, sealed=record.sealed[len(sealed) :], retired=retired):
                return True
        raise self.contention(name)

    def close(self, name: BranchName, seen: Seen, cause: str) -> bool:
        """Retire every token under a closed record (rule 3); the name is free again once they are published."""
        record = seen.record
        gone = tuple(Retired(token, cause) for token in (*record.sealed, record.token))
        return self._kv.set_if(self.key(name), seen.raw, encode(ClosedBranch((*record.retired, *gone), self._write_id())))

    def contention(self, name: BranchName) -> Contention:
        return Contention(f"other operations kept changing branch {name!r}; make the same call again")

    def _write_id(self) -> str:
        return self._ids.unique(self._clock.now_ms())
