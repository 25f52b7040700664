"""Each operation, with the KV or the store failing at each of its steps: before the step lands, or after it, with the
reply lost.

The operation may answer with a typed error that may be retried, or succeed. Made again, it succeeds, or says that it
was done before; of a link that was begun (an address is linked once) it says what to do instead. What the branch shows
is then what it should be, and when the reaper has had its time, nothing named is gone and nothing unnamed is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from refstore.core.ids import is_own
from refstore.core.safety import Safety
from refstore.errors import (
    AlreadyExists,
    AlreadyLinked,
    BranchNotFound,
    KVUnavailable,
    ManifestBehind,
    NothingToCommit,
    ObjectsUnavailable,
    Unavailable,
)
from refstore.kv.base import KV, Op, Result
from refstore.kv.memory import MemoryKV
from refstore.kv.retries import RetryingKV
from refstore.lake import Lake
from refstore.objects.base import ObjectInfo, ObjectStore
from refstore.objects.memory import MemoryObjects
from refstore.operations.address_info import token_of
from refstore.operations.upload import IssuedAddress, Upload
from refstore.records import keys
from refstore.repository import Repository
from tests.kit.clock import FakeClock
from tests.kit.forwarding import ForwardingKV, ForwardingObjects, T
from tests.reaping import delete_due, release_all, scrub_all


@dataclass
class Plan:
    """Fails one step, once (or from then on), either before it lands or behind it."""

    at: int = -1
    landed: bool = False
    steps: int = 0
    for_good: bool = False

    def make(self, perform: Callable[[], T], error: type[Unavailable]) -> T:
        """Make a step, unless it is the one that fails."""
        self.steps += 1
        if self._hit() and not self.landed:
            raise error("planted: the request did not arrive")
        result = perform()
        if self._hit():
            raise error("planted: the reply was lost")
        return result

    def _hit(self) -> bool:
        return 0 <= self.at < self.steps if self.for_good else self.steps - 1 == self.at


@dataclass
class FailingKV(ForwardingKV):
    inner: KV
    plan: Plan = field(default_factory=Plan)

    def call(self, perform: Callable[[], T]) -> T:
        return self.plan.make(perform, KVUnavailable)

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        return [self.call(lambda op=op: self.inner.execute((op,)))[0] for op in ops]

    def count(self, partition: str, *, limit: int) -> int:
        return self.inner.count(partition, limit=limit)


@dataclass
class FailingObjects(ForwardingObjects):
    inner: ObjectStore
    plan: Plan = field(default_factory=Plan)

    def call(self, perform: Callable[[], T]) -> T:
        return self.plan.make(perform, ObjectsUnavailable)

    def list(self, prefix: str = "", *, after: str = "", before: str = "") -> Iterator[ObjectInfo]:
        return self.inner.list(prefix, after=after, before=before)


class World:
    """main and feature at a commit with `old`; staged on main: `a`, `b`."""

    def __init__(self, *, retrying: bool = False) -> None:
        self.clock = FakeClock()
        self.kv = FailingKV(MemoryKV())
        self.stores: dict[str, FailingObjects] = {}
        kv: KV = RetryingKV(self.kv, clock=self.clock) if retrying else self.kv
        self.lake = Lake(
            kv, "memory://world", clock=self.clock, safety=Safety(grace_seconds=3600), open_store=self.open_store
        )
        self.repo: Repository = self.lake.create_repository("world")
        self.repo.upload("main", "old", b"old")
        self.repo.commit("main", "old")
        self.repo.create_branch("feature", source="main")
        self.repo.upload("feature", "f", b"f")
        self.repo.commit("feature", "f")
        self.repo.upload("main", "a", b"a")
        self.repo.upload("main", "b", b"b")

    def open_store(self, url: str) -> ObjectStore:
        return self.stores.setdefault(url, FailingObjects(MemoryObjects(name=url)))

    @property
    def objects(self) -> FailingObjects:
        return self.stores[self.repo.record.namespace]

    def let_fail(self, where: str, plan: Plan) -> Plan:
        (self.kv if where == "kv" else self.objects).plan = plan
        return plan

    def tree(self, ref: str) -> dict[str, bytes]:
        return {item.path: self.repo.read(ref, item.path) for item in self.repo.list(ref)}


@dataclass(frozen=True)
class Case:
    name: str
    prepare: Callable[[World], object]
    run: Callable[[World, object], object]
    done: Callable[[World], bool]
    """Whether the branch shows what the operation was for."""
    again: tuple[type[Exception], ...] = ()
    """What it may answer when it is made again after it was done."""
    instead: Callable[[World], object] | None = None
    """What such an answer says is to be done where it was begun only."""


def nothing(_world: World) -> object:
    return None


def issued(world: World) -> IssuedAddress:
    given = world.repo.issue("main", "l")
    world.objects.inner.put(given.address, b"l")
    return given


def link_anew(world: World) -> None:
    world.repo.link("main", "l", issued(world).token)


def released(world: World) -> object:
    entry = world.repo.upload("main", "r", b"r")
    world.repo.delete("main", "r")
    return entry.address


def clean(world: World) -> object:
    world.repo.reset("main")
    return None


CASES = [
    Case("upload", nothing, lambda w, _: w.repo.upload("main", "n", b"n"), lambda w: w.tree("main").get("n") == b"n"),
    Case(
        "overwrite", nothing, lambda w, _: w.repo.upload("main", "a", b"2"), lambda w: w.tree("main").get("a") == b"2"
    ),
    Case(
        "upload many",
        nothing,
        lambda w, _: w.repo.upload_many("main", [Upload(path=path, body=b"m") for path in ("a", "m", "n")]),
        lambda w: [w.tree("main").get(path) for path in ("a", "m", "n")] == [b"m"] * 3,
    ),
    Case(
        "link",
        issued,
        lambda w, given: w.repo.link("main", "l", given.token),
        lambda w: w.tree("main").get("l") == b"l",
        (AlreadyLinked,),
        link_anew,
    ),
    Case(
        "copy",
        nothing,
        lambda w, _: w.repo.copy("main", "a", to_branch="feature", to_path="c"),
        lambda w: w.tree("feature").get("c") == b"a",
    ),
    Case(
        "copy of committed",
        nothing,
        lambda w, _: w.repo.copy("main", "old", to_branch="feature", to_path="c"),
        lambda w: w.tree("feature").get("c") == b"old",
    ),
    Case("delete", nothing, lambda w, _: w.repo.delete("main", "a"), lambda w: "a" not in w.tree("main")),
    Case(
        "commit",
        nothing,
        lambda w, _: w.repo.commit("main", "c"),
        lambda w: set(w.tree("main@")) == {"a", "b", "old"},
        (NothingToCommit,),
    ),
    Case("reset", nothing, lambda w, _: w.repo.reset("main"), lambda w: set(w.tree("main")) == {"old"}),
    Case("reset path", nothing, lambda w, _: w.repo.reset("main", path="a"), lambda w: "a" not in w.tree("main")),
    Case(
        "merge",
        clean,
        lambda w, _: w.repo.merge("feature", into="main"),
        lambda w: set(w.tree("main")) == {"old", "f"},
        (NothingToCommit,),
    ),
    Case(
        "revert",
        clean,
        lambda w, _: w.repo.revert("feature@", on="feature"),
        lambda w: "old" in w.tree("feature"),
        (NothingToCommit,),
    ),
    Case(
        "create branch",
        nothing,
        lambda w, _: w.repo.create_branch("new", source="main"),
        lambda w: set(w.tree("new")) == {"old"},
        (AlreadyExists,),
    ),
    Case(
        "delete branch",
        nothing,
        lambda w, _: w.repo.delete_branch("feature"),
        lambda w: "feature" not in {each.name for each in w.repo.branches()},
        (BranchNotFound,),
    ),
    Case(
        "restore",
        released,
        lambda w, address: w.repo.restore(str(address), to="main"),
        lambda w: w.tree("main").get("r") == b"r",
    ),
]

IDS = [case.name for case in CASES]


def settle(world: World) -> None:
    for _ in range(2):
        world.clock.advance(20_000)
        release_all(world.repo)
        scrub_all(world.repo)
        delete_due(world.repo)


def check(world: World) -> None:
    """Nothing named is gone, nothing unnamed is left."""
    trees = {each.name: world.tree(each.name) for each in world.repo.branches()}
    settle(world)
    assert {each.name: world.tree(each.name) for each in world.repo.branches()} == trees
    refs = [*trees, *(f"{name}@" for name in trees)]
    history = [name for name, _ in world.kv.inner.scan_all(keys.landed_commits(world.repo.context.repo))]
    named = {item.entry.address for ref in (*refs, *history) for item in world.repo.list(ref) if item.entry is not None}
    stored = {info.key for info in world.repo.context.objects.list("data/")}
    assert {address for address in named if is_own(address)} <= stored
    live = {token for _, branch in world.repo.context.branches.scan_open() for token in branch.live_tokens}
    for address in stored - named:
        assert any(token_of(ref) in live for ref in world.repo.address(address).references), (
            f"{address} is left and nobody names it"
        )


def run_with(case: Case, where: str, at: int, *, landed: bool) -> None:
    world = World()
    prepared = case.prepare(world)
    world.let_fail(where, Plan(at=at, landed=landed))
    try:
        case.run(world, prepared)
    except Unavailable as error:
        assert error.retryable or isinstance(error, ManifestBehind)  # noqa: PT017  # it may also succeed
    world.kv.plan, world.objects.plan = Plan(), Plan()
    try:
        case.run(world, prepared)
    except case.again:
        if case.instead is not None and not case.done(world):
            case.instead(world)
    assert case.done(world), f"{case.name}: failing step {at} of {where}, landed={landed}"
    check(world)


def steps_of(case: Case, where: str) -> int:
    world = World()
    prepared = case.prepare(world)
    plan = world.let_fail(where, Plan())
    case.run(world, prepared)
    steps = plan.steps
    assert case.done(world)
    return steps


@pytest.mark.parametrize("case", CASES, ids=IDS)
@pytest.mark.parametrize("landed", [False, True], ids=["not landed", "reply lost"])
@pytest.mark.parametrize("where", ["kv", "objects"])
def test_whatever_fails_the_operation_can_be_made_again_and_nothing_is_lost(
    case: Case, where: str, landed: bool
) -> None:
    for at in range(steps_of(case, where)):
        run_with(case, where, at, landed=landed)


@pytest.mark.parametrize("case", CASES, ids=IDS)
@pytest.mark.parametrize("landed", [False, True], ids=["not landed", "reply lost"])
def test_behind_the_retries_a_single_failure_of_the_kv_is_not_noticed(case: Case, landed: bool) -> None:
    for at in range(steps_of(case, "kv")):
        world = World(retrying=True)
        prepared = case.prepare(world)
        world.kv.plan = Plan(at=at, landed=landed)
        case.run(world, prepared)
        world.kv.plan = Plan()
        assert case.done(world), f"{case.name}: failing step {at}, landed={landed}"
        check(world)


NEEDS_NO_STORE = {("delete branch", "objects")}
"""What it writes there waits in the KV."""


@pytest.mark.parametrize("where", ["kv", "objects"])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_store_that_stays_away_is_a_typed_error(case: Case, where: str) -> None:
    if steps_of(case, where) == 0:
        pytest.skip(f"{case.name} does not touch the {where}")
    world = World()
    prepared = case.prepare(world)
    world.let_fail(where, Plan(at=0, for_good=True))
    if (case.name, where) in NEEDS_NO_STORE:
        case.run(world, prepared)
    else:
        with pytest.raises(Unavailable) as caught:
            case.run(world, prepared)
        assert caught.value.code in {"kv_unavailable", "objects_unavailable", "manifest_behind"}
    world.kv.plan, world.objects.plan = Plan(), Plan()
    check(world)
