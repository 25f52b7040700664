"""The commands `refstore branch`: create, list, delete, reset; `refstore reset` is the same as `branch reset`."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Final

import typer

from refstore.cli.common import emit, repository_of
from refstore.cli.destroying import DryRun, Yes, confirm
from refstore.cli.history import change_row
from refstore.cli.places import PlacedCommand, place, words
from refstore.cli.shapes import when
from refstore.core.ids import BranchName, branch_name
from refstore.core.records import Branch
from refstore.operations import branching
from refstore.repository import Repository

app = typer.Typer(no_args_is_help=True)

COUNTED_MAX: Final = 10_000
"""How far staged changes are counted for a question, which must not read all that it asks about."""

Place = Annotated[list[str], place("REPO BRANCH")]


@app.callback()
def branch() -> None:
    """Create, list, delete and reset branches."""


@app.command("create", cls=PlacedCommand)
def create(
    ctx: typer.Context,
    arguments: Place,
    source: Annotated[
        str, typer.Option("--from", metavar="REF", help="Where it starts; default: the default branch.")
    ] = "",
    hidden: Annotated[bool, typer.Option("--hidden", help="Leave it out of listings by default.")] = False,
) -> None:
    """Create a branch at a ref's commit. Changes that are only staged there are not copied.

    \b
    Example: refstore branch create sales dev
             refstore branch create sales hotfix --from main~2
    """
    repo_name, name = words(ctx, arguments, "REPO BRANCH")
    with repository_of(ctx, repo_name) as repo:
        head = repo.create_branch(name, source or repo.default_branch, hidden=hidden)
        emit(ctx, {"branch": name, "commit": head})


@app.command("list")
def list_(
    ctx: typer.Context,
    repo_name: Annotated[str, typer.Argument(metavar="REPO")],
    prefix: Annotated[str, typer.Option(help="Only names that start with this.")] = "",
    all_: Annotated[bool, typer.Option("--all", help="Show hidden branches, too.")] = False,
) -> None:
    """List the branches, and whether something is staged on them.

    \b
    Example: refstore branch list sales
    """
    with repository_of(ctx, repo_name, only_read=True) as repo:
        emit(
            ctx,
            (
                branch_row(repo, name, record)
                for name, record in repo.branches(prefix=prefix)
                if all_ or not record.hidden
            ),
        )


@app.command("delete", cls=PlacedCommand)
def delete(ctx: typer.Context, arguments: Place, dry_run: DryRun = False, yes: Yes = False) -> None:
    """Delete a branch and everything uncommitted on it. `refstore trash` lists what can still be restored.

    \b
    Example: refstore branch delete sales dev --dry-run
    """
    repo_name, name = words(ctx, arguments, "REPO BRANCH")
    with repository_of(ctx, repo_name) as repo:
        branching.check_deletable(repo.context, branch_name(name), default=repo.default_branch)
        if dry_run:
            emit(ctx, (change_row(change) for change in repo.diff(name)))
            return
        confirm(
            ctx, f"branch {name!r} and {_uncommitted(repo, name)} uncommitted changes on it will be deleted", yes=yes
        )
        repo.delete_branch(name)
        emit(ctx, {"branch": name, "deleted": True})


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
        if path is None:
            what = f"the changes below {prefix!r}" if prefix else f"{_uncommitted(repo, name)} uncommitted changes"
            confirm(ctx, f"{what} on branch {name!r} will be discarded", yes=yes)
        repo.reset(name, path=path, prefix=prefix)
        emit(ctx, {"branch": name, "reset": path if path is not None else prefix or "all that was staged"})


def branch_row(repo: Repository, name: BranchName, record: Branch) -> dict[str, object]:
    staging = repo.context.staging
    staged = not all(staging.is_empty(token) for token in record.live)
    return {"branch": name, "commit": record.head, "uncommitted": staged, "created": when(record.created_ms)}


def _uncommitted(repo: Repository, name: str) -> str:
    staging = repo.context.staging
    count = sum(1 for _ in islice(staging.merged(repo.get_branch(name).live), COUNTED_MAX))
    return f"{count} or more" if count == COUNTED_MAX else str(count)
