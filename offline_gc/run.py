"""The flows of the offline job, each in one function, in the order of rule 13: mark, wait, list, look, conclude; and the sweep.

    mark    clocks -> rules on branches -> rules -> begin (marks, flag) -> wait -> listing -> look -> what nobody names -> breaker
            -> complete commits are unmarked -> finish
    sweep   the rules of today -> begin -> what dropped out since -> delete or tag -> finish

A run of marking that dies leaves nothing that counts: the next one begins anew, under a new mark id. A sweep that dies goes on where it
stopped. Whatever cannot be read ends the run with the cause, and nothing is marked.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from offline_gc import breaker, carried, committed, complete_commits, deletion_index, kept, listing, online, rechecking, report, sweeping
from offline_gc.addresses import Cuts
from offline_gc.carried import Carried, CompleteCommits
from offline_gc.committed import Wanted
from offline_gc.comparing import Compared, Gathered, earlier, gathered, left_over
from offline_gc.counting import summarised, swept_of
from offline_gc.deciding import Decision, age_seconds, check_clock, decide, filters_of, horizon, store_now_ms
from offline_gc.listing import ListedStretch
from offline_gc.packets import Packet, Side
from offline_gc.places import TAG, Work, remove, work_of
from offline_gc.session import parts_of, translated
from offline_gc.small import Small
from offline_gc.steps import Steps, Tell, silent
from offline_gc.summary import (
    Count,
    Manifest,
    Online,
    Summary,
    Swept,
    read_manifest,
    read_summary,
    read_units,
    write_manifest,
    write_summary,
)
from offline_gc.sweeping import Mode, Outcome, Unit
from refstore.context import Context
from refstore.errors import Corrupt, KVUnavailable, RefstoreError
from refstore.ids import CommitId
from refstore.marks import STANDING, Marks, Named, Run, Source, State, new_mark_id
from refstore.marks.commits import PAGE
from refstore.marks.looking import everything
from refstore.objects import open_objects
from refstore.objects.base import ObjectStore
from refstore.records import GcRun
from refstore.retention.rules import Rules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIMULATED: Final = "simulated"
"""The state of what was not marked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is asked of a run. Durations that safety rests on stand in `Safety`."""

    grace_days: float | None = None
    """Instead of the rules'."""
    min_age_seconds: float | None = None
    """Younger objects are left alone; None: a day. Never less than the longest operation."""
    mode: Mode = "delete"
    tag: str = TAG
    """The key of the tag that the bucket's lifecycle rule deletes by, where the mode is `tag`."""
    limits: breaker.Limits = field(default_factory=breaker.Limits)
    foreign: bool = False
    """Whether what lies in `data/` and was not written by refstore goes, too."""
    full: bool = False
    """Whether everything is listed and read anew, though an earlier run could be gone on from."""
    full_days: float = 7.0
    """How old a complete run may be that others go on from."""
    small: Small | None = field(default_factory=Small)
    """What the driver does itself of a run that goes on from another; None: Spark does everything."""
    take_over: bool = False
    """Whether a run that is on, or died a moment ago, is taken over without waiting for it to be stale."""
    rules: Rules | None = None
    """Instead of the repository's own: for `simulate`."""


def mark(ctx: Context, spark: SparkSession, options: Options, tell: Tell = silent) -> Summary:
    """Mark what nobody needs.

    Raises Conflict (another run is on, or took over), StoreMisconfigured (clocks), Corrupt (something cannot be read), Unavailable.
    """
    marks, store = Marks(ctx), ctx.objects
    work = work_of(ctx, new_mark_id(ctx), secrets.randbits(64))
    age = age_seconds(ctx, options.min_age_seconds)
    try:
        check_clock(ctx, work.file("clock"))
        applied, seconds = _on_branches(ctx, options, tell)
        decision = decide(ctx, rules=options.rules, grace_days=options.grace_days)
        run = marks.begin(
            decision.rules.digest(),
            decision.grace_ms,
            [*decision.commits, *decision.given_up],
            work.mark_id,
            partly=decision.partly,
            owner=f"{socket.gethostname()}:{os.getpid()}",
            take_over=options.take_over,
        )
    except BaseException:
        remove(store, work.mark_id)
        raise
    steps = Steps(spark, tell, lambda: Marks(ctx).beat(run))
    steps.seconds.update(seconds)
    before: Carried | None = None
    try:
        before, why_complete = _before(ctx, marks, options)
        work = msgspec.structs.replace(work, seed=before.seed) if before else work
        with steps.step("waiting for operations that began before the mark"):
            marks.wait(run)
        cutoff_ms = store_now_ms(store, work.file("clock")) - int(age * 1000)
        work, stretches, named, gone_on, why_complete = _looked(
            ctx, spark, work, run, options, decision, cutoff_ms, before, why_complete, steps
        )
        units = None if options.foreign else named.units
        expired = [*marks.marked(run.mark_id), *earlier(marks, run)]
        compared = left_over(
            ctx,
            spark,
            work,
            run,
            stretches,
            named,
            expired,
            steps,
            gone_on,
            carry=units is not None,
            small=options.small if gone_on else None,
        )
        complete = _complete(spark, work, marks.may_be_complete(run), named, compared, gone_on, steps)
        summary = summarised(
            ctx, run, decision, age, stretches, named, compared, options.limits, applied, steps.seconds, gone_on, why_complete
        )
        summary = _with_complete(summary, decision, complete)
        write_manifest(store, Manifest(run.mark_id, work.seed, options.mode, compared.units(), options.tag))
        write_summary(store, summary)
        if units is not None:
            carried.carry_over(
                store,
                run,
                work,
                compared.layer(),
                units,
                cutoff_ms=cutoff_ms,
                horizon=horizon(ctx.safety, cutoff_ms),
                former=named.addresses.files,
                listed=summary.listed + summary.young,
                before=gone_on,
                complete_commits=complete,
            )
        whole = marks.unmark_complete(run, complete.commits)
        counts = {"objects": summary.marked.objects, "bytes": summary.marked.bytes}
        counts |= {"commits_marked": run.record.counts["commits_marked"] - whole, "commits_complete": whole}
        done = marks.finish_marking(run, counts, question=summary.question)
    except BaseException as error:
        over = False
        with suppress(RefstoreError):  # it is told what went wrong first; the next run clears up what this one could not
            marks.abandon(run, f"failed: {error}"[:500])
            over = marks.run(run.mark_id).state is State.ABANDONED
        # a mark that stands after all (it was written, and the KV did not answer any more) needs its files
        remove(store, run.mark_id, *(() if over else ("listing/", "clock")))
        if before is not None and isinstance(error, Corrupt):
            remove(store, before.mark_id, carried.FILE)  # the next run begins anew
        raise
    summary = msgspec.structs.replace(summary, state=done.state.value)
    write_summary(store, summary)
    remove(store, run.mark_id, "listing/", "clock")
    carried.drop(store, marks, run, gone_on, carry=units is not None)
    return summary


def _before(ctx: Context, marks: Marks, options: Options) -> tuple[Carried | None, str]:
    """What the last run carried over, or why everything is listed and read."""
    if options.full:
        return None, "asked for"
    if options.foreign:
        return None, "what is foreign is looked for everywhere"
    return carried.usable(ctx.objects, marks, now_ms=ctx.clock.now_ms(), full_days=options.full_days)


class _Looked(NamedTuple):
    work: Work
    stretches: Sequence[ListedStretch]
    named: Gathered
    before: Carried | None
    """What is gone on from after all."""
    why_complete: str


def _looked(
    ctx: Context,
    spark: SparkSession,
    work: Work,
    run: Run,
    options: Options,
    decision: Decision,
    cutoff_ms: int,
    before: Carried | None,
    why_complete: str,
    steps: Steps,
) -> _Looked:
    """The listing, complete before the look; both again where the look shows that the listing should have been of everything."""
    with steps.step("listing the object store"), translated("listing the object store"):
        stretches = listing.write(
            spark,
            ctx.objects,
            work,
            cutoff_ms=cutoff_ms,
            now_ms=ctx.clock.now_ms(),
            parts=parts_of(spark),
            foreign=options.foreign,
            data_from=before.horizon if before else "",
            small=options.small if before else None,
        )
    with steps.step("reading what the KV names") as said:
        named = gathered(work, Marks(ctx).look(run), filters_of(decision.plan), said, ctx.objects)
    unfit = before.unfit(named.commits, named.units, cutoff_ms) if before else ""
    if not unfit:
        return _Looked(work, stretches, named, before, why_complete)
    anew = msgspec.structs.replace(work, seed=secrets.randbits(64))
    return _looked(ctx, spark, anew, run, options, decision, cutoff_ms, None, unfit, steps)


def _complete(
    spark: SparkSession,
    work: Work,
    marked: Iterable[CommitId],
    named: Gathered,
    compared: Compared,
    before: Carried | None,
    steps: Steps,
) -> CompleteCommits:
    """Which of the commits that are marked name nothing that goes."""
    with steps.step("looking for commits that are complete"), translated("looking for commits that are complete"):
        landed = {commit: metarange for commit in marked if (metarange := named.commits.metarange(commit)) is not None}
        units = [unit.key for unit in compared.units()]
        known = before.complete_commits if before else None
        question = complete_commits.Question(work, landed, named.commits.whole_trees(), units, compared.pending, known)
        return complete_commits.find(question, spark)


def _with_complete(summary: Summary, decision: Decision, complete: CompleteCommits) -> Summary:
    """Not those of which only a part has expired: they are active."""
    found = len(complete.commits & {*decision.commits})
    counts = {"commits_marked": summary.commits.get("commits_marked", found) - found, "complete": found}
    return msgspec.structs.replace(summary, commits={**summary.commits, **counts})


def simulate(ctx: Context, spark: SparkSession, options: Options, tell: Tell = silent) -> Summary:
    """What `mark` would mark now, by the repository's rules or by `options.rules`. Touches nothing: no commit is marked, nobody is waited
    for, and what it writes for itself goes to a temporary folder (on a cluster: to the namespace, and is gone when it ends).

    An estimate where others write meanwhile; whoever deletes does not go by this.
    """
    marks, now = Marks(ctx), ctx.clock.now_ms()
    applied, seconds = _on_branches(ctx, options, tell, dry_run=True)
    decision = decide(ctx, rules=options.rules, grace_days=options.grace_days)
    standing = tuple(each.mark_id for each in marks.runs() if each.state in STANDING)
    digest = decision.rules.digest()
    run = Run(new_mark_id(ctx), GcRun("", State.MARKING, now, decision.grace_ms, now + decision.grace_ms, digest, standing, now))
    would = {**dict.fromkeys((*decision.commits, *decision.given_up), ("",)), **dict(decision.partly)}
    steps = Steps(spark, tell, lambda: None)
    steps.seconds.update(seconds)
    age = age_seconds(ctx, options.min_age_seconds)
    with _scratch(ctx, spark, run.mark_id) as (files, work):
        with steps.step("listing the object store"), translated("listing the object store"):
            cutoff_ms = now - int(age * 1000)
            stretches = listing.write(
                spark, ctx.objects, work, cutoff_ms=cutoff_ms, now_ms=now, parts=parts_of(spark), foreign=options.foreign
            )
        with steps.step("reading what the KV names") as said:
            looked = _as_if_marked(everything(ctx, run, PAGE), would, set(decision.given_up))
            named = gathered(work, looked, filters_of(decision.plan), said, files)
        compared = left_over(ctx, spark, work, run, stretches, named, [*would, *earlier(marks, run)], steps)
        unmarked = (commit for commit, mark in zip(would, marks.of(list(would)), strict=True) if mark is None)
        complete = _complete(spark, work, unmarked, named, compared, None, steps)
        summary = summarised(ctx, run, decision, age, stretches, named, compared, options.limits, applied, steps.seconds)
        summary = _with_complete(summary, decision, complete)
        return msgspec.structs.replace(summary, state=SIMULATED)


def _on_branches(ctx: Context, options: Options, tell: Tell, *, dry_run: bool = False) -> tuple[Online, dict[str, float]]:
    steps = Steps(None, tell, lambda: None)
    with steps.step("applying rules to branches"):
        applied = online.apply(ctx, options.rules, dry_run=dry_run)
    return applied, steps.seconds


def _as_if_marked(looked: Iterable[Named], would: Mapping[CommitId, tuple[str, ...]], given_up: Set[CommitId]) -> Iterator[Named]:
    """What never landed keeps nothing once it is marked, not even its tree; a part that is marked grows by what would be marked."""
    for batch in looked:
        if batch.source is Source.HEAD:
            yield batch
        else:
            left = (each for each in batch.commits if each.commit not in given_up)
            yield batch._replace(commits=[each._replace(but_for=_both(each.but_for, would.get(each.commit, ()))) for each in left])


def _both(marked: tuple[str, ...], would: tuple[str, ...]) -> tuple[str, ...]:
    return ("",) if "" in (*marked, *would) else tuple(sorted({*marked, *would}))


@contextmanager
def _scratch(ctx: Context, spark: SparkSession, mark_id: str) -> Generator[tuple[ObjectStore, Work], None, None]:
    """Where a simulation writes for itself."""
    seed = secrets.randbits(64)
    if str(spark.sparkContext.master).startswith("local"):
        with TemporaryDirectory(prefix="refstore-gc-") as folder:
            url = f"file://{folder}?fsync=0"
            files = open_objects(url)
            yield files, work_of(ctx, mark_id, seed, files=url)
            files.close()
        return
    work = work_of(ctx, mark_id, seed)
    try:
        yield ctx.objects, work
    finally:
        remove(ctx.objects, mark_id)


# ---- the sweep


def sweep(ctx: Context, spark: SparkSession, mark_id: str, tell: Tell = silent, *, mode: Mode | None = None) -> Summary:
    """Delete, or tag, what a mark holds and nothing names again. Made again it goes on; once swept it does nothing.

    What is tagged the bucket deletes: until it has, the sweep made again asks how far it is (`_settle`), and the mark is not swept.
    `mode`: other than the mark was made for; `delete` also takes what was tagged, and nobody waits for the bucket.

    What the rules of today keep stays (`rechecking.py`). Raises Conflict (not due, not confirmed), Gone (unmarked), NotFound, Corrupt,
    Unavailable. What the store did not delete after retries stands in the summary as failed, and the mark stays open: the next sweep
    tries it again.
    """
    marks = Marks(ctx)
    if marks.run(mark_id).state is State.MARKED:
        read_summary(ctx.objects, mark_id)  # while it can be unmarked still
        read_units(ctx.objects, mark_id)
    if marks.run(mark_id).is_tagged and mode != "delete":
        return _settle(ctx, spark, marks.run(mark_id), tell)
    begun = rechecking.begin(ctx, marks, mark_id)
    run = begun.run
    if run.state is State.SWEPT:
        return read_summary(ctx.objects, mark_id)
    summary, manifest = read_summary(ctx.objects, mark_id), read_manifest(ctx.objects, mark_id)
    work = work_of(ctx, mark_id, manifest.seed)
    steps = Steps(spark, tell, lambda: None)
    wanted = Wanted()
    for commit_id, commit in marks.dropped_out(run):
        wanted.add(commit_id, commit, None)
    dropped = len([*wanted.commits()])
    by_rules = rechecking.keep(marks, begun, wanted)
    sources = wanted.sources()
    with steps.step("sweeping"), translated("sweeping"):
        told = _told_of(manifest)
        tasks = parts_of(spark) * sweeping.TASKS_PER_CORE
        units = kept.packets_of(spark, told, tasks)
        mode = mode or ("tag" if manifest.mode == "tag" else "delete")
        rows: list[Outcome] = []
        if sources.trees or sources.added:
            cuts = Cuts.of([unit.first for unit in manifest.units[1:]])
            back, done = committed.addresses(spark, work, cuts, sources, parts_of(spark))
            rows = (
                [Outcome(*row) for row in sweeping.sweep(units, back, min(cuts.buckets, tasks), work, mode, manifest.tag).collect()]
                if told
                else []
            )
            done()
        elif told:
            rows = [Outcome(*row) for row in sweeping.sweep(units, [], tasks, work, mode, manifest.tag).collect()]
    swept = swept_of(rows, mode, dropped, ctx.clock.now_ms(), steps.seconds.get("sweeping", 0.0))
    swept = msgspec.structs.replace(swept, dropped_out_by_rules=by_rules, rules_changed=begun.changed)
    return _told_what_became(ctx, marks, run, summary, manifest, swept)


def _settle(ctx: Context, spark: SparkSession, run: Run, tell: Tell) -> Summary:
    """Ask what the bucket has deleted of what a mark tagged; with the last of it the mark is swept."""
    marks = Marks(ctx)
    summary, manifest = read_summary(ctx.objects, run.mark_id), read_manifest(ctx.objects, run.mark_id)
    steps = Steps(spark, tell, lambda: None)
    with steps.step("asking what the bucket has deleted"), translated("asking what the bucket has deleted"):
        tasks = parts_of(spark) * sweeping.TASKS_PER_CORE
        told = _told_of(manifest)
        units = kept.packets_of(spark, told, tasks)
        rows = [Outcome(*row) for row in sweeping.settle(units, work_of(ctx, run.mark_id, manifest.seed)).collect()] if told else []
    before = summary.swept
    swept = swept_of(rows, "tag", before.commits_dropped_out if before else 0, ctx.clock.now_ms(), before.seconds if before else 0.0)
    if before is not None:
        swept = msgspec.structs.replace(swept, dropped_out_by_rules=before.dropped_out_by_rules, rules_changed=before.rules_changed)
    return _told_what_became(ctx, marks, run, summary, manifest, swept)


def _told_of(manifest: Manifest) -> list[Packet]:
    return [
        Packet.telling(number, Side.LISTED, Unit(unit.key, deletion_index.outcome_key(unit.key)), unit.objects)
        for number, unit in enumerate(manifest.units)
    ]


def _told_what_became(ctx: Context, marks: Marks, run: Run, summary: Summary, manifest: Manifest, swept: Swept) -> Summary:
    """Write down how far a sweep is: to be tried again, tagged and waiting for the bucket, or over."""
    counts = {name: count.objects for name, count in swept.outcomes.items()}
    if not swept.failed:
        deletion_index.cover(ctx, run.mark_id, [deletion_index.outcome_key(unit.key) for unit in manifest.units], swept.at_ms)
        run = marks.note_tagged(run.mark_id, counts) if swept.tagged.objects else marks.finish_sweep(run.mark_id, counts)
    earlier = summary.swept.outcomes if summary.swept is not None else {}
    newly = {name: count - earlier.get(name, Count()) for name, count in swept.outcomes.items()}
    swept = msgspec.structs.replace(swept, tagged_ms=run.record.tagged_ms, newly=newly)
    summary = msgspec.structs.replace(summary, state=run.shown, swept=swept)
    write_summary(ctx.objects, summary)
    return summary


# ---- both


@dataclass(frozen=True, slots=True)
class Ran:
    """What a nightly run came to, for one repository."""

    marked: Summary
    swept: Sequence[Summary]
    """The marks whose time had come, this run's own among them where the grace is none; each as its last sweep left it."""
    waiting: Sequence[Run]
    """Marks that stand and are not due, or need an operator."""

    @property
    def latest(self) -> Summary:
        """What was marked, with its sweep where that was at once."""
        return next((each for each in self.swept if each.mark_id == self.marked.mark_id), self.marked)

    @property
    def failed(self) -> int:
        return sum(summary.swept.failed for summary in self.swept if summary.swept is not None)


def run(
    ctx: Context,
    spark: SparkSession,
    options: Options,
    tell: Tell = silent,
    *,
    on_unswept: Callable[[str, RefstoreError], None] | None = None,
    on_swept: Callable[[Summary], None] | None = None,
) -> Ran:
    """The nightly job: sweep what is due, then mark, then sweep what is due at once. What was swept is not listed again.

    A mark that something keeps from being swept is told, by its id, and stops nothing else; without `on_unswept` it raises. `on_swept` is
    told of each sweep before the marking, which may raise.
    """
    unswept: set[str] = set()
    swept: dict[str, Summary] = {}
    for each in _sweep_due(ctx, spark, tell, on_unswept, unswept):
        swept[each.mark_id] = each
        if on_swept is not None:
            on_swept(each)
    marked = mark(ctx, spark, options, tell)
    swept |= {each.mark_id: each for each in _sweep_due(ctx, spark, tell, on_unswept, unswept)}
    forget_old(ctx)
    deletion_index.catch_up_or_log(ctx)
    _draw(ctx, [marked, *swept.values()])
    waiting = [each for each in Marks(ctx).runs() if each.state in (State.MARKED, State.ASKING, State.SWEEPING)]
    return Ran(marked, list(swept.values()), waiting)


def _sweep_due(
    ctx: Context, spark: SparkSession, tell: Tell, on_unswept: Callable[[str, RefstoreError], None] | None, unswept: set[str]
) -> Iterator[Summary]:
    """`unswept`: those that were tried and told, which are not tried again; grows.

    No sweep rests on that of an earlier mark: what commits name that stand under one that is not swept yet drops out (rule 14).
    """
    marks = Marks(ctx)
    for mark_id in [each.mark_id for each in marks.runs()]:
        if mark_id in unswept or not _is_due(marks.run(mark_id), ctx.clock.now_ms()):  # as it is now: the sweeps before took their time
            continue
        try:
            done = sweep(ctx, spark, mark_id, tell)
        except RefstoreError as error:
            if on_unswept is None or isinstance(error, KVUnavailable):
                raise
            unswept.add(mark_id)
            on_unswept(mark_id, error)
        else:
            yield done


def _is_due(each: Run, now_ms: int) -> bool:
    return each.state is State.SWEEPING or (each.state is State.MARKED and each.record.deletes_at_ms <= now_ms)


def _draw(ctx: Context, done: Iterable[Summary]) -> None:
    """The pages of what this run did, written behind the deeds: that one cannot be written takes nothing back."""
    every = list(report.summaries(ctx.objects, Marks(ctx), readable=True))
    wanted = {summary.mark_id for summary in done}
    for number, summary in enumerate(every):
        if summary.mark_id in wanted:
            report.write_page(ctx.objects, summary, every[:number])


def forget_old(ctx: Context) -> None:
    """Remove the files of runs that came to nothing. Those of marks that stand or were swept are the report."""
    for each in Marks(ctx).runs():
        if each.state is State.ABANDONED:
            remove(ctx.objects, each.mark_id)


__all__ = ["Options", "Ran", "forget_old", "mark", "run", "sweep"]
