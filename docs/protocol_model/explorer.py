"""Every interleaving of a scenario's processes, a crash or a lost reply at any step where the scenario allows one.

States are pruned by fingerprint: the store, and for each process the call it is in and what that call has read so far
(a call is a deterministic function of its reads; nothing is kept from one call to the next; what a process that ended
or died has read does not matter any more). Reading an immutable commit is not a step that others could tell apart, so
it is taken at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from . import invariants
from .calls import Do, run
from .pruning import unpruned
from .scenarios import Scenario
from .store import DELETED, LOST, MUTATING, Op, Store, number

STATES_MAX = 2_000_000
HOLDS = "holds"


_numbers = Random(2)  # noqa: S311  # fingerprints, not secrets


class Found(NamedTuple):
    scenario: str
    verdict: str
    """HOLDS, or what is violated."""
    states: int
    whole: bool
    """Whether every state was visited."""
    seconds: float
    trace: tuple[tuple[str, Any, Any], ...]
    """(label, primitive, reply) of each step that leads to the violation."""


class Node:
    """Where one process stands. One node per distinct history, so its random number stands for it in fingerprints."""

    __slots__ = ("begun", "calls", "children", "dead", "history", "lost", "number", "op", "results")

    def __init__(
        self, calls: tuple, results: tuple, lost: int, history: tuple, op: Op | None, *, begun: bool = False
    ) -> None:
        self.number = _numbers.getrandbits(80)
        self.calls = calls
        """(id prefix, call) of the call it is in, then those to come."""
        self.results = results
        self.lost = lost
        """Replies that it has lost."""
        self.history = history
        self.begun = begun
        """Whether the call has done more than read what never changes."""
        self.op = op
        """The primitive it performs next; None: it has ended, or is dead."""
        self.children: dict[Any, Node] = {}
        self.dead: Node | None = None


class Process:
    """The tree of one label's histories, grown as they are met."""

    def __init__(self, label: str, calls: tuple, make: Callable[[str], Any]) -> None:
        self._make = make
        self._nodes: dict[Any, Node] = {}
        self.start = self._at(tuple((f"{label}{index}.", call) for index, call in enumerate(calls)), (), 0)

    def step(self, node: Node, reply: Any, *, free: bool = False) -> Node:
        child = node.children.get(reply)
        if child is None:
            lost = node.lost + (1 if reply is LOST else 0)
            begun = node.begun or not free
            child = node.children[reply] = self._after(
                node.calls, node.results, lost, (*node.history, reply), begun=begun
            )
        return child

    def kill(self, node: Node) -> Node:
        if node.dead is None:
            node.dead = self._intern(("dead", node.results), (), node.results, 0)
        return node.dead

    def _after(self, calls: tuple, results: tuple, lost: int, history: tuple, *, begun: bool = False) -> Node:
        prefix, call = calls[0]
        proto = self._make(prefix)
        steps = proto.retrying(getattr(proto, call[0])(*call[1:]))
        try:
            op = steps.send(None)
            for reply in history:
                op = steps.send(reply)
        except StopIteration as end:
            if isinstance(end.value, Do):
                return self._at((*((prefix, then) for then in end.value), *calls[1:]), results, lost)
            if end.value is not None:
                results = (*results, (call, end.value))
            return self._at(calls[1:], results, lost)
        return Node(calls, results, lost, history, op, begun=begun)

    def _at(self, calls: tuple, results: tuple, lost: int) -> Node:
        """The node before the first step of `calls`; the same one whatever led here."""
        if not calls:
            return self._intern(("ended", results), (), results, 0)
        key = (calls, results, lost)
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = self._after(calls, results, lost, ())
        return node

    def _intern(self, key: Any, calls: tuple, results: tuple, lost: int) -> Node:
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = Node(calls, results, lost, (), None)
        return node


def explore(
    scenario: Scenario, kind: type, *, strict: bool = True, seek: str = "", states_max: int = STATES_MAX
) -> Found:
    """`kind`: the protocol's class. `strict`: R, K and C are demanded too. `seek`: stop only for violations that begin
    so.
    """
    began = time.perf_counter()
    strict = strict and not scenario.prunes

    def make(me: str) -> Any:
        return kind(me, zero_grace=scenario.zero_grace, shards=scenario.shards)

    labels = tuple(scenario.procs)
    collects = any(call[0] in COLLECTING for calls in scenario.procs.values() for call in calls)
    bringers = sum(call[0] in invariants.BRING_BACK for calls in scenario.procs.values() for call in calls)
    takers = sum(call[0] in invariants.TAKE_AWAY for calls in scenario.procs.values() for call in calls)
    taggers = sum(call[0] == "create_tag" for calls in scenario.procs.values() for call in calls)
    processes = [Process(label, scenario.procs[label], make) for label in labels]
    may_crash = [label in scenario.crash for label in labels]
    may_be_late = [label in scenario.late for label in labels]
    may_lose = [scenario.lossy.count(label) or late for label, late in zip(labels, may_be_late, strict=True)]
    start = store = scenario.start(kind)
    constants = Constants(scenario, start)
    is_timed = ("~clock",) in start.kv and not scenario.prunes
    checked: dict[int, str | None] = {}
    unchecked = object()
    indexes = range(len(labels))
    settled: dict[int, tuple[Store, str | None]] = {}
    seen: set[int] = set()
    stack: list[tuple[int, Store, tuple[Node, ...], tuple[Op, ...], Any]] = []

    def check_end(store: Store, nodes: tuple[Node, ...]) -> str | None:
        if store.fingerprint not in settled:
            after = settle(store, make, scenario.expired, collects=collects and not scenario.prunes)
            if scenario.prunes:
                after = run(after, make("settle."), ("gc",))
            why = invariants.safe(after)
            if why is None and not scenario.prunes:
                why = invariants.marked_wrongly(after, scenario.expired)
            if why is None and not scenario.safety_only:
                leak = unpruned(after) if scenario.prunes else invariants.leaked(after, scenario.leaves)
                why = leak or (invariants.littered(after) if strict else None)
            settled[store.fingerprint] = after, why and f"{why} (after settling)"
        after, why = settled[store.fingerprint]
        if why is None and strict:
            results = {label: node.results for label, node in zip(labels, nodes, strict=True)}
            why = (
                invariants.truthful(results, start, after, scenario.keeps, scenario.somewhere)
                or invariants.ended_once(results)
                or invariants.won_once(results, takers)
                or invariants.replaced_once(results, bringers)
                or invariants.shares_a_name(results, taggers, after)
            )
        return why

    def found(verdict: str, trace: Any, *, whole: bool = True) -> Found:
        steps = []
        while trace is not None:
            trace, *step = trace
            steps.append(tuple(step))
        return Found(scenario.name, verdict, len(seen), whole, time.perf_counter() - began, tuple(reversed(steps)))

    nodes = tuple(process.start for process in processes)
    others = 0
    for node in nodes:
        others ^= node.number
    seen.add(store.fingerprint ^ others)
    stack.append((others, store, nodes, (), None))
    while stack:
        others, store, nodes, limbo, trace = stack.pop()
        why = checked.get(store.fingerprint, unchecked)
        if why is unchecked:
            why = checked[store.fingerprint] = invariants.safe(store) or (invariants.sound(store) if strict else None)
        if why is None and is_timed:
            results = {label: node.results for label, node in zip(labels, nodes, strict=True)}
            why = invariants.refused_early(results, store)
        if why and why.startswith(seek):
            return found(why, trace)
        if len(seen) > states_max:
            return found(HOLDS, None, whole=False)
        running = [index for index in indexes if nodes[index].op is not None]
        if not running:
            why = check_end(store, nodes)
            if why and why.startswith(seek):
                return found(why, trace)
        free = False
        for index in running:
            if constants.answer(nodes[index].op, store):
                running = [index]
                free = True
                break
        moved = False
        for index in running:
            node, label, process = nodes[index], labels[index], processes[index]
            op = node.op
            if op[0] == "barrier" and (limbo or waits(nodes, index)):
                continue
            moved = True
            after, reply = store.apply(op)
            reached = [(after, process.step(node, reply, free=free), limbo, reply)]
            if may_crash[index]:
                reached.append((store, process.kill(node), limbo, "CRASH, not performed"))
            if node.lost < may_lose[index] and op[0] in MUTATING:
                reached.append((after, process.step(node, LOST), limbo, f"{LOST} ({reply})"))
                if after is not store and op[0] in (
                    "cas",
                    "swap",
                ):  # the others are simply made again, as if nothing had been
                    reached.append((store, process.step(node, LOST), limbo, f"{LOST}, never landed"))
                if may_be_late[index] and op[0] not in (
                    "put",
                    "join",
                ):  # a PUT that lands when its address is gone is the offline job's
                    reached.append((store, process.step(node, LOST), (*limbo, op), f"{LOST}, will land later"))
            for then, become, left, said in reached:
                rest = others ^ node.number ^ become.number
                if left is not limbo:
                    rest ^= number(left) ^ number(limbo)
                key = then.fingerprint ^ rest
                if key not in seen:
                    seen.add(key)
                    stack.append(
                        (rest, then, (*nodes[:index], become, *nodes[index + 1 :]), left, (trace, label, op, said))
                    )
        for index, op in enumerate(limbo):
            moved = True
            then, reply = store.apply(op)
            left = limbo[:index] + limbo[index + 1 :]
            rest = others ^ number(left) ^ number(limbo)
            if then.fingerprint ^ rest not in seen:
                seen.add(then.fingerprint ^ rest)
                stack.append((rest, then, nodes, left, (trace, "late", op, reply)))
        if running and not moved:
            return found("STUCK", trace)
    return found(HOLDS, None)


class Constants:
    """Which reads answer the same whenever they are made in this scenario; they need not be interleaved with
    anything.
    """

    def __init__(self, scenario: Scenario, start: Store) -> None:
        calls = [call for calls in scenario.procs.values() for call in calls]
        names = {call[0] for call in calls}
        written = {call[1] for call in calls if call[0] in WRITE_BRANCHES}
        written |= {call[2] for call in calls if call[0] == "finish_transaction"}
        everything = "delete_repository" in names
        retired = [(key[1], fate) for key, record in start.kv.items() if key[0] == "b" for _, fate in record.retired]
        commits = bool(
            names & COMMITTING or any(fate != DELETED for _, fate in retired) or any(key[0] == "mc" for key in start.kv)
        )
        drained = {name for name, _ in retired}
        self._keys: set[Any] = set()
        if not everything:
            self._keys |= {("b", key[1]) for key in start.kv if key[0] == "b"} - {
                ("b", name) for name in written | drained
            }
            self._keys.add(("repo",))
            if not names & {"create_branch", "delete_branch", "begin_transaction", "finish_transaction", "end_lease"}:
                self._keys.add(("b",))
        if not commits:
            self._keys.add(("mc",))
        self._kinds = frozenset() if names & COLLECTING else frozenset(("x", "gc", "g", "pin", "base"))
        if not names & UPLOADING_IN_PARTS:
            self._keys.add(("u",))
        if not names & {"create_tag", "delete_tag"}:
            self._kinds |= {"tag"}
        if not names & {"tick", "bring_back_when_idle"}:
            self._kinds |= {"~clock"}
        if "prune" in names and "expire" not in names:
            self._kinds |= {"x"}

        self._none = bool(names & LOSING)

    def answer(self, op: Op, store: Store) -> bool:
        if op[0] not in ("get", "open", "scan") or self._none:
            return False
        key = op[1]
        return key in self._keys or key[0] in self._kinds or (key[0] in ("c", "l") and key in store.kv)


COMMITTING = frozenset(("commit", "merge", "cherry_pick", "revert", "finish_transaction"))
COLLECTING = frozenset((
    "gc", "gc_again", "gc_given_up", "mark", "mark_again", "prune", "sweep", "sweep_all", "unmark", "unmark_run"
))  # fmt: skip
LOSING = frozenset(("lose", "put_back", "switch"))
UPLOADING_IN_PARTS = frozenset((
    "begin_upload", "write_part", "complete_upload", "complete_if_absent", "abort_upload", "expire_upload"
))  # fmt: skip
UNBOUNDED = (COLLECTING - {"unmark", "unmark_run"}) | LOSING | {"end_backups", "tick"}
WRITE_BRANCHES = COMMITTING | {"reset", "create_branch", "delete_branch", "begin_transaction", "renew", "end_lease"}


def waits(nodes: tuple[Node, ...], index: int) -> bool:
    """Whether an operation that has begun is still running. Who waits at a barrier is not waited for, nor is a gc: it
    has no deadline.
    """
    return any(
        node.op is not None and node.begun and node.op[0] != "barrier" and node.calls[0][1][0] not in UNBOUNDED
        for other, node in enumerate(nodes)
        if other != index
    )


def settle(store: Store, make: Callable[[str], Any], expired: tuple[str, ...], *, collects: bool) -> Store:
    proto = make("settle.")
    for _ in range(8):
        before = besides_runs(store)
        if ("repo",) in store.kv:  # nobody visits a repository that is forgotten
            store = run(store, proto, ("reap",), ("scrub",), ("forget_repository",))
        if ("on",) in store.kv:
            store = run(store, proto, ("end_backups",))
        if collects:
            store = run(store, proto, ("gc", *expired))
        if besides_runs(store) == before:
            break
    return store


def besides_runs(store: Store) -> int:
    """A fingerprint without the records of gc runs, of which there is one more after each."""
    fingerprint = store.fingerprint
    for item in store.kv.items():
        if item[0][0] == "g":
            fingerprint ^= number(item)
    return fingerprint
