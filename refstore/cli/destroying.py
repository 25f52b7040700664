"""What destroys asks first: `--dry-run`, where there is something to show, shows what would go; `--yes` does not ask; and without a
terminal there must be one of them."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would go, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def confirm(ctx: typer.Context, what: str, *, yes: bool) -> None:
    """Go on, or end the command: with typer.Abort, or as a usage error where nobody can be asked."""
    if yes:
        return
    if not sys.stdin.isatty():
        shown = any(each.name == "dry_run" for each in ctx.command.params)
        ctx.fail(f"{what}: give --yes to do it{', or --dry-run to see what would go' if shown else ''}")
    typer.confirm(f"{what}. Go on?", abort=True, err=True)
