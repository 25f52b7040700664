"""What the pages say of figures that nobody has measured yet, and of what the deleters wait for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from refstore_api.request_metrics import lake_text
from tests.api.pages import pages_of
from tests.reaper_world import World


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.lake.close()


def test_what_no_reaper_has_measured_is_not_shown_as_nothing(world: World) -> None:
    world.upload("main", "a")
    before = pages_of(world.lake, "", "/repositories/lake")
    assert all("not measured yet" in page.lower() for page in before)
    assert "Staged entries not measured yet" in before[1]
    assert "Orphans, last run no run yet" in before[1]
    assert b'_staged_entries{repository="lake"}' not in lake_text(world.lake)
    world.run_once()
    after = pages_of(world.lake, "", "/repositories/lake")
    assert not any("not measured yet" in page.lower() for page in after)
    assert "Staged entries 1 " in after[1]
    assert b'_staged_entries{repository="lake"} 1.0' in lake_text(world.lake)
