"""What was lost and can still be taken back: trash, restore."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from refstore.cli.common import emit, invocation_of, repository_of
from refstore.cli.errors import exit_code
from refstore.cli.places import PlacedCommand, place, words
from refstore.cli.shapes import entry_details, when
from refstore.errors import BranchNotFound, Conflict, ObjectNotFound
from refstore.flows.restoring import Outcome, Restored
from refstore.ids import Address, is_own, object_path
from refstore.repository import Repository

app = typer.Typer()

LEFT_SHOWN: Final = 20


@app.command("trash")
def trash(
    ctx: typer.Context,
    repo_name: Annotated[str, typer.Argument(metavar="REPO")],
    branch: Annotated[str | None, typer.Option(metavar="NAME", help="Only what was on this branch.")] = None,
    prefix: Annotated[str, typer.Option(help="Only paths that start with this.")] = "",
) -> None:
    """List what lost its last name and is not deleted yet: what `refstore restore` can take back.

    Where no time of deletion is given, the reaper has not passed yet: the grace window begins when it does.

    \b
    Example: refstore trash sales --prefix 2026/
    """
    with repository_of(ctx, repo_name) as repo:
        emit(
            ctx,
            (
                {
                    "path": item.path,
                    "branch": item.branch,
                    "size_bytes": item.entry.size_bytes if item.entry else None,
                    "cause": item.cause,
                    "since": when(item.since_ms),
                    "deletes_at": when(item.deletes_at_ms),
                    "address": item.address,
                }
                for item in repo.in_grace(branch=branch, prefix=prefix)
            ),
        )


@app.command("restore", cls=PlacedCommand)
def restore(
    ctx: typer.Context,
    given: Annotated[list[str], place("REPO [BRANCH] [ADDRESS|PATH] [TO]")],
    *,
    branch: Annotated[str | None, typer.Option(metavar="NAME", help="What was lost on this branch, which may be deleted.")] = None,
    prefix: Annotated[str | None, typer.Option(metavar="TEXT", help="What was lost at paths that start with this.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Also over what was written since.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be restored, and change nothing.")] = False,
) -> None:
    """Take back what `refstore trash` lists: an address, a path, all below a prefix, or all that a branch lost.

    It is put on BRANCH (left out: the one that --branch names), at the path that it had; an address also at another, TO. Of a
    path the version that was lost last comes back; of a prefix or branch, what was only overwritten does not. What was written
    since is left, and told, unless --force is given.

    \b
    Example: refstore restore sales main 2026/11/21.csv
             refstore restore sales main --prefix 2026/ --dry-run
             refstore restore sales main --branch try
             refstore restore sales main data/2026112107/01jd3v... 2026/11/21.csv
    """
    repo_name, to, what, path = words(ctx, given, "REPO [BRANCH] [ADDRESS|PATH] [TO]")
    target = to or branch
    if not target or (what, prefix, branch) == ("", None, None):
        ctx.fail("say what to restore: a BRANCH and an ADDRESS or PATH, or --prefix, or --branch")
    if what and prefix is not None:
        ctx.fail("give an ADDRESS or PATH, or --prefix, not both")
    with repository_of(ctx, repo_name) as repo:
        if not to and all(name != branch for name, _ in repo.branches(prefix=target)):
            raise BranchNotFound(
                f"branch {branch!r} is not there; say where to put what it lost: refstore restore {repo_name} BRANCH --branch {branch}"
            )
        if what and is_own(Address(what)):
            emit(ctx, _restored_row(repo.restore_and_tell(target, what, path or None, force=force, dry_run=dry_run)))
        elif path:
            ctx.fail("TO goes with an ADDRESS; a PATH is restored where it was")
        elif what:
            emit(ctx, _restored_row(_restore_path(repo, target, branch, what, force=force, dry_run=dry_run)))
        else:
            done = repo.restore_many(target, lost_on=branch, prefix=prefix or "", force=force, dry_run=dry_run)
            if dry_run:
                emit(ctx, (_planned_row(item) for item in done))
            else:
                _tell(ctx, target, done)


def _restore_path(repo: Repository, target: str, lost_on: str | None, path: str, *, force: bool, dry_run: bool) -> Restored:
    """The one that was lost last. Raises what kept it from being restored; ObjectNotFound where nothing was lost at the path."""
    done = repo.restore_many(target, lost_on=lost_on, path=path, force=force, dry_run=dry_run)
    for item in done:
        if item.error is not None:
            raise item.error
        if item.outcome is not Outcome.OLDER:
            return item
    there = repo.stat_many(target, [path]).get(path)
    if there is None:
        raise ObjectNotFound(f"nothing that was lost at {path!r} on {lost_on or target!r} can be restored; see: refstore trash {repo.name}")
    return Restored(there.address, object_path(path), there, Outcome.UNCHANGED)


def _restored_row(item: Restored) -> dict[str, object]:
    assert item.entry is not None  # noqa: S101  # what was not restored raised
    return {**entry_details(item.path, item.entry), "outcome": item.outcome.value}


def _planned_row(item: Restored) -> dict[str, object]:
    size = item.entry.size_bytes if item.entry is not None else None
    return {"path": item.path, "size_bytes": size, "outcome": item.outcome.value, "address": item.address}


def _tell(ctx: typer.Context, target: str, done: Sequence[Restored]) -> None:
    """How many came to what; what was left although it was lost is named, and ends the command with 4."""
    counts = Counter(item.outcome for item in done)
    left = [item for item in done if item.error is not None]
    answer: dict[str, object] = {"branch": target, **{each.value.replace(" ", "_"): counts[each] for each in Outcome}}
    answer["size_bytes"] = sum(item.entry.size_bytes for item in done if item.entry is not None and item.outcome is Outcome.RESTORED)
    if invocation_of(ctx).json:
        answer["left"] = [{**_planned_row(item), "reason": str(item.error)} for item in left]
    emit(ctx, answer)
    if left:
        for item in left[:LEFT_SHOWN]:
            print(f"refstore: warning: {item.error}", file=sys.stderr)
        if len(left) > LEFT_SHOWN:
            print(f"refstore: warning: ... and {len(left) - LEFT_SHOWN} more; --json lists them", file=sys.stderr)
        raise typer.Exit(exit_code(Conflict))
