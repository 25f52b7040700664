"""`refstore cp`: copy objects without reading their data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Final, NamedTuple

import typer

from refstore.cli.common import emit, progress, repository_of
from refstore.cli.locations import PlacedCommand, fail, is_location, location, place, words
from refstore.cli.parameters import Recursive
from refstore.core.batches import split_batches
from refstore.errors import Invalid, ObjectNotFound
from refstore.operations.copy import Copy
from refstore.operations.move import Move
from refstore.repository import Repository

app = typer.Typer()

BATCH: Final = 500


class Way(NamedTuple):
    """A source and a destination in one repository."""

    repository: str
    source_ref: str
    source: str
    branch: str
    destination: str


@app.command("cp", cls=PlacedCommand)
def cp(
    ctx: typer.Context,
    arguments: Annotated[list[str], place("REPO REF PATH BRANCH [DST]")],
    recursive: Recursive = False,
) -> None:
    """Copy an object to a path on this branch or another, without reading its data. REF: a branch, tag or commit.

    Without DST the path stays the same; a DST that ends in a slash is a folder. As locations: refstore cp FROM TO.

    \b
    Example: refstore cp sales main 2026/11/21.csv dev
             refstore cp sales/v1/2026/ sales/dev/restored/ -r
    """
    way = way_of(ctx, arguments, "REPO REF PATH BRANCH [DST]", recursive=recursive)
    with repository_of(ctx, way.repository) as repo:
        emit(ctx, {"branch": way.branch, **copy_all(repo, way, recursive=recursive)})


def way_of(ctx: typer.Context, arguments: list[str], form: str, *, recursive: bool) -> Way:
    if not is_location(arguments[0]):
        return Way(*words(ctx, arguments, form))
    if len(arguments) != 2 or not is_location(arguments[1]):
        fail(ctx, "FROM TO", "with locations, give one to copy from and one to copy to")
    source, goal = location(arguments[0]), location(arguments[1])
    if source.repository != goal.repository:
        raise Invalid(
            f"{source.repository!r} and {goal.repository!r} share no data; download from one and upload to the other"
        )
    if not source.path and not recursive:
        fail(ctx, "REPO/REF/PATH REPO/BRANCH/[DST]", "the path to copy is missing")
    return Way(source.repository, source.ref, source.path, goal.ref, goal.path)


def copy_all(repo: Repository, way: Way, *, recursive: bool, and_delete: bool = False) -> dict[str, object]:
    """Copy one path, or all with a prefix, batch by batch. A move deletes the sources of each batch right after it."""
    if recursive:
        copies: Iterable[Copy] = _plan_copies(repo, way)
    else:
        name = way.source.rsplit("/", 1)[-1]
        goal = way.destination + name if way.destination.endswith("/") else way.destination or way.source
        copies = [Copy(way.source, goal)]
    count = 0
    same_branch = way.source_ref == way.branch
    with progress("moving" if and_delete else "copying") as bar:
        for batch in split_batches(copies, BATCH):
            moves = [item for item in batch if not (same_branch and item.source == item.destination)]
            if and_delete:
                repo.move_many(way.source_ref, [Move(*item) for item in moves], to=way.branch)
            else:
                repo.copy_many(way.source_ref, way.branch, moves)
            count += len(moves)
            bar.advance(len(batch))
    if recursive and count == 0:
        raise ObjectNotFound(
            f"nothing on {way.source_ref!r} starts with {way.source!r}, or it is where it should go already"
        )
    return {"moved" if and_delete else "copied": count}


def _plan_copies(repo: Repository, way: Way) -> Iterator[Copy]:
    """Yield a copy for each path with the prefix. All paths are read first, because what a move adds must not be moved
    again.

    If one prefix begins with the other, a copy may replace a path that is itself to be copied. That path comes first,
    so it is in an earlier batch or in the same, and one batch is copied as if at once.
    """
    paths = [item.path for item in repo.list(way.source_ref, prefix=way.source)]
    goal = way.destination or way.source
    if goal.startswith(way.source) or way.source.startswith(goal):
        paths.sort(key=len, reverse=len(goal) > len(way.source))
    return (Copy(path, goal + path[len(way.source) :]) for path in paths)
