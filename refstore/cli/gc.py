"""`refstore gc`: the offline job. Mark garbage, sweep it after its grace period, and report both.

Marking and sweeping run on this machine or on Spark (the extra `spark`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from refstore.cli.common import emit, invocation_of, open_lake, repository_of, settings_of, warn_of, who
from refstore.cli.confirmation import confirm
from refstore.cli.files import read_document
from refstore.cli.gc_job import (
    EngineRequest,
    Job,
    clear_all_deleted,
    run_all,
    show_progress,
    sweep_mode,
    tell_of_the_wait,
)
from refstore.cli.gc_tables import emit_summaries, run_row
from refstore.cli.parameters import LAST, Conf, DryRun, EngineOption, Master, Name, Yes
from refstore.cli.rows import LONGEST_SECONDS, seconds_of
from refstore.core.durations import parse_duration
from refstore.core.redaction import redact_text
from refstore.core.units import DAY_SECONDS
from refstore.errors import NotFound, RefstoreError
from refstore.gc_marks import Marks
from refstore.monitoring import figures, run_control
from refstore.operations import unmark as unmark_operation
from refstore.operations.rule_review import compare_with_current
from refstore.operations.rules_document import parse_rules
from refstore.purge_document.purge_key import read_purge_key
from refstore.retention.rules import Rules, read_rules, rule_warnings

if TYPE_CHECKING:
    from refstore.lake import Lake
    from refstore_gc.run_summary import SweepMode

app = typer.Typer()
group = typer.Typer(no_args_is_help=True)
app.add_typer(group, name="gc")

ASKING: Final = 4
"""The exit code if a mark waits for an operator."""
FAILED: Final = 5
"""The exit code if the store did not delete everything. The same call tries the rest again."""

MaybeName = Annotated[str | None, typer.Argument(metavar="REPO", help="The repository; or --all.", show_default=False)]
All = Annotated[bool, typer.Option("--all", help="Every repository, and the objects of deleted ones.")]
Only = Annotated[
    Literal["", "mark", "sweep", "index"],
    typer.Option(
        metavar="PART", help="mark; sweep what is due; or index: add to the index of `refstore why` what is missing."
    ),
]
RulesFile = Annotated[
    str | None,
    typer.Option(
        "--rules", metavar="FILE", help="With --dry-run: by these rules, not the repository's; '-': standard input."
    ),
]
MarkId = Annotated[
    str | None,
    typer.Option("--mark", metavar="MARK_ID", help="With --only sweep: this mark; default: all that are due."),
]
Grace = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="Time between mark and sweep, such as 7d; replaces the rules' value."),
]
MinAge = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION", help="Ignore younger objects; default: 1d, and never below the longest operation."
    ),
]
ModeOption = Annotated[
    str | None,
    typer.Option(
        "--mode",
        metavar="MODE",
        help="delete; or tag, for a bucket's lifecycle rule to delete. Default: delete. An earlier mark is swept by "
        "its own mode, unless --only sweep says another one.",
    ),
]
Share = Annotated[
    float, typer.Option(min=0, max=1, metavar="N", help="A mark of more than this share needs `gc confirm`.")
]
Floor = Annotated[int, typer.Option(min=0, metavar="N", help="A mark of fewer objects than this never does.")]
Foreign = Annotated[bool, typer.Option("--foreign", help="Also mark objects in data/ that refstore never wrote.")]
Full = Annotated[
    bool,
    typer.Option("--full", help="List and read everything, also what the last run did; of the index: write all of it."),
]
FullAfter = Annotated[str, typer.Option(metavar="DURATION", help="Make a full run if the last one is older than this.")]
TakeOver = Annotated[bool, typer.Option("--take-over", help="Take over at once from a run that died recently.")]
PurgeLedger = Annotated[
    bool, typer.Option("--purge-ledger", help="Also purge what came or returned of ids that were purged before.")
]

_MARKING: Final = frozenset(
    ("grace", "min_age", "breaker_share", "breaker_floor", "foreign", "full", "full_after", "take_over")
)
_OPTIONS_OF: Final[Mapping[str, frozenset[str]]] = {
    "": _MARKING | {"mode", "purge_ledger"},
    "mark": _MARKING | {"mode"},
    "sweep": frozenset(("mark_id", "mode")),
    "index": frozenset(("full",)),
}
"""What each part of the job takes, besides the options of all parts."""


@group.callback()
def gc() -> None:
    """Delete committed objects that only expired commits name, and orphans, which the online path never knew."""


def _job_command(help_: str) -> Callable[..., None]:
    """Make the command that runs the job: `gc run`, and its short name `expire`."""

    def command(
        ctx: typer.Context,
        repo_name: MaybeName = None,
        *,
        all_: All = False,
        only: Only = "",
        dry_run: DryRun = False,
        rules: RulesFile = None,
        mark_id: MarkId = None,
        grace: Grace = None,
        min_age: MinAge = None,
        mode: ModeOption = None,
        breaker_share: Share = 0.5,
        breaker_floor: Floor = 10_000,
        foreign: Foreign = False,
        full: Full = False,
        full_after: FullAfter = "7d",
        take_over: TakeOver = False,
        purge_ledger: PurgeLedger = False,
        engine: EngineOption = None,
        master: Master = None,
        conf: Conf = None,
    ) -> None:
        from refstore_gc.gc_run import GcOptions
        from refstore_gc.run_context import BreakerLimits

        _check_part(ctx, only, dry_run=dry_run)
        if (repo_name is None) != all_:
            ctx.fail("name one repository, or give --all")
        chosen_mode = sweep_mode(mode) if mode is not None else None
        grace_seconds = seconds_of("--grace", grace)
        options = GcOptions(
            grace_days=None if grace_seconds is None else grace_seconds / DAY_SECONDS,
            min_age_seconds=seconds_of("--min-age", min_age),
            mode=chosen_mode or "delete",
            limits=BreakerLimits(share_max=breaker_share, floor_objects=breaker_floor),
            includes_foreign=foreign,
            is_full=full,
            full_days=parse_duration("--full-after", full_after, least=0, most=LONGEST_SECONDS) / DAY_SECONDS,
            take_over=take_over,
        )
        request = EngineRequest(engine, master, conf)
        if only == "index":
            _index(ctx, repo_name, full=full)
        elif only == "sweep":
            _sweep(ctx, repo_name, mark_id, chosen_mode, request, dry_run=dry_run)
        else:
            if rules is not None:
                options = replace(options, rules=_other_rules(ctx, repo_name, rules))
            key = _ledger_key(ctx) if purge_ledger else None
            _run(ctx, repo_name, Job("simulate" if dry_run else only or "run", options, purge_key=key), request)

    command.__doc__ = help_
    return command


def _check_part(ctx: typer.Context, only: str, *, dry_run: bool) -> None:
    """End the command for an option that the part does not take."""
    allowed = {*_OPTIONS_OF[only]}
    if dry_run:
        allowed = allowed - {"purge_ledger"} | ({"rules"} if only in ("", "mark") else set[str]())
    every = {"rules"}.union(*_OPTIONS_OF.values())
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(parameter.name or "")
        if parameter.name in every - allowed and source is not None and source.name != "DEFAULT":
            what = f"--only {only}" if only else "the whole job"
            advice = "; add --dry-run" if parameter.name == "rules" and only in ("", "mark") else ""
            ctx.fail(f"{parameter.opts[0]} is not for {what}{' with --dry-run' if dry_run else ''}{advice}")
    if only == "index" and dry_run:
        ctx.fail("--dry-run is not for --only index, which deletes nothing")


group.command("run")(
    _job_command(
        """The nightly job: sweep what is due, apply the rules to branches, then mark. Or, with --only, a part of it.

    Applying the rules resets entries that were staged longer ago than `uncommitted` allows. With
    allow_deletion_from_latest_view it also removes paths that `all` lets expire from branches, by commits. A repeated
    sweep continues where the last one stopped. Objects that the current rules keep stay, also if the rules were set
    after the mark. Of a tagged mark it checks which objects the bucket has deleted; with --only sweep --mode delete it
    does not wait for the bucket. With --grace 0 the job sweeps the new mark at once.

    --dry-run shows what would be marked, by the repository's rules or those of --rules, and warns of rules that let
    data of the latest view expire. With --only sweep it lists the marks that would be swept.

    The exit code is 4 if a mark waits for `refstore gc confirm`, or --purge-ledger left something that is listed, and 5
    if the store did not delete everything, whatever else is left. An error has its own code before both.

    \b
    Example: refstore gc run --all
             refstore gc run sales --dry-run --rules stricter.json
             refstore gc run sales --grace 0 --min-age 2h
             refstore gc run --all --only mark --master spark://host:7077
             refstore gc run sales --only sweep --mark 01m7z3zav9bbbjvdydt7m95zqf
    """,
    )
)


app.command("expire")(
    _job_command(
        """The nightly job: short for `refstore gc run`.

    \b
    Example: refstore expire --all
             refstore expire sales --dry-run
    """,
    )
)


def _index(ctx: typer.Context, repo_name: str | None, *, full: bool) -> None:
    """Add to the index of `refstore why` what is missing, or write it again. Every run does so, too."""
    from refstore_gc import deletion_index_writer

    update = deletion_index_writer.rebuild if full else deletion_index_writer.index_missing
    if repo_name is not None:
        with repository_of(ctx, repo_name) as repo:
            emit(ctx, update(repo.context))
        return
    with open_lake(ctx) as lake:
        rows: list[dict[str, object]] = []
        troubles: list[tuple[str, RefstoreError]] = []
        for name in _names(lake, None):
            try:
                rows.append({"repository": name, **update(lake.repository(name).context)._asdict()})
            except RefstoreError as error:  # no index rests on another
                troubles.append((name, error))
        emit(ctx, rows)
        _raise_last(troubles, of_many=True)


def _names(lake: Lake, repo_name: str | None) -> list[str]:
    """Return the repository's name; (None) those of all. Raises RepositoryNotFound."""
    if repo_name is not None:
        return [lake.repository(repo_name).name]
    return [name for name, _ in lake.repository_records()]


def _sweep(
    ctx: typer.Context,
    repo_name: str | None,
    mark_id: str | None,
    mode: SweepMode | None,
    request: EngineRequest,
    *,
    dry_run: bool,
) -> None:
    """Sweep a mark, or all that are due, in one repository, or (None) in all. No sweep rests on another."""
    if mark_id is not None and repo_name is None:
        ctx.fail("--mark is of one repository; name it instead of --all")
    with open_lake(ctx) as lake:
        from refstore_gc.collection import CollectRequest, run_repositories
        from refstore_gc.run_context import GcOptions

        names = _names(lake, repo_name)
        with request.open() as engines, show_progress() as report_progress:
            asked = CollectRequest(
                options=GcOptions(),
                only="sweep",
                dry_run=dry_run,
                mark_id=mark_id,
                mode=mode,
                report_progress=report_progress,
            )
            runs = list(run_repositories(lake, names, engines, asked))
        done = [each for run in runs for each in run.summaries]
        troubles = [(each.mark_id or run.repository, each.error) for run in runs for each in run.errors]
        due = [run_row(Marks(run.repo.context), each) for run in runs if run.repo for each in run.due]
        if not (dry_run or done or troubles):
            typer.echo(f"Nothing of {repo_name or 'any repository'} is due.", err=True)
        if dry_run and (due or not troubles):
            emit(ctx, due)
        elif done or not troubles:
            emit_summaries(invocation_of(ctx).output, done)
        _raise_last(troubles, of_many=len(done) + len(troubles) > 1)
        if any(each.failed_objects for each in runs):
            raise typer.Exit(FAILED)


def _other_rules(ctx: typer.Context, repo_name: str | None, file: str) -> Rules:
    """Read other rules than the repository's, and warn of what they would let go."""
    if repo_name is None:
        ctx.fail("--rules are of one repository; name it instead of --all")
    document = read_document(file)
    rules = read_rules(document).rules
    warn_of(rule_warnings(rules))
    with repository_of(ctx, repo_name, read_only=True) as repo:
        changes = compare_with_current(repo.context, parse_rules(repo.context, document).rules)
        warn_of(change.text for change in changes)
    return rules


# ---- what an operator decides and looks at


@group.command("unmark")
def unmark(
    ctx: typer.Context,
    repo_name: Name,
    which: Annotated[str, typer.Argument(metavar="COMMIT|MARK_ID", help="A commit, or a mark id for all its commits.")],
    *,
    pin: Annotated[
        bool, typer.Option("--pin", help="Also add the commits to the pins of the rules: they never expire then.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Make a marked commit, or all commits of a mark, active again. This works until the sweep begins.

    The next run marks commits again that have expired by the rules: change the rules first, or give --pin. --dry-run
    lists these commits.

    \b
    Example: refstore gc unmark sales 6e40c9... --dry-run
             refstore gc unmark sales 6e40c9... --pin
    """
    with repository_of(ctx, repo_name) as repo:
        which = Marks(repo.context).runs.full_id(which)
        found = (
            unmark_operation.preview_unmark(repo.context, which)
            if dry_run
            else unmark_operation.unmark(repo.context, which, pin=pin, by=who())
        )
        if not dry_run:
            figures.write_marks(repo.context)
        if found.expired_commits and not (dry_run and pin):
            typer.echo(_marked_again(repo_name, which, found, dry_run=dry_run), err=True)
        row: dict[str, object] = {
            "repository": repo_name,
            "unmarked": found.unmarked_commits,
            "still_expired": len(found.expired_commits),
        }
        emit(ctx, row | {"pinned": len(found.commits) if found.is_pinned else 0})


def _marked_again(repo_name: str, which: str, found: unmark_operation.UnmarkResult, *, dry_run: bool) -> str:
    explain = f"refstore retention explain {repo_name} {found.expired_commits[0]}"
    keep_these = (
        f"or let them keep these: refstore gc unmark {repo_name} {which} --pin"
        if dry_run
        else "or add these to pins.commits"
    )
    return (
        f"the rules call {len(found.expired_commits)} of {len(found.commits)} commits expired, and the next run marks "
        f"what they call so; amend them ({explain} says which rule it is; refstore retention set {repo_name} FILE), "
        f"{keep_these}"
    )


@group.command("confirm")
def confirm_mark(
    ctx: typer.Context, repo_name: Name, mark_id: Annotated[str, typer.Argument(metavar="MARK_ID")], *, yes: Yes = False
) -> None:
    """Confirm a mark that is larger than the breaker allows, so that it can be swept.

    \b
    Example: refstore gc confirm sales 01m7z3zav9bbbjvdydt7m95zqf
    """
    with repository_of(ctx, repo_name) as repo:
        marks = Marks(repo.context)
        mark_id = marks.runs.full_id(mark_id)
        found = marks.runs.get(mark_id)
        confirm(ctx, found.record.question or f"mark {mark_id} is {found.state_text}", yes=yes)
        confirmed = marks.decisions.confirm(mark_id, who())
        figures.write_marks(repo.context)
        emit(ctx, run_row(marks, confirmed))


@group.command("stop")
def stop(
    ctx: typer.Context,
    repo_name: Name,
    run_id: Annotated[
        str, typer.Argument(metavar="RUN", help="The run; default: the only one under way.", show_default=False)
    ] = "",
    *,
    yes: Yes = False,
) -> None:
    """Stop a run of the offline job, or of a purge, that is under way. It ends within seconds.

    A marking that is stopped marks nothing. A sweep goes on with the next run; it cannot be taken back. A purge that is
    run again does what is left.

    \b
    Example: refstore gc stop sales --yes
    """
    with repository_of(ctx, repo_name) as repo:
        under_way = [each for each in run_control.active_runs(repo.context) if each.run_id.startswith(run_id)]
        if len(under_way) != 1:
            runs = ", ".join(f"{each.progress.kind} {each.run_id}" for each in under_way) or "none"
            raise NotFound(f"which run is to stop is not clear; under way in {repo_name!r}: {runs}")
        chosen = under_way[0]
        confirm(ctx, f"the {chosen.progress.kind} {chosen.run_id} of {chosen.progress.owner} will stop", yes=yes)
        run_control.request_stop(repo.context, chosen.run_id, who())
        emit(ctx, {"repository": repo_name, "run": chosen.run_id, "kind": chosen.progress.kind, "asked_to_stop": True})


@group.command("status")
def status(
    ctx: typer.Context,
    repo_name: Name,
    mark_id: Annotated[
        str, typer.Argument(metavar="MARK_ID", help="The report on this mark; last: on the last one.")
    ] = "",
) -> None:
    """List the marks: waiting, due and swept ones. Or report what the run of one marked, and what its sweep deleted.

    Of a mark that waits, `commits` are those that it still has. What the `unmarked` ones name stays, so `objects` and
    `bytes` are then the most that the sweep deletes. Of a swept mark, `commits` were swept, `deleted` are the objects
    that the store confirmed, and `left` those that were named again.

    \b
    Example: refstore gc status sales --json
             refstore gc status sales last
    """
    with repository_of(ctx, repo_name, read_only=True) as repo:
        marks = Marks(repo.context)
        if not mark_id:
            emit(ctx, (run_row(marks, each) for each in marks.runs.scan()))
            return
        from refstore_gc.run_summary import read_summaries

        every = read_summaries(repo.context.objects, marks.runs.scan())
        full_id = None if mark_id == LAST else marks.runs.full_id(mark_id)
        chosen = [each for each in every if full_id in (None, each.mark_id)]
        if not chosen:
            of = f" of {full_id}" if full_id else ""
            raise NotFound(
                f"{repo_name!r} has no report{of}; see which runs there were: refstore gc status {repo_name}"
            )
        emit_summaries(invocation_of(ctx).output, [chosen[-1]])


@group.command("lifecycle")
def lifecycle(
    ctx: typer.Context,
    repo_name: Annotated[
        str | None, typer.Argument(metavar="REPO", help="The repository; or --whole-bucket.", show_default=False)
    ] = None,
    *,
    bucket: Annotated[
        bool, typer.Option("--whole-bucket", help="One rule for the whole bucket, which only this lake may use.")
    ] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Put the rule into the bucket's configuration.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the configuration that --apply would write; change nothing."),
    ] = False,
    yes: Yes = False,
) -> None:
    """Print or apply the lifecycle rule that deletes objects tagged by `--mode tag`, for one namespace or the bucket.

    The output is input for `aws s3api put-bucket-lifecycle-configuration`. That command replaces all rules of the
    bucket; --apply adds this rule to them. Read the warning if others share the bucket.

    \b
    Example: refstore gc lifecycle sales > lifecycle.json
             refstore gc lifecycle --whole-bucket --apply
             refstore gc lifecycle --whole-bucket --dry-run
    """
    from refstore_gc import bucket_lifecycle as rules

    if (repo_name is None) != bucket:
        ctx.fail("name one repository, or give --whole-bucket")
    with open_lake(ctx) as lake, ExitStack() as stack:
        if repo_name is not None:
            store = lake.repository(repo_name).context.objects
            rule = rules.repository_rule(store)
        else:
            store = stack.enter_context(closing(rules.bucket_store(lake)))
            rule = rules.LifecycleRule("", rules.deletes_versions(store))
            rules.check_bucket_is_ours(lake, store)
        typer.echo(rules.rule_warning(rule), err=True)
        made: dict[str, Any] = {"Rules": [rule.document()]}
        if dry_run:
            made = rules.bucket_configuration(store, rule)
        elif apply:
            confirm(ctx, "the bucket's lifecycle configuration will be changed", yes=yes)
            made = rules.apply_rule(store, rule)
        print(json.dumps(made, indent=2))


# ---- on an engine


def _ledger_key(ctx: typer.Context) -> bytes:
    """Return the key for `--purge-ledger`."""
    settings = settings_of(ctx)
    key = read_purge_key(settings.purge_key, settings.data)
    if key is None:
        ctx.fail("--purge-ledger needs a purge_key in the settings")
    return key


def _run(ctx: typer.Context, repo_name: str | None, job: Job, request: EngineRequest) -> None:
    """Run the job once, in one repository, or (None) in all."""
    every = repo_name is None
    with open_lake(ctx) as lake:
        names = _names(lake, repo_name)
        if job.what != "simulate":
            tell_of_the_wait(lake)
        from refstore.disk_reserves import DiskReserves

        reserves = DiskReserves(lake, settings_of(ctx).reaper.reserve if job.what != "simulate" else 0)
        with reserves.release(), request.open() as engines, show_progress() as tell:
            ran = run_all(lake, names, job, engines, tell)
            cleared = clear_all_deleted(lake, job, engines, tell, ran.troubles) if every and job.what == "run" else []
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
