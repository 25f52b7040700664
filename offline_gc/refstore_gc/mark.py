"""Mark what nobody needs, in the order of rule 13 of the protocol.

    clocks -> the fence -> rules on branches -> rules -> begin (flag, marks) -> wait -> list -> live scan -> anti-join
    -> the fence -> commits with nothing to delete -> files of the mark -> these commits are unmarked -> finish, with
    the breaker

A run of marking that dies leaves nothing that counts: the next one begins anew, under a new mark id. Whatever cannot be
read ends the run with the cause, and nothing is marked.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from itertools import chain
from typing import Final, NamedTuple

import msgspec

from refstore.context import Context
from refstore.core.ids import CommitId
from refstore.core.step_progress import ReportProgress, ignore_progress
from refstore.errors import Corrupt, NotFound, RefstoreError
from refstore.gc_marks import (
    OBJECTS_EXPIRED,
    OPEN_STATES,
    LiveBatch,
    LiveSource,
    Marks,
    OfflineRun,
    RunState,
    new_mark_id,
)
from refstore.gc_marks.commit_marks import PAGE
from refstore.gc_marks.live_set import scan_live_set
from refstore.kv_recovery.fence import PositionFence
from refstore.records.mark_records import GcRun, StoredMark
from refstore_gc import (
    anti_join,
    garbage,
    gc_figures,
    kv_guard,
    list_objects,
    mark_plan,
    nothing_to_delete,
    purged_objects,
)
from refstore_gc.anti_join import JoinResult, LiveSet, collect_live_set, earlier_commits
from refstore_gc.engines.base import Engine
from refstore_gc.engines.choice import Engines
from refstore_gc.incremental import baseline_files
from refstore_gc.incremental.baseline import MARKED_AGAIN, Baseline
from refstore_gc.list_objects import ListedChunk, count_listed
from refstore_gc.mark_plan import (
    MarkDecision,
    check_clock,
    decide_marks,
    minimum_age_seconds,
    store_now_ms,
    tree_filter_of,
)
from refstore_gc.nothing_to_delete import NothingToDeleteCommits
from refstore_gc.run_context import GcOptions, RunContext, new_run, owner
from refstore_gc.run_layout import RunLayout, make_layout, remove_run_files
from refstore_gc.run_summary import (
    BranchRuleResult,
    GcSummary,
    ObjectCount,
    SweepManifest,
    read_summary,
    write_manifest,
    write_summary,
)
from refstore_gc.summary_totals import summarize_mark


class _BegunMark(NamedTuple):
    """A run whose marks are set."""

    run: OfflineRun
    fence: PositionFence
    decision: MarkDecision
    online: BranchRuleResult


class _Look(NamedTuple):
    """What a run listed, and then found live."""

    run: RunContext
    """With the cutoff and the seed of the listing."""
    chunks: Sequence[ListedChunk]
    live: LiveSet
    baseline: Baseline | None
    full_reason: str


def mark(
    ctx: Context, engines: Engines, options: GcOptions, report_progress: ReportProgress = ignore_progress
) -> GcSummary:
    """Mark what nobody needs.

    Why an object is garbage is three hops from here: `anti_join.find_garbage` says what is compared, and brings it
    together in buckets; `bucket_join.join_bucket` is the task of one bucket; `garbage.is_garbage` decides.

    Raises Conflict (another run is active, or took over), StoreMisconfigured (clocks), Corrupt (something cannot be
    read), Unavailable.
    """
    layout = make_layout(ctx, new_mark_id(ctx), secrets.randbits(64))
    last_objects = count_last_compared(ctx)
    run = new_run(ctx, engines.for_objects(last_objects), options, report_progress, layout, controlled_as="mark")
    with closing(run.steps):
        try:
            summary = _mark(run, engines, last_objects)
        except RefstoreError as error:
            gc_figures.record_failure(ctx, error)
            raise
    gc_figures.record_mark(ctx, summary)
    return summary


def _mark(run: RunContext, engines: Engines, last_objects: int) -> GcSummary:
    """Make a mark. `last_objects`: how many the last run compared."""
    ctx, mark_id = run.repository, run.layout.mark_id
    marks, store = Marks(ctx), ctx.objects
    begun = _begin_call(run, marks)
    run.steps.set_beat(lambda: Marks(ctx).mark_run.beat(begun.run))
    with _abandon_on_error(marks, run, begun.run):
        baseline, full_reason = baseline_files.usable(run)
        with _forget_if_damaged(run, baseline):
            marked_again = marks.mark_run.marked_again(begun.run, marks.commits.scan_marked(mark_id))
            if baseline is not None and marked_again:
                baseline, full_reason = None, MARKED_AGAIN
            with run.steps.step("waiting for operations that began before the mark"):
                marks.mark_run.wait(begun.run, check=run.steps.wait)
            look = _look(run, marks, begun, baseline, full_reason)
            run, live, baseline = look.run, look.live, look.baseline
            run = run.move_to(engines.for_objects(max(last_objects, count_listed(look.chunks))))
            is_recorded = live.reads is not None and not run.options.includes_foreign
            result = anti_join.find_garbage(
                run,
                begun.run,
                look.chunks,
                live,
                chain(marks.commits.scan_marked(mark_id), earlier_commits(marks, begun.run)),
                marked_again,
                is_recorded=is_recorded,
                baseline=baseline,
            )
            begun.fence.pass_through()  # the look was made of a KV that lost nothing meanwhile
            candidates = marks.mark_run.may_have_nothing_to_delete(begun.run)
            spared = look_for_nothing_to_delete(run, candidates, result, baseline)
            summary = summarize_mark(
                run,
                begun.run,
                begun.decision,
                result,
                spared,
                begun.online,
                baseline=baseline,
                full_reason=look.full_reason,
            )
            write_manifest(store, _manifest(run, begun, result))
            write_summary(store, summary)
            if is_recorded:
                baseline_files.record(run, begun.run, result, summary.listed + summary.young, spared, baseline)
            summary = _finish(marks, begun.run, summary, spared)
    write_summary(store, summary)
    remove_run_files(store, mark_id, "listing/", "clock")
    baseline_files.remove_unused(run, begun.run, recorded=is_recorded, before=baseline)
    return summary


def _begin_call(run: RunContext, marks: Marks) -> _BegunMark:
    """Check the clocks and the KV, apply the rules on branches, and mark what the rules say has expired."""
    ctx, options, mark_id = run.repository, run.options, run.layout.mark_id
    try:
        check_clock(ctx, run.layout.named_file_key("clock"))
        fence = kv_guard.begin_guarded_pass(ctx, mark_id)
        online = apply_branch_rules(run)
        decision = decide_marks(ctx, rules=options.rules, grace_days=options.grace_days)
        begun = marks.mark_run.begin(
            decision.rules.digest(),
            decision.grace_ms,
            [*decision.commits, *decision.abandoned_commits],
            mark_id,
            partly=decision.partly_expired_commits,
            owner=owner(),
            take_over=options.take_over,
        )
    except BaseException:
        remove_run_files(ctx.objects, mark_id)
        raise
    return _BegunMark(begun, fence, decision, online)


@contextmanager
def _abandon_on_error(marks: Marks, run: RunContext, begun: OfflineRun) -> Generator[None, None, None]:
    """Abandon a run that fails in the block, and remove its files."""
    try:
        yield
    except BaseException as error:
        abandoned = False
        with suppress(RefstoreError):  # the caller needs the first error; the next run clears up the rest
            marks.mark_run.abandon(begun, f"failed: {error}"[:500])
            abandoned = marks.runs.get(begun.mark_id).state is RunState.ABANDONED
        # a mark that stands after all (it was written, and the KV did not answer any more) needs its files
        remove_run_files(run.repository.objects, begun.mark_id, *(() if abandoned else ("listing/", "clock")))
        raise


@contextmanager
def _forget_if_damaged(run: RunContext, baseline: Baseline | None) -> Generator[None, None, None]:
    """Remove the baseline if something cannot be read in the block: the next run is a full one then."""
    try:
        yield
    except Corrupt:
        if baseline is not None:
            baseline_files.forget(run, baseline)
        raise


def _look(run: RunContext, marks: Marks, begun: _BegunMark, baseline: Baseline | None, full_reason: str) -> _Look:
    """List and scan what changed since the baseline; or everything, if there is none that fits."""
    cutoff_ms = store_now_ms(run.repository.objects, run.layout.named_file_key("clock"))
    run = replace(
        run, cutoff_ms=cutoff_ms - int(minimum_age_seconds(run.repository, run.options.min_age_seconds) * 1000)
    )
    if baseline is not None:
        run = run.with_seed(baseline.seed)
    chunks, live = _list_then_scan(run, marks, begun, baseline)
    if baseline is not None:
        own = marks.commits.scan_marked(begun.run.mark_id)
        full_reason = baseline.find_mismatch(live.commits, live.reads, run.cutoff_ms, own)
        if full_reason:
            run, baseline = run.with_seed(secrets.randbits(64)), None
            chunks, live = _list_then_scan(run, marks, begun, None)
    return _Look(run, chunks, live, baseline, full_reason)


def _list_then_scan(
    run: RunContext, marks: Marks, begun: _BegunMark, baseline: Baseline | None
) -> tuple[Sequence[ListedChunk], LiveSet]:
    """List the store, then scan what is live: listed later, an object might be named only since the scan (rule 13)."""
    with run.steps.step("listing the object store"):
        chunks = list_objects.list_objects(run, baseline.horizon if baseline else "")
    with run.steps.step("reading what the KV names") as report_rows:
        live = collect_live_set(
            run, marks.mark_run.scan_live(begun.run), tree_filter_of(begun.decision.plan), report_rows
        )
    return chunks, live


def _manifest(run: RunContext, begun: _BegunMark, result: JoinResult) -> SweepManifest:
    return SweepManifest(
        run.layout.mark_id,
        run.layout.seed,
        run.options.mode,
        result.list_units(),
        begun.fence.servers,
        dead_identities=purged_objects.dead_identity_files(result.rows),
    )


def _finish(marks: Marks, begun: OfflineRun, summary: GcSummary, spared: NothingToDeleteCommits) -> GcSummary:
    """Unmark the commits with nothing to delete, then let the mark stand."""
    whole = marks.mark_run.unmark_nothing_to_delete(begun, spared.commits)
    marked = begun.record.mark_counts["commits_marked"] - whole
    counts = {
        "objects": summary.marked.objects,
        "bytes": summary.marked.bytes,
        OBJECTS_EXPIRED: summary.by_reason.get(garbage.EXPIRED_REASON, ObjectCount()).objects,
        "commits_marked": marked,
        "commits_nothing_to_delete": whole,
    }
    done = marks.mark_run.finish(begun, counts, question=summary.question)
    commits = {**summary.commits, "nothing_to_delete": whole, "commits_marked": marked}
    return msgspec.structs.replace(summary, state=done.state.value, commits=commits)


def count_last_compared(ctx: Context) -> int:
    """Return how many objects the last finished run compared; 0: there is none, or its summary cannot be read."""
    finished = [each.mark_id for each in Marks(ctx).runs.scan() if each.record.finished_ms]
    with suppress(NotFound, Corrupt):
        return read_summary(ctx.objects, finished[-1]).listed.objects if finished else 0
    return 0


def look_for_nothing_to_delete(
    run: RunContext, marked: Iterable[CommitId], result: JoinResult, baseline: Baseline | None
) -> NothingToDeleteCommits:
    """Find the marked commits that name no garbage."""
    with run.steps.step("looking for commits with nothing to delete"):
        commits = result.live_set.commits
        landed = {commit: metarange for commit in marked if (metarange := commits.metarange(commit)) is not None}
        return nothing_to_delete.find_nothing_to_delete(
            run.layout,
            run.engine,
            landed,
            commits.whole_trees(),
            [*(unit.key for unit in result.list_units()), *purged_objects.dead_identity_files(result.rows)],
            baseline.nothing_to_delete if baseline else None,
        )


def apply_branch_rules(run: RunContext, *, dry_run: bool = False) -> BranchRuleResult:
    with run.steps.step("applying rules to branches"):
        return mark_plan.apply_branch_rules(run.repository, run.options.rules, dry_run=dry_run)


SIMULATED_STATE: Final = "simulated"
"""The state in the summary of a simulation, which marks nothing."""


def simulate_mark(
    ctx: Context, engines: Engines, options: GcOptions, report_progress: ReportProgress = ignore_progress
) -> GcSummary:
    """Return what `mark` would mark now, by the repository's rules or by `options.rules`.

    A simulation changes nothing: it marks no commit and waits for nobody. It writes its own files to a temporary folder
    (on a cluster: to the namespace, until it ends). It is an estimate where others write meanwhile.
    """
    marks, now, mark_id = Marks(ctx), ctx.clock.now_ms(), new_mark_id(ctx)
    last_objects = count_last_compared(ctx)
    engine = engines.for_objects(last_objects)
    with _open_scratch_layout(ctx, engine, mark_id) as layout:
        run = new_run(ctx, engine, options, report_progress, layout)
        online = apply_branch_rules(run, dry_run=True)
        decision = decide_marks(ctx, rules=options.rules, grace_days=options.grace_days)
        open_marks = tuple(each.mark_id for each in marks.runs.scan() if each.state in OPEN_STATES)
        digest, deletes_at_ms = decision.rules.digest(), now + decision.grace_ms
        record = GcRun("", RunState.MARKING, now, decision.grace_ms, deletes_at_ms, digest, open_marks, now)
        simulated = OfflineRun(mark_id, record)
        expired = {
            **dict.fromkeys((*decision.commits, *decision.abandoned_commits), ("",)),
            **dict(decision.partly_expired_commits),
        }
        run = replace(run, cutoff_ms=now - int(minimum_age_seconds(ctx, options.min_age_seconds) * 1000))
        with run.steps.step("listing the object store"):
            chunks = list_objects.list_objects(run)
        run = run.move_to(engines.for_objects(max(last_objects, count_listed(chunks))))
        with run.steps.step("reading what the KV names") as report_rows:
            scan = _simulate_marks(scan_live_set(ctx, simulated, PAGE), expired, set(decision.abandoned_commits))
            live = collect_live_set(run, scan, tree_filter_of(decision.plan), report_rows)
        own_marks = dict(zip(expired, marks.commits.read_marks(list(expired)), strict=True))
        result = anti_join.find_garbage(
            run,
            simulated,
            chunks,
            live,
            [*expired, *earlier_commits(marks, simulated)],
            marked_again=marks.mark_run.marked_again(simulated, _find_new_marks(expired, own_marks)),
        )
        unmarked = (commit for commit, own in own_marks.items() if own is None)
        spared = look_for_nothing_to_delete(run, unmarked, result, None)
        summary = summarize_mark(run, simulated, decision, result, spared, online)
        return msgspec.structs.replace(summary, state=SIMULATED_STATE)


def _simulate_marks(
    scan: Iterable[LiveBatch], expired: Mapping[CommitId, tuple[str, ...]], given_up: Set[CommitId]
) -> Iterator[LiveBatch]:
    """Change a live scan to what it would be after the marks. A given-up commit keeps nothing, not even its tree. A
    commit that is marked in part loses the prefixes that would be marked, too.
    """
    for batch in scan:
        if batch.source is LiveSource.HEAD:
            yield batch
        else:
            remaining = (each for each in batch.commits if each.commit not in given_up)
            yield batch._replace(
                commits=[
                    each._replace(expired_prefixes=_merge_prefixes(each.expired_prefixes, expired.get(each.commit, ())))
                    for each in remaining
                ]
            )


def _find_new_marks(
    expired: Mapping[CommitId, tuple[str, ...]], own_marks: Mapping[CommitId, StoredMark | None]
) -> Iterator[CommitId]:
    """Yield the commits that a run would mark, with the prefixes of `expired`, or would mark further."""
    for commit, prefixes in expired.items():
        own = own_marks[commit]
        if own is None or (own.prefixes and not set(prefixes) <= set(own.prefixes)):
            yield commit


def _merge_prefixes(marked: tuple[str, ...], would_be_marked: tuple[str, ...]) -> tuple[str, ...]:
    return ("",) if "" in (*marked, *would_be_marked) else tuple(sorted({*marked, *would_be_marked}))


@contextmanager
def _open_scratch_layout(ctx: Context, engine: Engine, mark_id: str) -> Generator[RunLayout, None, None]:
    """Yield where a simulation writes its own files."""
    seed = secrets.randbits(64)
    if engine.is_on_one_machine:
        with engine.scratch_folder() as folder:
            yield make_layout(ctx, mark_id, seed, files=f"{folder.as_uri()}?fsync=0")
        return
    try:
        yield make_layout(ctx, mark_id, seed)
    finally:
        remove_run_files(ctx.objects, mark_id)
