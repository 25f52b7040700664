"""A Delta table through the gateway: its whole life on a branch, writers that race, and what a run that died leaves."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from refstore.configuration.settings import ReaperSettings
from refstore.lake import open_lake_at
from refstore.repository import Repository
from refstore_reaper.daemon import Reaper
from tests.kit.clock import FakeClock
from tests.s3.s3_service import S3Service, serving_s3
from tests.s3.test_clients import storage_options

ROWS = 100
DAY_SECONDS = 86_400
DAYS = 8
"""Behind the deadline of an upload in parts, and the grace of what is released."""


def rows(first: int, amount: int = ROWS) -> pyarrow.Table:
    numbers = list(range(first, first + amount))
    return pyarrow.table({"id": numbers, "text": [f"row {number}" for number in numbers]})


def ids(table: DeltaTable) -> list[int]:
    return sorted(pyarrow.table(table.to_pyarrow_table())["id"].to_pylist())


def delta_options(s3: S3Service) -> dict[str, str]:
    return {**storage_options(s3), "aws_conditional_put": "etag"}


def test_a_table_lives_on_a_branch(s3: S3Service, repo: Repository) -> None:
    options = delta_options(s3)
    where = f"s3://{repo.name}/main/tables/orders"
    write_deltalake(where, rows(0), storage_options=options)
    write_deltalake(where, rows(100), mode="append", storage_options=options)
    table = DeltaTable(where, storage_options=options)
    assert ids(table) == list(range(200))
    merged = (
        table.merge(rows(150), predicate="t.id = s.id", source_alias="s", target_alias="t")
        .when_matched_update({"text": "'merged'"})
        .when_not_matched_insert_all()
        .execute()
    )
    assert (merged["num_target_rows_updated"], merged["num_target_rows_inserted"]) == (50, 50)
    table.delete("id < 10")
    table.optimize.compact()
    assert ids(table) == list(range(10, 250))
    assert ids(DeltaTable(where, version=1, storage_options=options)) == list(range(200))
    removed = table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert removed
    assert ids(DeltaTable(where, storage_options=options)) == list(range(10, 250))
    there = {item.path for item in repo.list("main", prefix="tables/orders/")}
    assert not there & {f"tables/orders/{name}" for name in removed}

    repo.commit("main", message="the table")
    repo.create_branch("side", source="main")
    side = f"s3://{repo.name}/side/tables/orders"
    write_deltalake(side, rows(1000), mode="append", storage_options=options)
    assert len(ids(DeltaTable(side, storage_options=options))) == 340
    assert len(ids(DeltaTable(where, storage_options=options))) == 240


def test_of_two_racing_writers_one_wins_each_version(http_s3: S3Service) -> None:
    """Each version is created once: a writer that comes second retries on top, or fails. No row is lost."""
    repo = http_s3.lake.create_repository("racing-tables")
    options = delta_options(http_s3)
    where = f"s3://{repo.name}/main/t"
    write_deltalake(where, rows(0, 1), storage_options=options)
    start = threading.Barrier(2)
    written: list[int] = []
    failed: list[int] = []

    def append(first: int) -> None:
        start.wait()
        for number in range(first, first + 8):
            try:
                write_deltalake(
                    where, rows(number, 1), mode="append", storage_options=options,
                    commit_properties=CommitProperties(max_commit_retries=2),
                )  # fmt: skip
                written.append(number)
            except (CommitFailedError, DeltaError):
                failed.append(number)

    threads = [threading.Thread(target=append, args=(first,)) for first in (100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert written
    table = DeltaTable(where, storage_options=options)
    assert ids(table) == sorted([0, *written])
    assert table.version() == len(written)
    assert len(written) + len(failed) == 16


# ---- a run that dies


@pytest.fixture
def dying_s3(tmp_path: Path) -> Iterator[S3Service]:
    """A service whose objects may be deleted at once."""
    with serving_s3(tmp_path) as service:
        yield service


DYING_RUN = """
    import os, signal, sys
    import boto3, pyarrow
    from deltalake import write_deltalake
    where, options = sys.argv[1], eval(sys.argv[2])
    rows = lambda first: pyarrow.table({"id": list(range(first, first + 100)), "text": ["x" * 1000] * 100})
    write_deltalake(where, rows(1000), mode="append", storage_options=options)
    write_deltalake(where, rows(2000), mode="overwrite", storage_options=options)
    bucket, _, key = where.removeprefix("s3://").partition("/")
    s3 = boto3.client("s3")
    s3.put_object(Bucket=bucket, Key=key + "/part-of-a-third-write.parquet", Body=b"half" * 1000)
    upload = s3.create_multipart_upload(Bucket=bucket, Key=key + "/large.parquet")
    s3.upload_part(Bucket=bucket, Key=key + "/large.parquet", UploadId=upload["UploadId"], PartNumber=1,
                   Body=b"x" * (5 << 20))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def data_files(folder: Path) -> set[Path]:
    """What is stored of objects and of parts; not the lake's own records."""
    return {path for path in folder.glob("objects/**/data/**/*") if path.is_file()}


def reap_all(service: S3Service, after_days: int = DAYS) -> None:
    """Reap as the reapers of four days will, the first of which is so far ahead."""
    clock = FakeClock(int((time.time() + after_days * DAY_SECONDS) * 1000))
    running = service.running
    with (
        open_lake_at(running.kv, running.objects, clock=clock) as lake,
        closing(Reaper(lake, ReaperSettings(), asynchronous=False)) as reaper,
    ):
        for _ in range(4):
            reaper.run_once(lambda: False)
            clock.advance(DAY_SECONDS)


def test_what_a_run_that_died_wrote_is_deleted_and_the_table_on_main_is_untouched(dying_s3: S3Service) -> None:
    repo = dying_s3.lake.create_repository("life")
    options = delta_options(dying_s3)
    on_main = f"s3://{repo.name}/main/t"
    write_deltalake(on_main, rows(0), storage_options=options)
    repo.commit("main", message="the table")
    repo.create_branch("run", source="main")
    blobs = dying_s3.running.log.parent / "lake"
    before = data_files(blobs)

    died = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DYING_RUN), f"s3://{repo.name}/run/t", repr(options)],
        env=dying_s3.environment(), capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert died.returncode == -9, died.stderr.decode()
    left = data_files(blobs) - before
    assert len(left) >= 6  # data and logs of two writes, half of a third, a part
    assert len(ids(DeltaTable(f"s3://{repo.name}/run/t", storage_options=options))) == 100

    repo.reset("run")
    reap_all(dying_s3)
    assert data_files(blobs) == before
    table = DeltaTable(on_main, storage_options=options)
    assert (ids(table), table.version()) == (list(range(100)), 0)
    assert ids(DeltaTable(f"s3://{repo.name}/run/t", storage_options=options)) == list(range(100))


def test_an_upload_in_parts_that_is_left_open_is_deleted_after_its_deadline(dying_s3: S3Service) -> None:
    repo = dying_s3.lake.create_repository("left-open")
    client = dying_s3.client()
    blobs = dying_s3.running.log.parent / "lake"
    before = data_files(blobs)
    key = {"Bucket": repo.name, "Key": "main/large"}
    upload = client.create_multipart_upload(**key)["UploadId"]
    client.upload_part(**key, UploadId=upload, PartNumber=1, Body=b"x" * (5 << 20))
    assert data_files(blobs) - before
    assert [each["UploadId"] for each in client.list_multipart_uploads(Bucket=repo.name)["Uploads"]] == [upload]
    with_part = data_files(blobs)
    reap_all(dying_s3, after_days=2)
    assert data_files(blobs) == with_part  # it has seven days, and the last of these reapers is at the fifth
    assert len(client.list_parts(**key, UploadId=upload)["Parts"]) == 1
    reap_all(dying_s3)
    assert data_files(blobs) == before
    assert "Uploads" not in client.list_multipart_uploads(Bucket=repo.name)
    with pytest.raises(client.exceptions.NoSuchUpload):
        client.upload_part(**key, UploadId=upload, PartNumber=2, Body=b"x")
