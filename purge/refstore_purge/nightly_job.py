"""What joins the offline job and the purge at night: the cleaning, the sweeps and the mark, then the look for the
ledger's ids in what came or returned since.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from refstore.core.step_progress import ReportProgress
from refstore.errors import NotFound
from refstore.repository import Repository
from refstore_gc import gc_run
from refstore_gc.engines.choice import Engines
from refstore_purge import purge_cleanup

if TYPE_CHECKING:
    from refstore_purge.purge_report import PurgeReport

run_nightly: Final = partial(gc_run.run_nightly, clean_up=purge_cleanup.clean_up)
"""Deletes what purges left behind, past its days, and does the offline job."""


def purge_again(repo: Repository, engines: Engines, key: bytes, report_progress: ReportProgress) -> PurgeReport | None:
    """Purge what the ledger has. None: nothing is onboarded, or the ledger has no ids. Raises RefstoreError."""
    from refstore_purge import purge_run  # with the libraries of all formats

    try:
        if not repo.purge_document().document.onboarded_datasets:
            return None
        return purge_run.run_purge(repo, engines, purge_run.PurgeOptions(ids=None, purge_key=key), report_progress)
    except NotFound:
        return None
