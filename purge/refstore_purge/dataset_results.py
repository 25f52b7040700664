"""Tell for each data set whether a run could look at any row of it, and if not, why.

Ids that have no rows are normal. A data set without an object, or without its identifier, is not: whoever mistyped the
prefix or the identifier must not read that everything was purged.
"""

from __future__ import annotations

from collections.abc import Sequence

from refstore.purge_document.document import ERASE, KEEP_HISTORY, Dataset
from refstore_purge.purge_plan import Partition
from refstore_purge.purge_report import DatasetResult
from refstore_purge.purge_run_state import PurgeRun


def make_dataset_results(run: PurgeRun, datasets: Sequence[Dataset], units: Sequence[Partition]) -> list[DatasetResult]:
    """Return what became of each data set. `units`: all of the first plan, not only those that the run was to do."""
    every = [dataset.name for dataset in datasets if any(unit.dataset is dataset for unit in units)]
    is_beyond = bool(units) and not run.select_partitions(units)
    results: list[DatasetResult] = []
    for dataset in datasets:
        objects = sum(row.objects for row in run.state.rows.values() if row.dataset == dataset.name)
        made = DatasetResult(dataset=dataset.name, prefix=dataset.prefix, mode=dataset.mode, objects=objects)
        if is_beyond and dataset.name in every:
            made.untouched_reason = f"all of its partitions are left out by --after {run.options.after!r}"
        elif dataset.name not in run.state.present_datasets:
            made.untouched_reason = describe_empty(dataset)
        elif objects and _has_no_identifier(run, dataset):
            made.untouched_reason = describe_missing_identifier(dataset, "no object that could be read")
        results.append(made)
    return results


def describe_empty(dataset: Dataset, where: str = "in any version") -> str:
    """Say that a data set has no object. `where`: what was looked at, unless its mode says so."""
    if dataset.mode == KEEP_HISTORY:
        where = f"at the heads of {', '.join(dataset.branches)}" if dataset.branches else "at any head"
    return f"nothing lies below {dataset.prefix} {where}"


def describe_missing_identifier(dataset: Dataset, who: str) -> str:
    """Say that objects have nothing where the identifier should be. `who`: how many, such as `no object`."""
    if dataset.mode != ERASE:
        return f"{who} has the column {dataset.identifier}"
    if dataset.path:
        return f"{who} has a path of the form {dataset.path}"
    return f"{who} has a folder {dataset.identifier}=..., or {dataset.identifier} in its user metadata"


def _has_no_identifier(run: PurgeRun, dataset: Dataset) -> bool:
    is_told = dataset.mode == ERASE or dataset.name in run.state.datasets_without_identifier
    return is_told and dataset.name not in run.state.identified_datasets
