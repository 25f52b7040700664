"""The commands for objects that others wrote: import what lies outside the lake; issue an address, and link
what was written to it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote, urlsplit

import typer

from refstore.cli.common import emit, invocation_of, progress, repository_of, warn_of
from refstore.cli.files import local_errors
from refstore.cli.foreign_places import url_of
from refstore.cli.parameters import (
    AllowEmpty,
    Branch,
    Checksum,
    Committer,
    Date,
    DryRun,
    Message,
    Meta,
    Name,
    ObjectPath,
)
from refstore.cli.rows import entry_details, format_when, pairs, parse_date
from refstore.core.file_modes import make_folder
from refstore.core.ids import SIZE_BYTES_MAX
from refstore.errors import Invalid
from refstore.objects.foreign_objects import parse_location
from refstore.operations.commit import CommitDetails
from refstore.records.repository_records import ImportSource
from refstore.repository import Repository

if TYPE_CHECKING:
    from refstore.operations.import_objects import ImportResult

app = typer.Typer()


def _size_option(help_: str) -> Any:
    return typer.Option("--size", min=0, max=SIZE_BYTES_MAX, metavar="N", help=help_)


@app.command("import")
def import_(
    ctx: typer.Context,
    repo_name: Name,
    branch: Branch,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A folder, file:///folder or s3://bucket/prefix/.")],
    destination: Annotated[str, typer.Argument(metavar="DESTINATION", help='The folder for it; "": the whole branch.')],
    *,
    is_object: Annotated[
        bool, typer.Option("--object", help="SOURCE is one object, and DESTINATION its path.")
    ] = False,
    stage: Annotated[
        bool,
        typer.Option("--stage", help="As --object, but only stage it, without looking at it; with --size."),
    ] = False,
    size: Annotated[int | None, _size_option("With --stage: its size in bytes.")] = None,
    checksum: Checksum = "",
    message: Message = "",
    committer: Committer = "",
    meta: Meta = None,
    date: Date = None,
    allow_empty: AllowEmpty = False,
    dry_run: DryRun = False,
) -> None:
    """Import all objects of a folder or an S3 prefix to a branch, in one commit, without reading or copying their data.

    The folder DESTINATION is replaced as a whole: paths that SOURCE does not have disappear from the branch (the commit
    can be reverted). refstore reads imported objects where they are, if that is below a folder in the setting
    import_from, and never deletes them. Nothing may be staged on the branch.

    An import that is interrupted has changed nothing; make the same call again.

    With --stage it makes no commit: it stages one object of a known size, and --meta and --checksum are the object's.
    The object may be anywhere, also where refstore cannot read it. A commit is made later, by `refstore commit`.

    \b
    Example: refstore import sales main /srv/landing/2026/ raw/2026/ -m "landing zone" --dry-run
             refstore import sales main s3://archive/2019/ old/2019/ -m "the archive" --meta ticket=42
             refstore import sales main s3://archive/notes.txt docs/notes.txt --object
             refstore import sales main gs://archive/2019.csv old/2019.csv --stage --size 1048576
    """
    if (is_object or stage) and not destination:
        ctx.fail("an object needs a DESTINATION, its path")
    if stage:
        if size is None or message or date or allow_empty or dry_run:
            ctx.fail("--stage needs --size, and takes no option of a commit and no --dry-run")
        with repository_of(ctx, repo_name) as repo:
            url, metadata = url_of(source), pairs(meta)
            entry = repo.stage(branch, destination, url, size_bytes=size, checksum=checksum, metadata=metadata)
            emit(ctx, entry_details(entry))
        return
    if size is not None or checksum:
        ctx.fail("--size and --checksum are for --stage; without it the store says them")
    details = CommitDetails(committer=committer, metadata=pairs(meta), date=parse_date(date), allow_empty=allow_empty)
    import_source = ImportSource(url_of(source), destination, is_object)
    with repository_of(ctx, repo_name) as repo:
        imported = _import(repo, branch, import_source, message or f"Import {source}", details, dry_run=dry_run)
        _warn_of_unreadable(repo, source, import_source)
    emit(ctx, _import_answer(imported, branch, destination, whole=invocation_of(ctx).json))


def _import(
    repo: Repository, branch: str, source: ImportSource, message: str, details: CommitDetails, *, dry_run: bool
) -> ImportResult:
    """Import what lies at the source, and show the progress of its listing."""
    reported = 0

    def watch(objects: int, skipped: int) -> None:
        nonlocal reported
        bar.advance(objects - reported)
        reported = objects
        bar.describe(f"listing, {skipped} left out" if skipped else "listing")

    with progress("listing") as bar:
        return repo.import_objects(branch, [source], message, dry_run=dry_run, watch=watch, **details)


def _warn_of_unreadable(repo: Repository, shown: str, source: ImportSource) -> None:
    """Warn if the settings do not let anybody read what was imported."""
    listed = parse_location(source.url + "/" * (not source.is_object and source.url.startswith("file:")))
    if repo.context.foreign.allowed.find_covering(listed) is None:
        advice = "put it, or a folder above it, into the setting import_from, or read it with --allow-foreign"
        warn_of([f"{shown} is named, and cannot be read yet: {advice}"])


def _import_answer(imported: ImportResult, branch: str, destination: str, *, whole: bool) -> dict[str, object]:
    answer: dict[str, object] = {
        "branch": branch,
        "destination": destination,
        "commit": imported.commit.id if imported.commit is not None else None,
        "objects": imported.objects,
        "size_bytes": imported.size_bytes,
        "existing_paths": imported.existing_paths,
        "removed_paths": imported.removed_paths,
        "skipped_objects": imported.skipped_objects,
    }
    examples = [{"name": name, "reason": reason} for name, reason in imported.skipped_examples]
    if whole:
        return answer | {"skipped_examples": examples}
    return answer | {f"left out: {each['name']}": each["reason"] for each in examples}


@app.command("issue")
def issue(ctx: typer.Context, repo_name: Name, branch: Branch, path: ObjectPath) -> None:
    """Get a physical address for a writer outside refstore, and the token that links it once to this branch and path.

    Write the data to `url`, then run `refstore link`. If the store is a folder, write to `file`. If the store signs
    URLs, `put_url` needs no credentials. An address that is not linked before it expires is deleted.

    \b
    Example: refstore issue sales main 2026/11/21.csv --json
    """
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
                "expires": format_when(issued.expires),
            },
        )


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


@app.command("link")
def link(
    ctx: typer.Context,
    repo_name: Name,
    branch: Branch,
    path: ObjectPath,
    *,
    token: Annotated[
        str, typer.Option(metavar="TOKEN", help="What `refstore issue` gave; '-' reads it from standard input.")
    ],
    size: Annotated[int | None, _size_option("The bytes written; the link is refused if the store differs.")] = None,
    checksum: Checksum = "",
    meta: Meta = None,
) -> None:
    """Stage what was written to an issued address. A token links once.

    \b
    Example: refstore link sales main 2026/11/21.csv --token "$TOKEN"
    """
    secret = sys.stdin.read().strip() if token == "-" else token  # noqa: S105  # standard input, not a password
    with repository_of(ctx, repo_name) as repo:
        entry = repo.link(branch, path, secret, size_bytes=size, checksum=checksum, metadata=pairs(meta))
        emit(ctx, entry_details(entry))
