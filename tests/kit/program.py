"""What every task of a scenario may do next, learned once and remembered.

A `Local` is where one task stands: which stages are left, what the current one has read, and how far the call under way
has got. It depends on what was read alone, so it is shared by all states of the search in which the task has read the
same, and the real code runs only when a call with a new result is over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from random import Random
from typing import Final

from refstore.errors import Corrupt, RefstoreError
from tests.kit.replay import LOST_OBJECT_REPLY, LOST_REPLY, Ended, Runner, Stage, Task
from tests.kit.steps import (
    GET,
    LIST,
    LOSE,
    LOST,
    MARK,
    OBJECTS,
    SET,
    WAIT,
    Call,
    Done,
    Interned,
    Progress,
    Raised,
    Reply,
    Step,
)

READS: Final = (GET, LIST, WAIT)

FINGERPRINT_BITS: Final = 112
"""Two different states of a billion have the same fingerprint with a chance of about 10^-16."""


class Local:
    """Where one task stands. The search reads these fields millions of times, so what can be known beforehand is."""

    __slots__ = (
        "begun",
        "fingerprint",
        "frame",
        "future",
        "immutable",
        "lossy",
        "next",
        "over",
        "progress",
        "steps",
        "task",
        "visible",
        "waits",
        "writes",
    )

    def __init__(self, frame: Frame, progress: Progress, steps: tuple[Step, ...], fingerprint: int) -> None:
        self.frame = frame
        self.progress = progress
        self.steps = steps
        """What may come next; none: the task is over."""
        self.fingerprint = fingerprint
        self.task = frame.task
        self.future = frame.future
        """The bits of whatever the task may still do."""
        self.begun = frame.begun or progress != frame.start
        self.over = frame.call is None
        self.writes = any(step.kind not in READS for step in steps)
        self.waits = any(step.waits for step in steps)
        self.lossy: tuple[bool, ...] = ()
        """For each step, whether its reply may get lost."""
        self.visible = False
        """Whether a step may change what the invariant looks at."""
        self.immutable = False
        """Whether all steps are on keys that are written once, with what their name says."""
        self.next: dict[tuple[int, Reply], Local] = {}


class Frame:
    """Where one task stands between two calls."""

    __slots__ = (
        "back",
        "begun",
        "call",
        "children",
        "future",
        "locals",
        "lost",
        "outcomes",
        "recorded",
        "root",
        "stages",
        "start",
        "task",
    )

    def __init__(
        self, task: int, stages: tuple[Stage, ...], outcomes: tuple[Hashable, ...], back: tuple[Frame, object] | None
    ) -> None:
        self.task = task
        self.stages = stages
        """Those that are left, the current one first."""
        self.outcomes = outcomes
        """How the stages before it ended, where that is remembered."""
        self.back = back
        """The frame before this one in the same stage, and the result that led here."""
        self.root = back is None
        self.call: Call | None = None
        """None: the task is over."""
        self.start: Progress = None
        self.begun = False
        self.future = 0
        self.lost: tuple[int, int] = (0, 0)
        """How many replies of the KV and of the object store have been lost."""
        self.locals: dict[Progress, Local] = {}
        self.children: dict[object, Frame] = {}

    def history(self) -> list[tuple[Call, object]]:
        """The calls of the current stage and their results."""
        recorded: list[tuple[Call, object]] = []
        frame = self
        while frame.back is not None:
            before, result = frame.back
            assert before.call is not None
            recorded.append((before.call, result))
            frame = before
        recorded.reverse()
        return recorded


class Misbehaved(Exception):  # not a fault of the explorer: of the code that it runs
    """A task ended in an error that no operation may end in."""

    def __init__(self, task: str, error: BaseException) -> None:
        super().__init__(f"{task} ended in {type(error).__name__}: {error}")


class Footprints:
    """Which tasks, in which of their stages, ever read or write a key: bit masks, growing as the search finds out.

    `relied` are the keys on whose masks a reduction of the search has rested; if one of them grows, the search has to
    start anew.
    """

    def __init__(self) -> None:
        self.bits: dict[tuple[int, str], int] = {}
        self.spawned: dict[tuple[int, str], set[str]] = {}
        self.readers: dict[int, int] = {}
        self.writers: dict[int, int] = {}
        self.listers: dict[int, int] = {}
        """By partition."""
        self.partition_writers: dict[int, int] = {}
        self.waiters = 0
        """Those that wait for operations that have begun: for them, a first step is not like any other."""
        self.losers = 0
        """Those that may take back what others have written."""
        self.relied: set[int] = set()
        self.relied_partitions: set[int] = set()
        self.outdated = False
        self._futures: dict[tuple[int, frozenset[str]], int] = {}

    def bit(self, task: int, stage: str) -> int:
        return self.bits.setdefault((task, stage), 1 << len(self.bits))

    def spawn(self, task: int, stage: str, spawned: Sequence[Stage]) -> None:
        known = self.spawned.setdefault((task, stage), set())
        new = {other.name for other in spawned} - known
        if new:
            known |= new
            self._futures.clear()
            self.outdated = True

    def future(self, task: int, stages: Sequence[Stage]) -> int:
        """The bits of everything that a task with these stages left may still do."""
        names = frozenset(stage.name for stage in stages)
        found = self._futures.get((task, names))
        if found is None:
            reached: set[str] = set()
            waiting = sorted(names)
            while waiting:
                name = waiting.pop()
                if name not in reached:
                    reached.add(name)
                    waiting.extend(sorted(self.spawned.get((task, name), ())))
            found = 0
            for name in sorted(reached):
                found |= self.bit(task, name)
            self._futures[task, names] = found
        return found

    def restart(self) -> None:
        self.relied.clear()
        self.relied_partitions.clear()
        self.outdated = False

    def note(self, bit: int, step: Step, partition: int) -> None:
        if step.waits and not self.waiters & bit:
            self.waiters |= bit
            self.outdated = True
        if step.kind == WAIT:
            return
        if step.kind in (MARK, LOSE):
            if not self.losers & bit:
                self.losers |= bit
                self.outdated = True
            return
        if step.kind == LIST:
            self._add(self.listers, step.key, bit, self.relied_partitions, step.key)
            return
        if step.kind == GET:
            self._add(self.readers, step.key, bit, self.relied, step.key)
            return
        self._add(self.writers, step.key, bit, self.relied, step.key)
        self._add(self.partition_writers, partition, bit, self.relied_partitions, partition)

    def _add(self, masks: dict[int, int], at: int, bit: int, relied: set[int], key: int) -> None:
        mask = masks.get(at, 0)
        if not mask & bit:
            masks[at] = mask | bit
            if key in relied:
                self.outdated = True


class Program:
    """All tasks of a scenario."""

    def __init__(
        self,
        runners: Sequence[Runner],
        names: Interned,
        *,
        is_immutable: Callable[[str], bool],
        is_visible: Callable[[str], bool],
        may_lose: bool,
        remembers: frozenset[str],
    ) -> None:
        """`is_immutable` and `is_visible` say of a partition's name what `Local` says of its steps. `remembers`: the
        labels of tasks of which it matters how they ended.
        """
        self.runners = runners
        self.names = names
        self.footprints = Footprints()
        self._is_immutable = is_immutable
        self._is_visible = is_visible
        self._may_lose_writes = may_lose
        self.ended: dict[tuple[str, str], set[str]] = {}
        """How the stages of each task ended, in any state at all: 'ok', or an error's name."""
        self._frames: list[Frame] = []
        self._remembers = [runner.task.label in remembers for runner in runners]
        self._random = Random(0)  # fingerprints, not secrets; the same in every run
        self._roots: dict[tuple[int, tuple[Stage, ...], tuple[Hashable, ...]], Frame] = {}
        self._crashed: dict[int, Local] = {}

    def task(self, number: int) -> Task:
        return self.runners[number].task

    def begin(self, number: int) -> Local:
        return self._entered(self._root(number, self.task(number).stages, (), begun=False))

    def crashed(self, number: int) -> Local:
        """Where a task stands that is no more: nowhere, whatever it had read."""
        local = self._crashed.get(number)
        if local is None:
            outcomes = ("crashed",) if self._matters(number) else ()
            frame = self._root(number, (), outcomes, begun=True)
            local = self._crashed[number] = self._entered(frame)
        return local

    def refresh(self) -> None:
        """Let the reduction start anew, with what is known by now."""
        self.footprints.restart()
        for frame in self._frames:
            frame.future = self.footprints.future(frame.task, frame.stages)
            for local in frame.locals.values():
                local.future = frame.future

    def after(self, local: Local, index: int, reply: Reply) -> Local:
        """Where the task stands once the step at `index` got this reply. Raises Misbehaved."""
        following = local.next.get((index, reply))
        if following is None:
            following = local.next[index, reply] = self._after(local, index, reply)
        return following

    def _after(self, local: Local, index: int, reply: Reply) -> Local:
        frame = local.frame
        assert frame.call is not None
        if reply == LOST:
            return self._entered(self._frame_after(frame, _lost(local.steps[index], self.names)))
        progress = frame.call.advance(local.progress, index, reply, self.names)
        if isinstance(progress, Done):
            return self._entered(self._frame_after(frame, progress.result))
        return self._local(frame, progress)

    def _frame_after(self, frame: Frame, result: object) -> Frame:
        following = frame.children.get(result)
        if following is None:
            following = Frame(frame.task, frame.stages, frame.outcomes, (frame, result))
            following.begun = True
            kv, objects = frame.lost
            following.lost = (kv + (result is LOST_REPLY), objects + (result is LOST_OBJECT_REPLY))
            following = frame.children[result] = self._ask(following)
        return following

    def _root(
        self,
        number: int,
        stages: tuple[Stage, ...],
        outcomes: tuple[Hashable, ...],
        *,
        begun: bool,
        lost: tuple[int, int] = (0, 0),
    ) -> Frame:
        key = (number, stages, (*outcomes, lost, begun))
        frame = self._roots.get(key)
        if frame is None:
            frame = Frame(number, stages, outcomes, None)
            frame.begun = begun
            frame.lost = lost
            frame = self._roots[key] = self._ask(frame) if stages else frame
        return frame

    def _ask(self, frame: Frame) -> Frame:
        """The frame with its call, or the first frame of the next stage if this one ended without another call."""
        stage = frame.stages[0]
        runner = self.runners[frame.task]
        asked = runner.run(stage, self._label(frame), frame.history())
        if not isinstance(asked, Ended):
            frame.call = asked
            frame.future = self.footprints.future(frame.task, frame.stages)
            self._frames.append(frame)
            return frame
        _judge(runner.task.label, asked.outcome, may_be_damaged=self._may_lose_writes)
        self.ended.setdefault((runner.task.label, stage.name), set()).add(told(asked.outcome))
        if asked.then:
            self.footprints.spawn(frame.task, stage.name, asked.then)
        outcomes = (
            (*frame.outcomes, told(asked.outcome)) if self._matters(frame.task) and not asked.then else frame.outcomes
        )
        return self._root(frame.task, (*asked.then, *frame.stages[1:]), outcomes, begun=frame.begun, lost=frame.lost)

    def _entered(self, frame: Frame) -> Local:
        if frame.call is None:
            return self._local(frame, None)
        start = frame.call.start(self.names)
        if isinstance(start, Done):
            return self._entered(self._frame_after(frame, start.result))
        frame.start = start
        return self._local(frame, start)

    def _local(self, frame: Frame, progress: Progress) -> Local:
        local = frame.locals.get(progress)
        if local is None:
            steps = frame.call.steps(progress, self.names) if frame.call is not None else ()
            fingerprint = self._random.getrandbits(FINGERPRINT_BITS)
            local = frame.locals[progress] = Local(frame, progress, steps, fingerprint)
            if steps:
                self._describe(local)
        return local

    def _describe(self, local: Local) -> None:
        frame, steps = local.frame, local.steps
        local.lossy = tuple(self._may_lose(frame, step) for step in steps)
        partitions = [step.key if step.kind == LIST else self.names.partition_of[step.key] for step in steps]
        texts = [self.names.partitions[partition] for partition in partitions]
        local.visible = local.writes and any(map(self._is_visible, texts))
        local.immutable = all(
            step.kind in (GET, SET) and self._is_immutable(text) for step, text in zip(steps, texts, strict=True)
        )
        bit = self.footprints.bit(frame.task, frame.stages[0].name)
        for step, partition in zip(steps, partitions, strict=True):
            self.footprints.note(bit, step, partition)

    def _may_lose(self, frame: Frame, step: Step) -> bool:
        if step.kind in READS:
            return False
        task = self.task(frame.task)
        if self.names.keys[step.key].partition == OBJECTS:
            return frame.lost[1] < task.lost_object_replies
        return frame.lost[0] < task.lost_replies

    def _matters(self, number: int) -> bool:
        return number < len(self._remembers) and self._remembers[number]

    def _label(self, frame: Frame) -> str:
        """What the stage's ids begin with: another one for each stage with other arguments."""
        task = self.task(frame.task)
        stage = frame.stages[0]
        if stage is task.stages[0]:
            return task.label.lower()
        digest = hashlib.blake2b(repr((stage.name, stage.args)).encode(), digest_size=3).hexdigest()
        return f"{task.label.lower()}{digest}z"


def _lost(step: Step, names: Interned) -> Raised:
    return LOST_OBJECT_REPLY if names.keys[step.key].partition == OBJECTS else LOST_REPLY


def told(outcome: object) -> str:
    """An outcome as it is remembered: that it was an error, and which, or that it was none."""
    return type(outcome).__name__ if isinstance(outcome, BaseException) else "ok"


def _judge(label: str, outcome: object, *, may_be_damaged: bool) -> None:
    """Operations may be refused; what they may not do is to find the store damaged, or to fall over."""
    if isinstance(outcome, BaseException) and (
        not isinstance(outcome, RefstoreError) or (isinstance(outcome, Corrupt) and not may_be_damaged)
    ):
        raise Misbehaved(label, outcome) from outcome
