"""`refstore upload`: upload a file, standard input or a folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from refstore.cli.common import emit, progress, repository_of, warn_of
from refstore.cli.errors import exit_code
from refstore.cli.files import LocalFileError, SourceFile, source_file, tree
from refstore.cli.parameters import Branch, Meta, Name
from refstore.cli.rows import entry_details, pairs
from refstore.core.batches import split_batches
from refstore.core.clock import to_datetime
from refstore.core.ids import object_path
from refstore.errors import Invalid, InvalidPath
from refstore.objects.base import CHUNK_BYTES
from refstore.operations.upload import Upload
from refstore.public_types import Entry, stored_entry
from refstore.repository import Repository

app = typer.Typer()

BATCH_FILES: Final = 200
BATCH_BYTES: Final = 64 << 20
"""The bounds of one call; its files share its round trips and its deadline."""
STATS_AT_ONCE: Final = 1000

ContentType = Annotated[str, typer.Option(metavar="TYPE", help="A media type to remember.")]


@app.command("upload")
def upload(
    ctx: typer.Context,
    repo_name: Name,
    branch: Branch,
    source: Annotated[str, typer.Argument(metavar="SRC", help="A file, a folder with -r, or - for standard input.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="The path, or a folder if it ends in a slash.")] = "",
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="SRC is a folder; its files go below the prefix DST.")
    ] = False,
    include: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="With -r: only files whose path or name matches.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="With -r: leave out files whose path or name matches.")
    ] = None,
    unchanged: Annotated[
        bool,
        typer.Option("--unchanged", help="With -r: also upload files that the branch has with this size and time."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With -r: list what would be uploaded, and upload nothing.")
    ] = False,
    meta: Meta = None,
    content_type: ContentType = "",
) -> None:
    """Upload a file, standard input (-), or a whole folder (-r), and stage it on a branch.

    With -r, files that the branch has already, with the same size and time, are skipped. What cannot be uploaded is
    named and left out, and the exit code is not 0: links to folders and to nothing, FIFOs, sockets and devices, files
    that cannot be read or that change meanwhile, and names that are no paths, such as those that are not UTF-8.

    Without DST the file's name is used; a DST that ends in a slash is the folder for it.

    \b
    Example: refstore upload sales main 21.csv 2026/11/21.csv
             gunzip -c 21.csv.gz | refstore upload sales main - 2026/11/21.csv
             refstore upload -r sales main ./november 2026/11/ --exclude "*.tmp" --dry-run
    """
    if not recursive and (include or exclude or unchanged or dry_run):
        ctx.fail("--include, --exclude, --unchanged and --dry-run are for a folder; add --recursive")
    with repository_of(ctx, repo_name) as repo:
        if recursive:
            files, left_out = _choose_files(Path(source), target, include or [], exclude or [])
            new = files if unchanged else _unlike_the_branch(repo, branch, files)
            if dry_run:
                emit(ctx, ({"path": path, "size_bytes": file.size_bytes, "file": str(file.file)} for path, file in new))
            else:
                done = _upload_tree(repo, branch, new, left_out, metadata=pairs(meta), content_type=content_type)
                emit(ctx, {"branch": branch, "prefix": target, **done, "unchanged": len(files) - len(new)})
            if left_out:
                raise typer.Exit(exit_code(LocalFileError))
        else:
            _upload_one(ctx, repo, branch, source, target, metadata=pairs(meta), content_type=content_type)


def _upload_one(ctx: typer.Context, repo: Repository, branch: str, source: str, target: str, **options: Any) -> None:
    """Upload a file, or standard input."""
    is_folder = not target or target.endswith("/")
    if source != "-":
        file = source_file(Path(source))
        path = target + file.file.name if is_folder else target
        entry = repo.upload(branch, path, file.chunks(), modified=to_datetime(file.mtime_ms), **options)
    elif is_folder:
        ctx.fail("standard input has no name; give DST")
    else:
        path = target
        entry = repo.upload(branch, path, iter(lambda: sys.stdin.buffer.read(CHUNK_BYTES), b""), **options)
    emit(ctx, entry_details(entry))


def _choose_files(
    folder: Path, target: str, include: Sequence[str], exclude: Sequence[str]
) -> tuple[list[tuple[str, SourceFile]], list[str]]:
    """Return the files to upload with their paths; and what is left out, which it warns of. Raises Invalid."""

    def matches(relative: str, globs: Sequence[str]) -> bool:
        return any(fnmatchcase(relative, glob) or fnmatchcase(relative.rpartition("/")[2], glob) for glob in globs)

    def is_chosen(relative: str) -> bool:
        return (not include or matches(relative, include)) and not matches(relative, exclude)

    object_path(_join_path(target, "x"))  # otherwise every file would be left out
    found = tree(folder)
    files: list[tuple[str, SourceFile]] = []
    left_out: list[str] = []
    for relative, file in found.files.items():
        if is_chosen(relative):
            try:
                files.append((object_path(_join_path(target, relative)), file))
            except InvalidPath as error:
                _leave_out(left_out, relative, str(error))
    for relative, reason in found.left_out.items():
        if is_chosen(relative):
            _leave_out(left_out, relative, reason)
    if not files:
        chosen = " that --include and --exclude choose" if include or exclude else ""
        raise Invalid(f"{folder} holds no files{chosen}, so nothing was uploaded; name another folder")
    return files, left_out


def _leave_out(left_out: list[str], path: str, reason: str) -> None:
    """Warn that something is not uploaded."""
    left_out.append(path)
    warn_of([f"{path!r} is not uploaded: {reason}"])


def _unlike_the_branch(
    repo: Repository, branch: str, files: Sequence[tuple[str, SourceFile]]
) -> list[tuple[str, SourceFile]]:
    """Return the files that the branch does not have with this size and time."""
    new: list[tuple[str, SourceFile]] = []
    for batch in split_batches(files, STATS_AT_ONCE):
        there = repo.stat_many(branch, [path for path, _ in batch])
        for path, file in batch:
            entry = there.get(path)
            if entry is None or (entry.size_bytes, stored_entry(entry).mtime_ms) != (file.size_bytes, file.mtime_ms):
                new.append((path, file))
    return new


def _upload_tree(
    repo: Repository,
    branch: str,
    files: list[tuple[str, SourceFile]],
    left_out: list[str],
    *,
    metadata: dict[str, str],
    content_type: str,
) -> dict[str, object]:
    """Upload files in batches, and add to `left_out` what cannot be read. If interrupted, say what stays staged."""
    objects = stored = 0
    try:
        with progress("uploading", total=len(files)) as bar:
            for batch in _batches(files):
                bar.describe(batch[0][0][-60:])
                for entry in _upload_batch(repo, branch, batch, left_out, metadata, content_type):
                    objects += 1
                    stored += entry.size_bytes
                bar.advance(len(batch))
    except BaseException:
        if objects:
            print(
                f"refstore: {objects:,} of {len(files):,} files stay staged on {branch!r}; run the same command again "
                f"for the rest, or discard them with: refstore reset {repo.name} {branch}",
                file=sys.stderr,
            )
        raise
    return {"objects": objects, "size_bytes": stored, "not_uploaded": len(left_out)}


def _upload_batch(
    repo: Repository,
    branch: str,
    batch: list[tuple[str, SourceFile]],
    left_out: list[str],
    metadata: dict[str, str],
    content_type: str,
) -> Sequence[Entry]:
    """Upload a batch. A file that cannot be read ends a call, so the others are uploaded by another one: each call
    leaves out a file at least.
    """
    while batch:
        faults: dict[str, str] = {}
        uploads = [
            Upload(
                path=path,
                body=_read_body(path, file, faults),
                metadata=metadata,
                content_type=content_type,
                modified=to_datetime(file.mtime_ms),
            )
            for path, file in batch
        ]
        try:
            return repo.upload_many(branch, uploads)
        except LocalFileError:
            faults = {path: faults.get(path) or file.find_fault() for path, file in batch}
            if not any(faults.values()):
                raise
            for path, reason in faults.items():
                if reason:
                    _leave_out(left_out, path, reason)
            batch = [(path, file) for path, file in batch if not faults[path]]
    return []


def _read_body(path: str, file: SourceFile, faults: dict[str, str]) -> Iterator[bytes]:
    """Yield the file's bytes, and note by its path why it cannot be read."""
    try:
        yield from file.chunks()
    except LocalFileError as error:
        faults[path] = str(error)
        raise


def _join_path(target: str, relative: str) -> str:
    return f"{target.rstrip('/')}/{relative}" if target else relative


def _batches(files: list[tuple[str, SourceFile]]) -> Iterator[list[tuple[str, SourceFile]]]:
    batch: list[tuple[str, SourceFile]] = []
    size = 0
    for path, file in files:
        batch.append((path, file))
        size += file.size_bytes
        if len(batch) == BATCH_FILES or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
