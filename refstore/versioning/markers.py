"""Deleted and committed markers: they tell the reaper that a token's fate is decided.

The operation itself, the next one or the reaper publishes the markers from a branch record's `retired` list, and only
then removes them from the list (rule 3). A marker may be published again after it was processed; processing it again
finds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from refstore.core.clock import Clock
from refstore.core.ids import BranchName, CommitId, RepositoryId, Token, commit_id
from refstore.errors import Corrupt, InvalidName
from refstore.kv.base import ABSENT, KV
from refstore.records import keys
from refstore.records.branch_records import (
    ClosedBranch,
    CommittedTokens,
    DeletedToken,
    RetiredToken,
    StoredBranch,
    decode_branch,
)
from refstore.records.encoding import decode, encode
from refstore.versioning.branches import Branches, OpenBranch
from refstore.versioning.manifest import BranchDeleted, CommitLanded, Manifest

RESET_CAUSE: Final = "reset"
BRANCH_DELETED_CAUSE: Final = "branch-deleted"
REPOSITORY_DELETED_CAUSE: Final = "repository-deleted"
NOTHING_COMMITTED_CAUSE: Final = "nothing-committed"
"""Fates of a token that no commit took; each is also the cause in the journal."""

COMMITTED_CAUSE_PREFIX: Final = "committed "
"""The beginning of the cause of a token that a commit took: entries that the commit did not keep are released."""

_ATTEMPTS: Final = 8


class Markers:
    def __init__(self, kv: KV, repo: RepositoryId, clock: Clock, manifest: Manifest) -> None:
        self._kv = kv
        self._repo = repo
        self._clock = clock
        self._manifest = manifest

    def publish(self, branches: Branches, name: BranchName, *, own: CommitId | None = None) -> int:
        """Publish a branch's retired tokens, then remove them from its record, and return how many there were.

        `own`: the commit whose manifest entry the caller has written. Others' entries, whose committers may have died,
        are written first (rule 21). The record of a closed branch is deleted. To lose the race for the record is no
        failure: the winner sees the same list and publishes it again. Raises ObjectsUnavailable.
        """
        for _ in range(_ATTEMPTS):
            raw = branches.read_raw(name)
            record = branches.decode(raw)
            if record is None or (isinstance(record, StoredBranch) and not record.retired_tokens):
                return 0
            assert raw is not ABSENT  # noqa: S101  # a decoded record had bytes
            self._add_to_manifest({retired.fate for retired in record.retired_tokens} - {own}, name, record.id)
            self._write_markers(record.retired_tokens)
            if isinstance(record, ClosedBranch) and record.id:
                self._manifest.add_deletion(BranchDeleted(name, record.id))
            match record:
                case StoredBranch():
                    is_current = branches.change(name, OpenBranch(raw, record), retired_tokens=())
                case ClosedBranch():
                    is_current = self._kv.set_if(branches.key(name), raw, ABSENT)
            if is_current:
                return len(record.retired_tokens)
        return 0

    def has_landed(self, commit: CommitId) -> bool:
        """Return whether a branch's head was ever moved to the commit; a record alone may be of an abandoned commit.

        Between the move and its publication only the branch record knows, so the branches are read too.
        """
        if self._kv.get(keys.landed_mark(self._repo, commit)) is not ABSENT:
            return True
        for name, value in self._kv.scan_all(keys.branches(self._repo)):
            record = decode_branch(value)
            if any(retired.fate == commit for retired in record.retired_tokens):
                # what the caller makes of it must not be ahead of the commit's entry
                self._add_to_manifest({commit}, BranchName(name), record.id)
                return True
        return self._kv.get(keys.landed_mark(self._repo, commit)) is not ABSENT  # it may have been published meanwhile

    def _add_to_manifest(self, fates: Iterable[str | None], name: BranchName, branch_id: str) -> None:
        """Write the manifest entries of commits that have no landed mark yet."""
        commits = sorted(commit for fate in fates if fate and (commit := commit_of(fate)) is not None)
        if not commits:
            return
        marks = self._kv.get_many([keys.landed_mark(self._repo, commit) for commit in commits])
        for commit in [commit for commit, mark in zip(commits, marks, strict=True) if mark is ABSENT]:
            record = self._kv.get(keys.commit(self._repo, commit))
            if record is ABSENT:
                raise Corrupt(
                    f"commit {commit} took what was staged on branch {name!r}, and the KV has lost its record; see "
                    "`refstore kv verify`"
                )
            self._manifest.add(CommitLanded(commit, record, name, branch_id))

    def scan_committed(self) -> Iterator[tuple[CommitId, CommittedTokens]]:
        for name, value in self._kv.scan_all(keys.committed_tokens(self._repo)):
            yield commit_id(name), decode(value, CommittedTokens)

    def unprocessed_commits(self) -> set[CommitId]:
        """Return the commits of which the reaper has not forgotten the references yet (rule 7).

        The branches are read before the markers, in the direction in which a fate travels.
        """
        unprocessed: set[CommitId] = set()
        for _, value in self._kv.scan_all(keys.branches(self._repo)):
            fates = (commit_of(retired.fate) for retired in decode_branch(value).retired_tokens)
            unprocessed.update(commit for commit in fates if commit is not None)
        return unprocessed | {commit for commit, _ in self.scan_committed()}

    def scan_deleted(self) -> Iterator[tuple[Token, DeletedToken]]:
        for name, value in self._kv.scan_all(keys.deleted_tokens(self._repo)):
            yield Token(name), decode(value, DeletedToken)

    def set_deleted(self, tokens: Iterable[Token], cause: str) -> None:
        marker = encode(DeletedToken(cause, self._clock.now_ms()))
        self._kv.set_many([(keys.deleted_token(self._repo, token), marker) for token in tokens])

    def remove_committed(self, commit: CommitId) -> None:
        self._kv.delete(keys.committed_marker(self._repo, commit))

    def remove_deleted(self, token: Token) -> None:
        self._kv.delete(keys.deleted_token(self._repo, token))

    def _write_markers(self, retired: tuple[RetiredToken, ...]) -> None:
        """Record first that a commit landed, then publish its marker: a ref by commit id resolves only from then on."""
        now = self._clock.now_ms()
        by_commit: dict[CommitId, list[Token]] = {}
        for token, fate in retired:
            taken_by = commit_of(fate)
            if taken_by is None:
                self.set_deleted((token,), fate)
            else:
                by_commit.setdefault(taken_by, []).append(token)
        self._kv.set_many([(keys.landed_mark(self._repo, commit), b"") for commit in by_commit])
        self._kv.set_many(
            [
                (keys.committed_marker(self._repo, commit), encode(CommittedTokens(tuple(tokens), now)))
                for commit, tokens in by_commit.items()
            ]
        )


def commit_of(fate: str) -> CommitId | None:
    """Return the commit that a fate names; None where no commit took the token."""
    try:
        return commit_id(fate)
    except InvalidName:
        return None
