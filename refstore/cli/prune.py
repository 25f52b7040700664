"""`refstore prune`: delete what nothing names in a store that refstore does not own. It needs no lake and no KV."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated, Final

import typer

from refstore.cli.common import emit, invocation_of, settings_of
from refstore.cli.files import read_document
from refstore.cli.gc_job import EngineRequest, show_progress
from refstore.cli.parameters import LAST, Conf, DryRun, EngineOption, Master
from refstore.cli.prune_tables import emit_history, emit_report, run_row
from refstore.cli.rows import seconds_of
from refstore.errors import InvalidSettings

app = typer.Typer()
group = typer.Typer(no_args_is_help=True)
app.add_typer(group, name="prune")

INCOMPLETE: Final = 5
"""The exit code if the store did not delete everything. The next run tries the rest again."""

Store = Annotated[
    str, typer.Argument(metavar="STORE", help="The store or a prefix of it: a folder, or a URL such as s3://bucket/x.")
]
State = Annotated[
    str | None,
    typer.Option("--state", metavar="URL", help="Where the files of runs are. Default: _refstore/ of STORE."),
]

Names = Annotated[
    list[str], typer.Option("--names", metavar="SOURCE", help="Where names are; may be given several times.")
]
Endpoint = Annotated[str, typer.Option(metavar="URL", help="The server that has the names, for lakefs:.")]
Column = Annotated[str, typer.Option(metavar="NAME", help="The column that has the names, for list: and exec:.")]
RulesFile = Annotated[
    str | None, typer.Option("--rules", metavar="FILE", help="Retention rules that keep more, for lakefs:.")
]
Properties = Annotated[
    list[str] | None,
    typer.Option("--property", metavar="KEY=VALUE", help="For the source's library; may be given several times."),
]
MinAge = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="Younger objects stay. Default: as the sources need, 7d for lists."),
]
Grace = Annotated[str, typer.Option(metavar="DURATION", help="Time from the mark to the deletion by a later run.")]
Protect = Annotated[
    list[str] | None,
    typer.Option(metavar="GLOB", help="Keys that match stay, such as 'logos/*'; may be given several times."),
]
Consent = Annotated[
    list[str] | None,
    typer.Option(metavar="WORD", help="Go on where a run stopped and asked for this; may be given several times."),
]
Share = Annotated[
    float, typer.Option(min=0, max=1, metavar="N", help="Stop if more than this share of the store is unnamed.")
]
Inventory = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="The manifest.json of an S3 Inventory (CSV, ORC or Parquet) to read in place of a listing."
    ),
]
TakeOver = Annotated[bool, typer.Option("--take-over", help="Take over at once from a run that died recently.")]


@group.callback()
def prune() -> None:
    """Delete what nothing names any more in a store that refstore does not own: no lake and no KV are needed.

    \b
    The first quarter of an hour:
      1. refstore prune run STORE --names SOURCE --dry-run
         lists the store, reads all names, and shows what nothing names. It writes nothing.
      2. refstore prune run STORE --names SOURCE
         does the same, and marks it. The first run never deletes.
      3. Wait for the grace period, 7 days by default. `refstore prune status STORE` says what is due when, and
         `refstore prune unmark STORE RUN_ID` takes a mark back.
      4. Run step 2 again, with the names of that day. What is still unnamed and unchanged is deleted now, and what
         became unnamed since is marked. From then on a nightly run does both.

    \b
    SOURCE says where the names are; --names may be repeated, and what any of them names stays:
      list:FILE        names in a file, a folder of files, a pattern, or an object: text with a name a line, CSV or
                       Parquet (--column), also with gzip
      exec:COMMAND     what a command prints, such as exec:'psql -At -c "SELECT path FROM files"'; without a shell
      lakefs:REPO      a repository of lakeFS at --endpoint
      iceberg:..., delta:...    tables
    """


@group.command("run")
def run(
    ctx: typer.Context,
    store: Store,
    *,
    names: Names,
    endpoint: Endpoint = "",
    column: Column = "",
    rules: RulesFile = None,
    properties: Properties = None,
    dry_run: DryRun = False,
    min_age: MinAge = None,
    grace: Grace = "7d",
    state: State = None,
    inventory: Inventory = None,
    protect: Protect = None,
    consent: Consent = None,
    share_max: Share = 0.5,
    take_over: TakeOver = False,
    engine: EngineOption = None,
    master: Master = None,
    conf: Conf = None,
) -> int | None:
    """List the store, read all names, delete what is due, and mark what nothing names.

    Begin with --dry-run. A run deletes only what an earlier run had marked a grace period ago, no source names now, and
    is as it was then. Where the names or the share look wrong, it stops before it marks, and says what --consent takes.

    \b
    Example: refstore prune run s3://bucket/media --names list:names.csv --column path --dry-run
             refstore prune run s3://bucket/media --names 'exec:psql -At -c "SELECT path FROM files"'
             refstore prune run /srv/media --names list:/backup/names/ --protect 'logos/*' --grace 14d
             refstore prune run s3://lake/sales --names lakefs:sales --endpoint https://lakefs.example
    Exit code 4: it stopped and asks for consent. Exit code 5: the store did not delete everything.
    """
    import refstore_prune

    settings_of(ctx)
    age, wait = seconds_of("--min-age", min_age), seconds_of("--grace", grace)
    with show_progress() as report_progress:
        report = refstore_prune.prune(
            store,
            names,
            dry_run=dry_run,
            min_age=None if age is None else timedelta(seconds=age),
            grace=timedelta(seconds=wait or 0),
            state=state,
            inventory=inventory,
            protect=protect or (),
            consent=consent or (),
            share_max=share_max,
            take_over=take_over,
            endpoint=endpoint,
            column=column,
            rules=None if rules is None else read_document(rules).encode(),
            properties=_read_pairs(properties or ()),
            engine=EngineRequest(engine, master, conf).options(),
            report_progress=report_progress,
        )
    emit_report(invocation_of(ctx).output, report)
    return INCOMPLETE if report.state == "incomplete" else None


def _read_pairs(texts: Iterable[str]) -> dict[str, str]:
    """Raises InvalidSettings."""
    pairs = [each.partition("=") for each in texts]
    if any(not name or not equals for name, equals, _ in pairs):
        raise InvalidSettings("--property is not KEY=VALUE; write it as --property uri=https://catalog.example")
    return {name: value for name, _, value in pairs}


@group.command("status")
def status(ctx: typer.Context, store: Store, *, state: State = None) -> None:
    """List the runs: what each found unnamed and deleted, and when the next of what waits is due, as of its end. What
    was unmarked since waits longer.

    \b
    Example: refstore prune status s3://bucket/media
    """
    import refstore_prune

    settings_of(ctx)
    emit(ctx, map(run_row, refstore_prune.status(store, state=state)))


@group.command("report")
def report(
    ctx: typer.Context,
    store: Store,
    run_id: Annotated[str, typer.Argument(metavar="RUN_ID", help="A run, or last.")] = LAST,
    *,
    state: State = None,
) -> None:
    """Show what a run found and did, as the run showed it. --json has all of it, with the 100 largest.

    \b
    Example: refstore prune report s3://bucket/media
             refstore prune report s3://bucket/media 01m7z3zav9bb --json
    """
    import refstore_prune

    settings_of(ctx)
    emit_report(invocation_of(ctx).output, refstore_prune.report(store, run_id, state=state))


@group.command("why")
def why(
    ctx: typer.Context,
    store: Store,
    key: Annotated[str, typer.Argument(metavar="KEY", help="A key below STORE, or its URL.")],
    *,
    state: State = None,
) -> None:
    """Say what runs found and did with one key: when it was marked, when it was deleted, and by which run.

    \b
    Example: refstore prune why s3://bucket/media img/4711.jpg
    """
    import refstore_prune

    settings_of(ctx)
    history = refstore_prune.why(store, key, state=state)
    if invocation_of(ctx).output == "table":
        emit_history(history)
    else:
        emit(ctx, history)


@group.command("unmark")
def unmark(
    ctx: typer.Context,
    store: Store,
    run_id: Annotated[str, typer.Argument(metavar="RUN_ID", help="The run whose mark to take back; or all.")],
    *,
    state: State = None,
) -> None:
    """Take back what a run was the first to mark. It is not deleted before a later run has marked it again, and a grace
    period has passed since.

    \b
    Example: refstore prune unmark s3://bucket/media 01m7z3zav9bb
             refstore prune unmark s3://bucket/media all
    """
    import refstore_prune

    settings_of(ctx)
    run = refstore_prune.unmark(store, run_id, state=state)
    marked = {} if run_id == "all" else {"first_marked": run.newly_marked.objects}
    emit(ctx, {"run": "all" if run_id == "all" else run.run_id, "unmarked": True, **marked})
    typer.echo("What is left of it begins a new grace period when the next run marks it again.", err=True)


@group.command("compare")
def compare(
    ctx: typer.Context,
    store: Store,
    report_url: Annotated[
        str, typer.Argument(metavar="REPORT", help="The folder of a report of lakeFS's collector, with summary.json.")
    ],
    *,
    namespace: Annotated[
        str, typer.Option(metavar="URL", help="The repository's namespace. Default: the one in which REPORT lies.")
    ] = "",
    write: Annotated[
        str | None,
        typer.Option("--write-to", metavar="URL", help="Also write the mark there, in the form of such a report."),
    ] = None,
    state: State = None,
) -> None:
    """Compare the last mark with a report of lakeFS's own collector: what both, and what only one of them would delete.

    \b
    Example: refstore prune compare s3://lake/sales s3://lake/sales/_lakefs/retention/gc/unified/RUN_ID
    """
    import refstore_prune

    settings_of(ctx)
    emit(ctx, refstore_prune.compare_with_lakefs(store, report_url, namespace=namespace, state=state, write=write))
