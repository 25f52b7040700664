"""What the nightly job does of purges behind the mark: look for the ledger's ids in what came or returned since."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refstore.core.step_progress import ReportProgress
from refstore.errors import NotFound
from refstore.repository import Repository
from refstore_gc.engines.choice import Engines

if TYPE_CHECKING:
    from refstore_purge.purge_report import PurgeReport


def purge_again(repo: Repository, engines: Engines, key: bytes, report_progress: ReportProgress) -> PurgeReport | None:
    """Purge what the ledger has. None: nothing is onboarded, or the ledger has no ids. Raises RefstoreError."""
    from refstore_purge import purge_run  # with the libraries of all formats

    try:
        if not repo.purge_document().document.onboarded_datasets:
            return None
        return purge_run.run_purge(repo, engines, purge_run.PurgeOptions(ids=None, purge_key=key), report_progress)
    except NotFound:
        return None
