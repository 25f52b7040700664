"""A file at which a library crashes costs the run that file: it is reported by its name, and all others are purged."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from refstore_gc.engines import worker_processes
from refstore_gc.engines.base import SharedFolder
from refstore_gc.engines.local import LocalEngine, SharedWork
from refstore_purge import purge_tasks, verify, verify_reader_process
from refstore_purge.formats import parquet as parquet_format
from refstore_purge.formats.base import FormatTask
from refstore_purge.purge_ids import write_ids
from refstore_purge.purge_report import PurgeReport
from refstore_purge.purge_tasks import ObjectResult, ObjectTask, TaskSettings
from refstore_purge.reader_process import open_store
from refstore_purge.verify_ids import ObjectFindings, RowSearch
from tests.offline.purge_runs import onboard_visits, purge_with
from tests.offline.world import World
from tests.purge.tracking import guestids

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

CRASHES = 39
"""Workers take the last item first."""
ABORTS = b"a library aborts here"
DO = purge_tasks.run_in_process
TABLE = pa.table({"guest": [f"guest-{number}" * 12 for number in range(60)], "n": list(range(60))})
BOB = TABLE["guest"][1].as_py()
SEARCH = verify_reader_process.search_content


def parquet(**options: Any) -> bytes:
    out = io.BytesIO()
    with pq.ParquetWriter(out, TABLE.schema, **options) as writer:
        writer.write_table(TABLE)
    return out.getvalue()


def with_mark() -> bytes:
    """Parquet at which the reader that is planted here aborts its process."""
    out = io.BytesIO()
    pq.write_table(TABLE.replace_schema_metadata({"note": ABORTS.decode()}), out)
    return out.getvalue()


def do_all_or_abort(
    task_settings: TaskSettings, numbered: list[tuple[int, ObjectTask]]
) -> Iterator[tuple[int, ObjectResult]]:
    """Do the work of a task, and abort at some objects, as a library may at what nobody knows yet."""
    purge_tasks.run_in_process = do_or_abort
    for number, object_task in numbered:
        yield number, purge_tasks.run_task(task_settings, object_task)


def do_or_abort(task_settings: TaskSettings, object_task: ObjectTask) -> ObjectResult:
    if ABORTS in b"".join(open_store(task_settings.url, task_settings.io_timeout_seconds).get(object_task.address)):
        os.abort()
    return DO(task_settings, object_task)


def sound(kind: str) -> bytes:
    if kind == "parquet":
        return parquet()
    out = io.BytesIO()
    with orc.ORCWriter(out) as writer:
        writer.write(TABLE)
    return out.getvalue()


def purged(world: World, engines: Engines, kind: str, mode: str, bad: dict[str, bytes]) -> PurgeReport:
    """Purge eight sound files, and these."""
    world.commit_files({**{f"visits/{number}": sound(kind) for number in range(8)}, **bad})
    onboard_visits(world, format=kind, mode=mode)
    made = purge_with(world, engines, guestids(world.folder, BOB), share=1)
    assert (made.state, made.failure) == ("done", "")
    return made


@pytest.mark.parametrize("mode", ["keep-history", "rewrite"])
def test_the_others_are_purged_and_the_report_names_the_file(
    world: World, both_engines: Engines, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purge_tasks, "run_group", do_all_or_abort)
    monkeypatch.setattr(purge_tasks, "run_in_process", DO)  # as it is again afterwards
    made = purged(world, both_engines, "parquet", mode, {"visits/3-bad": with_mark()})
    assert [(each.path, each.reason.partition(":")[0]) for each in made.skipped_objects] == [
        ("visits/3-bad", "the process that read or wrote it was ended by SIGABRT, twice"),
    ]
    assert (sum(row.rows_changed for row in made.rows), made.is_whole) == (8, False)
    assert world.repo.read("main", "visits/3-bad") == with_mark()


def test_a_file_that_takes_too_much_memory_costs_only_itself(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As some damaged file of ORC does: it says that a stripe has more rows than any machine has bytes."""

    def finds(*_: object) -> None:
        raise MemoryError

    store = world.repo.context.objects
    store.put("data/file", parquet())
    write_ids(world.folder / "ids", "string", [pa.array([BOB])])
    task_settings = TaskSettings(url=store.url, io_timeout_seconds=10, ids=SharedFolder(str(world.folder / "ids")))
    object_task = ObjectTask(
        address="data/file", size_bytes=1, format="parquet", ids="", format_task=FormatTask(("guest",))
    )
    with monkeypatch.context() as patched:
        patched.setattr(parquet_format, "find", finds)
        patched.setattr(worker_processes, "call", lambda work: work())
        done = purge_tasks.run_task(task_settings, object_task)
    assert done.failure.startswith("reading or writing it takes more memory than")


def search_or_abort(search: RowSearch, source: BinaryIO, *, describes_others: bool) -> ObjectFindings:
    """Read an object, and abort at some, as a library may at what nobody knows yet."""
    if ABORTS in source.read():
        os.abort()
    source.seek(0)
    return SEARCH(search, source, describes_others=describes_others)


def test_verify_looks_at_all_others_and_names_the_file(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    onboard_visits(world, format="csv")
    sound = {f"visits/{number}": f"guest\n{BOB}\n{number}\n".encode() for number in range(7)}
    bad = {f"visits/{name}": b"guest\n" + ABORTS + name.encode() for name in ("3-bad", "9-bad")}
    world.commit_files({**sound, **bad})
    monkeypatch.setattr(verify_reader_process, "search_content", search_or_abort)
    others = set(worker_processes.idle())
    report = verify(world.repo, guestids(world.folder, BOB))
    found = {each.path: each for each in report.findings}
    assert {path: (each.rows, each.reason.partition(":")[0]) for path, each in found.items()} == {
        **dict.fromkeys(sound, (1, "")),
        **dict.fromkeys(bad, (0, "the process that read or wrote it was ended by SIGABRT, twice")),
    }
    assert (report.objects, report.affected_objects, report.unexamined_objects) == (7, 7, 2)
    assert set(worker_processes.idle()) <= others


def test_work_is_tried_again_in_a_new_process() -> None:
    first = worker_processes.call(os.getpid)
    try:
        assert worker_processes.call(os.getpid) == first != os.getpid()
        with pytest.raises(worker_processes.CrashedError) as crashed:
            worker_processes.call(os.abort)
        assert crashed.value.exit_code == -6
        assert worker_processes.call(os.getpid) not in (first, os.getpid())
        with pytest.raises(ZeroDivisionError):
            worker_processes.call(partial(divmod, 1, 0))
    finally:
        worker_processes.stop()


def pid_or_crash(number: int) -> list[tuple[int, int]]:
    """Say in which process the work is done; one piece of it crashes, wherever it is done."""
    try:
        return [(number, worker_processes.call(os.abort if number == CRASHES else os.getpid))]
    except worker_processes.CrashedError as error:
        return [(number, error.exit_code or 0)]


def test_a_crash_of_a_worker_of_the_local_engine_costs_only_the_work_that_crashes() -> None:
    """A worker does the work itself; its own end is no matter."""
    worker_processes.stop()
    engine = LocalEngine(shared=SharedWork(1, start_after_seconds=0))
    try:
        worker_processes.start_ahead(())
        (worker,) = worker_processes.idle()
        worker.wait_until_ready()
        done = dict(engine.map(pid_or_crash, range(40)))
        assert sorted(done) == list(range(40))
        assert done[CRASHES] == -6
        assert worker.has_ended, "it did the work itself"
        assert worker.process.wait() == -6
        assert os.getpid() not in done.values()
    finally:
        engine.close()


def test_what_a_crash_left_behind_costs_the_next_work_nothing() -> None:
    """A library may write where it must not, and the process crash at the file after that."""
    worker_processes.stop()
    worker_processes.start_ahead((), 2)  # as two threads leave them
    try:
        used = [worker.process.pid for worker in worker_processes.idle()]
        ends_used = partial(eval, f"__import__('os').getpid() not in {used} or __import__('os').abort()")
        assert worker_processes.call(ends_used)
    finally:
        worker_processes.stop()
