"""What is there: ls, stat, cat, download."""

from __future__ import annotations

import hashlib
import sys
from itertools import islice
from pathlib import Path
from typing import Annotated, Final

import typer

from refstore.cli.common import Progress, emit, progress, repository_of
from refstore.cli.files import local_errors, replaced
from refstore.cli.places import PlacedCommand, place, words
from refstore.cli.shapes import entry_details, entry_row
from refstore.errors import CorruptObject, Invalid, ObjectNotFound, RefstoreError
from refstore.flows.reading import Listed
from refstore.ids import is_own
from refstore.records import Entry
from refstore.redaction import redact_url
from refstore.repository import Repository

app = typer.Typer()

OUTSIDE_SHOWN: Final = 20

_SHA256_DIGITS: Final = 64


@app.command("ls", cls=PlacedCommand)
def ls(
    ctx: typer.Context,
    given: Annotated[list[str], place("REPO REF [PREFIX]")],
    *,
    delimiter: Annotated[str, typer.Option(metavar="TEXT", help="Where paths are folded.")] = "/",
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Every object; fold nothing.")] = False,
    after: Annotated[str, typer.Option(metavar="PATH", help="Go on behind this path.")] = "",
    amount: Annotated[int, typer.Option("--amount", "-n", min=0, metavar="N", help="At most so many; 0: all.")] = 0,
) -> None:
    """List what is on a ref: of a branch, what is staged on it, too.

    PREFIX is the beginning of a path, so a folder is written with its slash.

    \b
    Example: refstore ls sales main 2026/
             refstore ls sales/main@/2026/ --recursive
    """
    repo_name, ref, prefix = words(ctx, given, "REPO REF [PREFIX]")
    with repository_of(ctx, repo_name) as repo:
        found = repo.list(ref, prefix=prefix, after=after, delimiter="" if recursive else delimiter)
        emit(ctx, (_row(item) for item in islice(found, amount or None)))


@app.command("stat", cls=PlacedCommand)
def stat(ctx: typer.Context, given: Annotated[list[str], place("REPO REF PATH")]) -> None:
    """Show one object: size, checksum, metadata, physical address, and whether it is staged or committed.

    \b
    Example: refstore stat sales main 2026/11/21.csv
    """
    repo_name, ref, path = words(ctx, given, "REPO REF PATH")
    with repository_of(ctx, repo_name) as repo:
        found = repo.resolve(ref, path)
        emit(ctx, {**entry_details(path, found.entry), "state": "committed" if found.token is None else "staged"})


@app.command("cat", cls=PlacedCommand)
def cat(ctx: typer.Context, given: Annotated[list[str], place("REPO REF PATH")]) -> None:
    """Write one object to standard output.

    \b
    Example: refstore cat sales main 2026/11/21.csv | head -3
    """
    repo_name, ref, path = words(ctx, given, "REPO REF PATH")
    with repository_of(ctx, repo_name) as repo:
        for chunk in repo.get(ref, path):
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()


@app.command("download", cls=PlacedCommand)
def download(
    ctx: typer.Context,
    given: Annotated[list[str], place("REPO REF PATH [TARGET]")],
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="PATH is a prefix; TARGET, a folder, takes all below it.")] = False,
) -> None:
    """Download an object, or all below a prefix, and check it against its checksum. TARGET: the working folder, if left out.

    Files are replaced whole or not at all. As a location: refstore download sales/main/PATH [TARGET].

    \b
    Example: refstore download sales main 2026/11/21.csv /tmp/sales.csv
             refstore download -r sales main 2026/ ./sales
    """
    form = "REPO REF [PATH] [TARGET]" if recursive else "REPO REF PATH [TARGET]"
    repo_name, ref, path, target = words(ctx, given, form, whole=recursive)
    with repository_of(ctx, repo_name) as repo, progress("downloading") as bar:
        if recursive:
            found = _below(repo, ref, path)
            goals = _goals(found, path, Path(target or "."))
            sizes, refused = _fetch_all(repo, ref, found, goals, bar=bar)
            _warn(refused)
            answer: dict[str, object] = {"folder": str(Path(target or ".")), "objects": len(sizes), "size_bytes": sum(sizes)}
        else:
            entry = repo.stat(ref, path)
            goal = Path(target or ".")
            with local_errors():
                if goal.is_dir():
                    goal /= path.rsplit("/", 1)[-1] or "object"
            answer = {"path": path, "file": str(goal), "size_bytes": _fetch(repo, ref, path, entry, goal, bar=bar)}
    emit(ctx, answer)


def _row(item: Listed) -> dict[str, object]:
    if item.entry is None:
        return {"path": item.path, "size_bytes": None, "mtime": None, "address": None}
    return entry_row(item.path, item.entry)


def _below(repo: Repository, ref: str, prefix: str) -> dict[str, Entry]:
    """What can be downloaded, by path. Raises ObjectNotFound."""
    found = {item.path: item.entry for item in repo.list(ref, prefix=prefix) if item.entry is not None}
    if not found:
        raise ObjectNotFound(f"nothing on {ref!r} starts with {prefix!r}; list it with: refstore ls")
    return found


def _goals(found: dict[str, Entry], prefix: str, folder: Path) -> dict[str, Path]:
    """A file below `folder` for each path. Raises Invalid where two paths would be one file, or one a folder of another.

    Paths may start with a slash, or hold several in a row; no part of one leads out of the folder (dot segments are refused
    where paths are made).
    """
    base = prefix.rpartition("/")[0] + "/" if "/" in prefix else ""
    goals: dict[str, Path] = {}
    taken: dict[Path, str] = {}
    for path in found:
        parts = [part for part in path.removeprefix(base).split("/") if part]
        goal = folder.joinpath(*parts or ["object"])
        other = next((taken[file] for file in (goal, *goal.parents) if file in taken), None)
        if other is not None:
            raise Invalid(f"{other!r} and {path!r} cannot both be files below {folder}; download one of them by itself")
        goals[path], taken[goal] = goal, path
    return goals


def _fetch_all(
    repo: Repository, ref: str, found: dict[str, Entry], goals: dict[str, Path], *, bar: Progress
) -> tuple[list[int], list[str]]:
    """The sizes of what was downloaded; and of what belongs to others and could not be read, why. Raises where it is all of it."""
    sizes: list[int] = []
    refused: list[str] = []
    for path, entry in found.items():
        try:
            sizes.append(_fetch(repo, ref, path, entry, goals[path], bar=bar))
        except RefstoreError as error:
            if is_own(entry.address) or (len(refused) + 1 == len(found)):
                raise
            refused.append(f"{path!r}, which lies at {redact_url(entry.address)}, was not downloaded: {error}")
    return sizes, refused


def _warn(refused: list[str]) -> None:
    for each in refused[:OUTSIDE_SHOWN]:
        print(f"refstore: warning: {each}", file=sys.stderr)
    if len(refused) > OUTSIDE_SHOWN:
        print(f"refstore: warning: ... and {len(refused) - OUTSIDE_SHOWN} more", file=sys.stderr)


def _fetch(repo: Repository, ref: str, path: str, entry: Entry, goal: Path, *, bar: Progress) -> int:
    """One object into one file; its size. Raises CorruptObject if it is not what was uploaded."""
    bar.describe(path[-60:])
    digest = hashlib.sha256()
    size = 0
    with local_errors(), replaced(goal) as file:
        for chunk in repo.get(ref, path):
            digest.update(chunk)
            size += len(chunk)
            file.write(chunk)
        expected = entry.checksum if len(entry.checksum) == _SHA256_DIGITS else digest.hexdigest()
        if (size, digest.hexdigest()) != (entry.size_bytes, expected) and repo.stat(ref, path) == entry:
            raise CorruptObject(f"{path!r} is not what was uploaded: its size or checksum differs; do not trust this copy, and report it")
    bar.advance()
    return size
