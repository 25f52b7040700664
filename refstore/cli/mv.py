"""`refstore mv`: rename or move objects."""

from __future__ import annotations

from typing import Annotated

import typer

from refstore.cli.common import emit, repository_of
from refstore.cli.cp import Way, copy_all, way_of
from refstore.cli.locations import PlacedCommand, is_location, place, words
from refstore.cli.parameters import Recursive

app = typer.Typer()


@app.command("mv", cls=PlacedCommand)
def mv(
    ctx: typer.Context,
    arguments: Annotated[list[str], place("REPO BRANCH PATH DST")],
    recursive: Recursive = False,
) -> None:
    """Rename an object on a branch, or, as locations, move it to another branch: copy it, then delete the source.

    A crash in between leaves both paths. If others moved, deleted or replaced the source meanwhile, it is not moved.

    \b
    Example: refstore mv sales main raw/21.csv 2026/11/21.csv
             refstore mv sales/dev/raw/ sales/main/raw/ -r
    """
    if is_location(arguments[0]):
        way = way_of(ctx, arguments, "REPO/BRANCH/PATH REPO/BRANCH/DST", recursive=recursive)
    else:
        repo_name, branch, source, destination = words(ctx, arguments, "REPO BRANCH PATH DST")
        way = Way(repo_name, branch, source, branch, destination)
    with repository_of(ctx, way.repository) as repo:
        repo.get_branch(way.source_ref)  # a move deletes its source: it must be a branch, not history
        emit(ctx, {"branch": way.branch, **copy_all(repo, way, recursive=recursive, and_delete=True)})
