"""Commands that change what is staged: cp, mv, rm."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Final, NamedTuple

import typer

from refstore.cli.common import emit, progress, repository_of
from refstore.cli.destroying import DryRun, Yes, confirm
from refstore.cli.places import PlacedCommand, fail, is_location, location, place, words
from refstore.core.batches import batched
from refstore.errors import Invalid, ObjectNotFound
from refstore.operations.copying import Copy, Move
from refstore.repository import Repository

app = typer.Typer()

BATCH: Final = 500

Recursive = Annotated[
    bool, typer.Option("--recursive", "-r", help="The paths are prefixes: take everything that starts with them.")
]


class _Way(NamedTuple):
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
    way = _way(ctx, arguments, "REPO REF PATH BRANCH [DST]", recursive=recursive)
    with repository_of(ctx, way.repository) as repo:
        emit(ctx, {"branch": way.branch, **_copy(repo, way, recursive=recursive)})


@app.command("mv", cls=PlacedCommand)
def mv(
    ctx: typer.Context,
    arguments: Annotated[list[str], place("REPO BRANCH PATH DST")],
    recursive: Recursive = False,
) -> None:
    """Rename an object on a branch, or, as locations, move it to another branch: copy it, then delete the source.

    A crash in between leaves both paths. If the source was replaced meanwhile, its new version stays.

    \b
    Example: refstore mv sales main raw/21.csv 2026/11/21.csv
             refstore mv sales/dev/raw/ sales/main/raw/ -r
    """
    if is_location(arguments[0]):
        way = _way(ctx, arguments, "REPO/BRANCH/PATH REPO/BRANCH/DST", recursive=recursive)
    else:
        repo_name, branch, source, destination = words(ctx, arguments, "REPO BRANCH PATH DST")
        way = _Way(repo_name, branch, source, branch, destination)
    with repository_of(ctx, way.repository) as repo:
        repo.get_branch(way.source_ref)  # a move deletes its source: it must be a branch, not history
        emit(ctx, {"branch": way.branch, **_copy(repo, way, recursive=recursive, and_delete=True)})


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


def _way(ctx: typer.Context, arguments: list[str], form: str, *, recursive: bool) -> _Way:
    if not is_location(arguments[0]):
        return _Way(*words(ctx, arguments, form))
    if len(arguments) != 2 or not is_location(arguments[1]):
        fail(ctx, "FROM TO", "with locations, give one to copy from and one to copy to")
    source, goal = location(arguments[0]), location(arguments[1])
    if source.repository != goal.repository:
        raise Invalid(
            f"{source.repository!r} and {goal.repository!r} share no data; download from one and upload to the other"
        )
    if not source.path and not recursive:
        fail(ctx, "REPO/REF/PATH REPO/BRANCH/[DST]", "the path to copy is missing")
    return _Way(source.repository, source.ref, source.path, goal.ref, goal.path)


def _copy(repo: Repository, way: _Way, *, recursive: bool, and_delete: bool = False) -> dict[str, object]:
    """Copy one path, or all with a prefix, batch by batch. A move deletes the sources of each batch right after it."""
    if recursive:
        copies: Iterable[Copy] = _renamed(repo, way)
    else:
        name = way.source.rsplit("/", 1)[-1]
        goal = way.destination + name if way.destination.endswith("/") else way.destination or way.source
        copies = [Copy(way.source, goal)]
    count = 0
    same_branch = way.source_ref == way.branch
    with progress("moving" if and_delete else "copying") as bar:
        for batch in batched(copies, BATCH):
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


def _renamed(repo: Repository, way: _Way) -> Iterator[Copy]:
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
