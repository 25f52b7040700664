"""The commands for commits: make, list, show and compare them, merge, and apply their changes again or backwards."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from itertools import islice
from typing import Annotated, Literal

import typer

from refstore.cli.common import emit, invocation_of, repository_of, tell_some
from refstore.cli.parameters import (
    AllowEmpty,
    Branch,
    Committer,
    Date,
    Limit,
    MaybeRef,
    Message,
    Meta,
    Name,
    Prefix,
    Ref,
)
from refstore.cli.rows import change_row, commit_row, format_when, lifetime_words, logged_row, pairs, parse_date
from refstore.core.units import sum_sizes
from refstore.errors import Gone, MergeConflict
from refstore.operations.log_and_diff import BEING_SWEPT, PARTLY_READABLE, LogEntry, changes_of, has_changed_paths
from refstore.public_types import Commit, PathChange, stored_commit
from refstore.versioning.commits.path_filter import PathFilter
from refstore.versioning.commits.tree_diff import EntryChange

app = typer.Typer()

Parent = Annotated[int, typer.Option(min=0, metavar="N", help="Of a merge commit: the parent to compare with, from 1.")]


@app.command("commit")
def commit(
    ctx: typer.Context,
    repo_name: Name,
    branch: Branch,
    *,
    message: Message,
    committer: Committer = "",
    meta: Meta = None,
    date: Date = None,
    allow_empty: AllowEmpty = False,
) -> None:
    """Commit what is staged on a branch.

    \b
    Example: refstore commit sales main -m "sales of 21 November" --meta source=till
    """
    with repository_of(ctx, repo_name) as repo:
        new = repo.commit(
            branch,
            message,
            committer=committer,
            metadata=pairs(meta),
            date=parse_date(date),
            allow_empty=allow_empty,
        )
        _emit_commit(ctx, branch, new)


def _emit_commit(ctx: typer.Context, branch: str, new: Commit) -> None:
    emit(ctx, {"branch": branch, **commit_row(new)})


@app.command("log")
def log(
    ctx: typer.Context,
    repo_name: Name,
    ref: MaybeRef = "",
    path: Annotated[str, typer.Argument(metavar="PATH", help="Only commits that changed it, or below it.")] = "",
    limit: Limit = 1000,
    first_parent: Annotated[
        bool, typer.Option("--first-parent", help="Follow first parents only; leave out what merges brought in.")
    ] = False,
) -> None:
    """List a ref's commits, newest first, and which of them have expired. Without REF: the default branch.

    With PATH it lists only the commits that changed that path, or a path below it if it ends in a slash.

    \b
    Example: refstore log sales main --limit 5
             refstore log sales main 2026/11/21.csv
    """
    with repository_of(ctx, repo_name, read_only=True) as repo:
        history = repo.history(ref or repo.default_branch, first_parent=first_parent)
        if path:
            only = PathFilter(prefixes=[path]) if path.endswith("/") else PathFilter(paths=[path])
            history = (line for line in history if has_changed_paths(repo.context, stored_commit(line.commit), only))
        row = logged_row if invocation_of(ctx).output != "table" else _narrow_row
        emit(ctx, (row(line) for line in islice(history, limit or None)))


def _narrow_row(line: LogEntry) -> dict[str, object]:
    """Return a commit for people, with the first line of its message; `show` and JSON have all of it."""
    row = commit_row(line.commit)
    goes = line.mark.deletes_at if line.mark and line.mark.swept is None else None
    return {
        "commit": line.commit.id,
        "date": row["date"],
        "committer": row["committer"],
        "state": line.lifetime.value,
        "deletes_at": format_when(goes),
        "message": line.commit.message.strip().partition("\n")[0].rstrip(),
    }


@app.command("show")
def show(ctx: typer.Context, repo_name: Name, ref: MaybeRef = "") -> None:
    """Show a commit: who made it and when, the state of its data, and what it changed against its first parent.

    \b
    Example: refstore show sales main~1
             refstore show sales 6e40c9d1
    """
    with repository_of(ctx, repo_name, read_only=True) as repo:
        line = next(iter(repo.history(ref or repo.default_branch)))
        hidden: Gone | None = None
        changes: Iterable[EntryChange] = ()
        try:
            changes = changes_of(repo.context, line.commit.id)
        except Gone as error:
            hidden = error
        if invocation_of(ctx).output != "table":
            told = [change_row(change) for change in changes] if hidden is None else None
            emit(ctx, {**logged_row(line), "changes": told})
            return
        emit(ctx, {**commit_row(line.commit), "state": lifetime_words(line)})
        print()
        if hidden is not None:
            typer.echo(f"What it changed is hidden: {hidden}.")
            return
        _emit_statistics(ctx, changes)
        if line.lifetime in PARTLY_READABLE:
            gone = "is being deleted" if line.lifetime in BEING_SWEPT else "is gone"
            typer.echo(f"A part of its data {gone}: refstore ls {repo_name} {line.commit} lists what is left.")


@app.command("diff")
def diff(
    ctx: typer.Context,
    repo_name: Name,
    ref: Ref,
    *,
    to: Annotated[str, typer.Option("--to", metavar="REF", help="Another; default: what is staged on REF.")] = "",
    prefix: Prefix = "",
    summarize: Annotated[bool, typer.Option("--summarize", help="Sum up changes and bytes by folder instead.")] = False,
) -> None:
    """List what changed from REF's commit to that of --to; without --to, what is staged on the branch REF.

    \b
    Example: refstore diff sales main
             refstore diff sales main --to dev
    """
    with repository_of(ctx, repo_name, read_only=True) as repo:
        changes = repo.diff(ref, to=to or None, prefix=prefix)
        if summarize:
            _emit_statistics(ctx, changes)
        else:
            emit(ctx, (change_row(change) for change in changes))


def _emit_statistics(ctx: typer.Context, changes: Iterable[EntryChange | PathChange]) -> None:
    """Print how many paths changed in each folder, and the bytes that came and went."""
    sums: dict[str, dict[str, int]] = {}
    for change in changes:
        folder = f"{change.path.rpartition('/')[0]}/" if "/" in change.path else "(top)"
        own = sums.setdefault(folder, dict.fromkeys(("added", "changed", "removed", "bytes"), 0))
        own[change.kind.value] += 1
        came, went = (entry.size_bytes if entry else 0 for entry in (change.right, change.left))
        own["bytes"] = sum_sizes((own["bytes"], came, -went))
    emit(ctx, [{**counts, "folder": folder} for folder, counts in sorted(sums.items())])


@app.command("merge")
def merge(
    ctx: typer.Context,
    repo_name: Name,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The branch, tag or commit to merge.")],
    *,
    branch: Annotated[str, typer.Option("--into", metavar="BRANCH", help="The branch that it is merged into.")],
    message: Message = "",
    strategy: Annotated[
        Literal["", "dest-wins", "source-wins"],
        typer.Option(
            metavar="dest-wins|source-wins", help="Decide conflicts, of tables by whole logs; default: report them."
        ),
    ] = "",
    squash: Annotated[bool, typer.Option("--squash", help="Make one commit with one parent.")] = False,
    committer: Committer = "",
    meta: Meta = None,
    date: Date = None,
    allow_empty: AllowEmpty = False,
) -> None:
    """Merge a ref into a branch, three-way. After a conflict nothing is changed, and the paths are listed.

    \b
    Example: refstore merge sales dev --into main
             refstore merge sales dev --into main --strategy source-wins -m "take dev's"
    """
    with repository_of(ctx, repo_name) as repo:
        with _showing_conflicts(ctx):
            new = repo.merge(
                source,
                into=branch,
                message=message,
                strategy=strategy,
                squash=squash,
                committer=committer,
                metadata=pairs(meta),
                date=parse_date(date),
                allow_empty=allow_empty,
            )
        _emit_commit(ctx, branch, new)


@contextmanager
def _showing_conflicts(ctx: typer.Context) -> Generator[None, None, None]:
    """Print the paths of a conflict that the block raises; with --json the error contains them."""
    try:
        yield
    except MergeConflict as conflict:
        if not invocation_of(ctx).json:
            tell_some([f"conflict: {path!r}" for path in conflict.paths])
        raise


OnBranch = Annotated[str, typer.Option("--on", metavar="BRANCH", help="The branch that gets the new commit.")]
OntoBranch = Annotated[str, typer.Option("--onto", metavar="BRANCH", help="The branch that gets the new commit.")]


@app.command("revert")
def revert(
    ctx: typer.Context,
    repo_name: Name,
    ref: Ref,
    *,
    branch: OnBranch,
    parent: Parent = 0,
    message: Message = "",
    committer: Committer = "",
    allow_empty: AllowEmpty = False,
) -> None:
    """Undo a commit by a new one on top of a branch.

    \b
    Example: refstore revert sales main~1 --on main
    """
    with repository_of(ctx, repo_name) as repo:
        with _showing_conflicts(ctx):
            new = repo.revert(
                ref, on=branch, parent=parent, message=message, committer=committer, allow_empty=allow_empty
            )
        _emit_commit(ctx, branch, new)


@app.command("cherry-pick")
def cherry_pick(
    ctx: typer.Context,
    repo_name: Name,
    ref: Ref,
    *,
    branch: OntoBranch,
    parent: Parent = 0,
    message: Message = "",
    committer: Committer = "",
    allow_empty: AllowEmpty = False,
) -> None:
    """Apply a commit's changes again on top of a branch.

    \b
    Example: refstore cherry-pick sales dev~1 --onto main
    """
    with repository_of(ctx, repo_name) as repo:
        with _showing_conflicts(ctx):
            new = repo.cherry_pick(
                ref, onto=branch, parent=parent, message=message, committer=committer, allow_empty=allow_empty
            )
        _emit_commit(ctx, branch, new)
