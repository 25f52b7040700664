"""Blobs that go beside the KV's work: in another process for local files, in a thread for all else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from reaper import elsewhere, erasing
from reaper.daemon import Reaper
from reaper.deletion import Deleted
from reaper.elsewhere import Elsewhere
from reaper.erasing import Beside, Eraser
from reaper.journal import JournalWriter
from reaper.processing import Doomed
from refstore import keys
from refstore.errors import ObjectsUnavailable
from refstore.flows.uploading import Upload
from refstore.ids import Address, Token
from refstore.lake import Lake
from refstore.objects.local import LocalObjects
from refstore.settings import ReaperSettings
from tests.reaper_world import GRACE_SECONDS, World


@pytest.fixture
def store(tmp_path: Path) -> LocalObjects:
    store = LocalObjects(tmp_path / "objects", fsync=False)
    for number in range(10):
        store.put(f"data/x/{number}", b"x")
    return store


@pytest.fixture
def other() -> Elsewhere:
    found = Elsewhere()
    yield found
    found.close()


def left(store: LocalObjects) -> set[str]:
    return {info.key.rpartition("/")[2] for info in store.list("data/")}


def test_it_answers_for_every_key(store: LocalObjects, other: Elsewhere, tmp_path: Path) -> None:
    (tmp_path / "objects" / "data" / "x" / "folder" / "in").mkdir(parents=True)
    done = other.delete(store.url, ["data/x/1", "data/x/2", "data/x/nothing"])()
    assert set(done.deleted) == {"data/x/1", "data/x/2"}
    assert done.missing == ("data/x/nothing",)
    assert left(store) == {"0", "3", "4", "5", "6", "7", "8", "9"}


def test_batches_are_done_in_order_whoever_asks_first(store: LocalObjects, other: Elsewhere) -> None:
    results = [other.delete(store.url, [f"data/x/{number}", "data/x/0"]) for number in range(1, 5)]
    found = [result() for result in reversed(results)][::-1]
    assert [len(done.missing) for done in found] == [0, 1, 1, 1]
    assert left(store) == {"5", "6", "7", "8", "9"}


def test_a_store_that_is_not_there_confirms_nothing(store: LocalObjects, other: Elsewhere, tmp_path: Path) -> None:
    other.delete(store.url, ["data/x/1"])()
    (tmp_path / "objects").rename(tmp_path / "moved")
    with pytest.raises(ObjectsUnavailable):
        other.delete(store.url, ["data/x/2"])()


@pytest.mark.parametrize("at", ["before it is asked", "while it is asked"])
def test_killed_it_confirms_nothing_and_the_next_batch_starts_another(store: LocalObjects, other: Elsewhere, at: str) -> None:
    other.delete(store.url, ["data/x/1"])()
    process = other._process
    assert process is not None
    if at == "while it is asked":
        os.kill(process.pid, signal.SIGSTOP)
        result = other.delete(store.url, ["data/x/2"])
        os.kill(process.pid, signal.SIGKILL)
    else:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        result = other.delete(store.url, ["data/x/2"])
    with pytest.raises(ObjectsUnavailable, match="another is started"):
        result()
    assert other.delete(store.url, ["data/x/2", "data/x/3"])().failed == ()
    assert not {"2", "3"} & left(store)


def test_it_ends_with_its_parent_and_an_interrupt_is_not_for_it(store: LocalObjects, other: Elsewhere) -> None:
    other.delete(store.url, ["data/x/1"])()
    process = other._process
    assert process is not None
    assert os.getpgid(process.pid) != os.getpgid(0)  # what is typed at the terminal goes to our process group
    assert os.getsid(process.pid) == os.getsid(0)  # else Linux gives it a share of its own, whatever the reaper's niceness
    assert process.stdin is not None
    process.stdin.close()  # as when the parent is killed
    assert process.wait(10) == 0


def test_it_is_there_soon() -> None:
    """It imports neither structlog nor msgspec: half a second, on every start."""
    code = "import sys, reaper.elsewhere, refstore.objects.local; print(sorted({'structlog', 'msgspec', 'pyarrow'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip() == "[]"


# ---- batches


def doomed(*addresses: str) -> list[Doomed]:
    return [Doomed(Address(address), Token("main:t"), "p", "reset", 1) for address in addresses]


def test_what_one_open_batch_has_in_hand_is_left_to_it() -> None:
    world = World()
    entries = world.upload("main", "a", "b")
    beside = Beside()
    try:
        eraser = Eraser(world.repo.context, JournalWriter(world.objects, "r", world.clock, world.numbers), beside)
        seen: list[Deleted] = []
        left: list[bool] = []

        def otherwise() -> None:
            left.append(True)

        eraser.begin(doomed(entries[0].address), seen.append, otherwise=otherwise)
        eraser.begin(doomed(entries[0].address, entries[1].address), seen.append, otherwise=otherwise)
        assert not left
        eraser.begin(doomed(entries[0].address), seen.append, otherwise=otherwise)
        assert left == [True]
        eraser.settle()
        assert [done.objects for done in seen] == [1, 1]
        assert left == [True]
        assert not world.stored()
    finally:
        beside.close()


def test_one_batch_that_fails_does_not_keep_the_others_from_being_settled() -> None:
    world = World()
    entries = world.upload("main", "a", "b", "c")
    ctx = world.repo.context

    def fail(keys_: object) -> None:
        if entries[0].address in keys_:
            raise ObjectsUnavailable("planted")

    world.objects.before_delete = fail
    beside = Beside()
    try:
        eraser = Eraser(ctx, JournalWriter(world.objects, "r", world.clock, world.numbers), beside)
        seen: list[Deleted] = []
        failed: list[str] = []
        for entry in entries:
            eraser.begin(doomed(entry.address), seen.append, otherwise=partial(failed.append, entry.address), unhinted=True)
        with pytest.raises(ObjectsUnavailable):
            eraser.settle()
        assert (len(seen), failed) == (2, [entries[0].address])
        assert world.stored() == {entries[0].address}
        shard = keys.due_shard(ctx.repo, keys.shard_of(entries[0].address))
        assert [name.partition("/")[2] for name, _ in world.kv.scan(shard)] == [entries[0].address]
    finally:
        beside.close()


@pytest.mark.parametrize("grace_seconds", [None, 0])
def test_beside_or_in_turn_the_outcome_is_the_same(grace_seconds: int | None) -> None:
    outcomes = []
    for beside in (False, True):
        world = World(grace_seconds=grace_seconds, batch_keys=7)
        world.upload("main", *(f"p{number:02d}" for number in range(50)))
        world.repo.copy("main", "p01", "main", "q")
        world.repo.move("main", "p02", "r")
        world.repo.reset("main")
        world.run_once(beside=beside)
        world.clock.advance(GRACE_SECONDS + 1)
        with world.reaper(beside=beside) as reaper:
            reaper.run_once(lambda: False)
            outcomes.append((reaper._total.summary(), world.stored(), world.references(), world.hints()))
        assert not world.stored()
    assert outcomes[0] == outcomes[1]


def test_a_big_batch_of_local_files_goes_elsewhere_and_a_small_one_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasing, "ELSEWHERE_KEYS_MIN", 5)
    asked: list[int] = []
    delete = elsewhere.Elsewhere.delete
    monkeypatch.setattr(elsewhere.Elsewhere, "delete", lambda self, url, keys_: asked.append(len(keys_)) or delete(self, url, keys_))
    with Lake.open(f"sqlite://{tmp_path}/kv.db", f"file://{tmp_path}/objects?fsync=0") as lake:
        repo = lake.create_repository("lake", grace_seconds=0)
        kept = repo.upload("main", "kept", b"x")
        repo.commit("main", "kept")
        with Reaper(lake, ReaperSettings(batch_keys=8)) as reaper:
            repo.upload_many("main", (Upload(path=f"p{number:02d}", body=b"12") for number in range(20)))
            repo.reset("main")
            done = reaper.run_once(lambda: False)
            assert (done.deleted, done.bytes, done.missing, done.failed) == (20, 40, 0, 0)
            assert asked == [8, 8]
            assert {info.key for info in repo.context.objects.list("data/")} == {kept.address}
            assert sum(lake.kv.count(keys.references(repo.context.repo, shard), limit=9) for shard in range(keys.SHARDS)) == 0


def test_killed_elsewhere_nothing_is_lost_or_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasing, "ELSEWHERE_KEYS_MIN", 5)
    delete = elsewhere.Elsewhere.delete
    killed: list[int] = []

    def kill_first(self: Elsewhere, url: str, keys_: list[str]) -> object:
        result = delete(self, url, keys_)
        if not killed and self._process is not None:
            killed.append(self._process.pid)
            os.kill(self._process.pid, signal.SIGKILL)
            time.sleep(0.2)  # until it is dead, in any state it may have been in
        return result

    monkeypatch.setattr(elsewhere.Elsewhere, "delete", kill_first)
    with Lake.open(f"sqlite://{tmp_path}/kv.db", f"file://{tmp_path}/objects?fsync=0") as lake:
        repo = lake.create_repository("lake", grace_seconds=0)
        repo.upload_many("main", (Upload(path=f"p{number:02d}", body=b"12") for number in range(20)))
        repo.reset("main")
        with Reaper(lake, ReaperSettings(batch_keys=8)) as reaper:
            first = reaper.run_once(lambda: False)
            assert killed
            assert first.unavailable
        with Reaper(lake, ReaperSettings(batch_keys=8)) as reaper:
            second = reaper.run_once(lambda: False)
        assert first.deleted + first.missing + second.deleted + second.missing == 20
        assert not list(repo.context.objects.list("data/"))
        assert sum(lake.kv.count(keys.references(repo.context.repo, shard), limit=9) for shard in range(keys.SHARDS)) == 0


def test_a_pipe_that_may_not_be_made_large_stops_no_deletion(
    store: LocalObjects, other: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where `pipe-max-size` is less, or the pipes of one user together hold what `pipe-user-pages-soft` allows."""
    monkeypatch.setattr(elsewhere, "PIPE_BYTES", 1 << 31)  # no kernel allows that
    assert other.delete(store.url, ["data/x/1"])().deleted == ("data/x/1",)
    assert left(store) == {str(number) for number in range(10)} - {"1"}
