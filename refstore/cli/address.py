"""The command `refstore address`: the references to a physical address."""

from __future__ import annotations

from typing import Annotated

import typer

from refstore.cli.common import emit, invocation_of, repository_of
from refstore.cli.places import PlacedCommand, place, without_scheme, words
from refstore.cli.shapes import when

app = typer.Typer()


@app.command("address", cls=PlacedCommand)
def address(ctx: typer.Context, arguments: Annotated[list[str], place("REPO ADDRESS")]) -> None:
    """Show the references to a physical address, and its state. `refstore stat` and `ls` show addresses.

    \b
    Example: refstore address sales data/2026112107/01jd3v...
    """
    repo_name, wanted_address = repo_and_address(ctx, arguments)
    with repository_of(ctx, repo_name, only_read=True) as repo:
        info = repo.address(wanted_address)
        names = [
            {
                "branch": name.branch,
                "path": name.path,
                "state": name.state.value,
                "token": name.token,
                "last_modified": when(name.last_modified_ms),
            }
            for name in info.references
        ]
        committed = info.committed
        emit(
            ctx,
            {
                "address": info.address,
                "state": info.state.value,
                "reference_state": info.reference_state.value if info.reference_state else None,
                "named_by": names
                if invocation_of(ctx).json
                else [f"{name['branch']} {name['path']} ({name['state']}, {name['last_modified']})" for name in names],
                "commit": committed.commit or committed.swept if committed else None,
                "since": when(info.since_ms),
                "cause": info.cause,
                "expires": when(info.expires_ms),
            },
        )


def repo_and_address(ctx: typer.Context, arguments: list[str]) -> tuple[str, str]:
    """Parse a repository and an address. An address has slashes, so a location here is `repo/data/<hour>/<id>`."""
    if len(arguments) == 1 and "/data/" in arguments[0]:
        repo_name, _, rest = without_scheme(arguments[0]).partition("/data/")
        return repo_name, f"data/{rest}"
    repo_name, address_ = words(ctx, arguments, "REPO ADDRESS")
    return repo_name, address_
