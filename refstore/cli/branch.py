"""The commands `refstore branch`: create, list, delete, reset; `refstore reset` is the same as `branch reset`."""

from __future__ import annotations

from typing import Annotated

import typer

from refstore.cli import reset
from refstore.cli.common import emit, repository_of
from refstore.cli.confirmation import confirm
from refstore.cli.diff import change_row
from refstore.cli.locations import PlacedCommand, place, words
from refstore.cli.parameters import DryRun, Name, Yes
from refstore.cli.rows import format_when
from refstore.core.ids import BranchName, branch_name
from refstore.operations import branch as branch_operation
from refstore.records.branch_records import Branch
from refstore.repository import Repository

app = typer.Typer(no_args_is_help=True)


Place = Annotated[list[str], place("REPO BRANCH")]


app.command("reset", cls=PlacedCommand)(reset.reset)


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
    repo_name: Name,
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
                if all_ or not record.is_hidden
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
        branch_operation.check_deletable(repo.context, branch_name(name), default=repo.default_branch)
        if dry_run:
            emit(ctx, (change_row(change) for change in repo.diff(name)))
            return
        confirm(
            ctx,
            f"branch {name!r} and {reset.count_uncommitted(repo, name)} uncommitted changes on it will be deleted",
            yes=yes,
        )
        repo.delete_branch(name)
        emit(ctx, {"branch": name, "deleted": True})


def branch_row(repo: Repository, name: BranchName, record: Branch) -> dict[str, object]:
    staging = repo.context.staging
    staged = not all(staging.is_empty(token) for token in record.live_tokens)
    return {"branch": name, "commit": record.head, "uncommitted": staged, "created": format_when(record.created_ms)}
