"""A page of a listing costs the KV what the page needs: not what was deleted before it, and not whole folders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import pytest

from refstore.kv.base import SCAN_LIMIT, Op, Result
from refstore.kv.memory import MemoryKV
from refstore.lake import Lake
from refstore.operations import read as read_operation
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
            repo.create_branch(branch, source="main")
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
    """It begins with a small request, so it may make one more."""
    one, thousand = deleted.cost_of(read, 1), deleted.cost_of(read, 1000)
    assert one.requests <= thousand.requests + 1
    assert one.rows <= thousand.rows


def test_a_first_small_page_reads_little(deleted: Deleted) -> None:
    assert (
        deleted.cost_of(lambda repo, amount: len(repo.list_page("main", amount=amount, after="y").results), 1).rows < 10
    )


@pytest.mark.parametrize(("delimiter", "expected"), [("", ["z/000000", "z/000001"]), ("/", ["z/"])])
@pytest.mark.parametrize("branch", ["main", "staged"])
def test_a_page_ends_where_much_was_deleted(
    deleted: Deleted, monkeypatch: pytest.MonkeyPatch, branch: str, delimiter: str, expected: list[str]
) -> None:
    """Also within a folder of which everything was deleted."""
    monkeypatch.setattr(read_operation, "PAGE_DELETED_MAX", 500)
    before = deleted.kv.cost
    page = deleted.repo.list_page(branch, amount=2, delimiter=delimiter)
    assert (page.results, page.has_more, page.next_after) == ((), True, "a/000499")
    assert deleted.kv.cost.rows - before.rows < 500 + SCAN_LIMIT
    if branch == "main":
        assert [item.path for item in deleted.repo.list(branch, page=2, delimiter=delimiter)] == expected


def test_a_page_that_ends_within_a_folder_does_not_skip_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_operation, "PAGE_DELETED_MAX", 1)
    with Lake(MemoryKV(), "memory://page-costs-within", clock=FakeClock()) as lake:
        repo = lake.create_repository("sales")
        for path in ("a/", "a/0", "a/1", "b/", "b/0", "c"):
            repo.upload("main", path, b"")
        repo.commit("main", "all")
        repo.delete_many("main", ["a/", "a/0", "b/", "b/0"])
        assert [item.path for item in repo.list("main", delimiter="/")] == ["a/", "c"]
        assert [item.path for item in repo.list("main", after="a/0", delimiter="/")] == ["a/", "c"]
        assert [item.path for item in repo.list("main", after="a/", delimiter="/")] == ["c"]


FOLDERS: dict[str, tuple[int, int, int]] = {
    "one folder is skipped": (1, DELETED, 1000),
    "many large folders": (20, 500, 1000),
    "many large folders, a page of one": (20, 500, 1),
    "many small folders are read through": (500, 2, 1000),
}


@pytest.mark.parametrize("commits", [False, True], ids=["staged", "committed"])
@pytest.mark.parametrize(("folders", "each", "amount"), FOLDERS.values(), ids=FOLDERS)
def test_a_page_of_folders_reads_little_of_each(folders: int, each: int, amount: int, commits: bool) -> None:
    kv = CountedKV()
    with Lake(kv, "memory://page-costs-folders", clock=FakeClock()) as lake:
        repo = lake.create_repository("sales")
        for number in range(folders):
            _fill(repo, "main", f"{number:04}/", each)
        repo.upload("main", "z", b"")
        if commits:
            repo.commit("main", "all")
        before = kv.cost
        page = repo.list_page("main", amount=amount, delimiter="/")
        shown = [*(f"{number:04}/" for number in range(folders)), "z"]
        assert [item.path for item in page.results] == shown[:amount]
        cost = Cost(kv.cost.requests - before.requests, kv.cost.rows - before.rows)
        assert cost.rows < 10 + (len(page.results) + 1) * (min(each, amount, read_operation.FOLDER_ROWS_MAX) + 2)
        assert cost.requests < 10 + len(page.results)
        assert [item.path for item in repo.list("main", page=3, delimiter="/")] == shown
