"""`refstore rm`: delete objects on a branch."""

from __future__ import annotations

from typing import Annotated

import typer

from refstore.cli.common import emit, repository_of
from refstore.cli.confirmation import confirm
from refstore.cli.locations import PlacedCommand, fail, is_location, place, words
from refstore.cli.parameters import DryRun, Yes
from refstore.errors import ObjectNotFound
from refstore.repository import Repository

app = typer.Typer()


@app.command("rm", cls=PlacedCommand)
def rm(
    ctx: typer.Context,
    arguments: Annotated[list[str], place("REPO BRANCH PATH...")],
    prefix: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Everything that starts with this, instead of PATHs.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Delete objects on a branch; the deletion is staged until a commit. A prefix needs a confirmation, paths do not.

    Objects that were never committed can be restored for a while: see `refstore trash`.

    \b
    Example: refstore rm sales main a.csv b.csv
             refstore rm sales main --prefix tmp/ --dry-run
    """
    if prefix is not None:
        repo_name, branch = words(ctx, arguments, "REPO BRANCH")
        with repository_of(ctx, repo_name) as repo:
            _remove_prefix(ctx, repo, branch, prefix, dry_run=dry_run, yes=yes)
        return
    repo_name, branch, paths = _paths(ctx, arguments)
    with repository_of(ctx, repo_name) as repo:
        entries = repo.stat_many(branch, paths)
        missing = [path for path in paths if path not in entries]
        if missing:
            raise ObjectNotFound(f"{missing[0]!r} is not on {branch!r}; nothing was deleted, list it with: refstore ls")
        if dry_run:
            emit(ctx, ({"path": path, "size_bytes": entry.size_bytes} for path, entry in entries.items()))
            return
        repo.delete_many(branch, paths)
        emit(ctx, {"branch": branch, "deleted": len(paths)})


def _remove_prefix(ctx: typer.Context, repo: Repository, branch: str, prefix: str, *, dry_run: bool, yes: bool) -> None:
    repo.get_branch(branch)
    if dry_run:
        listed_entries = ((item.path, item.entry) for item in repo.list(branch, prefix=prefix))
        emit(ctx, ({"path": path, "size_bytes": entry.size_bytes if entry else None} for path, entry in listed_entries))
        return
    if not yes and next(iter(repo.list(branch, prefix=prefix)), None) is None:
        emit(ctx, {"branch": branch, "deleted": 0})
        return
    confirm(ctx, f"everything that starts with {prefix!r} on branch {branch!r} will be deleted", yes=yes)
    emit(ctx, {"branch": branch, "deleted": repo.delete_prefix(branch, prefix)})


def _paths(ctx: typer.Context, arguments: list[str]) -> tuple[str, str, list[str]]:
    """Return (repository, branch, paths), each path once: words after the branch, or locations on one branch."""
    form = "REPO BRANCH PATH..."
    if not is_location(arguments[0]):
        repo_name, branch, *paths = words(ctx, arguments, form)
        return repo_name, branch, list(dict.fromkeys(paths))
    locations = [words(ctx, [word], form) for word in arguments]
    if len({(item[0], item[1]) for item in locations}) > 1:
        fail(ctx, "LOCATION...", "the locations are on more than one branch; give those of one branch at a time")
    return locations[0][0], locations[0][1], list(dict.fromkeys(item[2] for item in locations))
