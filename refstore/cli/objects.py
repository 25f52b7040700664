"""The commands for the objects of a branch or a commit: list, show, read, copy, move and delete them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from refstore.cli.common import emit, progress, repository_of
from refstore.cli.confirmation import confirm
from refstore.cli.foreign_places import AllowForeign, urls_of
from refstore.cli.parameters import (
    Branch,
    DryRun,
    Limit,
    MaybePrefix,
    Name,
    ObjectPath,
    Recursive,
    Ref,
    Yes,
)
from refstore.cli.rows import entry_details, entry_row
from refstore.core.batches import split_batches
from refstore.core.units import sum_sizes
from refstore.errors import ObjectNotFound
from refstore.repository import Repository

if TYPE_CHECKING:
    from refstore.operations.copy import Copy
    from refstore.operations.read import ListedPath

app = typer.Typer()

NewPath = Annotated[str, typer.Option("--as", metavar="PATH", help="The new path; default: the same.")]

BATCH: Final = 500
"""How many objects one call copies or moves."""


@app.command("ls")
def ls(
    ctx: typer.Context,
    repo_name: Name,
    ref: Ref,
    prefix: MaybePrefix = "",
    *,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="List every object; fold nothing.")] = False,
    summarize: Annotated[
        bool, typer.Option("--summarize", help="Sum up objects and bytes by folder instead, the largest first.")
    ] = False,
    depth: Annotated[
        int, typer.Option(min=1, max=50, metavar="N", help="With --summarize: how many folders deep.")
    ] = 1,
    after: Annotated[str, typer.Option(metavar="PATH", help="Continue after this path.")] = "",
    limit: Limit = 0,
) -> None:
    """List the objects on a ref; a branch includes what is staged on it. Paths are folded at slashes.

    PREFIX is the beginning of a path, so write a folder with its slash.

    \b
    Example: refstore ls sales main 2026/
             refstore ls sales main@ 2026/ --recursive
             refstore ls sales main 2026/ --summarize --depth 2
    """
    if summarize and (recursive or after):
        ctx.fail("--summarize reads every object of PREFIX; leave out --recursive and --after")
    with repository_of(ctx, repo_name, read_only=True) as repo:
        if summarize:
            emit(ctx, islice(_sums_by_folder(repo.list(ref, prefix=prefix), prefix, depth), limit or None))
            return
        listing = repo.list(ref, prefix=prefix, after=after, delimiter="" if recursive else "/")
        emit(ctx, (_listed_row(item) for item in islice(listing, limit or None)))


def _sums_by_folder(listing: Iterable[ListedPath], prefix: str, depth: int) -> list[dict[str, object]]:
    """Return the objects and bytes of each folder below the prefix, the largest first."""
    sums: dict[str, list[int]] = {}
    with progress("adding up") as bar:
        for item in listing:
            if item.entry is not None:
                below = item.path[len(prefix) :].split("/")
                folder = prefix + "".join(f"{part}/" for part in below[:-1][:depth])
                own = sums.setdefault(folder or "(top)", [0, 0])
                own[0] += 1
                own[1] = sum_sizes((own[1], item.entry.size_bytes))
            bar.advance()
    largest_first = sorted(sums.items(), key=lambda each: (-each[1][1], each[0]))
    return [{"objects": count, "size_bytes": size, "folder": name} for name, (count, size) in largest_first]


def _listed_row(item: ListedPath) -> dict[str, object]:
    if item.entry is None:
        return {"path": item.path, "size_bytes": None, "mtime": None, "address": None}
    return entry_row(item.entry)


@app.command("stat")
def stat(ctx: typer.Context, repo_name: Name, ref: Ref, path: ObjectPath) -> None:
    """Show one object: size, checksum, metadata, physical address, and whether it is staged or committed.

    \b
    Example: refstore stat sales main 2026/11/21.csv
    """
    with repository_of(ctx, repo_name, read_only=True) as repo:
        named = repo.resolve(ref, path)
        emit(ctx, {**entry_details(named.entry), "state": "staged" if named.is_staged else "committed"})


@app.command("cat")
def cat(ctx: typer.Context, repo_name: Name, ref: Ref, path: ObjectPath, *, allow_foreign: AllowForeign = None) -> None:
    """Write one object to standard output. A damaged one ends with 6: if its length differs, or bytes from S3 do.

    \b
    Example: refstore cat sales main 2026/11/21.csv | head -3
    """
    with repository_of(ctx, repo_name, read_only=True, allow_foreign=urls_of(allow_foreign)) as repo:
        for chunk in repo.get(ref, path):
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()


class Way(NamedTuple):
    """A source and a destination in one repository."""

    source_ref: str
    source: str
    branch: str
    destination: str


@app.command("cp")
def cp(
    ctx: typer.Context,
    repo_name: Name,
    ref: Ref,
    path: ObjectPath,
    *,
    branch: Annotated[str, typer.Option("--to", metavar="BRANCH", help="The branch that gets the copy.")],
    destination: NewPath = "",
    recursive: Recursive = False,
) -> None:
    """Copy an object to a path on this branch or another, without reading its data.

    A new path that ends in a slash is a folder.

    \b
    Example: refstore cp sales main 2026/11/21.csv --to dev
             refstore cp sales v1 2026/ --to dev --as restored/ -r
    """
    with repository_of(ctx, repo_name) as repo:
        copied = _copy_all(repo, Way(ref, path, branch, destination), recursive=recursive)
        emit(ctx, {"branch": branch, "copied": copied})


@app.command("mv")
def mv(
    ctx: typer.Context,
    repo_name: Name,
    branch: Branch,
    path: ObjectPath,
    *,
    destination: NewPath = "",
    to: Annotated[str, typer.Option("--to", metavar="BRANCH", help="Move it to this branch; default: the same.")] = "",
    recursive: Recursive = False,
) -> None:
    """Rename an object on a branch, or move it to another branch: copy it, then delete the source.

    A crash in between leaves both paths. If others moved, deleted or replaced the source meanwhile, it is not moved.

    \b
    Example: refstore mv sales main raw/21.csv --as 2026/11/21.csv
             refstore mv sales dev raw/ --to main -r
    """
    if not destination and not to:
        ctx.fail("say where it goes: --as PATH, --to BRANCH, or both")
    with repository_of(ctx, repo_name) as repo:
        repo.get_branch(branch)  # a move deletes its source: it must be a branch, not history
        way = Way(branch, path, to or branch, destination)
        emit(ctx, {"branch": way.branch, "moved": _copy_all(repo, way, recursive=recursive, and_delete=True)})


def _copy_all(repo: Repository, way: Way, *, recursive: bool, and_delete: bool = False) -> int:
    """Copy one path, or all with a prefix, batch by batch. A move deletes the sources of each batch right after it."""
    from refstore.operations.copy import Copy
    from refstore.operations.move import Move

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
                repo.move_many(way.source_ref, [Move(*item) for item in moves], to_branch=way.branch)
            else:
                repo.copy_many(way.source_ref, moves, to_branch=way.branch)
            count += len(moves)
            bar.advance(len(batch))
    if recursive and count == 0:
        raise ObjectNotFound(
            f"nothing on {way.source_ref!r} starts with {way.source!r}, or it is where it should go already"
        )
    return count


def _plan_copies(repo: Repository, way: Way) -> Iterator[Copy]:
    """Yield a copy for each path with the prefix. All paths are read first, because what a move adds must not be moved
    again.

    If one prefix begins with the other, a copy may replace a path that is itself to be copied. That path comes first,
    so it is in an earlier batch or in the same, and one batch is copied as if at once.
    """
    from refstore.operations.copy import Copy

    paths = [item.path for item in repo.list(way.source_ref, prefix=way.source)]
    goal = way.destination or way.source
    if goal.startswith(way.source) or way.source.startswith(goal):
        paths.sort(key=len, reverse=len(goal) > len(way.source))
    return (Copy(path, goal + path[len(way.source) :]) for path in paths)


@app.command("rm")
def rm(
    ctx: typer.Context,
    repo_name: Name,
    branch: Branch,
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="The paths to delete.")],
    *,
    recursive: Recursive = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Delete objects on a branch; the deletion is staged until a commit. With -r it asks first, for paths it does not.

    Objects that were never committed can be restored for a while: see `refstore trash`.

    \b
    Example: refstore rm sales main a.csv b.csv
             refstore rm sales main tmp/ -r --dry-run
    """
    once = list(dict.fromkeys(paths))
    if recursive and len(once) > 1:
        ctx.fail("--recursive takes one PATH")
    with repository_of(ctx, repo_name) as repo:
        if recursive:
            _remove_prefix(ctx, repo, branch, once[0], dry_run=dry_run, yes=yes)
            return
        entries = repo.stat_many(branch, once)
        missing = [path for path in once if path not in entries]
        if missing:
            raise ObjectNotFound(f"{missing[0]!r} is not on {branch!r}; nothing was deleted, list it with: refstore ls")
        if dry_run:
            emit(ctx, ({"path": path, "size_bytes": entry.size_bytes} for path, entry in entries.items()))
            return
        repo.delete_many(branch, once)
        emit(ctx, {"branch": branch, "deleted": len(once)})


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
