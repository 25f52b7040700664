"""`refstore diff`: list what differs between refs, or what is staged on a branch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from refstore.cli.common import emit, repository_of
from refstore.cli.locations import PlacedCommand, place, words
from refstore.cli.parameters import Prefix
from refstore.core.units import sum_sizes
from refstore.versioning.commits.tree_diff import PathChange

app = typer.Typer()


@app.command("diff", cls=PlacedCommand)
def diff(
    ctx: typer.Context,
    arguments: Annotated[list[str], place("REPO LEFT [RIGHT]")],
    prefix: Prefix = "",
    stat: Annotated[bool, typer.Option("--stat", help="Count the changes and their bytes by folder instead.")] = False,
) -> None:
    """List what changed from LEFT's commit to RIGHT's; with one branch, what is staged on it.

    \b
    Example: refstore diff sales main
             refstore diff sales main dev
    """
    repo_name, left, right = words(ctx, arguments, "REPO LEFT [RIGHT]")
    with repository_of(ctx, repo_name, only_read=True) as repo:
        changes = repo.diff(left, right or None, prefix=prefix)
        if stat:
            emit_statistics(ctx, changes)
        else:
            emit(ctx, (change_row(change) for change in changes))


def emit_statistics(ctx: typer.Context, changes: Iterable[PathChange]) -> None:
    """Print how many paths changed in each folder, and the bytes that came and went."""
    sums: dict[str, dict[str, int]] = {}
    for change in changes:
        folder = f"{change.path.rpartition('/')[0]}/" if "/" in change.path else "(top)"
        own = sums.setdefault(folder, dict.fromkeys(("added", "changed", "removed", "bytes"), 0))
        own[change.kind.value] += 1
        came, went = (entry.size_bytes if entry else 0 for entry in (change.right, change.left))
        own["bytes"] = sum_sizes((own["bytes"], came, -went))
    emit(ctx, [{**counts, "folder": folder} for folder, counts in sorted(sums.items())])


def change_row(change: PathChange) -> dict[str, object]:
    entry = change.right or change.left
    return {"change": change.kind.value, "path": change.path, "size_bytes": entry.size_bytes if entry else None}
