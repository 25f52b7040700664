"""`refstore cherry-pick`: apply a commit's changes again."""

from __future__ import annotations

from typing import Annotated

import typer

from refstore.cli.commit import emit_commit
from refstore.cli.common import repository_of
from refstore.cli.locations import PlacedCommand, place, words
from refstore.cli.merge import showing_conflicts
from refstore.cli.parameters import AllowEmpty, Committer, Message, Parent

app = typer.Typer()


@app.command("cherry-pick", cls=PlacedCommand)
def cherry_pick(
    ctx: typer.Context,
    arguments: Annotated[list[str], place("REPO BRANCH REF")],
    *,
    parent: Parent = 0,
    message: Message = "",
    committer: Committer = "",
    allow_empty: AllowEmpty = False,
) -> None:
    """Apply a commit's changes again on top of a branch.

    \b
    Example: refstore cherry-pick sales main dev~1
    """
    repo_name, branch, ref = words(ctx, arguments, "REPO BRANCH REF")
    with repository_of(ctx, repo_name) as repo:
        with showing_conflicts(ctx):
            new = repo.cherry_pick(
                branch, ref, parent=parent, message=message, committer=committer, allow_empty=allow_empty
            )
        emit_commit(ctx, branch, new)
