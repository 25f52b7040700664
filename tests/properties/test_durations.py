"""While durations change again and again, nobody who waits for others waits less than their operations take.

Processes have clocks that are apart, and read the record again only when they must. Time is real in `World`: an
operation lands when it lands, whatever its process believes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from refstore.agreed_durations import AgreedDurations, change_durations
from refstore.core.ids import RandomIds
from refstore.core.safety import Safety
from refstore.errors import DurationsDiffer
from refstore.gc_marks import barrier_seconds
from refstore.kv.memory import MemoryKV
from refstore.records.lake_records import SharedDurations
from tests.kit.audit import NoAudit
from tests.kit.clock import FakeClock

APART_SECONDS = 10.0
"""How far clocks are apart at most, and the smallest skew that is ever agreed on."""
PROCESSES = 3


class Operation(NamedTuple):
    began: float
    stamped_ms: int
    lands: float
    """The latest time of its last write."""


class Issued(NamedTuple):
    stamped_ms: int
    expires_ms: int


class Mark(NamedTuple):
    process: int
    at: float
    stamped_ms: int


@dataclass
class World:
    now: float = 0.0
    kv: MemoryKV = field(default_factory=MemoryKV)
    operations: list[Operation] = field(default_factory=list[Operation])
    issued: list[Issued] = field(default_factory=list[Issued])
    marks: list[Mark] = field(default_factory=list[Mark])

    def __post_init__(self) -> None:
        offsets = (0.0, APART_SECONDS / 2, -APART_SECONDS / 2)
        self.clocks = [FakeClock(1_763_708_400_000 + int(offset * 1000)) for offset in offsets[:PROCESSES]]
        self.opened_with: dict[int, float] = {}
        self.processes = [self.start(number) for number in range(PROCESSES)]

    def start(self, number: int) -> AgreedDurations:
        own = Safety(io_timeout_seconds=20, clock_skew_seconds=APART_SECONDS)
        started = AgreedDurations(self.kv, self.clocks[number], RandomIds(), own, explicit={})
        self.opened_with[number] = started.safety.objects_io_seconds
        return started

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for clock in self.clocks:
            clock.advance(seconds)

    def await_end(self, which: int) -> None:
        """Go on until just before an operation lands, or an address can be linked for the last time."""
        clock_ms = self.clocks[0].now_ms()
        ends = sorted(
            {each.lands - self.now for each in self.operations if each.lands > self.now}
            | {(each.expires_ms - clock_ms) / 1000 for each in self.issued if each.expires_ms > clock_ms}
        )
        if ends:
            self.advance(max(0.0, ends[which % len(ends)] - 0.01))

    def change(self, number: int, new: SharedDurations) -> None:
        change_durations(self.kv, self.clocks[number], RandomIds(), NoAudit(), new._asdict())

    def restart(self, number: int) -> None:
        self.processes[number] = self.start(number)

    def operate(self, number: int) -> None:
        """Begin an operation, and issue an address."""
        clock = self.clocks[number]
        try:
            safety = self.processes[number].safety
        except DurationsDiffer:
            self.restart(number)
            safety = self.processes[number].safety
        stamp = clock.now_ms()
        lands = self.now + safety.operation_deadline_seconds + self.opened_with[number]
        self.operations.append(Operation(self.now, stamp, lands))
        self.issued.append(Issued(stamp, stamp + int(safety.issue_seconds * 1000)))

    def mark(self, number: int) -> None:
        self.marks.append(Mark(number, self.now, self.clocks[number].now_ms()))

    def look(self, number: int) -> None:
        """Scrub, list from the horizon, and go on behind the marks that this process made."""
        clock = self.clocks[number]
        try:
            waits = self.processes[number].waits
        except DurationsDiffer:
            self.restart(number)
            waits = self.processes[number].waits
        now_ms = clock.now_ms()
        for operation in self.operations:
            if operation.lands > self.now:
                age_ms = now_ms - operation.stamped_ms
                assert age_ms <= waits.scrub_after_seconds * 1000, "it would be scrubbed"
        landing = max(waits.operation_deadline_seconds, waits.issue_seconds) + waits.io_timeout_seconds
        horizon_ms = now_ms - int((landing + waits.clock_skew_seconds) * 1000)
        for address in self.issued:
            if address.expires_ms > now_ms:
                assert address.stamped_ms >= horizon_ms, "it can be linked, and the next run would not list it"
        for mark in self.marks:
            if mark.process == number and now_ms >= mark.stamped_ms + barrier_seconds(waits) * 1000:
                assert all(each.lands <= self.now for each in self.operations if each.began < mark.at), "the wait ended"


@st.composite
def durations(draw: st.DrawFn) -> SharedDurations:
    deadline = draw(st.sampled_from([60.0, 100.0, 1000.0, 5000.0]))
    io_timeout = draw(st.sampled_from([15.0, 20.0, 300.0]))
    skew = draw(st.sampled_from([APART_SECONDS, 100.0]))
    return SharedDurations(deadline, io_timeout, skew, draw(st.sampled_from([1.0, 900.0, 6000.0])))


PROCESS = st.integers(0, PROCESSES - 1)
STEPS = st.one_of(
    st.tuples(st.just("advance"), st.sampled_from([1.0, 30.0, 61.0, 200.0, 1100.0, 5400.0, 7000.0])),
    st.tuples(st.just("change"), PROCESS, durations()),
    st.tuples(st.just("await_end"), st.integers(0, 100)),
    st.tuples(st.just("restart"), PROCESS),
    st.tuples(st.just("operate"), PROCESS),
    st.tuples(st.just("mark"), PROCESS),
    st.tuples(st.just("look"), PROCESS),
)


@given(st.lists(STEPS, max_size=30))
def test_nobody_waits_less_than_others_take(steps: list[tuple[object, ...]]) -> None:
    world = World()
    for name, *arguments in steps:
        getattr(world, str(name))(*arguments)
        if name in ("advance", "await_end"):
            for number in range(PROCESSES):
                world.look(number)
                world.operate(number)
