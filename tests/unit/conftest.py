"""The lake in memory that the tests of the reaper's passes begin with."""

from __future__ import annotations

import pytest

from tests.reaper_world import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def at_once() -> World:
    """No grace: blobs go while their tokens are processed."""
    return World(grace_seconds=0)
