"""One lake in memory, a clock that stands still until it is moved, and a reaper to run by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from refstore.core.ids import Address
from refstore.core.safety import Safety
from refstore.kv.memory import MemoryKV
from refstore.lake import Lake
from refstore.repository import Repository
from tests.kit.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def lake(clock: FakeClock, request: pytest.FixtureRequest) -> Iterator[Lake]:
    with Lake(MemoryKV(), f"memory://{request.node.name}", clock=clock, safety=Safety(grace_seconds=3600)) as lake:
        yield lake


@pytest.fixture
def repo(lake: Lake) -> Repository:
    return lake.create_repository("lake")


@pytest.fixture
def stored(repo: Repository) -> Callable[[], set[Address]]:
    """The addresses whose blobs are in the store now."""
    return lambda: {Address(info.key) for info in repo.context.objects.list("data/")}


@pytest.fixture
def reap(repo: Repository) -> Callable[[], None]:
    """Run the reaper until nothing is due now."""
    from tests.reaping import reap_all

    return lambda: reap_all(repo)
