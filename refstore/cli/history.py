"""Commands of history: commit, log, diff, merge, revert, cherry-pick."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from itertools import islice
from typing import Annotated, Final, Literal

import typer

from refstore.cli.common import emit, invocation_of, repository_of
from refstore.cli.places import PlacedCommand, place, words
from refstore.cli.shapes import commit_row, lifetime_words, logged_row, milliseconds, pairs, when
from refstore.cli.tables import ID_CHARACTERS, shown
from refstore.core.units import sum_of_sizes
from refstore.errors import Gone, MergeConflict
from refstore.operations.committing import CommitInfo
from refstore.operations.log_and_diff import READABLE_IN_PART, LogEntry, changed, changes_of
from refstore.versioning.commits.diffing import Change
from refstore.versioning.commits.filters import PathFilter

app = typer.Typer()

CONFLICTS_SHOWN: Final = 20

Message = Annotated[str, typer.Option("--message", "-m", metavar="TEXT", help="The commit's message.")]
Committer = Annotated[
    str, typer.Option(metavar="NAME", envvar="REFSTORE_COMMITTER", help="Who makes the commit.", show_envvar=True)
]
Meta = Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Metadata; may be given several times.")]
Date = Annotated[str | None, typer.Option(metavar="DATE", help="The commit's time, ISO 8601; default: now.")]
AllowEmpty = Annotated[bool, typer.Option("--allow-empty", help="Commit even if nothing changes.")]
Parent = Annotated[int, typer.Option(min=0, metavar="N", help="Of a merge commit: the parent to compare with, from 1.")]


@app.command("commit", cls=PlacedCommand)
def commit(
    ctx: typer.Context,
    arguments: Annotated[list[str], place("REPO BRANCH")],
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
    repo_name, branch = words(ctx, arguments, "REPO BRANCH")
    with repository_of(ctx, repo_name) as repo:
        new = repo.commit(
            branch,
            message,
            committer=committer,
            metadata=pairs(meta),
            date_ms=milliseconds(date),
            allow_empty=allow_empty,
        )
        _emit_commit(ctx, branch, new)


@app.command("log", cls=PlacedCommand)
def log(
    ctx: typer.Context,
    arguments: Annotated[list[str], place("REPO [REF] [PATH]")],
    amount: Annotated[int, typer.Option("--amount", "-n", min=1, metavar="N", help="How many at most.")] = 1000,
    first_parent: Annotated[
        bool, typer.Option("--first-parent", help="Follow first parents only; leave out what merges brought in.")
    ] = False,
    oneline: Annotated[bool, typer.Option("--oneline", help="One line a commit: its id and message.")] = False,
) -> None:
    """List a ref's commits, newest first, and which of them have expired. Without REF: the default branch.

    With PATH it lists only the commits that changed that path, or a path below it if it ends in a slash.

    \b
    Example: refstore log sales main -n 5
             refstore log sales main 2026/11/21.csv
             refstore log sales v1 --oneline
    """
    repo_name, ref, path = words(ctx, arguments, "REPO [REF] [PATH]")
    with repository_of(ctx, repo_name, only_read=True) as repo:
        history = repo.history(ref or repo.default_branch, first_parent=first_parent)
        if path:
            only = PathFilter(prefixes=[path]) if path.endswith("/") else PathFilter(paths=[path])
            history = (line for line in history if changed(repo.context, line.record, only))
        commits = islice(history, amount)
        if invocation_of(ctx).output != "table":
            emit(ctx, (logged_row(line) for line in commits))
        elif oneline:
            for line in commits:
                print(f"{line.commit[:ID_CHARACTERS]} {shown(_subject(line.record.message))}")
        else:
            emit(ctx, (_narrow(line) for line in commits))


@app.command("show", cls=PlacedCommand)
def show(ctx: typer.Context, arguments: Annotated[list[str], place("REPO [REF]")]) -> None:
    """Show a commit: who made it and when, the state of its data, and what it changed against its first parent.

    \b
    Example: refstore show sales main~1
             refstore show sales 6e40c9d1
    """
    repo_name, ref = words(ctx, arguments, "REPO [REF]")
    with repository_of(ctx, repo_name, only_read=True) as repo:
        line = next(iter(repo.history(ref or repo.default_branch)))
        hidden: Gone | None = None
        changes: Iterable[Change] = ()
        try:
            changes = changes_of(repo.context, line.commit)
        except Gone as error:
            hidden = error
        if invocation_of(ctx).output != "table":
            told = [change_row(change) for change in changes] if hidden is None else None
            emit(ctx, {**logged_row(line), "changes": told})
            return
        emit(ctx, {**commit_row(line.commit, line.record), "state": lifetime_words(line)})
        print()
        if hidden is not None:
            typer.echo(f"What it changed is hidden: {hidden}.")
        else:
            _emit_statistics(ctx, changes)
            if line.lifetime in READABLE_IN_PART:
                typer.echo(f"A part of its data is gone: refstore ls {repo_name} {line.commit} lists what is left.")


@app.command("diff", cls=PlacedCommand)
def diff(
    ctx: typer.Context,
    arguments: Annotated[list[str], place("REPO LEFT [RIGHT]")],
    prefix: Annotated[str, typer.Option(help="Only paths that start with this.")] = "",
    stat: Annotated[bool, typer.Option("--stat", help="Count the changes and their bytes by folder instead.")] = False,
) -> None:
    """List what changed from LEFT's commit to RIGHT's; with one branch, what is staged on it.

    \b
    Example: refstore diff sales main
             refstore diff sales main dev
    """
    repo_name, left, right = words(ctx, arguments, "REPO LEFT [RIGHT]")
    with repository_of(ctx, repo_name, only_read=True) as repo:
        changes = repo.diff(left, right or None, prefix=prefix)
        if stat:
            _emit_statistics(ctx, changes)
        else:
            emit(ctx, (change_row(change) for change in changes))


@app.command("merge", cls=PlacedCommand)
def merge(
    ctx: typer.Context,
    arguments: Annotated[list[str], place("REPO SOURCE BRANCH")],
    *,
    message: Message = "",
    strategy: Annotated[
        Literal["", "dest-wins", "source-wins"],
        typer.Option(metavar="dest-wins|source-wins", help="Decide conflicts; default: report them."),
    ] = "",
    squash: Annotated[bool, typer.Option("--squash", help="Make one commit with one parent.")] = False,
    committer: Committer = "",
    meta: Meta = None,
    date: Date = None,
    allow_empty: AllowEmpty = False,
) -> None:
    """Merge a ref into a branch, three-way. After a conflict nothing is changed, and the paths are listed.

    \b
    Example: refstore merge sales dev main
             refstore merge sales dev main --strategy source-wins -m "take dev's"
    """
    repo_name, source, branch = words(ctx, arguments, "REPO SOURCE BRANCH")
    with repository_of(ctx, repo_name) as repo:
        with _showing_conflicts(ctx):
            new = repo.merge(
                branch,
                source,
                message,
                strategy=strategy,
                squash=squash,
                committer=committer,
                metadata=pairs(meta),
                date_ms=milliseconds(date),
                allow_empty=allow_empty,
            )
        _emit_commit(ctx, branch, new)


@app.command("revert", cls=PlacedCommand)
def revert(
    ctx: typer.Context,
    arguments: Annotated[list[str], place("REPO BRANCH REF")],
    *,
    parent: Parent = 0,
    message: Message = "",
    committer: Committer = "",
    allow_empty: AllowEmpty = False,
) -> None:
    """Undo a commit by a new one on top of the branch.

    \b
    Example: refstore revert sales main main~1
    """
    repo_name, branch, ref = words(ctx, arguments, "REPO BRANCH REF")
    with repository_of(ctx, repo_name) as repo:
        with _showing_conflicts(ctx):
            new = repo.revert(branch, ref, parent=parent, message=message, committer=committer, allow_empty=allow_empty)
        _emit_commit(ctx, branch, new)


@app.command("cherry-pick", cls=PlacedCommand)
def cherry_pick(
    ctx: typer.Context,
    arguments: Annotated[list[str], place("REPO BRANCH REF")],
    *,
    parent: Parent = 0,
    message: Message = "",
    committer: Committer = "",
    allow_empty: AllowEmpty = False,
) -> None:
    """Apply a commit's changes again on top of a branch.

    \b
    Example: refstore cherry-pick sales main dev~1
    """
    repo_name, branch, ref = words(ctx, arguments, "REPO BRANCH REF")
    with repository_of(ctx, repo_name) as repo:
        with _showing_conflicts(ctx):
            new = repo.cherry_pick(
                branch, ref, parent=parent, message=message, committer=committer, allow_empty=allow_empty
            )
        _emit_commit(ctx, branch, new)


def _subject(message: str) -> str:
    """Return a message's first line; `show` and JSON have all of it."""
    return message.strip().partition("\n")[0].rstrip()


def _narrow(line: LogEntry) -> dict[str, object]:
    row = commit_row(line.commit, line.record)
    goes_ms = line.mark.deletes_at_ms if line.mark and not line.mark.swept_ms else None
    return {
        "commit": line.commit,
        "date": row["date"],
        "committer": row["committer"],
        "state": line.lifetime.value,
        "deletes_at": when(goes_ms),
        "message": _subject(line.record.message),
    }


def _emit_statistics(ctx: typer.Context, changes: Iterable[Change]) -> None:
    """Print how many paths changed in each folder, and the bytes that came and went."""
    sums: dict[str, dict[str, int]] = {}
    for change in changes:
        folder = f"{change.path.rpartition('/')[0]}/" if "/" in change.path else "(top)"
        own = sums.setdefault(folder, dict.fromkeys(("added", "changed", "removed", "bytes"), 0))
        own[change.kind.value] += 1
        came, went = (entry.size_bytes if entry else 0 for entry in (change.right, change.left))
        own["bytes"] = sum_of_sizes((own["bytes"], came, -went))
    emit(ctx, [{**counts, "folder": folder} for folder, counts in sorted(sums.items())])


def change_row(change: Change) -> dict[str, object]:
    entry = change.right or change.left
    return {"change": change.kind.value, "path": change.path, "size_bytes": entry.size_bytes if entry else None}


def _emit_commit(ctx: typer.Context, branch: str, new: CommitInfo) -> None:
    emit(ctx, {"branch": branch, **commit_row(new.id, new.record)})


@contextmanager
def _showing_conflicts(ctx: typer.Context) -> Generator[None, None, None]:
    """Print the paths of a conflict that the block raises; with --json the error contains them."""
    try:
        yield
    except MergeConflict as conflict:
        if not invocation_of(ctx).json:
            for path in conflict.paths[:CONFLICTS_SHOWN]:
                print(f"conflict: {path!r}", file=sys.stderr)
            if len(conflict.paths) > CONFLICTS_SHOWN:
                print(f"conflict: ... and {len(conflict.paths) - CONFLICTS_SHOWN} more", file=sys.stderr)
        raise
