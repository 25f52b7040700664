"""Commands that add data: upload, stage, issue, link."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import unquote, urlsplit

import typer

from refstore.cli.common import emit, progress, repository_of
from refstore.cli.files import SourceFile, local_errors, source_file, tree
from refstore.cli.places import PlacedCommand, place, words, words_with_target
from refstore.cli.shapes import entry_details, pairs, when
from refstore.core.batches import batched
from refstore.core.file_modes import make_folder
from refstore.core.ids import SIZE_BYTES_MAX, object_path
from refstore.core.records import Entry
from refstore.errors import Invalid
from refstore.objects.base import CHUNK_BYTES
from refstore.operations.uploading import Upload
from refstore.repository import Repository

app = typer.Typer()

BATCH_FILES: Final = 200
STATS_AT_ONCE: Final = 1000
BATCH_BYTES: Final = 64 << 20
"""The bounds of one call; its files share its round trips and its deadline."""

Meta = Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Metadata; may be given several times.")]
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
            files = _chosen(Path(source), target, include or [], exclude or [])
            new = files if everything else _unlike_the_branch(repo, branch, files)
            if dry_run:
                emit(ctx, ({"path": path, "size_bytes": file.size_bytes, "file": str(file.file)} for path, file in new))
            else:
                done = _upload_tree(repo, branch, new, metadata=pairs(meta), content_type=content_type)
                emit(ctx, {"branch": branch, "prefix": target, **done, "unchanged": len(files) - len(new)})
        elif source == "-":
            if not target or target.endswith("/"):
                ctx.fail("standard input has no name; give DST")
            chunks = iter(lambda: sys.stdin.buffer.read(CHUNK_BYTES), b"")
            emit(
                ctx,
                entry_details(
                    target, repo.upload(branch, target, chunks, metadata=pairs(meta), content_type=content_type)
                ),
            )
        else:
            file = source_file(Path(source))
            path = target + file.file.name if not target or target.endswith("/") else target
            entry = repo.upload(
                branch, path, file.chunks(), metadata=pairs(meta), content_type=content_type, mtime_ms=file.mtime_ms
            )
            emit(ctx, entry_details(path, entry))


@app.command("stage", cls=PlacedCommand)
def stage(
    ctx: typer.Context,
    arguments: Annotated[list[str], place("REPO BRANCH PATH URL")],
    size_bytes: Annotated[int, typer.Option(min=0, max=SIZE_BYTES_MAX, metavar="N", help="Its size in bytes.")],
    checksum: Annotated[str, typer.Option(metavar="TEXT", help="A checksum of its content.")] = "",
    meta: Meta = None,
) -> None:
    """Stage an object outside the repository's namespace. refstore never deletes it.

    \b
    Example: refstore stage sales main old/2019.csv s3://archive/2019.csv --size-bytes 1048576
    """
    repo_name, branch, path, url = words(ctx, arguments, "REPO BRANCH PATH URL")
    with repository_of(ctx, repo_name) as repo:
        emit(
            ctx,
            entry_details(
                path, repo.stage(branch, path, url, size_bytes=size_bytes, checksum=checksum, metadata=pairs(meta))
            ),
        )


@app.command("issue", cls=PlacedCommand)
def issue(ctx: typer.Context, arguments: Annotated[list[str], place("REPO BRANCH PATH")]) -> None:
    """Get a physical address for a writer outside refstore, and the token that links it once to this branch and path.

    Write the data to `url`, then run `refstore link`. If the store is a folder, write to `file`. If the store signs
    URLs, `put_url` needs no credentials. An address that is not linked before it expires is deleted.

    \b
    Example: refstore issue sales main 2026/11/21.csv --json
    """
    repo_name, branch, path = words(ctx, arguments, "REPO BRANCH PATH")
    with repository_of(ctx, repo_name) as repo:
        issued = repo.issue(branch, path)
        url = f"{repo.context.objects.url.partition('?')[0].rstrip('/')}/{issued.address}"
        emit(
            ctx,
            {
                "path": issued.path,
                "address": issued.address,
                "url": url,
                "file": _local_file(url),
                "put_url": _put_url(repo, issued.address),
                "token": issued.token,
                "expires": when(issued.expires_ms),
            },
        )


@app.command("link", cls=PlacedCommand)
def link(
    ctx: typer.Context,
    arguments: Annotated[list[str], place("REPO BRANCH PATH")],
    *,
    token: Annotated[
        str, typer.Option(metavar="TOKEN", help="What `refstore issue` gave; '-' reads it from standard input.")
    ],
    size_bytes: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=SIZE_BYTES_MAX,
            metavar="N",
            help="The size written; the link is refused if the store differs.",
        ),
    ] = None,
    checksum: Annotated[str, typer.Option(metavar="TEXT", help="A checksum of its content.")] = "",
    meta: Meta = None,
) -> None:
    """Stage what was written to an issued address. A token links once.

    \b
    Example: refstore link sales main 2026/11/21.csv --token "$TOKEN"
    """
    repo_name, branch, path = words(ctx, arguments, "REPO BRANCH PATH")
    secret = sys.stdin.read().strip() if token == "-" else token  # noqa: S105  # standard input, not a password
    with repository_of(ctx, repo_name) as repo:
        entry = repo.link(branch, path, secret, size_bytes=size_bytes, checksum=checksum, metadata=pairs(meta))
        emit(ctx, entry_details(path, entry))


def _chosen(folder: Path, target: str, include: Sequence[str], exclude: Sequence[str]) -> list[tuple[str, SourceFile]]:
    """Return the files to upload with their paths. Every name is checked, so that one invalid name does not leave half
    a tree. Raises Invalid.
    """

    def matches(relative: str, globs: Sequence[str]) -> bool:
        return any(fnmatchcase(relative, glob) or fnmatchcase(relative.rpartition("/")[2], glob) for glob in globs)

    files = [
        (_below(target, relative), file)
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
    for batch in batched(files, STATS_AT_ONCE):
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
        for entry in _uploaded(repo, branch, files, metadata=metadata, content_type=content_type):
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


def _uploaded(
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


def _below(target: str, relative: str) -> str:
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


def _local_file(url: str) -> str | None:
    """Return the file to write if the store is a folder, and make the file's own folder."""
    if not url.startswith("file://"):
        return None
    file = Path(unquote(urlsplit(url).path))
    with local_errors():
        make_folder(file.parent)
    return str(file)


def _put_url(repo: Repository, address: str) -> str | None:
    """Return a presigned URL if the store has them."""
    seconds = max(1, int(repo.context.safety.issue_seconds))
    try:
        return repo.context.objects.presign_put(address, expires_seconds=seconds)
    except Invalid:
        return None
