"""One run at a time, in several processes; what runs left; and that damaged state is an error, never a deletion."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from refstore.core.clock import SystemClock
from refstore.core.deadline import limit_reads
from refstore.errors import (
    AlreadyExists,
    Conflict,
    Corrupt,
    DeadlineExceeded,
    Invalid,
    NotFound,
    RunUnderWay,
    StoreMisconfigured,
)
from refstore.objects import ObjectStore, open_objects
from refstore.objects.base import Body, ObjectPage, StoredObject
from refstore.objects.local import LocalObjects
from refstore.objects.memory import MemoryObjects
from refstore_prune.prune_layout import PRUNE_ROOT
from refstore_prune.state import (
    LOCKS,
    RUNS_KEPT,
    TAKE_OVER_SECONDS,
    PruneLock,
    check_lock,
    last_mark,
    open_run,
    read_lock,
    read_report,
    read_runs,
    read_unit,
    remove_old_files,
    unmark,
)
from tests.kit.clock import FakeClock
from tests.kit.forwarding import ForwardingObjects
from tests.prune.marks import BEGAN_MS, layout_of, list_objects, run_id, write_mark
from tests.servers.s3_base import S3Server

HOLDS_A_LOCK = """
import sys
from refstore.errors import RunUnderWay
from refstore.objects import open_objects
from refstore_prune.state import open_run
print("ready", flush=True)
sys.stdin.readline()
try:
    with open_run(open_objects(sys.argv[1]), sys.argv[2]):
        print("on", flush=True)
        sys.stdin.readline()
except RunUnderWay:
    print("under way", flush=True)
"""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def files(clock: FakeClock) -> MemoryObjects:
    return MemoryObjects(clock=clock)


@pytest.fixture(params=["local", pytest.param("rgw", marks=[pytest.mark.server, pytest.mark.root, pytest.mark.slow])])
def shared(request: pytest.FixtureRequest, in_folder: LocalObjects) -> Iterator[ObjectStore]:
    if request.param == "local":
        yield in_folder
        return
    server: S3Server = request.getfixturevalue("rgw_server")
    remote = open_objects(server.url())
    yield remote
    remote.close()


def marked(store: ObjectStore, number: int, *, is_due: bool = True, keys: int = 3) -> None:
    for key in range(keys):
        store.put(f"data/{key}", b"x")
    write_mark(store, layout_of(store, number), list_objects(store), marked_ms=BEGAN_MS + number, is_due=is_due, rows=2)


# ---- one run at a time


def test_of_processes_that_begin_at_once_one_runs(shared: ObjectStore):
    command = [sys.executable, "-c", HOLDS_A_LOCK, shared.url]
    runs = [
        subprocess.Popen([*command, run_id(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in range(4)
    ]
    try:
        assert [each.stdout.readline() if each.stdout else "" for each in runs] == ["ready\n"] * 4
        for each in runs:
            print(file=each.stdin, flush=True)
        answers = [each.stdout.readline().strip() if each.stdout else "" for each in runs]
    finally:
        for each in runs:
            each.communicate("\n", timeout=60)
    assert sorted(answers) == ["on", "under way", "under way", "under way"]
    lock = read_lock(shared)
    assert lock is not None
    assert (lock.generation, lock.is_done) == (1, True)
    assert lock.run_id == run_id(answers.index("on"))


class Overtaken(ForwardingObjects):
    """Lets a rival take the lock between the look of a run and its put."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.rivals: list[AbstractContextManager[PruneLock]] = [open_run(inner, run_id(2))]

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> StoredObject:
        if self.rivals and key.endswith(".json"):
            self.rival = self.rivals.pop()
            self.rival.__enter__()
        return super().put(key, body, if_absent=if_absent)


def test_a_run_that_is_overtaken_while_it_takes_the_lock_has_none(shared: ObjectStore):
    overtaken = Overtaken(shared)
    with pytest.raises(RunUnderWay, match=run_id(2)), open_run(overtaken, run_id(1), take_over=True):
        pass
    check_lock(shared, 1, run_id(2))
    overtaken.rival.__exit__(None, None, None)


class LosesReply(ForwardingObjects):
    """Puts a lock, and says that there is one already: a retry of a driver saw its own."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> StoredObject:
        stored = super().put(key, body, if_absent=if_absent)
        if if_absent:
            raise AlreadyExists("its own")
        return stored


def test_a_lock_whose_reply_was_lost_is_held(in_folder: LocalObjects):
    with open_run(LosesReply(in_folder), run_id(1)) as lock:
        lock.check()


def test_a_run_that_ends_or_fails_lets_the_next_one_begin(in_folder: LocalObjects):
    with pytest.raises(ZeroDivisionError), open_run(in_folder, run_id(1)):
        raise ZeroDivisionError
    with open_run(in_folder, run_id(2)) as lock:
        assert lock.generation == 2
        lock.check()
        with pytest.raises(RunUnderWay, match=f"run {run_id(2)}.*--take-over"), open_run(in_folder, run_id(3)):
            pass


def test_a_run_without_a_sign_of_life_is_taken_over(files: MemoryObjects, clock: FakeClock):
    with open_run(files, run_id(1)) as first:
        clock.advance(TAKE_OVER_SECONDS - 1)
        with pytest.raises(RunUnderWay), open_run(files, run_id(2)):
            pass
        first.beat()
        clock.advance(TAKE_OVER_SECONDS - 1)
        with pytest.raises(RunUnderWay), open_run(files, run_id(2)):
            pass
        clock.advance(1)
        with open_run(files, run_id(2)) as second:
            assert second.generation == 2
            second.check()
            with pytest.raises(Conflict, match=f"taken over by {run_id(2)}"):
                first.check()
    with open_run(files, run_id(3)):
        pass
    assert [info.key for info in files.list(LOCKS) if info.key.endswith(".now")] == []


def test_a_run_that_is_known_to_be_dead_need_not_be_waited_for(in_folder: LocalObjects):
    with open_run(in_folder, run_id(1)) as first, open_run(in_folder, run_id(2), take_over=True) as second:
        with pytest.raises(Conflict):
            first.check()
        first.beat()
        second.check()
        with pytest.raises(RunUnderWay), open_run(in_folder, run_id(3)):
            pass


@pytest.mark.parametrize("damage", ["removed", "cut", "of another run"])
def test_a_lock_that_is_not_as_it_was_written_is_lost(files: MemoryObjects, damage: str):
    with open_run(files, run_id(1)) as lock:
        key = f"{LOCKS}0000000001.json"
        body = files.read(key)
        files.delete_many([key])
        if damage != "removed":
            files.put(key, body[:20] if damage == "cut" else body.replace(run_id(1).encode(), run_id(2).encode()))
            with pytest.raises(RunUnderWay), open_run(files, run_id(3)):
                pass
        with pytest.raises(Conflict):
            lock.check()


def test_without_conditional_puts_the_one_whose_lock_was_replaced_notices(rclone_s3_server: S3Server):
    with_rclone = open_objects(rclone_s3_server.url())
    try:
        with open_run(with_rclone, run_id(1)) as lock:
            with pytest.raises(RunUnderWay), open_run(with_rclone, run_id(2)):
                pass
            lock.check()
            body = with_rclone.read(f"{LOCKS}0000000001.json").replace(run_id(1).encode(), run_id(2).encode())
            with_rclone.put(f"{LOCKS}0000000001.json", body)  # as one does that looked before this one's put
            with pytest.raises(Conflict, match=run_id(2)):
                lock.check()
    finally:
        with_rclone.close()


def test_old_locks_go_and_the_last_one_stays(files: MemoryObjects):
    for number in range(1, 31):
        with open_run(files, run_id(number)):
            pass
    generations = sorted({int(info.key.removeprefix(LOCKS).partition(".")[0]) for info in files.list(LOCKS)})
    assert generations == list(range(10, 31))


def test_a_clock_that_went_back_is_noticed(in_folder: LocalObjects):
    marked(in_folder, 5)
    with pytest.raises(StoreMisconfigured, match="clock"), open_run(in_folder, run_id(4)):
        pass
    with open_run(in_folder, run_id(6)):
        pass


# ---- the mark that stands


def test_the_last_mark_that_stood_is_found(in_folder: LocalObjects):
    assert last_mark(in_folder, in_folder.url) is None
    marked(in_folder, 1)
    marked(in_folder, 2)
    in_folder.put(f"{PRUNE_ROOT}{run_id(3)}/mark/000000-f00d.parquet", b"a run that was killed before its mark stood")
    found = last_mark(in_folder, in_folder.url)
    assert found is not None
    assert (found.manifest.run_id, found.unmarked_ms) == (run_id(2), frozenset())
    assert [read_unit(in_folder, unit)["key"].to_pylist() for unit in found.manifest.units] == [
        ["data/0", "data/1"],
        ["data/2"],
    ]


def damages() -> list[tuple[str, Callable[[bytes], bytes | None], str]]:
    return [
        ("mark.json", lambda body: body[: len(body) // 2], "not the JSON"),
        ("mark.json", lambda _: b"", "not the JSON"),
        ("mark.json", lambda body: body.replace(run_id(2).encode(), run_id(1).encode()), "is that of run"),
        ("mark.json", lambda _: None, "is gone"),
        ("mark/000000-f00d.parquet", lambda body: body[: len(body) // 2], "not the Parquet"),
        ("mark/000000-f00d.parquet", lambda _: None, "is not in"),
        ("mark/000001-f00d.parquet", lambda _: b"PAR1", "not the Parquet"),
    ]


@pytest.mark.parametrize(("name", "damage", "says"), damages())
def test_a_damaged_mark_is_an_error_and_no_older_one_takes_its_place(
    in_folder: LocalObjects, name: str, damage: Callable[[bytes], bytes | None], says: str
):
    marked(in_folder, 1)
    marked(in_folder, 2)
    key = f"{PRUNE_ROOT}{run_id(2)}/{name}"
    body = damage(in_folder.read(key))
    in_folder.delete_many([key])
    if body is not None:
        in_folder.put(key, body)

    def read_all() -> None:
        found = last_mark(in_folder, in_folder.url)
        assert found is not None
        for unit in found.manifest.units:
            read_unit(in_folder, unit)

    with pytest.raises(Corrupt, match=says) as raised:
        read_all()
    assert "unmark STORE all" in str(raised.value)
    unmark(in_folder, "all")
    assert last_mark(in_folder, in_folder.url) is None


def test_a_unit_that_another_file_was_put_in_the_place_of(in_folder: LocalObjects):
    marked(in_folder, 1)
    found = last_mark(in_folder, in_folder.url)
    assert found is not None
    one, other = found.manifest.units
    in_folder.put(other.file, in_folder.read(one.file))
    with pytest.raises(Corrupt, match="not the file that the mark names"):
        read_unit(in_folder, other)


def test_the_files_of_another_store_are_refused(in_folder: LocalObjects):
    marked(in_folder, 1)
    with pytest.raises(StoreMisconfigured, match="--state"):
        last_mark(in_folder, "s3://bucket/elsewhere")
    assert last_mark(in_folder, f"{in_folder.url}?fsync=1") is not None


def test_unmarking_a_run_takes_back_what_it_was_the_first_to_mark(in_folder: LocalObjects):
    marked(in_folder, 1)
    marked(in_folder, 2)
    assert unmark(in_folder, run_id(1)).run_id == run_id(1)
    found = last_mark(in_folder, in_folder.url)
    assert found is not None
    assert (found.manifest.run_id, found.unmarked_ms) == (run_id(2), {BEGAN_MS + 1})
    assert unmark(in_folder, "all").run_id == run_id(2)
    assert last_mark(in_folder, in_folder.url) is None
    unmark(in_folder, run_id(2))
    assert last_mark(in_folder, in_folder.url) is None  # what was taken back whole does not come back
    marked(in_folder, 3)
    found = last_mark(in_folder, in_folder.url)
    assert found is not None
    assert (found.manifest.run_id, found.unmarked_ms) == (run_id(3), frozenset())


def test_nothing_is_unmarked_while_a_run_is_on(in_folder: LocalObjects):
    marked(in_folder, 1)
    with open_run(in_folder, run_id(2)):
        for which in (run_id(1), "all"):
            with pytest.raises(RunUnderWay):
                unmark(in_folder, which)
        unmark(in_folder, "all", take_over=True)
    assert last_mark(in_folder, in_folder.url) is None
    for which, error in ((run_id(9), NotFound), ("last", Invalid), ("../x", Invalid)):
        with pytest.raises(error):
            unmark(in_folder, which)


# ---- what runs left


def test_the_reports_of_runs_are_read_and_those_without_one_say_so(in_folder: LocalObjects):
    with pytest.raises(NotFound, match="prune run"):
        read_report(in_folder)
    marked(in_folder, 1)
    in_folder.put(f"{PRUNE_ROOT}{run_id(2)}/listing/000000.parquet", b"x")
    marked(in_folder, 3)
    in_folder.put(f"{PRUNE_ROOT}{run_id(3)}/report.json", b'{"run_id": "')
    in_folder.put(f"{PRUNE_ROOT}{run_id(4)}/listing/000000.parquet", b"x")
    with open_run(in_folder, run_id(4)):
        reports = read_runs(in_folder)
    assert [(each.run_id, each.state) for each in reports] == [
        (run_id(1), "marked"),
        (run_id(2), "failed"),
        (run_id(3), "failed"),
        (run_id(4), "running"),
    ]
    assert "killed" in reports[1].error
    assert "not the JSON" in reports[2].error
    assert read_report(in_folder, run_id(1)).state == "marked"
    with pytest.raises(Corrupt):
        read_report(in_folder)
    with pytest.raises(NotFound, match="no report of run"):
        read_report(in_folder, run_id(2))


class TakesTime(ForwardingObjects):
    """A store in which each call takes ten seconds."""

    def __init__(self, inner: ObjectStore, clock: FakeClock) -> None:
        self.inner = inner
        self.clock = clock

    def check(self) -> None:
        self.clock.advance(10)


def test_a_page_that_shows_the_runs_waits_for_no_slow_store(in_folder: LocalObjects, clock: FakeClock):
    for number in range(1, 9):
        marked(in_folder, number)
    began = clock.monotonic
    with limit_reads(clock, 30, lambda: False), pytest.raises(DeadlineExceeded):
        read_runs(TakesTime(in_folder, clock))
    assert clock.monotonic - began <= 40
    assert len(read_runs(TakesTime(in_folder, clock))) == 8


def test_a_run_that_was_killed_is_told_from_one_that_is_on(in_folder: LocalObjects, monkeypatch: pytest.MonkeyPatch):
    write_mark(in_folder, layout_of(in_folder), ObjectPage([], [], [], []), state=None)
    with open_run(in_folder, run_id(1)):
        (on,) = read_runs(in_folder)
        later_ms = SystemClock().now_ms() + TAKE_OVER_SECONDS * 1000
        monkeypatch.setattr(SystemClock, "now_ms", lambda _: later_ms)
        (silent,) = read_runs(in_folder)
    (ended,) = read_runs(in_folder)
    assert [each.state for each in (on, silent, ended)] == ["running", "running", "failed"]
    assert on.error == ""
    assert "no sign of life for 6" in silent.error
    assert "its mark stood, so it may have deleted" in ended.error


def test_files_of_long_ago_go_but_not_the_mark_that_stands(in_folder: LocalObjects):
    marked(in_folder, 1)
    marked(in_folder, 2)
    for number in range(3, RUNS_KEPT + 6):
        for folder in ("listing", "names", "mark"):
            in_folder.put(f"{PRUNE_ROOT}{run_id(number)}/{folder}/000000.parquet", b"x")
    with open_run(in_folder, run_id(RUNS_KEPT + 6)) as lock:
        remove_old_files(in_folder, lock, in_folder.url)
    left = {run.run_id for run in read_runs(in_folder)}
    assert left == {run_id(2), *(run_id(number) for number in range(6, RUNS_KEPT + 6))}
    assert [info.key for info in in_folder.list(PRUNE_ROOT) if "/listing/" in info.key or "/names/" in info.key] == []
    found = last_mark(in_folder, in_folder.url)
    assert found is not None
    assert [len(read_unit(in_folder, unit)) for unit in found.manifest.units] == [2, 1]
    with (
        open_run(in_folder, run_id(98)) as lock,
        open_run(in_folder, run_id(99), take_over=True),
        pytest.raises(Conflict),
    ):
        remove_old_files(in_folder, lock, in_folder.url)
