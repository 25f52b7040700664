"""The commands `refstore tag`: create, list, delete tags."""

from __future__ import annotations

from typing import Annotated

import typer

from refstore.cli.common import emit, repository_of
from refstore.cli.confirmation import confirm
from refstore.cli.locations import PlacedCommand, place, words
from refstore.cli.parameters import DryRun, Name, Yes
from refstore.cli.rows import format_when

app = typer.Typer(no_args_is_help=True)

Place = Annotated[list[str], place("REPO TAG")]


@app.callback()
def tag() -> None:
    """Create, list and delete tags. A tag names a commit and never moves."""


@app.command("create", cls=PlacedCommand)
def create(ctx: typer.Context, arguments: Annotated[list[str], place("REPO TAG [REF]")]) -> None:
    """Tag a ref's commit. Without REF: the default branch's head.

    \b
    Example: refstore tag create sales v1 main
    """
    repo_name, name, source = words(ctx, arguments, "REPO TAG [REF]")
    with repository_of(ctx, repo_name) as repo:
        emit(ctx, {"tag": name, "commit": repo.create_tag(name, source or repo.default_branch)})


@app.command("list")
def list_(
    ctx: typer.Context,
    repo_name: Name,
    prefix: Annotated[str, typer.Option(help="Only names that start with this.")] = "",
) -> None:
    """List the tags.

    \b
    Example: refstore tag list sales
    """
    with repository_of(ctx, repo_name, only_read=True) as repo:
        emit(
            ctx,
            (
                {"tag": name, "commit": record.commit, "created": format_when(record.created_ms)}
                for name, record in repo.tags(prefix=prefix)
            ),
        )


@app.command("delete", cls=PlacedCommand)
def delete(ctx: typer.Context, arguments: Place, dry_run: DryRun = False, yes: Yes = False) -> None:
    """Delete a tag. Its commit is kept as long as another ref or the retention rules keep it.

    \b
    Example: refstore tag delete sales v1 --yes
    """
    repo_name, name = words(ctx, arguments, "REPO TAG")
    with repository_of(ctx, repo_name) as repo:
        if dry_run:
            emit(ctx, [{"tag": name, "commit": repo.get_tag(name).commit}])
            return
        confirm(ctx, f"tag {name!r} will be deleted", yes=yes)
        repo.delete_tag(name)
        emit(ctx, {"tag": name, "deleted": True})
