"""`refstore why`: explain what happened to a physical address, or to a path, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from refstore.cli.common import emit, invocation_of, open_lake
from refstore.cli.parameters import Name
from refstore.cli.rows import entry_row, format_when
from refstore.core import ids
from refstore.core.clock import to_datetime
from refstore.core.ids import Address, RepositoryId
from refstore.core.units import DAY_MS
from refstore.errors import NotFound, RepositoryNotFound
from refstore.operations.address_info import UNREFERENCED_STATES
from refstore.records.repository_records import ClearedRepository

if TYPE_CHECKING:
    from refstore.context import Context
    from refstore.deletion_history.deletion_search import MarkedFor
    from refstore.deletion_history.explain import AddressReport, Deletion, PathReport, PathVersion
    from refstore.deletion_history.naming_commits import NamingCommit, NamingCommits, Version
    from refstore.lake import Lake
    from refstore.operations.address_info import AddressReference
    from refstore.operations.purge_roles import PurgeRole

app = typer.Typer()

COMMITS_SHOWN: Final = 5
LEFT: Final = "left by its repository, which was deleted"

Row = dict[str, Any]


@app.command("why")
def why(
    ctx: typer.Context,
    repo_name: Name,
    what: Annotated[str, typer.Argument(metavar="ADDRESS|REF/PATH", help="An address, or a ref and a path.")],
    path: Annotated[str, typer.Argument(metavar="PATH", help="The path, if REF is an argument of its own.")] = "",
    *,
    commits: Annotated[
        bool, typer.Option("--commits", help="Also list the commits that named a deleted address.")
    ] = False,
) -> None:
    """Explain why an object is still there, or why it was deleted: what names it; when, by which run and by which rule.

    An address is `data/<hour>/<id>`. Everything else is a ref and a path; the branch may be deleted already. Give a
    branch that is called `data`, or has a slash, as an argument of its own. The command covers what the reaper deleted,
    what `refstore gc` swept or has marked, what was deleted with a repository, and what purges wrote or left behind.

    \b
    Example: refstore why sales data/2026112107/01jd3v...
             refstore why sales main/2026/11/21.csv
             refstore why sales team/x 2026/11/21.csv
    """
    address, ref, path = _place(ctx, what, path)
    with open_lake(ctx, read_only=True) as lake:
        if address:
            _explain(ctx, lake, repo_name, address, lambda context: _of_address(context, address, commits=commits))
        else:
            _explain(ctx, lake, repo_name, None, lambda context: _of_path(context, ref, path))


def _place(ctx: typer.Context, what: str, path: str) -> tuple[str, str, str]:
    """Parse the arguments into (address, ref, path). Either the address, or ref and path, are ''."""
    if not path and what.startswith(("data/", "_refstore/")) and what.count("/") > 1:
        return what, "", ""
    ref, _, path = (what, "", path) if path else what.partition("/")
    if not path:
        ctx.fail(f"{what!r} is neither an address nor REF/PATH; give one of them, or REF and PATH")
    return "", ref, path


def _explain(
    ctx: typer.Context, lake: Lake, repo_name: str, address: str | None, ask: Callable[[Context], Row]
) -> None:
    """Print the answer of the repository of this name, or of the first deleted one that has an answer."""
    unknown: NotFound | None = None
    for context, record in lake.repositories_of_name(repo_name):
        try:
            row = {
                "repository": context.repo,
                "repository_deleted": format_when(record.closed_ms or None),
                **ask(context),
            }
        except NotFound as error:
            unknown = unknown or error
        else:
            if record.closed_ms and row["state"] in {state.value for state in UNREFERENCED_STATES}:
                row |= {"state": LEFT, "meaning": "the offline job deletes it"}
            _print(ctx, row)
            return
    for repo, record in reversed(list(lake.cleared_repositories(repo_name))):
        if address is None or _may_have_had(record, Address(address)):
            _print(ctx, _of_cleared(repo, record, address))
            return
    raise unknown or RepositoryNotFound(
        f"repository {repo_name!r} does not exist; list the repositories to see which do"
    )


def _of_address(context: Context, address: str, *, commits: bool) -> Row:
    from refstore.deletion_history.explain import explain_address

    return _address_row(explain_address(context, address, commits=commits))


def _of_path(context: Context, ref: str, path: str) -> Row:
    from refstore.deletion_history.explain import explain_path

    found = explain_path(context, ref, path)
    return {
        "ref": found.ref,
        "path": found.path,
        "state": _path_state(found),
        "meaning": found.unreadable,
        "now": entry_row(found.now) if found.now is not None else None,
        "removed_by": [_commit_row(version.since) for version in found.removed],
        "versions": [_version_row(version) for version in found.versions],
        "incomplete": list(found.incomplete),
    }


def _may_have_had(record: ClearedRepository, address: Address) -> bool:
    """Return whether the repository existed when the address was generated, as far as the id shows."""
    if not ids.is_own(address):
        return False
    made_ms = ids.address_time_ms(address)
    return made_ms is None or record.created_ms - DAY_MS <= made_ms <= record.closed_ms + DAY_MS


def _of_cleared(repo: RepositoryId, record: ClearedRepository, address: str | None) -> Row:
    """Return the row for an object of a cleared repository. The records of its objects were deleted with it, so nothing
    else is known.
    """
    from refstore.deletion_history.explain import Deletion

    rule = (
        f"{repo} was deleted on {format_when(record.closed_ms)}, and its grace was over: {record.objects} objects of "
    )
    rule += f"{record.bytes} bytes in {record.namespace} went"
    if not record.objects:
        rule += " by refstore itself; the rule of their bucket deletes what was tagged"
    run, cause = record.runs[-1] if record.runs else "", "deleted repository"
    cleared = to_datetime(record.cleared_ms)
    deletion = Deletion(address or "", cleared, "sweep", run, "deleted", cause, rule, "", None, "", "")
    return {
        "repository": repo,
        "repository_deleted": format_when(record.closed_ms),
        "address": address,
        "state": "gone with its repository",
        "since": format_when(record.cleared_ms),
        "cause": cause,
        "references": [],
        "deletions": [_deletion_row(deletion)],
        "marked": [],
        "committed": None,
        "incomplete": ["the records of single objects: they went with the repository"],
    }


def _address_row(found: AddressReport) -> Row:
    view = found.info
    return {
        "address": view.address,
        "state": view.state.value,
        "meaning": found.meaning,
        "since": format_when(view.since),
        "cause": view.cause,
        "expires": format_when(view.expires),
        "references": [_reference_text(reference) for reference in view.references],
        "purged": _purged_row(found.purge_role) if found.purge_role is not None else None,
        "deletions": [_deletion_row(deletion) for deletion in found.deletions],
        "marked": [_marked_row(marked) for marked in found.marked],
        "committed": _naming_row(found.naming) if found.naming is not None else None,
        "incomplete": list(found.incomplete),
    }


def _reference_text(reference: AddressReference) -> str:
    told = filter(None, (reference.state.value, format_when(reference.last_modified)))
    return f"{reference.branch} {reference.path} ({', '.join(told)})"


def _purged_row(purged: PurgeRole) -> Row:
    return {
        "object": purged.identity,
        "is": purged.role.value,
        "content": purged.content or None,
        "run": purged.run,
        "since": format_when(purged.since),
    }


def _deletion_row(deletion: Deletion) -> Row:
    from refstore.deletion_history.explain import deletion_token

    return {
        "at": format_when(deletion.at),
        "by": deletion.by,
        "run": deletion.run,
        "outcome": deletion.outcome,
        "cause": deletion.cause,
        "rule": deletion.rule,
        "path": deletion.path,
        "token": deletion_token(deletion),
        "size_bytes": deletion.size_bytes,
        "reason": deletion.reason,
    }


def _marked_row(marked: MarkedFor) -> Row:
    return {
        "mark": marked.mark_id,
        "state": marked.state,
        "deletes_at": format_when(marked.deletes_at),
        "cause": marked.cause,
        "rule": marked.rule,
        "question": marked.question,
    }


def _naming_row(found: NamingCommits) -> Row:
    return {
        "branches": [f"{branch} {path}" for branch, path in found.branches],
        "commits": [_commit_row(commit) for commit in found.commits],
        "complete": found.complete,
    }


def _commit_row(commit: NamingCommit) -> Row:
    mark = commit.mark
    return {
        "commit": commit.commit,
        "date": format_when(commit.created),
        "path": commit.path,
        "state": commit.lifetime.value,
        "mark": mark.id if mark else None,
        "deletes_at": format_when(mark.deletes_at) if mark else None,
        "swept": format_when(mark.swept) if mark else None,
    }


def _version_row(version: PathVersion) -> Row:
    row: Row = {"address": version.address} if version.why is None else _address_row(version.why)
    return {**row, "commits": _span_row(version.committed) if version.committed is not None else None}


def _span_row(version: Version) -> Row:
    return {"first": _commit_row(version.since), "last": _commit_row(version.until), "count": version.commits}


def _path_state(found: PathReport) -> str:
    if found.now is not None:
        return "staged" if found.staged else "committed"
    if found.unreadable:
        return "gone" if found.is_swept else "hidden"
    return "not there" if found.ref_exists else "not there: there is no such branch or ref any more"


# ---- for people


def _print(ctx: typer.Context, row: Row) -> None:
    if invocation_of(ctx).json:
        emit(ctx, row)
        return
    versions: list[Row] = row.pop("versions", [])
    _print_one(ctx, row)
    for version in versions:
        print()
        _print_one(ctx, dict(version))


def _print_one(ctx: typer.Context, row: Row) -> None:
    """Print the non-empty fields, then each deletion and each commit on a line of its own."""
    purged: Row | None = row.pop("purged", None)
    if purged is not None:
        row["object"], row["content"] = purged["object"], purged["content"] or "none"
    lists: dict[str, list[Row]] = {name: row.pop(name) for name in ("deletions", "marked", "removed_by") if name in row}
    committed: Row | None = row.pop("committed", None)
    commits: Row | None = row.pop("commits", None)
    now: Row | None = row.pop("now", None)
    incomplete: list[str] = row.pop("incomplete", [])
    if "path" in row:
        row = {"at this path now" if name == "state" else name: value for name, value in row.items()}
    if now is not None:
        row["address now"] = now["address"]
    if committed is not None:
        row["branches"] = committed["branches"] or "none"
        row["commits"] = _count_text(len(committed["commits"]), complete=committed["complete"])
        lists["commits"] = committed["commits"][:COMMITS_SHOWN]
    if commits is not None:
        first, last = commits["first"], commits["last"]
        row["commits"] = (
            f"{commits['count']}, from {first['commit'][:12]} ({first['date']}) to {last['commit'][:12]} "
            f"({last['date']})"
        )
    emit(ctx, {name: value for name, value in row.items() if value not in ("", None, [])})
    for name, rows in lists.items():
        if rows:
            print(f"\n{name.replace('_', ' ')}:")
            emit(ctx, rows)
    if incomplete:
        print("\nNot looked at: " + "; ".join(incomplete))


def _count_text(commits: int, *, complete: bool) -> str:
    shown = f"; the newest {COMMITS_SHOWN} and {commits - COMMITS_SHOWN} more" if commits > COMMITS_SHOWN else ""
    return f"{'' if complete else 'at least '}{commits}{shown}"
