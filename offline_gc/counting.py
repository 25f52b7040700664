"""What the rows of tasks come to: the summary of a marking, and what became of a sweep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from offline_gc import breaker
from offline_gc.carried import Carried
from offline_gc.comparing import Compared, Gathered
from offline_gc.deciding import Decision, expired_by
from offline_gc.listing import ListedStretch
from offline_gc.marking import Counted
from offline_gc.places import Kind, folder_of
from offline_gc.summary import FAILED, Count, Online, Summary, Swept, kind_name, totals
from offline_gc.sweeping import Mode, Outcome
from refstore.branches import Branches
from refstore.context import Context
from refstore.flows.refs import head_commit
from refstore.marks import Run
from refstore.retention.rules import render

FAILURES_SHOWN: Final = 20


def summarised(
    ctx: Context,
    run: Run,
    decision: Decision,
    age: float,
    stretches: Sequence[ListedStretch],
    named: Gathered,
    compared: Compared,
    limits: breaker.Limits,
    online: Online,
    seconds: Mapping[str, float],
    before: Carried | None = None,
    why_complete: str = "",
) -> Summary:
    """`before`: what the run went on from, or `why_complete` it did not."""
    rows = compared.rows

    def of(what: str) -> list[Counted]:
        return [row for row in rows if row.what == what]

    def total(counted: Iterable[Counted]) -> Count:
        return sum((Count(row.objects, row.bytes) for row in counted), Count())

    by_day: dict[str, dict[str, Count]] = {}
    for row in of("day"):
        day = by_day.setdefault(row.detail, {})
        day[row.reason] = day.get(row.reason, Count()) + Count(row.objects, row.bytes)
    summary = Summary(
        repository=ctx.name,
        mark_id=run.mark_id,
        state=run.shown,
        began_ms=run.record.began_ms,
        deletes_at_ms=run.record.deletes_at_ms,
        min_age_seconds=age,
        goes_on_from=before.mark_id if before else "",
        why_complete=why_complete,
        there_before=before.there if before else Count(),
        rules_digest=run.record.rules_digest,
        rules_document=render(decision.rules),
        expired_by=expired_by(decision),
        commits={**run.record.counts, "expired": len(decision.commits), "given_up": len(decision.given_up), "partly": len(decision.partly)},
        listed=total(of("listed")),
        listed_by_kind=totals((kind_name(row.kind), row.objects, row.bytes) for row in of("listed")),
        young=Count(sum(each.young for each in stretches), sum(each.young_bytes for each in stretches)),
        foreign=Count(sum(each.foreign for each in stretches), sum(each.foreign_bytes for each in stretches)),
        kept=total(of("kept")),
        pending=total(of("pending")),
        marked=total(of("marked")),
        by_reason=totals((row.reason, row.objects, row.bytes) for row in of("marked")),
        by_kind=totals((kind_name(row.kind), row.objects, row.bytes) for row in of("marked")),
        by_prefix=totals((folder_of(Kind(row.kind)), row.objects, row.bytes) for row in of("marked")),
        by_day=by_day,
        held_by_branch=_held_by_branch(ctx),
        named_in_kv=named.addresses.rows,
        sources=compared.sources,
        online=online,
        seconds=dict(seconds),
    )
    return msgspec.structs.replace(summary, question=breaker.question(limits, summary))


def _held_by_branch(ctx: Context) -> dict[str, Count]:
    found: dict[str, Count] = {}
    for name, record in Branches(ctx.kv, ctx.repo, ctx.ids, ctx.clock).scan_open():
        metarange = head_commit(ctx, record.head).metarange
        found[name] = Count(ctx.trees.count(metarange), ctx.trees.size_bytes(metarange))
    return found


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
