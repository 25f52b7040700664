"""Print the reports of purges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import typer

from refstore.cli.common import emit, invocation_of
from refstore.cli.purge_backups import SHOWN
from refstore.cli.rows import format_when

if TYPE_CHECKING:
    from refstore_purge.purge_report import PurgeReport, RemainingPlace


def summary_of(report: PurgeReport) -> dict[str, Any]:
    return {
        "run": report.run,
        "state": report.state,
        "engine": report.engine,
        "began": format_when(report.began_ms),
        "ids": report.ids,
        "objects": sum(row.objects for row in report.rows),
        "rewritten_objects": sum(row.rewritten_objects for row in report.rows),
        "erased_objects": sum(row.erased_objects for row in report.rows),
        "matched_rows": sum(row.matched_rows for row in report.rows),
        "rows_changed": sum(row.rows_changed for row in report.rows),
        "skipped_count": report.skipped_count,
        "partitions_left": report.partitions_left,
        "commits": len(report.published_commits),
        "places": len(report.places),
        "final": report.is_final,
    }


def night_row(repository: str, report: PurgeReport) -> dict[str, Any]:
    """Return what the look of the nightly job for the ledger's ids did, as a row."""
    names = ("state", "ids", "rewritten_objects", "erased_objects", "rows_changed", "skipped_count")
    summary = summary_of(report)
    untouched = [each.dataset for each in report.datasets if each.untouched_reason]
    row = {name: summary[name] for name in names}
    return {"repository": repository, "purge": report.run, **row, "untouched": untouched}


def describe_left(report: PurgeReport, shown: int, more: str) -> list[str]:
    """Return a line for each data set and object that was not purged, up to a number. `more`: what shows the others."""
    left = [f"data set {each.dataset}: {each.untouched_reason}" for each in report.datasets if each.untouched_reason]
    left += [f"{each.branch}: {each.path or '(the branch)'}: {each.reason}" for each in report.skipped_objects[:shown]]
    if report.skipped_count > shown:
        left.append(f"... and {report.skipped_count - shown} more: {more}")
    return [f"not purged: {each}" for each in left]


def emit_report(ctx: typer.Context, report: PurgeReport) -> None:
    if invocation_of(ctx).json:
        emit(ctx, msgspec.to_builtins(report))
        return
    emit(ctx, summary_of(report))
    emit(ctx, [msgspec.to_builtins(row) for row in report.rows], is_check=True)
    for each in report.published_commits:
        print(f"branch {each.branch}: commit {each.commit}, {each.paths} path{'' if each.paths == 1 else 's'}")
    for line in describe_left(report, SHOWN, "--json shows them"):
        print(line)
    if report.partitions_left:
        how = f"; go on with --after {report.watermark!r}" if report.watermark else " by --after"
        print(f"{report.partitions_left} partitions were left out{how}")
    if report.places:
        emit(ctx, [_place_row(each) for each in report.places])
    if report.ending_text:
        print(report.ending_text)
    for each in report.unexamined:
        print(f"not looked at: {each}")
    if report.failure:
        print(f"failed: {report.failure}")
    if report.state == "killed":
        print("killed: nothing is known of what came after this; run the same command again")


def _place_row(place: RemainingPlace) -> dict[str, Any]:
    return {
        "place": place.kind,
        "dataset": place.dataset,
        "objects": place.objects,
        "bytes": place.bytes,
        "goes": format_when(place.deletes_at_ms or None),
        "why": place.explanation,
        "restore_command": place.restore_command,
        "ending_command": place.ending_command,
    }
