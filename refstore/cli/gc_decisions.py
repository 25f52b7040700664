"""The commands `refstore gc unmark`, `confirm` and `stop`: what an operator decides about marks and runs."""

from __future__ import annotations

from typing import Annotated

import typer

from refstore.cli.common import emit, repository_of, who
from refstore.cli.confirmation import confirm
from refstore.cli.gc_tables import run_row
from refstore.cli.parameters import DryRun, Name, Yes
from refstore.errors import NotFound
from refstore.gc_marks import Marks
from refstore.monitoring import figures, run_control
from refstore.operations import unmark as unmark_operation


def unmark(
    ctx: typer.Context,
    repo_name: Name,
    which: Annotated[str, typer.Argument(metavar="COMMIT|MARK_ID", help="A commit, or a mark id for all its commits.")],
    *,
    pin: Annotated[
        bool, typer.Option("--pin", help="Also add the commits to the pins of the rules: they never expire then.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Make a marked commit, or all commits of a mark, active again. This works until the sweep begins.

    The next run marks commits again that have expired by the rules: change the rules first, or give --pin. --dry-run
    lists these commits.

    \b
    Example: refstore gc unmark sales 6e40c9... --dry-run
             refstore gc unmark sales 6e40c9... --pin
    """
    with repository_of(ctx, repo_name) as repo:
        which = Marks(repo.context).runs.full_id(which)
        found = (
            unmark_operation.preview_unmark(repo.context, which)
            if dry_run
            else unmark_operation.unmark(repo.context, which, pin=pin, by=who())
        )
        if not dry_run:
            figures.write_marks(repo.context)
        if found.expired_commits and not (dry_run and pin):
            typer.echo(_marked_again(repo_name, which, found, dry_run=dry_run), err=True)
        row: dict[str, object] = {
            "repository": repo_name,
            "unmarked": found.unmarked_commits,
            "still_expired": len(found.expired_commits),
        }
        emit(ctx, row | {"pinned": len(found.commits) if found.is_pinned else 0})


def _marked_again(repo_name: str, which: str, found: unmark_operation.UnmarkResult, *, dry_run: bool) -> str:
    explain = f"refstore retention explain {repo_name} {found.expired_commits[0]}"
    keep_these = (
        f"or let them keep these: refstore gc unmark {repo_name} {which} --pin"
        if dry_run
        else "or add these to pins.commits"
    )
    return (
        f"the rules call {len(found.expired_commits)} of {len(found.commits)} commits expired, and the next run marks "
        f"what they call so; amend them ({explain} says which rule it is; refstore retention set {repo_name} FILE), "
        f"{keep_these}"
    )


def confirm_mark(
    ctx: typer.Context, repo_name: Name, mark_id: Annotated[str, typer.Argument(metavar="MARK_ID")], *, yes: Yes = False
) -> None:
    """Confirm a mark that is larger than the breaker allows, so that it can be swept.

    \b
    Example: refstore gc confirm sales 01m7z3zav9bbbjvdydt7m95zqf
    """
    with repository_of(ctx, repo_name) as repo:
        marks = Marks(repo.context)
        mark_id = marks.runs.full_id(mark_id)
        found = marks.runs.get(mark_id)
        confirm(ctx, found.record.question or f"mark {mark_id} is {found.state_text}", yes=yes)
        confirmed = marks.decisions.confirm(mark_id, who())
        figures.write_marks(repo.context)
        emit(ctx, run_row(marks, confirmed))


def stop(
    ctx: typer.Context,
    repo_name: Name,
    run_id: Annotated[
        str, typer.Argument(metavar="[RUN]", help="The run; default: the only one under way.", show_default=False)
    ] = "",
    *,
    yes: Yes = False,
) -> None:
    """Stop a run of the offline job, or of a purge, that is under way. It ends within seconds.

    A marking that is stopped marks nothing. A sweep goes on with the next run; it cannot be taken back. A purge that is
    run again does what is left.

    \b
    Example: refstore gc stop sales --yes
    """
    with repository_of(ctx, repo_name) as repo:
        under_way = [each for each in run_control.active_runs(repo.context) if each.run_id.startswith(run_id)]
        if len(under_way) != 1:
            runs = ", ".join(f"{each.progress.kind} {each.run_id}" for each in under_way) or "none"
            raise NotFound(f"which run is to stop is not clear; under way in {repo_name!r}: {runs}")
        chosen = under_way[0]
        confirm(ctx, f"the {chosen.progress.kind} {chosen.run_id} of {chosen.progress.owner} will stop", yes=yes)
        run_control.request_stop(repo.context, chosen.run_id, who())
        emit(ctx, {"repository": repo_name, "run": chosen.run_id, "kind": chosen.progress.kind, "asked_to_stop": True})
