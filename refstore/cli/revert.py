"""`refstore revert`: undo a commit by a new one."""

from __future__ import annotations

from typing import Annotated

import typer

from refstore.cli.commit import emit_commit
from refstore.cli.common import repository_of
from refstore.cli.locations import PlacedCommand, place, words
from refstore.cli.merge import showing_conflicts
from refstore.cli.parameters import AllowEmpty, Committer, Message, Parent

app = typer.Typer()


@app.command("revert", cls=PlacedCommand)
def revert(
    ctx: typer.Context,
    arguments: Annotated[list[str], place("REPO BRANCH REF")],
    *,
    parent: Parent = 0,
    message: Message = "",
    committer: Committer = "",
    allow_empty: AllowEmpty = False,
) -> None:
    """Undo a commit by a new one on top of the branch.

    \b
    Example: refstore revert sales main main~1
    """
    repo_name, branch, ref = words(ctx, arguments, "REPO BRANCH REF")
    with repository_of(ctx, repo_name) as repo:
        with showing_conflicts(ctx):
            new = repo.revert(branch, ref, parent=parent, message=message, committer=committer, allow_empty=allow_empty)
        emit_commit(ctx, branch, new)
