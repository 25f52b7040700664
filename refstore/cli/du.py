"""`refstore du`: sum up objects and bytes by folder."""

from __future__ import annotations

from typing import Annotated

import typer

from refstore.cli.common import emit, progress, repository_of
from refstore.cli.locations import PlacedCommand, place, words
from refstore.core.units import sum_sizes

app = typer.Typer()


@app.command("du", cls=PlacedCommand)
def du(
    ctx: typer.Context,
    arguments: Annotated[list[str], place("REPO REF [PREFIX]")],
    depth: Annotated[int, typer.Option(min=1, max=50, metavar="N", help="How many folders deep.")] = 1,
) -> None:
    """Sum up objects and bytes by folder, the largest first.

    \b
    Example: refstore du sales main
             refstore du sales main 2026/ --depth 2
    """
    repo_name, ref, prefix = words(ctx, arguments, "REPO REF [PREFIX]")
    with repository_of(ctx, repo_name, only_read=True) as repo:
        sums: dict[str, list[int]] = {}
        with progress("adding up") as bar:
            for item in repo.list(ref, prefix=prefix):
                if item.entry is not None:
                    below = item.path[len(prefix) :].split("/")
                    folder = prefix + "".join(f"{part}/" for part in below[:-1][:depth])
                    own = sums.setdefault(folder or "(top)", [0, 0])
                    own[0] += 1
                    own[1] = sum_sizes((own[1], item.entry.size_bytes))
                bar.advance()
        rows = [{"objects": count, "size_bytes": size, "folder": name} for name, (count, size) in sums.items()]
        emit(ctx, sorted(rows, key=lambda row: (-int(row["size_bytes"]), str(row["folder"]))))
