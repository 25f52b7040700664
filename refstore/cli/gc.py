"""`refstore gc`: the offline job. Mark garbage, sweep it after its grace period, and report both.

Marking and sweeping run on this machine or on Spark (the extra `spark`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from refstore.cli.common import emit, invocation_of, open_lake, repository_of, settings_of, warn_of
from refstore.cli.files import read_document
from refstore.cli.gc_decisions import confirm_mark, stop, unmark
from refstore.cli.gc_job import (
    EngineRequest,
    Job,
    clear_deleted,
    run_all,
    show_progress,
    sweep_mode,
    tell_of_the_wait,
)
from refstore.cli.gc_lifecycle import lifecycle
from refstore.cli.gc_reports import report, status
from refstore.cli.gc_tables import emit_summaries, run_row
from refstore.cli.option_values import duration_seconds
from refstore.cli.parameters import Conf, DryRun, EngineOption, Master, Name
from refstore.core.redaction import redact_text
from refstore.errors import RefstoreError
from refstore.gc_marks import Marks
from refstore.operations.rule_review import compare_with_current
from refstore.operations.rules_document import parse_rules
from refstore.purge_document.purge_key import read_purge_key
from refstore.retention.rules import read_rules, rule_warnings

if TYPE_CHECKING:
    from refstore_gc.run_summary import GcSummary

app = typer.Typer()
group = typer.Typer(no_args_is_help=True)
app.add_typer(group, name="gc")

ASKING: Final = 4
"""The exit code if a mark waits for an operator."""
FAILED: Final = 5
"""The exit code if the store did not delete everything. The same call tries the rest again."""

MaybeName = Annotated[
    str | None, typer.Argument(metavar="[REPO]", help="The repository; or --all.", show_default=False)
]
All = Annotated[bool, typer.Option("--all", help="Every repository, and the objects of deleted ones.")]
GraceDays = Annotated[
    float | None, typer.Option(min=0, metavar="N", help="Days between mark and sweep; replaces the rules' value.")
]
MinAge = Annotated[float | None, typer.Option(min=0, metavar="N", help="Ignore younger objects; default: one day.")]
ModeOption = Annotated[
    str, typer.Option("--mode", metavar="MODE", help="delete; or tag, for a bucket's lifecycle rule to delete.")
]
Share = Annotated[
    float, typer.Option(min=0, max=1, metavar="N", help="A mark of more than this share needs `gc confirm`.")
]
Floor = Annotated[int, typer.Option(min=0, metavar="N", help="A mark of fewer objects than this never does.")]
Foreign = Annotated[bool, typer.Option("--foreign", help="Also mark objects in data/ that refstore never wrote.")]
Full = Annotated[bool, typer.Option("--full", help="List and read everything, also what the last run listed.")]
FullDays = Annotated[
    float, typer.Option(min=0, metavar="N", help="Make a full run if the last one is older than this.")
]
Every = Annotated[
    str | None, typer.Option(metavar="TIME", help="Repeat at this interval (90s, 30m, 6h, 1d) until SIGTERM.")
]
MetricsPort = Annotated[
    int | None,
    typer.Option(min=0, max=65_535, metavar="PORT", help="With --every: serve Prometheus metrics, on loopback."),
]
SweepModeOption = Annotated[
    str | None,
    typer.Option("--mode", metavar="MODE", help="delete (also tagged objects) or tag; default: the mode of the mark."),
]
TakeOver = Annotated[bool, typer.Option("--take-over", help="Take over at once from a run that died recently.")]

PurgeLedger = Annotated[
    bool,
    typer.Option("--purge-ledger", help="With run: also purge what came or returned of ids that were purged before."),
]


@group.callback()
def gc() -> None:
    """Delete committed objects that only expired commits name, and orphans, which the online path never knew."""


def marking_command(what: str, help_: str) -> Callable[..., None]:
    """A command that marks: `mark` and `run` differ by what else they do, and take the same."""

    def command(
        ctx: typer.Context,
        repo_name: MaybeName = None,
        *,
        all_: All = False,
        dry_run: DryRun = False,
        grace_days: GraceDays = None,
        min_age_seconds: MinAge = None,
        mode: ModeOption = "delete",
        breaker_share: Share = 0.5,
        breaker_floor: Floor = 10_000,
        foreign: Foreign = False,
        full: Full = False,
        full_days: FullDays = 7.0,
        take_over: TakeOver = False,
        purge_ledger: PurgeLedger = False,
        every: Every = None,
        metrics_port: MetricsPort = None,
        engine: EngineOption = None,
        master: Master = None,
        conf: Conf = None,
    ) -> None:
        from refstore_gc.gc_run import GcOptions
        from refstore_gc.mark_breaker import BreakerLimits

        options = GcOptions(
            grace_days=grace_days,
            min_age_seconds=min_age_seconds,
            mode=sweep_mode(mode),
            limits=BreakerLimits(share_max=breaker_share, floor_objects=breaker_floor),
            includes_foreign=foreign,
            is_complete=full,
            complete_every_days=full_days,
            take_over=take_over,
        )
        key = _ledger_key(ctx, is_run=what == "run" and not dry_run) if purge_ledger else None
        job = Job("simulate" if dry_run else what, options, purge_key=key)
        if (repo_name is None) != all_:
            ctx.fail("name one repository, or give --all")
        if every is not None:
            _repeat(ctx, every, repo_name, job, EngineRequest(engine, master, conf), metrics_port)
            return
        if metrics_port is not None:
            ctx.fail("--metrics-port is for --every")
        _run(ctx, repo_name, job, EngineRequest(engine, master, conf))

    command.__doc__ = help_
    return command


group.command("mark")(
    marking_command(
        "mark",
        """Mark garbage; nothing is deleted yet.

    The exit code is 4 if a mark waits for `refstore gc confirm`.

    First it applies the rules for branches. It resets entries that were staged longer ago than `uncommitted` allows.
    With allow_deletion_from_latest_view it also removes paths that `all` lets expire from branches, by commits.

    \b
    Example: refstore gc mark sales --dry-run
             refstore gc mark --all --engine spark
             refstore gc mark --all --master spark://host:7077
    """,
    )
)


@group.command("index")
def index(
    ctx: typer.Context,
    repo_name: Name,
    *,
    anew: Annotated[bool, typer.Option("--anew", help="Write it again, if one of its files is damaged.")] = False,
) -> None:
    """Update the index by which `refstore why` finds deletions. Every run does so; use this in a lake without an
    offline job, and after a file of the index was lost.

    \b
    Example: refstore gc index sales
             refstore gc index sales --anew
    """
    from refstore_gc import deletion_index_writer

    with repository_of(ctx, repo_name) as repo:
        emit(
            ctx,
            deletion_index_writer.rebuild(repo.context) if anew else deletion_index_writer.index_missing(repo.context),
        )


@group.command("sweep")
def sweep(
    ctx: typer.Context,
    repo_name: Name,
    *,
    mark_id: Annotated[
        str | None, typer.Option("--mark", metavar="MARK_ID", help="The mark to sweep; default: all that are due.")
    ] = None,
    mode: SweepModeOption = None,
    dry_run: DryRun = False,
    engine: EngineOption = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Delete marked objects that are due and that nothing names. A repeated call continues where the last one stopped.

    The exit code is 5 if the store did not delete everything. Objects that the current rules keep stay, also if the
    rules were set after the mark. For a tagged mark it checks which objects the bucket has deleted. With --mode delete
    it does not wait for the bucket.

    \b
    Example: refstore gc sweep sales
             refstore gc sweep sales --mark 01m7z3zav9bbbjvdydt7m95zqf
             refstore gc sweep sales --mode delete
    """
    chosen_mode = sweep_mode(mode) if mode is not None else None
    with open_lake(ctx) as lake:
        repo = lake.repository(repo_name)
        marks = Marks(repo.context)
        if mark_id is not None:
            chosen = [marks.runs.get(marks.runs.full_id(mark_id)).mark_id]
        else:
            now = repo.context.clock.now_ms()
            chosen = [each.mark_id for each in marks.runs.scan() if each.is_due(now)]
        if dry_run:
            emit(ctx, [run_row(marks, marks.runs.get(each)) for each in chosen])
            return
        if not chosen:
            typer.echo(f"Nothing of {repo_name} is due.", err=True)
            emit_summaries(invocation_of(ctx).output, [])
            return
        done: list[GcSummary] = []
        troubles: list[tuple[str, RefstoreError]] = []
        request = EngineRequest(engine, master, conf)
        with request.open(settings_of(ctx).offline) as engines, show_progress() as report_progress:
            from refstore_gc import gc_run

            for each in chosen:
                try:
                    done.append(gc_run.sweep(repo.context, engines, each, report_progress, mode=chosen_mode))
                except RefstoreError as error:  # no sweep rests on another
                    troubles.append((each, error))
        if done or not troubles:
            emit_summaries(invocation_of(ctx).output, done)
        _raise_last(troubles, of_many=len(chosen) > 1)
        if any(each.sweep is not None and each.sweep.failed_objects for each in done):
            raise typer.Exit(FAILED)


group.command("run")(
    marking_command(
        "run",
        """The nightly job: sweep what is due, apply the rules to branches, then mark.

    With --grace-days 0 it sweeps the new mark at once.

    The exit code is 4 if a mark waits for `refstore gc confirm`, or --purge-ledger left something that is listed, and 5
    if the store did not delete everything, whatever else is left. An error has its own code before both.

    With --every it repeats until SIGTERM, which abandons the current run cleanly and exits with 0. It logs failures
    and tries again at the next pass, also if another host is running the job. Only errors that no later pass can
    repair end it: a wrong setting (2), a named repository that does not exist (3), a missing extra (6). Each pass is a
    process of its own, so no memory is used between passes.

    \b
    Example: refstore gc run --all
             refstore gc run sales --grace-days 0 --min-age-seconds 7200
             refstore gc run --all --every 6h --metrics-port 9109
    """,
    )
)


@group.command("simulate")
def simulate(
    ctx: typer.Context,
    repo_name: Name,
    *,
    rules: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A file of rules to use instead of the repository's; '-': standard input."),
    ] = None,
    min_age_seconds: MinAge = None,
    foreign: Foreign = False,
    engine: EngineOption = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Show what would be marked now, by the repository's rules or by others. Change nothing.

    It warns of rules that let data of the latest view expire.

    \b
    Example: refstore gc simulate sales --rules stricter.json
    """
    from refstore_gc.gc_run import GcOptions

    options = GcOptions(min_age_seconds=min_age_seconds, includes_foreign=foreign)
    if rules is not None:
        document = read_document(str(rules))
        other_rules = read_rules(document).rules
        options = replace(options, rules=other_rules)
        warn_of(rule_warnings(other_rules))
        with repository_of(ctx, repo_name, only_read=True) as repo:
            warn_of(
                change.text for change in compare_with_current(repo.context, parse_rules(repo.context, document).rules)
            )
    _run(ctx, repo_name, Job("simulate", options), EngineRequest(engine, master, conf))


group.command("unmark")(unmark)
group.command("confirm")(confirm_mark)
group.command("stop")(stop)
group.command("status")(status)
group.command("report")(report)
group.command("lifecycle")(lifecycle)


# ---- on an engine


def _ledger_key(ctx: typer.Context, *, is_run: bool) -> bytes:
    """Return the key for `--purge-ledger`, which only a run takes."""
    settings = settings_of(ctx)
    key = read_purge_key(settings.purge_key, settings.data)
    if key is None:
        ctx.fail("--purge-ledger needs a purge_key in the settings")
    if not is_run:
        ctx.fail("--purge-ledger is for `refstore gc run`, without --dry-run")
    return key


def _repeat(
    ctx: typer.Context, every: str, repo_name: str | None, job: Job, request: EngineRequest, metrics_port: int | None
) -> None:
    from refstore.cli.gc_every import PassRequest, run_every

    if job.what == "simulate":
        ctx.fail("--every goes without --dry-run")
    settings = settings_of(ctx)
    if metrics_port is not None:
        settings = replace(settings, offline=replace(settings.offline, metrics_port=metrics_port))
    output = invocation_of(ctx).output
    run_every(ctx, duration_seconds("--every", every), PassRequest(settings, repo_name, job, request, output))


def _run(ctx: typer.Context, repo_name: str | None, job: Job, request: EngineRequest) -> None:
    """Run the job once, in one repository, or (None) in all."""
    every = repo_name is None
    with open_lake(ctx) as lake:
        names = (
            [lake.repository(repo_name).name] if repo_name is not None else [name for name, _ in lake.repositories()]
        )
        if job.what != "simulate":
            tell_of_the_wait(lake)
        from refstore.disk_reserves import DiskReserves

        reserves = DiskReserves(lake, settings_of(ctx).reaper.reserve_mib if job.what != "simulate" else 0)
        with reserves.release(), request.open(settings_of(ctx).offline) as engines, show_progress() as tell:
            ran = run_all(lake, names, job, engines, tell)
            cleared = clear_deleted(lake, job, engines, tell, ran.troubles) if every and job.what == "run" else []
        if ran.done or cleared or not ran.troubles:
            emit_summaries(invocation_of(ctx).output, ran.done, cleared, ran.purges)
        _raise_last(ran.troubles, of_many=every)
    if ran.failed or any(each["failed"] for each in cleared):
        raise typer.Exit(FAILED)
    if ran.asking or ran.has_purge_leftovers:
        raise typer.Exit(ASKING)


def _raise_last(troubles: Sequence[tuple[str, RefstoreError]], *, of_many: bool) -> None:
    """Print all errors but the last, and raise the last. `of_many`: whether to name the repositories."""
    for name, error in troubles if of_many else troubles[:-1]:
        typer.echo(f"{name}: {redact_text(str(error))}", err=True)
    if troubles:
        raise troubles[-1][1]
