"""The runs of a store: one at a time, what each left, and the mark that stands.

    _refstore/prune/locks/<generation>.json     a run's lock: the highest generation holds it
    _refstore/prune/locks/<generation>.beat     its last sign of life, by the time at which the store has it
    _refstore/prune/locks/<generation>.done     it has ended
    _refstore/prune/<run id>/unmarked.json      what it marked begins its grace period anew

A run takes the next generation by a put that only one can win. A run that has given no sign of life for
`TAKE_OVER_SECONDS` is dead, and the next one takes over. It may wake up: then it notices at its next look at the lock,
which comes before its mark stands and before each unit that it sweeps. So of what it sweeps it ends at most the unit
under way, and of that only what the reading of names is young enough for (`prune_sweep.py`). What it deletes then was
unnamed at two of its readings, and is looked at as always: that two runs delete the same does no harm.

In a store without conditional puts (`conditional_put=0`) two runs that begin at the same moment may both take a lock.
One of them has lost it, and notices at its next look. Both may have marked or swept a unit by then, each by names that
it read itself. Use another store for the state (`--state`) if runs may begin at once.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from refstore.core import deadline
from refstore.core.clock import SystemClock
from refstore.core.ids import RandomIds, id_time_ms
from refstore.errors import (
    AlreadyExists,
    Conflict,
    Contention,
    Corrupt,
    Invalid,
    NotFound,
    ObjectNotFound,
    RefstoreError,
    RunUnderWay,
    StoreMisconfigured,
)
from refstore.gc_marks.sweep_records import outcome_key
from refstore.objects.base import ObjectStore, put_if_new
from refstore_gc.run_context import owner
from refstore_gc.run_layout import BULK_KEYS, read_json, read_table, remove_run_files, write_json
from refstore_gc.run_summary import FAILED_OUTCOME
from refstore_gc.untyped_arrow import pa, pc
from refstore_prune.prune_layout import MARK_FILE, PRUNE_ROOT, PruneManifest, PruneUnit
from refstore_prune.prune_report import PruneReport

LOCKS: Final = f"{PRUNE_ROOT}locks/"
REPORT_FILE: Final = "report.json"
UNMARKED_FILE: Final = "unmarked.json"
TAKE_OVER_SECONDS: Final = 600
BEAT_SECONDS: Final = 60.0
RUNS_KEPT: Final = 30
UNIT_COLUMNS: Final = ["key", "size_bytes", "mtime_ms", "etag", "marked_ms"]
OUTCOME_COLUMNS: Final = ["outcome", "why"]
_LOCKS_KEPT: Final = 20
_ATTEMPTS: Final = 5
_ADVICE: Final = "nothing is deleted by it; `refstore prune unmark STORE all` lets all grace periods begin anew"
_HAD_A_MARK: Final = ("marked", "done", "incomplete")
"""States of reports that are written after the mark stood."""


class LockRecord(msgspec.Struct, frozen=True):
    """Who holds a lock."""

    run_id: str
    owner: str


class LockState(msgspec.Struct, frozen=True, kw_only=True):
    """The lock of the highest generation."""

    generation: int
    beat_ms: int
    """The last sign of life, by the store's clock."""
    is_done: bool
    holder: LockRecord | None
    """None: what the lock says is damaged."""

    @property
    def run_id(self) -> str:
        return self.holder.run_id if self.holder else ""


class PruneLock:
    """The lock of a run's own process. Its tasks know the generation, and call `check_lock`."""

    def __init__(self, files: ObjectStore, generation: int, run_id: str) -> None:
        self._files = files
        self.generation = generation
        self.run_id = run_id

    def check(self) -> None:
        """Raise Conflict if another run took over, or the lock is gone."""
        check_lock(self._files, self.generation, self.run_id)

    def beat(self) -> None:
        self._files.put(_lock_key(self.generation, "beat"), b"")


def check_lock(files: ObjectStore, generation: int, run_id: str) -> None:
    """Raise Conflict unless this run has the lock of the highest generation."""
    found = read_lock(files)
    if found is None or (found.generation, found.run_id) != (generation, run_id):
        raise Conflict(
            f"run {run_id} was taken over by {(found and found.run_id) or 'another run'}, or its lock in {files.url} "
            "was removed: it marks and deletes nothing more. See `refstore prune status`, then run again"
        )


# ---- one run at a time


@contextmanager
def open_run(files: ObjectStore, run_id: str, *, take_over: bool = False) -> Generator[PruneLock, None, None]:
    """Hold the lock for the block, and give signs of life from a thread. `files`: the store of the runs' files.
    `take_over`: do not wait until a run that holds the lock counts as dead.

    Raises RunUnderWay; StoreMisconfigured (an earlier run's clock, or this one, is wrong).
    """
    lock = _take_lock(files, run_id, take_over)
    over = threading.Event()
    beating = threading.Thread(target=_keep_beating, args=(lock, over), name="refstore-prune-beat", daemon=True)
    beating.start()
    try:
        later = next(files.list(PRUNE_ROOT, after=f"{PRUNE_ROOT}{run_id}/~", before=LOCKS), None)
        if later is not None:
            raise StoreMisconfigured(
                f"an earlier run has a later id ({later.key}): the clock of its machine was wrong, or that of this one "
                "is; set the clock. If it is right now, remove that run's files"
            )
        yield lock
    finally:
        over.set()
        beating.join()
        with suppress(RefstoreError):  # the next run waits a little longer
            files.put(_lock_key(lock.generation, "done"), b"")
            _delete(files, (info.key for info in files.list(LOCKS, before=_lock_key(lock.generation - _LOCKS_KEPT))))


def _keep_beating(lock: PruneLock, over: threading.Event) -> None:
    while not over.wait(BEAT_SECONDS):
        with suppress(RefstoreError):  # if it goes on failing, another run may take over, which `check` tells
            lock.beat()


def _take_lock(files: ObjectStore, run_id: str, take_over: bool) -> PruneLock:
    for _ in range(_ATTEMPTS):
        last = read_lock(files)
        if last is not None and not last.is_done and not take_over:
            age = (_store_time_ms(files, run_id) - last.beat_ms) // 1000
            if age < TAKE_OVER_SECONDS:
                whose = f" ({last.holder.owner})" if last.holder else ""
                raise RunUnderWay(
                    f"run {last.run_id or 'with a damaged lock'}{whose} is on; its last sign of life was {age} s ago. "
                    f"Wait for it. If it is dead, use --take-over, or wait until it is {TAKE_OVER_SECONDS} s ago"
                )
        take_over = False  # which was said of that one
        lock = PruneLock(files, last.generation + 1 if last else 1, run_id)
        key = _lock_key(lock.generation, "json")
        try:
            put_if_new(files, key, msgspec.json.encode(LockRecord(run_id, owner())))
        except AlreadyExists:
            if _read_holder(files, key) != LockRecord(run_id, owner()):  # else it is ours: its reply was lost
                continue
        return lock
    raise Contention("other runs kept taking the lock; make the same call again")


def read_lock(files: ObjectStore) -> LockState | None:
    """Return the lock of the highest generation. None: no run was ever on."""
    found: dict[int, dict[str, int]] = {}
    for info in files.list(LOCKS):
        number, _, ending = info.key.removeprefix(LOCKS).partition(".")
        if number.isdigit() and ending in ("json", "beat", "done"):
            found.setdefault(int(number), {})[ending] = info.mtime_ms
    generations = [generation for generation, files_of in found.items() if "json" in files_of]
    if not generations:
        return None
    last = max(generations)
    return LockState(
        generation=last,
        beat_ms=max(found[last].values()),
        is_done="done" in found[last],
        holder=_read_holder(files, _lock_key(last, "json")),
    )


def _read_holder(files: ObjectStore, key: str) -> LockRecord | None:
    with suppress(Corrupt, ObjectNotFound):
        return read_json(files, key, LockRecord, "")
    return None


def _store_time_ms(files: ObjectStore, run_id: str) -> int:
    """Return the time by the store's clock."""
    key = f"{LOCKS}{run_id}.now"
    files.put(key, b"")
    now_ms = files.head(key).mtime_ms
    files.delete_many([key])
    return now_ms


def _lock_key(generation: int, ending: str = "") -> str:
    return f"{LOCKS}{max(0, generation):010d}.{ending}".rstrip(".")


# ---- what runs left


class _RunFolder(NamedTuple):
    run_id: str
    names: frozenset[str]
    """Of the files in it, and of the folders."""


class UnmarkRecord(msgspec.Struct, frozen=True):
    """What an operator took back of a run's marks."""

    marked_ms: int
    """What was marked as of then begins its grace period anew."""
    is_whole: bool
    """So does everything else that this run's mark has, and that earlier ones have."""


class LastMark(NamedTuple):
    """The mark that stands: what the next run compares with."""

    manifest: PruneManifest
    unmarked_ms: frozenset[int]
    """What was marked as of these times counts as never marked."""


def _read_folders(files: ObjectStore) -> list[_RunFolder]:
    """Return the folders of the runs, the last run's first."""
    found: dict[str, set[str]] = {}
    for info in files.list(PRUNE_ROOT, before=LOCKS):
        deadline.check()
        run_id, _, name = info.key.removeprefix(PRUNE_ROOT).partition("/")
        if id_time_ms(run_id) is not None:
            found.setdefault(run_id, set()).add(name.partition("/")[0])
    return [_RunFolder(run_id, frozenset(found[run_id])) for run_id in sorted(found, reverse=True)]


def read_runs(files: ObjectStore) -> list[PruneReport]:
    """Return the report of each run that is kept, the oldest first. One that is on, or ended without a report, or has a
    damaged one, has a report that says so. It keeps the deadline of a page that shows them.
    """
    lock = read_lock(files)
    return [_report_of(files, folder, lock) for folder in reversed(_read_folders(files))]


def _report_of(files: ObjectStore, folder: _RunFolder, lock: LockState | None) -> PruneReport:
    state, error = "failed", "it ended without a report: it was killed, or lost its store"
    if lock is not None and not lock.is_done and lock.run_id == folder.run_id:
        silent = (SystemClock().now_ms() - lock.beat_ms) // 1000
        state = "running"
        error = f"no sign of life for {silent} s: the next run takes over" if silent >= TAKE_OVER_SECONDS else ""
    elif REPORT_FILE in folder.names:
        deadline.check()
        try:
            report = read_report(files, folder.run_id)
            return msgspec.structs.replace(report, is_unmarked=UNMARKED_FILE in folder.names)
        except Corrupt as damage:
            error = str(damage)
    if MARK_FILE in folder.names and error:
        error += "; its mark stood, so it may have deleted what was due (`refstore prune why` tells of a key)"
    began_ms = id_time_ms(folder.run_id) or 0
    return PruneReport(run_id=folder.run_id, store="", state=state, began_ms=began_ms, error=error)


def last_mark(files: ObjectStore, store_url: str) -> LastMark | None:
    """Return the last mark that stood. None: there is none, or all was unmarked.

    Raises Corrupt: a mark is damaged or gone, and an older one must not take its place; StoreMisconfigured: the files
    are those of another store.
    """
    unmarked_ms: set[int] = set()
    manifest: PruneManifest | None = None
    for run in _read_folders(files):
        if UNMARKED_FILE in run.names:
            unmarked = _read_unmarked(files, run)
            if unmarked.is_whole:
                break
            unmarked_ms.add(unmarked.marked_ms)
        if manifest is None:
            manifest = _read_standing(files, run)
            if manifest is not None and _without_options(manifest.store) != _without_options(store_url):
                raise StoreMisconfigured(
                    f"{files.url} has runs of {manifest.store}, not of {store_url}; give each its own --state"
                )
    return None if manifest is None else LastMark(manifest, frozenset(unmarked_ms))


def last_manifest(files: ObjectStore) -> PruneManifest | None:
    """Return the last mark that stood and can be read, unmarked or not."""
    for run in _read_folders(files):
        if MARK_FILE in run.names:
            with suppress(Corrupt):
                return _read_manifest(files, run.run_id)
    return None


def _read_standing(files: ObjectStore, run: _RunFolder) -> PruneManifest | None:
    """Return the mark of a run. None: the run ended before it stood."""
    if MARK_FILE in run.names:
        return _read_manifest(files, run.run_id)
    if REPORT_FILE in run.names and read_report(files, run.run_id).state in _HAD_A_MARK:
        raise Corrupt(f"{_run_key(run.run_id, MARK_FILE)} is gone from {files.url}, although its mark stood; {_ADVICE}")
    return None


def _read_unmarked(files: ObjectStore, run: _RunFolder) -> UnmarkRecord:
    return read_json(files, _run_key(run.run_id, UNMARKED_FILE), UnmarkRecord, _ADVICE)


def _read_manifest(files: ObjectStore, run_id: str) -> PruneManifest:
    manifest = read_json(files, _run_key(run_id, MARK_FILE), PruneManifest, _ADVICE)
    if manifest.run_id != run_id:
        raise Corrupt(f"{_run_key(run_id, MARK_FILE)} in {files.url} is that of run {manifest.run_id}; {_ADVICE}")
    return manifest


def read_unit(files: ObjectStore, unit: PruneUnit, times: tuple[int, int] = (0, 0)) -> Any:
    """Return the table of a unit. `times`: `marked_ms` and `stood_ms` of its mark; the first is replaced by the second,
    so that what later runs carry on has the time from which its grace period counts. Raises Corrupt: it is gone,
    damaged, or another one.
    """
    return _read_rows(files, unit.file, UNIT_COLUMNS, unit, times)


def read_outcome(files: ObjectStore, unit: PruneUnit, times: tuple[int, int] = (0, 0)) -> Any | None:
    """Return the table of a unit with what became of each object. None: no sweep began with it. As `read_unit`."""
    key = outcome_key(unit.file)
    if not unit.is_due or files.head_many([key])[0] is None:
        return None
    return _read_rows(files, key, [*UNIT_COLUMNS, *OUTCOME_COLUMNS], unit, times)


def read_left(files: ObjectStore, unit: PruneUnit, times: tuple[int, int]) -> Any:
    """Return what later runs go on with of a unit. What a sweep deleted, or may have deleted, is not among it: if it is
    there again, somebody restored it, and its grace period begins anew. As `read_unit`.
    """
    swept = read_outcome(files, unit, times)
    if swept is None:
        return read_unit(files, unit, times)
    return swept.filter(pc.equal(swept["outcome"], FAILED_OUTCOME)).select(UNIT_COLUMNS)


def _read_rows(files: ObjectStore, key: str, columns: list[str], unit: PruneUnit, times: tuple[int, int]) -> Any:
    try:
        table = read_table(files, key)
    except Corrupt as error:
        raise Corrupt(f"{error}; {_ADVICE}") from error
    is_it = table.column_names == columns and len(table) == unit.objects
    if not is_it or table["key"][0].as_py() != unit.first_key:
        raise Corrupt(f"{key} in {files.url} is not the file that the mark names; {_ADVICE}")
    marked_ms = pc.if_else(pc.equal(table["marked_ms"], times[0]), times[1], table["marked_ms"])
    return table.set_column(UNIT_COLUMNS.index("marked_ms"), "marked_ms", marked_ms.cast(pa.int64()))


def write_report(files: ObjectStore, report: PruneReport) -> None:
    write_json(files, _run_key(report.run_id, REPORT_FILE), report)


def read_report(files: ObjectStore, run_id: str = "last") -> PruneReport:
    """Raises NotFound: no such run ended with a report; Corrupt."""
    if run_id == "last":
        run_id = next((run.run_id for run in _read_folders(files) if REPORT_FILE in run.names), "")
        if not run_id:
            raise NotFound(f"{files.url} has no report of a run; run `refstore prune run` first")
    try:
        return read_json(files, _run_key(_check_run_id(run_id), REPORT_FILE), PruneReport, _ADVICE)
    except ObjectNotFound:
        raise NotFound(f"{files.url} has no report of run {run_id}; `refstore prune status` names the runs") from None


def unmark(files: ObjectStore, run_id: str, *, take_over: bool = False) -> PruneReport:
    """Let what a run was the first to mark begin its grace period anew; of `all`, what any did, whatever state their
    files are in. Return the report of the run, or of the last one. Raises NotFound, RunUnderWay, Corrupt.
    """
    is_all = run_id == "all"
    with open_run(files, RandomIds().new_id(SystemClock().now_ms()), take_over=take_over) as lock:
        runs = [run for run in _read_folders(files) if is_all or run.run_id == _check_run_id(run_id)]
        if not runs or not (is_all or MARK_FILE in runs[0].names):
            raise NotFound(f"{files.url} has no mark of {run_id}; `refstore prune status` names the runs")
        for run in runs:
            if UNMARKED_FILE in run.names and not is_all and _read_unmarked(files, run).is_whole:
                continue  # `all` was said, which takes back more
            marked_ms = 0 if is_all else _read_manifest(files, run.run_id).stood_ms
            write_json(files, _run_key(run.run_id, UNMARKED_FILE), UnmarkRecord(marked_ms, is_all))
        lock.check()  # a run that took over meanwhile may have read the mark before
    return msgspec.structs.replace(_report_of(files, runs[0], None), is_unmarked=True)


def remove_old_files(files: ObjectStore, lock: PruneLock, store_url: str) -> None:
    """Remove what runs wrote for themselves only, and all of runs long ago, but never the mark that stands. It is
    called at the end of a run, which holds the lock: no other is on. Raises Conflict, and as `last_mark`.
    """
    lock.check()
    standing = last_mark(files, store_url)
    for number, run in enumerate(_read_folders(files)):
        if number >= RUNS_KEPT and run.run_id not in (lock.run_id, standing and standing.manifest.run_id):
            remove_run_files(files, run.run_id, root=PRUNE_ROOT)
        elif {"listing", "names"} & run.names:
            remove_run_files(files, run.run_id, "listing/", "names/", root=PRUNE_ROOT)


def _delete(files: ObjectStore, keys: Iterable[str]) -> None:
    left = iter(keys)
    while page := list(islice(left, BULK_KEYS)):
        files.delete_many(page)


def _run_key(run_id: str, name: str) -> str:
    return f"{PRUNE_ROOT}{run_id}/{name}"


def _check_run_id(run_id: str) -> str:
    """Return a run's id as a caller gave it. Raises Invalid."""
    if id_time_ms(run_id) is None:
        raise Invalid(f"{run_id[:80]!r} is no id of a run; `refstore prune status` names the runs")
    return run_id


def _without_options(url: str) -> str:
    return url.partition("?")[0].rstrip("/")
