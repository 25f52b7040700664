"""The explorer: runs real code over every interleaving of its steps.

A state is the contents of the stores and where each task stands. From a state, each task that is not over may do its
next step, may crash before a write, and may lose the reply of a write that landed. States are told apart by fingerprint
(stores and what each task has read), so each is visited once. Checked are, in every state, the scenario's invariant;
and where all tasks are over, after `settle` has run until nothing changes, the invariant again and that nothing is left
over.

Two reductions keep what matters, and both are sound:

- *Steps that nobody can tell the time of* take no scheduling point. If what a task does next touches only keys that no
  other task will touch any more (or that nobody will write), and does not change what the invariant looks at, it
  commutes with everything the others may do before it; doing it at once leads to the same final states and hides no
  violation (a singleton ample set: Clarke, Grumberg and Peled, Model Checking, chapter 10). Which keys a task may touch
  is not declared but learned: if the search meets a touch that it had not known when it relied on there being none, it
  starts anew. The same holds of keys that are written once and whose content follows from their name.
- *A task crashes only before a write*: dead before a read and dead after it are the same state of the stores. A task
that is
  over, or dead, has forgotten what it read.

What the budget cuts off is not thrown away: seeded random walks from states on the frontier run to the end of all
tasks, under the same checks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple, Protocol

from refstore.errors import InvalidSettings
from tests.kit.program import FINGERPRINT_BITS, Local, Misbehaved, Program
from tests.kit.replay import Runner, Stores, Task
from tests.kit.steps import EXCHANGE, GET, LIST, LOSE, LOST, MARK, SET_IF, WAIT, Interned, Reply, Step

ROUNDS_MAX: Final = 8
"""Rounds of settling. Each takes at most a few steps further on the way from retired to gone."""

WARM_UP_WALKS: Final = 24
"""Random walks before the search, to learn which keys the tasks touch."""

RELEARN_STATES: Final = 2000
"""States that a search that has to start anew goes on for, at least, to learn more before it does."""

CRASH: Final = -2
"""In place of a reply: the task died before the step."""


class Domain(Protocol):
    """What is being explored: how tasks are bound to it, and what has to hold."""

    def bind(self, stores: Stores) -> object:
        """The environment that a task's stages are called with."""
        ...

    def is_immutable(self, partition: str) -> bool: ...

    def is_visible(self, partition: str) -> bool: ...

    def violation(self, store: Mapping[int, int], names: Interned) -> str | None:
        """What is wrong with a state; looked at in every state."""
        ...

    def settling(self, round_number: int) -> Task:
        """What runs when all tasks are over, again and again until it changes nothing."""
        ...

    def left_over(self, store: Mapping[int, int], names: Interned) -> str | None:
        """What is wrong with a state that has settled."""
        ...

    def mark(self, store: Mapping[int, int], shard: str, names: Interned) -> dict[int, int]:
        """The stores with a copy of what the shard holds."""
        ...

    def lose(self, store: Mapping[int, int], shard: str, identity: bytes, names: Interned) -> dict[int, int]:
        """The stores with the shard as it was marked. `identity`: of its server then; b"": of the same one."""
        ...


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    domain: Domain
    store: Mapping[int, int]
    names: Interned
    private: dict[str, bytes]
    tasks: tuple[Task, ...]
    wall_ms: int
    clock_moves: bool = False
    ends: Callable[[Mapping[str, tuple[Hashable, ...]], Mapping[int, int], Interned], str | None] | None = None
    """What is wrong with how the tasks ended, before settling: label -> how each stage ended ('ok', or an error's
    name).
    """
    shards: tuple[str, ...] = ()
    """The parts of the KV that may lose writes apart from each other. A call may then find the store damaged."""
    remembers: frozenset[str] = frozenset()
    """The labels of the tasks whose ends are told to `ends`; of each of the others it hears nothing."""


class Event(NamedTuple):
    """One step of a schedule."""

    label: str
    choice: int
    """Which of the steps that the task could do."""
    step: Step
    reply: Reply
    """Or CRASH, or LOST."""


class Trace(NamedTuple):
    """A linked list, newest first: states share their past."""

    before: Trace | None
    event: Event


@dataclass(frozen=True, slots=True)
class Violation:
    kind: str
    """unsafe, unsafe-settled, left-over, restless, misbehaved, meaning"""
    message: str
    events: tuple[Event, ...]
    settling: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to."""

    scenario: str
    states: int
    """States visited by the search, each once."""
    transitions: int
    exhausted: bool
    """Whether these are all there are."""
    walks: int
    """Random walks that sampled what was cut off."""
    ends: int
    """Different contents of the stores in which all tasks were over."""
    runs: int
    """How often real code was run."""
    seconds: float
    violation: Violation | None

    @property
    def verdict(self) -> str:
        return "holds" if self.violation is None else f"{self.violation.kind}: {self.violation.message}"


class _State(NamedTuple):
    store: dict[int, int]
    store_print: int
    locals: tuple[Local, ...]
    locals_print: int
    trace: Trace | None


class _Stop(Exception):  # carries the result out of the search
    def __init__(self, violation: Violation) -> None:
        super().__init__(violation.message)
        self.violation = violation


class Explorer:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.names = scenario.names
        self._domain = scenario.domain
        self._runners = [self._runner(task) for task in scenario.tasks]
        self.program = Program(
            self._runners,
            self.names,
            is_immutable=self._domain.is_immutable,
            is_visible=self._domain.is_visible,
            may_lose=bool(scenario.shards),
            remembers=scenario.remembers,
        )
        self._tasks = len(scenario.tasks)
        self._may_crash = [task.may_crash for task in scenario.tasks]
        self._bounded = [task.bounded for task in scenario.tasks]
        self._pairs: dict[int, int] = {}
        self._random = Random(1)  # fingerprints; the same in every run
        self._safe: set[int] = set()
        self._settled: set[int] = set()
        self._ended: set[Hashable] = set()
        self._end_stores: dict[int, Mapping[int, int]] = {}
        self.transitions = 0

    def _runner(self, task: Task) -> Runner:
        scenario = self.scenario
        return Runner(
            task, self._domain.bind, scenario.private, scenario.wall_ms, scenario.clock_moves, scenario.shards
        )

    # ---- searching

    def search(self, *, states_max: int, walks: int = 0, seed: int = 0) -> Found:
        """Every state, or as many as the budget allows and then random walks."""
        began = time.perf_counter()
        states, exhausted, walked, violation = 0, False, 0, None
        try:
            random = Random(seed)  # the sample, to be repeated by seed
            start = self._start()
            for _ in range(WARM_UP_WALKS):
                self._walk(start, random, reduced=False)
            while True:
                self.program.refresh()
                states, frontier = self._search(states_max)
                if not self.program.footprints.outdated:
                    break
            exhausted = not frontier
            if frontier:
                for _ in range(walks):
                    # every other one from the start: what is still on the frontier shares much of its past
                    self._walk(start if walked % 2 else random.choice(frontier), random, reduced=True)
                    walked += 1
        except _Stop as stop:
            violation = stop.violation
        seconds = time.perf_counter() - began
        runs = sum(runner.runs for runner in self._runners)
        return Found(
            self.scenario.name, states, self.transitions, exhausted, walked, len(self._ended), runs, seconds, violation
        )

    def follow(self, schedule: Sequence[tuple[str, int, str]]) -> Violation | tuple[Event, ...]:
        """One schedule, as `trace.parsed` reads it, then settling; what it violates, or what happened. Raises
        InvalidSettings.
        """
        state = self._start()
        try:
            for label, index, mark in schedule:
                wanted = {"!": CRASH, "~": LOST}.get(mark)
                for each in self._following(state, reduced=False):
                    assert each.trace is not None
                    event = each.trace.event
                    said = event.reply if event.reply in (CRASH, LOST) else None
                    if (event.label, event.choice, said) == (label, index, wanted):
                        state = each
                        break
                else:
                    raise InvalidSettings(
                        f"{label} cannot do step {index}{mark} there; the schedule is of another scenario or program"
                    )
            if not self._following(state, reduced=False):
                self._end(state)
        except _Stop as stop:
            return stop.violation
        return events_of(state.trace)

    def end_stores(self) -> list[Mapping[int, int]]:
        """The different contents of the stores in which all tasks were over, as far as the search came."""
        return list(self._end_stores.values())

    def alone(self) -> Mapping[int, int]:
        """The stores once the tasks have run one after the other."""
        state = self._start()
        while following := self._following(state, reduced=False):
            state = following[0]
        return state.store

    def _start(self) -> _State:
        store: dict[int, int] = dict(self.scenario.store)
        store_print = 0
        for key, value in store.items():
            store_print ^= self._pair(key, value)
        self._check(store, store_print, None)
        try:
            locals_ = tuple(self.program.begin(number) for number in range(self._tasks))
        except Misbehaved as error:
            raise self._stop("misbehaved", str(error), None) from error
        locals_print = 0
        for local in locals_:
            locals_print ^= local.fingerprint
        return _State(store, store_print, locals_, locals_print, None)

    def _search(self, states_max: int) -> tuple[int, list[_State]]:
        """How many states there were, and those that were met and not gone on from: none if the search is complete."""
        start = self._start()
        seen = {start.store_print ^ start.locals_print}
        stack = [start]
        footprints = self.program.footprints
        enough = states_max
        while stack and len(seen) < enough:
            state = stack.pop()
            following = self._following(state)
            if footprints.outdated and enough == states_max:
                # in vain from here on, but for what is learned: where one touch was not known, others are not, and each
                # would cost a start of its own
                enough = min(states_max, len(seen) + len(seen) // 2 + RELEARN_STATES)
            if not following:
                self._end(state)
                continue
            for each in following:
                fingerprint = each.store_print ^ each.locals_print
                if fingerprint not in seen:
                    seen.add(fingerprint)
                    stack.append(each)
        return len(seen), stack

    def _walk(self, state: _State, random: Random, *, reduced: bool) -> None:
        """One random schedule to the end of all tasks. Crashes are as likely as any other step."""
        while following := self._following(state, reduced=reduced):
            state = random.choice(following)
        self._end(state)

    def _following(self, state: _State, *, reduced: bool = True) -> list[_State]:
        """The states that may come next; none if all tasks are over."""
        store, store_print, locals_, locals_print, trace = state
        running = [local for local in locals_ if not local.over]
        if not running:
            return []
        if len(running) > 1 and reduced:
            chosen = self.find_alone(store, running)
            if chosen is not None:
                running = [chosen]
        found: list[_State] = []
        after = self.program.after
        for local in running:
            task = local.task
            if local.waits and any(
                other.begun and not other.over and other is not local and self._bounded[other.task] for other in locals_
            ):
                continue
            label = self._runners[task].task.label
            rest_print = locals_print ^ local.fingerprint
            if local.writes and self._may_crash[task] and not local.immutable:
                dead = self.program.crashed(task)
                event = Event(label, 0, local.steps[0], CRASH)
                found.append(
                    _State(
                        store,
                        store_print,
                        _with(locals_, task, dead),
                        rest_print ^ dead.fingerprint,
                        Trace(trace, event),
                    )
                )
            for index, step in enumerate(local.steps):
                self.transitions += 1
                reply, new, new_print = self._apply(store, store_print, step)
                for said in (
                    (reply, LOST) if local.lossy[index] and not (step.kind == SET_IF and not reply) else (reply,)
                ):
                    link = Trace(trace, Event(label, index, step, said))
                    try:
                        next_local = after(local, index, said)
                    except Misbehaved as error:
                        raise self._stop("misbehaved", str(error), link) from error
                    if new_print != store_print and new_print not in self._safe:
                        self._check(new, new_print, link)
                    found.append(
                        _State(
                            new, new_print, _with(locals_, task, next_local), rest_print ^ next_local.fingerprint, link
                        )
                    )
        return found

    def find_alone(self, store: dict[int, int], running: Sequence[Local]) -> Local | None:
        """A task whose next steps commute with whatever the others may do before them, if there is one."""
        footprints = self.program.footprints
        for local in running:
            if local.waits:
                continue
            if local.visible:
                continue
            others = 0
            for other in running:
                if other is not local:
                    others |= other.future
            if footprints.losers & others:
                continue  # whatever it touches may be lost
            if not local.begun and footprints.waiters & others:
                continue  # once it has begun, they wait for it
            if local.immutable and self._is_settled(store, local, others):
                return local
            for step in local.steps:
                kind, key = step[0], step[1]
                if kind == GET:
                    if footprints.writers.get(key, 0) & others:
                        break
                elif kind == LIST:
                    if footprints.partition_writers.get(key, 0) & others:
                        break
                elif (
                    footprints.readers.get(key, 0) | footprints.writers.get(key, 0)
                ) & others or footprints.listers.get(self.names.partition_of[key], 0) & others:
                    break
            else:
                for step in local.steps:
                    if step.kind == LIST:
                        footprints.relied_partitions.add(step.key)
                    else:
                        footprints.relied.add(step.key)
                        if step.kind != GET:
                            footprints.relied_partitions.add(self.names.partition_of[step.key])
                return local
        return None

    def _is_settled(self, store: dict[int, int], local: Local, others: int) -> bool:
        """Whether steps on keys that are written once have but one outcome: a read that finds its key, or a write that
        none lists.
        """
        if not local.writes:
            return all(step.key in store for step in local.steps)
        footprints = self.program.footprints
        partitions = {self.names.partition_of[step.key] for step in local.steps}
        footprints.relied_partitions |= partitions
        return not any(footprints.listers.get(partition, 0) & others for partition in partitions)

    # ---- one step

    def _apply(self, store: dict[int, int], store_print: int, step: Step) -> tuple[Reply, dict[int, int], int]:
        """(reply, store, its fingerprint). The store is copied before it is written to."""
        kind, key, value, expected, bounds, _ = step
        if kind == GET:
            return store.get(key, 0), store, store_print
        if kind == LIST:
            return self._list(store, key, bounds), store, store_print
        if kind == WAIT:
            return 0, store, store_print
        if kind in (MARK, LOSE):
            shard = self.names.keys[key].name
            if kind == MARK:
                changed = self._domain.mark(store, shard, self.names)
            else:
                changed = self._domain.lose(store, shard, self.names.values[value], self.names)
            for pair in store.items() ^ changed.items():
                store_print ^= self._pair(*pair)
            return 0, changed, store_print
        old = store.get(key, 0)
        reply = 0
        if kind == SET_IF:
            if old != expected:
                return 0, store, store_print
            reply = 1
        elif kind == EXCHANGE:
            reply = old
        if old == value:
            return reply, store, store_print
        new = store.copy()
        if old:
            store_print ^= self._pair(key, old)
        if value:
            new[key] = value
            store_print ^= self._pair(key, value)
        else:
            del new[key]
        return reply, new, store_print

    def _list(self, store: dict[int, int], partition: int, bounds: tuple[str, str, str, int]) -> tuple[int, ...]:
        prefix, after, last, limit = bounds
        keys, partition_of = self.names.keys, self.names.partition_of
        found = sorted((keys[key].name, key) for key in store if partition_of[key] == partition)
        inside = [key for name, key in found if name.startswith(prefix) and name > after and (not last or name <= last)]
        return tuple(inside[:limit] if limit else inside)

    def _pair(self, key: int, value: int) -> int:
        """The fingerprint of a key that holds a value; that of a store is the XOR of its pairs'."""
        at = key << 32 | value
        found = self._pairs.get(at)
        if found is None:
            found = self._pairs[at] = self._random.getrandbits(FINGERPRINT_BITS)
        return found

    # ---- checking

    def _check(
        self, store: dict[int, int], store_print: int, trace: Trace | None, settling: tuple[Event, ...] = ()
    ) -> None:
        why = self._domain.violation(store, self.names)
        if why is not None:
            raise self._stop("unsafe-settled" if settling else "unsafe", why, trace, settling)
        self._safe.add(store_print)

    def _end(self, state: _State) -> None:
        """All tasks are over: judge how they ended, let the stores settle, and look at what is left."""
        ends = self.scenario.ends
        outcomes = tuple(local.frame.outcomes for local in state.locals) if ends is not None else ()
        key = (state.store_print, outcomes)
        if key in self._ended:
            return
        if ends is not None:
            by_label = {task.label: said for task, said in zip(self.scenario.tasks, outcomes, strict=True)}
            why = ends(by_label, state.store, self.names)
            if why is not None:
                raise self._stop("meaning", why, state.trace)
        store, _, events = self._settle(state.store, state.store_print, state.trace)
        if store is not None:
            why = self._domain.left_over(store, self.names)
            if why is not None:
                raise self._stop("left-over", why, state.trace, tuple(events))
        self._ended.add(key)
        self._end_stores[state.store_print] = state.store

    def _settle(
        self, store: dict[int, int], store_print: int, trace: Trace | None
    ) -> tuple[dict[int, int] | None, int, list[Event]]:
        """The stores once settling changes nothing more; None if a state on the way has been settled before."""
        events: list[Event] = []
        passed: list[int] = []
        for round_number in range(ROUNDS_MAX):
            at_start = store_print
            local = self._settling(round_number)
            while not local.over:
                fingerprint = store_print ^ local.fingerprint
                if fingerprint in self._settled:
                    self._settled.update(passed)
                    return None, store_print, events
                passed.append(fingerprint)
                step = local.steps[0]
                reply, store, new_print = self._apply(store, store_print, step)
                events.append(Event(self._runners[local.task].task.label, 0, step, reply))
                if new_print != store_print and new_print not in self._safe:
                    self._check(store, new_print, trace, tuple(events))
                store_print = new_print
                try:
                    local = self.program.after(local, 0, reply)
                except Misbehaved as error:
                    raise self._stop("misbehaved", str(error), trace, tuple(events)) from error
            if store_print == at_start:
                self._settled.update(passed)
                return store, store_print, events
        raise self._stop(
            "restless", f"settling still changes something after {ROUNDS_MAX} rounds", trace, tuple(events)
        )

    def _settling(self, round_number: int) -> Local:
        number = self._tasks + round_number
        while len(self._runners) <= number:
            self._runners.append(self._runner(self._domain.settling(len(self._runners) - self._tasks)))
        return self.program.begin(number)

    def _stop(self, kind: str, message: str, trace: Trace | None, settling: tuple[Event, ...] = ()) -> _Stop:
        return _Stop(Violation(kind, message, events_of(trace), settling))


def events_of(trace: Trace | None) -> tuple[Event, ...]:
    events: list[Event] = []
    while trace is not None:
        events.append(trace.event)
        trace = trace.before
    return tuple(reversed(events))


def _with(locals_: tuple[Local, ...], task: int, local: Local) -> tuple[Local, ...]:
    return (*locals_[:task], local, *locals_[task + 1 :])
