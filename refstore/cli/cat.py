"""`refstore cat`: write one object to standard output."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from refstore.cli.common import repository_of
from refstore.cli.foreign_places import AllowForeign, urls_of
from refstore.cli.locations import PlacedCommand, place, words

app = typer.Typer()


@app.command("cat", cls=PlacedCommand)
def cat(
    ctx: typer.Context,
    arguments: Annotated[list[str], place("REPO REF PATH")],
    *,
    allow_foreign: AllowForeign = None,
) -> None:
    """Write one object to standard output. A damaged one ends with 6: if its length differs, or bytes from S3 do.

    \b
    Example: refstore cat sales main 2026/11/21.csv | head -3
    """
    repo_name, ref, path = words(ctx, arguments, "REPO REF PATH")
    with repository_of(ctx, repo_name, only_read=True, allow_foreign=urls_of(allow_foreign)) as repo:
        for chunk in repo.get(ref, path):
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
