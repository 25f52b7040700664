"""A small file that stands for gigabytes, or for work without end, costs little, is named, and stops nobody else."""

from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from refstore.core.ids import Address
from refstore.purge_document.document import Dataset
from refstore_gc.engines import worker_processes
from refstore_gc.engines.base import SharedFolder
from refstore_purge import purge_tasks, verify
from refstore_purge.formats.base import FormatTask
from refstore_purge.purge_ids import write_ids
from refstore_purge.purge_tasks import ObjectTask, TaskSettings
from refstore_purge.verify_ids import RowSearch, WantedIds
from refstore_purge.verify_reader_process import read_content
from tests.offline.purge_runs import onboard_visits, purge_with
from tests.offline.world import World
from tests.purge.hostile_files import FILES
from tests.purge.looking import parquet_of
from tests.purge.tracking import guestids

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

RISE_MIB_MAX = 300
KEY = Address("data/file")


def memory_mib(of: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{of}:")[2].split()[0]) >> 10


def forget_peak() -> int:
    """Begin to measure the peak anew; return the memory that is used."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory_mib("VmRSS")


@pytest.mark.parametrize("name", FILES)
def test_it_takes_little_memory_and_is_left(world: World, name: str) -> None:
    hostile, store = FILES[name], world.repo.context.objects
    body = hostile.body()
    store.put(KEY, body)
    write_ids(world.folder / "ids", "string", [pa.array(["bob"])])
    task_settings = TaskSettings(url=store.url, io_timeout_seconds=10, ids=SharedFolder(str(world.folder / "ids")))
    wanted = WantedIds.prepare(world.folder / "ids", "", is_named=False)
    dataset = Dataset("d", "data/", "guest", "rewrite", hostile.format)
    failures: list[str] = []
    for target in ("", "data/new", None):
        before = worker_processes.call(forget_peak)
        if target is None:
            search = RowSearch(dataset, wanted, is_of_id=False)
            failures.append(read_content(world.repo.context, KEY, len(body), search).reason)
        else:
            object_task = ObjectTask(
                address=KEY, size_bytes=len(body), format=hostile.format, ids="", format_task=FormatTask(("guest",)),
                target_address=target,
            )  # fmt: skip
            failures.append(purge_tasks.run_task(task_settings, object_task).failure)
        assert worker_processes.call(partial(memory_mib, "VmHWM")) - before < RISE_MIB_MAX, failures
    assert all(failures[1:]), failures  # a look may believe the statistics of ORC
    assert hostile.reason in failures[1]


def honest_files() -> dict[str, dict[str, bytes]]:
    """Return files that are packed as tightly as honest ones are, by format."""
    rows = 1 << 20
    columns: dict[str, Any] = {f"c{number}": ["the same text in each row"] * rows for number in range(5)}
    guests = pa.array([f"guest-{number}" for number in range(rows - 1)] + ["bob"])
    table = pa.table({"guest": guests, **columns})
    line = b'{"guest":"ann","n":[' + b"1.5," * 50_000 + b"1]}\n"
    lines = b'{"guest":"ann","day":"2026-11-28"}\n' * 600_000
    return {
        "parquet": {"constant columns": parquet_of(table, compression="zstd")},
        "json": {
            "equal lines": gzip.compress(lines + b'{"guest":"bob"}\n'),
            "long lines": gzip.compress(line * 30 + b'{"guest":"bob"}\n'),
        },
    }


@pytest.mark.parametrize("format_", ["parquet", "json"])
def test_a_run_names_them_and_purges_honest_files_beside_them(world: World, engines: Engines, format_: str) -> None:
    honest = {f"visits/{name.replace(' ', '-')}": body for name, body in honest_files()[format_].items()}
    names = {"parquet": "a run of a billion rows", "json": "a line of 31 million numbers"}
    world.commit_files({**honest, "visits/hostile": FILES[names[format_]].body()})
    onboard_visits(world, format=format_)
    ids = guestids(world.folder, "bob")
    made = purge_with(world, engines, ids, share=1)
    assert [each.path for each in made.skipped_objects] == ["visits/hostile"]
    assert (sum(row.rows_changed for row in made.rows), made.is_whole) == (len(honest), False)
    assert {each.path for each in verify(world.repo, ids).findings} == {"visits/hostile"}
