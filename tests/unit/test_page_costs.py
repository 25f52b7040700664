"""A small page over many deleted entries costs no more of the KV than a large one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import pytest

from refstore.kv.base import SCAN_LIMIT, Op, Result
from refstore.kv.memory import MemoryKV
from refstore.lake import Lake
from refstore.operations.upload import Upload
from refstore.repository import Repository
from tests.kit.clock import FakeClock

DELETED = 3000
"""Several pages of the KV's."""


class Cost(NamedTuple):
    requests: int
    rows: int


class CountedKV(MemoryKV):
    def __init__(self) -> None:
        super().__init__()
        self.cost = Cost(0, 0)

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        self._count(len(ops))
        return super().execute(ops)

    def scan(
        self, partition: str, *, prefix: str = "", after: str = "", limit: int = SCAN_LIMIT
    ) -> list[tuple[str, bytes]]:
        pairs = super().scan(partition, prefix=prefix, after=after, limit=limit)
        self._count(len(pairs))
        return pairs

    def _count(self, rows: int) -> None:
        self.cost = Cost(self.cost.requests + 1, self.cost.rows + rows)


class Deleted(NamedTuple):
    kv: CountedKV
    repo: Repository

    def cost_of(self, read: Callable[[Repository, int], int], amount: int) -> Cost:
        before = self.kv.cost
        assert read(self.repo, amount) == min(amount, 2)
        return Cost(self.kv.cost.requests - before.requests, self.kv.cost.rows - before.rows)


@pytest.fixture(scope="module")
def deleted() -> Iterator[Deleted]:
    """Entries that were committed and then deleted, before two that are there; and as many in the trash, due and reset,
    on branches of their own.
    """
    kv = CountedKV()
    with Lake(kv, "memory://page-costs", clock=FakeClock()) as lake:
        repo = lake.create_repository("sales", grace_seconds=3600)
        _fill(repo, "main", "a/", DELETED)
        _fill(repo, "main", "z/", 2)
        repo.commit("main", "first")
        for branch in ("staged", "released"):
            repo.create_branch(branch, "main")
            _fill(repo, branch, "a/", DELETED)
        repo.delete_prefix("main", "a/")
        repo.delete_prefix("staged", "a/")
        repo.delete_prefix("released", "a/b")
        _fill(repo, "released", "z/", 2)
        repo.delete_prefix("released", "a/")
        repo.reset("released")
        yield Deleted(kv, repo)


def _fill(repo: Repository, branch: str, prefix: str, count: int) -> None:
    repo.upload_many(branch, [Upload(path=f"{prefix}{number:06}", body=b"") for number in range(count)])


READS: dict[str, Callable[[Repository, int], int]] = {
    "a branch": lambda repo, amount: len(repo.list_page("main", amount=amount).results),
    "a folder": lambda repo, amount: len(repo.list_page("main", amount=amount, prefix="z/").results),
    "a branch with staged deletions": lambda repo, amount: len(repo.list_page("staged", amount=amount).results),
    "what a reset released": lambda repo, amount: len(
        [*islice(repo.list_trash(branch="released", prefix="z/"), amount)]
    ),
    "what is due": lambda repo, amount: min(2, len([*islice(repo.list_trash(branch="staged"), amount)])),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_page_of_one_costs_at_most_a_page_of_a_thousand(
    deleted: Deleted, read: Callable[[Repository, int], int]
) -> None:
    one, thousand = deleted.cost_of(read, 1), deleted.cost_of(read, 1000)
    assert one.requests <= thousand.requests
    assert one.rows <= thousand.rows


def test_a_first_small_page_reads_little(deleted: Deleted) -> None:
    assert (
        deleted.cost_of(lambda repo, amount: len(repo.list_page("main", amount=amount, after="y").results), 1).rows < 10
    )
