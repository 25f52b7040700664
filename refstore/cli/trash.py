"""`refstore trash`: list lost objects that can still be restored."""

from __future__ import annotations

from typing import Annotated

import typer

from refstore.cli.common import emit, repository_of
from refstore.cli.parameters import Name, Prefix
from refstore.cli.rows import format_when

app = typer.Typer()


@app.command("trash")
def trash(
    ctx: typer.Context,
    repo_name: Name,
    branch: Annotated[str | None, typer.Option(metavar="NAME", help="Only objects that were on this branch.")] = None,
    prefix: Prefix = "",
) -> None:
    """List lost objects that are not deleted yet: those that `refstore restore` can restore.

    Without a time of deletion, the grace window has not begun: it begins when the reaper processes the object.

    \b
    Example: refstore trash sales --prefix 2026/
    """
    with repository_of(ctx, repo_name, only_read=True) as repo:
        emit(
            ctx,
            (
                {
                    "path": item.path,
                    "branch": item.branch,
                    "size_bytes": item.entry.size_bytes if item.entry else None,
                    "cause": item.cause,
                    "since": format_when(item.since_ms),
                    "deletes_at": format_when(item.deletes_at_ms),
                    "address": item.address,
                }
                for item in repo.list_trash(branch=branch, prefix=prefix)
            ),
        )
