"""Sum up what the tasks counted: the summary of a marking, and of a sweep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from refstore.context import Context
from refstore.gc_marks import Run
from refstore.operations.refs import head_commit
from refstore.retention.rules import render
from refstore_gc import mark_breaker
from refstore_gc.anti_join import JoinResult
from refstore_gc.bucket_join import ComparedCount
from refstore_gc.complete_commits import CompleteCommits
from refstore_gc.garbage import DayCount, MarkedCount
from refstore_gc.mark_plan import Decision, age_seconds, expired_by
from refstore_gc.run_context import RunContext
from refstore_gc.run_layout import ObjectKind, folder_of
from refstore_gc.run_summary import (
    FAILED,
    FAILURES_SHOWN,
    KEPT,
    Count,
    Counts,
    Mode,
    Online,
    Summary,
    Swept,
    kind_name,
    totals,
)
from refstore_gc.sweep_tasks import Outcome

_NONE: Final = Count()


def summarize_mark(
    run: RunContext,
    mark: Run,
    decision: Decision,
    result: JoinResult,
    complete: CompleteCommits,
    online: Online,
    *,
    goes_on_from: str = "",
    there_before: Count = _NONE,
    why_complete: str = "",
) -> Summary:
    """Summarize a marking. `goes_on_from`: the run before an incremental one; else `why_complete`."""
    chunks = result.chunks
    compared = [row for row in result.rows if isinstance(row, ComparedCount)]
    marked = [row for row in result.rows if isinstance(row, MarkedCount)]
    summary = Summary(
        repository=run.repository.name,
        mark_id=mark.mark_id,
        state=mark.shown,
        engine=run.engine.name,
        began_ms=mark.record.began_ms,
        deletes_at_ms=mark.record.deletes_at_ms,
        min_age_seconds=age_seconds(run.repository, run.options.min_age_seconds),
        goes_on_from=goes_on_from,
        why_complete=why_complete,
        there_before=there_before,
        rules_digest=mark.record.rules_digest,
        rules_document=render(decision.rules),
        expired_by=expired_by(decision),
        commits=_commit_counts(mark, decision, complete),
        listed=sum((row.listed for row in compared), _NONE),
        listed_by_kind=totals((kind_name(row.kind), row.listed) for row in compared),
        young=sum((each.young for each in chunks), _NONE),
        foreign=sum((each.foreign for each in chunks), _NONE),
        kept=sum((row.kept for row in compared), _NONE),
        pending=sum((row.pending for row in compared), _NONE),
        marked=sum((row.amount for row in marked), _NONE),
        by_reason=totals((row.reason, row.amount) for row in marked),
        by_kind=totals((kind_name(row.kind), row.amount) for row in marked),
        by_prefix=totals((folder_of(ObjectKind(row.kind)), row.amount) for row in marked),
        by_day=_by_day(row for row in result.rows if isinstance(row, DayCount)),
        held_by_branch=_held_by_branch(run.repository),
        named_in_kv=result.live.addresses.rows,
        sources=result.sources,
        online=online,
        versions=run.repository.objects.kept_versions().warning,
        seconds=dict(run.steps.seconds),
    )
    return msgspec.structs.replace(summary, question=mark_breaker.question(run.options.limits, summary))


def _commit_counts(mark: Run, decision: Decision, complete: CompleteCommits) -> dict[str, int]:
    found_complete = len(complete.commits & {*decision.commits})
    return {
        **mark.record.counts,
        "expired": len(decision.commits),
        "given_up": len(decision.given_up),
        "partly": len(decision.partly),
        # not those of which only a part has expired: they are active
        "commits_marked": mark.record.counts.get("commits_marked", found_complete) - found_complete,
        "complete": found_complete,
    }


def _by_day(rows: Iterable[DayCount]) -> dict[str, Counts]:
    by_day: dict[str, Counts] = {}
    for row in rows:
        day = by_day.setdefault(row.day, {})
        day[row.reason] = day.get(row.reason, _NONE) + row.amount
    return by_day


def _held_by_branch(ctx: Context) -> dict[str, Count]:
    found: dict[str, Count] = {}
    for name, record in ctx.branches.scan_open():
        metarange = head_commit(ctx, record.head).metarange
        found[name] = Count(ctx.trees.count(metarange), ctx.trees.size_bytes(metarange))
    return found


def summarize_sweep(rows: Sequence[Outcome], mode: Mode, dropped: int, at_ms: int, seconds: float) -> Swept:
    by_reason: dict[str, dict[str, Count]] = {}
    by_prefix: dict[str, dict[str, Count]] = {}
    for row in rows:
        for of in (by_reason.setdefault(row.reason, {}), by_prefix.setdefault(folder_of(ObjectKind(row.kind)), {})):
            of[row.outcome] = of.get(row.outcome, _NONE) + row.amount
    failures = sorted({row.why for row in rows if row.outcome in (FAILED, KEPT) and row.why})[:FAILURES_SHOWN]
    outcomes = totals((row.outcome, row.amount) for row in rows)
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
