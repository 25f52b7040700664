"""`refstore log`: list a ref's commits."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from refstore.cli.common import emit, invocation_of, repository_of
from refstore.cli.locations import PlacedCommand, place, words
from refstore.cli.rows import commit_row, format_when, logged_row
from refstore.cli.tables import ID_CHARACTERS, visible_text
from refstore.operations.log_and_diff import LogEntry, has_changed_paths
from refstore.versioning.commits.path_filter import PathFilter

app = typer.Typer()


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
            history = (line for line in history if has_changed_paths(repo.context, line.record, only))
        commits = islice(history, amount)
        if invocation_of(ctx).output != "table":
            emit(ctx, (logged_row(line) for line in commits))
        elif oneline:
            for line in commits:
                print(f"{line.commit[:ID_CHARACTERS]} {visible_text(_subject(line.record.message))}")
        else:
            emit(ctx, (_narrow(line) for line in commits))


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
        "deletes_at": format_when(goes_ms),
        "message": _subject(line.record.message),
    }
