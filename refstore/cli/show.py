"""`refstore show`: show one commit, and what it changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from refstore.cli.common import emit, invocation_of, repository_of
from refstore.cli.diff import change_row, emit_statistics
from refstore.cli.locations import PlacedCommand, place, words
from refstore.cli.rows import commit_row, lifetime_words, logged_row
from refstore.errors import Gone
from refstore.operations.log_and_diff import BEING_SWEPT, PARTLY_READABLE, changes_of
from refstore.versioning.commits.tree_diff import PathChange

app = typer.Typer()


@app.command("show", cls=PlacedCommand)
def show(ctx: typer.Context, arguments: Annotated[list[str], place("REPO [REF]")]) -> None:
    """Show a commit: who made it and when, the state of its data, and what it changed against its first parent.

    \b
    Example: refstore show sales main~1
             refstore show sales 6e40c9d1
    """
    repo_name, ref = words(ctx, arguments, "REPO [REF]")
    with repository_of(ctx, repo_name, only_read=True) as repo:
        line = next(iter(repo.history(ref or repo.default_branch)))
        hidden: Gone | None = None
        changes: Iterable[PathChange] = ()
        try:
            changes = changes_of(repo.context, line.commit)
        except Gone as error:
            hidden = error
        if invocation_of(ctx).output != "table":
            told = [change_row(change) for change in changes] if hidden is None else None
            emit(ctx, {**logged_row(line), "changes": told})
            return
        emit(ctx, {**commit_row(line.commit, line.record), "state": lifetime_words(line)})
        print()
        if hidden is not None:
            typer.echo(f"What it changed is hidden: {hidden}.")
        else:
            emit_statistics(ctx, changes)
            if line.lifetime in PARTLY_READABLE:
                gone = "is being deleted" if line.lifetime in BEING_SWEPT else "is gone"
                typer.echo(f"A part of its data {gone}: refstore ls {repo_name} {line.commit} lists what is left.")
