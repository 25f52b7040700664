"""A plan: a world, a few tasks in it, and what may happen to them; its scenario is what the explorer visits.

A task is a list of calls that follow one another; what the model has as one process is here one task. Tasks of the
reaper have a clock of their own that is a millisecond ahead, so that in worlds without ages (`NO_AGES`) nothing is too
young for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.kit.explorer import Scenario
from tests.kit.replay import Task
from tests.simulation import calls as do
from tests.simulation.calls import (
    HARD_DELETE,
    HARD_DELETE_ANY,
    REAP,
    REAP_PAGED,
    SCRUB,
    SCRUB_REFERENCES,
    SCRUB_TOKENS,
    SCRUB_UNNAMED,
    SCRUB_UPLOADS,
    Call,
    stages_of,
)
from tests.simulation.promises import Judge, Promised
from tests.simulation.worlds import Start

Calls = Sequence[Call]

AHEAD_MS = 1
"""So much are the reaper's clocks ahead."""
EXPIRED_MS = 2 * 3_600_000
"""Past the expiry of an issued address."""

BACKGROUND = {
    REAP,
    REAP_PAGED,
    HARD_DELETE,
    HARD_DELETE_ANY,
    SCRUB,
    SCRUB_REFERENCES,
    SCRUB_TOKENS,
    SCRUB_UNNAMED,
    SCRUB_UPLOADS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A scenario before its world is made."""

    name: str
    world: Callable[[], Start]
    tasks: Callable[[Start], Mapping[str, Calls]]
    crash: str = ""
    """Labels that may die before any write."""
    lossy: str = ""
    """Labels whose writes may lose their reply; twice the label, two replies."""
    lossy_objects: str = ""
    keeps: str = ""
    """Labels whose promises must hold at the end."""
    somewhere: str = ""
    """Labels whose uploads must be readable at the end, under whatever path."""
    once: str = ""
    """Labels whose first calls link one address: only one of them may be told that it did."""
    safety_only: bool = False
    """Leaks are not looked for: without ages, a scrubber cannot know of a blob that is still to be written."""
    leaves: bool = False
    """A blob may be left that came when the reaper was through with its address (rule 11): the offline job's."""
    accepted: str = ""
    """Labels of which every call must be told that it is done: their time is not over by any clock."""
    nothing_marked: bool = False
    """No commit that landed may be marked in the end."""
    clock_moves: bool = False
    visited_whole: bool = False
    """Whether every interleaving is visited, however many they are."""
    refused: str = ""
    """Labels whose calls are always refused here, as they should be."""
    shards: tuple[str, ...] = ()
    """The parts of the KV that may lose writes apart from each other (`tests/kit/losing.py`)."""
    judge: Judge | None = None
    """Judges besides the promises."""
    remembers: str = ""
    """Further labels of which the judge sees the outcomes."""
    ahead_ms: Mapping[str, int] = field(default_factory=dict[str, int])
    """Clocks of single tasks, if not that of the scenario or of the reaper."""

    def scenario(self) -> Scenario:
        start = self.world()
        wall_ms = start.world.clock.now_ms()
        per_label = {label: tuple(given) for label, given in self.tasks(start).items()}
        tasks = tuple(
            Task(
                label,
                stages_of(given),
                may_crash=label in self.crash,
                lost_replies=self.lossy.count(label),
                lost_object_replies=self.lossy_objects.count(label),
                clock_ms=self._clock_ms(label, given, wall_ms),
                bounded=not all(call in BACKGROUND or call.unbounded for call in given),
            )
            for label, given in per_label.items()
        )
        kept = {label: _promises(per_label[label]) for label in self.keeps}
        somewhere = {label: _promises(per_label[label]) for label in self.somewhere}
        repo = start.world.repo.record.id
        return start.world.scenario(
            self.name,
            *tasks,
            clock_moves=self.clock_moves,
            safety_only=self.safety_only,
            leaves=self.leaves,
            shards=self.shards,
            ends=(
                lambda private: Promised(
                    repo,
                    private,
                    kept,
                    somewhere,
                    once=self.once,
                    accepted=self.accepted,
                    nothing_marked=self.nothing_marked,
                    judge=self.judge,
                )
            )
            if kept or somewhere or self.once or self.accepted or self.nothing_marked or self.judge
            else None,
            remembers=frozenset(self.keeps + self.somewhere + self.once + self.accepted + self.remembers),
        )

    def _clock_ms(self, label: str, given: Calls, wall_ms: int) -> int | None:
        if label in self.ahead_ms:
            return wall_ms + self.ahead_ms[label]
        if not self.clock_moves and all(call in BACKGROUND for call in given):
            return wall_ms + AHEAD_MS
        return None


def _promises(given: Calls) -> tuple[do.Promise, ...]:
    return tuple(promise for call in given for promise in call.promises)


def plan(
    name: str,
    world: Callable[[], Start],
    tasks: Mapping[str, Calls] | Callable[[Start], Mapping[str, Calls]],
    crash: str = "",
    **more: object,
) -> Plan:
    made = tasks if callable(tasks) else lambda _: tasks
    return Plan(name=name, world=world, tasks=made, crash=crash, **more)
