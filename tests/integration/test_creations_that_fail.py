"""A creation that fails gives its namespace back, as far as the stores answer, and takes nothing from anybody else.

What is not certain is kept: a namespace that nobody can have is a nuisance, one that two repositories have is a loss.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from refstore.core.ids import repository_name
from refstore.errors import (
    AlreadyExists,
    Conflict,
    InvalidName,
    KVUnavailable,
    ObjectNotFound,
    ObjectsRefused,
    Unavailable,
)
from refstore.kv.base import ABSENT, Key, Op, Result
from refstore.kv.memory import MemoryKV
from refstore.kv.retries import RetryingKV
from refstore.lake import Lake
from refstore.namespaces import NAMESPACE_OBJECT, folder_url
from refstore.objects.base import Body, ObjectStore, StoredObject
from refstore.objects.memory import MemoryObjects
from refstore.records import keys
from refstore.records.keys import NAMESPACES
from tests.integration.test_every_step_may_fail import FailingKV, FailingObjects, Plan
from tests.kit.clock import FakeClock

URL = "memory://lake/sales"
SALES = repository_name("sales")


class World:
    """An empty lake whose KV and stores fail when they are told to."""

    def __init__(self, *, retrying: bool = False) -> None:
        self.memory = MemoryKV()
        self.kv = FailingKV(self.memory)
        self.stores: dict[str, FailingObjects] = {}
        kv = RetryingKV(self.kv, clock=FakeClock()) if retrying else self.kv
        self.lake = Lake(kv, "memory://lake", clock=FakeClock(), open_store=self.open_store)

    def open_store(self, url: str) -> FailingObjects:
        return self.stores.setdefault(folder_url(url), FailingObjects(MemoryObjects(name=url)))

    @property
    def claim(self) -> bytes | None:
        found = self.memory.get(Key(NAMESPACES, folder_url(URL)))
        return None if found is ABSENT else bytes(found)

    @property
    def marker(self) -> bytes | None:
        try:
            return self.open_store(URL).inner.read(NAMESPACE_OBJECT)
        except ObjectNotFound:
            return None

    def heal(self) -> None:
        self.kv.plan = Plan()
        for store in self.stores.values():
            store.plan = Plan()


def count_steps() -> tuple[int, int]:
    """Of a creation: those of the KV, and those of the store."""
    world = World()
    world.lake.create_repository("sales", namespace=URL)
    return world.kv.plan.steps, world.open_store(URL).plan.steps


KV_STEPS, STORE_STEPS = count_steps()


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("at", range(KV_STEPS - 1))
def test_a_creation_that_the_kv_fails_once_gives_its_namespace_back(at: int, landed: bool) -> None:
    world = World()
    world.kv.plan = Plan(at=at, landed=landed)
    with pytest.raises(KVUnavailable):
        world.lake.create_repository("sales", namespace=URL)
    assert (world.claim, world.marker) == (None, None)
    world.heal()
    repo = world.lake.create_repository("sales", namespace=URL)
    assert world.claim == world.marker == repo.context.repo.encode()
    assert {repo.name for repo in world.lake.repositories()} == {"sales"}


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("at", range(STORE_STEPS))
def test_a_creation_that_the_store_fails_once_gives_its_namespace_back(at: int, landed: bool) -> None:
    world = World()
    world.open_store(URL).plan = Plan(at=at, landed=landed)
    with pytest.raises(Unavailable):
        world.lake.create_repository("sales", namespace=URL)
    assert (world.claim, world.marker) == (None, None)
    world.heal()
    assert world.lake.create_repository("sales", namespace=URL).name == "sales"


def test_a_store_that_is_down_for_good_keeps_no_claim() -> None:
    world = World()
    world.open_store(URL).plan = Plan(at=0, for_good=True)
    with pytest.raises(Unavailable):
        world.lake.create_repository("sales", namespace=URL)
    assert world.claim is None
    world.heal()
    assert world.lake.create_repository("sales", namespace=URL).name == "sales"


def test_a_store_that_refuses_keeps_no_claim() -> None:
    def refuse(url: str) -> ObjectStore:
        raise ObjectsRefused(f"{url} refuses; give the service access")

    lake = Lake(MemoryKV(), "memory://lake", open_store=refuse)
    with pytest.raises(ObjectsRefused, match="refuses"):
        lake.create_repository("sales", namespace=URL)
    assert list(lake.kv.scan_all(NAMESPACES)) == []


def test_what_another_lake_has_stays_its_own() -> None:
    world = World()
    world.open_store(URL).inner.put(NAMESPACE_OBJECT, b"theirs")
    with pytest.raises(Conflict, match="another lake"):
        world.lake.create_repository("sales", namespace=URL)
    assert (world.claim, world.marker) == (None, b"theirs")


def test_what_another_repository_has_stays_its_own() -> None:
    world = World()
    first = world.lake.create_repository("first", namespace=URL).context.repo.encode()
    for url in (URL, URL + "/below"):
        with pytest.raises(Conflict):
            world.lake.create_repository("second", namespace=url)
    assert (world.claim, world.marker) == (first, first)
    assert [name for name, _ in world.memory.scan_all(NAMESPACES)] == [folder_url(URL)]
    assert folder_url(URL + "/below") not in world.stores  # nothing is even opened in another's namespace


@pytest.mark.parametrize("landed", [False, True])
def test_the_claim_is_kept_while_the_name_may_still_be_written(landed: bool) -> None:
    """With the KV gone for good from the last write on: nobody can tell, and a repository may rest on the claim."""
    world = World()
    world.kv.plan = Plan(at=KV_STEPS - 1, landed=landed, for_good=True)
    with pytest.raises(Unavailable):
        world.lake.create_repository("sales", namespace=URL)
    world.heal()
    assert world.claim is not None
    assert world.claim == world.marker
    assert [repo.name for repo in world.lake.repositories()] == (["sales"] if landed else [])


@pytest.mark.parametrize("retrying", [False, True])
def test_a_creation_whose_last_reply_was_lost_is_one(retrying: bool) -> None:
    world = World(retrying=retrying)
    world.kv.plan = Plan(at=KV_STEPS - 1, landed=True)
    made = world.lake.create_repository("sales", namespace=URL)
    assert world.lake.repository("sales").context.repo == made.context.repo
    assert world.claim == world.marker == made.context.repo.encode()


class Interrupting(FailingKV):
    """Lets somebody come in once the name was written, and loses the reply."""

    come_in: Callable[[], None] | None = None

    def execute(self, ops: list[Op]) -> list[Result]:
        results = super().execute(ops)
        if self.come_in is not None and any(op.key == keys.repository(SALES) and hasattr(op, "expected") for op in ops):
            come_in, self.come_in = self.come_in, None
            come_in()
            raise KVUnavailable("planted: the reply was lost")
        return results


@pytest.mark.parametrize("again", [False, True])
def test_a_creation_that_landed_and_was_retired_keeps_its_claim(again: bool) -> None:
    """What it held is the offline job's to delete, in its own namespace; the next of its name has another."""
    world = World()
    world.kv = Interrupting(world.memory)
    world.lake.kv = world.kv

    def retire() -> None:
        key = keys.repository(SALES)
        raw = world.memory.get(key)
        repo = next(value for _, value in world.memory.scan_all(NAMESPACES)).decode()
        world.memory.set(keys.closed_repository(repo), raw)
        world.memory.delete(key)
        if again:
            Lake(world.memory, "memory://lake", open_store=world.open_store).create_repository("sales")

    world.kv.come_in = retire
    made = world.lake.create_repository("sales", namespace=URL)
    assert world.claim == world.marker == made.context.repo.encode()


def test_who_loses_the_race_for_the_name_gives_its_namespace_back() -> None:
    world = World()

    class Late(FailingObjects):
        def put(self, key: str, body: Body, *, if_absent: bool = False) -> StoredObject:
            Lake(world.memory, "memory://lake", open_store=World.open_store.__get__(world)).create_repository("sales")
            return super().put(key, body, if_absent=if_absent)

    world.stores[folder_url(URL)] = Late(MemoryObjects(name=URL))
    with pytest.raises(AlreadyExists):
        world.lake.create_repository("sales", namespace=URL)
    assert (world.claim, world.marker) == (None, None)
    assert len(list(world.memory.scan_all(NAMESPACES))) == 1


@pytest.mark.parametrize(
    "url",
    [
        "memory://lake",
        "memory://lake/",
        "memory://lake/%2F",
        "memory://lake/%2f%2f",
        "memory://lake/a%00b",
        "memory://lake/a%0Ab",
        "memory://lake/a%ffb",
        "memory://lake/a%e2%80%a8b",
        "memory://lake/%2e%2e/x",
        "memory://lake/a%2F%2Fb",
    ],
)
def test_a_namespace_that_no_repository_can_have_is_refused(url: str) -> None:
    world = World()
    with pytest.raises(InvalidName):
        world.lake.create_repository("sales", namespace=url)
    assert list(world.memory.scan_all(NAMESPACES)) == []
    assert world.stores == {}


def test_a_namespace_that_holds_the_lake_is_refused() -> None:
    lake = Lake(MemoryKV(), "s3://bucket/lakes/prod?endpoint=http://127.0.0.1:1")
    for url in ("s3://bucket", "s3://bucket/lakes", "s3://bucket/lakes/prod/"):
        with pytest.raises(InvalidName, match="holds it"):
            lake.create_repository("sales", namespace=url)
