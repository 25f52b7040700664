"""Print the summaries and marks of the offline job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import typer

from refstore.cli.common import print_answer
from refstore.cli.purge_report import describe_left, night_row
from refstore.cli.rows import format_when
from refstore.core.redaction import redact_text
from refstore.core.units import format_bytes, format_duration
from refstore.gc_marks import Marks, OfflineRun, RunState

NAMED_MAX: Final = 5
"""How many objects that a purge left are named."""

if TYPE_CHECKING:
    from refstore_gc.run_summary import GcSummary
    from refstore_purge.purge_report import PurgeReport


def emit_summaries(
    output: str,
    done: Sequence[GcSummary],
    cleared: Sequence[dict[str, Any]] = (),
    purges: Sequence[tuple[str, PurgeReport]] | None = None,
) -> None:
    """Print what runs did. `purges`: what came of looks for the ids of the purge's ledger, by repository; None: the
    command looks for none.
    """
    rows = [night_row(name, report) for name, report in purges or ()]
    if output == "json":
        looks = {} if purges is None else {"purges": rows}
        print_answer(output, {"runs": list(done), "deleted_repositories": list(cleared), **looks})
        return
    for summary in done:
        print_answer(output, _summary_row(summary))
        typer.echo()
        if summary.question and summary.state == RunState.NEEDS_CONFIRMATION:
            typer.echo(
                f"{summary.question}; allow the sweep with: refstore gc confirm {summary.repository} "
                f"{summary.mark_id}\n",
                err=True,
            )
        if summary.young.objects and not (summary.listed.objects or summary.baseline_mark_id):
            typer.echo(_all_young(summary), err=True)
        waiting = summary.commits.get("commits_waiting", 0)
        if waiting:
            typer.echo(
                f"warning: {waiting:,} commits wait for a reaper: they have expired, and no run marks them before a "
                "reaper has processed them; if none runs, start one: refstore reaper, or refstore serve",
                err=True,
            )
        if summary.versions_warning:
            typer.echo(f"warning: {summary.versions_warning}", err=True)
        if summary.drift:
            from refstore_gc.run_summary import DRIFT_NOTE

            typer.echo(DRIFT_NOTE, err=True)
        for each in summary.branch_rules.incomplete_branches:
            typer.echo(f"not applied: {each}", err=True)
        of_cleaning = summary.purge_cleanup.failures if summary.purge_cleanup is not None else []
        for each in (*of_cleaning, *(summary.sweep.failures if summary.sweep is not None else [])):
            typer.echo(f"not freed: {redact_text(each)}", err=True)
    if cleared:
        print_answer(output, cleared)
    for row, (name, report) in zip(rows, purges or (), strict=True):
        print_answer(
            output, row | {"untouched": ", ".join(each.dataset for each in report.datasets if each.untouched_reason)}
        )
        for line in describe_left(report, NAMED_MAX, f"refstore purge status {name} {report.run}"):
            typer.echo(line, err=True)


def _summary_row(summary: GcSummary) -> dict[str, object]:
    row: dict[str, object] = {
        "repository": summary.repository,
        "mark": summary.mark_id,
        "state": summary.state,
        "engine": summary.engine,
        "sweep_from": format_when(summary.deletes_at_ms),
        "baseline_mark": summary.baseline_mark_id
        or f"nothing: {summary.full_reason or 'everything was listed and read'}",
        "listed": _describe_listed(summary),
        "kept": _show_count(summary.kept),
        "marked": _show_count(summary.marked),
        "commits_nothing_to_delete": summary.commits.get("nothing_to_delete", 0),
        "commits_waiting": summary.commits.get("commits_waiting", 0),
    }
    row |= {reason: _show_count(count) for reason, count in summary.by_reason.items()}
    row |= {f"below {prefix}": _show_count(count) for prefix, count in summary.by_prefix.items()}
    if summary.branch_rules.staged.objects:
        row["staged_expired"] = _show_count(summary.branch_rules.staged)
    if summary.branch_rules.latest_view.objects:
        row["from_the_latest_view"] = (
            f"{_show_count(summary.branch_rules.latest_view)}, {summary.branch_rules.commits} commits"
        )
    if summary.pending.objects:
        row["marked_or_tagged_before"] = _show_count(summary.pending)
    if summary.young.objects:
        row["too_young"] = f"{_show_count(summary.young)}, younger than {format_duration(summary.min_age_seconds)}"
    if summary.foreign.objects:
        row["foreign"] = _show_count(summary.foreign)
    if summary.purge_cleanup is not None:
        row |= {
            f"purges: {what}": _show_count(count)
            for what, count in summary.purge_cleanup.lines().items()
            if count.objects
        }
    if summary.sweep is not None:
        row |= {outcome: _show_count(count) for outcome, count in summary.sweep.outcomes.items()}
        if summary.sweep.tagged_count.objects:
            row["tagged"] = (
                f"{_show_count(summary.sweep.tagged_count)} wait for the bucket since "
                f"{format_when(summary.sweep.tagged_ms or None) or 'now'}"
            )
        for prefix, of in sorted(summary.sweep.by_prefix.items()):
            row |= {f"{outcome} below {prefix}": _show_count(count) for outcome, count in of.items()}
        if summary.sweep.purged_objects.objects:
            purged = summary.sweep.purged_objects
            row["purged objects without a name"] = f"{purged.objects:,} objects, {purged.contents:,} contents"
        row["excluded_commits"] = summary.sweep.excluded_commits
        if summary.sweep.excluded_by_rules:
            row["of_these_by_rules"] = summary.sweep.excluded_by_rules
        if summary.sweep.have_rules_changed:
            row["rules"] = "changed since the mark; what they keep is excluded"
    return row


def _all_young(summary: GcSummary) -> str:
    return (
        f"everything that {summary.repository} has is younger than {format_duration(summary.min_age_seconds)}, so "
        "nothing can be marked yet; --min-age DURATION lowers this age, though not below the time that an operation "
        "and its requests may take (refstore config --agreed)"
    )


def _describe_listed(summary: GcSummary) -> str:
    """Say what was listed to be compared; where younger objects were ignored, from which age on."""
    shown = _show_count(summary.listed)
    return f"{shown}, older than {format_duration(summary.min_age_seconds)}" if summary.young.objects else shown


def _show_count(count: Any) -> str:
    return f"{count.objects:,} objects, {format_bytes(count.bytes)}"


def run_row(marks: Marks, run: OfflineRun) -> dict[str, object]:
    record, counts = run.record, marks.statuses.read_counts(run)
    return {
        "mark": run.mark_id,
        "state": run.state_text,
        "began": format_when(record.began_ms),
        "sweep_from": format_when(record.deletes_at_ms or None) if run.has_finished_marking else None,
        "tagged": format_when(record.tagged_ms or None),
        "swept": format_when(record.swept_ms or None),
        "commits": counts.get("commits_marked", 0),
        "partly": counts.get("commits_partly_marked", 0),
        "unmarked": counts.get("commits_unmarked", 0),
        "nothing_to_delete": counts.get("commits_nothing_to_delete", 0),
        "objects": counts.get("objects"),
        "bytes": counts.get("bytes"),
        "deleted": record.sweep_counts.get("deleted_objects"),
        "left": record.sweep_counts.get("excluded"),
        "question": record.question or None,
        "confirmed_by": record.confirmed_by or None,
        "ended": record.end_reason or None,
    }
