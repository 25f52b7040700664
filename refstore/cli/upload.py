"""`refstore upload`: upload a file, standard input or a folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from refstore.cli.common import emit, progress, repository_of
from refstore.cli.files import SourceFile, source_file, tree
from refstore.cli.locations import PlacedCommand, place, words_with_target
from refstore.cli.parameters import Meta
from refstore.cli.rows import entry_details, pairs
from refstore.core.batches import split_batches
from refstore.core.ids import object_path
from refstore.errors import Invalid
from refstore.objects.base import CHUNK_BYTES
from refstore.operations.upload import Upload
from refstore.records.staging_records import Entry
from refstore.repository import Repository

app = typer.Typer()

BATCH_FILES: Final = 200
BATCH_BYTES: Final = 64 << 20
"""The bounds of one call; its files share its round trips and its deadline."""
STATS_AT_ONCE: Final = 1000

ContentType = Annotated[str, typer.Option(metavar="TYPE", help="A media type to remember.")]


@app.command("upload", cls=PlacedCommand)
def upload(
    ctx: typer.Context,
    arguments: Annotated[list[str], place("REPO BRANCH SRC [DST]")],
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="SRC is a folder; its files go below the prefix DST.")
    ] = False,
    include: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="With -r: only files whose path or name matches.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="With -r: leave out files whose path or name matches.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="With -r: also upload files that the branch has with this size and time.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With -r: list what would be uploaded, and upload nothing.")
    ] = False,
    meta: Meta = None,
    content_type: ContentType = "",
) -> None:
    """Upload a file, standard input (-), or a whole folder (-r), and stage it on a branch.

    With -r, files that the branch has already, with the same size and time, are skipped.

    Without DST the file's name is used; a DST that ends in a slash is the folder for it. As a location: refstore upload
    sales/main/DST SRC.

    \b
    Example: refstore upload sales main 21.csv 2026/11/21.csv
             gunzip -c 21.csv.gz | refstore upload sales main - 2026/11/21.csv
             refstore upload -r sales main ./november 2026/11/ --exclude "*.tmp" --dry-run
    """
    repo_name, branch, source, target = words_with_target(ctx, arguments, "REPO BRANCH SRC [DST]")
    if not recursive and (include or exclude or everything or dry_run):
        ctx.fail("--include, --exclude, --all and --dry-run are for a folder; add --recursive")
    with repository_of(ctx, repo_name) as repo:
        if recursive:
            files = _choose_files(Path(source), target, include or [], exclude or [])
            new = files if everything else _unlike_the_branch(repo, branch, files)
            if dry_run:
                emit(ctx, ({"path": path, "size_bytes": file.size_bytes, "file": str(file.file)} for path, file in new))
            else:
                done = _upload_tree(repo, branch, new, metadata=pairs(meta), content_type=content_type)
                emit(ctx, {"branch": branch, "prefix": target, **done, "unchanged": len(files) - len(new)})
        else:
            _upload_one(ctx, repo, branch, source, target, metadata=pairs(meta), content_type=content_type)


def _upload_one(ctx: typer.Context, repo: Repository, branch: str, source: str, target: str, **options: Any) -> None:
    """Upload a file, or standard input."""
    is_folder = not target or target.endswith("/")
    if source != "-":
        file = source_file(Path(source))
        path = target + file.file.name if is_folder else target
        entry = repo.upload(branch, path, file.chunks(), mtime_ms=file.mtime_ms, **options)
    elif is_folder:
        ctx.fail("standard input has no name; give DST")
    else:
        path = target
        entry = repo.upload(branch, path, iter(lambda: sys.stdin.buffer.read(CHUNK_BYTES), b""), **options)
    emit(ctx, entry_details(path, entry))


def _choose_files(
    folder: Path, target: str, include: Sequence[str], exclude: Sequence[str]
) -> list[tuple[str, SourceFile]]:
    """Return the files to upload with their paths. Every name is checked, so that one invalid name does not leave half
    a tree. Raises Invalid.
    """

    def matches(relative: str, globs: Sequence[str]) -> bool:
        return any(fnmatchcase(relative, glob) or fnmatchcase(relative.rpartition("/")[2], glob) for glob in globs)

    files = [
        (_join_path(target, relative), file)
        for relative, file in tree(folder)
        if (not include or matches(relative, include)) and not matches(relative, exclude)
    ]
    if not files:
        chosen = " that --include and --exclude choose" if include or exclude else ""
        raise Invalid(f"{folder} holds no files{chosen}, so nothing was uploaded; name another folder")
    for path, _ in files:
        object_path(path)
    return files


def _unlike_the_branch(
    repo: Repository, branch: str, files: Sequence[tuple[str, SourceFile]]
) -> list[tuple[str, SourceFile]]:
    """Return the files that the branch does not have with this size and time."""
    new: list[tuple[str, SourceFile]] = []
    for batch in split_batches(files, STATS_AT_ONCE):
        there = repo.stat_many(branch, [path for path, _ in batch])
        for path, file in batch:
            entry = there.get(path)
            if entry is None or (entry.size_bytes, entry.mtime_ms) != (file.size_bytes, file.mtime_ms):
                new.append((path, file))
    return new


def _upload_tree(
    repo: Repository,
    branch: str,
    files: list[tuple[str, SourceFile]],
    *,
    metadata: dict[str, str],
    content_type: str,
) -> dict[str, object]:
    """Upload files in batches. If it is interrupted, say what stays staged."""
    objects = stored = 0
    try:
        for entry in _upload_batches(repo, branch, files, metadata=metadata, content_type=content_type):
            objects += 1
            stored += entry.size_bytes
    except BaseException:
        if objects:
            print(
                f"refstore: {objects:,} of {len(files):,} files stay staged on {branch!r}; run the same command again "
                f"for the rest, or discard them with: refstore reset {repo.name} {branch}",
                file=sys.stderr,
            )
        raise
    return {"objects": objects, "size_bytes": stored}


def _upload_batches(
    repo: Repository,
    branch: str,
    files: list[tuple[str, SourceFile]],
    *,
    metadata: dict[str, str],
    content_type: str,
) -> Iterator[Entry]:
    with progress("uploading", total=len(files)) as bar:
        for batch in _batches(files):
            uploads = [
                Upload(
                    path=path, body=file.chunks(), metadata=metadata, content_type=content_type, mtime_ms=file.mtime_ms
                )
                for path, file in batch
            ]
            bar.describe(batch[0][0][-60:])
            yield from repo.upload_many(branch, uploads)
            bar.advance(len(batch))


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
