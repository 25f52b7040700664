"""A storm: a run is killed at every step, or a step of it fails. What is named is never gone, the run's own commands
tell in between what is true, and the next run comes to the end that it would have had.
"""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import closing, suppress
from itertools import count
from pathlib import Path

import pytest

import refstore_prune
from refstore.errors import RefstoreError, RunUnderWay
from refstore.objects import open_objects
from refstore.objects.local import LocalObjects
from refstore_prune.state import LockState, last_mark, read_left, read_lock, read_unit
from tests.prune.folders import make_store, stored_keys
from tests.prune.killed_runs import FORKS, OneFailure, at_each_step, run_and_die, run_once, split_work

EVERYTHING = "REFSTORE_PRUNE_HISTORIES" in os.environ
"""Whether every step fails in every way; else each fails in one."""
NAMED = ["a/1", "b/2", "c", "n/5", "z"]
DUE = ["a/2", "b/1", "n/1", "x", "y"]
"""What an earlier run has marked."""
NEW = ["a/0", "m/1", "w"]
"""What the run in question marks."""
AGAIN = ["n/2"]
"""What the earlier run has marked, and is named now."""


class Scene:
    """A folder of which a run has marked a part, as it is before each of many runs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.before = folder / "store", folder / "before"
        self.url = f"file://{self.folder}?fsync=0"
        make_store(self.folder, [*NAMED, *DUE, *AGAIN])
        with split_work():
            self.first = run_once(self.url, NAMED)
        make_store(self.folder, NEW)
        self.folder.rename(self.before)

    def restore(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.before, self.folder)

    def lock(self) -> LockState:
        with closing(open_objects(self.url)) as files:
            lock = read_lock(files)
            assert lock is not None
            return lock

    def marks(self) -> tuple[str, set[str]]:
        """Return which run's mark stands, and its keys."""
        with closing(open_objects(self.url)) as files:
            last = last_mark(files, self.url)
            assert last is not None
            units = [read_unit(files, unit) for unit in last.manifest.units]
            return last.manifest.run_id, {key for unit in units for key in unit["key"].to_pylist()}

    def due(self) -> set[str]:
        """Return what the next run is to delete: what the sweep that was killed had not begun with."""
        with closing(open_objects(self.url)) as files:
            last = last_mark(files, self.url)
            assert last is not None
            left = [read_left(files, unit, (0, 0)) for unit in last.manifest.units]
        return {key for unit in left for key in unit["key"].to_pylist()} & stored_keys(self.folder) - {*AGAIN}

    def check_between(self) -> None:
        """What has ended too early has done no harm, and what is told of it is true."""
        left = stored_keys(self.folder)
        assert left >= {*NAMED, *AGAIN, *NEW}
        run_id, marked = self.marks()
        assert marked == {*DUE, *(AGAIN if run_id == self.first.run_id else NEW)}
        runs = refstore_prune.status(self.url)
        assert runs[0] == self.first
        assert len(runs) <= 2
        lock = self.lock()
        for each in runs[1:]:
            assert lock.is_done or (each.run_id, each.state) == (lock.run_id, "running")
        if run_id == self.first.run_id:
            assert left == {*NAMED, *AGAIN, *NEW, *DUE}
        told = refstore_prune.report(self.url)
        assert told.state in ("marked", "done")
        assert told.state != "done" or (told.outcomes["deleted"].objects, left & {*DUE}) == (len(DUE), set())
        for key in DUE:
            history = refstore_prune.why(self.url, key)
            assert history.is_stored == (key in left)
            last = history.events[-1]
            assert last.found in ("deleted", "already gone", "not known") or history.is_stored
            assert last.found not in ("deleted", "already gone") or not history.is_stored
            if last.found == "unnamed":
                assert history.due_ms
        for key in NAMED:
            assert refstore_prune.why(self.url, key).events == []

    def finish(self) -> None:
        """The next run does what is left, and the one behind it leaves what is named."""
        left, due = stored_keys(self.folder), self.due()
        if not self.lock().is_done:
            with pytest.raises(RunUnderWay):
                run_once(self.url, [*NAMED, *AGAIN])
        report = run_once(self.url, [*NAMED, *AGAIN], take_over=True)
        assert report.due.objects == len(due)
        assert {name: of.objects for name, of in report.outcomes.items()} == ({"deleted": len(due)} if due else {})
        assert report.newly_marked.objects == len(left & {*NEW, *DUE} - due)
        assert stored_keys(self.folder) == left - due
        assert [each.state for each in refstore_prune.status(self.url)[:-1] if each.state == "running"] == []
        run_once(self.url, [*NAMED, *AGAIN])
        assert stored_keys(self.folder) == {*NAMED, *AGAIN}
        own = {file.relative_to(self.folder).as_posix() for file in self.folder.rglob("*") if file.is_file()}
        assert not [name for name in own if "/listing/" in name or "/names/" in name]


def test_killed_at_every_step(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    step = 0
    for step in count(1):
        scene.restore()
        process = FORKS.Process(target=run_and_die, args=(scene.url, [*NAMED, *AGAIN], step))
        process.start()
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        scene.check_between()
        scene.finish()
    assert step > 40


@pytest.mark.parametrize("how", ["request", "reply", "middle"])
def test_every_step_fails_once(tmp_path: Path, how: str) -> None:
    """Of a step the request or the reply is lost, or the answer ends in the middle: the run ends with an error, or says
    what is left. No mark stands half, and whatever it was, the next run comes to the end.
    """
    scene = Scene(tmp_path)
    names, failed = [*NAMED, *AGAIN], False
    for step in count(1):
        if not EVERYTHING and how != "middle" and step % 2 != (how == "reply"):
            continue
        scene.restore()
        report, failure = None, OneFailure(step, how)
        with suppress(RefstoreError), split_work(), at_each_step(LocalObjects, failure.make):
            report = run_once(scene.url, names)
        if not failure.is_reached:
            break
        if not failure.has_failed:
            continue
        left = stored_keys(scene.folder)
        assert left >= {*names, *NEW}
        run_id, _ = scene.marks()
        if report is not None:
            gone = sum(of.objects for name, of in report.outcomes.items() if name != "failed")
            assert gone <= len({*DUE} - left)
            assert left & {*DUE} <= set() if report.state == "done" else report.outcomes["failed"].objects >= 1
            assert run_id == report.run_id
        elif run_id == scene.first.run_id:
            assert left >= {*DUE}
        failed = failed or report is None
        scene.finish()
    assert failed
