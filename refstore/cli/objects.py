"""Commands that read objects: ls, stat, cat, download."""

from __future__ import annotations

import hashlib
import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from refstore.cli.common import Progress, emit, progress, repository_of
from refstore.cli.errors import exit_code
from refstore.cli.files import local_errors, replaced
from refstore.cli.foreign_places import AllowForeign, urls_of
from refstore.cli.places import PlacedCommand, place, words
from refstore.cli.shapes import entry_details, entry_row
from refstore.core.ids import is_own
from refstore.core.redaction import redact_url
from refstore.core.units import sum_of_sizes
from refstore.errors import CorruptObject, Invalid, ObjectNotFound, RefstoreError
from refstore.operations import reading

if TYPE_CHECKING:
    from refstore.core.records import Entry
    from refstore.operations.reading import ListedPath
    from refstore.repository import Repository

app = typer.Typer()

OUTSIDE_SHOWN: Final = 20

_SHA256_DIGITS: Final = 64


@app.command("ls", cls=PlacedCommand)
def ls(
    ctx: typer.Context,
    arguments: Annotated[list[str], place("REPO REF [PREFIX]")],
    *,
    delimiter: Annotated[str, typer.Option(metavar="TEXT", help="Fold paths at this text.")] = "/",
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="List every object; fold nothing.")] = False,
    after: Annotated[str, typer.Option(metavar="PATH", help="Continue after this path.")] = "",
    amount: Annotated[int, typer.Option("--amount", "-n", min=0, metavar="N", help="How many at most; 0: all.")] = 0,
) -> None:
    """List the objects on a ref; a branch includes what is staged on it.

    PREFIX is the beginning of a path, so write a folder with its slash.

    \b
    Example: refstore ls sales main 2026/
             refstore ls sales/main@/2026/ --recursive
    """
    repo_name, ref, prefix = words(ctx, arguments, "REPO REF [PREFIX]")
    with repository_of(ctx, repo_name, only_read=True) as repo:
        listing = repo.list(ref, prefix=prefix, after=after, delimiter="" if recursive else delimiter)
        emit(ctx, (_row(item) for item in islice(listing, amount or None)))


@app.command("stat", cls=PlacedCommand)
def stat(ctx: typer.Context, arguments: Annotated[list[str], place("REPO REF PATH")]) -> None:
    """Show one object: size, checksum, metadata, physical address, and whether it is staged or committed.

    \b
    Example: refstore stat sales main 2026/11/21.csv
    """
    repo_name, ref, path = words(ctx, arguments, "REPO REF PATH")
    with repository_of(ctx, repo_name, only_read=True) as repo:
        resolved = repo.resolve(ref, path)
        emit(ctx, {**entry_details(path, resolved.entry), "state": "committed" if resolved.token is None else "staged"})


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
                    own[1] = sum_of_sizes((own[1], item.entry.size_bytes))
                bar.advance()
        rows = [{"objects": count, "size_bytes": size, "folder": name} for name, (count, size) in sums.items()]
        emit(ctx, sorted(rows, key=lambda row: (-int(row["size_bytes"]), str(row["folder"]))))


@app.command("cat", cls=PlacedCommand)
def cat(
    ctx: typer.Context,
    arguments: Annotated[list[str], place("REPO REF PATH")],
    *,
    allow_foreign: AllowForeign = None,
) -> None:
    """Write one object to standard output. An object from S3 is checked: wrong bytes end with 6, before the last ones.

    \b
    Example: refstore cat sales main 2026/11/21.csv | head -3
    """
    repo_name, ref, path = words(ctx, arguments, "REPO REF PATH")
    with repository_of(ctx, repo_name, only_read=True, allow_foreign=urls_of(allow_foreign)) as repo:
        for chunk in repo.get(ref, path):
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()


@app.command("download", cls=PlacedCommand)
def download(
    ctx: typer.Context,
    arguments: Annotated[list[str], place("REPO REF PATH [TARGET]")],
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="PATH is a prefix; its objects go below the folder TARGET.")
    ] = False,
    allow_foreign: AllowForeign = None,
) -> None:
    """Download an object, or all below a prefix, and verify the checksum. Default TARGET: the working folder.

    A file is replaced as a whole or not at all. As a location: refstore download sales/main/PATH [TARGET].

    With -r, objects outside the lake that cannot be read are left out and named, and the exit code is not 0.

    \b
    Example: refstore download sales main 2026/11/21.csv /tmp/sales.csv
             refstore download -r sales main 2026/ ./sales
    """
    form = "REPO REF [PATH] [TARGET]" if recursive else "REPO REF PATH [TARGET]"
    repo_name, ref, path, target = words(ctx, arguments, form, whole=recursive)
    with (
        repository_of(ctx, repo_name, only_read=True, allow_foreign=urls_of(allow_foreign)) as repo,
        progress("downloading") as bar,
    ):
        if recursive:
            entries = _below(repo, ref, path)
            goals = _goals(entries, path, Path(target or "."))
            sizes, failures = _fetch_all(repo, ref, entries, goals, bar=bar)
            _warn(list(failures))
            answer: dict[str, object] = {
                "folder": str(Path(target or ".")),
                "objects": len(sizes),
                "not_downloaded": len(failures),
                "size_bytes": sum(sizes),
            }
        else:
            failures = {}
            entry = repo.stat(ref, path)
            goal = Path(target or ".")
            with local_errors():
                if goal.is_dir():
                    goal /= path.rsplit("/", 1)[-1] or "object"
            answer = {"path": path, "file": str(goal), "size_bytes": _fetch(repo, ref, path, entry, goal, bar=bar)}
    emit(ctx, answer)
    if failures:
        raise typer.Exit(max(failures.values()))


def _row(item: ListedPath) -> dict[str, object]:
    if item.entry is None:
        return {"path": item.path, "size_bytes": None, "mtime": None, "address": None}
    return entry_row(item.path, item.entry)


def _below(repo: Repository, ref: str, prefix: str) -> dict[str, Entry]:
    """Return the entries with the prefix, by path. Raises ObjectNotFound."""
    entries = {item.path: item.entry for item in repo.list(ref, prefix=prefix) if item.entry is not None}
    if not entries:
        raise ObjectNotFound(f"nothing on {ref!r} starts with {prefix!r}; list it with: refstore ls")
    return entries


def _goals(entries: dict[str, Entry], prefix: str, folder: Path) -> dict[str, Path]:
    """Choose a file below `folder` for each path. Raises Invalid if two paths would be one file, or one a folder of
    another.

    Paths may start with a slash, or contain several in a row. None leads out of the folder, because refstore refuses
    dot segments in paths.
    """
    base = prefix.rpartition("/")[0] + "/" if "/" in prefix else ""
    goals: dict[str, Path] = {}
    taken: dict[Path, str] = {}
    for path in entries:
        parts = [part for part in path.removeprefix(base).split("/") if part]
        goal = folder.joinpath(*parts or ["object"])
        other = next((taken[file] for file in (goal, *goal.parents) if file in taken), None)
        if other is not None:
            raise Invalid(f"{other!r} and {path!r} cannot both be files below {folder}; download one of them by itself")
        goals[path], taken[goal] = goal, path
    return goals


def _fetch_all(
    repo: Repository, ref: str, entries: dict[str, Entry], goals: dict[str, Path], *, bar: Progress
) -> tuple[list[int], dict[str, int]]:
    """Return the sizes of the downloaded objects; and why each foreign object could not be read, with its exit code.
    Raises if all failed.
    """
    sizes: list[int] = []
    failures: dict[str, int] = {}
    for path, entry in entries.items():
        try:
            sizes.append(_fetch(repo, ref, path, entry, goals[path], bar=bar))
        except RefstoreError as error:
            if is_own(entry.address) or (len(failures) + 1 == len(entries)):
                raise
            why = f"{path!r}, which lies at {redact_url(entry.address)}, was not downloaded: {error}"
            failures[why] = exit_code(type(error))
    return sizes, failures


def _warn(failures: list[str]) -> None:
    for each in failures[:OUTSIDE_SHOWN]:
        print(f"refstore: warning: {each}", file=sys.stderr)
    if len(failures) > OUTSIDE_SHOWN:
        print(f"refstore: warning: ... and {len(failures) - OUTSIDE_SHOWN} more", file=sys.stderr)


def _fetch(repo: Repository, ref: str, path: str, entry: Entry, goal: Path, *, bar: Progress) -> int:
    """Download one object into one file; return its size. Raises CorruptObject if it differs from the upload."""
    bar.describe(path[-60:])
    is_checked = reading.can_check(repo.context, entry)  # by `get`
    digest = hashlib.sha256()
    size = 0
    with local_errors(), replaced(goal) as file:
        for chunk in repo.get(ref, path):
            if not is_checked:
                digest.update(chunk)
            size += len(chunk)
            file.write(chunk)
        expected = entry.checksum if len(entry.checksum) == _SHA256_DIGITS else digest.hexdigest()
        is_same = is_checked or (size, digest.hexdigest()) == (entry.size_bytes, expected)
        if not is_same and repo.stat(ref, path) == entry:
            raise CorruptObject(
                f"{path!r} is not what was uploaded: its size or checksum differs; do not trust this copy, and report "
                "it"
            )
    bar.advance()
    return size
