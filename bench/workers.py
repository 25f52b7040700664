"""What must run in a process of its own, because its memory, its caches or its start would colour what is measured.

    python -m bench.workers NAME JSON     one JSON object on the last line of standard output

Each worker imports what it needs, notes the time, does its work, and says how long that took, and how much memory it
and the processes that it started ever had. The time does not include imports; the memory does.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# The peers are in requirements-bench.lock only: where types are checked, they are not installed.

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from bench.measure import forget_peak, peak_mib, resident_mib

Measured = dict[str, Any]


def reap(*, data: str, grace_seconds: float = 0.0) -> Measured:
    """`refstore reaper --once` on the embedded default: until there is nothing due."""
    import refstore

    with refstore.create(data) as lake:
        return _reap(lake, grace_seconds=grace_seconds)


def reap_at(*, kv: str, objects: str, grace_seconds: float = 0.0) -> Measured:
    """The same on stores by URL."""
    import refstore

    with refstore.create(kv=kv, objects=objects) as lake:
        return _reap(lake, grace_seconds=grace_seconds)


def reap_by_default(*, kv: str, objects: str, after_grace: bool = False) -> Measured:
    """The same with the lake's own grace window; `after_grace`: with a clock that is past it."""
    from refstore.core.clock import SystemClock
    from refstore.lake import open_lake_at

    class Later(SystemClock):
        ahead_ms = 0

        def now_ms(self) -> int:
            return super().now_ms() + self.ahead_ms

    clock = Later()
    with open_lake_at(kv, objects, clock=clock) as lake:
        clock.ahead_ms = int((lake.safety.grace_seconds + 60) * 1000) if after_grace else 0
        return _reap(lake, grace_seconds=None)


def write_rows(*, kv: str, objects: str, library: str = "sqlite3") -> Measured:
    """The floor of the default way on SQLite."""
    from bench import reaping_floors

    return _measured(reaping_floors.write_rows(kv, objects, library))


def write_redis_keys(*, kv: str, objects: str) -> Measured:
    """The floor of the default way on Redis."""
    from bench import reaping_floors

    return _measured(reaping_floors.write_redis_keys(kv, objects))


def _reap(lake: Any, *, grace_seconds: float | None) -> Measured:
    from refstore.configuration.settings import ReaperSettings
    from refstore_reaper import survey
    from refstore_reaper.daemon import Reaper

    logging.basicConfig(level=logging.INFO)
    # The breaker is for deletions that nobody expected; these are: all that is due may go, at any pace.
    settings = ReaperSettings(breaker_share=1.0, breaker_per_hour=0)
    surveying = 0.0
    make_survey = survey.survey

    def timed_survey(*args: Any) -> Any:
        nonlocal surveying
        began = time.perf_counter()
        try:
            return make_survey(*args)
        finally:
            surveying += time.perf_counter() - began

    survey.survey = timed_survey
    with Reaper(lake, settings, grace_seconds=grace_seconds) as reaper:
        began = time.perf_counter()
        done = reaper.run_once(lambda: False)
        seconds = time.perf_counter() - began
        return _measured(
            seconds,
            surveying=surveying,
            deleted=done.deleted,
            released=done.released,
            emptied=done.emptied,
            errors=done.error_count,
        )


def unlink(*, folder: str) -> Measured:
    """The floor: list a folder, unlink what is in it."""
    began = time.perf_counter()
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
    directory = os.open(folder, os.O_RDONLY)
    for name in names:
        os.unlink(name, dir_fd=directory)
    os.close(directory)
    return _measured(time.perf_counter() - began, deleted=len(names))


def vacuum(*, table: str, full: bool) -> Measured:
    """deltalake: delete the files of tombstones; with `full`, whatever a listing of the table has and its log has
    not.
    """
    from deltalake import DeltaTable

    opened = DeltaTable(table)
    began = time.perf_counter()
    gone = opened.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=full)
    return _measured(time.perf_counter() - began, deleted=len(gone))


def collect(*, repository: str) -> Measured:
    """icechunk: delete chunks that no snapshot names."""
    from datetime import UTC, datetime, timedelta

    import icechunk

    opened = icechunk.Repository.open(icechunk.local_filesystem_storage(repository))
    began = time.perf_counter()
    done = opened.garbage_collect(datetime.now(UTC) + timedelta(minutes=1))
    return _measured(time.perf_counter() - began, deleted=done.chunks_deleted)


def cleanup(*, dataset: str) -> Measured:
    """pylance: delete old versions, and data files that no version names."""
    from datetime import timedelta
    from pathlib import Path

    import lance

    opened = lance.dataset(dataset)
    data = Path(dataset) / "data"
    before = sum(1 for _ in data.iterdir())
    began = time.perf_counter()
    opened.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    seconds = time.perf_counter() - began
    return _measured(seconds, deleted=before - sum(1 for _ in data.iterdir()))


def api_load(
    *,
    port: int,
    authorization: str,
    calls: str,
    clients: int,
    per_second: float | None = None,
    until: str | None = None,
) -> Measured:
    """Ask a server what a file of calls says; how long that took, and how long each answer."""
    from pathlib import Path

    from bench.api_client import Pace, drive, read_calls

    pace = Pace(per_second, Path(until)) if per_second is not None and until is not None else None
    load, seconds = drive(port, read_calls(Path(calls)), authorization, clients=clients, pace=pace)
    ranked = sorted(load.latencies)
    return _measured(
        seconds,
        answered=len(ranked),
        p50_ms=ranked[len(ranked) // 2] * 1000,
        p99_ms=ranked[len(ranked) * 99 // 100] * 1000,
        max_ms=ranked[-1] * 1000,
        received_bytes=load.received_bytes,
        cpu_seconds=time.process_time(),
    )


def s3_load(*, port: int, requests: str, clients: int) -> Measured:
    """Send a file of requests that were signed beforehand; how long that took."""
    from pathlib import Path

    from bench.api_client import drive_requests
    from bench.s3_requests import read_requests

    load, seconds = drive_requests(port, list(read_requests(Path(requests))), clients=clients)
    return _measured(seconds, answered=len(load.latencies), received_bytes=load.received_bytes)


def s3_parts(*, port: int, key_id: str, secret: str, bucket: str, key: str, parts: int, part_bytes: int) -> Measured:
    """Upload an object in parts, two at a time, and complete it."""
    from concurrent.futures import ThreadPoolExecutor

    import boto3
    from botocore.config import Config

    config = Config(
        s3={"addressing_style": "path", "payload_signing_enabled": False}, request_checksum_calculation="when_required",
        read_timeout=600, retries={"total_max_attempts": 1},
    )  # fmt: skip
    client = boto3.client(
        "s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1", aws_access_key_id=key_id,
        aws_secret_access_key=secret, config=config,
    )  # fmt: skip
    body = bytes(range(256)) * (part_bytes // 256)
    began = time.perf_counter()
    upload = client.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]

    def write(number: int) -> str:
        return client.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=number, Body=body)["ETag"]

    with ThreadPoolExecutor(2) as pool:
        etags = list(pool.map(write, range(1, parts + 1)))
    written = time.perf_counter() - began
    listed: list[Any] = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
    client.complete_multipart_upload(Bucket=bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": listed})
    return _measured(time.perf_counter() - began, written_seconds=written)


def s3_list(*, port: int, key_id: str, secret: str, bucket: str, prefix: str) -> Measured:
    """List a prefix with obstore, page by page."""
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        bucket, endpoint=f"http://127.0.0.1:{port}", region="us-east-1", access_key_id=key_id,
        secret_access_key=secret, client_options={"allow_http": True},
    )  # fmt: skip
    began = time.perf_counter()
    count = sum(batch.num_rows for batch in obstore.list(store, prefix, chunk_size=1000, return_arrow=True))
    return _measured(time.perf_counter() - began, listed=count)


def api_pages(*, data: str, repository: str, pages: int, amount: int) -> Measured:
    """What a listing's pages cost apart: reading them from the SDK, making the items, writing these as JSON."""
    import refstore
    from refstore.public_types import stored_entry
    from refstore_api.models import Pagination
    from refstore_api.object_stats import object_fields
    from refstore_api.page_responses import make_page_response

    parts = {"reading": 0.0, "items": 0.0, "encoding": 0.0}
    with refstore.create(data) as lake:
        repo = lake.repository(repository)
        after = ""
        for _ in range(pages):
            began = time.perf_counter()
            page = repo.list_page("main", after=after, amount=amount)
            read = time.perf_counter()
            results = [object_fields(repo.context, path, entry and stored_entry(entry)) for path, entry in page.results]
            pagination = Pagination(
                has_more=page.has_more, next_offset=page.next_after, results=len(results), max_per_page=amount
            )
            made = time.perf_counter()
            make_page_response(pagination, results)
            ended = time.perf_counter()
            parts["reading"] += read - began
            parts["items"] += made - read
            parts["encoding"] += ended - made
            after = page.next_after if page.has_more else ""
    return _measured(sum(parts.values()), **parts)


def retain(*, commits: int) -> Measured:
    """Which commits are active, from rows in memory; the rows are in the memory that is measured, and not in the
    time.
    """
    from bench.retention import active_of, history
    from refstore.retention.commit_arrays import CommitHistory

    rows, refs = history(commits)
    began = time.perf_counter()
    found = active_of(CommitHistory.from_rows(rows), refs, commits)
    return _measured(time.perf_counter() - began, **found)


def retain_from(*, data: str, commits: int) -> Measured:
    """The same, with the commits and the branches read from a lake."""
    import refstore
    from bench.retention import active_of
    from refstore.operations import rules_document

    with refstore.create(data) as lake:
        ctx = lake.repository("bench").context
        began = time.perf_counter()
        found = active_of(*rules_document.read_history(ctx), commits)
        return _measured(time.perf_counter() - began, **found)


def list_ref(*, kv: str, objects: str, repository: str, ref: str) -> Measured:
    """List all that a ref names, as a user does."""
    import refstore

    with refstore.create(kv=kv, objects=objects) as lake:
        next(lake.repository(repository).list(ref))  # loads every module; what it reads is cached in this lake only
    with refstore.create(kv=kv, objects=objects) as lake:
        began = time.perf_counter()
        listed = sum(1 for _ in lake.repository(repository).list(ref))
        return _measured(time.perf_counter() - began, listed=listed)


def purge_memory(*, url: str, ids: str, format_: str, identifier: str, small: str, large: str) -> Measured:
    """Look for the ids in an object with an index being written, then write it again, as a task does; the peak of each
    above what the process had after the same with a small object.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # as Spark does for its workers; pyarrow has as many threads

    import gc

    import msgspec

    from refstore.objects import open_objects
    from refstore_gc.engines import worker_processes
    from refstore_gc.engines.base import SharedFolder
    from refstore_purge import purge_tasks
    from refstore_purge.formats.base import FormatTask

    worker_processes.become_worker()
    task_settings = purge_tasks.TaskSettings(
        url=url, io_timeout_seconds=60.0, ids=SharedFolder(ids), hash_key=b"bench" * 3 + b"!"
    )
    store = open_objects(url)

    def do_task(key: str, *, to: str) -> purge_tasks.ObjectResult:
        size = store.head(key).size_bytes
        name: Any = format_
        task = FormatTask(tuple(identifier.split(".")))
        object_task = purge_tasks.ObjectTask(
            address=key, size_bytes=size, format=name, ids="", format_task=task, target_address=to
        )
        done = purge_tasks.run_task(
            task_settings, object_task if to else msgspec.structs.replace(object_task, index_key=f"index/{key}")
        )
        if done.failure or not done.matched_rows:
            raise RuntimeError(f"{key}: {done}")
        return done

    do_task(small, to="")
    do_task(small, to=f"data/new-{small}")
    gc.collect()
    idle = resident_mib()
    measured: dict[str, Any] = {"idle": idle}
    began = time.perf_counter()
    for name, to in (("find", ""), ("rewrite", f"data/new-{large}")):
        forget_peak()
        measured["rows"] = do_task(large, to=to).rows
        measured[name] = peak_mib() - idle
    return _measured(time.perf_counter() - began, **measured)


def copy_manifest(*, namespace: str, to: str) -> Measured:
    """Read the objects of a repository's manifest, and write two rows for each of their lines into a new SQLite
    file.
    """
    import sqlite3
    from hashlib import sha256
    from pathlib import Path

    from refstore.core.batches import split_batches

    def lines() -> Iterator[bytes]:
        for path in (Path(namespace) / "_refstore" / "manifest").glob("*/*"):
            yield from path.read_bytes().splitlines()

    copied = 0
    began = time.perf_counter()
    connection = sqlite3.connect(to, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(
        "CREATE TABLE kv (partition TEXT, name TEXT, value BLOB, PRIMARY KEY (partition, name)) WITHOUT ROWID"
    )
    for page in split_batches(lines(), 1000):
        named = [(sha256(line).hexdigest(), line) for line in page]
        rows = [("commits", name, line) for name, line in named] + [("landed", name, b"") for name, _ in named]
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO kv VALUES (?, ?, ?)", rows)
        connection.execute("COMMIT")
        copied += len(page)
    connection.close()
    return _measured(time.perf_counter() - began, copied=copied)


def _measured(seconds: float, **others: Any) -> Measured:
    return {"seconds": seconds, "peak_mib": peak_mib(), **others}


WORKERS: Final[dict[str, Callable[..., Measured]]] = {
    "s3_load": s3_load,
    "s3_parts": s3_parts,
    "s3_list": s3_list,
    "retain": retain,
    "retain_from": retain_from,
    "reap": reap,
    "reap_at": reap_at,
    "reap_by_default": reap_by_default,
    "write_rows": write_rows,
    "write_redis_keys": write_redis_keys,
    "unlink": unlink,
    "vacuum": vacuum,
    "collect": collect,
    "cleanup": cleanup,
    "list_ref": list_ref,
    "copy_manifest": copy_manifest,
    "purge_memory": purge_memory,
    "api_load": api_load,
    "api_pages": api_pages,
}


if __name__ == "__main__":
    print(json.dumps(WORKERS[sys.argv[1]](**json.loads(sys.argv[2]))))
