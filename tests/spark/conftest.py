"""One Spark session for all tests of a worker: starting one takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what shares the session into one worker, because a session takes a gigabyte, and what starts processes into
    another.
    """
    for item in items:
        if "tests/spark/" in item.nodeid:
            in_processes = item.path.name in ("test_every.py", "test_cluster.py", "test_purge_cluster.py")
            item.add_marker(pytest.mark.xdist_group("spark-processes" if in_processes else "spark"))


@pytest.fixture(scope="session")
def spark(s3_credentials: None) -> Iterator[SparkSession]:
    """Its workers inherit the credentials of the tests' S3 servers."""
    from refstore_gc.helper_processes import helpers
    from refstore_gc.session import SparkOptions, start

    session = start(SparkOptions(master="local[2]", conf=QUICK))
    yield session
    helpers.stop()
    session.stop()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()
