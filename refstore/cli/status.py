"""`refstore status`: what a repository holds, and what waits; or all repositories in one table."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import typer

from refstore.cli.common import emit, invocation_of, open_lake
from refstore.cli.rows import format_when
from refstore.core.units import format_bytes, sum_sizes
from refstore.monitoring import figures, run_control
from refstore.monitoring.figures import Figures
from refstore.records.staging_records import StoredEntry, decode_staged_many

if TYPE_CHECKING:
    from refstore.core.ids import BranchName
    from refstore.lake import Lake
    from refstore.records.branch_records import StoredBranch
    from refstore.records.figure_records import Amount
    from refstore.repository import Repository

app = typer.Typer()

STAGED_MAX: Final = 100_000
"""How many staged changes of a branch are counted."""


@app.command("status")
def status(
    ctx: typer.Context,
    repo_name: Annotated[
        str,
        typer.Argument(metavar="REPO", help="The repository; default: all, as last measured.", show_default=False),
    ] = "",
) -> None:
    """Show a repository's branches with what is staged, what is in grace and due, and what needs attention.

    Live and staged are entries: a path each, of which several may name one object. The others are objects.

    Without REPO it lists all repositories, with the figures that reapers and runs wrote last.

    \b
    Example: refstore status sales
             refstore status --output csv
    """
    with open_lake(ctx, read_only=True) as lake:
        if not repo_name:
            _all(ctx, lake)
        else:
            _one(ctx, lake, lake.repository(repo_name))


def _all(ctx: typer.Context, lake: Lake) -> None:
    repositories, now_ms = list(lake.repository_records()), lake.clock.now_ms()
    known = figures.read_all_figures(lake.kv, [record.id for _, record in repositories])
    not_measured = "not measured yet" if invocation_of(ctx).output == "table" else None

    def row(name: str, own: Figures, created_ms: int) -> dict[str, object]:
        reaper = own.reaper
        amounts = {"live": reaper.live, "staged": reaper.staged, "in_grace": reaper.in_grace, "due": reaper.due}
        return {
            "repository": name,
            **{f"{what}_bytes": amount.bytes if reaper.measured_ms else None for what, amount in amounts.items()},
            "measured": format_when(reaper.measured_ms or None) or not_measured,
            "warnings": ", ".join(each.concern.value for each in figures.find_warnings(own, created_ms, now_ms)),
        }

    emit(
        ctx,
        (row(name, known[record.id], record.created_ms) for name, record in repositories),
    )


def _one(ctx: typer.Context, lake: Lake, repo: Repository) -> None:
    from refstore_reaper.survey import survey

    measured = survey(repo.context, repo.record, lambda: True)
    own = figures.read_figures(lake.kv, repo.context.repo)
    own = own._replace(reaper=measured or own.reaper, gc=figures.measure_marks(repo.context, own.gc))
    reaper = own.reaper
    branches = [_branch(repo, name, record) for name, record in repo.context.branches.scan_open()]
    warned = [
        {"warning": each.concern.value, "detail": each.detail}
        for each in figures.find_warnings(own, repo.record.created_ms, lake.clock.now_ms())
    ]
    runs = [each for each in run_control.active_runs(repo.context) if each.is_alive]
    whole: dict[str, object] = {
        "repository": repo.name,
        "live": _entries(reaper.live),
        "staged": _entries(reaper.staged),
        "in_grace": _objects(reaper.in_grace),
        "due": _objects(reaper.due),
        "marked": _objects(own.gc.marked),
        "next_sweep": format_when(own.gc.next_sweep_ms or None),
        "last_run": format_when(own.gc.run_ms or None),
        "under_way": ", ".join(f"{each.progress.kind} {each.run_id}: {each.progress.step}" for each in runs) or None,
    }
    if invocation_of(ctx).output != "table":
        emit(ctx, {**whole, "branches": branches, "warnings": warned})
        return
    emit(ctx, {name: value for name, value in whole.items() if value is not None})
    print()
    emit(ctx, branches)
    for each in warned:
        typer.echo(f"\n{each['warning']}: {each['detail']}")


def _branch(repo: Repository, name: BranchName, record: StoredBranch) -> dict[str, object]:
    staged = list(islice(repo.context.staging.scan_merged(record.live_tokens), STAGED_MAX))
    entries = [each for each in decode_staged_many([raw for _, raw, _ in staged]) if isinstance(each, StoredEntry)]
    return {
        "branch": name,
        "head": record.head,
        "staged_changes": len(staged),
        "staged_bytes": sum_sizes(entry.size_bytes for entry in entries),
        "oldest": format_when(min((entry.mtime_ms for entry in entries), default=None)),
    }


def _entries(amount: Amount) -> str:
    """Say how much is named; several entries may name one object."""
    return f"{amount.objects:,} {'entry' if amount.objects == 1 else 'entries'}, {format_bytes(amount.bytes)}"


def _objects(amount: Amount) -> str:
    return f"{amount.objects:,} object{'' if amount.objects == 1 else 's'}, {format_bytes(amount.bytes)}"
