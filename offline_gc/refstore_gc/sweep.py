"""Sweep a mark, in the order of rule 14 of the protocol.

    the rules of today -> begin -> commits that are excluded -> the fence -> delete or tag -> finish

A sweep that dies goes on where it stopped.
"""

from __future__ import annotations

from contextlib import closing

import msgspec

from refstore.context import Context
from refstore.gc_marks import Marks, OfflineRun, RunState
from refstore.gc_marks.sweep_records import outcome_key
from refstore_gc import deletion_index_writer, gc_figures, kv_guard, purged_objects, rules_recheck
from refstore_gc.engines.choice import Engines
from refstore_gc.live_in_commits import LiveCommits
from refstore_gc.run_context import GcOptions, new_run
from refstore_gc.run_layout import make_layout
from refstore_gc.run_progress import ReportProgress, ignore_progress
from refstore_gc.run_summary import (
    GcSummary,
    ObjectCount,
    SweepManifest,
    SweepMode,
    SweepResult,
    read_manifest,
    read_summary,
    read_units,
    write_summary,
)
from refstore_gc.summary_totals import summarize_sweep
from refstore_gc.sweep_tasks import check_tagged_units, sweep_units


def sweep(
    ctx: Context,
    engines: Engines,
    mark_id: str,
    report_progress: ReportProgress = ignore_progress,
    *,
    mode: SweepMode | None = None,
) -> GcSummary:
    """Delete, or tag, what a mark holds and nothing names again. Made again it goes on; once swept it does nothing.

    The bucket deletes what is tagged. Until it has, the sweep made again asks how far it is
    (`_check_bucket_deletions`), and the mark is not swept. `mode` overrides the mark's own; `delete` also takes what
    was tagged, without waiting for the bucket.

    What the rules of today keep stays (`rules_recheck.py`). Raises Conflict (not due, not confirmed), Gone (unmarked),
    NotFound, Corrupt, Unavailable. What the store did not delete after retries stands in the summary as failed, and the
    mark stays open: the next sweep tries it again.
    """
    marks = Marks(ctx)
    if marks.runs.get(mark_id).state is RunState.MARKED:
        read_summary(ctx.objects, mark_id)  # while it can still be unmarked
        read_units(ctx.objects, mark_id)
    if marks.runs.get(mark_id).is_tagged and mode != "delete":
        return _check_bucket_deletions(ctx, engines, marks.runs.get(mark_id), report_progress)
    fence = kv_guard.begin_guarded_pass(ctx, mark_id)
    if marks.runs.get(mark_id).state in (RunState.MARKED, RunState.SWEEPING):
        seen = read_manifest(ctx.objects, mark_id).servers
        kv_guard.abandon_if_servers_changed(marks, mark_id, seen, fence)
    begun = rules_recheck.begin_sweep(ctx, marks, mark_id)
    if begun.run.state is RunState.SWEPT:
        return read_summary(ctx.objects, mark_id)
    summary, manifest = read_summary(ctx.objects, mark_id), read_manifest(ctx.objects, mark_id)
    mode = mode or ("tag" if manifest.mode == "tag" else "delete")
    layout, engine = make_layout(ctx, mark_id, manifest.seed), engines.for_objects(summary.marked.objects)
    run = new_run(ctx, engine, GcOptions(mode=mode), report_progress, layout, controlled_as="sweep")
    excluded = _find_excluded(marks, begun.run)
    excluded_count = len([*excluded.commits()])
    by_rules = rules_recheck.exclude_kept_commits(marks, begun, excluded)
    fence.pass_through()
    with closing(run.steps), run.steps.step("sweeping"):
        outcomes = sweep_units(run, manifest.units, excluded, mode)
    swept = summarize_sweep(outcomes, mode, excluded_count, ctx.clock.now_ms(), run.steps.seconds.get("sweeping", 0.0))
    swept = msgspec.structs.replace(
        swept, excluded_by_rules=by_rules, have_rules_changed=begun.have_rules_changed, engine=run.engine.name
    )
    if not (swept.failed_objects or swept.tagged_count.objects):  # the identities' own objects are gone
        purged = purged_objects.delete_dead_identities(ctx, run.layout, manifest.dead_identities, excluded)
        swept = swept.add_purged(purged)
    return _record_outcome(ctx, begun.run, summary, manifest, swept)


def _find_excluded(marks: Marks, swept_run: OfflineRun) -> LiveCommits:
    """Return the commits whose objects the sweep must leave."""
    excluded = LiveCommits()
    for commit_id, commit in marks.sweeps.excluded_commits(swept_run):
        excluded.add(commit_id, commit, None)
    return excluded


def _check_bucket_deletions(
    ctx: Context, engines: Engines, tagged: OfflineRun, report_progress: ReportProgress
) -> GcSummary:
    """Ask what the bucket has deleted of what a mark tagged; with the last of it the mark is swept."""
    summary, manifest = read_summary(ctx.objects, tagged.mark_id), read_manifest(ctx.objects, tagged.mark_id)
    engine = engines.for_objects(summary.marked.objects)
    run = new_run(ctx, engine, GcOptions(mode="tag"), report_progress, make_layout(ctx, tagged.mark_id, manifest.seed))
    with run.steps.step("asking what the bucket has deleted"):
        outcomes = check_tagged_units(run, manifest.units)
    swept, before = summarize_sweep(outcomes, "tag", 0, ctx.clock.now_ms(), 0.0), summary.sweep
    if manifest.dead_identities and not (swept.failed_objects or swept.tagged_count.objects):
        fence = kv_guard.begin_guarded_pass(ctx, tagged.mark_id)
        if manifest.servers == fence.servers:  # else what the mark saw may not be so: the next complete run looks again
            marks = Marks(ctx)
            begun = rules_recheck.begin_sweep(ctx, marks, tagged.mark_id)
            if begun.run.state is RunState.SWEPT:  # by another process, meanwhile
                return read_summary(ctx.objects, tagged.mark_id)
            excluded = _find_excluded(marks, begun.run)
            rules_recheck.exclude_kept_commits(marks, begun, excluded)
            fence.pass_through()
            purged = purged_objects.delete_dead_identities(ctx, run.layout, manifest.dead_identities, excluded)
            swept = swept.add_purged(purged)
    if before is not None:
        swept = msgspec.structs.replace(
            swept,
            excluded_commits=before.excluded_commits,
            excluded_by_rules=before.excluded_by_rules,
            have_rules_changed=before.have_rules_changed,
            seconds=before.seconds,
        )
    return _record_outcome(ctx, tagged, summary, manifest, swept)


def _record_outcome(
    ctx: Context, swept_run: OfflineRun, summary: GcSummary, manifest: SweepManifest, swept: SweepResult
) -> GcSummary:
    """Write down how far a sweep is: to be tried again, tagged and waiting for the bucket, or over."""
    marks, mark_id = Marks(ctx), swept_run.mark_id
    counts = {name: count.objects for name, count in swept.outcomes.items()}
    if not swept.failed_objects:
        files = [outcome_key(unit.key) for unit in manifest.units]
        deletion_index_writer.index_sweep(ctx, mark_id, files, swept.at_ms)
        finish = marks.sweeps.note_tagged if swept.tagged_count.objects else marks.sweeps.finish
        swept_run = finish(mark_id, counts)
    earlier = summary.sweep.outcomes if summary.sweep is not None else {}
    newly = {name: count - earlier.get(name, ObjectCount()) for name, count in swept.outcomes.items()}
    swept = msgspec.structs.replace(swept, tagged_ms=swept_run.record.tagged_ms, new_outcomes=newly)
    summary = msgspec.structs.replace(summary, state=swept_run.state_text, sweep=swept)
    write_summary(ctx.objects, summary)
    gc_figures.record_sweep(ctx, swept)
    return summary
