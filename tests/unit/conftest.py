"""Lakes in memory: one with nothing in the way, for what a call does, and the one that the tests of the reaper's passes
begin with.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from refstore.lake import Lake
from refstore.repository import Repository
from tests.interrupted import Interrupted
from tests.kit.clock import FakeClock
from tests.reaper_world import World


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def kv() -> Interrupted:
    return Interrupted()


@pytest.fixture
def lake(kv: Interrupted, clock: FakeClock, request: pytest.FixtureRequest) -> Iterator[Lake]:
    with Lake(kv, f"memory://{re.sub('[^a-z0-9]', '-', request.node.name)}", clock=clock) as lake:
        yield lake
    assert kv.then is None, "nobody came in between"


@pytest.fixture
def repo(lake: Lake) -> Repository:
    return lake.create_repository("sales")


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def at_once() -> World:
    """No grace: blobs go in the pass that processes their tokens."""
    return World(grace_seconds=0)
