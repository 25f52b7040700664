"""`refstore cherry-pick`: apply a commit's changes again."""

from __future__ import annotations

import typer

from refstore.cli.locations import PlacedCommand
from refstore.cli.revert import applying_command

app = typer.Typer()
app.command("cherry-pick", cls=PlacedCommand)(
    applying_command(
        "cherry-pick",
        """Apply a commit's changes again on top of a branch.

    \b
    Example: refstore cherry-pick sales main dev~1
    """,
    )
)
