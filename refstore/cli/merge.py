"""`refstore merge`: merge a ref into a branch."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated, Literal

import typer

from refstore.cli.commit import emit_commit
from refstore.cli.common import invocation_of, repository_of, tell_some
from refstore.cli.locations import PlacedCommand, place, words
from refstore.cli.parameters import AllowEmpty, Committer, Date, Message, Meta
from refstore.cli.rows import milliseconds, pairs
from refstore.errors import MergeConflict

app = typer.Typer()


@app.command("merge", cls=PlacedCommand)
def merge(
    ctx: typer.Context,
    arguments: Annotated[list[str], place("REPO SOURCE BRANCH")],
    *,
    message: Message = "",
    strategy: Annotated[
        Literal["", "dest-wins", "source-wins"],
        typer.Option(
            metavar="dest-wins|source-wins", help="Decide conflicts, of tables by whole logs; default: report them."
        ),
    ] = "",
    squash: Annotated[bool, typer.Option("--squash", help="Make one commit with one parent.")] = False,
    committer: Committer = "",
    meta: Meta = None,
    date: Date = None,
    allow_empty: AllowEmpty = False,
) -> None:
    """Merge a ref into a branch, three-way. After a conflict nothing is changed, and the paths are listed.

    \b
    Example: refstore merge sales dev main
             refstore merge sales dev main --strategy source-wins -m "take dev's"
    """
    repo_name, source, branch = words(ctx, arguments, "REPO SOURCE BRANCH")
    with repository_of(ctx, repo_name) as repo:
        with showing_conflicts(ctx):
            new = repo.merge(
                branch,
                source,
                message,
                strategy=strategy,
                squash=squash,
                committer=committer,
                metadata=pairs(meta),
                date_ms=milliseconds(date),
                allow_empty=allow_empty,
            )
        emit_commit(ctx, branch, new)


@contextmanager
def showing_conflicts(ctx: typer.Context) -> Generator[None, None, None]:
    """Print the paths of a conflict that the block raises; with --json the error contains them."""
    try:
        yield
    except MergeConflict as conflict:
        if not invocation_of(ctx).json:
            tell_some([f"conflict: {path!r}" for path in conflict.paths])
        raise
