"""A lake's stores keep to the durations that its safety rests on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from refstore.lake import IO_SECONDS_MIN, Lake
from refstore.safety import Safety


@pytest.mark.parametrize(("asked", "given"), [(90.0, 90.0), (60.0, 60.0), (20.0, 20.0), (1.0, IO_SECONDS_MIN)])
def test_a_request_to_s3_ends_within_the_time_that_the_barrier_counts_with(tmp_path: Path, asked: float, given: float) -> None:
    safety = Safety(io_timeout_seconds=asked)
    with Lake.open(f"sqlite:///{tmp_path}/kv.sqlite3", "s3://bucket/prefix?endpoint=http://127.0.0.1:9", safety=safety) as lake:
        store = cast("Any", lake.open_store("s3://bucket/prefix?endpoint=http://127.0.0.1:9"))
        config = store._bucket.client.meta.config
        assert 3 * (config.connect_timeout + config.read_timeout) <= given
        assert 3 * (config.connect_timeout + config.read_timeout) >= given - 4, "and is given what there is"
        store.close()
