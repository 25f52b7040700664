"""`refstore reaper`: run a reaper, show its status, and resume hard deletion."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from refstore.cli.common import emit, invocation_of, open_lake, settings_of, stopping, warn_of_open_folders
from refstore.cli.confirmation import confirm
from refstore.cli.parameters import Name, Yes
from refstore.cli.rows import format_when
from refstore.configuration.settings import ReaperSettings
from refstore.core import ids
from refstore.core.visible_text import own_stream
from refstore.errors import RepositoryNotFound
from refstore_reaper.process_priority import NICE, lowered_priority

if TYPE_CHECKING:
    from refstore.lake import Lake
    from refstore.records.repository_records import RepositoryRecord
    from refstore_reaper.dry_run import PlannedDelete
    from refstore_reaper.pass_summary import PassSummary
    from refstore_reaper.reaper_metrics import ReaperMetrics
    from refstore_reaper.status import RepositoryStatus

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
    repository: Annotated[
        list[str] | None, typer.Option(metavar="REPO", help="Only this repository; may be given several times.")
    ] = None,
    grace_seconds: Annotated[
        float | None,
        typer.Option(min=0, metavar="N", help="The grace window of this run, for all repositories."),
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
        int | None, typer.Option(min=0, max=65_535, metavar="PORT", help="Serve Prometheus metrics on loopback.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Delete objects that nothing names any more: for ever, or with --once until nothing is due.

    After --grace-seconds, `refstore restore` cannot take back what was released, in any repository of the lake: on a
    terminal the command asks first. With --repository, only that repository is concerned.

    Any number of reapers may run, on any machines. SIGTERM ends one after the batch in hand. The exit code is 0 if all
    went well, 4 if the breaker holds deletions back, 5 if a store did not answer, refuses the credentials or did not
    delete everything, 6 if something could not be read, a store is set up wrong, or the KV went back in time (see
    `refstore kv --help`).

    \b
    Example: refstore reaper --once --dry-run
             refstore reaper --once --grace-seconds 0 --repository sales
             refstore reaper status
    """
    if ctx.invoked_subcommand is not None:
        return
    if grace_seconds is not None and not repository and not dry_run:
        _confirm_grace(ctx, grace_seconds, yes=yes)
    is_service = not once and not dry_run
    settings = _settings(settings_of(ctx, service=is_service).reaper, rate, metrics_port)
    with lowered_priority(niceness), stopping() as stop:
        if dry_run:
            _dry_run(ctx, settings, repository or [], scrub, grace_seconds, stop.is_set)
        else:
            _run(ctx, settings, repository or [], scrub, grace_seconds, once, stop.is_set)


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
    repository: Annotated[str | None, typer.Option(metavar="REPO", help="Only this repository.")] = None,
    watch: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0.5, help="Show it again every so many seconds, until ^C.")
    ] = None,
) -> None:
    """Show the reapers, what waits to be deleted, and where and why hard deletion is stopped.

    \b
    Example: refstore reaper status --json
             refstore reaper status --watch 2
    """
    with open_lake(ctx, only_read=True) as lake, stopping() as stop:
        while True:
            if watch is not None and sys.stdout.isatty():
                own_stream(sys.stdout).write("\x1b[2J\x1b[H")
            _show_status(ctx, lake, repository)
            sys.stdout.flush()
            if watch is None or stop.wait(watch):
                return


def _show_status(ctx: typer.Context, lake: Lake, repository: str | None) -> None:
    from refstore_reaper import breaker
    from refstore_reaper.status import read_status

    if repository is not None:
        _record_of(lake.all_repositories(prefix=repository), repository)
    shown = read_status(lake, repository=repository)
    if invocation_of(ctx).json:
        emit(ctx, shown._asdict())
        return
    reapers = [
        {
            "reaper": item.reaper,
            "alive": item.is_alive,
            "since": format_when(item.started_ms),
            "last_seen": format_when(item.beat_ms),
            "passes": item.passes,
            "deleted": item.deleted_objects,
            "bytes": item.deleted_bytes,
            "errors": item.errors,
        }
        for item in shown.reapers
    ]
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
    seconds: Annotated[
        float | None, typer.Option("--for", min=1, metavar="SECONDS", help="For so many seconds, at most 30 days.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", min=1, metavar="N", help="For so many objects.")] = None,
    yes: Yes = False,
) -> None:
    """Let hard deletion go on after the breaker stopped it: for an hour, for --for SECONDS, or for --count N objects.

    \b
    Example: refstore reaper resume sales --count 50000
    """
    from refstore_reaper import breaker

    with open_lake(ctx) as lake:
        # a deleted repository, too: it is drained only while deletion goes on
        record = _record_of(lake.all_repositories(prefix=repo_name), repo_name)
        context = lake.context(ids.repository_name(repo_name), record)
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


def _run(
    ctx: typer.Context,
    settings: ReaperSettings,
    repositories: list[str],
    scrub: bool,
    grace_seconds: float | None,
    once: bool,
    should_stop: Callable[[], bool],
) -> None:
    from refstore_reaper.daemon import Reaper

    warn_of_open_folders(settings_of(ctx))
    with open_lake(ctx) as lake:
        for name in repositories:
            _record_of(lake.all_repositories(prefix=name), name)
        metrics = _metrics(settings)
        try:
            with Reaper(
                lake,
                settings,
                repositories=repositories,
                scrub_now=scrub,
                grace_seconds=grace_seconds,
                metrics=metrics,
                reserve_mib=settings.reserve_mib,
            ) as running:
                done = running.run_once(should_stop) if once else running.run(should_stop)
        finally:
            if metrics is not None:
                metrics.close()
    _report(ctx, done)
    if once:
        raise typer.Exit(choose_exit_code(done))


def _dry_run(
    ctx: typer.Context,
    settings: ReaperSettings,
    repositories: list[str],
    scrub: bool,
    grace_seconds: float | None,
    should_stop: Callable[[], bool],
) -> None:
    from refstore_reaper.dry_run import dry_run

    would: list[dict[str, object]] = []

    def report(planned: PlannedDelete) -> None:
        item = planned.item
        row: dict[str, object] = {
            "repository": planned.repository,
            "address": item.address,
            "path": item.path,
            "cause": item.cause,
            "size_bytes": item.size_bytes,
        }
        if invocation_of(ctx).json:
            would.append(row)
        else:
            typer.echo(f"would delete {planned.repository} {item.address}  {item.path!r}  ({item.cause})")

    with open_lake(ctx, only_read=True) as lake:
        for name in repositories:
            _record_of(lake.all_repositories(prefix=name), name)
        done = dry_run(
            lake,
            settings,
            repositories=repositories,
            scrub_now=scrub,
            grace_seconds=grace_seconds,
            report=report,
            should_stop=should_stop,
        )
    if invocation_of(ctx).json:
        emit(ctx, {"would_delete": would, "summary": done})
    else:
        _report(ctx, done)
        typer.echo("This was a dry run: nothing was changed.", err=True)
    raise typer.Exit(choose_exit_code(done))


def _record_of(records: Iterable[tuple[str, RepositoryRecord]], name: str) -> RepositoryRecord:
    for other, record in records:
        if other == name:
            return record
    raise RepositoryNotFound(f"repository {name!r} does not exist; list the repositories to see which do")


def _settings(settings: ReaperSettings, rate: float | None, metrics_port: int | None) -> ReaperSettings:
    changes = {"rate_per_second": rate, "metrics_port": metrics_port}
    return replace(settings, **{name: value for name, value in changes.items() if value is not None})


def _metrics(settings: ReaperSettings) -> ReaperMetrics | None:
    if not settings.metrics_port:
        return None
    from refstore_reaper.reaper_metrics import PrometheusMetrics

    return PrometheusMetrics(settings.metrics_host, settings.metrics_port)


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
