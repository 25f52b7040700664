"""The commands `refstore gc status` and `report`: which marks there are, and what became of them."""

from __future__ import annotations

from typing import Annotated

import typer

from refstore.cli.common import emit, invocation_of, repository_of
from refstore.cli.gc_tables import emit_summaries, run_row
from refstore.cli.parameters import Name
from refstore.errors import NotFound
from refstore.gc_marks import Marks


def status(ctx: typer.Context, repo_name: Name) -> None:
    """List the marks: waiting, due and swept ones, with the sizes of each.

    Of a mark that waits, `commits` are those that it still has. What the `unmarked` ones name stays, so `objects` and
    `bytes` are then the most that the sweep deletes. Of a swept mark, `commits` were swept, `deleted` are the objects
    that the store confirmed, and `left` those that were named again.

    \b
    Example: refstore gc status sales --json
    """
    with repository_of(ctx, repo_name, only_read=True) as repo:
        marks = Marks(repo.context)
        emit(ctx, (run_row(marks, each) for each in marks.runs.scan()))


def report(
    ctx: typer.Context,
    repo_name: Name,
    mark_id: Annotated[
        str | None,
        typer.Argument(metavar="[MARK_ID]", help="The mark to report on; default: the last one.", show_default=False),
    ] = None,
) -> None:
    """Show what a run marked, and what the store confirmed of its sweep.

    \b
    Example: refstore gc report sales
    """
    from refstore_gc.run_summary import read_summaries

    with repository_of(ctx, repo_name, only_read=True) as repo:
        every = read_summaries(repo.context.objects, Marks(repo.context).runs.scan())
        mark_id = Marks(repo.context).runs.full_id(mark_id) if mark_id else None
        chosen = [each for each in every if mark_id in (None, each.mark_id)]
        if not chosen:
            of = f" of {mark_id}" if mark_id else ""
            raise NotFound(
                f"{repo_name!r} has no report{of}; see which runs there were: refstore gc status {repo_name}"
            )
        emit_summaries(invocation_of(ctx).output, [chosen[-1]])
