"""`refstore revert`: undo a commit by a new one. `refstore cherry-pick` takes the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import typer

from refstore.cli.commit import emit_commit
from refstore.cli.common import repository_of
from refstore.cli.locations import PlacedCommand, place, words
from refstore.cli.merge import showing_conflicts
from refstore.cli.parameters import AllowEmpty, Committer, Message, Parent

app = typer.Typer()


def applying_command(what: Literal["revert", "cherry-pick"], help_: str) -> Callable[..., None]:
    """Make a command that applies what a commit changed, backwards or again, by a new commit on a branch."""

    def command(
        ctx: typer.Context,
        arguments: Annotated[list[str], place("REPO BRANCH REF")],
        *,
        parent: Parent = 0,
        message: Message = "",
        committer: Committer = "",
        allow_empty: AllowEmpty = False,
    ) -> None:
        repo_name, branch, ref = words(ctx, arguments, "REPO BRANCH REF")
        with repository_of(ctx, repo_name) as repo:
            apply = repo.revert if what == "revert" else repo.cherry_pick
            with showing_conflicts(ctx):
                new = apply(branch, ref, parent=parent, message=message, committer=committer, allow_empty=allow_empty)
            emit_commit(ctx, branch, new)

    command.__doc__ = help_
    return command


app.command("revert", cls=PlacedCommand)(
    applying_command(
        "revert",
        """Undo a commit by a new one on top of the branch.

    \b
    Example: refstore revert sales main main~1
    """,
    )
)
