"""Random histories: after each run the store has exactly what a plain model says, and what is named can be read."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random

import pytest

from refstore.core.clock import SystemClock
from refstore.objects import open_objects
from refstore_gc import anti_join
from refstore_prune import compare, list_store, prune_sweep
from tests.prune.clocks import FolderInTime, moving_clock
from tests.prune.history import DAY, History
from tests.servers.s3_servers import S3Server

HISTORIES = int(os.environ.get("REFSTORE_PRUNE_HISTORIES", "0"))
"""How many more random histories each test makes; a failure prints the seed of its own."""
FIRST_SEED = int(os.environ.get("REFSTORE_PRUNE_SEED", "0"))
numbers = count()


def seeds(few: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + few + HISTORIES))


@contextmanager
def small_parts(rng: Random) -> Generator[None, None, None]:
    """Let a few objects make several intervals, chunks, buckets, units and batches."""
    with pytest.MonkeyPatch.context() as patch:
        if rng.random() < 0.8:
            patch.setattr(list_store, "FEW_KEYS", rng.choice([2, 5, 1000]))
            patch.setattr(list_store, "CHUNK_ROWS", rng.choice([1, 3, 5]))
            patch.setattr(anti_join, "BUCKET_ROWS", rng.choice([1, 3, 5]))
            patch.setattr(compare, "UNIT_ROWS", rng.choice([1, 2, 3]))
            patch.setattr(prune_sweep, "BULK_KEYS", rng.choice([1, 2]))
        yield


def go_on(history: History, steps: int) -> None:
    rng = history.rng
    for _ in range(rng.randrange(5, 30)):
        history.upload()
    history.between = rng.choice([0.0, 0.3, 0.8])
    for _ in range(steps):
        for _ in range(rng.randrange(6)):
            history.act()
        if rng.random() < 0.15:
            history.unmark()
        if rng.random() < 0.15:
            history.unname_many()
        if rng.random() < 0.6:
            history.wait()
        history.run(dry_run=rng.random() < 0.1)


@seeds(10)
def test_in_memory(seed: int) -> None:
    run_in_memory(Random(seed))


def run_in_memory(rng: Random) -> None:
    with moving_clock() as clock, small_parts(rng):
        url = f"memory://pruned-{next(numbers)}"
        go_on(History(rng, clock, open_objects(url), url, None), 8)


@seeds(10)
def test_in_a_folder(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    with moving_clock() as clock, small_parts(rng):
        state = f"memory://state-{next(numbers)}"
        go_on(History(rng, clock, FolderInTime(tmp_path, clock), f"file://{tmp_path}", state), 8)


@seeds(1)
def test_on_s3(rclone_s3_server: S3Server, seed: int) -> None:
    """The server has a clock of its own: all objects seem to be a day old."""
    rng = Random(seed)
    with moving_clock(SystemClock().now_ms() + DAY) as clock, small_parts(rng):
        url, state = rclone_s3_server.url(), f"memory://state-{next(numbers)}"
        go_on(History(rng, clock, open_objects(url), url, state), 4)
