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
from refstore_gc.complete_commits import CompleteCommits
from refstore_gc.garbage import GarbageCount
from refstore_gc.mark_plan import Decision, age_seconds, expired_by
from refstore_gc.run_context import RunContext
from refstore_gc.run_layout import ObjectKind, folder_of
from refstore_gc.run_summary import FAILED, FAILURES_SHOWN, KEPT, Count, Mode, Online, Summary, Swept, kind_name, totals
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
    chunks, live = result.chunks, result.live
    found_complete = len(complete.commits & {*decision.commits})

    def of(what: str) -> list[GarbageCount]:
        return [row for row in result.counts if row.what == what]

    def total(counted: Iterable[GarbageCount]) -> Count:
        return sum((Count(row.objects, row.bytes) for row in counted), Count())

    by_day: dict[str, dict[str, Count]] = {}
    for row in of("day"):
        day = by_day.setdefault(row.detail, {})
        day[row.reason] = day.get(row.reason, Count()) + Count(row.objects, row.bytes)
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
        commits={
            **mark.record.counts,
            "expired": len(decision.commits),
            "given_up": len(decision.given_up),
            "partly": len(decision.partly),
            # not those of which only a part has expired: they are active
            "commits_marked": mark.record.counts.get("commits_marked", found_complete) - found_complete,
            "complete": found_complete,
        },
        listed=total(of("listed")),
        listed_by_kind=totals((kind_name(row.kind), row.objects, row.bytes) for row in of("listed")),
        young=Count(sum(each.young for each in chunks), sum(each.young_bytes for each in chunks)),
        foreign=Count(sum(each.foreign for each in chunks), sum(each.foreign_bytes for each in chunks)),
        kept=total(of("kept")),
        pending=total(of("pending")),
        marked=total(of("marked")),
        by_reason=totals((row.reason, row.objects, row.bytes) for row in of("marked")),
        by_kind=totals((kind_name(row.kind), row.objects, row.bytes) for row in of("marked")),
        by_prefix=totals((folder_of(ObjectKind(row.kind)), row.objects, row.bytes) for row in of("marked")),
        by_day=by_day,
        held_by_branch=_held_by_branch(run.repository),
        named_in_kv=live.addresses.rows,
        sources=result.sources,
        online=online,
        versions=run.repository.objects.kept_versions().warning,
        seconds=dict(run.steps.seconds),
    )
    return msgspec.structs.replace(summary, question=mark_breaker.question(run.options.limits, summary))


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
            of[row.outcome] = of.get(row.outcome, Count()) + Count(row.objects, row.bytes)
    failures = sorted({row.why for row in rows if row.outcome in (FAILED, KEPT) and row.why})[:FAILURES_SHOWN]
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
