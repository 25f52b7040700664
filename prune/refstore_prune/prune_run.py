"""One run, from the lock to the report: list, read the names, compare, check, mark, sweep.

The store is listed before the names are read. So an object that is first named meanwhile is either young, or was named
before. What the run deletes, an earlier run had marked, and its grace period is over (`compare.decide`).
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from refstore.core.clock import SystemClock, format_utc
from refstore.core.ids import RandomIds
from refstore.core.step_progress import ReportProgress, ignore_progress
from refstore.errors import Conflict, Invalid, InvalidSettings, RefstoreError, StoreMisconfigured, Unavailable
from refstore.objects import make_objects
from refstore.objects.base import ObjectStore
from refstore.objects.store_urls import parse_store_url
from refstore_gc.engines.base import Engine
from refstore_gc.engines.choice import Engines
from refstore_gc.run_context import BreakerLimits
from refstore_gc.run_layout import open_store, remove_run_files, write_json
from refstore_gc.run_progress import RunSteps
from refstore_gc.run_summary import FAILED_OUTCOME, FAILURES_SHOWN, ObjectCount
from refstore_prune import checks
from refstore_prune.compare import (
    AGE_DAYS,
    VERDICTS,
    CompareTask,
    Comparison,
    compare,
    gather_names,
    protecting_patterns,
)
from refstore_prune.inventory import list_inventory
from refstore_prune.list_store import Listing, list_store
from refstore_prune.prune_layout import MARK_FILE, PruneLayout, PruneManifest, PruneUnit, make_prune_layout
from refstore_prune.prune_report import AgeRow, NamesCount, PrefixRow, PruneReport, RunState
from refstore_prune.prune_sweep import UnitOutcome, read_outcomes, sweep_units
from refstore_prune.sources.base import NameSource, SourceFacts
from refstore_prune.state import (
    LastMark,
    PruneLock,
    last_manifest,
    last_mark,
    open_run,
    remove_old_files,
    write_report,
)

GRACE: Final = timedelta(days=7)
FLOOR_OBJECTS: Final = 1000
CLOCK_SECONDS_MAX: Final = 300
_PREFIXES_SHOWN: Final = 100
_NOT_IN_INVENTORY: Final = "What was written after {}, when the inventory was made, and what it was set to leave out."


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneOptions:
    min_age: timedelta | None = None
    """What is younger stays. None: the longest that a source asks for."""
    grace: timedelta = GRACE
    """How long after it was marked an object may go."""
    state: str | None = None
    """The store of the runs' files. None: the one that is pruned."""
    inventory: str = ""
    """The URL of an inventory's manifest, which stands for the listing; '': the store is listed."""
    protect: Sequence[str] = ()
    """Patterns of keys that stay."""
    consent: Collection[str] = ()
    """Words of checks that may fail (`checks.CONSENT_WORDS`)."""
    share_max: float = 0.5
    """Of the objects, or of the bytes, that may be unnamed."""
    floor_objects: int = FLOOR_OBJECTS
    """Fewer unnamed objects are no unusual share."""
    dry_run: bool = False
    """Whether nothing is written to the store or to the state, and nothing deleted."""
    take_over: bool = False
    """Whether to take over a run that is on, without waiting until it counts as dead."""
    limits: BreakerLimits = field(init=False)

    def __post_init__(self) -> None:
        """Raises InvalidSettings."""
        for name, duration in (("min_age", self.min_age), ("grace", self.grace)):
            if duration is not None and duration < timedelta(0):
                raise InvalidSettings(f"{name} is {duration}; it cannot be negative")
        for word in self.consent:
            if word not in checks.CONSENT_WORDS:
                raise InvalidSettings(
                    f"{word!r} is no check to consent to; use one of {', '.join(checks.CONSENT_WORDS)}"
                )
        for pattern in self.protect:
            protecting_patterns(pattern)
        limits = BreakerLimits(share_max=self.share_max, floor_objects=self.floor_objects)
        object.__setattr__(self, "limits", limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRun:
    """What the functions of one run share."""

    layout: PruneLayout
    options: PruneOptions
    sources: Sequence[NameSource]
    engine: Engine
    steps: RunSteps
    lock: PruneLock | None
    """None: a dry run has none."""
    began_ms: int
    standing: list[tuple[PruneReport, list[PruneUnit]]] = field(
        default_factory=list[tuple[PruneReport, list[PruneUnit]]]
    )
    """What was found, and the units of the mark, once it stands: for the report of a run that fails later."""

    @property
    def store(self) -> ObjectStore:
        return open_store(self.layout.url, self.layout)

    @property
    def files(self) -> ObjectStore:
        return open_store(self.layout.files, self.layout)

    @property
    def marks_url(self) -> str:
        """The store of the marks of earlier runs, which a dry run reads, too."""
        return self.options.state or self.layout.url

    @property
    def min_age(self) -> timedelta:
        longest = max(source.min_age for source in self.sources)
        return longest if self.options.min_age is None else self.options.min_age

    def move_to(self, engine: Engine) -> PruneRun:
        """Return the run on another engine, between two steps."""
        self.steps.use_engine(engine)
        return replace(self, engine=engine)


def run_prune(
    store_url: str,
    sources: Sequence[NameSource],
    options: PruneOptions,
    engines: Engines,
    report_progress: ReportProgress = ignore_progress,
) -> PruneReport:
    """Mark what nothing names, delete what an earlier run marked and is due, and return what was found and done.

    Raises PruneStopped (a check failed: nothing was marked), RunUnderWay, Conflict (another run took over),
    StoreMisconfigured (the clocks), Corrupt, Unavailable, and what a source raises.
    """
    unseen = _check_before(store_url, sources, options)
    with _open_run(store_url, sources, options, engines.for_objects(0), report_progress) as begun:
        with begun.steps.step("listing the store"):
            if options.inventory:
                listing = list_inventory(begun.layout, begun.engine, options.inventory)
            else:
                listing = list_store(begun.layout, begun.engine)
        run = begun.move_to(engines.for_objects(listing.facts.listed.objects))
        (last, before), reading_ms = _read_last_mark(run), SystemClock().now_ms()
        with run.steps.step("reading the names and comparing"):
            names = gather_names(run.layout, run.engine, sources, has_encoded_keys=listing.facts.has_encoded_keys)
            facts = [source.facts() for source in sources]
            found = compare(run.engine, _compare_task(run, listing, facts, last), listing.chunks, names, last)
        stood_ms = SystemClock().now_ms()
        report = make_report(run, listing, found, facts, unseen, stood_ms)
        failed = [
            *checks.check_min_age(options.min_age, sources),
            *checks.check_inventory_age(listing.as_of_ms, run.began_ms),
            *checks.check_comparison(run.store, found, listing.facts, sources, before, options.limits),
        ]
        if run.lock is None:
            return _conclude(
                run, report, "simulated", failed_checks=[f"{each.message} ({each.word})" for each in failed]
            )
        checks.refuse(failed, options.consent)
        _let_mark_stand(run, run.lock, found, stood_ms)
        run.standing.append((report, found.units))
        with run.steps.step("deleting what is due"):
            outcomes = sweep_units(run.engine, run.layout, found.units, reading_ms, run.lock.generation)
        report = _count_outcomes(run, report, outcomes)
        write_report(run.files, report)
        remove_old_files(run.files, run.lock, store_url)
        return report


# ---- begin


def _check_before(store_url: str, sources: Sequence[NameSource], options: PruneOptions) -> list[str]:
    """Check what can be checked before anything is written or listed. Return what could not be looked at."""
    if not sources:
        raise Invalid("no source of names was given; without names everything would be garbage")
    owned, unseen = checks.check_owners_above(store_url)
    checks.refuse(owned, ())
    for source in sources:
        source.check(store_url)
    if not any(source.folders for source in sources):
        raise Invalid(
            f"nothing of {', '.join(source.text for source in sources)} lies in {store_url}, so nothing there may be "
            "deleted; prune the store in which the table lies"
        )
    if not options.dry_run:
        checks.refuse(checks.check_min_age(options.min_age, sources), options.consent)
    return unseen


@contextmanager
def _open_run(
    store_url: str,
    sources: Sequence[NameSource],
    options: PruneOptions,
    engine: Engine,
    report_progress: ReportProgress,
) -> Generator[PruneRun, None, None]:
    """Yield a run that holds the lock of the state; a dry run needs none. Leave a report of a run that fails."""
    began_ms = SystemClock().now_ms()
    run_id = RandomIds().new_id(began_ms)
    with ExitStack() as opened:
        lock = None
        if options.dry_run:
            layout = opened.enter_context(_open_scratch_layout(store_url, options, engine, run_id))
        else:
            layout = make_prune_layout(store_url, run_id, files=options.state or "")
            if options.state:
                make_objects(options.state)
            lock = opened.enter_context(open_run(open_store(layout.files, layout), run_id, take_over=options.take_over))
        run = PruneRun(
            layout=layout,
            options=options,
            sources=sources,
            engine=engine,
            steps=RunSteps(store_url, engine, report_progress),
            lock=lock,
            began_ms=began_ms,
        )
        if lock is None:
            yield run
            return
        try:
            _check_clock(run)
            yield run
        except Exception as error:
            _record_failure(run, lock, error)
            raise


@contextmanager
def _open_scratch_layout(
    store_url: str, options: PruneOptions, engine: Engine, run_id: str
) -> Generator[PruneLayout, None, None]:
    """Yield where a dry run writes its own files."""
    if engine.is_on_one_machine:
        with engine.scratch_folder() as folder:
            yield make_prune_layout(store_url, run_id, files=f"{folder.as_uri()}?fsync=0")
        return
    if not options.state:
        raise Invalid("a dry run on a cluster needs a store for its own files: give --state URL, or --engine local")
    layout = make_prune_layout(store_url, run_id, files=options.state)
    try:
        yield layout
    finally:
        remove_run_files(open_store(layout.files, layout), run_id, root=layout.root)


def _check_clock(run: PruneRun) -> None:
    """Raises StoreMisconfigured: this machine's clock and that of the state's store are too far apart."""
    key, clock = run.layout.named_file_key("clock"), SystemClock()
    before = clock.now_ms()
    run.files.put(key, b"")
    there = run.files.head(key).mtime_ms
    run.files.delete_many([key])
    if not before - CLOCK_SECONDS_MAX * 1000 <= there <= clock.now_ms() + CLOCK_SECONDS_MAX * 1000:
        raise StoreMisconfigured(
            f"the clocks of this machine and of {run.files.url} are {abs(there - before) / 1000:.0f} s apart, and ages "
            f"and grace periods allow for {CLOCK_SECONDS_MAX}; set the clocks right, nothing was marked"
        )


def _record_failure(run: PruneRun, lock: PruneLock, error: Exception) -> None:
    """Leave a report, and remove what the run wrote. A mark that stands keeps its files. Raises Conflict: another run
    took over, and perhaps removed files, of which the error speaks.
    """
    with suppress(Unavailable):
        try:
            lock.check()
        except Conflict as taken_over:
            raise taken_over from error
    with suppress(RefstoreError):
        beginnings = ["listing/", "names/", "clock"]
        if run.files.head_many([run.layout.named_file_key(MARK_FILE)])[0] is None:
            beginnings.append("mark/")
        remove_run_files(run.files, run.layout.run_id, *beginnings, root=run.layout.root)
        report = PruneReport(
            run_id=run.layout.run_id,
            store=run.layout.url,
            state="failed",
            began_ms=run.began_ms,
            engine=run.engine.name,
        )
        for found, units in run.standing:
            report = _count_outcomes(run, found, list(read_outcomes(run.files, units)))
        write_report(run.files, _conclude(run, report, "failed", error=f"{type(error).__name__}: {error}"))


# ---- look


def _read_last_mark(run: PruneRun) -> tuple[LastMark | None, PruneManifest | None]:
    """Return the mark that stands, and the last one, unmarked or not: this run's names are compared with its."""
    url = parse_store_url(run.marks_url)
    if run.options.dry_run and url.scheme == "file" and not Path(url.path).exists():
        return None, None  # the first run makes the state's folder
    marks = open_store(run.marks_url, run.layout)
    return last_mark(marks, run.layout.url), last_manifest(marks)


def _compare_task(run: PruneRun, listing: Listing, facts: Sequence[SourceFacts], last: LastMark | None) -> CompareTask:
    return CompareTask(
        layout=run.layout,
        marks_url=run.marks_url,
        began_ms=run.began_ms,
        named_ms=min(
            listing.as_of_ms or run.began_ms, run.began_ms, *(each.as_of_ms or each.began_ms for each in facts)
        ),
        min_age_ms=run.min_age // timedelta(milliseconds=1),
        grace_ms=run.options.grace // timedelta(milliseconds=1),
        protected=tuple(sorted({each for some in map(protecting_patterns, run.options.protect) for each in some})),
        never_taken=tuple(sorted({pattern for source in run.sources for pattern in source.never_taken})),
        never_taken_folders=tuple(sorted({each for source in run.sources for each in source.never_taken_folders})),
        folders=tuple(sorted({each for source in run.sources for each in source.folders})),
        last_times=(last.manifest.marked_ms, last.manifest.stood_ms) if last else (0, 0),
        unmarked_ms=tuple(last.unmarked_ms) if last else (),
    )


# ---- act


def _let_mark_stand(run: PruneRun, lock: PruneLock, found: Comparison, stood_ms: int) -> None:
    """Write what the mark holds, last of its files. Raises Conflict: another run took over."""
    manifest = PruneManifest(
        run_id=run.layout.run_id,
        store=run.layout.url,
        marked_ms=run.began_ms,
        stood_ms=stood_ms,
        grace_ms=run.options.grace // timedelta(milliseconds=1),
        names=found.names,
        names_by_source=checks.names_by_source(found, run.sources),
        units=found.units,
    )
    lock.check()
    write_json(run.files, run.layout.named_file_key(MARK_FILE), manifest)


def _count_outcomes(run: PruneRun, report: PruneReport, outcomes: Sequence[UnitOutcome]) -> PruneReport:
    """Return the report of a run that swept."""
    counts: dict[str, ObjectCount] = {}
    for each in outcomes:
        counts[each.outcome] = counts.get(each.outcome, ObjectCount()) + each.amount
    failures = [example for each in outcomes if each.outcome == FAILED_OUTCOME for example in each.examples]
    state = "incomplete" if FAILED_OUTCOME in counts else "done" if report.due.objects else "marked"
    return _conclude(run, report, state, outcomes=counts, failures=failures[:FAILURES_SHOWN])


def _conclude(run: PruneRun, report: PruneReport, state: RunState, **more: object) -> PruneReport:
    return msgspec.structs.replace(
        report, state=state, ended_ms=SystemClock().now_ms(), seconds=run.steps.seconds, **more
    )


# ---- report


def make_report(
    run: PruneRun,
    listing: Listing,
    found: Comparison,
    facts: Sequence[SourceFacts],
    unseen: Sequence[str],
    stood_ms: int,
) -> PruneReport:
    """Return what the run found; nothing was done yet. `stood_ms`: of its mark."""
    skipped = listing.facts.skipped
    examples = ", ".join(listing.facts.skipped_examples)
    grace_ms = run.options.grace // timedelta(milliseconds=1)
    folders = sorted({each for source in run.sources for each in source.folders})
    first_ms = stood_ms if found.first_marked_ms == run.began_ms else found.first_marked_ms
    return PruneReport(
        run_id=run.layout.run_id,
        store=run.layout.url,
        state="running",
        began_ms=run.began_ms,
        engine=run.engine.name,
        sources=list(facts),
        names=NamesCount(
            names=found.names,
            found=found.counts["named"].objects,
            found_by_other_spelling=found.found_by_other_spelling,
            outside=found.outside,
            examples_not_found=found.not_found,
        ),
        listed=listing.facts.listed,
        verdicts={**{verdict: found.counts[verdict] for verdict in VERDICTS}, "own": listing.facts.own},
        waiting=found.counts["waiting"],
        newly_marked=found.counts["newly_marked"],
        named_again=found.counts["named_again"],
        due=found.counts["due"],
        by_age=[
            AgeRow(first, last, count)
            for (first, last), count in zip(pairwise([*AGE_DAYS, None]), found.ages, strict=True)
            if first is not None
        ],
        by_prefix=_prefix_rows(found),
        largest=found.largest,
        not_looked_at=[
            *([f"{skipped:,} objects with keys that refstore does not take: {examples}"] if skipped else []),
            *unseen,
            *([_NOT_IN_INVENTORY.format(format_utc(listing.as_of_ms))] if listing.as_of_ms else []),
            *([] if "" in folders else [f"What lies outside of {', '.join(folders)}: no source has names of it."]),
            *(sentence for each in facts for sentence in each.not_seen),
        ],
        next_due_ms=first_ms + grace_ms if first_ms else 0,
    )


def _prefix_rows(found: Comparison) -> list[PrefixRow]:
    """Return the prefixes with most unnamed bytes, and a row for all others."""
    every = [PrefixRow(prefix, listed, found.unnamed[prefix]) for prefix, listed in found.listed.items()]
    every.sort(key=lambda row: (not row.prefix, -row.unnamed.bytes, -row.listed.bytes, row.prefix))
    shown = [row for row in every if row.prefix][:_PREFIXES_SHOWN]
    others = every[len(shown) :]
    listed = sum((row.listed for row in others), ObjectCount())
    unnamed = sum((row.unnamed for row in others), ObjectCount())
    return [*shown, PrefixRow("", listed, unnamed)] if listed.objects else shown
