"""`refstore purge run` and `verify`: remove the rows of given ids, and look for what is left of them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from refstore.cli.common import emit, invocation_of, open_lake
from refstore.cli.confirmation import confirm
from refstore.cli.files import local_errors
from refstore.cli.foreign_places import AllowForeign, urls_of
from refstore.cli.gc_job import EngineRequest, show_progress
from refstore.cli.locations import SCHEMES, location
from refstore.cli.parameters import Conf, EngineOption, Master, Name, Yes
from refstore.cli.purge_backups import LEFT
from refstore.cli.purge_report import emit_report
from refstore.core import python_gc
from refstore.errors import Invalid

if TYPE_CHECKING:
    from refstore.lake import Lake
    from refstore_purge import PurgeReport, VerifyReport

IDS_HELP: Final = "The ids: CSV with a header, Parquet or JSON lines; a file, or lakefs://REPO/REF/PATH."
IdsFile = Annotated[str, typer.Option("--ids", metavar="FILE", help=IDS_HELP)]
IdColumn = Annotated[
    str,
    typer.Option("--id-column", metavar="NAME", help="Their column; default: the only one, which must be called id."),
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
NoHeader = Annotated[bool, typer.Option("--no-header", help="The file has one id a line, also the first.")]
Delimiter = Annotated[
    str, typer.Option("--delimiter", metavar="CHARACTER", help="What separates the fields of CSV; \\t for a tab.")
]
EmptyId = Annotated[bool, typer.Option("--empty-id", help='Take "" for an id; default: leave it out.')]
IdType = Annotated[
    str,
    typer.Option(
        "--id-type", metavar="TYPE", help="Compare them as string, integer, binary or uuid; default: as given."
    ),
]

Ledger = Annotated[
    bool,
    typer.Option(
        "--ledger", help="Look in each data set for all ids that were ever purged from it, in what came since."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Find the rows, and change nothing.")]
MaxPartitions = Annotated[
    int | None, typer.Option("--max-partitions", min=1, metavar="N", help="Do at most so many partitions.")
]
After = Annotated[
    str, typer.Option("--after", metavar="WATERMARK", help="Leave out the partitions up to an earlier watermark.")
]
IncludingCopies = Annotated[
    bool, typer.Option("--including-copies", help="Purge names outside the data sets of the same objects, too.")
]
IgnoreStatistics = Annotated[
    bool,
    typer.Option(
        "--ignore-statistics", help="Read the ids' column also where statistics that are believed exclude them."
    ),
]
Share = Annotated[
    float, typer.Option(min=0, max=1, metavar="N", help="Stop if more than this share of the rows would go.")
]
Floor = Annotated[int, typer.Option(min=0, metavar="N", help="Fewer rows than this never stop it.")]
History = Annotated[
    bool, typer.Option("--history", help="Look at every commit of data sets of the mode keep-history, too.")
]


def run(
    ctx: typer.Context,
    repo_name: Name,
    *,
    ids: IdsFile = "",
    ledger: Ledger = False,
    datasets: Datasets = None,
    id_column: IdColumn = "",
    dataset_column: DatasetColumn = "",
    no_header: NoHeader = False,
    delimiter: Delimiter = ",",
    empty_id: EmptyId = False,
    id_type: IdType = "",
    dry_run: DryRun = False,
    max_partitions: MaxPartitions = None,
    after: After = "",
    including_copies: IncludingCopies = False,
    ignore_statistics: IgnoreStatistics = False,
    breaker_share: Share = 0.5,
    breaker_floor: Floor = 10_000,
    yes: Yes = False,
    engine: EngineOption = None,
    master: Master = None,
    conf: Conf = None,
) -> int | None:
    """Remove the rows of the ids from onboarded data sets.

    keep-history: from the heads, by one commit for each branch. Earlier commits keep their rows until they expire.
    rewrite, erase: from every version and the undo trash. Commits and their ids stay, and backups for a while.

    \b
    Example: refstore purge run sales --ids forget.csv --dry-run
             refstore purge run sales --ids forget.parquet --id-column guestid --dataset tracking.event --yes
             refstore purge run sales --ids forget.csv --dataset-column dataset --yes
             refstore purge run sales --ledger --yes
    Exit code 4: something is left, or a data set has no object or no identifier; the report says what, and why.
    """
    import refstore_purge

    if bool(ids) == ledger:
        ctx.fail("give the ids with --ids FILE, or --ledger for those that were purged before")
    form = (id_column, dataset_column, delimiter, not no_header, empty_id)
    if ledger and form != ("", "", ",", True, False):
        ctx.fail("give the options of a file of ids with --ids, not with --ledger")
    purge = partial(
        refstore_purge.purge,
        ledger=ledger,
        id_type=id_type,
        datasets=datasets or (),
        dry_run=dry_run,
        max_partitions=max_partitions,
        after=after,
        includes_copies=including_copies,
        ignores_statistics=ignore_statistics,
        breaker_share=breaker_share,
        breaker_floor_rows=breaker_floor,
    )
    report = _purge(ctx, repo_name, purge, ids, form, EngineRequest(engine, master, conf), yes=yes or dry_run)
    return None if report.is_done else LEFT


def _purge(
    ctx: typer.Context,
    repo_name: str,
    purge: Callable[..., PurgeReport],
    ids: str,
    form: tuple[str, str, str, bool, bool],
    engine: EngineRequest,
    *,
    yes: bool,
) -> PurgeReport:
    """Make a run, and print its report. `ids`: the place of their file, which has a form; '': those of the ledger."""
    from refstore_purge import IdsFile

    with open_lake(ctx) as lake, _ids_file(lake, ids) if ids else nullcontext() as path:
        file = None if path is None else IdsFile(path, *form)
        repo = lake.repository(repo_name)
        repo.purge_document()  # before somebody is asked, and an engine is started
        confirm(ctx, f"the rows of the ids will be removed from the onboarded data sets of {repo.name!r}", yes=yes)
        with python_gc.collect_seldom(), show_progress() as report_progress:
            if repo.context.read_purge_key() is None:
                _say("warning: no index and no ledger of ids is kept: purge_key is not set")
            report = purge(repo, file, engine=engine.options(), report_progress=report_progress, print_notice=_say)
        emit_report(ctx, report)
    return report


def _say(text: str) -> None:
    print(f"refstore: {text}", file=sys.stderr)


def verify(
    ctx: typer.Context,
    repo_name: Name,
    *,
    ids: IdsFile,
    datasets: Datasets = None,
    id_column: IdColumn = "",
    dataset_column: DatasetColumn = "",
    no_header: NoHeader = False,
    delimiter: Delimiter = ",",
    empty_id: EmptyId = False,
    id_type: IdType = "",
    history: History = False,
    allow_foreign: AllowForeign = None,
) -> int | None:
    """Read every object of the onboarded data sets, and list those that have rows of the ids, or ids in metadata and
    summary files beside the rows: at the heads (keep-history), or in every version, also in commits that rules hide and
    in the undo trash (rewrite, erase). List, too, what could not be looked at, with the reason: nobody knows that it is
    clean.

    It reads every value, with other readers than `run`, and trusts no statistics and no index.

    \b
    Example: refstore purge verify sales --ids forget.csv
    Exit code 4: rows or entries are left, an object could not be looked at, or a data set has no object or no
    identifier.
    """
    import refstore_purge

    with (
        open_lake(ctx, read_only=True, allow_foreign=urls_of(allow_foreign)) as lake,
        _ids_file(lake, ids) as file,
        local_errors(),
    ):
        repo = lake.repository(repo_name)
        with show_progress() as report_progress:
            report = refstore_purge.verify(
                repo,
                refstore_purge.IdsFile(file, id_column, dataset_column, delimiter, not no_header, empty_id),
                id_type=id_type,
                datasets=datasets or (),
                history=history,
                report_progress=report_progress,
                print_notice=_say,
            )
    if invocation_of(ctx).json:
        emit(ctx, {field.name: getattr(report, field.name) for field in dataclasses.fields(report)})
    else:
        emit(ctx, report.findings, is_check=True)
    if invocation_of(ctx).output == "table":
        print(_describe_counts(report))
    return LEFT if report.findings else None


def _describe_counts(counts: VerifyReport) -> str:
    looked = f"looked at {counts.objects:,} objects: "
    rows = f"{counts.remaining_rows:,} rows" if counts.remaining_rows else ""
    entries = f"{counts.remaining_entries:,} entries beside the rows" if counts.remaining_entries else ""
    what = " and ".join(filter(None, (rows, entries)))
    left = f"{what} are left in {counts.affected_objects:,} objects" if what else ""
    doubt = f"{counts.unexamined_objects:,} objects could not be looked at" if counts.unexamined_objects else ""
    empty = f"{counts.unexamined_datasets:,} data sets have no object or no identifier"
    untouched = empty if counts.unexamined_datasets else ""
    return looked + ("; ".join(filter(None, (left, doubt, untouched))) or "nothing is left")


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
