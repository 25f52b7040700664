"""Confirm deletions. `--dry-run`, where a command has it, shows what would be deleted; `--yes` skips the question.
Without a terminal one of them is required.
"""

from __future__ import annotations

import sys

import typer


def confirm(ctx: typer.Context, what: str, *, yes: bool) -> None:
    """Ask whether to continue; otherwise end the command: with typer.Abort, or with a usage error if there is no
    terminal.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        shown = any(each.name == "dry_run" for each in ctx.command.params)
        ctx.fail(f"{what}: give --yes to do it{', or --dry-run to see what it would do' if shown else ''}")
    typer.confirm(f"{what}. Go on?", abort=True, err=True)
