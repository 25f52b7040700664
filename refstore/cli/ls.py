"""`refstore ls`: list objects."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from refstore.cli.common import emit, repository_of
from refstore.cli.locations import PlacedCommand, place, words
from refstore.cli.rows import entry_row

if TYPE_CHECKING:
    from refstore.operations.read import ListedPath

app = typer.Typer()


@app.command("ls", cls=PlacedCommand)
def ls(
    ctx: typer.Context,
    arguments: Annotated[list[str], place("REPO REF [PREFIX]")],
    *,
    delimiter: Annotated[str, typer.Option(metavar="TEXT", help="Fold paths at this text.")] = "/",
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="List every object; fold nothing.")] = False,
    after: Annotated[str, typer.Option(metavar="PATH", help="Continue after this path.")] = "",
    amount: Annotated[int, typer.Option("--amount", "-n", min=0, metavar="N", help="How many at most; 0: all.")] = 0,
) -> None:
    """List the objects on a ref; a branch includes what is staged on it.

    PREFIX is the beginning of a path, so write a folder with its slash.

    \b
    Example: refstore ls sales main 2026/
             refstore ls sales/main@/2026/ --recursive
    """
    repo_name, ref, prefix = words(ctx, arguments, "REPO REF [PREFIX]")
    with repository_of(ctx, repo_name, only_read=True) as repo:
        listing = repo.list(ref, prefix=prefix, after=after, delimiter="" if recursive else delimiter)
        emit(ctx, (_row(item) for item in islice(listing, amount or None)))


def _row(item: ListedPath) -> dict[str, object]:
    if item.entry is None:
        return {"path": item.path, "size_bytes": None, "mtime": None, "address": None}
    return entry_row(item.path, item.entry)
