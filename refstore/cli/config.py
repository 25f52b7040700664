"""The command `refstore config`: show the settings in force and their origins, without secrets."""

from __future__ import annotations

import typer

from refstore.cli.common import emit, loaded_of

app = typer.Typer()


@app.command("config")
def config(ctx: typer.Context) -> None:
    """Show which settings file is in force, every setting, and where it came from.

    A value comes from the command line, then from REFSTORE_* variables, then from one TOML file (--config,
    REFSTORE_CONFIG, or refstore/refstore.toml in your configuration directory, such as ~/.config). The first row names
    the file. Passwords and keys are hidden.
    `refstore durations show` shows the durations that all processes of a lake have agreed on, which hold where none of
    these sources has them.

    \b
    Example: refstore config --kv redis://localhost/0 --objects s3://bucket/lake
    """
    emit(ctx, loaded_of(ctx).rows())
