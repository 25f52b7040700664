"""Deleted and committed markers: what tells the reaper that a token's fate is decided.

Markers are published from a branch record's `retired` list and only then taken off it, by whoever comes first: the
operation itself, the next one, or the reaper (rule 3). A marker may be published again after it was processed; processing
it again finds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from refstore import keys
from refstore.branches import Branches, Seen
from refstore.clock import Clock
from refstore.errors import InvalidName
from refstore.ids import BranchName, CommitId, RepositoryId, Token, commit_id
from refstore.kv.base import ABSENT, KV
from refstore.records import Branch, ClosedBranch, CommittedTokens, DeletedToken, Retired, decode, decode_branch, encode

RESET: Final = "reset"
BRANCH_DELETED: Final = "branch-deleted"
REPOSITORY_DELETED: Final = "repository-deleted"
NOTHING_COMMITTED: Final = "nothing-committed"
"""Fates of a token that no commit took; each is also the cause that the journal gives."""

COMMITTED: Final = "committed "
"""How the cause of a token begins that a commit took: what the commit did not keep of it goes."""

_ATTEMPTS: Final = 8


class Markers:
    def __init__(self, kv: KV, repo: RepositoryId, clock: Clock) -> None:
        self._kv = kv
        self._repo = repo
        self._clock = clock

    def publish(self, branches: Branches, name: BranchName) -> int:
        """Publish a branch's retired tokens, then take them off its record; a closed branch's record goes. How many there were.

        Losing the race for the record is no failure: who won sees the same list and publishes it again.
        """
        for _ in range(_ATTEMPTS):
            raw = branches.raw(name)
            record = branches.decode(raw)
            if record is None or (isinstance(record, Branch) and not record.retired):
                return 0
            assert raw is not ABSENT  # noqa: S101  # a decoded record had bytes
            self._write(record.retired)
            match record:
                case Branch():
                    done = branches.change(name, Seen(raw, record), retired=())
                case ClosedBranch():
                    done = self._kv.set_if(branches.key(name), raw, ABSENT)
            if done:
                return len(record.retired)
        return 0

    def landed(self, commit: CommitId) -> bool:
        """Whether a branch's head was ever moved to the commit: a commit record alone may be of one that was given up.

        The moment between the move and its publication is looked for in the branches themselves.
        """
        if self._kv.get(keys.landed(self._repo, commit)) is not ABSENT:
            return True
        for _, value in self._kv.scan_all(keys.branches(self._repo)):
            if any(retired.fate == commit for retired in decode_branch(value).retired):
                return True
        return self._kv.get(keys.landed(self._repo, commit)) is not ABSENT  # published while we looked

    def committed(self) -> Iterator[tuple[CommitId, CommittedTokens]]:
        for name, value in self._kv.scan_all(keys.committed_tokens(self._repo)):
            yield commit_id(name), decode(value, CommittedTokens)

    def deleted(self) -> Iterator[tuple[Token, DeletedToken]]:
        for name, value in self._kv.scan_all(keys.deleted_tokens(self._repo)):
            yield Token(name), decode(value, DeletedToken)

    def set_deleted(self, tokens: Iterable[Token], cause: str) -> None:
        marker = encode(DeletedToken(cause, self._clock.now_ms()))
        self._kv.set_many([(keys.deleted_token(self._repo, token), marker) for token in tokens])

    def remove_committed(self, commit: CommitId) -> None:
        self._kv.delete(keys.committed(self._repo, commit))

    def remove_deleted(self, token: Token) -> None:
        self._kv.delete(keys.deleted_token(self._repo, token))

    def _write(self, retired: tuple[Retired, ...]) -> None:
        """Say first that a commit landed, then publish its marker: a commit that is named by its id counts only from then on."""
        now = self._clock.now_ms()
        by_commit: dict[CommitId, list[Token]] = {}
        for token, fate in retired:
            taken_by = commit_of(fate)
            if taken_by is None:
                self.set_deleted((token,), fate)
            else:
                by_commit.setdefault(taken_by, []).append(token)
        self._kv.set_many([(keys.landed(self._repo, commit), b"") for commit in by_commit])
        self._kv.set_many(
            [(keys.committed(self._repo, commit), encode(CommittedTokens(tuple(tokens), now))) for commit, tokens in by_commit.items()]
        )


def commit_of(fate: str) -> CommitId | None:
    """The commit a fate names, or None where the token was given up."""
    try:
        return commit_id(fate)
    except InvalidName:
        return None
