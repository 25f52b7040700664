"""Return what a mark would take, and change nothing."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import msgspec

from refstore.context import Context
from refstore.core.ids import CommitId
from refstore.gc_marks import OPEN_STATES, LiveBatch, LiveSource, Marks, OfflineRun, RunState, new_mark_id
from refstore.gc_marks.commit_marks import PAGE
from refstore.gc_marks.live_set import scan_live_set
from refstore.records.mark_records import GcRun, Mark
from refstore_gc import anti_join, list_objects
from refstore_gc.anti_join import collect_live_set, earlier_commits
from refstore_gc.engines.base import Engine
from refstore_gc.engines.choice import Engines
from refstore_gc.list_objects import count_listed
from refstore_gc.mark import apply_branch_rules, count_last_compared, look_for_nothing_to_delete
from refstore_gc.mark_plan import decide_marks, minimum_age_seconds, tree_filter_of
from refstore_gc.run_context import GcOptions, new_run
from refstore_gc.run_layout import RunLayout, make_layout, remove_run_files
from refstore_gc.run_progress import ReportProgress, ignore_progress
from refstore_gc.run_summary import GcSummary
from refstore_gc.summary_totals import summarize_mark

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
    expired: Mapping[CommitId, tuple[str, ...]], own_marks: Mapping[CommitId, Mark | None]
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
