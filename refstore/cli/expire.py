"""`refstore expire`: the nightly job, short for `refstore gc run`."""

from __future__ import annotations

import typer

from refstore.cli.gc import marking_command

app = typer.Typer()
app.command("expire")(
    marking_command(
        "run",
        """The nightly job: short for `refstore gc run`.

    \b
    Example: refstore expire --all
             refstore expire sales --dry-run
    """,
    )
)
