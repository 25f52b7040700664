"""The engines of the tests. A test of what is decided takes `engines`, which is local and starts in no time. What only
Spark does is tested with `spark_engines`: those tests share one session of a worker, because it takes a gigabyte.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from refstore_gc.engines.base import Engine
from refstore_gc.engines.choice import EngineOptions, Engines

QUICK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
}
LOCAL = EngineOptions(choice="local")
SPARK = EngineOptions(choice="spark", master="local[2]", conf=QUICK)


class OneEngine(Engines):
    """Gives every run the same engine."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(LOCAL)
        self._engine = engine

    def for_objects(self, objects: int) -> Engine:
        return self._engine


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures: list[str] = getattr(item, "fixturenames", [])
        callspec = getattr(item, "callspec", None)
        if "spark_engines" in fixtures or (callspec is not None and callspec.params.get("both_engines") == "spark"):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def engines(s3_credentials: None) -> Iterator[Engines]:
    """The local engine. Its helpers inherit the credentials of the tests' S3 servers."""
    opened = Engines(LOCAL)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def spark_engines(s3_credentials: None) -> Iterator[Engines]:
    """Spark, whose workers inherit the same."""
    opened = Engines(SPARK)
    yield opened
    opened.close()


@pytest.fixture(params=["local", "spark"])
def both_engines(request: pytest.FixtureRequest) -> Engines:
    """Each of the two engines."""
    return request.getfixturevalue("engines" if request.param == "local" else "spark_engines")
