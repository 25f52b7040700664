"""Entries under staging tokens: the uncommitted state of a branch.

Which tokens are looked through, and in which order, is the branch record's to say (`refstore/branches.py`); this room
only reads and writes under tokens it is given. Every token is in the registry (`<repo>/tokens`) before it can become
current, so that the scrubber knows every staging partition there may be.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Final

from refstore import keys
from refstore.clock import Clock
from refstore.ids import BranchName, Ids, Path, RepositoryId, Token, new_token
from refstore.kv.base import ABSENT, KV, SCAN_LIMIT, Exchange
from refstore.records import Record, StagedRecord, TokenRecord, Tombstone, decode_staged, encode

TOMBSTONE: Final = encode(Tombstone())


class Staging:
    def __init__(self, kv: KV, repo: RepositoryId) -> None:
        self._kv = kv
        self._repo = repo

    def new_token(self, branch: BranchName, ids: Ids, clock: Clock) -> Token:
        """A token nobody else has, already registered. If it never becomes current, the scrubber forgets it."""
        token = new_token(ids, branch, clock.now_ms())
        self._kv.set(keys.token(self._repo, token), encode(TokenRecord(created_ms=clock.now_ms())))
        return token

    def write_op(self, token: Token, path: Path, record: Record) -> Exchange:
        """The op that swaps an entry and learns the old one (rule 6); the flow puts it in one batch with its token check."""
        return Exchange(keys.entry(self._repo, token, path), encode(record))

    def get_many(self, tokens: Sequence[Token], paths: Sequence[Path]) -> dict[Path, tuple[StagedRecord, Token]]:
        """What each path is under the first of `tokens` (newest first) that knows it; paths none of them knows are left out."""
        found: dict[Path, tuple[StagedRecord, Token]] = {}
        for token in tokens:
            missing = [path for path in paths if path not in found]
            if not missing:
                break
            for path, value in zip(missing, self._kv.get_many([keys.entry(self._repo, token, path) for path in missing]), strict=True):
                if value is not ABSENT:
                    found[path] = (decode_staged(value), token)
        return found

    def is_empty(self, token: Token) -> bool:
        return not self._kv.scan(keys.staging(self._repo, token), limit=1)

    def scan(self, token: Token, *, prefix: str = "", after: str = "", page: int = SCAN_LIMIT) -> Iterator[tuple[str, bytes]]:
        """(path, encoded record) under one token, in path order."""
        return self._kv.scan_all(keys.staging(self._repo, token), prefix=prefix, after=after, page=page)

    def merged(
        self, tokens: Sequence[Token], *, prefix: str = "", after: str = "", page: int = SCAN_LIMIT
    ) -> Iterator[tuple[str, bytes, Token]]:
        """(path, encoded record, token) over several tokens, newest first in `tokens`; the newest that knows a path wins."""
        if len(tokens) == 1:
            yield from ((path, value, tokens[0]) for path, value in self.scan(tokens[0], prefix=prefix, after=after, page=page))
            return
        streams = [_ranked(rank, self.scan(token, prefix=prefix, after=after, page=page)) for rank, token in enumerate(tokens)]
        previous: str | None = None
        for path, rank, value in heapq.merge(*streams):
            if path != previous:
                yield path, value, tokens[rank]
                previous = path


def _ranked(rank: int, stream: Iterator[tuple[str, bytes]]) -> Iterator[tuple[str, int, bytes]]:
    """The stream with its token's rank, so that a heap takes the newest token first where paths are equal."""
    return ((path, rank, value) for path, value in stream)
