"""Entries under staging tokens: the uncommitted state of a branch.

The branch record says which tokens are read, and in which order (`refstore/versioning/branches.py`); this module only
reads under the tokens that it is given. Every token is in the registry (`<repo>/tokens`) before it can become current,
so that the scrubber knows every staging partition.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Final

from refstore.core.clock import Clock
from refstore.core.ids import BranchName, Ids, RepositoryId, Token, new_token
from refstore.kv.base import KV, SCAN_LIMIT
from refstore.records import keys
from refstore.records.branch_records import TokenRecord
from refstore.records.encoding import encode
from refstore.records.staging_records import Tombstone

TOMBSTONE: Final = encode(Tombstone())


class Staging:
    def __init__(self, kv: KV, repo: RepositoryId) -> None:
        self._kv = kv
        self._repo = repo

    def new_token(self, branch: BranchName, ids: Ids, clock: Clock) -> Token:
        """Make and register a new token. If it never becomes current, the scrubber removes it."""
        token = new_token(ids, branch, clock.now_ms())
        self._kv.set(keys.token(self._repo, token), encode(TokenRecord(created_ms=clock.now_ms())))
        return token

    def is_empty(self, token: Token) -> bool:
        return not self._kv.scan(keys.staging(self._repo, token), limit=1)

    def scan(
        self, token: Token, *, prefix: str = "", after: str = "", page: int = SCAN_LIMIT
    ) -> Iterator[tuple[str, bytes]]:
        """Yield (path, encoded record) under one token, in path order."""
        return self._kv.scan_all(keys.staging(self._repo, token), prefix=prefix, after=after, page=page)

    def scan_merged(
        self, tokens: Sequence[Token], *, prefix: str = "", after: str = "", page: int = SCAN_LIMIT
    ) -> Iterator[tuple[str, bytes, Token]]:
        """Yield (path, encoded record, token) over several tokens, in path order.

        `tokens` are given newest first; the newest one that has a path wins.
        """
        if len(tokens) == 1:
            yield from (
                (path, value, tokens[0]) for path, value in self.scan(tokens[0], prefix=prefix, after=after, page=page)
            )
            return
        streams = [
            _add_rank(rank, self.scan(token, prefix=prefix, after=after, page=page))
            for rank, token in enumerate(tokens)
        ]
        previous: str | None = None
        for path, rank, value in heapq.merge(*streams):
            if path != previous:
                yield path, value, tokens[rank]
                previous = path


def _add_rank(rank: int, stream: Iterator[tuple[str, bytes]]) -> Iterator[tuple[str, int, bytes]]:
    """Add the token's rank to a stream, so that a heap takes the newest token first where paths are equal."""
    return ((path, rank, value) for path, value in stream)
