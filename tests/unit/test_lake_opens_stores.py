"""A lake's stores keep to the durations that its safety rests on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from refstore.core.safety import IO_SECONDS_MIN, Safety
from refstore.lake import Lake
from refstore_gc.run_layout import make_layout, open_store

URL = "s3://bucket/prefix?endpoint=http://127.0.0.1:9"


def seconds_of(store: Any) -> float:
    """Of all attempts together."""
    config = store._bucket.client.meta.config
    return 3 * (config.connect_timeout + config.read_timeout)


@pytest.mark.parametrize(("asked", "given"), [(90.0, 90.0), (60.0, 60.0), (20.0, 20.0), (1.0, IO_SECONDS_MIN)])
def test_a_request_to_s3_ends_within_the_time_that_the_barrier_counts_with(
    tmp_path: Path, asked: float, given: float
) -> None:
    safety = Safety(io_timeout_seconds=asked)
    objects = f"file://{tmp_path}/objects"
    with Lake.open(f"sqlite:///{tmp_path}/kv.sqlite3", objects, safety=safety) as lake:
        store = cast("Any", lake.open_store(URL))
        assert given - 4 <= seconds_of(store) <= given, "no more, and what there is"
        store.close()


def test_so_does_one_of_a_task_of_the_offline_job(tmp_path: Path) -> None:
    objects = f"file://{tmp_path}/objects"
    with Lake.open(f"sqlite:///{tmp_path}/kv.sqlite3", objects, safety=Safety(io_timeout_seconds=90.0)) as lake:
        work = make_layout(lake.create_repository("sales").context, "m", 1)
    store = open_store(URL, work)
    assert 86 <= seconds_of(store) <= 90
