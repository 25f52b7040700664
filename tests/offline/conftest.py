from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from refstore_gc.engines import worker_processes
from tests.offline.world import World

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines
    from tests.offline.purge_runs import Purge


@pytest.fixture(scope="session")
def reading_process(s3_credentials: None) -> Iterator[None]:
    """Keep a process that reads files for all tests: `verify` ends only what it has started."""
    worker_processes.start_ahead(())
    yield
    worker_processes.stop()


@pytest.fixture
def world(tmp_path: Path, reading_process: None) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


@pytest.fixture
def purge(world: World, engines: Engines) -> Purge:
    from tests.offline.purge_runs import purge_on

    return purge_on(world, engines)
