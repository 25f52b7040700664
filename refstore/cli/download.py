"""`refstore download`: download objects, and verify them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from refstore.cli.common import ProgressBar, emit, progress, repository_of, tell_some
from refstore.cli.errors import exit_code
from refstore.cli.files import local_errors, replace_file
from refstore.cli.foreign_places import AllowForeign, urls_of
from refstore.cli.locations import PlacedCommand, place, words
from refstore.core.ids import is_own
from refstore.core.redaction import redact_url
from refstore.errors import CorruptObject, Invalid, ObjectNotFound, RefstoreError
from refstore.operations import read

if TYPE_CHECKING:
    from refstore.records.staging_records import Entry
    from refstore.repository import Repository

app = typer.Typer()

_SHA256_DIGITS: Final = 64


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
            entries = _entries_below(repo, ref, path)
            goals = _goals(entries, path, Path(target or "."))
            sizes, failures = _fetch_all(repo, ref, entries, goals, bar=bar)
            tell_some([f"refstore: warning: {each}" for each in failures])
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


def _entries_below(repo: Repository, ref: str, prefix: str) -> dict[str, Entry]:
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
    repo: Repository, ref: str, entries: dict[str, Entry], goals: dict[str, Path], *, bar: ProgressBar
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


def _fetch(repo: Repository, ref: str, path: str, entry: Entry, goal: Path, *, bar: ProgressBar) -> int:
    """Download one object into one file; return its size. Raises CorruptObject if it differs from the upload."""
    bar.describe(path[-60:])
    is_checked = read.has_own_checksum(entry)  # by `get`
    digest = hashlib.sha256()
    size = 0
    with local_errors(), replace_file(goal) as file:
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
