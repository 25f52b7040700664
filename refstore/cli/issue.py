"""`refstore issue`: get a physical address to write to by other means."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer

from refstore.cli.common import emit, repository_of
from refstore.cli.files import local_errors
from refstore.cli.locations import PlacedCommand, place, words
from refstore.cli.rows import format_when
from refstore.core.file_modes import make_folder
from refstore.errors import Invalid
from refstore.repository import Repository

app = typer.Typer()


@app.command("issue", cls=PlacedCommand)
def issue(ctx: typer.Context, arguments: Annotated[list[str], place("REPO BRANCH PATH")]) -> None:
    """Get a physical address for a writer outside refstore, and the token that links it once to this branch and path.

    Write the data to `url`, then run `refstore link`. If the store is a folder, write to `file`. If the store signs
    URLs, `put_url` needs no credentials. An address that is not linked before it expires is deleted.

    \b
    Example: refstore issue sales main 2026/11/21.csv --json
    """
    repo_name, branch, path = words(ctx, arguments, "REPO BRANCH PATH")
    with repository_of(ctx, repo_name) as repo:
        issued = repo.issue(branch, path)
        url = f"{repo.context.objects.url.partition('?')[0].rstrip('/')}/{issued.address}"
        emit(
            ctx,
            {
                "path": issued.path,
                "address": issued.address,
                "url": url,
                "file": _local_file(url),
                "put_url": _put_url(repo, issued.address),
                "token": issued.token,
                "expires": format_when(issued.expires_ms),
            },
        )


def _local_file(url: str) -> str | None:
    """Return the file to write if the store is a folder, and make the file's own folder."""
    if not url.startswith("file://"):
        return None
    file = Path(unquote(urlsplit(url).path))
    with local_errors():
        make_folder(file.parent)
    return str(file)


def _put_url(repo: Repository, address: str) -> str | None:
    """Return a presigned URL if the store has them."""
    seconds = max(1, int(repo.context.safety.issue_seconds))
    try:
        return repo.context.objects.presign_put(address, expires_seconds=seconds)
    except Invalid:
        return None
