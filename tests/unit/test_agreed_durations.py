"""The durations that safety rests on are agreed through the KV; no process works with others, nor while they change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from refstore.agreed_durations import REREAD_SECONDS, AgreedDurations, change_durations, read_record
from refstore.configuration.settings import ReaperSettings, embedded_urls
from refstore.core.ids import RandomIds
from refstore.core.safety import SHARED, Safety
from refstore.errors import CorruptRecord, DurationsDiffer, InvalidSettings
from refstore.kv.base import ABSENT, Key
from refstore.lake import open_lake_at
from refstore.records import keys
from refstore.records.encoding import encode
from refstore_http.http_errors import STATUS
from refstore_reaper.daemon import Reaper
from tests.durations import MAIN_JOB
from tests.kit.audit import NoAudit
from tests.kit.clock import FakeClock
from tests.kit.counting_kv import CountingKV

LONG = 10_000.0
"""Longer than any change lasts in these tests."""


class World:
    """A KV, a clock that all processes share, and processes."""

    def __init__(self) -> None:
        self.kv = CountingKV()
        self.clock = FakeClock()

    def process(self, own: Safety | None = None, *, read_only: bool = False, **explicit: str) -> AgreedDurations:
        """Start a process. `explicit`: where its settings came from; all of `own`, if nothing is said."""
        given = explicit or dict.fromkeys(SHARED if own is not None else (), "")
        own = own or Safety()
        return AgreedDurations(self.kv, self.clock, RandomIds(), own, explicit=given, read_only=read_only)

    def change(self, **seconds: float) -> int:
        return change_durations(self.kv, self.clock, RandomIds(), NoAudit(), seconds).until_ms

    def pass_change(self) -> None:
        self.clock.advance(LONG)


@pytest.fixture
def world() -> World:
    return World()


# ---- one agreement


def test_the_first_process_decides_and_one_without_settings_follows(world: World) -> None:
    world.process(MAIN_JOB)
    follower = world.process()
    assert [getattr(follower.safety, name) for name in SHARED] == [getattr(MAIN_JOB, name) for name in SHARED]
    assert follower.safety == follower.waits


def test_what_no_other_process_relies_on_stays_a_process_s_own(world: World) -> None:
    world.process(MAIN_JOB)
    own = Safety(grace_seconds=7, recheck_after_seconds=1)
    follower = world.process(own, grace_seconds="x", recheck_after_seconds="x")
    assert (follower.safety.grace_seconds, follower.safety.recheck_after_seconds) == (7, 1)


def test_an_upload_checks_again_early_enough_for_the_agreed_scrubber(world: World) -> None:
    world.process(MAIN_JOB)
    safety = world.process().safety
    assert safety.recheck_after_seconds == MAIN_JOB.scrub_after_seconds - MAIN_JOB.io_timeout_seconds


def test_a_process_with_other_durations_is_refused_with_each_of_them(world: World) -> None:
    world.process()
    with pytest.raises(DurationsDiffer) as refused:
        world.process(MAIN_JOB, operation_deadline_seconds="argument X", clock_skew_seconds="", grace_seconds="y")
    assert str(refused.value) == (
        "this process may not use the lake with durations of its own: operation_deadline is 8s (argument X), and the "
        "lake's processes have agreed on 1h; clock_skew is 0, and the lake's processes have agreed on 1m; leave them "
        "out, because a process without them takes what was agreed; or change it for all processes with: refstore "
        "config --set"
    )


def test_who_only_reads_decides_nothing(world: World) -> None:
    reading = world.process(MAIN_JOB, read_only=True)
    assert reading.safety == MAIN_JOB
    assert read_record(world.kv) is None
    world.process()
    world.clock.advance(REREAD_SECONDS)
    assert reading.safety.operation_deadline_seconds == Safety().operation_deadline_seconds


def test_a_call_costs_no_round_trip_but_once_a_minute(world: World) -> None:
    process = world.process()
    world.kv.calls = 0
    for _ in range(10):
        world.clock.advance((REREAD_SECONDS - 1) / 10)
        assert process.safety
        assert process.waits
    assert world.kv.calls == 0
    world.clock.advance(1)
    assert process.safety
    assert process.waits
    assert world.kv.calls == 1


def test_a_record_that_the_kv_lost_is_written_again(world: World) -> None:
    process = world.process(MAIN_JOB)
    before = world.kv.get(keys.DURATIONS)
    world.kv.delete(keys.DURATIONS)
    process.refresh()
    assert world.kv.get(keys.DURATIONS) == before


def test_a_record_that_cannot_be_read_stops_every_process(world: World) -> None:
    process = world.process()
    world.kv.set(keys.DURATIONS, b"?")
    with pytest.raises(CorruptRecord):
        world.process()
    with pytest.raises(CorruptRecord):
        process.refresh()


# ---- a change


@pytest.mark.parametrize("seconds", [7000.0, 60.0])
def test_until_a_change_is_over_operations_are_shorter_and_waits_longer(world: World, seconds: float) -> None:
    running = world.process()
    until_ms = world.change(operation_deadline_seconds=seconds, issue_seconds=seconds)
    assert running.safety.operation_deadline_seconds == 3600, "it has not read the change yet"
    world.clock.advance(REREAD_SECONDS)
    for process in (running, world.process()):
        assert process.safety.operation_deadline_seconds == process.safety.issue_seconds == min(3600, seconds)
        assert process.waits.operation_deadline_seconds == process.waits.issue_seconds == max(3600, seconds)
        assert process.waits.scrub_after_seconds == max(3600, seconds) + 60 + 2 * 60
    skew_ms = int(running.safety.clock_skew_seconds * 1000)
    world.clock.advance((until_ms + skew_ms - 1 - world.clock.now_ms()) / 1000)
    assert running.waits.operation_deadline_seconds == max(3600, seconds)
    world.clock.advance(0.001)
    assert running.safety == running.waits
    assert running.safety.operation_deadline_seconds == seconds


def test_a_change_lasts_until_the_last_operation_of_a_process_that_has_not_read_it_is_over(world: World) -> None:
    world.process()
    began_ms = world.clock.now_ms()
    until_ms = world.change(operation_deadline_seconds=60)
    assert until_ms - began_ms >= (REREAD_SECONDS + 3600 + 60) * 1000


def test_an_age_for_the_scrubber_covers_whatever_may_run_meanwhile(world: World) -> None:
    """Of both durations neither was long enough for the deadline of one and the requests of the other."""
    world.process(Safety(operation_deadline_seconds=1000, io_timeout_seconds=10))
    world.change(operation_deadline_seconds=60, io_timeout_seconds=1000)
    assert world.process().waits.scrub_after_seconds == 1000 + 1000 + 2 * 60


def test_a_process_may_start_with_either_until_the_change_is_over(world: World) -> None:
    old = world.process(Safety())
    world.change(issue_seconds=60)
    new = Safety(issue_seconds=60)
    assert world.process(Safety()).safety == world.process(new).safety
    world.pass_change()
    with pytest.raises(DurationsDiffer, match=r"issue is 1h, and .* agreed on 1m"):
        world.process(Safety())
    assert world.process(new).safety.issue_seconds == 60
    assert old.safety.issue_seconds == 60, "one that runs needs no new start"


def test_a_change_may_be_taken_back_at_once(world: World) -> None:
    process = world.process()
    first_ms = world.change(operation_deadline_seconds=60)
    world.clock.advance(100)
    assert world.change(operation_deadline_seconds=3600) >= first_ms
    process.refresh()
    assert (process.safety.operation_deadline_seconds, process.waits.operation_deadline_seconds) == (60, 3600)
    world.pass_change()
    assert process.safety.operation_deadline_seconds == 3600


def test_what_is_over_leaves_the_record_with_the_next_change(world: World) -> None:
    world.process()
    for seconds in (60.0, 70.0, 80.0):
        world.change(issue_seconds=seconds)
        world.pass_change()
    record = read_record(world.kv)
    assert record is not None
    assert [each.durations.issue_seconds for each in record.former] == [70]


def test_the_same_durations_are_no_change(world: World) -> None:
    process = world.process()
    before = world.kv.get(keys.DURATIONS)
    assert world.change(issue_seconds=3600) == 0
    assert world.kv.get(keys.DURATIONS) == before
    assert process.safety == Safety()


@pytest.mark.parametrize(
    ("seconds", "message"),
    [
        ({"issue_seconds": -1.0}, "issue_seconds is -1.0"),
        ({"issue_seconds": float("nan")}, "issue_seconds is nan"),
        ({"grace_seconds": 1.0}, "grace: not a duration that processes agree on; these are operation_deadline"),
    ],
)
def test_what_cannot_be_agreed_on(world: World, seconds: dict[str, float], message: str) -> None:
    world.process()
    before = world.kv.get(keys.DURATIONS)
    with pytest.raises(InvalidSettings, match=message):
        world.change(**seconds)
    assert world.kv.get(keys.DURATIONS) == before


def test_two_changes_at_once_are_both_made(world: World) -> None:
    world.process()

    class Interrupted(NoAudit):
        def change(self, *args: Any, **kwargs: Any) -> Any:
            world.change(issue_seconds=60)
            return super().change(*args, **kwargs)

    done = change_durations(world.kv, world.clock, RandomIds(), Interrupted(), {"clock_skew_seconds": 30})
    assert (done.before.issue_seconds, done.after.issue_seconds, done.after.clock_skew_seconds) == (60, 60, 30)


def test_shorter_requests_need_a_new_start(world: World) -> None:
    """The connections to the object store were opened with the longer time."""
    running = world.process()
    world.change(io_timeout_seconds=20)
    world.clock.advance(REREAD_SECONDS)
    assert (running.safety.io_timeout_seconds, running.waits.io_timeout_seconds) == (20, 60)
    started_meanwhile = world.process()
    world.pass_change()
    with pytest.raises(DurationsDiffer, match="still wait for up to 60 s instead of 20 s; start the process again"):
        assert running.safety
    assert started_meanwhile.safety.io_timeout_seconds == world.process().safety.io_timeout_seconds == 20


def test_longer_requests_need_none(world: World) -> None:
    running = world.process()
    world.change(io_timeout_seconds=200)
    world.pass_change()
    assert running.waits.io_timeout_seconds == 200


# ---- a lake


def test_a_lake_works_with_what_was_agreed(tmp_path: Path) -> None:
    kv, objects = embedded_urls(tmp_path)
    clock = FakeClock()
    with open_lake_at(kv, objects, safety=MAIN_JOB, clock=clock) as first:
        first.create_repository("sales")
        assert first.kv.get(keys.DURATIONS) is not ABSENT
    with open_lake_at(kv, objects, clock=clock) as lake:
        ctx = lake.repository("sales").context
        assert ctx.safety.operation_deadline_seconds == MAIN_JOB.operation_deadline_seconds
        longer = {"operation_deadline_seconds": 60}
        change_durations(lake.kv, clock, lake.ids, lake.audit, longer)
        clock.advance(REREAD_SECONDS)
        assert ctx.waits.operation_deadline_seconds == 60
        assert ctx.safety.operation_deadline_seconds == MAIN_JOB.operation_deadline_seconds
    with pytest.raises(DurationsDiffer, match="io_timeout is 1m"):
        open_lake_at(kv, objects, safety=Safety(), clock=clock)


def test_a_lake_from_before_the_record_gets_one_from_its_next_process(tmp_path: Path) -> None:
    kv, objects = embedded_urls(tmp_path)
    with open_lake_at(kv, objects, safety=MAIN_JOB) as lake:
        lake.create_repository("sales").upload("main", "a", b"1")
        lake.kv.delete(keys.DURATIONS)  # as if it had been made before
    with open_lake_at(kv, objects, read_only=True) as reading:
        assert reading.repository("sales").read("main", "a") == b"1"
        assert read_record(reading.kv) is None
    with open_lake_at(kv, objects, safety=MAIN_JOB) as lake:
        record = read_record(lake.kv)
    assert record is not None
    assert record.current.operation_deadline_seconds == MAIN_JOB.operation_deadline_seconds


def test_a_running_reaper_waits_longer_from_its_next_pass_on(tmp_path: Path) -> None:
    """It scrubs what is older than the longest operation: what was written under the former durations, too."""
    kv, objects = embedded_urls(tmp_path)
    clock = FakeClock()
    with (
        open_lake_at(kv, objects, safety=MAIN_JOB, clock=clock) as lake,
        open_lake_at(kv, objects, clock=clock) as other,
        Reaper(lake, ReaperSettings(), asynchronous=False) as reaper,
    ):
        repo = lake.create_repository("sales")
        ctx = repo.context
        change_durations(other.kv, clock, other.ids, other.audit, {"operation_deadline_seconds": 5000})
        reaper.run_passes(lambda: False)
        assert ctx.waits.scrub_after_seconds == 5000 + 3, "it has read the change, in less than a minute"


def test_a_reaper_ends_when_it_may_not_work_any_more(tmp_path: Path) -> None:
    kv, objects = embedded_urls(tmp_path)
    clock = FakeClock()
    with (
        open_lake_at(kv, objects, clock=clock) as lake,
        Reaper(lake, ReaperSettings(), asynchronous=False) as reaper,
    ):
        lake.create_repository("sales")
        change_durations(lake.kv, clock, lake.ids, lake.audit, {"io_timeout_seconds": 20})
        clock.advance(LONG)
        with pytest.raises(DurationsDiffer):
            reaper.run(lambda: False)


def test_the_record_is_one_key_of_the_configuration() -> None:
    assert Key("configuration", "durations") == keys.DURATIONS


def test_a_change_that_dies_leaves_the_former_durations_or_both(world: World) -> None:
    """It is one write: whatever becomes of its process, there is nothing to finish."""
    world.process()
    change_durations(world.kv, world.clock, RandomIds(), NoAudit(), {"issue_seconds": 60}, dry_run=True)
    assert (before := read_record(world.kv)) is not None
    assert before.former == ()
    world.kv.calls = 0
    world.change(issue_seconds=60)
    after = read_record(world.kv)
    assert after is not None
    assert [each.durations for each in after.former] == [before.current]
    assert encode(after) == world.kv.get(keys.DURATIONS)


def test_over_http_it_is_no_fault_of_the_request() -> None:
    assert next(status for kind, status in STATUS if issubclass(DurationsDiffer, kind)) == 500
