"""Fixtures that every test may use; the real servers that tests start stand in `tests/servers/`."""

from __future__ import annotations

import gc
import logging
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from refstore.core import event_log

pytest_plugins = [
    "tests.supervisor",
    "tests.tiers",
    "tests.spark.java",
    "tests.commands",
    "tests.engines",
    "tests.servers.redis_servers",
    "tests.servers.postgres_servers",
    "tests.servers.s3_servers",
]

settings.register_profile("suite", deadline=None)  # no test asserts on time
settings.load_profile("suite")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep Python's garbage collector from what is imported and collected: all of it stays until the process ends, and
    each full pass, also those while the tests run, would look through a million objects for nothing.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long begins first, in whatever order within, or one worker could be left alone with it at the end.

    Last of all hooks: behind pytest-randomly's, whose order is kept, and behind those that give marks. Groups of
    several tests xdist brings to the front by itself; a group of one, or a slow test without a group, stays where it is
    collected.
    """
    items.sort(
        key=lambda item: 0 if item.get_closest_marker("xdist_group") else 1 if item.get_closest_marker("slow") else 2
    )


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """Put logging back as it was: a command that ran in this process logs to a stream that ends with its test."""
    root = logging.getLogger()
    handlers = root.handlers[:]
    loggers = [root, *map(logging.getLogger, event_log.ROOTS)]
    levels = [logger.level for logger in loggers]
    yield
    root.handlers[:] = handlers
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture
def own_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let temporary files of this process lie in the test's folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
