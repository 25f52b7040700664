"""Uploads and deletions that depend on what is at the path: nothing, or the entry that their caller read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Event, Thread

import pytest

from refstore.core import ids
from refstore.core.clock import Clock
from refstore.core.ids import Path
from refstore.core.safety import Safety
from refstore.errors import AlreadyExists, Contention, Invalid, PathChanged
from refstore.kv.base import SCAN_LIMIT, Op, Result, SetIf
from refstore.kv.memory import MemoryKV
from refstore.lake import Lake
from refstore.operations.upload import Link, Upload
from refstore.public_types import Entry
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.reference_records import Emptied, Reference
from refstore.records.staging_records import StoredEntry
from refstore.repository import Repository
from tests.interrupted import seal
from tests.reaping import release_all

MAIN = ids.BranchName("main")


@pytest.fixture
def repo(lake: Lake) -> Repository:
    return lake.create_repository("sales", grace_seconds=0)


def overwritten(repo: Repository, body: bytes = b"theirs") -> None:
    repo.upload("main", "p", body)


def deleted(repo: Repository) -> None:
    repo.delete("main", "p")


def copied_onto_itself(repo: Repository) -> None:
    repo.copy("main", "p", to_branch="main", to_path="q")
    repo.delete("main", "p")
    repo.copy("main", "q", to_branch="main", to_path="p")


@pytest.mark.parametrize("is_committed", [False, True])
def test_the_entry_that_was_read_is_replaced_once(repo: Repository, is_committed: bool) -> None:
    read = repo.upload("main", "p", b"first")
    if is_committed:  # between the read and the write
        repo.commit("main", "c")
        release_all(repo)
    second = repo.upload("main", "p", b"second", if_entry=read)
    with pytest.raises(PathChanged, match="look what is there now"):
        repo.upload("main", "p", b"third", if_entry=read)
    assert repo.read("main", "p") == b"second"
    repo.delete_if_entry("main", "p", second)
    with pytest.raises(PathChanged):
        repo.delete_if_entry("main", "p", second)
    assert not repo.stat_many("main", ["p"])


@pytest.mark.parametrize("change", [overwritten, deleted, copied_onto_itself])
def test_what_others_wrote_since_stays(repo: Repository, change: Callable[[Repository], None]) -> None:
    read = repo.upload("main", "p", b"first")
    change(repo)
    before = repo.stat_many("main", ["p"])

    def body() -> Iterator[bytes]:
        raise AssertionError("it was read")
        yield b""

    with pytest.raises(PathChanged):
        repo.upload("main", "p", body(), if_entry=read)
    with pytest.raises(PathChanged):
        repo.delete_if_entry("main", "p", read)
    assert repo.stat_many("main", ["p"]) == before


def test_what_is_replaced_is_released_and_what_is_refused_leaves_nothing(repo: Repository) -> None:
    read = repo.upload("main", "p", b"first")

    def overtaken() -> Iterator[bytes]:
        overwritten(repo)
        yield b"late"

    (refused,) = repo.upload_each("main", [Upload(path="p", body=overtaken(), if_entry=read)])
    assert isinstance(refused, PathChanged)
    theirs = repo.stat("main", "p")
    last = repo.upload("main", "p", b"last", if_entry=theirs)
    released = repo.context.references.get_many([read.address, theirs.address])
    assert all(isinstance(each, Emptied) for each in released)
    assert repo.stat("main", "p").address == last.address


def test_a_link_takes_the_place_of_an_entry(repo: Repository) -> None:
    read = repo.upload("main", "p", b"first")
    issued = [repo.issue("main", "p") for _ in range(2)]
    for each in issued:
        repo.context.objects.put(each.address, b"linked")
    first, second = (next(repo.link_each("main", [Link(path="p", token=each.token, if_entry=read)])) for each in issued)
    assert isinstance(first, Entry)
    assert isinstance(second, PathChanged)


def test_two_conditions_contradict_each_other(repo: Repository) -> None:
    read = repo.upload("main", "p", b"first")
    with pytest.raises(Invalid, match="if_absent or if_entry"):
        repo.upload("main", "p", b"second", if_entry=read, if_absent=True)


def test_nothing_is_deleted_that_lies_deeper_while_a_commit_is_under_way(repo: Repository) -> None:
    read = repo.upload("main", "p", b"first")
    seal(repo)
    with pytest.raises(Contention, match="look what is there now"):
        repo.delete_if_entry("main", "p", read)
    assert repo.read("main", "p") == b"first"
    replaced = repo.upload("main", "p", b"second", if_entry=read)
    repo.delete_if_entry("main", "p", replaced)


class Paused(MemoryKV):
    """A KV in which a commit waits before it reads what it has sealed, and something comes before a chosen write."""

    def __init__(self) -> None:
        super().__init__()
        self.scanned = ""
        self.is_sealed: Callable[[], bool] = lambda: False
        self.reached, self.goes_on = Event(), Event()
        self.written = ""
        self.before_write: Callable[[], None] = lambda: None

    def scan(
        self, partition: str, *, prefix: str = "", after: str = "", limit: int = SCAN_LIMIT
    ) -> list[tuple[str, bytes]]:
        if partition == self.scanned and self.is_sealed():
            self.reached.set()
            assert self.goes_on.wait(60)
        return super().scan(partition, prefix=prefix, after=after, limit=limit)

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        if self.written and any(isinstance(op, SetIf) and op.key.name == self.written for op in ops):
            self.written = ""
            self.before_write()
        return super().execute(ops)


@pytest.mark.parametrize("condition", ["absent", "entry"])
def test_a_late_write_that_a_commit_takes_is_not_covered(clock: Clock, condition: str) -> None:
    """Its writer began before the commit sealed the token, and is told ok when it finds its entry in the head."""
    kv = Paused()
    repo = Lake(kv, "memory://late", clock=clock, safety=Safety(grace_seconds=0)).create_repository("sales")
    ctx = repo.context
    read = repo.upload("main", "p", b"first") if condition == "entry" else None
    if read is not None:
        repo.commit("main", "c0")
        release_all(repo)
    repo.upload("main", "other", b"1")
    token = ctx.branches.read_open(MAIN).record.token
    late = StoredEntry(ids.new_address(ctx.ids, clock.now_ms()), 4, "", clock.now_ms())
    ctx.references.create([(late.address, Reference(token, Path("p")))])
    ctx.objects.put(late.address, b"late")
    kv.scanned = keys.entry(ctx.repo, token, Path("p")).partition
    kv.is_sealed = lambda: bool(ctx.branches.read_open(MAIN).record.sealed_tokens)
    commit = Thread(target=repo.commit, args=("main", "c1"))
    commit.start()
    assert kv.reached.wait(60)

    def write_late() -> None:
        kv.set(keys.entry(ctx.repo, token, Path("p")), encode(late))
        kv.goes_on.set()
        commit.join()
        release_all(repo)
        assert repo.read("main", "p") == b"late"

    kv.written, kv.before_write = "p", write_late
    with pytest.raises(Contention):
        repo.upload("main", "p", b"mine", if_absent=read is None, if_entry=read)
    assert not kv.written
    assert repo.read("main", "p") == b"late"
    with pytest.raises(AlreadyExists):
        repo.upload("main", "p", b"mine", if_absent=True)
