"""Which records of earlier runs a run can use; write those for the next run, and remove what no run needs any more."""

from __future__ import annotations

from typing import Final

from refstore.core.units import DAY_MS
from refstore.errors import Corrupt, ObjectNotFound
from refstore.gc_marks import OPEN_STATES, Marks, OfflineRun, RunState
from refstore_gc.anti_join import JoinResult
from refstore_gc.bucket_join import RecordedKeys
from refstore_gc.incremental.baseline import Baseline, RecordLayer
from refstore_gc.incremental.baseline_keys import FOLDER
from refstore_gc.mark_plan import listing_horizon
from refstore_gc.nothing_to_delete import NothingToDeleteCommits
from refstore_gc.run_context import RunContext
from refstore_gc.run_layout import ROOT, read_value, remove_run_files, write_value
from refstore_gc.run_summary import ObjectCount

FILE: Final = "carried.bin"
KEPT: Final = "kept/"
LAYERS_MAX: Final = 31


def usable(run: RunContext) -> tuple[Baseline | None, str]:
    """Return the records of the last run, or why the run must be a full one. Damage is a reason, too."""
    if run.options.is_full:
        return None, "asked for"
    if run.options.includes_foreign:
        return None, "foreign objects are searched everywhere"
    store, full_days, now_ms = run.repository.objects, run.options.full_days, run.repository.clock.now_ms()
    finished = _finished_marks(run)
    if not finished:
        return None, "there is no earlier run"
    try:
        baseline = read_value(store, _baseline_key(finished[-1].mark_id), Baseline)
    except ObjectNotFound:
        return None, "the last run recorded nothing"
    except Corrupt as error:
        return None, str(error)
    order = [mark.mark_id for mark in finished]
    if baseline.full_mark_id not in order:
        return None, f"the KV does not know mark {baseline.full_mark_id} any more"
    for mark in finished[order.index(baseline.full_mark_id) :]:
        if mark.state not in OPEN_STATES | {RunState.SWEPT}:
            return None, f"mark {mark.mark_id} was unmarked"
    if now_ms - baseline.full_mark_ms >= full_days * DAY_MS:
        return None, f"everything was last listed {(now_ms - baseline.full_mark_ms) / DAY_MS:.1f} days ago"
    if len(baseline.layers) >= LAYERS_MAX:
        return None, f"{len(baseline.layers)} runs rest on the last full one"
    return baseline, ""


def record(
    run: RunContext,
    mark: OfflineRun,
    result: JoinResult,
    listed: ObjectCount,
    nothing_to_delete: NothingToDeleteCommits,
    before: Baseline | None,
) -> None:
    """Write the records for the next run. `listed`: the listing of a full run."""
    if result.live_set.reads is None or run.options.includes_foreign:
        return
    files = {row.bucket: row.key for row in result.rows if isinstance(row, RecordedKeys)}
    baseline = Baseline(
        mark_id=mark.mark_id,
        full_mark_id=before.full_mark_id if before else mark.mark_id,
        full_mark_ms=before.full_mark_ms if before else mark.record.began_ms,
        seed=run.layout.seed,
        cutoff_ms=run.cutoff_ms,
        horizon=listing_horizon(run.repository.waits, run.cutoff_ms),
        layers=[*(before.layers if before else ()), RecordLayer(list(result.bounds), files)],
        former_kv_files=list(result.live_set.addresses.files),
        commit_reads=result.live_set.reads,
        previously_listed=before.previously_listed if before else listed,
        nothing_to_delete=nothing_to_delete,
    )
    write_value(run.repository.objects, _baseline_key(mark.mark_id), baseline)


def forget(run: RunContext, baseline: Baseline) -> None:
    """Remove the records, so that the next run is a full one."""
    remove_run_files(run.repository.objects, baseline.mark_id, FILE)


def remove_unused(run: RunContext, mark: OfflineRun, *, recorded: bool, before: Baseline | None) -> None:
    """Remove the records of earlier runs that no run builds on any more."""
    store = run.repository.objects
    if not recorded:
        remove_run_files(store, mark.mark_id, KEPT)
    elif before is not None:
        remove_run_files(store, before.mark_id, KEPT)
        return
    for each in [each for each in _finished_marks(run) if each.mark_id != mark.mark_id][-LAYERS_MAX - 1 :]:
        remove_run_files(store, each.mark_id, FILE, FOLDER, KEPT)


def _finished_marks(run: RunContext) -> list[OfflineRun]:
    """Return the marks that were finished, in that order. Their ids say when they were begun: a process that was
    stopped before it took the flag may finish after one that was begun later.
    """
    finished = [mark for mark in Marks(run.repository).runs.scan() if mark.record.finished_ms]
    return sorted(finished, key=lambda mark: mark.record.finished_ms)


def _baseline_key(mark_id: str) -> str:
    return f"{ROOT}{mark_id}/{FILE}"
