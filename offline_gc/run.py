"""The flows of the offline job, each in one function, in the order of rule 13: mark, wait, list, look, conclude; and the sweep.

    mark    clocks -> rules on branches -> rules -> begin (marks, flag) -> wait -> listing -> look -> what nobody names -> breaker -> finish
    sweep   the rules of today -> begin -> what dropped out since -> delete or tag -> finish

A run of marking that dies leaves nothing that counts: the next one begins anew, under a new mark id. A sweep that dies goes on where it
stopped. Whatever cannot be read ends the run with the cause, and nothing is marked.
"""

from __future__ import annotations

import os
import secrets
import socket
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from offline_gc import breaker, carried, committed, kept, listing, marking, online, rechecking, report, sweeping
from offline_gc.addresses import Cuts
from offline_gc.carried import Carried, Layer
from offline_gc.committed import Filter, Units, Wanted
from offline_gc.deciding import Decision, age_seconds, check_clock, decide, filters, horizon, store_now_ms
from offline_gc.listing import ListedStretch
from offline_gc.marking import Asked, Counted, Stretch
from offline_gc.packets import Packet, Side
from offline_gc.places import ROOT, Kind, Work, folder_of
from offline_gc.session import translated
from offline_gc.steps import Steps, Tell, silent
from offline_gc.summary import (
    Count,
    Manifest,
    Online,
    Summary,
    Swept,
    UnitRow,
    kind_name,
    read_manifest,
    read_summary,
    totals,
    write_manifest,
    write_summary,
)
from offline_gc.sweeping import DROPPED, FAILED, Mode, Outcome, Unit
from refstore.context import Context
from refstore.errors import Corrupt, RefstoreError
from refstore.ids import CommitId
from refstore.marks import STANDING, Kept, Marks, Named, Run, Source, State, new_mark_id
from refstore.marks.commits import PAGE
from refstore.marks.looking import everything
from refstore.objects import open_objects
from refstore.objects.base import ObjectStore
from refstore.records import Branch, GcRun
from refstore.retention.rules import Rules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUCKET_ROWS: Final = 500_000
"""Small stretches of the listing share a task."""
FAILURES_SHOWN: Final = 20
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
    limits: breaker.Limits = field(default_factory=breaker.Limits)
    foreign: bool = False
    """Whether what lies in `data/` and was not written by refstore goes, too."""
    full: bool = False
    """Whether everything is listed and read anew, though an earlier run could be gone on from."""
    full_days: float = 7.0
    """How old a complete run may be that others go on from."""
    take_over: bool = False
    """Whether a run that is on, or died a moment ago, is taken over without waiting for it to be stale."""
    rules: Rules | None = None
    """Instead of the repository's own: for `simulate`."""


def mark(ctx: Context, spark: SparkSession, options: Options, tell: Tell = silent) -> Summary:
    """Mark what nobody needs.

    Raises Conflict (another run is on, or took over), StoreMisconfigured (clocks), Corrupt (something cannot be read), Unavailable.
    """
    marks, store = Marks(ctx), ctx.objects
    work = Work(url=store.url, files=store.url, mark_id=new_mark_id(ctx), seed=secrets.randbits(64))
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
        _remove(store, work, ("",))
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
        looked = _looked(ctx, spark, work, run, options, decision, cutoff_ms, before, steps)
        if looked.before is None and before is not None:
            before, why_complete, work = None, looked.unfit, looked.work
        named, carry = looked.named, _carries(options, looked.named.commits.units())
        named.expired += [*marks.marked(run.mark_id), *_earlier(marks, run)]
        bounds, rows = _left_over(ctx, spark, work, run, looked.stretches, named, steps, before, carry=carry)
        summary = _summarised(ctx, run, decision, age, looked.stretches, rows, named, steps, options, before, why_complete)
        summary = msgspec.structs.replace(summary, online=applied)
        units = sorted((UnitRow(row.detail, row.first, row.objects, row.bytes) for row in rows if row.what == "unit"), key=_first_of)
        write_manifest(store, Manifest(run.mark_id, work.seed, options.mode, units))
        write_summary(store, summary)
        if carry:
            _carry_over(ctx, run, work, cutoff_ms, bounds, rows, named, before, summary)
        done = marks.finish_marking(run, {"objects": summary.marked.objects, "bytes": summary.marked.bytes}, question=summary.question)
    except BaseException as error:
        with suppress(RefstoreError):  # it is told what went wrong first; the next run clears up what this one could not
            marks.abandon(run, f"failed: {error}"[:500])
        _remove(store, work, ("",))
        if before is not None and isinstance(error, Corrupt):
            _remove(store, msgspec.structs.replace(work, mark_id=before.mark_id), (carried.FILE,))  # the next run begins anew
        raise
    summary = msgspec.structs.replace(summary, state=done.state.value)
    write_summary(store, summary)
    _remove(store, work, ("listing/", "clock"))
    _drop_carried(ctx, run, before, carry=carry)
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
    named: _NamedThings
    before: Carried | None
    """What is gone on from after all."""
    unfit: str
    """Why not from what was meant."""


def _looked(
    ctx: Context,
    spark: SparkSession,
    work: Work,
    run: Run,
    options: Options,
    decision: Decision,
    cutoff_ms: int,
    before: Carried | None,
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
        )
    with steps.step("reading what the KV names") as said:
        named = _gathered(ctx, work, Marks(ctx).look(run), filters(decision), said)
    unfit = before.unfit(named.commits, cutoff_ms) if before else ""
    if not unfit:
        return _Looked(work, stretches, named, before, "")
    anew = msgspec.structs.replace(work, seed=secrets.randbits(64))
    return _looked(ctx, spark, anew, run, options, decision, cutoff_ms, None, steps)._replace(unfit=unfit)


def _carry_over(
    ctx: Context,
    run: Run,
    work: Work,
    cutoff_ms: int,
    bounds: Sequence[str],
    rows: Iterable[Counted],
    named: _NamedThings,
    before: Carried | None,
    summary: Summary,
) -> None:
    """Write down what the next run can go on from."""
    units = named.commits.units()
    assert units is not None  # noqa: S101  # `_carries` has said so
    own = Layer(list(bounds), {row.kind: row.detail for row in rows if row.what == "carried"})
    carried.write(
        ctx.objects,
        Carried(
            mark_id=run.mark_id,
            complete=before.complete if before else run.mark_id,
            complete_ms=before.complete_ms if before else run.record.began_ms,
            seed=work.seed,
            cutoff_ms=cutoff_ms,
            horizon=horizon(ctx.safety, cutoff_ms),
            layers=[*(before.layers if before else ()), own],
            former=named.addresses.files,
            units=units,
            there=before.there if before else summary.listed + summary.young,
        ),
    )


def _drop_carried(ctx: Context, run: Run, before: Carried | None, *, carry: bool) -> None:
    """Remove what earlier runs carried over and no run goes on from any more."""
    store, work = ctx.objects, Work(url=ctx.objects.url, files=ctx.objects.url, mark_id=run.mark_id, seed=0)
    if not carry:
        _remove(store, work, ("kept/",))
    if before is not None and carry:
        _remove(store, msgspec.structs.replace(work, mark_id=before.mark_id), ("kept/",))
        return
    earlier = [each.mark_id for each in Marks(ctx).runs() if each.record.finished_ms and each.mark_id != run.mark_id]
    for mark_id in earlier[-carried.LAYERS_MAX - 1 :]:
        _remove(store, msgspec.structs.replace(work, mark_id=mark_id), (carried.FILE, carried.FOLDER, "kept/"))


def _carries(options: Options, units: Units | None) -> bool:
    return units is not None and not options.foreign


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
            looked = _as_if_marked(everything(ctx, run, PAGE), would)
            named = _gathered(ctx, work, looked, filters(decision), said, files)
            named.expired += [*would, *_earlier(marks, run)]
        _, rows = _left_over(ctx, spark, work, run, stretches, named, steps)
        summary = _summarised(ctx, run, decision, age, stretches, rows, named, steps, options)
        return msgspec.structs.replace(summary, state=SIMULATED, online=applied)


def _on_branches(ctx: Context, options: Options, tell: Tell, *, dry_run: bool = False) -> tuple[Online, dict[str, float]]:
    steps = Steps(None, tell, lambda: None)
    with steps.step("applying rules to branches"):
        applied = online.apply(ctx, options.rules, dry_run=dry_run)
    return applied, steps.seconds


def _as_if_marked(looked: Iterable[Named], would: Mapping[CommitId, tuple[str, ...]]) -> Iterator[Named]:
    for batch in looked:
        if batch.source is Source.HEAD:
            yield batch
        else:
            yield batch._replace(commits=[each._replace(but_for=each.but_for or would.get(each.commit, ())) for each in batch.commits])


@contextmanager
def _scratch(ctx: Context, spark: SparkSession, mark_id: str) -> Generator[tuple[ObjectStore, Work], None, None]:
    """Where a simulation writes for itself."""
    seed = secrets.randbits(64)
    if str(spark.sparkContext.master).startswith("local"):
        with TemporaryDirectory(prefix="refstore-gc-") as folder:
            url = f"file://{folder}?fsync=0"
            files = open_objects(url)
            yield files, Work(url=ctx.objects.url, files=url, mark_id=mark_id, seed=seed)
            files.close()
        return
    work = Work(url=ctx.objects.url, files=ctx.objects.url, mark_id=mark_id, seed=seed)
    try:
        yield ctx.objects, work
    finally:
        _remove(ctx.objects, work, ("",))


@dataclass(slots=True)
class _NamedThings:
    """What the look gave."""

    addresses: kept.Keeper
    commits: Wanted
    expired: list[CommitId] = field(default_factory=list[CommitId])
    sources: dict[str, int] = field(default_factory=dict[str, int])


def _gathered(
    ctx: Context,
    work: Work,
    looked: Iterable[Named],
    kept_of: Callable[[Kept], Filter | None],
    said: Callable[[int], None],
    files: ObjectStore | None = None,
) -> _NamedThings:
    """Everything that must be kept: addresses into files, commits into what is to be read of them."""
    named = _NamedThings(kept.Keeper(files or ctx.objects, work), Wanted())
    for batch in looked:
        named.addresses.add(batch.addresses)
        for each in batch.commits:
            named.commits.add(each.commit, each.record, kept_of(each))
        said(named.addresses.rows)
    objects = named.commits.objects()
    while page := list(islice(objects, PAGE)):
        named.addresses.add(page)
    named.addresses.finish()
    return named


def _left_over(
    ctx: Context,
    spark: SparkSession,
    work: Work,
    run: Run,
    stretches: Sequence[ListedStretch],
    named: _NamedThings,
    steps: Steps,
    before: Carried | None = None,
    *,
    carry: bool = False,
) -> tuple[Sequence[str], list[Counted]]:
    """Compare what is there with what is named; what nobody names is in the mark's files, and counted. With the cuts of its buckets.

    `before`: where to go on from, fit for what was named.
    """
    units = named.commits.units()
    pending = [(unit.key, Side.PENDING) for mark_id in run.record.disregards for unit in _units(ctx, mark_id)]
    with steps.step("comparing what is there with what is named"), translated("comparing"):
        sources = units.since(before.units, work) if before and units else named.commits.sources(named.expired)
        named.sources = {"trees": len(sources.trees), "listings": len(sources.added), "ranges": len(sources.ranges)}
        bounds, told = buckets_of(stretches, before.cuts(listing.DATA) if before else ())
        told += before.packets(bounds) if before else []
        cuts = Cuts.of(bounds)
        in_kv = [(key, Side.KEPT) for key in named.addresses.files]
        in_former = [(key, Side.FORMER) for key in (before.former if before else ())]
        named_here = [kept.addresses_in(spark, work, cuts, in_kv, parts_of(spark) * 2)] if in_kv else []
        others = pending + in_former
        named_there = [kept.addresses_in(spark, work.in_namespace(), cuts, others, parts_of(spark) * 2)] if others else []
        in_commits, done = committed.addresses(spark, work, cuts, sources, parts_of(spark))
        asked = Asked(carry=carry, horizon=before.horizon if before else "")
        listed = kept.packets_of(spark, told, parts_of(spark))
        found = marking.garbage(listed, [*named_here, *named_there, *in_commits], cuts.buckets, work, asked)
        rows = [Counted(*row) for row in found.collect()]
        done()
    return bounds, rows


def parts_of(spark: SparkSession) -> int:
    return max(2, spark.sparkContext.defaultParallelism)


def _first_of(unit: UnitRow) -> str:
    return unit.first


def _earlier(marks: Marks, run: Run) -> Iterator[CommitId]:
    for mark_id in run.record.disregards:
        yield from marks.marked(mark_id)


def _units(ctx: Context, mark_id: str) -> Sequence[UnitRow]:
    """What an earlier mark is going to sweep. One whose files are lost sweeps nothing, and then this run takes it."""
    try:
        return read_manifest(ctx.objects, mark_id).units
    except Corrupt:
        return ()


def buckets_of(stretches: Sequence[ListedStretch], also: Sequence[str] = ()) -> tuple[list[str], list[Packet]]:
    """Where buckets begin, but the first, and the listing's stretches dealt to them in order. `also`: cuts that go through no stretch."""
    there = [stretch for stretch in stretches if stretch.objects]
    cuts = set(also)
    rows = 0
    for stretch in there:
        if rows and rows + stretch.objects > BUCKET_ROWS:
            cuts.add(stretch.first)
            rows = 0
        rows += stretch.objects
    bounds = sorted(cuts)
    told = [Packet.telling(bisect_right(bounds, each.first), Side.LISTED, Stretch(each.number, each.key), each.objects) for each in there]
    return bounds, told


def _held_by_branch(ctx: Context) -> dict[str, Count]:
    from refstore.branches import Branches
    from refstore.flows.refs import head_commit

    found: dict[str, Count] = {}
    for name, _, record in Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock).scan():
        if isinstance(record, Branch):
            metarange = head_commit(ctx, record.head).metarange
            found[name] = Count(ctx.trees.count(metarange), ctx.trees.size_bytes(metarange))
    return found


def _summarised(
    ctx: Context,
    run: Run,
    decision: Decision,
    age: float,
    stretches: Iterable[ListedStretch],
    rows: Sequence[Counted],
    named: _NamedThings,
    steps: Steps,
    options: Options,
    before: Carried | None = None,
    why_complete: str = "",
) -> Summary:
    def of(what: str) -> list[Counted]:
        return [row for row in rows if row.what == what]

    def total(counted: Iterable[Counted]) -> Count:
        return sum((Count(row.objects, row.bytes) for row in counted), Count())

    by_day: dict[str, dict[str, Count]] = {}
    for row in of("day"):
        day = by_day.setdefault(row.detail, {})
        day[row.reason] = day.get(row.reason, Count()) + Count(row.objects, row.bytes)
    every = list(stretches)
    summary = Summary(
        repository=ctx.name,
        mark_id=run.mark_id,
        state=run.state.value,
        began_ms=run.record.began_ms,
        deletes_at_ms=run.record.deletes_at_ms,
        min_age_seconds=age,
        goes_on_from=before.mark_id if before else "",
        why_complete=why_complete,
        there_before=before.there if before else Count(),
        rules_digest=run.record.rules_digest,
        commits={**run.record.counts, "expired": len(decision.commits), "given_up": len(decision.given_up), "partly": len(decision.partly)},
        listed=total(of("listed")),
        listed_by_kind=totals((kind_name(row.kind), row.objects, row.bytes) for row in of("listed")),
        young=Count(sum(each.young for each in every), sum(each.young_bytes for each in every)),
        foreign=Count(sum(each.foreign for each in every), sum(each.foreign_bytes for each in every)),
        kept=total(of("kept")),
        pending=total(of("pending")),
        marked=total(of("marked")),
        by_reason=totals((row.reason, row.objects, row.bytes) for row in of("marked")),
        by_kind=totals((kind_name(row.kind), row.objects, row.bytes) for row in of("marked")),
        by_prefix=totals((folder_of(Kind(row.kind)), row.objects, row.bytes) for row in of("marked")),
        by_day=by_day,
        held_by_branch=_held_by_branch(ctx),
        named_in_kv=named.addresses.rows,
        sources=named.sources,
        seconds=dict(steps.seconds),
    )
    return msgspec.structs.replace(summary, question=breaker.question(options.limits, summary))


# ---- the sweep


def sweep(ctx: Context, spark: SparkSession, mark_id: str, tell: Tell = silent) -> Summary:
    """Delete, or tag, what a mark holds and nothing names again. Made again it goes on; once swept it does nothing.

    What the rules of today keep stays (`rechecking.py`). Raises Conflict (not due, not confirmed), Gone (unmarked), NotFound, Corrupt,
    Unavailable. What the store did not delete after retries stands in the summary as failed, and the mark stays open: the next sweep
    tries it again.
    """
    marks = Marks(ctx)
    begun = rechecking.begin(ctx, marks, mark_id)
    run = begun.run
    if run.state is State.SWEPT:
        return read_summary(ctx.objects, mark_id)
    summary, manifest = read_summary(ctx.objects, mark_id), read_manifest(ctx.objects, mark_id)
    work = Work(url=ctx.objects.url, files=ctx.objects.url, mark_id=mark_id, seed=manifest.seed)
    steps = Steps(spark, tell, lambda: None)
    wanted = Wanted()
    for commit_id, commit in marks.dropped_out(run):
        wanted.add(commit_id, commit, None)
    dropped = len([*wanted.commits()])
    by_rules = rechecking.keep(marks, begun, wanted)
    sources = wanted.sources()
    with steps.step("sweeping"), translated("sweeping"):
        told = [
            Packet.telling(number, Side.LISTED, Unit(unit.key, unit.key.replace("/mark/", "/sweep/")), unit.objects)
            for number, unit in enumerate(manifest.units)
        ]
        tasks = parts_of(spark) * sweeping.TASKS_PER_CORE
        units = kept.packets_of(spark, told, tasks)
        mode: Mode = "tag" if manifest.mode == "tag" else "delete"
        rows: list[Outcome] = []
        if sources.trees or sources.added:
            cuts = Cuts.of([unit.first for unit in manifest.units[1:]])
            back, done = committed.addresses(spark, work, cuts, sources, parts_of(spark))
            rows = [Outcome(*row) for row in sweeping.sweep(units, back, min(cuts.buckets, tasks), work, mode).collect()] if told else []
            done()
        elif told:
            rows = [Outcome(*row) for row in sweeping.sweep(units, [], tasks, work, mode).collect()]
    swept = swept_of(rows, mode, dropped, ctx.clock.now_ms(), steps.seconds.get("sweeping", 0.0))
    swept = msgspec.structs.replace(swept, dropped_out_by_rules=by_rules, rules_changed=begun.changed)
    state = run.state
    if not swept.failed:
        counts = {name: count.objects for name, count in swept.outcomes.items()}
        state = marks.finish_sweep(mark_id, counts).state
    summary = msgspec.structs.replace(summary, state=state.value, swept=swept)
    write_summary(ctx.objects, summary)
    return summary


def swept_of(rows: Sequence[Outcome], mode: Mode, dropped: int, at_ms: int, seconds: float) -> Swept:
    by_reason: dict[str, dict[str, Count]] = {}
    by_prefix: dict[str, dict[str, Count]] = {}
    for row in rows:
        for of in (by_reason.setdefault(row.reason, {}), by_prefix.setdefault(folder_of(Kind(row.kind)), {})):
            of[row.outcome] = of.get(row.outcome, Count()) + Count(row.objects, row.bytes)
    failures = sorted({row.why for row in rows if row.outcome == FAILED})[:FAILURES_SHOWN]
    outcomes = totals((row.outcome, row.objects, row.bytes) for row in rows)
    return Swept(
        mode=mode,
        at_ms=at_ms,
        outcomes=outcomes,
        by_reason=by_reason,
        by_prefix=by_prefix,
        commits_dropped_out=dropped,
        failures=failures,
        seconds=seconds,
    )


# ---- both


@dataclass(frozen=True, slots=True)
class Ran:
    """What a nightly run came to, for one repository."""

    marked: Summary
    swept: Sequence[Summary]
    """The marks whose time had come, this run's own among them where the grace is none."""
    waiting: Sequence[Run]
    """Marks that stand and are not due, or need an operator."""

    @property
    def latest(self) -> Summary:
        """What was marked, with its sweep where that was at once."""
        return next((each for each in self.swept if each.mark_id == self.marked.mark_id), self.marked)

    @property
    def failed(self) -> int:
        return sum(summary.swept.failed for summary in self.swept if summary.swept is not None)


def run(ctx: Context, spark: SparkSession, options: Options, tell: Tell = silent) -> Ran:
    """The nightly job: sweep what is due, then mark, then sweep what is due at once. What was swept is not listed again."""
    swept = list(_sweep_due(ctx, spark, tell))
    marked = mark(ctx, spark, options, tell)
    swept += _sweep_due(ctx, spark, tell)
    forget_old(ctx)
    _draw(ctx, [marked, *swept])
    waiting = [each for each in Marks(ctx).runs() if each.state in (State.MARKED, State.ASKING, State.SWEEPING)]
    return Ran(marked, swept, waiting)


def _sweep_due(ctx: Context, spark: SparkSession, tell: Tell) -> Iterator[Summary]:
    for each in list(Marks(ctx).runs()):
        due = each.state is State.MARKED and each.record.deletes_at_ms <= ctx.clock.now_ms()
        if due or each.state is State.SWEEPING:
            yield sweep(ctx, spark, each.mark_id, tell)


def _draw(ctx: Context, done: Iterable[Summary]) -> None:
    """The pages of what this run did, written behind the deeds: that one cannot be written takes nothing back."""
    every = list(report.summaries(ctx.objects, Marks(ctx)))
    wanted = {summary.mark_id for summary in done}
    for number, summary in enumerate(every):
        if summary.mark_id in wanted:
            report.write_page(ctx.objects, summary, every[:number])


def forget_old(ctx: Context) -> None:
    """Remove the files of runs that came to nothing. Those of marks that stand or were swept are the report."""
    for each in Marks(ctx).runs():
        if each.state is State.ABANDONED:
            _remove(ctx.objects, Work(url=ctx.objects.url, files=ctx.objects.url, mark_id=each.mark_id, seed=0), ("",))


def _remove(store: ObjectStore, work: Work, beginnings: Iterable[str]) -> None:
    """Files that nobody needs any more. What stays because the store does not answer is removed by a later run."""
    with suppress(RefstoreError):
        for beginning in beginnings:
            found = (info.key for info in store.list(f"{ROOT}{work.mark_id}/{beginning}"))
            while page := list(islice(found, 1000)):
                store.delete_many(page)


__all__ = ["DROPPED", "Options", "Ran", "forget_old", "mark", "run", "sweep"]
