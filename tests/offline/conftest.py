from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from refstore_gc.engines import isolated
from tests.offline.world import World


@pytest.fixture(scope="session")
def reading_process(s3_credentials: None) -> Iterator[None]:
    """Keep a process that reads files for all tests: `verify` ends only what it has started."""
    isolated.start_ahead(())
    yield
    isolated.stop()


@pytest.fixture
def world(tmp_path: Path, reading_process: None) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()
