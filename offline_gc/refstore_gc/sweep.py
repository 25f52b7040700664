"""Sweep a mark, in the order of rule 14 of the protocol.

    the rules of today -> commits that lose nothing are unmarked -> begin -> commits that are excluded -> the fence
    -> delete or tag -> finish

A sweep that dies goes on where it stopped.

The current rules are checked before it (`begin_sweep`): a legal hold may have been set since the mark.

    begin    rules, history -> what today's rules keep is unmarked -> begin sweep -> the rules once more
    keep     what today's rules keep of the commits that stay marked is excluded, mostly by a legal hold

That adds no garbage: it only takes objects off a mark. What a hold keeps of an expired commit needs no unmarking: the
commit stays marked, as if the hold had been there when it was marked, and what it names below the prefix stays.

A hold counts if it was set before the sweep began, and where one that stopped is made again, before that. Rules that
cannot be read end the sweep, and nothing is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

import msgspec
import numpy as np

from refstore.context import Context
from refstore.core.arrow_arrays import make_array
from refstore.core.ids import CommitId
from refstore.core.step_progress import ReportProgress, ignore_progress
from refstore.gc_marks import LiveCommit, Marks, OfflineRun, RunState
from refstore.gc_marks.sweep_records import outcome_key
from refstore.operations import rules_document
from refstore.operations.rules_in_force import rules_to_expire_by
from refstore.records.commit_records import StoredCommit
from refstore.records.mark_records import StoredMark
from refstore.retention.active_commits import ExpiryState
from refstore.retention.path_rules import KeepLevel, RetentionPlan, make_plan
from refstore_gc import deletion_index_writer, gc_figures, kv_guard, purged_objects
from refstore_gc.address_codec import encode_addresses
from refstore_gc.engines.choice import Engines
from refstore_gc.live_in_commits import FilterPart, LiveCommits, TreeFilter
from refstore_gc.mark_plan import tree_filter_of
from refstore_gc.nothing_to_delete import find_commits_without
from refstore_gc.run_context import GcOptions, new_run
from refstore_gc.run_layout import make_layout
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

    What the rules of today keep stays (`begin_sweep`). Raises Conflict (not due, not confirmed), Gone (unmarked),
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
    begun = begin_sweep(ctx, marks, mark_id, partial(_unmark_untouched, ctx, marks, engines, report_progress))
    if begun.run.state is RunState.SWEPT:
        return read_summary(ctx.objects, mark_id)
    summary, manifest = read_summary(ctx.objects, mark_id), read_manifest(ctx.objects, mark_id)
    mode = mode or ("tag" if manifest.mode == "tag" else "delete")
    layout, engine = make_layout(ctx, mark_id, manifest.seed), engines.for_objects(summary.marked.objects)
    run = new_run(ctx, engine, GcOptions(mode=mode), report_progress, layout, controlled_as="sweep")
    excluded = _gather(marks.sweeps.excluded_commits(begun.run))
    excluded_count = len([*excluded.commits()])
    by_rules = exclude_kept_commits(marks, begun, excluded)
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
    ctx: Context, marks: Marks, engines: Engines, report_progress: ReportProgress, start: SweepStart
) -> None:
    """Unmark the commits of which the sweep would delete nothing, because others that were unmarked, or a legal hold,
    keep all that they name. They can be read and copied, and the next run marks them again (rule 14).
    """
    excluded = _gather(marks.sweeps.will_exclude(start.run))
    exclude_kept_commits(marks, start, excluded)
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


def _gather(commits: Iterable[tuple[CommitId, StoredCommit]]) -> LiveCommits:
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
            begun = begin_sweep(ctx, marks, tagged.mark_id)
            if begun.run.state is RunState.SWEPT:  # by another process, meanwhile
                return read_summary(ctx.objects, tagged.mark_id)
            excluded = _gather(marks.sweeps.excluded_commits(begun.run))
            exclude_kept_commits(marks, begun, excluded)
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


PAGE: Final = 1000


class SweepStart(NamedTuple):
    run: OfflineRun
    plan: RetentionPlan | None
    """What today's rules come to; None: the mark was swept already."""
    have_rules_changed: bool = False
    """Whether these rules differ from those of the mark."""


def begin_sweep(
    ctx: Context, marks: Marks, mark_id: str, before_begin: Callable[[SweepStart], None] = lambda _: None
) -> SweepStart:
    """Begin the sweep of what today's rules do not keep. `before_begin` is called when its commits can be unmarked for
    the last time. Raises what `Sweeps.begin` raises, and CorruptRecord.
    """
    mark = marks.runs.get(mark_id)
    is_due = mark.state is RunState.MARKED and mark.record.deletes_at_ms <= ctx.clock.now_ms()
    if not is_due and mark.state is not RunState.SWEEPING:
        run = marks.sweeps.begin(mark_id)
        if run.state is not RunState.SWEEPING:
            return SweepStart(run, None)
        # it was confirmed, or became due, a moment ago: what today's rules keep is excluded, as where a sweep is made
        # again
    rules = rules_to_expire_by(ctx)
    history, refs = rules_document.read_history(ctx)
    plan = make_plan(history, refs, rules, ctx.clock.now_ms())
    if is_due:
        marks.commits.unmark_run(mark_id, partial(is_kept, plan))
        before_begin(SweepStart(mark, plan, rules.digest() != mark.record.rules_digest))
    run = marks.sweeps.begin(mark_id)
    latest = rules_to_expire_by(ctx)  # a hold that was set while the history was read
    if latest != rules:
        plan = make_plan(history, refs, latest, ctx.clock.now_ms())
    return SweepStart(run, plan, latest.digest() != run.record.rules_digest)


def is_kept(plan: RetentionPlan, commit: CommitId, mark: StoredMark) -> bool:
    """Return whether a mark takes, as a whole or at one of its prefixes, what the rules keep."""
    number = _number_of(plan, commit)
    if number is None:
        return False
    if not mark.prefixes and plan.expiry.state(number) is ExpiryState.ACTIVE:
        return True
    return any(plan.class_of(prefix).keep_levels[number] == KeepLevel.ALL for prefix in mark.prefixes or ("",))


def exclude_kept_commits(marks: Marks, start: SweepStart, excluded: LiveCommits) -> int:
    """Add to the excluded commits what today's rules keep of commits that stay marked. Return how many of the
    commits that were excluded before are active by these rules.
    """
    plan = start.plan
    if plan is None:
        return 0
    known = set(excluded.commits())
    if start.have_rules_changed:  # else the live scan kept it, by the same rules
        # of all that is marked or swept, not of this mark's commits alone: what a swept one names below a new hold may
        # have been kept for the sake of another, under another name, until now
        marked = (
            (commit, mark)
            for commit, mark in marks.commits.scan()
            if commit not in known and _number_of(plan, commit) is not None
        )
        filter_of = tree_filter_of(plan)
        while page := dict(islice(marked, PAGE)):
            for commit, record in marks.commits.read_commits(page):
                expired_prefixes = page[commit].prefixes or ("",)
                kept_filter = _filter_in_prefixes(
                    expired_prefixes, filter_of(LiveCommit(commit, record, expired_prefixes))
                )
                if kept_filter is None or any(part.keep_level != KeepLevel.NOTHING for part in kept_filter.parts):
                    excluded.add(commit, record, kept_filter)
    return sum(_is_active(plan, commit) for commit in known)


def _filter_in_prefixes(expired_prefixes: tuple[str, ...], kept_filter: TreeFilter | None) -> TreeFilter | None:
    """Return what is kept of the paths that a mark takes; no mark ever took the others."""
    if expired_prefixes == ("",):
        return kept_filter
    parts = (
        kept_filter.parts
        if kept_filter is not None
        else tuple(FilterPart(prefix, KeepLevel.ALL) for prefix in sorted(expired_prefixes, key=len))
    )
    inside = tuple(part for part in parts if part.prefix.startswith(expired_prefixes))
    return TreeFilter((FilterPart("", KeepLevel.NOTHING), *inside))


def _is_active(plan: RetentionPlan, commit: CommitId) -> bool:
    number = _number_of(plan, commit)
    return number is not None and plan.expiry.state(number) is ExpiryState.ACTIVE


def _number_of(plan: RetentionPlan, commit: CommitId) -> int | None:
    """Return the commit's number. None for what was given up: whatever the rules say, nobody can name it."""
    number = plan.expiry.history.numbers.get(commit)
    return None if number is None or plan.expiry.state(number) is ExpiryState.UNLANDED else number
