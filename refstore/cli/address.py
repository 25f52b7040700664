"""`refstore address`: who names a physical address."""

from __future__ import annotations

from typing import Annotated

import typer

from refstore.cli.common import emit, invocation_of, repository_of
from refstore.cli.places import PlacedCommand, place, without_scheme, words
from refstore.cli.shapes import when

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
        names = [
            {
                "branch": name.branch,
                "path": name.path,
                "state": name.state.value,
                "token": name.token,
                "last_modified": when(name.last_modified_ms),
            }
            for name in found.references
        ]
        committed = found.committed
        emit(
            ctx,
            {
                "address": found.address,
                "state": found.state.value,
                "reference_state": found.reference_state.value if found.reference_state else None,
                "named_by": names
                if invocation_of(ctx).json
                else [f"{name['branch']} {name['path']} ({name['state']}, {name['last_modified']})" for name in names],
                "commit": committed.commit or committed.swept if committed else None,
                "since": when(found.since_ms),
                "cause": found.cause,
                "expires": when(found.expires_ms),
            },
        )


def repo_and_address(ctx: typer.Context, given: list[str]) -> tuple[str, str]:
    """An address has slashes of its own, so a location here is `repo/data/<slice>/<id>`."""
    if len(given) == 1 and "/data/" in given[0]:
        repo_name, _, rest = without_scheme(given[0]).partition("/data/")
        return repo_name, f"data/{rest}"
    repo_name, of = words(ctx, given, "REPO ADDRESS")
    return repo_name, of
