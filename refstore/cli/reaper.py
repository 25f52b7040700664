"""`refstore reaper`: run a reaper, show its status, and resume hard deletion."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from refstore.cli.common import (
    emit,
    invocation_of,
    open_lake,
    override_settings,
    settings_of,
    stopping,
    warn_of_open_folders,
)
from refstore.cli.confirmation import confirm
from refstore.cli.parameters import Name, Repositories, Yes
from refstore.cli.rows import format_when, seconds_of
from refstore.configuration.settings import MetricsSettings, ReaperSettings
from refstore.core import ids
from refstore.core.units import DAY_SECONDS
from refstore.errors import RepositoryNotFound
from refstore_reaper.process_priority import NICE, lowered_priority

if TYPE_CHECKING:
    from refstore.lake import Lake
    from refstore.records.repository_records import RepositoryRecord
    from refstore_reaper.dry_run import PlannedDelete
    from refstore_reaper.pass_summary import PassSummary
    from refstore_reaper.status import ReaperStatus, RepositoryStatus

app = typer.Typer()
group = typer.Typer(invoke_without_command=True)
app.add_typer(group, name="reaper")

STOPPED = 4
"""The exit code of a run that left something because the breaker holds it back."""


@group.callback()
def reaper(
    ctx: typer.Context,
    *,
    once: Annotated[bool, typer.Option("--once", help="Delete until nothing is due, then end.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what --once would delete, and change nothing.")
    ] = False,
    repositories: Repositories = None,
    grace: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="The grace window of this run, such as 6h, for all repositories."),
    ] = None,
    rate: Annotated[float | None, typer.Option(min=0, metavar="N", help="Delete at most N objects a second.")] = None,
    scrub: Annotated[
        bool, typer.Option("--scrub", help="Scrub what crashes left behind now, not when its time comes.")
    ] = False,
    niceness: Annotated[
        int,
        typer.Option(
            "--nice",
            min=0,
            max=19,
            metavar="N",
            help="Lower the priority by N, and keep to one processor; 0: neither.",
        ),
    ] = NICE,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65_535, metavar="PORT", help="Serve Prometheus metrics at this port.")
    ] = None,
    metrics_host: Annotated[str | None, typer.Option(metavar="ADDRESS", help="And address; else loopback.")] = None,
    yes: Yes = False,
) -> None:
    """Delete objects that nothing names any more: for ever, or with --once until nothing is due.

    After --grace, `refstore restore` cannot take back what was released, in any repository of the lake: on a
    terminal the command asks first. With --repository, only that repository is concerned.

    Any number of reapers may run, on any machines. SIGTERM ends one after the batch in hand. The exit code is 0 if all
    went well, 4 if the breaker holds deletions back, 5 if a store did not answer, refuses the credentials or did not
    delete everything, 6 if something could not be read, a store is set up wrong, or the KV went back in time (see
    `refstore kv --help`).

    \b
    Example: refstore reaper --once --dry-run
             refstore reaper --once --grace 0 --repository sales
             refstore reaper status
    """
    if ctx.invoked_subcommand is not None:
        return
    override_settings(ctx, {"reaper.rate_per_second": rate, "metrics.port": metrics_port, "metrics.host": metrics_host})
    grace_seconds = seconds_of("--grace", grace)
    if grace_seconds is not None and not repositories and not dry_run:
        _confirm_grace(ctx, grace_seconds, yes=yes)
    settings = settings_of(ctx, service=not once and not dry_run)
    limits = _Limits(repositories=repositories or [], scrub_now=scrub, grace_seconds=grace_seconds)
    with lowered_priority(niceness):
        done = _reap(ctx, settings.reaper, limits, once=once, dry_run=dry_run)
    if once or dry_run:
        raise typer.Exit(choose_exit_code(done))


def _reap(ctx: typer.Context, settings: ReaperSettings, limits: _Limits, *, once: bool, dry_run: bool) -> PassSummary:
    """Delete, or say what would be deleted, and report it."""
    if not dry_run:
        warn_of_open_folders(settings_of(ctx))
    with stopping() as stop, open_lake(ctx, read_only=dry_run) as lake:
        for name in limits["repositories"]:
            _record_of(lake, name)
        if dry_run:
            done = _dry_run(ctx, lake, settings, limits, stop.is_set)
        else:
            done = _run(lake, settings, settings_of(ctx).metrics, limits, stop.is_set, once=once)
    if not dry_run or not invocation_of(ctx).json:
        _report(ctx, done)
    if dry_run and not invocation_of(ctx).json:
        typer.echo("This was a dry run: nothing was changed.", err=True)
    return done


def _confirm_grace(ctx: typer.Context, grace_seconds: float, *, yes: bool) -> None:
    """Ask before the grace windows of all repositories are cut short. Without a terminal, as from a timer, go on."""
    usual = settings_of(ctx).safety.grace_seconds
    if yes or grace_seconds >= usual or not sys.stdin.isatty():
        return
    window = "at once" if grace_seconds == 0 else f"after {grace_seconds:g} seconds, not {usual:g},"
    confirm(
        ctx,
        f"in all repositories of this lake, released objects are deleted {window} and cannot be restored "
        "(--repository: only in one)",
        yes=yes,
    )


@group.command("status")
def status(
    ctx: typer.Context,
    repository: Annotated[
        str | None, typer.Argument(metavar="REPO", help="The repository; default: all.", show_default=False)
    ] = None,
) -> None:
    """Show the reapers, what waits to be deleted, and where and why hard deletion is stopped.

    \b
    Example: refstore reaper status --json
             watch refstore reaper status
    """
    from refstore_reaper import breaker
    from refstore_reaper.status import read_status

    with open_lake(ctx, read_only=True) as lake:
        if repository is not None:
            _record_of(lake, repository)
        shown = read_status(lake, repository=repository)
    if invocation_of(ctx).json:
        emit(ctx, shown._asdict())
        return
    reapers = [_reaper_row(item) for item in shown.reapers]
    if reapers:
        emit(ctx, reapers)
    else:
        typer.echo("No reaper runs.")
    typer.echo()
    emit(
        ctx,
        [
            {
                "repository": item.repository,
                "due": item.due,
                "oldest_due": format_when(item.oldest_due_ms),
                "in_grace": item.in_grace,
                "tokens_waiting": item.tokens,
                "deletion": _deletion(item, is_settling=bool(shown.settling)),
                "deleted": format_when(item.closed_ms),
            }
            for item in shown.repositories
        ],
    )
    if shown.settling:
        typer.echo(f"\n{shown.settling}")
    if shown.settlement_error:
        typer.echo(f"\nWhether deletion waits for operations to end is not known: {shown.settlement_error}")
    for item in shown.repositories:
        if item.error:
            typer.echo(f"\n{item.repository}: {item.error}")
        elif item.stopped:
            typer.echo(f"\n{item.repository}: {item.stopped}; {breaker.advice(item.repository, item.stopped)}")
        if item.name_hold:
            typer.echo(f"\n{item.name_hold}")


def _reaper_row(item: ReaperStatus) -> dict[str, object]:
    return {
        "reaper": item.reaper,
        "alive": item.is_alive,
        "since": format_when(item.started_ms),
        "last_seen": format_when(item.beat_ms),
        "passes": item.passes,
        "deleted": item.deleted_objects,
        "bytes": item.deleted_bytes,
        "errors": item.errors,
    }


def _deletion(item: RepositoryStatus, *, is_settling: bool) -> str:
    if item.error:
        return "not known"
    if item.stopped:
        return "stopped"
    return "settling" if is_settling else "goes on"


@group.command("resume")
def resume(
    ctx: typer.Context,
    repo_name: Name,
    *,
    duration: Annotated[
        str | None, typer.Option("--for", metavar="DURATION", help="For this long, such as 6h, at most 30d.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", min=1, metavar="N", help="For so many objects.")] = None,
    yes: Yes = False,
) -> None:
    """Let hard deletion go on after the breaker stopped it: for an hour, for --for DURATION, or for --count N objects.

    \b
    Example: refstore reaper resume sales --count 50000
    """
    from refstore_reaper import breaker

    seconds = seconds_of("--for", duration, least=1, most=30 * DAY_SECONDS)
    with open_lake(ctx) as lake:
        # a deleted repository, too: it is drained only while deletion goes on
        context = lake.context(ids.repository_name(repo_name), _record_of(lake, repo_name))
        reason = breaker.explain(breaker.read_state(context.kv, context.repo))
        if not reason:
            typer.echo(f"Hard deletion of {repo_name} goes on already.", err=True)
            if invocation_of(ctx).json:
                emit(ctx, {"repository": repo_name, "until": None, "objects": None})
            return
        confirm(ctx, f"{reason}; deletion will go on", yes=yes)
        state = breaker.resume(context, seconds=seconds, objects=count)
        emit(
            ctx,
            {
                "repository": repo_name,
                "until": format_when(state.allowed_until_ms or None),
                "objects": state.allowed_objects or None,
            },
        )


class _Limits(TypedDict):
    """What a run and a dry run are limited to."""

    repositories: list[str]
    scrub_now: bool
    grace_seconds: float | None


def _run(
    lake: Lake,
    settings: ReaperSettings,
    listening: MetricsSettings,
    limits: _Limits,
    should_stop: Callable[[], bool],
    *,
    once: bool,
) -> PassSummary:
    from refstore_reaper.daemon import Reaper
    from refstore_reaper.reaper_metrics import PrometheusMetrics

    metrics = PrometheusMetrics(listening.host, listening.port) if listening.port else None
    with (
        closing(metrics) if metrics is not None else nullcontext(),
        Reaper(lake, settings, **limits, metrics=metrics, reserve_bytes=settings.reserve) as running,
    ):
        return running.run_once(should_stop) if once else running.run(should_stop)


def _dry_run(
    ctx: typer.Context, lake: Lake, settings: ReaperSettings, limits: _Limits, should_stop: Callable[[], bool]
) -> PassSummary:
    from refstore_reaper.dry_run import dry_run

    would: list[dict[str, object]] = []

    def report(planned: PlannedDelete) -> None:
        item = planned.item
        if not invocation_of(ctx).json:
            typer.echo(f"would delete {planned.repository} {item.address}  {item.path!r}  ({item.cause})")
            return
        row = {"repository": planned.repository, "address": item.address, "path": item.path, "cause": item.cause}
        would.append({**row, "size_bytes": item.size_bytes})

    done = dry_run(lake, settings, **limits, report=report, should_stop=should_stop)
    if invocation_of(ctx).json:
        emit(ctx, {"would_delete": would, "summary": done})
    return done


def _record_of(lake: Lake, name: str) -> RepositoryRecord:
    """Return the record of a repository, also of a deleted one. Raises RepositoryNotFound."""
    for other, record in lake.all_repositories(prefix=name):
        if other == name:
            return record
    raise RepositoryNotFound(f"repository {name!r} does not exist; list the repositories to see which do")


def _report(ctx: typer.Context, done: PassSummary) -> None:
    """Show what was done: every count in JSON; for people, those that are not 0."""
    if invocation_of(ctx).json:
        emit(ctx, done)
        return
    emit(
        ctx,
        {
            name: value
            for name, value in asdict(done).items()
            if name == "deleted" or (value and name not in ("errors", "more"))
        },
    )
    for error in done.errors:
        typer.echo(f"stopped: {error.repository} {error.unit}: {error.message}", err=True)


def choose_exit_code(done: PassSummary) -> int:
    """Return the exit code of the worst that happened."""
    if done.corrupt or done.is_misconfigured:
        return 6
    if done.unavailable or done.failed:
        return 5
    if done.error_count:
        return 1
    return STOPPED if done.blocked else 0
