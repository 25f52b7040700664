"""The operations of the offline job, in the order of rule 13 of the protocol.

    mark    clocks -> rules on branches -> rules -> begin (marks, flag) -> wait -> list -> live scan -> anti-join
            -> breaker -> complete commits are unmarked -> finish
    sweep   the rules of today -> begin -> commits that are excluded -> delete or tag -> finish

A run of marking that dies leaves nothing that counts: the next one begins anew, under a new mark id. A sweep that dies
goes on where it stopped. Whatever cannot be read ends the run with the cause, and nothing is marked.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from refstore.context import Context
from refstore.core.ids import CommitId
from refstore.core.records import GcRun, Mark
from refstore.errors import Corrupt, KVUnavailable, NotFound, RefstoreError, RunStopped
from refstore.gc_marks import OBJECTS_EXPIRED, STANDING, LiveBatch, LiveSource, Marks, Run, RunState, new_mark_id
from refstore.gc_marks.commit_marks import PAGE
from refstore.gc_marks.live_set import scan_live_set
from refstore.gc_marks.sweep_records import outcome_key
from refstore.run_control import RunControl
from refstore_gc import (
    anti_join,
    branch_rules,
    complete_commits,
    deletion_index_writer,
    garbage,
    gc_figures,
    kv_guard,
    listing,
    purge_cleaning,
    purged_objects,
    report,
    rules_recheck,
)
from refstore_gc.anti_join import JoinResult, LiveSet, collect_live_set, earlier_commits
from refstore_gc.complete_commits import CompleteCommits
from refstore_gc.engines.base import Engine
from refstore_gc.engines.choice import Engines
from refstore_gc.incremental import baseline as baselines
from refstore_gc.incremental import join as incremental
from refstore_gc.incremental.baseline import Baseline
from refstore_gc.listing import ListedChunk, count_listed
from refstore_gc.live_in_commits import LiveCommits
from refstore_gc.mark_plan import Decision, age_seconds, check_clock, decide, filters_of, store_now_ms
from refstore_gc.run_context import Options, RunContext
from refstore_gc.run_layout import RunLayout, layout_of, remove
from refstore_gc.run_progress import Steps, Tell, silent
from refstore_gc.run_summary import (
    CleaningSummary,
    Count,
    Manifest,
    Mode,
    Online,
    Summary,
    Swept,
    read_manifest,
    read_summary,
    read_units,
    write_manifest,
    write_summary,
)
from refstore_gc.statistics import summarize_mark, summarize_sweep
from refstore_gc.sweep_tasks import settle
from refstore_gc.sweep_tasks import sweep as sweep_units

SIMULATED: Final = "simulated"
"""The state in the summary of a simulation, which marks nothing."""


def mark(ctx: Context, engines: Engines, options: Options, tell: Tell = silent) -> Summary:
    """Mark what nobody needs.

    Why an object is garbage is four hops from here: `anti_join.find_garbage` says what is compared;
    `anti_join.join` brings it together in buckets; `incremental.join.join_bucket` is the task of one bucket
    (`garbage.join_bucket` where nothing is recorded for the next run); `garbage.subtract_live` decides. Only what an
    earlier run listed is decided elsewhere: `incremental.join._earlier_garbage`. The listing leaves out what is younger
    than the cutoff (`listing.list_interval`). What counts as named: `refstore/gc_marks/live_set.py`.

    Raises Conflict (another run is active, or took over), StoreMisconfigured (clocks), Corrupt (something cannot be
    read), Unavailable.
    """
    layout = layout_of(ctx, new_mark_id(ctx), secrets.randbits(64))
    last_objects = _count_last_compared(ctx)
    run = _new_run(ctx, engines.for_objects(last_objects), options, tell, layout, controlled_as="mark")
    with closing(run.steps):
        try:
            summary = _mark(run, engines, last_objects)
        except RefstoreError as error:
            gc_figures.note_failure(ctx, error)
            raise
    gc_figures.note_mark(ctx, summary)
    return summary


def _mark(run: RunContext, engines: Engines, last_objects: int) -> Summary:
    """Make a mark. `last_objects`: how many the last run compared."""
    ctx, options = run.repository, run.options
    marks, store, mark_id = Marks(ctx), ctx.objects, run.layout.mark_id
    min_age_seconds = age_seconds(ctx, options.min_age_seconds)
    try:
        check_clock(ctx, run.layout.file("clock"))
        fence = kv_guard.begin(ctx, mark_id)
        online = _apply_branch_rules(run)
        decision = decide(ctx, rules=options.rules, grace_days=options.grace_days)
        begun = marks.begin(
            decision.rules.digest(),
            decision.grace_ms,
            [*decision.commits, *decision.given_up],
            mark_id,
            partly=decision.partly,
            owner=_owner(),
            take_over=options.take_over,
        )
    except BaseException:
        remove(store, mark_id)
        raise
    run.steps.beat_with(lambda: Marks(ctx).beat(begun))
    usable: Baseline | None = None
    try:
        usable, why_complete = baselines.usable(run)
        marked_again = marks.marked_again(begun, marks.marked(mark_id))
        if usable is not None and marked_again:
            usable, why_complete = None, baselines.MARKED_AGAIN
        with run.steps.step("waiting for operations that began before the mark"):
            marks.wait(begun, check=run.steps.wait)
        run = replace(run, cutoff_ms=store_now_ms(store, run.layout.file("clock")) - int(min_age_seconds * 1000))
        baseline = usable
        if baseline is not None:
            run = _with_seed(run, baseline.seed)
        chunks, live = _list_then_scan(run, begun, decision, baseline)
        if baseline is not None and (
            why_complete := baseline.unfit(live.commits, live.reads, run.cutoff_ms, marks.marked(mark_id))
        ):
            baseline = None
            run = _with_seed(run, secrets.randbits(64))
            chunks, live = _list_then_scan(run, begun, decision, None)
        run = run.move_to(engines.for_objects(max(last_objects, count_listed(chunks))))
        recorded = live.reads is not None and not options.foreign
        if baseline is not None and live.reads is not None:
            result = incremental.find_garbage(run, begun, chunks, live, live.reads, baseline)
        else:
            expired = [*marks.marked(mark_id), *earlier_commits(marks, begun)]
            join_bucket = incremental.join_bucket if recorded else garbage.join_bucket
            result = anti_join.find_garbage(run, begun, chunks, live, expired, join_bucket, marked_again)
        fence.pass_through()  # the look was made of a KV that lost nothing meanwhile
        complete = _find_complete(run, marks.may_be_complete(begun), result, baseline)
        summary = summarize_mark(
            run,
            begun,
            decision,
            result,
            complete,
            online,
            goes_on_from=baseline.mark_id if baseline else "",
            there_before=baseline.there if baseline else Count(),
            why_complete=why_complete,
        )
        write_manifest(
            store,
            Manifest(
                mark_id,
                run.layout.seed,
                options.mode,
                result.units(),
                fence.servers,
                dead_identities=purged_objects.files_of(result.counts),
            ),
        )
        write_summary(store, summary)
        if recorded:
            baselines.record(run, begun, result, summary.listed + summary.young, complete, baseline)
        whole = marks.unmark_complete(begun, complete.commits)
        counts = {"objects": summary.marked.objects, "bytes": summary.marked.bytes}
        counts[OBJECTS_EXPIRED] = summary.by_reason.get(garbage.EXPIRED, Count()).objects
        marked = begun.record.counts["commits_marked"] - whole
        counts |= {"commits_marked": marked, "commits_complete": whole}
        done = marks.finish_marking(begun, counts, question=summary.question)
    except BaseException as error:
        abandoned = False
        with suppress(
            RefstoreError
        ):  # the caller needs the first error; the next run clears up what this one could not
            marks.abandon(begun, f"failed: {error}"[:500])
            abandoned = marks.run(mark_id).state is RunState.ABANDONED
        # a mark that stands after all (it was written, and the KV did not answer any more) needs its files
        remove(store, mark_id, *(() if abandoned else ("listing/", "clock")))
        if usable is not None and isinstance(error, Corrupt):
            remove(store, usable.mark_id, baselines.FILE)  # the next run is complete
        raise
    summary = msgspec.structs.replace(
        summary, state=done.state.value, commits={**summary.commits, "complete": whole, "commits_marked": marked}
    )
    write_summary(store, summary)
    remove(store, mark_id, "listing/", "clock")
    baselines.remove_unused(run, begun, recorded=recorded, before=baseline)
    return summary


def _count_last_compared(ctx: Context) -> int:
    """Return how many objects the last finished run compared; 0: there is none, or its summary cannot be read."""
    finished = [each.mark_id for each in Marks(ctx).runs() if each.record.finished_ms]
    with suppress(NotFound, Corrupt):
        return read_summary(ctx.objects, finished[-1]).listed.objects if finished else 0
    return 0


def _new_run(
    ctx: Context, engine: Engine, options: Options, tell: Tell, layout: RunLayout, *, controlled_as: str = ""
) -> RunContext:
    """`controlled_as`: the kind of run that operators see, and can stop; '': they cannot."""
    control = RunControl(ctx, layout.mark_id, controlled_as, _owner()) if controlled_as else None
    return RunContext(repository=ctx, engine=engine, options=options, steps=Steps(engine, tell, control), layout=layout)


def _owner() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _with_seed(run: RunContext, seed: int) -> RunContext:
    return replace(run, layout=msgspec.structs.replace(run.layout, seed=seed))


def _list_then_scan(
    run: RunContext, begun: Run, decision: Decision, baseline: Baseline | None
) -> tuple[Sequence[ListedChunk], LiveSet]:
    """List the store, and scan what is live after the listing is complete (rule 13)."""
    with run.steps.step("listing the object store"):
        chunks = incremental.list_objects(run, baseline) if baseline else listing.list_objects(run)
    with run.steps.step("reading what the KV names") as report_rows:
        scan = Marks(run.repository).scan_live(begun)
        return chunks, collect_live_set(run, scan, filters_of(decision.plan), report_rows)


def _find_complete(
    run: RunContext, marked: Iterable[CommitId], result: JoinResult, baseline: Baseline | None
) -> CompleteCommits:
    """Find the marked commits that name no garbage."""
    with run.steps.step("looking for commits that are complete"):
        commits = result.live.commits
        landed = {commit: metarange for commit in marked if (metarange := commits.metarange(commit)) is not None}
        question = complete_commits.Question(
            run.layout,
            landed,
            commits.whole_trees(),
            [*(unit.key for unit in result.units()), *purged_objects.files_of(result.counts)],
            baseline.complete_commits if baseline else None,
        )
        return complete_commits.find(question, run.engine)


def simulate(ctx: Context, engines: Engines, options: Options, tell: Tell = silent) -> Summary:
    """Return what `mark` would mark now, by the repository's rules or by `options.rules`.

    A simulation changes nothing: it marks no commit and waits for nobody. It writes its own files to a temporary folder
    (on a cluster: to the namespace, until it ends). It is an estimate where others write meanwhile.
    """
    marks, now, mark_id = Marks(ctx), ctx.clock.now_ms(), new_mark_id(ctx)
    last_objects = _count_last_compared(ctx)
    engine = engines.for_objects(last_objects)
    with _scratch(ctx, engine, mark_id) as layout:
        run = _new_run(ctx, engine, options, tell, layout)
        online = _apply_branch_rules(run, dry_run=True)
        decision = decide(ctx, rules=options.rules, grace_days=options.grace_days)
        standing = tuple(each.mark_id for each in marks.runs() if each.state in STANDING)
        digest, deletes_at_ms = decision.rules.digest(), now + decision.grace_ms
        record = GcRun("", RunState.MARKING, now, decision.grace_ms, deletes_at_ms, digest, standing, now)
        simulated = Run(mark_id, record)
        expired = {**dict.fromkeys((*decision.commits, *decision.given_up), ("",)), **dict(decision.partly)}
        run = replace(run, cutoff_ms=now - int(age_seconds(ctx, options.min_age_seconds) * 1000))
        with run.steps.step("listing the object store"):
            chunks = listing.list_objects(run)
        run = run.move_to(engines.for_objects(max(last_objects, count_listed(chunks))))
        with run.steps.step("reading what the KV names") as report_rows:
            scan = _as_if_marked(scan_live_set(ctx, simulated, PAGE), expired, set(decision.given_up))
            live = collect_live_set(run, scan, filters_of(decision.plan), report_rows)
        own_marks = dict(zip(expired, marks.of(list(expired)), strict=True))
        result = anti_join.find_garbage(
            run,
            simulated,
            chunks,
            live,
            [*expired, *earlier_commits(marks, simulated)],
            marked_again=marks.marked_again(simulated, _newly_marked(expired, own_marks)),
        )
        unmarked = (commit for commit, own in own_marks.items() if own is None)
        complete = _find_complete(run, unmarked, result, None)
        summary = summarize_mark(run, simulated, decision, result, complete, online)
        return msgspec.structs.replace(summary, state=SIMULATED)


def _apply_branch_rules(run: RunContext, *, dry_run: bool = False) -> Online:
    with run.steps.step("applying rules to branches"):
        return branch_rules.apply(run.repository, run.options.rules, dry_run=dry_run)


def _as_if_marked(
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
                    each._replace(expired_prefixes=_both(each.expired_prefixes, expired.get(each.commit, ())))
                    for each in remaining
                ]
            )


def _newly_marked(
    expired: Mapping[CommitId, tuple[str, ...]], own_marks: Mapping[CommitId, Mark | None]
) -> Iterator[CommitId]:
    """Yield the commits that a run would mark, with the prefixes of `expired`, or would mark further."""
    for commit, prefixes in expired.items():
        own = own_marks[commit]
        if own is None or (own.prefixes and not set(prefixes) <= set(own.prefixes)):
            yield commit


def _both(marked: tuple[str, ...], would_be_marked: tuple[str, ...]) -> tuple[str, ...]:
    return ("",) if "" in (*marked, *would_be_marked) else tuple(sorted({*marked, *would_be_marked}))


@contextmanager
def _scratch(ctx: Context, engine: Engine, mark_id: str) -> Generator[RunLayout, None, None]:
    """Yield where a simulation writes its own files."""
    seed = secrets.randbits(64)
    if engine.is_on_one_machine:
        with engine.scratch_folder() as folder:
            yield layout_of(ctx, mark_id, seed, files=f"{folder.as_uri()}?fsync=0")
        return
    try:
        yield layout_of(ctx, mark_id, seed)
    finally:
        remove(ctx.objects, mark_id)


# ---- the sweep


def sweep(ctx: Context, engines: Engines, mark_id: str, tell: Tell = silent, *, mode: Mode | None = None) -> Summary:
    """Delete, or tag, what a mark holds and nothing names again. Made again it goes on; once swept it does nothing.

    The bucket deletes what is tagged. Until it has, the sweep made again asks how far it is (`_settle`), and the mark
    is not swept. `mode` overrides the mark's own; `delete` also takes what was tagged, without waiting for the bucket.

    What the rules of today keep stays (`rules_recheck.py`). Raises Conflict (not due, not confirmed), Gone (unmarked),
    NotFound, Corrupt, Unavailable. What the store did not delete after retries stands in the summary as failed, and the
    mark stays open: the next sweep tries it again.
    """
    marks = Marks(ctx)
    if marks.run(mark_id).state is RunState.MARKED:
        read_summary(ctx.objects, mark_id)  # while it can still be unmarked
        read_units(ctx.objects, mark_id)
    if marks.run(mark_id).is_tagged and mode != "delete":
        return _settle(ctx, engines, marks.run(mark_id), tell)
    fence = kv_guard.begin(ctx, mark_id)
    if marks.run(mark_id).state in (RunState.MARKED, RunState.SWEEPING):
        seen = read_manifest(ctx.objects, mark_id).servers
        kv_guard.give_up_if_others_answer(marks, mark_id, seen, fence)
    begun = rules_recheck.begin(ctx, marks, mark_id)
    if begun.run.state is RunState.SWEPT:
        return read_summary(ctx.objects, mark_id)
    summary, manifest = read_summary(ctx.objects, mark_id), read_manifest(ctx.objects, mark_id)
    mode = mode or ("tag" if manifest.mode == "tag" else "delete")
    layout, engine = layout_of(ctx, mark_id, manifest.seed), engines.for_objects(summary.marked.objects)
    run = _new_run(ctx, engine, Options(mode=mode), tell, layout, controlled_as="sweep")
    excluded = _excluded(marks, begun.run)
    excluded_count = len([*excluded.commits()])
    by_rules = rules_recheck.keep(marks, begun, excluded)
    fence.pass_through()
    with closing(run.steps), run.steps.step("sweeping"):
        outcomes = sweep_units(run, manifest.units, excluded, mode)
    swept = summarize_sweep(outcomes, mode, excluded_count, ctx.clock.now_ms(), run.steps.seconds.get("sweeping", 0.0))
    swept = msgspec.structs.replace(
        swept, dropped_out_by_rules=by_rules, rules_changed=begun.changed, engine=run.engine.name
    )
    if not (swept.failed or swept.tagged.objects):  # the identities' own objects are gone
        purged = purged_objects.delete_dead(ctx, run.layout, manifest.dead_identities, excluded)
        swept = swept.with_purged(purged)
    return _note_outcome(ctx, begun.run, summary, manifest, swept)


def _excluded(marks: Marks, swept_run: Run) -> LiveCommits:
    """Return the commits whose objects the sweep must leave."""
    excluded = LiveCommits()
    for commit_id, commit in marks.excluded_commits(swept_run):
        excluded.add(commit_id, commit, None)
    return excluded


def _settle(ctx: Context, engines: Engines, tagged: Run, tell: Tell) -> Summary:
    """Ask what the bucket has deleted of what a mark tagged; with the last of it the mark is swept."""
    summary, manifest = read_summary(ctx.objects, tagged.mark_id), read_manifest(ctx.objects, tagged.mark_id)
    engine = engines.for_objects(summary.marked.objects)
    run = _new_run(ctx, engine, Options(mode="tag"), tell, layout_of(ctx, tagged.mark_id, manifest.seed))
    with run.steps.step("asking what the bucket has deleted"):
        outcomes = settle(run, manifest.units)
    swept, before = summarize_sweep(outcomes, "tag", 0, ctx.clock.now_ms(), 0.0), summary.swept
    if manifest.dead_identities and not (swept.failed or swept.tagged.objects):
        fence = kv_guard.begin(ctx, tagged.mark_id)
        if manifest.servers == fence.servers:  # else what the mark saw may not be so: the next complete run looks again
            excluded = _excluded(Marks(ctx), tagged)
            fence.pass_through()
            purged = purged_objects.delete_dead(ctx, run.layout, manifest.dead_identities, excluded)
            swept = swept.with_purged(purged)
    if before is not None:
        swept = msgspec.structs.replace(
            swept,
            commits_dropped_out=before.commits_dropped_out,
            dropped_out_by_rules=before.dropped_out_by_rules,
            rules_changed=before.rules_changed,
            seconds=before.seconds,
        )
    return _note_outcome(ctx, tagged, summary, manifest, swept)


def _note_outcome(ctx: Context, swept_run: Run, summary: Summary, manifest: Manifest, swept: Swept) -> Summary:
    """Write down how far a sweep is: to be tried again, tagged and waiting for the bucket, or over."""
    marks, mark_id = Marks(ctx), swept_run.mark_id
    counts = {name: count.objects for name, count in swept.outcomes.items()}
    if not swept.failed:
        files = [outcome_key(unit.key) for unit in manifest.units]
        deletion_index_writer.index_sweep(ctx, mark_id, files, swept.at_ms)
        finish = marks.note_tagged if swept.tagged.objects else marks.finish_sweep
        swept_run = finish(mark_id, counts)
    earlier = summary.swept.outcomes if summary.swept is not None else {}
    newly = {name: count - earlier.get(name, Count()) for name, count in swept.outcomes.items()}
    swept = msgspec.structs.replace(swept, tagged_ms=swept_run.record.tagged_ms, newly=newly)
    summary = msgspec.structs.replace(summary, state=swept_run.shown, swept=swept)
    write_summary(ctx.objects, summary)
    gc_figures.note_sweep(ctx, swept)
    return summary


# ---- both


@dataclass(frozen=True, slots=True)
class Ran:
    """What a nightly run did in one repository."""

    marked: Summary
    swept: Sequence[Summary]
    """The marks that were due, this run's own among them if there is no grace; each as its last sweep left it.
    """
    waiting: Sequence[Run]
    """Marks that stand and are not due, or need an operator."""

    @property
    def latest(self) -> Summary:
        """Return what was marked, with its sweep if that was at once."""
        return next((each for each in self.swept if each.mark_id == self.marked.mark_id), self.marked)

    @property
    def failed(self) -> int:
        """Return how many objects the store did not delete: of the sweeps, and of what purges left behind."""
        cleaned = self.marked.cleaned
        of_sweeps = sum(summary.swept.failed for summary in self.swept if summary.swept is not None)
        return of_sweeps + (cleaned.failed if cleaned is not None else 0)


def run(
    ctx: Context,
    engines: Engines,
    options: Options,
    tell: Tell = silent,
    *,
    on_unswept: Callable[[str, RefstoreError], None] | None = None,
    on_swept: Callable[[Summary], None] | None = None,
) -> Ran:
    """Do the nightly job: delete what purges left behind, sweep what is due, then mark, then sweep what is due at once.
    What was swept is not listed again.

    A sweep that fails is reported to `on_unswept` and stops nothing else; without `on_unswept` it raises. `on_swept`
    gets each sweep before the marking, which may raise.
    """
    ctx.audit.write_waiting()
    unswept: set[str] = set()
    """The marks whose sweeps failed, and `purge` if the cleaning of purges did."""
    cleaned: CleaningSummary | None = None
    try:
        cleaned = purge_cleaning.clean(ctx)
    except RefstoreError as error:
        if on_unswept is None or isinstance(error, KVUnavailable):
            raise
        gc_figures.note_failure(ctx, error)
        on_unswept("purge", error)
        unswept.add("purge")
    swept: dict[str, Summary] = {}
    for each in _sweep_due(ctx, engines, tell, on_unswept, unswept):
        swept[each.mark_id] = each
        if on_swept is not None:
            on_swept(each)
    marked = mark(ctx, engines, options, tell)
    if cleaned not in (None, CleaningSummary()):
        marked = msgspec.structs.replace(marked, cleaned=cleaned)
        write_summary(ctx.objects, marked)
    swept |= {each.mark_id: each for each in _sweep_due(ctx, engines, tell, on_unswept, unswept)}
    forget_old(ctx)
    deletion_index_writer.catch_up_or_log(ctx)
    _draw(ctx, [marked, *swept.values()])
    if not unswept:
        gc_figures.note_run(ctx)
    waiting = [
        each
        for each in Marks(ctx).runs()
        if each.state in (RunState.MARKED, RunState.NEEDS_CONFIRMATION, RunState.SWEEPING)
    ]
    return Ran(marked, list(swept.values()), waiting)


def _sweep_due(
    ctx: Context,
    engines: Engines,
    tell: Tell,
    on_unswept: Callable[[str, RefstoreError], None] | None,
    unswept: set[str],
) -> Iterator[Summary]:
    """Sweep the marks that are due. `unswept`: those whose sweep failed, which are not tried again; it grows.

    No sweep needs that of an earlier mark: what commits name that stand under one that is not swept yet is excluded
    (rule 14).
    """
    marks = Marks(ctx)
    for mark_id in [each.mark_id for each in marks.runs()]:
        if mark_id in unswept or not marks.run(mark_id).is_due(
            ctx.clock.now_ms()
        ):  # its state now: the earlier sweeps took their time
            continue
        try:
            done = sweep(ctx, engines, mark_id, tell)
        except RefstoreError as error:
            if on_unswept is None or isinstance(error, KVUnavailable | RunStopped):
                raise
            gc_figures.note_failure(ctx, error)
            unswept.add(mark_id)
            on_unswept(mark_id, error)
        else:
            yield done


def _draw(ctx: Context, done: Iterable[Summary]) -> None:
    """Write the pages of what this run did."""
    every = list(report.summaries(ctx.objects, Marks(ctx), readable=True))
    mark_ids = {summary.mark_id for summary in done}
    for number, summary in enumerate(every):
        if summary.mark_id in mark_ids:
            report.write_page(ctx.objects, summary, every[:number])


def forget_old(ctx: Context) -> None:
    """Remove the files of runs that came to nothing. Those of marks that stand or were swept are the report."""
    for each in Marks(ctx).runs():
        if each.state is RunState.ABANDONED:
            remove(ctx.objects, each.mark_id)


__all__ = ["Options", "Ran", "forget_old", "mark", "run", "sweep"]
