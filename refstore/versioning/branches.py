"""The branch record: head, current token, sealed tokens, and the retired ones with their fate.

Every decision about staged data is one `set_if` on this record (rule 3). A record is compared by the bytes that were
read, and each version has its own write id, so a retried write recognises itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from refstore.core.clock import Clock
from refstore.core.ids import BranchName, CommitId, Ids, RepositoryId, TagName, Token, branch_of
from refstore.errors import AlreadyExists, BranchNotFound, Contention
from refstore.kv.base import ABSENT, KV, Absent, Get, Key, Result
from refstore.records import keys
from refstore.records.branch_records import BranchRecord, ClosedBranch, RetiredToken, StoredBranch, decode_branch
from refstore.records.encoding import encode

ATTEMPTS: Final = 64
"""How often a lost race over one branch record is run again; each loss means that another operation got through."""


class OpenBranch(NamedTuple):
    """An open branch as it was read: the bytes to compare with, and the decoded record."""

    raw: bytes
    record: StoredBranch


class Branches:
    def __init__(self, kv: KV, repo: RepositoryId, ids: Ids, clock: Clock) -> None:
        self._kv = kv
        self._repo = repo
        self._ids = ids
        self._clock = clock

    def key(self, name: BranchName) -> Key:
        return keys.branch(self._repo, name)

    def get_operation(self, name: BranchName) -> Get:
        """Return the read behind the entries of a batch: a commit that moved the token may lack them (rule 2)."""
        return Get(self.key(name))

    def read_open(self, name: BranchName) -> OpenBranch:
        """Read an open branch. Raises BranchNotFound, also for a closed one."""
        return self.parse_open(name, self._kv.get(self.key(name)))

    def parse_open(self, name: BranchName, value: Result) -> OpenBranch:
        """Decode the result of a `get_operation`. Raises BranchNotFound."""
        record = self.decode(value)
        if not isinstance(value, bytes) or not isinstance(record, StoredBranch):
            raise BranchNotFound(
                f"branch {name!r} does not exist; list the branches to see which do",
                unknown=name,
            )
        return OpenBranch(value, record)

    def decode(self, value: Result) -> BranchRecord | None:
        return decode_branch(value) if isinstance(value, bytes) else None

    def read_raw(self, name: BranchName) -> bytes | Absent:
        return self._kv.get(self.key(name))

    def read(self, name: BranchName) -> BranchRecord | None:
        return self.decode(self.read_raw(name))

    def read_of(self, tokens: Iterable[Token]) -> list[BranchRecord]:
        """Return the records of the branches that the tokens belong to, as far as they are there."""
        names = sorted({branch_of(token) for token in tokens})
        values = self._kv.get_many([self.key(name) for name in names])
        return [decode_branch(value) for value in values if value is not ABSENT]

    def has_live(self, tokens: Collection[Token]) -> bool:
        """Return whether one of the tokens is live: a marker of it stands for a decision that the KV has lost (21)."""
        records = self.read_of(tokens)
        return any(not set(tokens).isdisjoint(each.live_tokens) for each in records if isinstance(each, StoredBranch))

    def scan(self, *, prefix: str = "", after: str = "") -> Iterator[tuple[BranchName, bytes, BranchRecord]]:
        """Yield every branch record, the closed ones included, in order of name."""
        for name, raw in self._kv.scan_all(keys.branches(self._repo), prefix=prefix, after=after):
            yield BranchName(name), raw, decode_branch(raw)

    def scan_open(self, *, prefix: str = "", after: str = "") -> Iterator[tuple[BranchName, StoredBranch]]:
        """Yield the open branches, in order of name."""
        for name, _, record in self.scan(prefix=prefix, after=after):
            if isinstance(record, StoredBranch):
                yield name, record

    def create(
        self,
        name: BranchName,
        head: CommitId,
        token: Token,
        *,
        hidden: bool = False,
        branch_id: str = "",
        created_ms: int = 0,
        lease_until_ms: int = 0,
    ) -> bytes | None:
        """Create a branch, and return its record's bytes; None if an open or an undrained closed branch has the name.
        Raises AlreadyExists if a tag has it.

        An empty closed record is written first and reserves the name. If the branch record itself were written over
        nothing, and again after a lost reply, it could bring back a branch that was deleted and drained meanwhile, with
        a used token. The tag is looked for behind the reservation, because whoever creates a tag takes that away
        (`has_branch`): of both at once never both stay (rule 19). `token` is for one try, and becomes the branch's id
        if none is given.
        """
        now = self._clock.now_ms()
        reserved = encode(ClosedBranch((), self._ids.new_id(now)))
        if not self._kv.set_if(self.key(name), ABSENT, reserved):
            return None
        if self.has_tag(name):
            self._kv.set_if(self.key(name), reserved, ABSENT)
            raise AlreadyExists(
                f"a tag is named {name!r}, and a ref could not tell them apart; choose another name for the branch, or"
                " delete the tag first"
            )
        record = StoredBranch(
            head, token, (), (), self._ids.new_id(now), created_ms or now, hidden, branch_id or token, lease_until_ms
        )
        raw = encode(record)
        return raw if self._kv.set_if(self.key(name), reserved, raw) else None

    def has_tag(self, name: BranchName) -> bool:
        return self._kv.get(keys.tag(self._repo, TagName(name))) is not ABSENT

    def has_branch(self, name: TagName) -> bool:
        """Return whether an open branch has the name of a tag.

        A reservation is taken away: its creator may have looked for the tag before it was written, and looks again
        then (rule 19). Raises Contention.
        """
        key = self.key(BranchName(name))
        for _ in range(ATTEMPTS):
            raw = self._kv.get(key)
            record = self.decode(raw)
            if record is None or isinstance(record, StoredBranch):
                return record is not None
            if record.retired_tokens or self._kv.set_if(key, raw, ABSENT):
                return False
        raise self.contention(BranchName(name))

    def change(self, name: BranchName, open_branch: OpenBranch, **changes: object) -> StoredBranch | None:
        """Write the record with `changes` (its fields) by one `set_if` over what was read, and return it; None: it has
        changed.
        """
        new = msgspec.structs.replace(open_branch.record, **changes, write_id=self._write_id())
        return new if self._kv.set_if(self.key(name), open_branch.raw, encode(new)) else None

    def seal(self, name: BranchName, new_token: Callable[[], Token]) -> StoredBranch:
        """Make a new token current, seal the old one, and return the written record.

        Each round has a token of its own: a token that landed unnoticed, and was sealed by others, must not become
        current again. Raises BranchNotFound, Contention.
        """
        for _ in range(ATTEMPTS):
            open_branch = self.read_open(name)
            sealed = (*open_branch.record.sealed_tokens, open_branch.record.token)
            if sealed_record := self.change(name, open_branch, token=new_token(), sealed_tokens=sealed):
                return sealed_record
        raise self.contention(name)

    def advance(self, name: BranchName, base: CommitId, sealed: tuple[Token, ...], head: CommitId, fate: str) -> bool:
        """Move the head from `base` and retire `sealed` in one step: between two a crash loses their fate (rule 3).

        Return False where another commit or a reset took these tokens; then nothing changed. Tokens that were sealed
        later stay sealed.
        """
        for _ in range(ATTEMPTS):
            open_branch = self.read_open(name)
            record = open_branch.record
            if record.head != base or record.sealed_tokens[: len(sealed)] != sealed:
                return False
            retired = (*record.retired_tokens, *(RetiredToken(token, fate) for token in sealed))
            if self.change(
                name, open_branch, head=head, sealed_tokens=record.sealed_tokens[len(sealed) :], retired_tokens=retired
            ):
                return True
        raise self.contention(name)

    def close(self, name: BranchName, open_branch: OpenBranch, cause: str) -> bool:
        """Retire every token on a closed record (rule 3); the name is free again once they are published."""
        record = open_branch.record
        retired = tuple(RetiredToken(token, cause) for token in (*record.sealed_tokens, record.token))
        closed = ClosedBranch((*record.retired_tokens, *retired), self._write_id(), record.id)
        return self._kv.set_if(self.key(name), open_branch.raw, encode(closed))

    def contention(self, name: BranchName) -> Contention:
        return Contention(f"other operations kept changing branch {name!r}; make the same call again")

    def _write_id(self) -> str:
        return self._ids.new_id(self._clock.now_ms())
