"""What is due goes if it is still as it was listed; all else stays, and its outcome says so. On files and on S3."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import count

import msgspec
import pytest

from refstore.conformance.objects_suite import fill
from refstore.core.clock import SystemClock
from refstore.errors import Conflict, Corrupt
from refstore.objects import ObjectStore, open_objects
from refstore.objects.base import DeleteResult, ObjectPage
from refstore.objects.local import LocalObjects
from refstore_gc.engines.local import LocalEngine, SharedWork
from refstore_gc.run_layout import read_table
from refstore_prune.checks import suggest_spelling
from refstore_prune.prune_sweep import READING_SECONDS_MAX, UnitOutcome, sweep_unit, sweep_units
from refstore_prune.state import open_run
from tests.kit.clock import FakeClock
from tests.prune.marks import layout_of, list_objects, run_id, write_mark
from tests.servers.s3_base import S3Server
from tests.servers.s3_proxy import (
    FailKeys,
    Fault,
    ProxiedRequest,
    RandomFaults,
    Refuse,
    S3FaultProxy,
)

HOUR_SECONDS = 3600


class Due:
    """A store with objects that are all due, and the run that is to sweep them."""

    def __init__(self, store: ObjectStore, keys: int, *, rows: int = 10_000, reached_by: str = "") -> None:
        """`rows`: of a unit. `reached_by`: the URL by which the run reaches the objects, such as that of a proxy."""
        self.store = store
        for size in (1, 2, 3):
            fill(store, [f"data/{number:05}" for number in range(size - 1, keys, 3)], b"x" * size)
        store.put("named", b"x")
        self.layout = layout_of(store)
        self.manifest = write_mark(store, self.layout, list_objects(store), rows=rows)
        if reached_by:
            proxied = open_objects(reached_by)
            self.layout = layout_of(proxied, files=store.url)
            proxied.close()

    def sweep(self, *, age_seconds: int = 60) -> list[UnitOutcome]:
        engine, reading_ms = LocalEngine(shared=SharedWork(0)), SystemClock().now_ms() - age_seconds * 1000
        with open_run(self.store, run_id(1), take_over=True) as lock:
            return sweep_units(engine, self.layout, self.manifest.units, reading_ms, lock.generation)

    def keys(self) -> list[str]:
        return [info.key for info in self.store.list() if not info.key.startswith("_refstore/")]

    def outcomes(self) -> dict[str, tuple[str, str]]:
        """What the files of outcomes say: the outcome of each key, and the reason."""
        found: dict[str, tuple[str, str]] = {}
        for info in self.store.list(f"_refstore/prune/{run_id(1)}/sweep/"):
            table = read_table(self.store, info.key)
            keys, outcomes, whys = (table[name].to_pylist() for name in ("key", "outcome", "why"))
            found.update(zip(keys, zip(outcomes, whys, strict=True), strict=True))
        return found


def objects_of(outcomes: list[UnitOutcome]) -> Mapping[str, int]:
    """How many objects each outcome has."""
    found: Counter[str] = Counter()
    for each in outcomes:
        found[each.outcome] += each.amount.objects
    return found


@pytest.fixture
def proxy(moto_s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3FaultProxy]:
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    with S3FaultProxy(moto_s3_server.endpoint) as made:
        yield made


@pytest.fixture
def remote(moto_s3_server: S3Server) -> Iterator[ObjectStore]:
    found = open_objects(moto_s3_server.url())
    yield found
    found.close()


def through(proxy: S3FaultProxy, store: ObjectStore) -> str:
    return f"{store.url.partition('?')[0]}?endpoint={proxy.endpoint}"


def full(store: ObjectStore, keys: list[str]) -> frozenset[str]:
    """The keys as the bucket has them."""
    return frozenset(f"{store.url.partition('?')[0].split('/', 3)[3]}/{key}" for key in keys)


# ---- what goes, and what stays


@pytest.fixture(
    params=["local", "moto", pytest.param("rgw", marks=[pytest.mark.server, pytest.mark.root, pytest.mark.slow])]
)
def anywhere(request: pytest.FixtureRequest, in_folder: LocalObjects, remote: ObjectStore) -> Iterator[ObjectStore]:
    if request.param == "rgw":
        real = open_objects(request.getfixturevalue("rgw_server").url())
        yield real
        real.close()
    else:
        yield in_folder if request.param == "local" else remote


def test_what_is_due_goes_if_it_is_as_it_was_listed(anywhere: ObjectStore):
    due = Due(anywhere, 250, rows=100)
    anywhere.put("data/00007", b"longer than before")
    anywhere.put("data/00249", b"likewise")
    anywhere.delete_many(["data/00000", "data/00100"])
    anywhere.put("data/00007x", b"not there when the store was listed")
    outcomes = due.sweep()
    assert objects_of(outcomes) == {"deleted": 246, "changed": 2, "already gone": 2}
    assert sum(each.amount.bytes for each in outcomes) == sum(1 + number % 3 for number in range(250))
    assert due.keys() == ["data/00007", "data/00007x", "data/00249", "named"]
    told = due.outcomes()
    assert [key for key in told if told[key][0] == "changed"] == ["data/00007", "data/00249"]
    assert [key for key in told if told[key][0] == "already gone"] == ["data/00000", "data/00100"]
    assert len(told) == 250


def test_what_waits_is_not_swept(in_folder: LocalObjects):
    due = Due(in_folder, 10)
    waiting = write_mark(in_folder, due.layout, list_objects(in_folder), is_due=False)
    with open_run(in_folder, run_id(1)) as lock:
        swept = sweep_units(LocalEngine(), due.layout, waiting.units, SystemClock().now_ms(), lock.generation)
    assert swept == []
    assert len(due.keys()) == 11


# ---- a in_folder that fails


def test_three_keys_of_a_thousand_that_fail_stay_marked_and_go_the_next_time(proxy: S3FaultProxy, remote: ObjectStore):
    due = Due(remote, 1000, reached_by=through(proxy, remote))
    failing = ["data/00000", "data/00500", "data/00999"]
    proxy.plan = lambda request: FailKeys(full(remote, failing)) if request.is_bulk_delete else None
    outcomes = due.sweep()
    assert objects_of(outcomes) == {"deleted": 997, "failed": 3}
    examples = [example for each in outcomes if each.outcome == "failed" for example in each.examples]
    assert examples == [f"{key}: InternalError (by plan)" for key in failing]
    assert due.keys() == [*failing, "named"]
    proxy.plan = None
    assert objects_of(due.sweep()) == {"deleted": 1000}, "an attempt of the same unit adds up"
    assert due.keys() == ["named"]


def test_a_store_that_is_overloaded_loses_nothing_but_the_time(proxy: S3FaultProxy, remote: ObjectStore):
    due = Due(remote, 1100, rows=1100, reached_by=through(proxy, remote))
    proxy.plan = lambda request: Refuse() if request.is_bulk_delete else None
    outcomes = due.sweep()
    assert objects_of(outcomes) == {"failed": 1100}
    assert "SlowDown" in outcomes[0].examples[0]
    assert len(due.keys()) == 1101
    proxy.plan = lambda request: Refuse() if request.is_list or request.method == "HEAD" else None
    assert objects_of(due.sweep()) == {"failed": 1100}, "without a look nothing is deleted"
    assert len(due.keys()) == 1101
    proxy.plan = None
    assert objects_of(due.sweep()) == {"deleted": 1100}


@pytest.mark.parametrize("seed", range(3))
def test_what_is_told_as_deleted_is_gone_whatever_the_server_does(proxy: S3FaultProxy, remote: ObjectStore, seed: int):
    due = Due(remote, 400, rows=100, reached_by=through(proxy, remote))
    proxy.plan = RandomFaults(seed=seed, unavailable=0.3, delete_key=0.01, cut_list=0.2, drop_reply=0.2)
    due.sweep()
    left, told = {*due.keys()} - {"named"}, due.outcomes()
    assert len(told) == 400
    assert left <= {key for key, (outcome, _) in told.items() if outcome == "failed"}
    proxy.plan = None
    assert set(objects_of(due.sweep())) <= {"deleted", "already gone"}
    assert due.keys() == ["named"]


def test_a_right_that_is_missing_is_told(proxy: S3FaultProxy, remote: ObjectStore):
    due = Due(remote, 30, reached_by=through(proxy, remote))
    proxy.plan = lambda request: Refuse(403, "AccessDenied") if request.is_bulk_delete else None
    (outcome,) = due.sweep()
    assert (outcome.outcome, outcome.amount.objects) == ("failed", 30)
    assert "DeleteObject" in outcome.examples[0]


def test_the_right_to_look_at_an_object_is_needed_to_delete_it_and_for_no_check(
    proxy: S3FaultProxy, remote: ObjectStore
):
    due = Due(remote, 30, reached_by=through(proxy, remote))
    proxied = open_objects(through(proxy, remote))
    assert "'lake/' too much" in suggest_spelling(proxied, ["lake/named"])
    proxy.plan = lambda request: Refuse(403, "AccessDenied") if request.method == "HEAD" else None
    assert suggest_spelling(proxied, ["lake/named"]) == ""
    (outcome,) = due.sweep()
    assert (outcome.outcome, outcome.amount.objects) == ("failed", 30)
    assert "s3:GetObject" in outcome.examples[0]
    proxied.close()


def test_the_runs_own_files_that_cannot_be_read_end_the_sweep(in_folder: LocalObjects):
    due = Due(in_folder, 30, rows=10)
    for damage in (b"", in_folder.read(due.manifest.units[0].file)[:50], in_folder.read(due.manifest.units[1].file)):
        in_folder.put(due.manifest.units[0].file, damage)
        with pytest.raises(Corrupt, match="unmark STORE all"):
            due.sweep()
        assert len(due.keys()) == 31


# ---- a run that is stopped, or goes on too long


@pytest.mark.parametrize("age_seconds", [READING_SECONDS_MAX, 30 * HOUR_SECONDS, -READING_SECONDS_MAX - 60])
def test_names_that_were_read_long_ago_delete_nothing(in_folder: LocalObjects, age_seconds: int):
    due = Due(in_folder, 30)
    outcomes = due.sweep(age_seconds=age_seconds)
    assert objects_of(outcomes) == {"failed": 30}
    assert "6 hours ago" in outcomes[0].examples[0]
    assert len(due.keys()) == 31


class Pause(FakeClock):
    """Lets time pass after so many looks at the monotonic clock, as a process that was stopped sees it."""

    def __init__(self, looks: int, pass_time: Callable[[FakeClock], None]) -> None:
        super().__init__()
        self._looks = looks
        self._pass_time = pass_time

    def monotonic_seconds(self) -> float:
        if self._looks == 0:
            self._pass_time(self)
        self._looks -= 1
        return self.monotonic


def set_monotonic(clock: FakeClock) -> None:
    clock.monotonic += 7 * HOUR_SECONDS


@pytest.mark.parametrize(
    "pass_time",
    [lambda clock: clock.advance(7 * HOUR_SECONDS), lambda clock: clock.jump(7 * HOUR_SECONDS), set_monotonic],
    ids=["both clocks", "the wall clock", "the monotonic clock"],
)
def test_a_task_that_was_stopped_ends_the_batch_under_way(
    in_folder: LocalObjects, pass_time: Callable[[FakeClock], None]
):
    due = Due(in_folder, 2500)
    clock = Pause(2, pass_time)  # it looks when it begins, and before each batch of 1,000
    with open_run(in_folder, run_id(1)) as lock:
        (unit,) = due.manifest.units
        outcomes = list(sweep_unit(due.layout, clock.now_ms(), lock.generation, unit, clock))
    assert objects_of(outcomes) == {"deleted": 1000, "failed": 1500}
    assert len(due.keys()) == 1501
    assert objects_of(due.sweep()) == {"deleted": 2500}


def test_a_run_that_wakes_up_after_a_take_over_deletes_nothing(in_folder: LocalObjects):
    due = Due(in_folder, 30)
    taken_over = pytest.raises(Conflict, match=f"taken over by {run_id(2)}")
    with open_run(in_folder, run_id(1)) as old, open_run(in_folder, run_id(2), take_over=True), taken_over:
        sweep_units(LocalEngine(), due.layout, due.manifest.units, SystemClock().now_ms(), old.generation)
    assert len(due.keys()) == 31
    assert due.outcomes() == {}


def test_a_run_that_is_taken_over_ends_the_batch_under_way(in_folder: LocalObjects, monkeypatch: pytest.MonkeyPatch):
    due = Due(in_folder, 2500)
    delete = LocalObjects.delete_unchanged

    def delete_then_lose_the_lock(store: LocalObjects, objects: ObjectPage) -> DeleteResult:
        deletion = delete(store, objects)
        with open_run(in_folder, run_id(2), take_over=True):
            return deletion

    monkeypatch.setattr(LocalObjects, "delete_unchanged", delete_then_lose_the_lock)
    with open_run(in_folder, run_id(1)) as lock:
        (unit,) = due.manifest.units
        outcomes = list(sweep_unit(due.layout, SystemClock().now_ms(), lock.generation, unit))
    assert objects_of(outcomes) == {"deleted": 1000, "failed": 1500}
    assert "taken over" in str([each.examples for each in outcomes])
    assert len(due.keys()) == 1501


def test_a_run_that_is_taken_over_ends_at_most_its_unit(proxy: S3FaultProxy, remote: ObjectStore):
    due = Due(remote, 90, rows=30, reached_by=through(proxy, remote))
    taken_over = False

    def take_over(request: ProxiedRequest) -> Fault | None:
        nonlocal taken_over
        if request.is_bulk_delete and not taken_over:
            taken_over = True
            with open_run(remote, run_id(2), take_over=True):
                pass
        return None

    proxy.plan = take_over
    with pytest.raises(Conflict):
        due.sweep()
    assert due.keys() == [*(f"data/{number:05}" for number in range(30, 90)), "named"]
    assert len(due.outcomes()) == 30, "what it did is told"


SWEEPS = """
import sys, msgspec
from refstore.conformance.objects_suite import fill
from refstore.core.clock import SystemClock
from refstore.objects import open_objects
from refstore_gc.engines.local import LocalEngine, SharedWork
from refstore_prune.prune_layout import PruneUnit, PruneLayout
from refstore_prune.prune_sweep import sweep_units
from refstore_prune.state import open_run
layout = msgspec.json.decode(sys.argv[1], type=PruneLayout)
units = msgspec.json.decode(sys.argv[2], type=list[PruneUnit])
with open_run(open_objects(layout.files), layout.run_id) as lock:
    sweep_units(LocalEngine(shared=SharedWork(0)), layout, units, SystemClock().now_ms(), lock.generation)
"""


def test_a_process_that_is_killed_while_it_deletes(proxy: S3FaultProxy, remote: ObjectStore):
    due = Due(remote, 90, rows=30, reached_by=through(proxy, remote))
    arguments = [msgspec.json.encode(each).decode() for each in (due.layout, due.manifest.units)]
    running: list[subprocess.Popen[bytes]] = []
    deletions = count(1)

    def kill(request: ProxiedRequest) -> Fault | None:
        if request.is_bulk_delete and next(deletions) == 2:
            running[0].kill()
        return None

    proxy.plan = kill
    running.append(subprocess.Popen([sys.executable, "-c", SWEEPS, *arguments]))
    assert running[0].wait(60) == -signal.SIGKILL
    assert Counter(outcome for outcome, _ in due.outcomes().values()) == {"deleted": 30, "not known": 30}
    assert objects_of(due.sweep()) == {"deleted": 60, "already gone": 30}
    assert due.keys() == ["named"]
