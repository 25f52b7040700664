"""Worker processes take a share of a local engine's work. Whatever becomes of them, this process has every result.

The work here is Python source, because a worker imports nothing of the tests.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from refstore.configuration import logs
from refstore.configuration.settings import LogSettings
from refstore.errors import CorruptRange
from refstore_gc.engines import worker_processes
from refstore_gc.engines.local import LocalEngine, SharedWork
from refstore_gc.engines.worker_processes import Worker

SECONDS_MAX = 60.0
WHO = "[__import__('os').getpid()]"
SLOWLY = f"(__import__('time').sleep(0.02), {WHO})[1]"


class Started(SharedWork):
    """Work for one worker, which is started at once, and of which a test sees the process."""

    def __init__(self) -> None:
        super().__init__(1, start_after_seconds=0)
        worker_processes.stop()
        worker_processes.start_ahead(["refstore_gc.list_objects"])
        self.worker = worker_processes.take_idle()
        assert self.worker is not None
        worker_processes.give_back(self.worker)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self.worker is not None
        return self.worker.process

    def wait_until_ready(self) -> None:
        assert self.worker is not None
        until = time.monotonic() + SECONDS_MAX
        while not self.worker.is_ready():
            assert time.monotonic() < until, "a worker does not start"

    def stop(self) -> None:
        worker_processes.stop()


@pytest.fixture
def shared() -> Iterator[Started]:
    made = Started()
    yield made
    made.stop()


def test_both_processes_take_items_and_every_item_has_its_result(shared: Started) -> None:
    shared.wait_until_ready()
    items = [f"(__import__('time').sleep(0.01), [{number}] + {WHO})[1]" for number in range(20)]
    done: list[int] = list(shared.map(eval, items))
    assert sorted(done[::2]) == list(range(20))
    assert set(done[1::2]) == {os.getpid(), shared.process.pid}


def test_this_process_does_not_wait_for_a_worker_to_start(shared: Started) -> None:
    shared.process.send_signal(signal.SIGSTOP)
    try:
        assert set(shared.map(eval, [WHO] * 3)) == {os.getpid()}
    finally:
        shared.process.send_signal(signal.SIGCONT)


def test_what_the_work_raises_in_a_worker_is_raised(shared: Started) -> None:
    shared.wait_until_ready()
    failing = "(_ for _ in ()).throw(__import__('refstore.errors').errors.CorruptRange('damaged'))"
    with pytest.raises(CorruptRange, match="damaged"):
        list(shared.map(eval, [SLOWLY] * 5 + [failing]))
    assert sorted(shared.map(eval, ["[1, 2]", "[]", "[3]"])) == [1, 2, 3]


def test_what_a_worker_logs_goes_where_the_logs_of_its_starter_go(capfd: pytest.CaptureFixture[str]) -> None:
    shared = Started()  # not the fixture, which may start before the output is captured
    shared.wait_until_ready()
    warning = "__import__('logging').getLogger('refstore.x').warning('skipped redis://:hidden@localhost') or []"
    list(shared.map(eval, [SLOWLY] * 5 + [warning]))
    shared.stop()
    shown = capfd.readouterr()
    assert "skipped" in shown.err
    assert "hidden" not in shown.err + shown.out


def test_a_worker_logs_in_the_form_of_its_starter(capfd: pytest.CaptureFixture[str]) -> None:
    before = logs.current_setup()
    logs.configure_logs(LogSettings(format="json"), sys.stderr, service=True)
    shared = Started()
    shared.wait_until_ready()
    warning = (
        "__import__('refstore.core.event_log').core.event_log.get_logger('refstore.x').warning('skipped', n=1) or []"
    )
    list(shared.map(eval, [SLOWLY] * 5 + [warning]))
    shared.stop()
    logs.configure_logs(before.settings, sys.stderr, service=before.is_service)
    (line,) = [json.loads(line) for line in capfd.readouterr().err.splitlines() if "skipped" in line]
    assert (line["event"], line["n"]) == ("skipped", 1)


def test_a_result_that_a_worker_cannot_send_is_made_by_this_process(shared: Started) -> None:
    shared.wait_until_ready()
    made = list(shared.map(eval, [SLOWLY] * 5 + ["[lambda: 1]"]))
    assert [callable(each) for each in made].count(True) == 1
    assert shared.process.returncode is not None


def test_work_that_cannot_be_sent_raises_and_nobody_waits_for_it(shared: Started) -> None:
    shared.wait_until_ready()

    def pause(item: int) -> list[int]:
        time.sleep(0.02)
        return [item]

    with pytest.raises(AttributeError, match="pickle"):
        list(shared.map(pause, range(5)))


def test_items_of_a_worker_that_ends_are_done_by_this_process(
    shared: Started, caplog: pytest.LogCaptureFixture
) -> None:
    shared.wait_until_ready()
    ending = f"__import__('os')._exit(1) if {WHO} != [{os.getpid()}] else {WHO}"
    assert list(shared.map(eval, [SLOWLY] * 5 + [ending])) == [os.getpid()] * 6
    assert shared.process.returncode is not None
    assert "ended too early" in caplog.text
    assert list(shared.map(eval, [WHO] * 2)) == [os.getpid()] * 2


def test_a_worker_that_was_killed_between_two_steps_is_left_out(shared: Started) -> None:
    shared.wait_until_ready()
    shared.process.kill()
    shared.process.wait()
    assert list(shared.map(eval, [SLOWLY] * 5)) == [os.getpid()] * 5
    assert shared.process.returncode is not None


def test_a_step_that_is_broken_off_ends_at_once_and_leaves_the_workers_to_the_next(
    shared: Started, tmp_path: Path
) -> None:
    shared.wait_until_ready()
    items = [f"[__import__('time').sleep(0.02), open({str(tmp_path / str(at))!r}, 'x').close()]" for at in range(1000)]
    steps = shared.map(eval, items)
    next(steps)
    steps.close()
    assert len(list(tmp_path.iterdir())) < 20
    assert shared.process.pid in set(shared.map(eval, [SLOWLY] * 20))


def test_a_second_step_at_the_same_time_is_done_without_workers(shared: Started) -> None:
    shared.wait_until_ready()
    first = shared.map(eval, [SLOWLY] * 20)
    begun = next(first)
    assert set(shared.map(eval, [SLOWLY] * 5)) == {os.getpid()}
    assert shared.process.pid in {begun, *first}


def test_workers_that_are_started_ahead_have_imported_what_the_work_needs() -> None:
    worker_processes.stop()
    engine = LocalEngine(shared=SharedWork(1, start_after_seconds=SECONDS_MAX))
    try:
        LocalEngine(shared=SharedWork(0)).start_ahead(["json.tool"], 20)  # on one core
        engine.start_ahead(["json.tool"], 1)
        (worker,) = worker_processes.idle()
        worker.wait_until_ready()
        imported = f"(__import__('time').sleep(0.02), [*{WHO}, 'json.tool' in __import__('sys').modules])[1]"
        done: list[int] = list(engine.map(eval, [imported] * 20))
        assert (worker.process.pid, True) in set(zip(done[::2], done[1::2], strict=True))
        engine.start_ahead(["json.tool"], 20)
        assert len(worker_processes.idle()) == 2, "one for each core, and for what this process calls"
    finally:
        engine.close()


def test_one_worker_shares_work_and_does_what_may_crash(shared: Started) -> None:
    shared.wait_until_ready()
    assert worker_processes.call(os.getpid) == shared.process.pid
    assert shared.process.pid in set(shared.map(eval, [SLOWLY] * 20))
    assert worker_processes.call(os.getpid) == shared.process.pid


def test_a_worker_that_does_nothing_is_not_waited_for(tmp_path: Path) -> None:
    worker = Worker()
    worker.wait_until_ready()
    at_exit = f"__import__('atexit').register(open, {str(tmp_path / 'ended by itself')!r}, 'x') and []"
    worker.do(eval, at_exit)
    worker.stop()
    assert worker.process.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


def test_a_worker_whose_work_was_broken_off_ends_it(tmp_path: Path) -> None:
    def break_off(*_: object) -> None:
        raise KeyboardInterrupt

    worker = Worker()
    worker.wait_until_ready()
    work = (
        f"[__import__('os').kill({os.getpid()}, {int(signal.SIGUSR1)}), __import__('time').sleep(0.2),"
        f" open({str(tmp_path / 'done')!r}, 'x').close()]"
    )
    before = signal.signal(signal.SIGUSR1, break_off)
    try:
        with pytest.raises(KeyboardInterrupt):
            worker.do(eval, work)
    finally:
        signal.signal(signal.SIGUSR1, before)
        worker.stop()
    assert (tmp_path / "done").exists()
    assert worker.process.returncode == 0


def test_a_worker_does_not_outlive_its_starter_when_that_is_killed() -> None:
    source = (
        "import time; from refstore_gc.engines.worker_processes import Worker\n"
        "worker = Worker(); print(worker.process.pid, flush=True)\n"
        "while not worker.is_ready(): pass\n"
        "print('ready', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        pid = int(driver.stdout.readline())
        assert driver.stdout.readline() == "ready\n"
        driver.kill()
    until = time.monotonic() + SECONDS_MAX
    while _is_running(pid):
        assert time.monotonic() < until, "the worker still runs"
        time.sleep(0.01)


def _is_running(pid: int) -> bool:
    """Return whether a process runs. One that has ended may wait for its parent to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
