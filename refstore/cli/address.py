"""Physical addresses: who names one, what is in its grace window, and taking it back."""

from __future__ import annotations

from typing import Annotated

import typer

from refstore.cli.common import emit, invocation_of, repository_of
from refstore.cli.places import PlacedCommand, place, without_scheme, words
from refstore.cli.shapes import entry_details, when

app = typer.Typer()


@app.command("address", cls=PlacedCommand)
def address(ctx: typer.Context, given: Annotated[list[str], place("REPO ADDRESS")]) -> None:
    """Show who names a physical address, and in which state it is. `refstore stat` and `ls` tell addresses.

    \b
    Example: refstore address sales data/2026112107/01jd3v...
    """
    repo_name, of = repo_and_address(ctx, given)
    with repository_of(ctx, repo_name) as repo:
        found = repo.address(of)
        names = [{"branch": name.branch, "path": name.path, "state": name.state.value, "token": name.token} for name in found.references]
        emit(
            ctx,
            {
                "address": found.address,
                "state": found.state.value,
                "named_by": names if invocation_of(ctx).json else [f"{name['branch']} {name['path']} ({name['state']})" for name in names],
                "since": when(found.since_ms),
                "cause": found.cause,
                "expires": when(found.expires_ms),
            },
        )


@app.command("trash")
def trash(
    ctx: typer.Context,
    repo_name: Annotated[str, typer.Argument(metavar="REPO")],
    branch: Annotated[str | None, typer.Option(metavar="NAME", help="Only what was on this branch.")] = None,
    prefix: Annotated[str, typer.Option(help="Only paths that start with this.")] = "",
) -> None:
    """List what lost its last name and is not deleted yet: what `refstore restore` can take back.

    \b
    Example: refstore trash sales --prefix 2026/
    """
    with repository_of(ctx, repo_name) as repo:
        emit(
            ctx,
            (
                {
                    "path": item.path,
                    "branch": item.branch,
                    "size_bytes": item.entry.size_bytes if item.entry else None,
                    "cause": item.cause,
                    "since": when(item.since_ms),
                    "deletes_at": when(item.deletes_at_ms),
                    "address": item.address,
                }
                for item in repo.in_grace(branch=branch, prefix=prefix)
            ),
        )


@app.command("restore", cls=PlacedCommand)
def restore(ctx: typer.Context, given: Annotated[list[str], place("REPO BRANCH ADDRESS [PATH]")]) -> None:
    """Put back an address that is in its grace window, at the path that it had last, or at another.

    \b
    Example: refstore restore sales main data/2026112107/01jd3v...
    """
    repo_name, branch, of, path = words(ctx, given, "REPO BRANCH ADDRESS [PATH]")
    with repository_of(ctx, repo_name) as repo:
        emit(ctx, entry_details(*repo.restore_and_tell(branch, of, path or None)))


def repo_and_address(ctx: typer.Context, given: list[str]) -> tuple[str, str]:
    """An address has slashes of its own, so a location here is `repo/data/<slice>/<id>`."""
    if len(given) == 1 and "/data/" in given[0]:
        repo_name, _, rest = without_scheme(given[0]).partition("/data/")
        return repo_name, f"data/{rest}"
    repo_name, of = words(ctx, given, "REPO ADDRESS")
    return repo_name, of
