"""`refstore stage`: stage an object outside the repository."""

from __future__ import annotations

from typing import Annotated

import typer

from refstore.cli.common import emit, repository_of
from refstore.cli.locations import PlacedCommand, place, words
from refstore.cli.parameters import Meta
from refstore.cli.rows import entry_details, pairs
from refstore.core.ids import SIZE_BYTES_MAX

app = typer.Typer()


@app.command("stage", cls=PlacedCommand)
def stage(
    ctx: typer.Context,
    arguments: Annotated[list[str], place("REPO BRANCH PATH URL")],
    size_bytes: Annotated[int, typer.Option(min=0, max=SIZE_BYTES_MAX, metavar="N", help="Its size in bytes.")],
    checksum: Annotated[str, typer.Option(metavar="TEXT", help="A checksum of its content.")] = "",
    meta: Meta = None,
) -> None:
    """Stage an object outside the repository's namespace. refstore never deletes it.

    \b
    Example: refstore stage sales main old/2019.csv s3://archive/2019.csv --size-bytes 1048576
    """
    repo_name, branch, path, url = words(ctx, arguments, "REPO BRANCH PATH URL")
    with repository_of(ctx, repo_name) as repo:
        emit(
            ctx,
            entry_details(
                path, repo.stage(branch, path, url, size_bytes=size_bytes, checksum=checksum, metadata=pairs(meta))
            ),
        )
