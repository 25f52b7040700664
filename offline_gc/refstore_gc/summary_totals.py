"""Sum up what the tasks counted: the summary of a marking, and of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from refstore.gc_marks import OfflineRun
from refstore.retention.rules import render_rules
from refstore_gc.anti_join import JoinResult
from refstore_gc.bucket_join import ComparedCount
from refstore_gc.garbage import MarkedCount
from refstore_gc.incremental.baseline import Baseline
from refstore_gc.mark_plan import MarkDecision, count_expired_by_rule, minimum_age_seconds
from refstore_gc.nothing_to_delete import NothingToDeleteCommits
from refstore_gc.run_context import BreakerLimits, RunContext
from refstore_gc.run_layout import ObjectKind, folder_of
from refstore_gc.run_summary import (
    FAILED_OUTCOME,
    FAILURES_SHOWN,
    KEPT_AS_VERSION_OUTCOME,
    BranchRuleResult,
    GcSummary,
    ObjectCount,
    SweepMode,
    SweepResult,
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
    baseline: Baseline | None = None,
    full_reason: str = "",
) -> GcSummary:
    """Summarize a marking. `baseline`: of an incremental run; else `full_reason`."""
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
        baseline_mark_id=baseline.mark_id if baseline else "",
        full_reason=full_reason,
        previously_listed=baseline.previously_listed if baseline else _NO_OBJECTS,
        rules_digest=mark.record.rules_digest,
        rules_document=render_rules(decision.rules),
        expired_by=count_expired_by_rule(decision),
        commits=_commit_counts(mark, decision, spared),
        listed=sum((row.listed for row in compared), _NO_OBJECTS),
        young=sum((each.young_objects for each in chunks), _NO_OBJECTS),
        foreign=sum((each.foreign for each in chunks), _NO_OBJECTS),
        kept=sum((row.kept for row in compared), _NO_OBJECTS),
        pending=sum((row.pending for row in compared), _NO_OBJECTS),
        marked=sum((row.amount for row in marked), _NO_OBJECTS),
        by_reason=sum_counts((row.reason, row.amount) for row in marked),
        by_prefix=sum_counts((folder_of(ObjectKind(row.kind)), row.amount) for row in marked),
        sources=result.sources,
        branch_rules=online,
        versions_warning=run.repository.objects.versioning_status().warning,
        seconds=dict(run.steps.seconds),
    )
    return msgspec.structs.replace(summary, question=confirmation_question(run.options.limits, summary))


def confirmation_question(limits: BreakerLimits, summary: GcSummary) -> str:
    """Return what an operator has to confirm; '' where nothing is unusual. Young objects count as listed."""
    listed_now, before = summary.listed + summary.young, summary.previously_listed
    total = ObjectCount(max(listed_now.objects, before.objects), max(listed_now.bytes, before.bytes))
    marked = summary.marked
    if marked.objects < limits.floor_objects or limits.share_max >= 1:
        return ""
    if marked.objects > limits.share_max * total.objects:
        return f"{marked.objects} of {total.objects} objects would go, more than a share of {limits.share_max:g}"
    if marked.bytes > limits.share_max * total.bytes:
        return f"{marked.bytes} of {total.bytes} bytes would go, more than a share of {limits.share_max:g}"
    return ""


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
