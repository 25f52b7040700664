"""Sweep a mark, in the order of rule 14 of the protocol.

    the rules of today -> commits that lose nothing are unmarked -> begin -> commits that are excluded -> the fence
    -> delete or tag -> finish

A sweep that dies goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from functools import partial

import msgspec
import numpy as np

from refstore.context import Context
from refstore.core.arrow_arrays import make_array
from refstore.core.ids import CommitId
from refstore.gc_marks import Marks, OfflineRun, RunState
from refstore.gc_marks.sweep_records import outcome_key
from refstore.records.commit_records import Commit
from refstore_gc import deletion_index_writer, gc_figures, kv_guard, purged_objects, rules_recheck
from refstore_gc.address_codec import encode_addresses
from refstore_gc.engines.choice import Engines
from refstore_gc.live_in_commits import LiveCommits
from refstore_gc.nothing_to_delete import find_commits_without
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
from refstore_gc.sweep_tasks import check_tagged_units, find_unexcluded, sweep_units
from refstore_gc.untyped_arrow import pa


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
    begun = rules_recheck.begin_sweep(
        ctx, marks, mark_id, partial(_unmark_untouched, ctx, marks, engines, report_progress)
    )
    if begun.run.state is RunState.SWEPT:
        return read_summary(ctx.objects, mark_id)
    summary, manifest = read_summary(ctx.objects, mark_id), read_manifest(ctx.objects, mark_id)
    mode = mode or ("tag" if manifest.mode == "tag" else "delete")
    layout, engine = make_layout(ctx, mark_id, manifest.seed), engines.for_objects(summary.marked.objects)
    run = new_run(ctx, engine, GcOptions(mode=mode), report_progress, layout, controlled_as="sweep")
    excluded = _gather(marks.sweeps.excluded_commits(begun.run))
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


def _unmark_untouched(
    ctx: Context, marks: Marks, engines: Engines, report_progress: ReportProgress, start: rules_recheck.SweepStart
) -> None:
    """Unmark the commits of which the sweep would delete nothing, because others that were unmarked, or a legal hold,
    keep all that they name. They can be read and copied, and the next run marks them again (rule 14).
    """
    excluded = _gather(marks.sweeps.will_exclude(start.run))
    rules_recheck.exclude_kept_commits(marks, start, excluded)
    if next(excluded.metaranges(), None) is None:
        return  # the mark's own run has found which commits lose nothing, and nothing was taken off the mark since
    mark_id, markers = start.run.mark_id, ctx.markers
    manifest = read_manifest(ctx.objects, mark_id)
    layout = make_layout(ctx, mark_id, manifest.seed)
    engine = engines.for_objects(read_summary(ctx.objects, mark_id).marked.objects)
    run = new_run(ctx, engine, GcOptions(), report_progress, layout)
    with closing(run.steps), run.steps.step("looking for commits that lose nothing"):
        purged = purged_objects.find_unexcluded_identities(ctx, manifest.dead_identities, excluded)
        garbage_keys = [
            find_unexcluded(run, manifest.units, excluded),
            *(encode_addresses(make_array(identities, pa.string()), layout.seed) for identities in purged),
        ]
        landed = (each for each in marks.mark_run.may_have_nothing_to_delete(start.run) if markers.has_landed(each))
        metaranges = {commit: record.metarange for commit, record in marks.commits.read_commits(landed)}
        untouched = find_commits_without(layout, engine, metaranges, np.unique(np.concatenate(garbage_keys)))
    marks.sweeps.unmark_untouched(start.run, untouched)


def _gather(commits: Iterable[tuple[CommitId, Commit]]) -> LiveCommits:
    """Return commits whose objects a sweep must leave."""
    found = LiveCommits()
    for commit_id, commit in commits:
        found.add(commit_id, commit, None)
    return found


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
        if manifest.servers == fence.servers:  # else what the mark saw may not be so: the next full run looks again
            marks = Marks(ctx)
            begun = rules_recheck.begin_sweep(ctx, marks, tagged.mark_id)
            if begun.run.state is RunState.SWEPT:  # by another process, meanwhile
                return read_summary(ctx.objects, tagged.mark_id)
            excluded = _gather(marks.sweeps.excluded_commits(begun.run))
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
    counts["deleted_objects"] = swept.deleted_count.objects
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
