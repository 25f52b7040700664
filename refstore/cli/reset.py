"""`refstore reset`, which is also `refstore branch reset`: discard what is staged on a branch."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Final

import typer

from refstore.cli.common import emit, repository_of
from refstore.cli.confirmation import confirm
from refstore.cli.diff import change_row
from refstore.cli.locations import PlacedCommand, place, words
from refstore.cli.parameters import DryRun, Yes
from refstore.repository import Repository

app = typer.Typer()

COUNTED_MAX: Final = 10_000
"""How far staged changes are counted for a question, which must not read all that it asks about."""

Place = Annotated[list[str], place("REPO BRANCH")]


@app.command("reset", cls=PlacedCommand)
def reset(
    ctx: typer.Context,
    arguments: Place,
    *,
    path: Annotated[str | None, typer.Option(help="Only this path.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Only paths that start with this.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Discard what is staged on a branch: all of it, one path, or a prefix. The committed version shows again.

    \b
    Example: refstore reset sales main --dry-run
             refstore reset sales main --prefix tmp/ --yes
    """
    if path is not None and prefix is not None:
        ctx.fail("give --path or --prefix, not both")
    repo_name, name = words(ctx, arguments, "REPO BRANCH")
    with repository_of(ctx, repo_name) as repo:
        if dry_run:
            listed_prefix = path if path is not None else prefix or ""
            emit(
                ctx,
                (
                    change_row(change)
                    for change in repo.diff(name, prefix=listed_prefix)
                    if path is None or change.path == path
                ),
            )
            return
        if path is None and not yes:
            count = count_uncommitted(repo, name, prefix or "")
            if count == "0":  # what is staged from now on was not asked about, so it stays
                emit(ctx, {"branch": name, "reset": "nothing was staged"})
                return
            below = f" below {prefix!r}" if prefix else ""
            confirm(ctx, f"{count} uncommitted changes{below} on branch {name!r} will be discarded", yes=yes)
        repo.reset(name, path=path, prefix=prefix)
        emit(ctx, {"branch": name, "reset": path if path is not None else prefix or "all that was staged"})


def count_uncommitted(repo: Repository, name: str, prefix: str = "") -> str:
    changes = repo.context.staging.scan_merged(repo.get_branch(name).live_tokens, prefix=prefix)
    count = sum(1 for _ in islice(changes, COUNTED_MAX))
    return f"{count} or more" if count == COUNTED_MAX else str(count)
