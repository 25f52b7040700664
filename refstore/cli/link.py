"""`refstore link`: stage what was written to an issued address."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from refstore.cli.common import emit, repository_of
from refstore.cli.locations import PlacedCommand, place, words
from refstore.cli.parameters import Meta
from refstore.cli.rows import entry_details, pairs
from refstore.core.ids import SIZE_BYTES_MAX

app = typer.Typer()


@app.command("link", cls=PlacedCommand)
def link(
    ctx: typer.Context,
    arguments: Annotated[list[str], place("REPO BRANCH PATH")],
    *,
    token: Annotated[
        str, typer.Option(metavar="TOKEN", help="What `refstore issue` gave; '-' reads it from standard input.")
    ],
    size_bytes: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=SIZE_BYTES_MAX,
            metavar="N",
            help="The size written; the link is refused if the store differs.",
        ),
    ] = None,
    checksum: Annotated[str, typer.Option(metavar="TEXT", help="A checksum of its content.")] = "",
    meta: Meta = None,
) -> None:
    """Stage what was written to an issued address. A token links once.

    \b
    Example: refstore link sales main 2026/11/21.csv --token "$TOKEN"
    """
    repo_name, branch, path = words(ctx, arguments, "REPO BRANCH PATH")
    secret = sys.stdin.read().strip() if token == "-" else token  # noqa: S105  # standard input, not a password
    with repository_of(ctx, repo_name) as repo:
        entry = repo.link(branch, path, secret, size_bytes=size_bytes, checksum=checksum, metadata=pairs(meta))
        emit(ctx, entry_details(path, entry))
