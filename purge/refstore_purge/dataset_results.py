"""Tell for each data set whether a run could look at any row of it, and if not, why.

Ids that have no rows are normal. A data set without an object, or without its identifier, is not: whoever mistyped the
prefix or the identifier must not read that everything was purged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from refstore.errors import RefstoreError
from refstore.purge_document.document import ERASE, KEEP_HISTORY, Dataset
from refstore.repository import Repository
from refstore_purge.purge_context import PurgeRun
from refstore_purge.purge_plan import PurgeObject
from refstore_purge.purge_report import DatasetResult

BRANCHES: Final = 10
"""How many heads are asked whether a data set has anything, when the document is set."""


def make_dataset_results(
    run: PurgeRun, datasets: Sequence[Dataset], objects: Sequence[PurgeObject]
) -> list[DatasetResult]:
    """Return what became of each data set. `objects`: all of the first plan, not only those that the run was to do."""
    account, counts = run.account, Counter[str]()
    for row in account.report.rows:
        counts[row.dataset] += row.objects
    planned = {each.dataset.name for each in objects}
    is_beyond = bool(objects) and not run.select_objects(objects)
    results: list[DatasetResult] = []
    for dataset in datasets:
        reason, name = "", dataset.name
        has_no_identifier = dataset.mode == ERASE or name in account.datasets_without_identifier
        if is_beyond and name in planned:
            reason = f"all of its partitions are left out by --after {run.options.after!r}"
        elif name not in account.present_datasets:
            reason = describe_empty(dataset)
        elif counts[name] and has_no_identifier and name not in account.identified_datasets:
            reason = _describe_missing_identifier(dataset)
        results.append(
            DatasetResult(
                dataset=name, prefix=dataset.prefix, mode=dataset.mode, objects=counts[name], untouched_reason=reason
            )
        )
    return results


def find_empty_datasets(repo: Repository, datasets: Sequence[Dataset]) -> list[str]:
    """Return a sentence for each data set below whose prefix nothing lies at the first heads: so a mistyped prefix is
    told when the document is set, and not by the first run. What cannot be listed, it says nothing of.
    """
    found: list[str] = []
    with suppress(RefstoreError):
        branches = [each.name for each in repo.branches() if not each.is_hidden]
        for dataset in datasets:
            heads = islice(filter(dataset.has_branch, branches), BRANCHES)
            if not any(True for branch in heads for _ in repo.list(branch, prefix=dataset.prefix)):
                found.append(f"data set {dataset.name!r}: {describe_empty(dataset, 'at the heads')}; is it mistyped?")
    return found


def describe_empty(dataset: Dataset, where: str = "in any version") -> str:
    """Say that a data set has no object. `where`: what was looked at, unless its mode says so."""
    if dataset.mode == KEEP_HISTORY:
        where = f"at the heads of {', '.join(dataset.branches)}" if dataset.branches else "at any head"
    return f"nothing lies below {dataset.prefix} {where}"


def _describe_missing_identifier(dataset: Dataset) -> str:
    """Say that no object has anything where the identifier should be."""
    who = "no object that could be read"
    if dataset.mode != ERASE:
        return f"{who} has the column {dataset.identifier}"
    if dataset.path:
        return f"{who} has a path of the form {dataset.path}"
    return f"{who} has a folder {dataset.identifier}=..., or {dataset.identifier} in its user metadata"
