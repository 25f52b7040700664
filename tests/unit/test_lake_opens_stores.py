"""A lake's stores keep to the durations that its safety rests on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import boto3.session
import pytest
from botocore.config import Config

from refstore.core.safety import IO_SECONDS_MIN, Safety
from refstore.lake import open_lake_at
from refstore_gc.run_layout import make_layout, open_store

URL = "s3://bucket/prefix?endpoint=http://127.0.0.1:9"


@pytest.fixture
def request_seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """For each client of S3 that is made, how long a request may take, with all its attempts."""
    seconds: list[float] = []
    client = boto3.session.Session.client

    def watched(self: boto3.session.Session, service: str, *, config: Config, **options: Any) -> Any:
        attempts = config.retries["total_max_attempts"]
        seconds.append(attempts * (config.connect_timeout + config.read_timeout))
        return client(self, service, config=config, **options)

    monkeypatch.setattr(boto3.session.Session, "client", watched)
    return seconds


@pytest.mark.parametrize(("asked", "given"), [(90.0, 90.0), (60.0, 60.0), (20.0, 20.0), (1.0, IO_SECONDS_MIN)])
def test_a_request_to_s3_ends_within_the_time_that_the_barrier_counts_with(
    tmp_path: Path, request_seconds: list[float], asked: float, given: float
) -> None:
    safety = Safety(io_timeout_seconds=asked)
    objects = f"file://{tmp_path}/objects"
    with open_lake_at(f"sqlite:///{tmp_path}/kv.sqlite3", objects, safety=safety) as lake:
        lake.open_store(URL).close()
    assert given - 4 <= request_seconds[-1] <= given, "no more, and what there is"


def test_so_does_one_of_a_task_of_the_offline_job(tmp_path: Path, request_seconds: list[float]) -> None:
    objects = f"file://{tmp_path}/objects"
    with open_lake_at(f"sqlite:///{tmp_path}/kv.sqlite3", objects, safety=Safety(io_timeout_seconds=90.0)) as lake:
        work = make_layout(lake.create_repository("sales").context, "m", 1)
    open_store(URL, work)
    assert 86 <= request_seconds[-1] <= 90
