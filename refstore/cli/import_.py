"""The command `refstore import`: stage foreign data in one commit."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from refstore.cli.common import emit, invocation_of, progress, repository_of, warn_of
from refstore.cli.foreign_places import url_of
from refstore.cli.locations import PlacedCommand, place, words_with_target
from refstore.cli.parameters import DryRun, Meta
from refstore.cli.rows import pairs
from refstore.objects.foreign_objects import parse_location
from refstore.operations.import_objects import ImportResult
from refstore.records.repository_records import ImportSource

app = typer.Typer()

FORM: Final = "REPO BRANCH SOURCE DESTINATION"


@app.command("import", cls=PlacedCommand)
def import_(
    ctx: typer.Context,
    arguments: Annotated[list[str], place(FORM)],
    *,
    message: Annotated[str, typer.Option("--message", "-m", metavar="TEXT", help="The commit's message.")] = "",
    is_object: Annotated[
        bool, typer.Option("--object", help="SOURCE is one object, and DESTINATION its path.")
    ] = False,
    committer: Annotated[str, typer.Option(metavar="TEXT", help="Who makes the commit.")] = "",
    meta: Meta = None,
    allow_empty: Annotated[bool, typer.Option("--allow-empty", help="Commit even if nothing changes.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Import all objects of a folder or an S3 prefix to a branch, in one commit, without reading or copying their data.

    SOURCE is a folder, file:///folder or s3://bucket/prefix/. The folder DESTINATION is replaced as a whole: paths that
    SOURCE does not have disappear from the branch (the commit can be reverted). "" is the whole branch. refstore reads
    imported objects where they are, if that is below a folder in the setting import_from, and never deletes them.
    Nothing may be staged on the branch.

    An import that is interrupted has changed nothing; make the same call again.

    \b
    Example: refstore import sales main /srv/landing/2026/ raw/2026/ -m "landing zone" --dry-run
             refstore import sales main s3://archive/2019/ old/2019/ -m "the archive" --meta ticket=42
             refstore import sales main s3://archive/notes.txt docs/notes.txt --object
    """
    repo_name, branch, source, destination = words_with_target(ctx, arguments, FORM)
    if is_object and not destination:
        ctx.fail("an object needs a DESTINATION, its path")
    import_source = ImportSource(url_of(source), destination, is_object)
    with repository_of(ctx, repo_name) as repo, progress("listing") as bar:
        reported = 0

        def watch(objects: int, skipped: int) -> None:
            nonlocal reported
            bar.advance(objects - reported)
            reported = objects
            bar.describe(f"listing, {skipped} left out" if skipped else "listing")

        imported = repo.import_objects(
            branch,
            [import_source],
            message or f"Import {source}",
            committer=committer,
            metadata=pairs(meta),
            allow_empty=allow_empty,
            dry_run=dry_run,
            watch=watch,
        )
        listed = parse_location(import_source.url + "/" * (not is_object and import_source.url.startswith("file:")))
        if repo.context.foreign.allowed.find_covering(listed) is None:
            advice = "put it, or a folder above it, into the setting import_from, or read it with --allow-foreign"
            warn_of([f"{source} is named, and cannot be read yet: {advice}"])
    emit(ctx, _answer(imported, branch, destination, whole=invocation_of(ctx).json))


def _answer(imported: ImportResult, branch: str, destination: str, *, whole: bool) -> dict[str, object]:
    answer: dict[str, object] = {
        "branch": branch,
        "destination": destination,
        "commit": imported.commit,
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
