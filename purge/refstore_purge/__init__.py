"""The purge: find the rows of given ids in onboarded data sets, and rewrite the objects that have them, on an engine
of the offline job.

    with refstore.open("./lake") as lake:
        repo = lake.repository("sales")
        refstore_purge.onboard(repo, Path("purge.json").read_text())
        print(refstore_purge.purge(repo, ["guest-1", "guest-2"], dry_run=True).rows)

`onboard`, `purge`, `verify`, `restore` and `clean_up` are what an application calls, and the commands do. The rest:

purge_run.py                  one run over all data sets of a repository
purge_context.py              its options, and what all of its steps do
purge_account.py, outcomes.py  what became of each object, folded into the report
ids_file.py                   read a file of ids
dataset_ids.py                the ids of each data set, as its column has them
purge_ids.py                  a set of ids, as tasks look them up
purge_plan.py                 which objects there are: at the heads, or in every version
row_search.py                 which of them have rows of the ids, or are to be erased
purge_tasks.py, formats/      read and write objects, in tasks of the engine
purge_attempts.py             find, decide, publish, and look again
head_publisher.py             the mode `keep-history`: one commit for each branch
location_publisher.py         the modes `rewrite` and `erase`: a new content for each object (rule 22)
id_index.py, ledger.py        keyed hashes: of the ids that objects have, and of those that were purged
unplanned_contents.py         look for the ids in what the plan leaves out
remaining_places.py           where their rows still are, and when each place goes
object_holders.py             which names objects have
summary_files.py              the summary files of Parquet
purge_cleanup.py              delete what purges left behind, past its days
restore_backups.py            go back to backups
verify_datasets.py, verify_*.py   look again, with other code
purge_report.py               what a run did
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Final

from refstore.errors import Invalid

if TYPE_CHECKING:
    from refstore.core.step_progress import ReportProgress
    from refstore.operations.onboard import OnboardedDocument
    from refstore.purge_document.document import PurgeDocument
    from refstore.repository import Repository
    from refstore_gc.engines.choice import Choice, EngineOptions
    from refstore_gc.run_summary import CleanupSummary
    from refstore_purge.ids_file import GivenIds, IdsFile
    from refstore_purge.outcomes import ObjectOutcome, ObjectResult
    from refstore_purge.purge_plan import SkippedObject
    from refstore_purge.purge_report import DatasetResult, PartitionRow, PublishedCommit, PurgeReport, RemainingPlace
    from refstore_purge.restore_backups import RestoreFailure, RestoreSummary
    from refstore_purge.verify_datasets import RowFinding, VerifyReport

__all__ = [
    "CleanupSummary",
    "DatasetResult",
    "IdsFile",
    "ObjectOutcome",
    "ObjectResult",
    "PartitionRow",
    "PublishedCommit",
    "PurgeReport",
    "RemainingPlace",
    "RestoreFailure",
    "RestoreSummary",
    "RowFinding",
    "SkippedObject",
    "VerifyReport",
    "clean_up",
    "onboard",
    "purge",
    "restore",
    "verify",
]

_MODULES: Final = {
    "CleanupSummary": "refstore_gc.run_summary",
    "DatasetResult": "refstore_purge.purge_report",
    "IdsFile": "refstore_purge.ids_file",
    "ObjectOutcome": "refstore_purge.outcomes",
    "ObjectResult": "refstore_purge.outcomes",
    "PartitionRow": "refstore_purge.purge_report",
    "PublishedCommit": "refstore_purge.purge_report",
    "PurgeReport": "refstore_purge.purge_report",
    "RemainingPlace": "refstore_purge.purge_report",
    "RestoreFailure": "refstore_purge.restore_backups",
    "RestoreSummary": "refstore_purge.restore_backups",
    "RowFinding": "refstore_purge.verify_datasets",
    "SkippedObject": "refstore_purge.purge_plan",
    "VerifyReport": "refstore_purge.verify_datasets",
}
"""Where each class is defined. It is imported on first use, because that takes PyArrow and pandas."""


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def onboard(
    repository: Repository, document: PurgeDocument | str, *, by: str = "", dry_run: bool = False
) -> OnboardedDocument:
    """Set which data sets of a repository may be purged, all at once, on behalf of `by`. Nothing is purged by this.

    `document`: a `refstore.PurgeDocument`, or its JSON (`docs/purge.md`). `dry_run`: check it, and set nothing.
    The answer has the document, when it was set, and warnings, also of data sets that have no object at a head.

    Raises InvalidPurge (with the place in the document), Contention, Unavailable.
    """
    from refstore_purge.dataset_results import find_empty_datasets

    onboarded = repository.onboard_purge(document, by=by, dry_run=dry_run)
    empty = find_empty_datasets(repository, onboarded.document.onboarded_datasets)
    return onboarded._replace(warnings=(*onboarded.warnings, *empty))


def purge(
    repository: Repository,
    ids: GivenIds | None = None,
    *,
    ledger: bool = False,
    id_type: str = "",
    datasets: Sequence[str] = (),
    dry_run: bool = False,
    max_partitions: int | None = None,
    after: str = "",
    includes_copies: bool = False,
    ignores_statistics: bool = False,
    breaker_share: float = 0.5,
    breaker_floor_rows: int = 10_000,
    engine: Choice | EngineOptions = "auto",
    report_progress: ReportProgress | None = None,
    print_notice: Callable[[str], None] | None = None,
) -> PurgeReport:
    """Remove the rows of the ids from the onboarded data sets, and return what was done. It may be killed, and called
    again.

    `ids`: a `pathlib.Path` of CSV, Parquet or JSON lines with one column `id`; an `IdsFile` for a file of another form;
    or texts and integers. `ledger`: instead of ids, those that were ever purged. `id_type`: compare them as "string",
    "integer", "binary" or "uuid"; by default as they are. `datasets`: names; by default all that have ids. `dry_run`:
    find the rows, and write nothing but the report. `max_partitions`: do at most so many; the report's `watermark` is
    the `after` of the next call. `includes_copies`: purge names outside the data sets of the same objects, too.
    `ignores_statistics`: read the ids' column also where a file's statistics exclude them. `breaker_share`: raise if
    more than this share of the rows would go, unless they are at most `breaker_floor_rows`. `engine`: as
    `refstore_gc.collect` takes it. `report_progress` gets each `refstore.StepProgress`, `print_notice` a sentence about
    the ids that were read. No id is in them, nor in the report or an error. An index and a ledger of ids need a
    `purge_key`; an embedded lake makes one. Raises NotFound (nothing is onboarded; the ledger is empty), Invalid (the
    ids, their type, a data set's name or file), Conflict (the breaker), InvalidSettings (the key), Unavailable,
    Corrupt.
    """
    from refstore.core.step_progress import ignore_progress
    from refstore_gc.engines.choice import EngineOptions, Engines
    from refstore_purge import ids_file, purge_run

    if (ids is None) != ledger:
        raise Invalid("a purge needs either ids or ledger=True; give one of them")
    repository.purge_document()  # before an engine is started
    with (
        nullcontext() if ids is None else ids_file.open_ids(ids) as file,
        closing(Engines(EngineOptions.make(engine))) as engines,
    ):
        options = purge_run.PurgeOptions(
            ids=file,
            id_type=id_type,
            datasets=tuple(datasets),
            dry_run=dry_run,
            max_partitions=max_partitions,
            after=after,
            includes_copies=includes_copies,
            ignores_statistics=ignores_statistics,
            share=breaker_share,
            floor_rows=breaker_floor_rows,
            purge_key=repository.context.read_purge_key(),
        )
        tell, notice = report_progress or ignore_progress, print_notice or _ignore_notice
        return purge_run.run_purge(repository, engines, options, tell, print_notice=notice)


def verify(
    repository: Repository,
    ids: GivenIds,
    *,
    id_type: str = "",
    datasets: Sequence[str] = (),
    history: bool = False,
    report_progress: ReportProgress | None = None,
    print_notice: Callable[[str], None] | None = None,
) -> VerifyReport:
    """Read every object of the onboarded data sets, with other readers than `purge`, and return what is left of the
    ids, and what could not be looked at, with the reason. It changes nothing. `history`: look at every commit of data
    sets of the mode `keep-history`, too. The other arguments are those of `purge`.

    Raises NotFound (nothing is onboarded), Invalid (the ids, a data set's name), Unavailable.
    """
    from refstore.core.step_progress import ignore_progress
    from refstore_purge import ids_file, verify_datasets

    with ids_file.open_ids(ids) as file:
        return verify_datasets.verify_datasets(
            repository,
            file,
            id_type=id_type,
            only=tuple(datasets),
            history=history,
            report_progress=report_progress or ignore_progress,
            print_notice=print_notice or _ignore_notice,
        )


def restore(
    repository: Repository,
    run: str = "",
    *,
    dataset: str = "",
    partition: str = "",
    path: str = "",
    backup: str = "",
    dry_run: bool = False,
    report_progress: ReportProgress | None = None,
) -> RestoreSummary:
    """Bring back what purges have replaced, in every version, while the backups last; and return what was restored.

    `run`: undo this run; by default each object gets its newest backup. `dataset`, `partition` (`day=2026-11-26`, of
    the data set) and `path` restrict it; `backup` is the address of one backup, whichever run replaced it. `dry_run`:
    count, and change nothing. What a restore replaces becomes trash, which has days of its own.

    Raises NotFound (there is no such backup, or no such data set), Invalid, Unavailable.
    """
    from refstore.core.step_progress import ignore_progress
    from refstore_purge import restore_backups

    scope = restore_backups.RestoreScope(run, dataset, partition, path, backup)
    return restore_backups.restore_backups(
        repository, scope, dry_run=dry_run, report_progress=report_progress or ignore_progress
    )


def clean_up(
    repository: Repository, *, dry_run: bool = False, report_progress: ReportProgress | None = None
) -> CleanupSummary:
    """Delete the backups and the trash that are past their days, and what killed runs left, and return what went. The
    nightly job does the same. `dry_run`: count, and delete nothing.

    Raises KVWentBack, KVSettling, Corrupt, Unavailable; then nothing more is deleted.
    """
    from refstore.core.step_progress import ignore_progress
    from refstore_purge import purge_cleanup

    return purge_cleanup.clean_up(
        repository.context, dry_run=dry_run, report_progress=report_progress or ignore_progress
    )


def _ignore_notice(_: str) -> None:
    """Tell nobody."""
