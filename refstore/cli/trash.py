"""The commands for lost objects: list those that can still be restored, and restore them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import typer

from refstore.cli.common import emit, invocation_of, repository_of, tell_some
from refstore.cli.errors import exit_code
from refstore.cli.parameters import Name, Prefix, Recursive
from refstore.cli.rows import entry_details, format_when
from refstore.core.ids import Address, is_own, object_path
from refstore.core.units import sum_sizes
from refstore.errors import BranchNotFound, Conflict, ObjectNotFound
from refstore.operations.restore import RestoreOutcome, RestoreResult
from refstore.repository import Repository

app = typer.Typer()


@app.command("trash")
def trash(
    ctx: typer.Context,
    repo_name: Name,
    branch: Annotated[
        str | None, typer.Option("--from", metavar="BRANCH", help="Only objects that were on this branch.")
    ] = None,
    prefix: Prefix = "",
) -> None:
    """List lost objects that are not deleted yet: those that `refstore restore` can restore.

    Without a time of deletion, the grace window has not begun: it begins when the reaper processes the object.

    \b
    Example: refstore trash sales --prefix 2026/
             refstore trash sales --from try
    """
    with repository_of(ctx, repo_name, read_only=True) as repo:
        emit(
            ctx,
            (
                {
                    "path": item.path,
                    "branch": item.branch,
                    "size_bytes": item.entry.size_bytes if item.entry else None,
                    "cause": item.cause,
                    "since": format_when(item.since),
                    "deletes_at": format_when(item.deletes_at),
                    "address": item.address,
                }
                for item in repo.list_trash(branch=branch, prefix=prefix)
            ),
        )


@app.command("restore")
def restore(
    ctx: typer.Context,
    repo_name: Name,
    what: Annotated[str, typer.Argument(metavar="ADDRESS|PATH", help="One object; default: all.")] = "",
    *,
    branch: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="BRANCH", help="What was lost on this branch, even if it was deleted; default: of --to."
        ),
    ] = None,
    to: Annotated[
        str, typer.Option("--to", metavar="BRANCH", help="The branch that gets it back; default: that of --from.")
    ] = "",
    path: Annotated[str, typer.Option("--as", metavar="PATH", help="With an ADDRESS: its new path.")] = "",
    recursive: Recursive = False,
    force: Annotated[bool, typer.Option("--force", help="Replace what was written since.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be restored, and change nothing.")
    ] = False,
) -> None:
    """Restore what `refstore trash` lists: an address, a path, all below a prefix, or all that a branch lost.

    An object returns to the branch of --to, at its old path; an ADDRESS may go to another path, by --as. For a path,
    the version that was lost last is restored. For a prefix or a branch, overwritten versions are not.
    A path that was written since is skipped with a warning, unless you give --force.

    \b
    Example: refstore restore sales 2026/11/21.csv --to main
             refstore restore sales 2026/ -r --to main --dry-run
             refstore restore sales --from try --to main
             refstore restore sales data/2026112107/01jd3v... --to main --as 2026/11/21.csv
    """
    target = to or branch
    if not target or not (what or recursive or branch):
        ctx.fail("say what to restore: an ADDRESS or PATH with --to BRANCH, or --from BRANCH for all that it lost")
    with repository_of(ctx, repo_name) as repo:
        if not to and all(each.name != branch for each in repo.branches(prefix=target)):
            raise BranchNotFound(
                f"branch {branch!r} does not exist; say where to restore its objects: refstore restore "
                f"{repo_name} --from {branch} --to BRANCH"
            )
        is_one = what and not recursive
        if is_one and is_own(Address(what)):
            emit(ctx, _restored_row(repo.restore(what, to=target, path=path or None, force=force, dry_run=dry_run)))
        elif path:
            ctx.fail("--as goes with an ADDRESS; a PATH is restored where it was")
        elif is_one:
            emit(ctx, _restored_row(_restore_path(repo, target, branch, what, force=force, dry_run=dry_run)))
        else:
            results = repo.restore_many(branch or target, to=target, prefix=what, force=force, dry_run=dry_run)
            if dry_run:
                emit(ctx, (_planned_row(item) for item in results))
            else:
                _tell(ctx, target, results)


def _restore_path(
    repo: Repository, target: str, lost_on: str | None, path: str, *, force: bool, dry_run: bool
) -> RestoreResult:
    """Restore the version that was lost last. Raises the error that prevented it; ObjectNotFound if nothing was lost at
    the path.
    """
    results = repo.restore_many(lost_on or target, to=target, path=path, force=force, dry_run=dry_run)
    for item in results:
        if item.error is not None:
            raise item.error
        if item.outcome is not RestoreOutcome.OLDER:
            return item
    current_entry = repo.stat_many(target, [path]).get(path)
    if current_entry is None:
        raise ObjectNotFound(
            f"nothing that was lost at {path!r} on {lost_on or target!r} can be restored; see: refstore trash "
            f"{repo.name}"
        )
    return RestoreResult(current_entry.address, object_path(path), current_entry, RestoreOutcome.UNCHANGED)


def _restored_row(item: RestoreResult) -> dict[str, object]:
    assert item.entry is not None  # noqa: S101  # what was not restored raised
    return {**entry_details(item.entry), "outcome": item.outcome.value}


def _planned_row(item: RestoreResult) -> dict[str, object]:
    size = item.entry.size_bytes if item.entry is not None else None
    return {"path": item.path, "size_bytes": size, "outcome": item.outcome.value, "address": item.address}


def _tell(ctx: typer.Context, target: str, results: Sequence[RestoreResult]) -> None:
    """Print how many objects had each outcome, and warn about those that failed; then end the command with 4."""
    counts = Counter(item.outcome for item in results)
    failed = [item for item in results if item.error is not None]
    answer: dict[str, object] = {
        "branch": target,
        **{each.value.replace(" ", "_"): counts[each] for each in RestoreOutcome},
    }
    answer["size_bytes"] = sum_sizes(
        item.entry.size_bytes for item in results if item.entry is not None and item.outcome is RestoreOutcome.RESTORED
    )
    if invocation_of(ctx).json:
        answer["left"] = [{**_planned_row(item), "reason": str(item.error)} for item in failed]
    emit(ctx, answer)
    if failed:
        tell_some([f"refstore: warning: {item.error}" for item in failed])
        raise typer.Exit(exit_code(Conflict))
