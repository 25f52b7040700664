"""`refstore stat`: show one object."""

from __future__ import annotations

from typing import Annotated

import typer

from refstore.cli.common import emit, repository_of
from refstore.cli.locations import PlacedCommand, place, words
from refstore.cli.rows import entry_details

app = typer.Typer()


@app.command("stat", cls=PlacedCommand)
def stat(ctx: typer.Context, arguments: Annotated[list[str], place("REPO REF PATH")]) -> None:
    """Show one object: size, checksum, metadata, physical address, and whether it is staged or committed.

    \b
    Example: refstore stat sales main 2026/11/21.csv
    """
    repo_name, ref, path = words(ctx, arguments, "REPO REF PATH")
    with repository_of(ctx, repo_name, only_read=True) as repo:
        resolved = repo.resolve(ref, path)
        emit(ctx, {**entry_details(path, resolved.entry), "state": "committed" if resolved.token is None else "staged"})
