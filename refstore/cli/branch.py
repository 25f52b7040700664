"""`refstore branch`: create, list, delete, reset branches; and `refstore reset`, which is the same as `branch reset`."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Final

import typer

from refstore.cli.common import emit, repository_of
from refstore.cli.destroying import DryRun, Yes, confirm
from refstore.cli.history import change_row
from refstore.cli.places import PlacedCommand, place, words
from refstore.cli.shapes import when
from refstore.flows import branching
from refstore.ids import BranchName, branch_name
from refstore.records import Branch
from refstore.repository import Repository
from refstore.staging import Staging

app = typer.Typer(no_args_is_help=True)

COUNTED_MAX: Final = 10_000
"""Staged changes are counted no further for a question: it must not read all that it asks to throw away."""

Place = Annotated[list[str], place("REPO BRANCH")]


@app.callback()
def branch() -> None:
    """Create, list, delete and reset branches."""


@app.command("create", cls=PlacedCommand)
def create(
    ctx: typer.Context,
    given: Place,
    source: Annotated[str, typer.Option("--from", metavar="REF", help="Where it starts; left out: the default branch.")] = "",
    hidden: Annotated[bool, typer.Option("--hidden", help="Leave it out of listings by default.")] = False,
) -> None:
    """Make a branch at a ref's commit. What is only staged there does not come along.

    \b
    Example: refstore branch create sales dev
             refstore branch create sales hotfix --from main~2
    """
    repo_name, name = words(ctx, given, "REPO BRANCH")
    with repository_of(ctx, repo_name) as repo:
        head = repo.create_branch(name, source or repo.default_branch, hidden=hidden)
        emit(ctx, {"branch": name, "commit": head})


@app.command("list")
def list_(
    ctx: typer.Context,
    repo_name: Annotated[str, typer.Argument(metavar="REPO")],
    prefix: Annotated[str, typer.Option(help="Only names that start with this.")] = "",
    all_: Annotated[bool, typer.Option("--all", help="Hidden branches, too.")] = False,
) -> None:
    """List the branches, and whether something is staged on them.

    \b
    Example: refstore branch list sales
    """
    with repository_of(ctx, repo_name) as repo:
        emit(ctx, (branch_row(repo, name, record) for name, record in repo.branches(prefix=prefix) if all_ or not record.hidden))


@app.command("delete", cls=PlacedCommand)
def delete(ctx: typer.Context, given: Place, dry_run: DryRun = False, yes: Yes = False) -> None:
    """Delete a branch and everything uncommitted on it. `refstore trash` shows what can still be taken back.

    \b
    Example: refstore branch delete sales dev --dry-run
    """
    repo_name, name = words(ctx, given, "REPO BRANCH")
    with repository_of(ctx, repo_name) as repo:
        branching.check_may_go(repo.context, branch_name(name), default=repo.default_branch)
        if dry_run:
            emit(ctx, (change_row(change) for change in repo.diff(name)))
            return
        confirm(ctx, f"branch {name!r} goes, and {_uncommitted(repo, name)} uncommitted changes with it", yes=yes)
        repo.delete_branch(name)
        emit(ctx, {"branch": name, "deleted": True})


@app.command("reset", cls=PlacedCommand)
def reset(
    ctx: typer.Context,
    given: Place,
    *,
    path: Annotated[str | None, typer.Option(help="Only this path.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Only paths that start with this.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Throw away what is staged on a branch: all of it, one path, or a prefix. What is committed shows again.

    \b
    Example: refstore reset sales main --dry-run
             refstore reset sales main --prefix tmp/ --yes
    """
    if path is not None and prefix is not None:
        ctx.fail("give --path or --prefix, not both")
    repo_name, name = words(ctx, given, "REPO BRANCH")
    with repository_of(ctx, repo_name) as repo:
        if dry_run:
            of = path if path is not None else prefix or ""
            emit(ctx, (change_row(change) for change in repo.diff(name, prefix=of) if path is None or change.path == path))
            return
        if path is None:
            what = f"the changes below {prefix!r}" if prefix else f"{_uncommitted(repo, name)} uncommitted changes"
            confirm(ctx, f"{what} on branch {name!r} go", yes=yes)
        repo.reset(name, path=path, prefix=prefix)
        emit(ctx, {"branch": name, "reset": path if path is not None else prefix or "all that was staged"})


def branch_row(repo: Repository, name: BranchName, record: Branch) -> dict[str, object]:
    staging = Staging(repo.context.kv, repo.context.repo)
    staged = not all(staging.is_empty(token) for token in record.live)
    return {"branch": name, "commit": record.head, "uncommitted": staged, "created": when(record.created_ms)}


def _uncommitted(repo: Repository, name: str) -> str:
    staging = Staging(repo.context.kv, repo.context.repo)
    count = sum(1 for _ in islice(staging.merged(repo.get_branch(name).live), COUNTED_MAX))
    return f"{count} or more" if count == COUNTED_MAX else str(count)
