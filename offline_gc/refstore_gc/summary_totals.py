"""Sum up what the tasks counted: the summary of a marking, and of a sweep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from refstore.context import Context
from refstore.gc_marks import OfflineRun
from refstore.operations.refs import head_commit
from refstore.retention.rules import render_rules
from refstore_gc import mark_breaker
from refstore_gc.anti_join import JoinResult
from refstore_gc.bucket_join import ComparedCount
from refstore_gc.garbage import DayCount, MarkedCount
from refstore_gc.mark_plan import MarkDecision, count_expired_by_rule, minimum_age_seconds
from refstore_gc.nothing_to_delete import NothingToDeleteCommits
from refstore_gc.run_context import RunContext
from refstore_gc.run_layout import ObjectKind, folder_of
from refstore_gc.run_summary import (
    FAILED_OUTCOME,
    FAILURES_SHOWN,
    KEPT_AS_VERSION_OUTCOME,
    BranchRuleResult,
    GcSummary,
    ObjectCount,
    ObjectCounts,
    SweepMode,
    SweepResult,
    kind_name,
    sum_counts,
)
from refstore_gc.sweep_tasks import OutcomeCount

_NO_OBJECTS: Final = ObjectCount()


def summarize_mark(
    run: RunContext,
    mark: OfflineRun,
    decision: MarkDecision,
    result: JoinResult,
    spared: NothingToDeleteCommits,
    online: BranchRuleResult,
    *,
    baseline_mark_id: str = "",
    previously_listed: ObjectCount = _NO_OBJECTS,
    full_reason: str = "",
) -> GcSummary:
    """Summarize a marking. `baseline_mark_id`: the run before an incremental one; else `full_reason`."""
    chunks = result.chunks
    compared = [row for row in result.rows if isinstance(row, ComparedCount)]
    marked = [row for row in result.rows if isinstance(row, MarkedCount)]
    summary = GcSummary(
        repository=run.repository.name,
        mark_id=mark.mark_id,
        state=mark.state_text,
        engine=run.engine.name,
        began_ms=mark.record.began_ms,
        deletes_at_ms=mark.record.deletes_at_ms,
        min_age_seconds=minimum_age_seconds(run.repository, run.options.min_age_seconds),
        baseline_mark_id=baseline_mark_id,
        full_reason=full_reason,
        previously_listed=previously_listed,
        rules_digest=mark.record.rules_digest,
        rules_document=render_rules(decision.rules),
        expired_by=count_expired_by_rule(decision),
        commits=_commit_counts(mark, decision, spared),
        listed=sum((row.listed for row in compared), _NO_OBJECTS),
        listed_by_kind=sum_counts((kind_name(row.kind), row.listed) for row in compared),
        young=sum((each.young_objects for each in chunks), _NO_OBJECTS),
        foreign=sum((each.foreign for each in chunks), _NO_OBJECTS),
        kept=sum((row.kept for row in compared), _NO_OBJECTS),
        pending=sum((row.pending for row in compared), _NO_OBJECTS),
        marked=sum((row.amount for row in marked), _NO_OBJECTS),
        by_reason=sum_counts((row.reason, row.amount) for row in marked),
        by_kind=sum_counts((kind_name(row.kind), row.amount) for row in marked),
        by_prefix=sum_counts((folder_of(ObjectKind(row.kind)), row.amount) for row in marked),
        by_day=_by_day(row for row in result.rows if isinstance(row, DayCount)),
        named_by_branch=_count_by_branch(run.repository),
        named_in_kv=result.live_set.addresses.rows,
        sources=result.sources,
        branch_rules=online,
        versions_warning=run.repository.objects.versioning_status().warning,
        seconds=dict(run.steps.seconds),
    )
    return msgspec.structs.replace(summary, question=mark_breaker.confirmation_question(run.options.limits, summary))


def _commit_counts(mark: OfflineRun, decision: MarkDecision, spared: NothingToDeleteCommits) -> dict[str, int]:
    spared_count = len(spared.commits & {*decision.commits})
    return {
        **mark.record.mark_counts,
        "expired": len(decision.commits),
        "given_up": len(decision.abandoned_commits),
        "partly": len(decision.partly_expired_commits),
        "commits_waiting": decision.waiting_commits,
        # not those of which only a part has expired: they are active
        "commits_marked": mark.record.mark_counts.get("commits_marked", spared_count) - spared_count,
        "nothing_to_delete": spared_count,
    }


def _by_day(rows: Iterable[DayCount]) -> dict[str, ObjectCounts]:
    by_day: dict[str, ObjectCounts] = {}
    for row in rows:
        day = by_day.setdefault(row.day, {})
        day[row.reason] = day.get(row.reason, _NO_OBJECTS) + row.amount
    return by_day


def _count_by_branch(ctx: Context) -> dict[str, ObjectCount]:
    found: dict[str, ObjectCount] = {}
    for name, record in ctx.branches.scan_open():
        metarange = head_commit(ctx, record.head).metarange
        found[name] = ObjectCount(ctx.trees.count(metarange), ctx.trees.size_bytes(metarange))
    return found


def summarize_sweep(
    rows: Sequence[OutcomeCount], mode: SweepMode, excluded_commits: int, at_ms: int, seconds: float
) -> SweepResult:
    by_reason: dict[str, dict[str, ObjectCount]] = {}
    by_prefix: dict[str, dict[str, ObjectCount]] = {}
    for row in rows:
        for of in (by_reason.setdefault(row.reason, {}), by_prefix.setdefault(folder_of(ObjectKind(row.kind)), {})):
            of[row.outcome] = of.get(row.outcome, _NO_OBJECTS) + row.amount
    failures = sorted(
        {
            row.explanation
            for row in rows
            if row.outcome in (FAILED_OUTCOME, KEPT_AS_VERSION_OUTCOME) and row.explanation
        }
    )[:FAILURES_SHOWN]
    outcomes = sum_counts((row.outcome, row.amount) for row in rows)
    return SweepResult(
        mode=mode,
        at_ms=at_ms,
        outcomes=outcomes,
        by_reason=by_reason,
        by_prefix=by_prefix,
        excluded_commits=excluded_commits,
        failures=failures,
        seconds=seconds,
    )
