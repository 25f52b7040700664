"""`refstore import`: data of others, named in one commit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote

import typer

from refstore.cli.adding import Meta
from refstore.cli.common import emit, invocation_of, progress, repository_of
from refstore.cli.destroying import DryRun
from refstore.cli.places import PlacedCommand, is_location, location, place, words
from refstore.cli.shapes import pairs
from refstore.flows.importing import Imported
from refstore.records import ImportSource

app = typer.Typer()

FORM: Final = "REPO BRANCH SOURCE DESTINATION"
_URL: Final = re.compile(r"[a-z][a-z0-9]*://")


@app.command("import", cls=PlacedCommand)
def import_(
    ctx: typer.Context,
    given: Annotated[list[str], place(FORM)],
    *,
    message: Annotated[str, typer.Option("--message", "-m", metavar="TEXT", help="The commit's message.")] = "",
    is_object: Annotated[bool, typer.Option("--object", help="SOURCE is one object, and DESTINATION its path.")] = False,
    committer: Annotated[str, typer.Option(metavar="TEXT", help="Who commits.")] = "",
    meta: Meta = None,
    allow_empty: Annotated[bool, typer.Option("--allow-empty", help="Also commit where nothing changes.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Name all objects of a folder or an S3 prefix on a branch, in one commit, without reading or copying their data.

    SOURCE is a folder, file:///folder or s3://bucket/prefix/. What is at DESTINATION, taken as a folder, is replaced as a whole: paths
    that SOURCE does not have are gone from the branch (the commit can be reverted); "" is the whole branch. What was imported
    belongs to others: refstore reads it where it lies, and never deletes it. Nothing may be staged on the branch.

    An import that is interrupted has changed nothing; make the same call again.

    \b
    Example: refstore import sales main /srv/landing/2026/ raw/2026/ -m "landing zone" --dry-run
             refstore import sales main s3://archive/2019/ old/2019/ -m "the archive" --meta ticket=42
             refstore import sales main s3://archive/notes.txt docs/notes.txt --object
    """
    repo_name, branch, source, destination = _words(ctx, given)
    if is_object and not destination:
        ctx.fail("an object needs a DESTINATION, its path")
    found = ImportSource(source if _URL.match(source) else _file_url(source), destination, is_object)
    with repository_of(ctx, repo_name) as repo, progress("listing") as bar:
        told = 0

        def watch(objects: int, skipped: int) -> None:
            nonlocal told
            bar.advance(objects - told)
            told = objects
            bar.describe(f"listing, {skipped} left out" if skipped else "listing")

        done = repo.import_objects(
            branch,
            [found],
            message or f"Import {source}",
            committer=committer,
            metadata=pairs(meta),
            allow_empty=allow_empty,
            dry_run=dry_run,
            watch=watch,
        )
    emit(ctx, _answer(done, branch, destination, whole=invocation_of(ctx).json))


def _words(ctx: typer.Context, given: list[str]) -> list[str]:
    """(repository, branch, source, destination): a location holds the destination, and the source comes behind it."""
    if not is_location(given[0]):
        return words(ctx, given, FORM)
    target = location(given[0]).path
    front = given[0].removesuffix(target)
    return words(ctx, [front, *given[1:], target] if target and len(given) > 1 else [front, *given[1:]], FORM)


def _file_url(path: str) -> str:
    return "file://" + quote(str(Path(path).expanduser().absolute()))


def _answer(done: Imported, branch: str, destination: str, *, whole: bool) -> dict[str, object]:
    answer: dict[str, object] = {
        "branch": branch,
        "destination": destination,
        "commit": done.commit,
        "objects": done.objects,
        "size_bytes": done.size_bytes,
        "were_there": done.there,
        "removed": done.removed,
        "left_out": done.skipped,
    }
    examples = [{"name": name, "reason": reason} for name, reason in done.examples]
    if whole:
        return answer | {"left_out_examples": examples}
    return answer | {f"left out: {each['name']}": each["reason"] for each in examples}
