"""The commands `refstore purge`: describe data sets, and remove the rows of given ids from them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from refstore.cli.common import emit, invocation_of, open_lake, repository_of, settings_of, who
from refstore.cli.confirmation import confirm
from refstore.cli.files import local_errors, read_document
from refstore.cli.foreign_places import AllowForeign, urls_of
from refstore.cli.locations import SCHEMES, location
from refstore.cli.parameters import By, Conf, EngineOption, Master, Name, Yes
from refstore.cli.purge_backups import LEFT, SHOWN, backups, clean, restore
from refstore.cli.rows import when
from refstore.errors import Invalid
from refstore.operations.purge_document import Onboarded
from refstore.purging import document as purging
from refstore.purging.document import PurgeDocument
from refstore.purging.key import purge_key

if TYPE_CHECKING:
    from refstore.lake import Lake
    from refstore.repository import Repository
    from refstore_purge.place import Place
    from refstore_purge.report import Report
    from refstore_purge.verify import Counts

app = typer.Typer(no_args_is_help=True)

File = Annotated[str, typer.Argument(metavar="FILE", help="The purge document, in JSON; '-' for standard input.")]


@app.callback()
def purge() -> None:
    """Describe data sets, and remove the rows of given ids from them."""


@app.command("onboard")
def onboard(
    ctx: typer.Context,
    repo_name: Name,
    file: File,
    by: By = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the document, and set nothing.")] = False,
) -> None:
    """Set the purge document: the whitelist and the data sets, all at once. Nothing is purged by this.

    It warns of a data set below whose prefix nothing lies at the heads, or whose first objects lack the identifier.

    \b
    Example: refstore purge onboard sales purge.json
    """
    text = read_document(file)
    with repository_of(ctx, repo_name) as repo:
        if dry_run:
            parsed = purging.read_document(text)
            _warn(parsed.warnings)
            _warn_of_nothing(repo, parsed.document)
            emit(ctx, _rows(parsed.document))
            return
        onboarded = repo.onboard_purge(text, by=who() if by is None else by)
        _warn(onboarded.warnings)
        _warn_of_nothing(repo, onboarded.document)
        emit(ctx, _rows(onboarded.document))


@app.command("show")
def show(ctx: typer.Context, repo_name: Name) -> None:
    """Print the purge document as it was set; --json adds who set it, and when.

    \b
    Example: refstore purge show sales > purge.json
    """
    with repository_of(ctx, repo_name, only_read=True) as repo:
        onboarded = repo.purge_document()
        if invocation_of(ctx).json:
            emit(ctx, {**_row(repo.name, onboarded), "document": msgspec.json.decode(onboarded.text)})
        else:
            print(onboarded.text, end="" if onboarded.text.endswith("\n") else "\n")


@app.command("validate")
def validate(
    ctx: typer.Context,
    repo_name: Name,
    file: Annotated[
        str,
        typer.Argument(metavar="[FILE]", help="The document, in JSON; '-' for standard input; default: the one set."),
    ] = "",
) -> None:
    """Check a purge document without setting it, and show its data sets. It warns as `onboard` does.

    \b
    Example: refstore purge validate sales purge.json
    """
    with repository_of(ctx, repo_name, only_read=True) as repo:
        text = read_document(file) if file else repo.purge_document().text
        parsed = purging.read_document(text)
        _warn(parsed.warnings)
        _warn_of_nothing(repo, parsed.document)
        emit(ctx, _rows(parsed.document))


def _row(name: str, onboarded: Onboarded) -> dict[str, Any]:
    return {"repository": name, "set": when(onboarded.set_ms), "by": onboarded.set_by}


def _rows(document: PurgeDocument) -> list[dict[str, Any]]:
    return [
        {
            "dataset": dataset.name,
            "prefix": dataset.prefix,
            "format": dataset.format,
            "identifier": dataset.identifier,
            "mode": dataset.mode,
            "purged": document.allows(dataset),
        }
        for dataset in document.datasets
    ]


def _warn_of_nothing(repo: Repository, document: PurgeDocument) -> None:
    """Warn of data sets of which a run would find no row, as far as a short look tells."""
    from refstore_purge.onboarding_look import find_nothing

    _warn(find_nothing(repo, document.onboarded))


def _warn(texts: Iterable[str]) -> None:
    for each in texts:
        print(f"refstore: warning: {each}", file=sys.stderr)


# ---- runs

IDS_HELP: Final = "The ids: Parquet, CSV or JSON lines, also compressed; a file, or lakefs://REPO/REF/PATH."
IdsFile = Annotated[str, typer.Option("--ids", metavar="FILE", help=IDS_HELP)]
IdColumn = Annotated[
    str,
    typer.Option(
        "--id-column", metavar="NAME", help="Their column; default: the only one. With --no-header its number, from 1."
    ),
]
DatasetColumn = Annotated[
    str,
    typer.Option(
        "--dataset-column", metavar="NAME", help="The column that names the data set of each id; default: for all."
    ),
]
Datasets = Annotated[
    list[str] | None,
    typer.Option("--dataset", metavar="NAME", help="Only this data set; may be given several times. Default: all."),
]
NoHeader = Annotated[bool, typer.Option("--no-header", help="The first line of the CSV file is an id, and no header.")]
EmptyId = Annotated[bool, typer.Option("--empty-id", help='Take "" for an id; default: leave it out.')]
IdType = Annotated[
    str,
    typer.Option(
        "--id-type", metavar="TYPE", help="Compare them as string, integer, binary or uuid; default: as given."
    ),
]


@app.command("run")
def run(
    ctx: typer.Context,
    repo_name: Name,
    *,
    ids: IdsFile = "",
    ledger: Annotated[
        bool,
        typer.Option(
            "--ledger", help="Look in each data set for all ids that were ever purged from it, in what came since."
        ),
    ] = False,
    datasets: Datasets = None,
    id_column: IdColumn = "",
    dataset_column: DatasetColumn = "",
    no_header: NoHeader = False,
    empty_id: EmptyId = False,
    id_type: IdType = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Find the rows, and change nothing.")] = False,
    max_units: Annotated[
        int | None, typer.Option("--max-units", min=1, metavar="N", help="Do at most so many partitions.")
    ] = None,
    after: Annotated[
        str, typer.Option("--after", metavar="WATERMARK", help="Leave out the partitions up to an earlier watermark.")
    ] = "",
    including_copies: Annotated[
        bool, typer.Option("--including-copies", help="Purge names outside the data sets of the same objects, too.")
    ] = False,
    ignore_statistics: Annotated[
        bool,
        typer.Option("--ignore-statistics", help="Read the ids' column also where statistics of files exclude them."),
    ] = False,
    breaker_share: Annotated[
        float, typer.Option(min=0, max=1, metavar="N", help="Stop if more than this share of the rows would go.")
    ] = 0.5,
    breaker_floor: Annotated[
        int, typer.Option(min=0, metavar="N", help="Fewer rows than this never stop it.")
    ] = 10_000,
    yes: Yes = False,
    engine: EngineOption = None,
    master: Master = None,
    conf: Conf = None,
) -> int | None:
    """Remove the rows of the ids from onboarded data sets.

    keep-history: from the heads, by one commit for each branch. Earlier commits keep their rows until they expire.
    rewrite, erase: from every version and the undo trash. Commits and their ids stay; what was replaced stays as a
    backup for a while.

    \b
    Example: refstore purge run sales --ids forget.csv --dry-run
             refstore purge run sales --ids forget.parquet --id-column guestid --dataset tracking.event --yes
             refstore purge run sales --ids forget.csv --id-column id --dataset-column dataset --yes
             refstore purge run sales --ledger --yes
    Exit code 4: something is left, or a data set has no object or no identifier; the report says what, and why.
    """
    from refstore.cli.gc_job import EngineRequest, show_progress

    if bool(ids) == ledger:
        ctx.fail("give the ids with --ids FILE, or --ledger for those that were purged before")
    settings = settings_of(ctx)
    key = purge_key(settings.purge_key, settings.data)
    if ledger and (id_column or dataset_column or no_header or empty_id):
        ctx.fail("give the options of a table with --ids, not with --ledger")
    with open_lake(ctx) as lake, nullcontext() if ledger else _ids_file(lake, ids) as file:
        repo = lake.repository(repo_name)
        repo.purge_document()  # before an engine is started
        if not dry_run:
            confirm(ctx, f"the rows of the ids will be removed from the onboarded data sets of {repo.name!r}", yes=yes)
        with EngineRequest(engine, master, conf).open(settings.offline) as engines, show_progress() as tell:
            from refstore_purge import run as running

            options = running.Options(
                ids=file,
                id_column=id_column,
                dataset_column=dataset_column,
                no_header=no_header,
                empty_id=empty_id,
                id_type=id_type,
                datasets=tuple(datasets or ()),
                dry_run=dry_run,
                max_units=max_units,
                after=after,
                including_copies=including_copies,
                ignore_statistics=ignore_statistics,
                share=breaker_share,
                floor_rows=breaker_floor,
                purge_key=key,
            )
            if key is None:
                print("refstore: warning: no index and no ledger of ids is kept: purge_key is not set", file=sys.stderr)
            report = running.run(repo, engines, options, tell, say=_say)
        _emit(ctx, report)
        return None if report.is_done else LEFT


def _say(text: str) -> None:
    print(f"refstore: {text}", file=sys.stderr)


@app.command("ledger")
def ledger_(
    ctx: typer.Context,
    repo_name: Name,
    forget: Annotated[str, typer.Option("--forget", metavar="RUN", help="Drop the ids of this run.")] = "",
    yes: Yes = False,
) -> None:
    """List the runs whose ids the ledger has, and the data sets from which they were purged; the ids as keyed hashes,
    for `refstore purge run --ledger`.

    Only the holder of the purge key can compare ids with it. Destroying the key ends the ledger.

    \b
    Example: refstore purge ledger sales
             refstore purge ledger sales --forget 01M7XA5R3E9ZQ4 --yes
    """
    from refstore_purge import index
    from refstore_purge import ledger as ledgers

    settings = settings_of(ctx)
    secret = purge_key(settings.purge_key, settings.data)
    if secret is None:
        raise Invalid("there is no ledger without a key; set purge_key")
    key = index.Key.of(secret)
    with repository_of(ctx, repo_name, only_read=not forget) as repo:
        store = repo.context.objects
        if forget:
            confirm(ctx, f"later runs will not look for the ids of the run {forget!r}", yes=yes)
            with repo.context.audit.change("purge.forget", repository=repo.name, after={"run": forget}):
                ledgers.forget(store, key, forget)
        emit(
            ctx,
            [
                {
                    "run": each.run,
                    "at": when(each.at_ms),
                    "datasets": list(each.datasets),
                    "type": each.kind,
                    "ids": each.ids,
                }
                for each in ledgers.scan(store, key)
            ],
        )


@app.command("status")
def status(ctx: typer.Context, repo_name: Name) -> None:
    """List the runs of the purge, the newest first, with how many places still have rows of their ids.

    One whose process is gone is `killed`, with what it had done.

    \b
    Example: refstore purge status sales
    """
    from refstore_purge import places
    from refstore_purge import report as reports

    with repository_of(ctx, repo_name, only_read=True) as repo:
        runs = list(reports.scan(repo))
        places.refresh(repo, runs)
        emit(ctx, [_summary(each) for each in runs])


@app.command("report")
def report(
    ctx: typer.Context,
    repo_name: Name,
    run_id: Annotated[str, typer.Argument(metavar="[RUN]", help="The run; default: the latest.")] = "",
    *,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page to this file.")] = None,
    parquet: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write partitions, commits, not_purged and places (.parquet) there."),
    ] = None,
) -> None:
    """Show what a run did, by data set and partition, what it left, and every place that still has rows of its ids,
    with the date on which each goes; --json has all of it.

    \b
    Example: refstore purge report sales --html purge.html
    """
    from refstore_purge import places, report_files
    from refstore_purge import report as reports

    with repository_of(ctx, repo_name, only_read=True) as repo:
        found = reports.read(repo, run_id)
        places.refresh(repo, [found])
        with local_errors():
            if html is not None:
                html.write_text(report_files.page(repo_name, found), "utf-8")
            if parquet is not None:
                report_files.write_parquet(found, parquet)
        _emit(ctx, found)


@app.command("verify")
def verify(
    ctx: typer.Context,
    repo_name: Name,
    *,
    ids: IdsFile,
    datasets: Datasets = None,
    id_column: IdColumn = "",
    dataset_column: DatasetColumn = "",
    no_header: NoHeader = False,
    empty_id: EmptyId = False,
    id_type: IdType = "",
    history: Annotated[
        bool, typer.Option("--history", help="Look at every commit of data sets of the mode keep-history, too.")
    ] = False,
    allow_foreign: AllowForeign = None,
) -> int | None:
    """Read every object of the onboarded data sets, and list those that have rows of the ids, or ids in metadata and
    summary files beside the rows: at the heads (keep-history), or in every version, also in commits that rules hide and
    in the undo trash (rewrite, erase). List, too, what could not be looked at, with the reason: nobody knows that it is
    clean.

    It shares no code with `run`, and trusts no statistics and no index.

    \b
    Example: refstore purge verify sales --ids forget.csv
    Exit code 4: rows or entries are left, or an object could not be looked at.
    """
    from refstore.cli.gc_job import show_progress
    from refstore_purge import verify as verifying

    counts = verifying.Counts()
    with (
        open_lake(ctx, only_read=True, allow_foreign=urls_of(allow_foreign)) as lake,
        _ids_file(lake, ids) as file,
        local_errors(),
    ):
        repo = lake.repository(repo_name)
        with show_progress() as tell:
            findings = list(
                verifying.verify(
                    repo,
                    file,
                    column=id_column,
                    dataset_column=dataset_column,
                    no_header=no_header,
                    empty_id=empty_id,
                    id_type=id_type,
                    only=tuple(datasets or ()),
                    history=history,
                    counts=counts,
                    tell=tell,
                    say=_say,
                )
            )
    if invocation_of(ctx).json:
        emit(ctx, {**dataclasses.asdict(counts), "findings": findings})
    else:
        emit(ctx, findings, is_check=True)
    if invocation_of(ctx).output == "table":
        print(_verified(counts))
    return LEFT if findings else None


def _verified(counts: Counts) -> str:
    looked = f"looked at {counts.objects:,} objects in {counts.versions:,} versions: "
    rows = f"{counts.rows_left:,} rows" if counts.rows_left else ""
    entries = f"{counts.entries_left:,} entries beside the rows" if counts.entries_left else ""
    what = " and ".join(filter(None, (rows, entries)))
    left = f"{what} are left in {counts.objects_left:,} objects" if what else ""
    doubt = f"{counts.not_looked_at:,} objects could not be looked at" if counts.not_looked_at else ""
    return looked + ("; ".join(filter(None, (left, doubt))) or "nothing is left")


@contextmanager
def _ids_file(lake: Lake, name: str) -> Generator[Path, None, None]:
    """Give the file of the ids for the block; an object of the lake as a copy, which goes afterwards."""
    if "://" not in name:
        yield Path(name)
        return
    from refstore_purge.ids_file import ids_folder

    if not name.startswith(SCHEMES):
        raise Invalid(f"{name!r} is no place for ids; give a file, or lakefs://REPO/REF/PATH")
    repo_name, ref, path = location(name)
    if not path:
        raise Invalid(f"{name!r} names no object; write lakefs://REPO/REF/PATH")
    with ids_folder() as folder:
        file = folder / "ids"
        with local_errors(), file.open("wb") as target:
            for chunk in lake.repository(repo_name).get(ref, path):
                target.write(chunk)
        yield file


def _summary(report: Report) -> dict[str, Any]:
    return {
        "run": report.run,
        "state": report.state,
        "engine": report.engine,
        "began": when(report.began_ms),
        "ids": report.ids,
        "objects": sum(row.objects for row in report.rows),
        "rewritten": sum(row.rewritten for row in report.rows),
        "erased": sum(row.erased for row in report.rows),
        "rows_found": sum(row.rows_found for row in report.rows),
        "rows_changed": sum(row.rows_changed for row in report.rows),
        "not_purged": report.not_purged_count,
        "units_left": report.units_left,
        "commits": len(report.published),
        "places": len(report.places),
        "final": report.is_final,
    }


def _emit(ctx: typer.Context, report: Report) -> None:
    if invocation_of(ctx).json:
        emit(ctx, msgspec.to_builtins(report))
        return
    emit(ctx, _summary(report))
    emit(ctx, [msgspec.to_builtins(row) for row in report.rows], is_check=True)
    for each in report.published:
        print(f"branch {each.branch}: commit {each.commit}, {each.paths} path{'' if each.paths == 1 else 's'}")
    for each in report.datasets:
        if each.untouched:
            print(f"not purged: data set {each.dataset}: {each.untouched}")
    for each in report.not_purged[:SHOWN]:
        print(f"not purged: {each.branch}: {each.path or '(the branch)'}: {each.reason}")
    if report.not_purged_count > SHOWN:
        print(f"... and {report.not_purged_count - SHOWN} more; --json shows them")
    if report.units_left:
        print(f"{report.units_left} partitions are left; go on with --after {report.watermark!r}")
    if report.places:
        emit(ctx, [_place_row(each) for each in report.places])
    if report.ending:
        print(report.ending)
    for each in report.not_looked_at:
        print(f"not looked at: {each}")
    if report.failure:
        print(f"failed: {report.failure}")
    if report.state == "killed":
        print("killed: nothing is known of what came after this; run the same command again")


def _place_row(place: Place) -> dict[str, Any]:
    return {
        "place": place.kind,
        "dataset": place.dataset,
        "objects": place.objects,
        "bytes": place.bytes,
        "goes": when(place.goes_ms or None),
        "why": place.why,
        "restored_by": place.restored_by,
        "ended_by": place.ended_by,
    }


# ---- backups

app.command("backups")(backups)
app.command("restore")(restore)
app.command("clean")(clean)
