"""`refstore gc`: the offline job. Mark garbage, sweep it after its grace period, and report both.

Marking and sweeping run in Spark (the extra `spark`). status, unmark, confirm, report and lifecycle do not need it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from refstore.cli.common import emit, invocation_of, open_lake, progress, repository_of, settings_of
from refstore.cli.destroying import DryRun, Yes, confirm
from refstore.cli.durations import duration_seconds
from refstore.cli.files import local_errors
from refstore.cli.retention import read_document, who
from refstore.cli.shapes import when
from refstore.core.redaction import redact_text
from refstore.errors import InvalidSettings, NotFound, RefstoreError, RepositoryNotFound
from refstore.gc_marks import Marks, Run, RunState
from refstore.lake import Lake
from refstore.operations import unmarking
from refstore.repository import Repository

if TYPE_CHECKING:
    from refstore_gc.run import Options
    from refstore_gc.run_progress import Progress as StepProgress
    from refstore_gc.run_summary import Mode, Summary
    from refstore_gc.session import SparkSession

app = typer.Typer()
group = typer.Typer(no_args_is_help=True)
app.add_typer(group, name="gc")

ASKING: Final = 4
"""The exit code if a mark waits for an operator."""
FAILED: Final = 5
"""The exit code if the store did not delete everything. The same call tries the rest again."""

Name = Annotated[str, typer.Argument(metavar="REPO", help="The repository.")]
MaybeName = Annotated[
    str | None, typer.Argument(metavar="[REPO]", help="The repository; or --all.", show_default=False)
]
MaybeBucket = Annotated[
    str | None, typer.Argument(metavar="[REPO]", help="The repository; or --bucket.", show_default=False)
]
All = Annotated[bool, typer.Option("--all", help="Every repository, and the objects of deleted ones.")]
GraceDays = Annotated[
    float | None, typer.Option(min=0, metavar="N", help="Days between mark and sweep; replaces the rules' value.")
]
MinAge = Annotated[float | None, typer.Option(min=0, metavar="N", help="Ignore younger objects; default: one day.")]
Master = Annotated[
    str, typer.Option(metavar="URL", help="Spark's: local[4], spark://host:7077, yarn, k8s://...", rich_help_panel=None)
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting; may be given several times.")
]
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
TakeOver = Annotated[bool, typer.Option("--take-over", help="Take over at once from a run that died recently.")]


@group.callback()
def gc() -> None:
    """Delete committed objects that only expired commits name, and orphans, which the online path never knew."""


def _marking(what: str) -> Callable[..., None]:
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
        every: Every = None,
        metrics_port: MetricsPort = None,
        master: Master = "local[*]",
        conf: Conf = None,
    ) -> None:
        offline = settings_of(ctx).offline
        options = _options(
            grace_days,
            min_age_seconds,
            mode,
            breaker_share,
            breaker_floor,
            foreign=foreign,
            full=full,
            full_days=full_days,
            take_over=take_over,
            tag=offline.tag_name,
        )
        job = Job("simulate" if dry_run else what, options, tag_wait_days=offline.tag_wait_days)
        if every is None:
            if metrics_port is not None:
                ctx.fail("--metrics-port is for --every")
            _in_spark(ctx, repo_name, all_, job, master, conf)
            return
        if dry_run or (repo_name is None) != all_:
            ctx.fail("--every goes without --dry-run" if dry_run else "name one repository, or give --all")
        from refstore.cli.gc_every import PassRequest, run_every

        settings = settings_of(ctx)
        if metrics_port is not None:
            settings = replace(settings, offline=replace(offline, metrics_port=metrics_port))
        run_every(
            ctx, duration_seconds("--every", every), PassRequest(settings, repo_name, job, master, list(conf or ()))
        )

    return command


group.command(
    "mark",
    help="""Mark garbage; nothing is deleted yet.

    The exit code is 4 if a mark waits for `refstore gc confirm`.

    First it applies the rules for branches. It resets entries that were staged longer ago than `uncommitted` allows.
    With allow_deletion_from_latest_view it also removes paths that `all` lets expire from branches, by commits.

    \b
    Example: refstore gc mark sales --dry-run
             refstore gc mark --all --master spark://host:7077
    """,
)(_marking("mark"))


@group.command("index")
def index(
    ctx: typer.Context,
    repo_name: Name,
    *,
    anew: Annotated[bool, typer.Option("--anew", help="Drop the index first, if one of its files is damaged.")] = False,
) -> None:
    """Update the index by which `refstore why` finds deletions. Every run does so; use this for deletions by earlier
    versions.

    \b
    Example: refstore gc index sales
             refstore gc index sales --anew
    """
    from refstore_gc import deletion_index_writer

    with repository_of(ctx, repo_name) as repo:
        emit(ctx, deletion_index_writer.rebuild(repo.context) if anew else deletion_index_writer.catch_up(repo.context))


@group.command("sweep")
def sweep(
    ctx: typer.Context,
    repo_name: Name,
    *,
    mark_id: Annotated[
        str | None, typer.Option("--mark", metavar="MARK_ID", help="The mark to sweep; default: all that are due.")
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode", metavar="MODE", help="delete (also tagged objects) or tag; default: the mode of the mark."
        ),
    ] = None,
    dry_run: DryRun = False,
    master: Master = "local[*]",
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
    chosen_mode = _mode(mode) if mode is not None else None
    with open_lake(ctx) as lake:
        repo = lake.repository(repo_name)
        marks = Marks(repo.context)
        if mark_id is not None:
            chosen = [marks.run(mark_id).mark_id]
        else:
            now = repo.context.clock.now_ms()
            chosen = [each.mark_id for each in marks.runs() if each.is_due(now)]
        if dry_run:
            emit(ctx, [_run_row(marks.run(each)) for each in chosen])
            return
        if not chosen:
            typer.echo(f"Nothing of {repo_name} is due.", err=True)
            emit_summaries(ctx, [])
            return
        done: list[Summary] = []
        troubles: list[tuple[str, RefstoreError]] = []
        with spark_session(master, conf) as spark, show_progress() as tell:
            from refstore_gc.run import sweep as run_sweep

            for each in chosen:
                try:
                    done.append(run_sweep(repo.context, spark, each, tell, mode=chosen_mode))
                except RefstoreError as error:  # no sweep rests on another
                    troubles.append((each, error))
        if done or not troubles:
            emit_summaries(ctx, done)
        _raise_last(troubles, of_many=len(chosen) > 1)
        if any(each.swept is not None and each.swept.failed for each in done):
            raise typer.Exit(FAILED)


group.command(
    "run",
    help="""The nightly job: sweep what is due, apply the rules to branches, then mark.

    With --grace-days 0 it sweeps the new mark at once.

    The exit code is 4 if a mark waits for `refstore gc confirm`, 5 if the store did not delete everything.

    With --every it repeats until SIGTERM, which abandons the current run cleanly and exits with 0. It logs failures
    and tries again at the next pass, also if another host is running the job. Only errors that no later pass can
    repair end it: a wrong setting (2), a named repository that does not exist (3), a missing extra (6). Each pass is a
    process of its own, so no memory is used between passes.

    \b
    Example: refstore gc run --all
             refstore gc run sales --grace-days 0 --min-age-seconds 7200
             refstore gc run --all --every 6h --metrics-port 9109
    """,
)(_marking("run"))
app.command(
    "expire",
    help="""The nightly job: short for `refstore gc run`.

    \b
    Example: refstore expire --all
             refstore expire sales --dry-run
    """,
)(_marking("run"))


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
    master: Master = "local[*]",
    conf: Conf = None,
) -> None:
    """Show what would be marked now, by the repository's rules or by others. Change nothing.

    \b
    Example: refstore gc simulate sales --rules stricter.json
    """
    document = read_document(str(rules)) if rules is not None else None
    options = _options(None, min_age_seconds, "delete", 0.5, 10_000, foreign=foreign)
    _in_spark(ctx, repo_name, False, Job("simulate", options, document), master, conf)


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
        found = (
            unmarking.preview(repo.context, which)
            if dry_run
            else unmarking.unmark(repo.context, which, pin=pin, by=who())
        )
        if found.expired and not (dry_run and pin):
            typer.echo(_marked_again(repo_name, which, found, dry_run=dry_run), err=True)
        row: dict[str, object] = {
            "repository": repo_name,
            "unmarked": found.unmarked,
            "still_expired": len(found.expired),
        }
        emit(ctx, row | {"pinned": len(found.commits) if found.pinned else 0})


def _marked_again(repo_name: str, which: str, found: unmarking.UnmarkResult, *, dry_run: bool) -> str:
    return (
        f"the rules call {len(found.expired)} of {len(found.commits)} commits expired, and the next run marks what "
        "they call so; amend them"
        f" (refstore retention explain {repo_name} {found.expired[0]} says which rule it is; refstore retention set "
        f"{repo_name} FILE)"
        + (
            f", or let them keep these: refstore gc unmark {repo_name} {which} --pin"
            if dry_run
            else ", or add these to pins.commits"
        )
    )


@group.command("confirm")
def confirm_(
    ctx: typer.Context, repo_name: Name, mark_id: Annotated[str, typer.Argument(metavar="MARK_ID")], *, yes: Yes = False
) -> None:
    """Confirm a mark that is larger than the breaker allows, so that it can be swept.

    \b
    Example: refstore gc confirm sales 01m7z3zav9bbbjvdydt7m95zqf
    """
    with repository_of(ctx, repo_name) as repo:
        marks = Marks(repo.context)
        found = marks.run(mark_id)
        confirm(ctx, found.record.question or f"mark {mark_id} is {found.shown}", yes=yes)
        emit(ctx, _run_row(marks.confirm(mark_id, who())))


@group.command("status")
def status(ctx: typer.Context, repo_name: Name) -> None:
    """List the marks: waiting, due and swept ones, with the sizes of each.

    \b
    Example: refstore gc status sales --json
    """
    with repository_of(ctx, repo_name) as repo:
        emit(ctx, (_run_row(each) for each in Marks(repo.context).runs()))


@group.command("report")
def report(
    ctx: typer.Context,
    repo_name: Name,
    mark_id: Annotated[
        str | None,
        typer.Argument(metavar="[MARK_ID]", help="The mark to report on; default: the last one.", show_default=False),
    ] = None,
    *,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with charts to this file.")] = None,
) -> None:
    """Show what a run marked, and what the store confirmed of its sweep.

    \b
    Example: refstore gc report sales --html report.html
    """
    from refstore_gc.report import page, summaries

    with repository_of(ctx, repo_name) as repo:
        every = list(summaries(repo.context.objects, Marks(repo.context)))
        chosen = [each for each in every if mark_id in (None, each.mark_id)]
        if not chosen:
            of = f" of {mark_id}" if mark_id else ""
            raise NotFound(
                f"{repo_name!r} has no report{of}; see which runs there were: refstore gc status {repo_name}"
            )
        summary = chosen[-1]
        if html is not None:
            with local_errors():
                html.write_text(page(summary, every[: every.index(summary)]), "utf-8")
        emit_summaries(ctx, [summary])


@group.command("lifecycle")
def lifecycle(
    ctx: typer.Context,
    repo_name: MaybeBucket = None,
    *,
    bucket: Annotated[
        bool, typer.Option("--bucket", help="One rule for the whole bucket, which only this lake may use.")
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
    bucket; --apply adds this rule to them. Read the warning if others share the bucket. The tag is the setting
    offline.tag_name.

    \b
    Example: refstore gc lifecycle sales > lifecycle.json
             refstore gc lifecycle --bucket --apply
             refstore gc lifecycle --bucket --dry-run
    """
    from refstore_gc import bucket_lifecycle as rules

    if (repo_name is None) != bucket:
        ctx.fail("name one repository, or give --bucket")
    tag = settings_of(ctx).offline.tag_name
    with open_lake(ctx) as lake, ExitStack() as stack:
        if repo_name is not None:
            store = lake.repository(repo_name).context.objects
            rule = rules.rule_of(store, tag)
        else:
            store = stack.enter_context(closing(rules.bucket_store(lake)))
            rule = rules.bucket_rule(tag)
            rules.check_bucket_is_ours(lake, store)
        typer.echo(rules.warning(rule), err=True)
        made: dict[str, Any] = {"Rules": [rule.document()]}
        if dry_run:
            made = rules.configuration(store, rule)
        elif apply:
            confirm(ctx, "the bucket's lifecycle configuration will be changed", yes=yes)
            made = rules.apply(store, rule)
        print(json.dumps(made, indent=2))


# ---- in Spark


@dataclass(frozen=True, slots=True)
class Job:
    what: str
    options: Callable[[], Options]
    rules: str | None = None
    tag_wait_days: float = 3.0
    """Warn about tagged objects that wait longer than this for the bucket."""


def _options(
    grace_days: float | None,
    min_age_seconds: float | None,
    mode: str,
    share: float,
    floor: int,
    *,
    foreign: bool,
    full: bool = False,
    full_days: float = 7.0,
    take_over: bool = False,
    tag: str = "",
) -> Callable[[], Options]:
    """Make the options. Called only if pyspark is installed, because they need its modules."""
    return partial(
        _made,
        grace_days=grace_days,
        min_age_seconds=min_age_seconds,
        mode=_mode(mode),
        share=share,
        floor=floor,
        foreign=foreign,
        full=full,
        full_days=full_days,
        take_over=take_over,
        tag=tag,
    )


def _mode(text: str) -> Mode:
    if text not in ("delete", "tag"):
        raise InvalidSettings(f"{text!r} is not a mode of sweeping; use delete or tag")
    return "delete" if text == "delete" else "tag"


def _made(*, mode: Mode, share: float, floor: int, tag: str, **others: Any) -> Options:
    from refstore_gc.mark_breaker import Limits
    from refstore_gc.run import Options
    from refstore_gc.run_layout import TAG

    return Options(mode=mode, limits=Limits(share=share, floor_objects=floor), tag=tag or TAG, **others)


def _in_spark(
    ctx: typer.Context, repo_name: str | None, every: bool, job: Job, master: str, conf: Sequence[str] | None
) -> None:
    if (repo_name is None) != every:
        ctx.fail("name one repository, or give --all")
    with open_lake(ctx) as lake:
        names = (
            [lake.repository(repo_name).name] if repo_name is not None else [name for name, _ in lake.repositories()]
        )
        with spark_session(master, conf) as spark, show_progress() as tell:
            done, asking, failed, troubles, _ = run_all(lake, names, job, spark, tell)
            cleared = clear_deleted(lake, job, spark, tell, troubles) if every and job.what == "run" else []
        if done or cleared or not troubles:
            emit_summaries(ctx, done, cleared)
        _raise_last(troubles, of_many=every)
    if failed or any(each["failed"] for each in cleared):
        raise typer.Exit(FAILED)
    if asking:
        raise typer.Exit(ASKING)


def _raise_last(troubles: Sequence[tuple[str, RefstoreError]], *, of_many: bool) -> None:
    """Print all errors but the last, and raise the last. `of_many`: whether to name the repositories."""
    for name, error in troubles if of_many else troubles[:-1]:
        typer.echo(f"{name}: {redact_text(str(error))}", err=True)
    if troubles:
        raise troubles[-1][1]


class AllRan(NamedTuple):
    done: list[Summary]
    """The summaries of the marks that were swept or made."""
    asking: int
    """Marks that wait for an operator."""
    failed: int
    """Keys that the store did not delete."""
    troubles: list[tuple[str, RefstoreError]]
    """The errors, by repository."""
    marked: bool = False
    """Whether the last summary is of a new mark, in the last repository."""


def run_all(lake: Lake, names: Sequence[str], job: Job, spark: SparkSession, tell: Any) -> AllRan:
    """Run the job in each of these repositories. An error in one does not stop the others."""
    from refstore.retention.rules import read_rules
    from refstore_gc import run
    from refstore_gc.bucket_lifecycle import overdue

    options = job.options()
    if job.rules is not None:
        options = replace(options, rules=read_rules(job.rules).rules)
    done: list[Summary] = []
    troubles: list[tuple[str, RefstoreError]] = []
    asking = failed = 0
    marked = False

    def unswept(name: str, _mark_id: str, error: RefstoreError) -> None:
        troubles.append((name, error))

    for name in names:
        swept: list[Summary] = []
        marked = False
        try:
            repo = _still_there(lake, name)
            if repo is None:
                continue
            if job.what == "simulate":
                done.append(run.simulate(repo.context, spark, options, tell))
            elif job.what == "mark":
                done.append(run.mark(repo.context, spark, options, tell))
                asking += bool(done[-1].question)
            else:
                ran = run.run(
                    repo.context, spark, options, tell, on_unswept=partial(unswept, name), on_swept=swept.append
                )
                done += [*(each for each in ran.swept if each.mark_id != ran.marked.mark_id), ran.latest]
                asking += sum(each.state is RunState.NEEDS_CONFIRMATION for each in ran.waiting)
                failed += ran.failed
                for line in overdue(ran.waiting, lake.clock.now_ms(), job.tag_wait_days):
                    typer.echo(f"refstore: warning: {name}: {line}", err=True)
            marked = True
        except RefstoreError as error:  # the others do not answer for it
            done += swept  # what was swept before the marking failed
            troubles.append((name, error))
    return AllRan(done, asking, failed, troubles, marked)


def _still_there(lake: Lake, name: str) -> Repository | None:
    """Return the repository; None if it was deleted since it was listed."""
    try:
        return lake.repository(name)
    except RepositoryNotFound:
        return None


def clear_deleted(
    lake: Lake, job: Job, spark: SparkSession, tell: Any, troubles: list[tuple[str, RefstoreError]]
) -> list[dict[str, Any]]:
    from refstore_gc import bucket_lifecycle as lifecycle_
    from refstore_gc.deleted_repositories import clear, closed

    rows: list[dict[str, Any]] = []
    for repo, record in list(closed(lake)):
        try:
            found = clear(lake, repo, record, spark, job.options(), tell)
        except RefstoreError as error:
            troubles.append((repo, error))
            continue
        deleted = found.swept.outcomes.get("deleted") if found.swept else None
        if found.waiting.objects and lake.clock.now_ms() - found.tagged_ms > job.tag_wait_days * 86_400_000:
            typer.echo(f"refstore: warning: {repo} (deleted): {lifecycle_.overdue_words(found.tagged_ms)}", err=True)
        rows.append(
            {
                "repository": f"{repo} (deleted)",
                "due": when(found.due_ms),
                "deleted": deleted.objects if deleted else 0,
                "bytes": deleted.bytes if deleted else 0,
                "failed": found.failed,
                "tagged": found.waiting.objects,
                "tagged_since": when(found.tagged_ms or None),
                "foreign": found.foreign.objects,
                "forgotten": found.forgotten,
            }
        )
    return rows


@contextmanager
def spark_session(master: str, conf: Sequence[str] | None) -> Generator[SparkSession, None, None]:
    from refstore_gc.session import SparkOptions, session

    given: dict[str, str] = {}
    for each in conf or ():
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise InvalidSettings(f"--conf {each!r} is not KEY=VALUE; write it as spark.executor.memory=4g")
        given[name] = value
    with session(SparkOptions(master=master, conf=given)) as spark:
        yield spark


@contextmanager
def show_progress() -> Generator[Callable[[StepProgress], None], None, None]:
    with progress("starting") as bar:

        def tell(now: StepProgress) -> None:
            left = f", about {now.left_seconds:,.0f} s left" if now.left_seconds is not None else ""
            of = f"{now.done:,} of {now.total:,}" if now.total else f"{now.done:,}" if now.done else ""
            bar.describe(f"{now.step}: {of}{left}" if of else now.step)

        yield tell


def emit_summaries(ctx: typer.Context, done: Sequence[Summary], cleared: Sequence[dict[str, Any]] = ()) -> None:
    if invocation_of(ctx).json:
        emit(ctx, {"runs": list(done), "deleted_repositories": list(cleared)})
        return
    for summary in done:
        emit(ctx, _summary_row(summary))
        typer.echo()
        if summary.question and summary.state == RunState.NEEDS_CONFIRMATION:
            typer.echo(
                f"{summary.question}; allow the sweep with: refstore gc confirm {summary.repository} "
                f"{summary.mark_id}\n",
                err=True,
            )
        if summary.drift:
            from refstore_gc.run_summary import DRIFT_NOTE

            typer.echo(DRIFT_NOTE, err=True)
        for each in summary.online.left:
            typer.echo(f"not applied: {each}", err=True)
        if summary.swept is not None:
            for each in summary.swept.failures:
                typer.echo(f"failed: {each}", err=True)
    if cleared:
        emit(ctx, cleared)


def _summary_row(summary: Summary) -> dict[str, object]:
    row: dict[str, object] = {
        "repository": summary.repository,
        "mark": summary.mark_id,
        "state": summary.state,
        "sweep_from": when(summary.deletes_at_ms),
        "goes_on_from": summary.goes_on_from or f"nothing: {summary.why_complete or 'everything was listed and read'}",
        "listed": _shown(summary.listed),
        "kept": _shown(summary.kept),
        "marked": _shown(summary.marked),
        "commits_complete": summary.commits.get("complete", 0),
    }
    row |= {reason: _shown(count) for reason, count in summary.by_reason.items()}
    row |= {f"below {prefix}": _shown(count) for prefix, count in summary.by_prefix.items()}
    if summary.online.staged.objects:
        row["staged_too_long_ago"] = _shown(summary.online.staged)
    if summary.online.latest_view.objects:
        row["from_the_latest_view"] = f"{_shown(summary.online.latest_view)}, {summary.online.commits} commits"
    if summary.pending.objects:
        row["marked_or_tagged_before"] = _shown(summary.pending)
    if summary.young.objects:
        row["too_young"] = _shown(summary.young)
    if summary.foreign.objects:
        row["not_refstores"] = _shown(summary.foreign)
    if summary.swept is not None:
        row |= {outcome: _shown(count) for outcome, count in summary.swept.outcomes.items()}
        if summary.swept.tagged.objects:
            row["tagged"] = (
                f"{_shown(summary.swept.tagged)} wait for the bucket since "
                f"{when(summary.swept.tagged_ms or None) or 'now'}"
            )
        for prefix, of in sorted(summary.swept.by_prefix.items()):
            row |= {f"{outcome} below {prefix}": _shown(count) for outcome, count in of.items()}
        row["commits_dropped_out"] = summary.swept.commits_dropped_out
        if summary.swept.dropped_out_by_rules:
            row["of_these_by_rules"] = summary.swept.dropped_out_by_rules
        if summary.swept.rules_changed:
            row["rules"] = "changed since the mark; what they keep is excluded"
    return row


def _shown(count: Any) -> str:
    return f"{count.objects:,} objects, {count.bytes:,} bytes"


def _run_row(run: Run) -> dict[str, object]:
    record = run.record
    return {
        "mark": run.mark_id,
        "state": run.shown,
        "began": when(record.began_ms),
        "sweep_from": when(record.deletes_at_ms or None),
        "tagged": when(record.tagged_ms or None),
        "swept": when(record.swept_ms or None),
        "commits": record.counts.get("commits_marked", 0),
        "complete": record.counts.get("commits_complete", 0),
        "objects": record.counts.get("objects"),
        "bytes": record.counts.get("bytes"),
        "question": record.question or None,
        "confirmed_by": record.confirmed_by or None,
        "ended": record.ended or None,
    }
