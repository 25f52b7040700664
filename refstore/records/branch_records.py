"""Records of branches, their staging tokens, and tags."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from refstore.core.ids import CommitId, Token
from refstore.records.encoding import Record, decode_with


class RetiredToken(NamedTuple):
    """A token whose fate is decided (rule 3)."""

    token: Token
    fate: str
    """The id of the commit that took it, or why it was discarded (`refstore.versioning.markers`)."""


class StoredBranch(Record, frozen=True, tag=20):
    """An open branch: its head commit, and the tokens that its uncommitted changes are staged under."""

    head: CommitId
    token: Token
    """The current staging token."""
    sealed_tokens: tuple[Token, ...]
    """Oldest first."""
    retired_tokens: tuple[RetiredToken, ...]
    write_id: str
    """Differs in every version of the record, so that a retried write recognises its own."""
    created_ms: int = 0
    is_hidden: bool = False
    id: str = ""
    """Made once with the branch, so that a later branch of the same name can be told apart."""
    lease_until_ms: int = 0
    """Until when the writer is there whose transaction this is (rule 24); 0: it is no transaction's branch."""

    @property
    def live_tokens(self) -> tuple[Token, ...]:
        """The tokens that a reader reads, newest first."""
        return (self.token, *reversed(self.sealed_tokens))


class ClosedBranch(Record, frozen=True, tag=21):
    """A deleted branch whose tokens are not published yet (rule 3)."""

    retired_tokens: tuple[RetiredToken, ...]
    write_id: str
    id: str = ""
    """The deleted branch's id, whose deletion the manifest is still to say; '': it need not."""


class DeletedToken(Record, frozen=True, tag=22):
    """`<repo>/staging/deleted/<token>`: the reaper releases the token's references."""

    cause: str
    """Why it was retired: reset, branch-deleted, repository-deleted, nothing-committed, or committed <commit id>."""
    at_ms: int


class CommittedTokens(Record, frozen=True, tag=23):
    """`<repo>/staging/committed/<commit_id>`."""

    tokens: tuple[Token, ...]
    at_ms: int


class TokenRecord(Record, frozen=True, tag=24):
    """`<repo>/tokens/<token>`: written before the token can be current, so that the scrubber knows every token."""

    created_ms: int
    processed_ms: int = 0
    """When its entries were processed; late writes into it are scrubbed after that. 0: not yet."""


class StoredTag(Record, frozen=True, tag=32):
    """A fixed name of a commit."""

    commit: CommitId
    created_ms: int = 0
    id: str = ""
    """New for every tag: the entry that one was removed explains nothing of another one."""


BranchRecord = StoredBranch | ClosedBranch

_branch: Final = msgspec.msgpack.Decoder(BranchRecord)


def decode_branch(value: bytes) -> BranchRecord:
    return decode_with(_branch, value, "branch")
