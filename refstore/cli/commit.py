"""`refstore commit`: commit what is staged on a branch."""

from __future__ import annotations

from typing import Annotated

import typer

from refstore.cli.common import emit, repository_of
from refstore.cli.locations import PlacedCommand, place, words
from refstore.cli.parameters import AllowEmpty, Committer, Date, Message, Meta
from refstore.cli.rows import commit_row, milliseconds, pairs
from refstore.operations.commit import CommitInfo

app = typer.Typer()


@app.command("commit", cls=PlacedCommand)
def commit(
    ctx: typer.Context,
    arguments: Annotated[list[str], place("REPO BRANCH")],
    *,
    message: Message,
    committer: Committer = "",
    meta: Meta = None,
    date: Date = None,
    allow_empty: AllowEmpty = False,
) -> None:
    """Commit what is staged on a branch.

    \b
    Example: refstore commit sales main -m "sales of 21 November" --meta source=till
    """
    repo_name, branch = words(ctx, arguments, "REPO BRANCH")
    with repository_of(ctx, repo_name) as repo:
        new = repo.commit(
            branch,
            message,
            committer=committer,
            metadata=pairs(meta),
            date_ms=milliseconds(date),
            allow_empty=allow_empty,
        )
        emit_commit(ctx, branch, new)


def emit_commit(ctx: typer.Context, branch: str, new: CommitInfo) -> None:
    emit(ctx, {"branch": branch, **commit_row(new.id, new.record)})
