"""Look for purged ids in what came or returned since, as a part of the nightly job (`--purge-ledger`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from refstore.errors import NotFound
from refstore.repository import Repository

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines
    from refstore_purge.purge_report import PurgeReport

NAMED_MAX: Final = 5
"""How many objects that were not purged are named."""


def purge_again(repo: Repository, engines: Engines, key: bytes, report_progress: Any) -> PurgeReport | None:
    """Purge what the ledger has. None: nothing is onboarded, or the ledger has no ids. Raises RefstoreError."""
    from refstore_purge import purge_run

    try:
        if not repo.purge_document().document.onboarded_datasets:
            return None
        return purge_run.run_purge(repo, engines, purge_run.PurgeOptions(ids=None, purge_key=key), report_progress)
    except NotFound:
        return None


def row_of(repository: str, report: PurgeReport) -> dict[str, object]:
    """Return what the run did, as a row."""
    return {
        "repository": repository,
        "purge": report.run,
        "state": report.state,
        "ids": report.ids,
        "rewritten_objects": sum(row.rewritten_objects for row in report.rows),
        "erased_objects": sum(row.erased_objects for row in report.rows),
        "rows_changed": sum(row.rows_changed for row in report.rows),
        "skipped_count": report.skipped_count,
        "untouched": [each.dataset for each in report.datasets if each.untouched_reason],
    }


def reasons_of(repository: str, report: PurgeReport) -> Sequence[str]:
    """Return a line for each data set and object that was not purged, up to a number."""
    if report.is_done:
        return ()
    left = [f"data set {each.dataset}: {each.untouched_reason}" for each in report.datasets if each.untouched_reason]
    left += [
        f"{each.branch}: {each.path or '(the branch)'}: {each.reason}" for each in report.skipped_objects[:NAMED_MAX]
    ]
    if report.skipped_count > NAMED_MAX:
        left.append(f"... and {report.skipped_count - NAMED_MAX} more: refstore purge report {repository} {report.run}")
    return [f"not purged: {each}" for each in left]
