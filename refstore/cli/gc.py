"""`refstore gc`: the offline job. Mark what nobody needs, sweep it when its grace is over, and say what was done.

Marking and sweeping run in Spark (the extra `spark`); status, unmark, confirm, report and lifecycle do without it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from refstore.cli.common import emit, invocation_of, open_lake, progress, repository_of
from refstore.cli.destroying import DryRun, Yes, confirm
from refstore.cli.files import local_errors
from refstore.cli.retention import read_document, who
from refstore.cli.shapes import when
from refstore.errors import InvalidSettings, NotFound, RefstoreError, RepositoryNotFound
from refstore.lake import Lake
from refstore.marks import Marks, Run, State
from refstore.redaction import redact_text
from refstore.repository import Repository

if TYPE_CHECKING:
    from offline_gc.run import Options
    from offline_gc.session import SparkSession
    from offline_gc.steps import Progress as StepProgress
    from offline_gc.summary import Summary

app = typer.Typer()
group = typer.Typer(no_args_is_help=True)
app.add_typer(group, name="gc")

ASKING: Final = 4
"""The exit code where a mark waits for an operator."""
FAILED: Final = 5
"""Where the store did not delete everything; the same call tries what is left."""

Name = Annotated[str, typer.Argument(metavar="REPO", help="The repository.")]
MaybeName = Annotated[str | None, typer.Argument(metavar="[REPO]", help="The repository; or --all.", show_default=False)]
All = Annotated[bool, typer.Option("--all", help="Every repository, and what deleted ones left.")]
GraceDays = Annotated[float | None, typer.Option(min=0, metavar="N", help="Between mark and sweep, whatever the rules say.")]
MinAge = Annotated[float | None, typer.Option(min=0, metavar="N", help="Leave alone what is younger; left out: a day.")]
Master = Annotated[str, typer.Option(metavar="URL", help="Spark's: local[4], spark://host:7077, yarn, k8s://...", rich_help_panel=None)]
Conf = Annotated[list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting; may be given several times.")]
ModeOption = Annotated[str, typer.Option("--mode", metavar="MODE", help="delete; or tag, for a bucket's lifecycle rule to delete.")]
Share = Annotated[float, typer.Option(min=0, max=1, metavar="N", help="A mark of more than this share needs `gc confirm`.")]
Floor = Annotated[int, typer.Option(min=0, metavar="N", help="A mark of fewer objects than this never does.")]
Foreign = Annotated[bool, typer.Option("--foreign", help="Also what lies in data/ and refstore never wrote.")]
Full = Annotated[bool, typer.Option("--full", help="List and read everything, also what the last run did.")]
FullDays = Annotated[float, typer.Option(min=0, metavar="N", help="Do so when the last time is longer ago than this.")]
TakeOver = Annotated[bool, typer.Option("--take-over", help="Do not wait for a run that died a moment ago.")]


@group.callback()
def gc() -> None:
    """Delete what was committed and nobody needs any more, and what the online path never knew of."""


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
        master: Master = "local[*]",
        conf: Conf = None,
    ) -> None:
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
        )
        _in_spark(ctx, repo_name, all_, _Job("simulate" if dry_run else what, options), master, conf)

    return command


group.command(
    "mark",
    help="""Mark what nobody needs; nothing is deleted yet. The exit code is 4 if a mark waits for `refstore gc confirm`.

    First the rules for branches: what was staged longer ago than `uncommitted` allows is reset; with allow_deletion_from_latest_view
    what `all` lets expire is removed from branches by commits.

    \b
    Example: refstore gc mark sales --dry-run
             refstore gc mark --all --master spark://host:7077
    """,
)(_marking("mark"))


@group.command("sweep")
def sweep(
    ctx: typer.Context,
    repo_name: Name,
    *,
    mark_id: Annotated[str | None, typer.Option("--mark", metavar="MARK_ID", help="This one; left out: all that are due.")] = None,
    dry_run: DryRun = False,
    master: Master = "local[*]",
    conf: Conf = None,
) -> None:
    """Delete what is marked, and due, and still named by nobody. Made again it goes on where it stopped. 5: something failed.

    What the rules of today keep stays, also if they were set after the mark.

    \b
    Example: refstore gc sweep sales
             refstore gc sweep sales --mark 01m7z3zav9bbbjvdydt7m95zqf
    """
    with open_lake(ctx) as lake:
        repo = lake.repository(repo_name)
        marks = Marks(repo.context)
        if mark_id is not None:
            chosen = [marks.run(mark_id).mark_id]
        else:
            now = repo.context.clock.now_ms()
            chosen = [each.mark_id for each in marks.runs() if _is_due(each, now)]
        if dry_run:
            emit(ctx, [_run_row(marks.run(each)) for each in chosen])
            return
        if not chosen:
            typer.echo(f"Nothing of {repo_name} is due.", err=True)
            _emit_summaries(ctx, [])
            return
        done: list[Summary] = []
        troubles: list[tuple[str, RefstoreError]] = []
        with _spark(master, conf) as spark, _told() as tell:
            from offline_gc.run import sweep as run_sweep

            for each in chosen:
                try:
                    done.append(run_sweep(repo.context, spark, each, tell))
                except RefstoreError as error:  # no sweep rests on another
                    troubles.append((each, error))
        if done or not troubles:
            _emit_summaries(ctx, done)
        _raise_last(troubles, of_many=len(chosen) > 1)
        if any(each.swept is not None and each.swept.failed for each in done):
            raise typer.Exit(FAILED)


group.command(
    "run",
    help="""The nightly job: sweep what is due, apply the rules to branches, then mark. With --grace-days 0 what is marked goes at once.

    The exit code is 4 if a mark waits for `refstore gc confirm`, 5 if the store did not delete everything.

    \b
    Example: refstore gc run --all
             refstore gc run sales --grace-days 0 --min-age-seconds 7200
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
    rules: Annotated[Path | None, typer.Option(metavar="FILE", help="Rules instead of the repository's own; '-': standard input.")] = None,
    min_age_seconds: MinAge = None,
    foreign: Foreign = False,
    master: Master = "local[*]",
    conf: Conf = None,
) -> None:
    """Say what would be marked now, by these rules or by others, and touch nothing.

    \b
    Example: refstore gc simulate sales --rules stricter.json
    """
    document = read_document(str(rules)) if rules is not None else None
    options = _options(None, min_age_seconds, "delete", 0.5, 10_000, foreign=foreign)
    _in_spark(ctx, repo_name, False, _Job("simulate", options, document), master, conf)


@group.command("unmark")
def unmark(
    ctx: typer.Context,
    repo_name: Name,
    which: Annotated[str, typer.Argument(metavar="COMMIT|MARK_ID", help="A commit, or all that a mark marked.")],
) -> None:
    """Make a marked commit active again, or all that a mark marked; until its sweep begins.

    \b
    Example: refstore gc unmark sales 6e40c9...
    """
    with repository_of(ctx, repo_name) as repo:
        marks = Marks(repo.context)
        commit = which if marks.knows(which) else repo.get_commit(which)[0]
        emit(ctx, {"repository": repo_name, "unmarked": marks.unmark(commit)})


@group.command("confirm")
def confirm_(ctx: typer.Context, repo_name: Name, mark_id: Annotated[str, typer.Argument(metavar="MARK_ID")], *, yes: Yes = False) -> None:
    """Let a mark be swept that takes more than the breaker lets pass.

    \b
    Example: refstore gc confirm sales 01m7z3zav9bbbjvdydt7m95zqf
    """
    with repository_of(ctx, repo_name) as repo:
        marks = Marks(repo.context)
        found = marks.run(mark_id)
        confirm(ctx, found.record.question or f"mark {mark_id} is {found.state.value}", yes=yes)
        emit(ctx, _run_row(marks.confirm(mark_id, who())))


@group.command("status")
def status(ctx: typer.Context, repo_name: Name) -> None:
    """Show the marks there were: which wait, which are due, which were swept, and what they came to.

    \b
    Example: refstore gc status sales --json
    """
    with repository_of(ctx, repo_name) as repo:
        emit(ctx, (_run_row(each) for each in Marks(repo.context).runs()))


@group.command("report")
def report(
    ctx: typer.Context,
    repo_name: Name,
    mark_id: Annotated[str | None, typer.Argument(metavar="[MARK_ID]", help="Left out: the last one.", show_default=False)] = None,
    *,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the page with the figures drawn there.")] = None,
) -> None:
    """Show what a run marked, and what the store confirmed of its sweep.

    \b
    Example: refstore gc report sales --html report.html
    """
    from offline_gc.report import page, summaries

    with repository_of(ctx, repo_name) as repo:
        every = list(summaries(repo.context.objects, Marks(repo.context)))
        chosen = [each for each in every if mark_id in (None, each.mark_id)]
        if not chosen:
            of = f" of {mark_id}" if mark_id else ""
            raise NotFound(f"{repo_name!r} has no report{of}; see which runs there were: refstore gc status {repo_name}")
        summary = chosen[-1]
        if html is not None:
            with local_errors():
                html.write_text(page(summary, every[: every.index(summary)]), "utf-8")
        _emit_summaries(ctx, [summary])


@group.command("lifecycle")
def lifecycle(
    ctx: typer.Context,
    repo_name: Name,
    *,
    apply: Annotated[bool, typer.Option("--apply", help="Put the rule into the bucket's configuration.")] = False,
    yes: Yes = False,
) -> None:
    """Print the lifecycle rule that deletes what `--mode tag` tagged, or apply it. Read its warning where others share the bucket.

    \b
    Example: refstore gc lifecycle sales > lifecycle.json
    """
    from offline_gc import lifecycle as rules

    with repository_of(ctx, repo_name) as repo:
        store = repo.context.objects
        typer.echo(rules.WARNING, err=True)
        made = rules.configuration(store)
        if apply:
            confirm(ctx, "the bucket's lifecycle configuration will be changed", yes=yes)
            made = rules.apply(store)
        print(json.dumps(made, indent=2))


# ---- in Spark


@dataclass(frozen=True, slots=True)
class _Job:
    what: str
    options: Callable[[], Options]
    rules: str | None = None


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
) -> Callable[[], Options]:
    """Made once pyspark is known to be there: these need what comes with it."""
    if mode not in ("delete", "tag"):
        raise InvalidSettings(f"{mode!r} is no mode of sweeping; use delete or tag")

    def made() -> Options:
        from offline_gc.breaker import Limits
        from offline_gc.run import Options

        return Options(
            grace_days=grace_days,
            min_age_seconds=min_age_seconds,
            mode="tag" if mode == "tag" else "delete",
            limits=Limits(share=share, floor_objects=floor),
            foreign=foreign,
            full=full,
            full_days=full_days,
            take_over=take_over,
        )

    return made


def _in_spark(ctx: typer.Context, repo_name: str | None, every: bool, job: _Job, master: str, conf: Sequence[str] | None) -> None:
    if (repo_name is None) != every:
        ctx.fail("name one repository, or give --all")
    with open_lake(ctx) as lake:
        names = [lake.repository(repo_name).name] if repo_name is not None else [name for name, _ in lake.repositories()]
        with _spark(master, conf) as spark, _told() as tell:
            done, asking, failed, troubles = _all(lake, names, job, spark, tell)
            cleared = _clear(lake, job, spark, tell, troubles) if every and job.what == "run" else []
        if done or cleared or not troubles:
            _emit_summaries(ctx, done, cleared)
        _raise_last(troubles, of_many=every)
    if failed or any(each["failed"] for each in cleared):
        raise typer.Exit(FAILED)
    if asking:
        raise typer.Exit(ASKING)


def _raise_last(troubles: Sequence[tuple[str, RefstoreError]], *, of_many: bool) -> None:
    """Say all that went wrong, `of_many` with where; who catches the last says it, too."""
    for name, error in troubles if of_many else troubles[:-1]:
        typer.echo(f"{name}: {redact_text(str(error))}", err=True)
    if troubles:
        raise troubles[-1][1]


def _all(
    lake: Lake, names: Sequence[str], job: _Job, spark: SparkSession, tell: Any
) -> tuple[list[Summary], int, int, list[tuple[str, RefstoreError]]]:
    """(what was done, marks that wait for an operator, keys that failed, what went wrong in which repositories)"""
    from dataclasses import replace
    from functools import partial

    from offline_gc import run
    from refstore.retention.rules import read_rules

    options = job.options()
    if job.rules is not None:
        options = replace(options, rules=read_rules(job.rules).rules)
    done: list[Summary] = []
    troubles: list[tuple[str, RefstoreError]] = []
    asking = failed = 0

    def unswept(name: str, _mark_id: str, error: RefstoreError) -> None:
        troubles.append((name, error))

    for name in names:
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
                ran = run.run(repo.context, spark, options, tell, on_unswept=partial(unswept, name))
                done += [*(each for each in ran.swept if each.mark_id != ran.marked.mark_id), ran.latest]
                asking += sum(each.state is State.ASKING for each in ran.waiting)
                failed += ran.failed
        except RefstoreError as error:  # the others do not answer for it
            troubles.append((name, error))
    return done, asking, failed, troubles


def _still_there(lake: Lake, name: str) -> Repository | None:
    """None: it was deleted since it was listed."""
    try:
        return lake.repository(name)
    except RepositoryNotFound:
        return None


def _clear(lake: Lake, job: _Job, spark: SparkSession, tell: Any, troubles: list[tuple[str, RefstoreError]]) -> list[dict[str, Any]]:
    from offline_gc.leftovers import clear, closed

    rows: list[dict[str, Any]] = []
    for repo, record in list(closed(lake)):
        try:
            found = clear(lake, repo, record, spark, job.options(), tell)
        except RefstoreError as error:
            troubles.append((repo, error))
            continue
        deleted = found.swept.outcomes.get("deleted") if found.swept else None
        rows.append(
            {
                "repository": f"{repo} (deleted)",
                "due": when(found.due_ms),
                "deleted": deleted.objects if deleted else 0,
                "bytes": deleted.bytes if deleted else 0,
                "failed": found.failed,
                "foreign": found.foreign.objects,
                "forgotten": found.forgotten,
            }
        )
    return rows


@contextmanager
def _spark(master: str, conf: Sequence[str] | None) -> Generator[SparkSession, None, None]:
    from offline_gc.session import SparkOptions, session

    given: dict[str, str] = {}
    for each in conf or ():
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise InvalidSettings(f"--conf {each!r} is not KEY=VALUE; write it as spark.executor.memory=4g")
        given[name] = value
    with session(SparkOptions(master=master, conf=given)) as spark:
        yield spark


@contextmanager
def _told() -> Generator[Callable[[StepProgress], None], None, None]:
    with progress("starting") as bar:

        def tell(now: StepProgress) -> None:
            left = f", about {now.left_seconds:,.0f} s left" if now.left_seconds is not None else ""
            of = f"{now.done:,} of {now.total:,}" if now.total else f"{now.done:,}" if now.done else ""
            bar.describe(f"{now.step}: {of}{left}" if of else now.step)

        yield tell


def _emit_summaries(ctx: typer.Context, done: Sequence[Summary], cleared: Sequence[dict[str, Any]] = ()) -> None:
    if invocation_of(ctx).json:
        emit(ctx, {"runs": list(done), "deleted_repositories": list(cleared)})
        return
    for summary in done:
        emit(ctx, _summary_row(summary))
        typer.echo()
        if summary.question:
            typer.echo(f"{summary.question}; let it be swept with: refstore gc confirm {summary.repository} {summary.mark_id}\n", err=True)
        if summary.drift:
            from offline_gc.summary import DRIFT_NOTE

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
        "goes_on_from": summary.goes_on_from or f"nothing: {summary.why_complete or 'everything was looked at'}",
        "listed": _shown(summary.listed),
        "kept": _shown(summary.kept),
        "marked": _shown(summary.marked),
    }
    row |= {reason: _shown(count) for reason, count in summary.by_reason.items()}
    row |= {f"below {prefix}": _shown(count) for prefix, count in summary.by_prefix.items()}
    if summary.online.staged.objects:
        row["staged_too_long_ago"] = _shown(summary.online.staged)
    if summary.online.latest_view.objects:
        row["from_the_latest_view"] = f"{_shown(summary.online.latest_view)}, {summary.online.commits} commits"
    if summary.pending.objects:
        row["marked_before"] = _shown(summary.pending)
    if summary.young.objects:
        row["too_young"] = _shown(summary.young)
    if summary.foreign.objects:
        row["not_refstores"] = _shown(summary.foreign)
    if summary.swept is not None:
        row |= {outcome: _shown(count) for outcome, count in summary.swept.outcomes.items()}
        for prefix, of in sorted(summary.swept.by_prefix.items()):
            row |= {f"{outcome} below {prefix}": _shown(count) for outcome, count in of.items()}
        row["commits_dropped_out"] = summary.swept.commits_dropped_out
        if summary.swept.dropped_out_by_rules:
            row["of_these_by_rules"] = summary.swept.dropped_out_by_rules
        if summary.swept.rules_changed:
            row["rules"] = "others by then; what they keep dropped out"
    return row


def _shown(count: Any) -> str:
    return f"{count.objects:,} objects, {count.bytes:,} bytes"


def _is_due(run: Run, now_ms: int) -> bool:
    return run.state is State.SWEEPING or (run.state is State.MARKED and run.record.deletes_at_ms <= now_ms)


def _run_row(run: Run) -> dict[str, object]:
    record = run.record
    return {
        "mark": run.mark_id,
        "state": run.state.value,
        "began": when(record.began_ms),
        "sweep_from": when(record.deletes_at_ms or None),
        "swept": when(record.swept_ms or None),
        "commits": record.counts.get("commits_marked", 0),
        "objects": record.counts.get("objects"),
        "bytes": record.counts.get("bytes"),
        "question": record.question or None,
        "confirmed_by": record.confirmed_by or None,
        "ended": record.ended or None,
    }
