"""Batches of deletions that overlap: their order, their failures, and the process that deletes local files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from refstore.configuration.settings import ReaperSettings
from refstore.core.ids import Address, Token
from refstore.deletion_history.journal_format import PendingDelete
from refstore.deletion_history.journal_writer import JournalWriter
from refstore.errors import KVUnavailable, ObjectsUnavailable
from refstore.kv_recovery.fence import DryRunGuard
from refstore.lake import Lake
from refstore.objects.local import LocalObjects
from refstore.operations.upload import Upload
from refstore.records import keys
from refstore.versioning.address_state import NO_DELAYS
from refstore_reaper import blob_deletion, delete_worker
from refstore_reaper.batch_pipeline import BatchSteps, Pipeline
from refstore_reaper.blob_deletion import AsyncDeleter
from refstore_reaper.breaker import Breaker
from refstore_reaper.daemon import Reaper
from refstore_reaper.delete_worker import DeleteWorker
from refstore_reaper.deletion import BatchDeleter
from refstore_reaper.pass_summary import Tally
from tests.reaper_world import GRACE_SECONDS, World
from tests.reaping import NoJournal


@pytest.fixture
def store(tmp_path: Path) -> LocalObjects:
    store = LocalObjects(tmp_path / "objects", fsync=False)
    for number in range(10):
        store.put(f"data/x/{number}", b"x")
    return store


@pytest.fixture
def worker() -> DeleteWorker:
    worker = DeleteWorker()
    yield worker
    worker.close()


@pytest.fixture
def async_deleter() -> AsyncDeleter:
    deleter = AsyncDeleter()
    yield deleter
    deleter.close()


def stored_names(store: LocalObjects) -> set[str]:
    return {info.key.rpartition("/")[2] for info in store.list("data/")}


def test_the_worker_answers_for_every_key(store: LocalObjects, worker: DeleteWorker, tmp_path: Path) -> None:
    (tmp_path / "objects" / "data" / "x" / "folder" / "in").mkdir(parents=True)
    done = worker.delete(store.url, ["data/x/1", "data/x/2", "data/x/nothing"])
    assert set(done.deleted_keys) == {"data/x/1", "data/x/2"}
    assert done.missing_keys == ("data/x/nothing",)
    assert stored_names(store) == {"0", "3", "4", "5", "6", "7", "8", "9"}


def test_batches_are_deleted_in_order_whichever_is_waited_for_first(
    store: LocalObjects, async_deleter: AsyncDeleter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_deletion, "WORKER_KEYS_MIN", 1)
    batches = [pending(f"data/x/{number}", "data/x/0") for number in range(1, 5)]
    futures = [async_deleter.submit(store, batch, NoJournal()) for batch in batches]
    confirmed = [future.result() for future in reversed(futures)][::-1]
    assert [len(done.missing_keys) for done in confirmed] == [0, 1, 1, 1]
    assert stored_names(store) == {"5", "6", "7", "8", "9"}


def test_a_store_that_is_not_there_confirms_nothing(store: LocalObjects, worker: DeleteWorker, tmp_path: Path) -> None:
    worker.delete(store.url, ["data/x/1"])
    (tmp_path / "objects").rename(tmp_path / "moved")
    with pytest.raises(ObjectsUnavailable):
        worker.delete(store.url, ["data/x/2"])


@pytest.mark.parametrize("at", ["before the batch", "during the batch"])
def test_a_killed_worker_confirms_nothing_and_the_next_batch_starts_another(
    store: LocalObjects, worker: DeleteWorker, at: str
) -> None:
    worker.delete(store.url, ["data/x/1"])
    process = worker.process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL if at == "before the batch" else signal.SIGSTOP)
    with ThreadPoolExecutor(1) as thread:
        deletion = thread.submit(worker.delete, store.url, ["data/x/2"])
        if at == "during the batch":
            os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(ObjectsUnavailable, match="starts another"):
            deletion.result()
    assert worker.delete(store.url, ["data/x/2", "data/x/3"]).failed_keys == ()
    assert not {"2", "3"} & stored_names(store)


def test_the_worker_ends_with_its_parent_and_gets_no_interrupt(store: LocalObjects, worker: DeleteWorker) -> None:
    worker.delete(store.url, ["data/x/1"])
    process = worker.process
    assert process is not None
    assert os.getpgid(process.pid) != os.getpgid(0)  # what is typed at the terminal goes to our process group
    # else Linux gives it a share of its own, whatever the reaper's niceness
    assert os.getsid(process.pid) == os.getsid(0)
    worker.close()  # closes the pipe, as a parent does that is killed; a worker that does not end by itself is killed
    assert process.returncode == 0


def test_the_worker_starts_soon() -> None:
    """It imports neither logging nor msgspec, which take longer than all the rest, on every start."""
    code = (
        "import sys, refstore_reaper.delete_worker, refstore.objects.local; print(sorted({'logging', 'msgspec', "
        "'pyarrow'} & set(sys.modules)))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip() == "[]"
    )


# ---- batches


def pending(*addresses: str) -> list[PendingDelete]:
    return [PendingDelete(Address(address), Token("main:t"), "p", "reset", 1) for address in addresses]


class Batches:
    """A world's batches of addresses that are marked already."""

    def __init__(self, world: World, async_deleter: AsyncDeleter | None) -> None:
        ctx = world.repo.context
        self.tally = Tally()
        self._breaker = Breaker(ctx, world.settings, "r")
        self._deleter = BatchDeleter(
            ctx,
            self._breaker,
            self.tally,
            JournalWriter(world.objects, "r", world.clock, world.numbers),
            delays=NO_DELAYS,
            async_deleter=async_deleter,
            guard=DryRunGuard(),
            on_corrupt=lambda _address, error: pytest.fail(str(error)),
        )

    def batch(self, *addresses: str) -> BatchSteps:
        return self._deleter.delete_batch(self._breaker.use_reserved(len(addresses)), marked=pending(*addresses))

    @property
    def under_way(self) -> int:
        return self._breaker.under_way


def test_what_one_batch_has_in_flight_is_left_to_it(async_deleter: AsyncDeleter) -> None:
    world = World()
    a, b = (entry.address for entry in world.upload("main", "a", "b"))
    batches = Batches(world, async_deleter)
    with Pipeline() as pipeline:
        pipeline.start(first := batches.batch(a))
        second = batches.batch(a, b)
        next(second)
        assert not list(batches.batch(a)), "nothing is left for a third batch, so it ends at once"
        assert batches.under_way == 3
        assert not list(second)
        assert batches.tally.counts["deleted"] == 1
    assert not list(first)
    assert (batches.tally.counts["deleted"], batches.tally.counts["missing"], batches.under_way) == (2, 0, 0)
    assert not world.stored()


def test_one_batch_that_fails_does_not_keep_the_others_from_ending(async_deleter: AsyncDeleter) -> None:
    world = World()
    entries = world.upload("main", "a", "b", "c")
    ctx = world.repo.context

    def fail(keys_: object) -> None:
        if entries[1].address in keys_:
            raise ObjectsUnavailable("planted")

    world.objects.before_delete = fail
    batches = Batches(world, async_deleter)
    pipeline = Pipeline()
    pipeline.start(batches.batch(entries[0].address))
    pipeline.start(batches.batch(entries[1].address))
    with pytest.raises(ObjectsUnavailable), pipeline:
        pipeline.start(batches.batch(entries[2].address))
    assert (batches.tally.counts["deleted"], batches.under_way) == (2, 0)
    assert world.stored() == {entries[1].address}
    shard = keys.due_hint_shard(ctx.repo, keys.shard_of(entries[1].address))
    assert [name.partition("/")[2] for name, _ in world.kv.scan(shard)] == [entries[1].address]


def test_the_next_batch_begins_before_the_one_before_it_goes_on() -> None:
    steps: list[str] = []

    def batch(name: str) -> BatchSteps:
        steps.append(f"{name} begins")
        yield
        steps.append(f"{name} ends")

    with suppress(KVUnavailable), Pipeline() as pipeline:
        for name in ("a", "b", "c"):
            pipeline.start(batch(name))
        raise KVUnavailable("planted")
    assert steps == ["a begins", "b begins", "a ends", "c begins", "b ends", "c ends"]


@pytest.mark.parametrize("grace_seconds", [None, 0])
def test_asynchronous_or_not_the_outcome_is_the_same(grace_seconds: int | None) -> None:
    outcomes = []
    for asynchronous in (False, True):
        world = World(grace_seconds=grace_seconds, batch_keys=7)
        world.upload("main", *(f"p{number:02d}" for number in range(50)))
        world.repo.copy("main", "p01", "main", "q")
        world.repo.move("main", "p02", "r")
        world.repo.reset("main")
        world.run_once(asynchronous=asynchronous)
        world.clock.advance(GRACE_SECONDS + 1)
        with world.reaper(asynchronous=asynchronous) as reaper:
            outcomes.append((reaper.run_once(lambda: False), world.stored(), world.references(), world.hints()))
        assert not world.stored()
    assert outcomes[0] == outcomes[1]


def test_the_worker_deletes_big_batches_of_local_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_deletion, "WORKER_KEYS_MIN", 5)
    batch_sizes: list[int] = []
    delete = delete_worker.DeleteWorker.delete

    def count(self: DeleteWorker, url: str, keys_: list[str]) -> object:
        batch_sizes.append(len(keys_))
        return delete(self, url, keys_)

    monkeypatch.setattr(delete_worker.DeleteWorker, "delete", count)
    with Lake.open(f"sqlite://{tmp_path}/kv.db", f"file://{tmp_path}/objects?fsync=0") as lake:
        repo = lake.create_repository("lake", grace_seconds=0)
        kept = repo.upload("main", "kept", b"x")
        repo.commit("main", "kept")
        with Reaper(lake, ReaperSettings(), batch_keys=8) as reaper:
            repo.upload_many("main", (Upload(path=f"p{number:02d}", body=b"12") for number in range(20)))
            repo.reset("main")
            done = reaper.run_once(lambda: False)
            assert (done.deleted, done.bytes, done.missing, done.failed) == (20, 40, 0, 0)
            assert batch_sizes == [8, 8]
            assert {info.key for info in repo.context.objects.list("data/")} == {kept.address}
            assert (
                sum(lake.kv.count(keys.references(repo.context.repo, shard), limit=9) for shard in range(keys.SHARDS))
                == 0
            )


@pytest.mark.parametrize("at", ["before the batch", "after the batch"])
def test_a_killed_worker_loses_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    monkeypatch.setattr(blob_deletion, "WORKER_KEYS_MIN", 5)
    delete = delete_worker.DeleteWorker.delete
    killed: list[int] = []

    def kill_first(self: DeleteWorker, url: str, keys_: list[str]) -> object:
        if not killed:
            delete(self, url, keys_ if at == "after the batch" else [])  # nobody gets the answer
            process = self.process
            assert process is not None
            killed.append(process.pid)
            process.kill()
            process.wait()
        return delete(self, url, keys_)

    monkeypatch.setattr(delete_worker.DeleteWorker, "delete", kill_first)
    with Lake.open(f"sqlite://{tmp_path}/kv.db", f"file://{tmp_path}/objects?fsync=0") as lake:
        repo = lake.create_repository("lake", grace_seconds=0)
        repo.upload_many("main", (Upload(path=f"p{number:02d}", body=b"12") for number in range(20)))
        repo.reset("main")
        with Reaper(lake, ReaperSettings(), batch_keys=8) as reaper:
            first = reaper.run_once(lambda: False)
            assert killed
            assert first.unavailable
        with Reaper(lake, ReaperSettings(), batch_keys=8) as reaper:
            second = reaper.run_once(lambda: False)
        assert first.deleted + first.missing + second.deleted + second.missing == 20
        assert not list(repo.context.objects.list("data/"))
        assert (
            sum(lake.kv.count(keys.references(repo.context.repo, shard), limit=9) for shard in range(keys.SHARDS)) == 0
        )
