"""The commands `refstore repo`: create, list, show, delete repositories."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec
import typer

from refstore.agreed_durations import read_record
from refstore.cli.common import emit, open_lake
from refstore.cli.confirmation import confirm
from refstore.cli.parameters import DryRun, Meta, Name, NamePrefix, Yes
from refstore.cli.rows import branch_row, format_when, pairs, seconds_of
from refstore.core.ids import RepositoryName
from refstore.core.redaction import redact_url
from refstore.core.safety import is_for_trying
from refstore.errors import InvalidSettings
from refstore.lake import Lake
from refstore.operations import rules_document
from refstore.operations.deleted_names import deleted_name_hold
from refstore.records.repository_records import RepositoryRecord
from refstore.service import sample_data

app = typer.Typer(no_args_is_help=True)


@app.callback()
def repo() -> None:
    """Create, list, show and delete repositories."""


@app.command("create")
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="3 to 63 of a-z, 0-9 and '-'.")],
    *,
    namespace: Annotated[
        str | None, typer.Option(metavar="URL", help="Where its data is stored; default: below the lake's objects.")
    ] = None,
    default_branch: Annotated[str, typer.Option(metavar="NAME", help="The branch it starts with.")] = "main",
    grace: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Its own grace window, such as 6h; default: the reaper's.")
    ] = None,
    meta: Meta = None,
    with_sample_data: Annotated[
        bool, typer.Option("--sample-data", help="Commit sample data to try things out; its README.md explains it.")
    ] = False,
    for_trying: Annotated[
        bool,
        typer.Option(
            "--for-trying", help="Make a new lake, of short durations: a mark and its sweep take half a minute."
        ),
    ] = False,
) -> None:
    """Create a repository: empty, or with sample data on its default branch.

    The sample data has a history of four months, so that retention rules and purges can be tried. With --for-trying
    the lake is made, too, with durations that are for nothing else: an operation ends after 20 s, and there is no
    least age of garbage. A lake keeps them, and `refstore doctor` and the page say so.

    \b
    Example: refstore repo create sales
             refstore repo create try --sample-data --for-trying --data ./try
             refstore repo create sales --namespace s3://bucket/sales --grace 1h
             refstore repo create old --namespace "s3://cold/old?endpoint=archive"
    """
    grace_seconds = seconds_of("--grace", grace)
    if for_trying:
        _check_new_lake(ctx)
    with open_lake(ctx, create=True, for_trying=for_trying) as lake:
        created = lake.create_repository(
            name,
            namespace=namespace,
            default_branch=default_branch,
            metadata=pairs(meta),
            grace_seconds=None if grace_seconds is None else math.ceil(grace_seconds),
        )
        added = {"sample_data": sample_data.add_sample_data(created)} if with_sample_data else {}
        emit(ctx, {**_row(lake, created.name, created.record), **added})


@app.command("list")
def list_(ctx: typer.Context, prefix: NamePrefix = "") -> None:
    """List the repositories.

    \b
    Example: refstore repo list --json
    """
    with open_lake(ctx, read_only=True) as lake:
        emit(ctx, (_row(lake, name, record) for name, record in lake.repository_records(prefix=prefix)))


@app.command("show")
def show(ctx: typer.Context, name: Name) -> None:
    """Show a repository: its id, namespace and settings.

    \b
    Example: refstore repo show sales
    """
    with open_lake(ctx, read_only=True) as lake:
        opened = lake.repository(name)
        grace = opened.context.grace_seconds
        emit(
            ctx,
            {
                **_row(lake, opened.name, opened.record),
                "id": opened.record.id,
                "grace_seconds": grace,
                "metadata": opened.record.metadata,
            },
        )


@app.command("delete")
def delete(ctx: typer.Context, name: Name, dry_run: DryRun = False, yes: Yes = False) -> None:
    """Delete a repository. The reaper then deletes uncommitted data; the offline job deletes committed data.

    The name is free again after the reaper has drained the repository. That is at the earliest when operations that
    began before the deletion have ended, and the grace windows of uncommitted objects are over: the answer says when.

    \b
    Example: refstore repo delete sales --dry-run
    """
    with open_lake(ctx) as lake:
        opened = lake.repository(name)
        rules_document.check_no_holds(opened.context)
        if dry_run:
            emit(ctx, (branch_row(opened, branch, record) for branch, record in opened.context.branches.scan_open()))
            return
        confirm(ctx, f"repository {name!r} and all its branches will be deleted", yes=yes)
        lake.delete_repository(name)
        release = deleted_name_hold(
            opened.context, msgspec.structs.replace(opened.record, closed_ms=lake.clock.now_ms())
        )
        typer.echo(f"the name {name!r} is taken until {format_when(release.until_ms)}: {release.reason}", err=True)
        emit(ctx, {"repository": name, "deleted": True, "name_free_from": format_when(release.until_ms)})


def _row(lake: Lake, name: RepositoryName, record: RepositoryRecord) -> dict[str, object]:
    return {
        "repository": name,
        "default_branch": record.default_branch,
        "namespace": redact_url(lake.namespace_url(record)),
        "created": format_when(record.created_ms),
    }


def _check_new_lake(ctx: typer.Context) -> None:
    """Raise InvalidSettings for a lake that has repositories, or other durations than those for trying."""
    with open_lake(ctx, create=True, read_only=True) as lake:
        record = read_record(lake.kv)
        is_new = record is None and next(iter(lake.repository_records()), None) is None
        if not is_new and (record is None or not is_for_trying(record.current)):
            raise InvalidSettings(
                "--for-trying makes a lake, and this one exists with other durations; name another folder with --data, "
                "or leave the option out"
            )
