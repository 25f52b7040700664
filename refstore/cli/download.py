"""`refstore download`: download objects, and verify them."""

from __future__ import annotations

import hashlib
import os
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from refstore.cli.common import ProgressBar, emit, progress, repository_of, warn_of
from refstore.cli.errors import exit_code
from refstore.cli.files import LocalFileError, local_errors, replace_file
from refstore.cli.foreign_places import AllowForeign, urls_of
from refstore.cli.parameters import Name, Ref
from refstore.core.ids import is_own
from refstore.core.redaction import redact_url
from refstore.errors import CorruptObject, ObjectNotFound, RefstoreError
from refstore.operations import read
from refstore.public_types import stored_entry

if TYPE_CHECKING:
    from refstore.public_types import Entry
    from refstore.repository import Repository

app = typer.Typer()

_SHA256_DIGITS: Final = 64


@app.command("download")
def download(
    ctx: typer.Context,
    repo_name: Name,
    ref: Ref,
    path: Annotated[str, typer.Argument(metavar="PATH", help="The object's path; with -r a prefix.")] = "",
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Where to; default: the working folder.")] = "",
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="PATH is a prefix; its objects go below the folder TARGET.")
    ] = False,
    allow_foreign: AllowForeign = None,
) -> None:
    """Download an object, or all below a prefix, and verify the checksum.

    A file is replaced as a whole or not at all.

    With -r, an empty object whose path ends with a slash becomes a folder. What cannot be downloaded is named and left
    out, and the exit code is not 0: objects outside the lake that cannot be read, and paths that cannot be files here,
    because a name is too long, or because another object has that file or folder.

    \b
    Example: refstore download sales main 2026/11/21.csv /tmp/sales.csv
             refstore download -r sales main 2026/ ./sales
    """
    if not path and not recursive:
        ctx.fail("name the object's PATH, or give --recursive")
    with (
        repository_of(ctx, repo_name, read_only=True, allow_foreign=urls_of(allow_foreign)) as repo,
        progress("downloading") as bar,
    ):
        if recursive:
            entries = _entries_below(repo, ref, path)
            sizes, failures = _fetch_all(repo, ref, entries, _choose_goals(entries, path, Path(target or ".")), bar=bar)
            warn_of(failures)
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


def _choose_goals(entries: dict[str, Entry], prefix: str, folder: Path) -> dict[str, Path | str]:
    """Choose a file below `folder` for each path, or return why it can be none: an earlier path has that file, or needs
    a folder there.

    Paths may contain several slashes in a row. None leads out of the folder: refstore refuses dot segments in paths,
    and what is in a commit is checked once more.
    """
    base = prefix.rpartition("/")[0] + "/" if "/" in prefix else ""
    goals: dict[str, Path | str] = {}
    files: dict[Path, str] = {}
    folders: dict[Path, str] = {}
    for path, entry in entries.items():
        parts = [part for part in path.removeprefix(base).split("/") if part]
        if not {".", ".."}.isdisjoint(parts) or "\0" in path:
            goals[path] = "it is no path of a file"
            continue
        is_folder = _is_folder_marker(path, entry)
        goal = folder.joinpath(*parts or ([] if is_folder else ["object"]))
        above = list(goal.parents)[: max(len(parts) - 1, 0)]
        other = next((files[each] for each in (goal, *above) if each in files), None)
        if other is None and not is_folder:
            other = folders.get(goal)
        if other is not None:
            goals[path] = f"{other!r} is downloaded there; download this one by itself"
            continue
        goals[path] = goal
        folders |= dict.fromkeys([*above, *([goal] if is_folder else [])], path)
        if not is_folder:
            files[goal] = path
    return goals


def _is_folder_marker(path: str, entry: Entry) -> bool:
    """Return whether an object says only that there is a folder, as PyArrow and others write it."""
    return path.endswith("/") and not entry.size_bytes


def _fetch_all(
    repo: Repository, ref: str, entries: dict[str, Entry], goals: dict[str, Path | str], *, bar: ProgressBar
) -> tuple[list[int], dict[str, int]]:
    """Return the sizes of the downloaded objects; and why each other one is left out, with an exit code. Raises if all
    failed.
    """
    sizes: list[int] = []
    failures: dict[str, int] = {}
    written: dict[str, list[Path]] = {}
    for path, entry in entries.items():
        goal = goals[path]
        try:
            if isinstance(goal, str):
                raise LocalFileError(goal)
            if _is_folder_marker(path, entry):
                with local_errors():
                    goal.mkdir(parents=True, exist_ok=True)
                sizes.append(0)
                continue
            alike = written.setdefault(unicodedata.normalize("NFC", str(goal).casefold()), [])
            if any(is_same_file(goal, other) for other in alike):
                raise LocalFileError("the file system takes its name for that of another object; download it by itself")
            sizes.append(_fetch(repo, ref, path, entry, goal, bar=bar))
            alike.append(goal)
        except RefstoreError as error:
            is_local = isinstance(error, LocalFileError)
            if (is_own(entry.address) and not is_local) or (len(failures) + 1 == len(entries)):
                warn_of(failures)
                raise
            place = "" if is_local else f", which lies at {redact_url(entry.address)},"
            failures[f"{path!r}{place} was not downloaded: {error}"] = exit_code(type(error))
    return sizes, failures


def is_same_file(first: Path, second: Path) -> bool:
    """Return whether two names are one file, as on file systems that ignore case. Links are not followed."""
    try:
        return os.path.samestat(first.lstat(), second.lstat())
    except OSError:
        return False


def _fetch(repo: Repository, ref: str, path: str, entry: Entry, goal: Path, *, bar: ProgressBar) -> int:
    """Download one object into one file; return its size. Raises CorruptObject if it differs from the upload."""
    bar.describe(path[-60:])
    is_checked = read.has_own_checksum(stored_entry(entry))  # by `get`
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
