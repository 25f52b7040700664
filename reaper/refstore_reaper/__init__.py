"""The reaper: deletes, online, what was staged and never committed.

`reap` runs it once, from an application; `refstore reaper` runs it for ever.

    reap_report.py        what `reap` reports
    daemon.py             the loop over all repositories: back-off, heartbeats, metrics
    reaper_pass.py        one bounded pass over a repository, under leases, the breaker and the throttle
    reference_release.py  publish missing markers, then markers -> released references (rules 3 and 7)
    deletion.py           empty lists and expired addresses, when due -> `deleting` -> blob -> key (rule 8)
    scrub.py              remove the remains of crashed operations (rule 9)
    breaker.py            stop hard deletion when more is due than expected
    leases.py             share the work between reapers on several machines
    single_run.py         run until nothing is due, for `reap`
    dry_run.py            the same passes over read-only stores

Any number of reapers may run. Leases only keep them from doing the same work twice; safety depends on the protocol
alone.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refstore import Lake
    from refstore.core.step_progress import ReportProgress
    from refstore_reaper.pass_summary import UnitError
    from refstore_reaper.reap_report import DueObject, ReapReport

__all__ = ["DueObject", "ReapReport", "UnitError", "reap"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{'pass_summary' if name == 'UnitError' else 'reap_report'}"), name)


def reap(
    lake: Lake,
    *,
    repositories: Collection[str] = (),
    grace: timedelta | None = None,
    share_max: float = 0.5,
    scrub: bool = False,
    dry_run: bool = False,
    report_progress: ReportProgress | None = None,
) -> ReapReport:
    """Delete what nothing names any more and whose grace window is over, until nothing is due, as `refstore reaper
    --once` does.

    Other reapers may run at the same time. The first call after an upload lost its last name begins the grace window; a
    call after its end deletes the object.

    `repositories`: the names of these only, also of deleted ones. `grace`: instead of the repositories' own grace
    windows; 0: nothing can be restored any more. `share_max`: hard deletion stops in a repository where more than this
    share of the objects is due, 10,000 at least, until `refstore reaper resume` lets it go on; 1: it never stops.
    `scrub`: look now for what crashed operations left. `dry_run`: change nothing, and say what would be deleted.
    `report_progress` gets a `refstore.StepProgress` after each pass over a repository, in a dry run with each object;
    its `done_items` are objects of all repositories.

    What stops one repository stands in the report's `errors`, and the others go on. Raises RepositoryNotFound, Invalid
    (a negative grace), InvalidSettings (a share beyond 0 to 1), DurationsDiffer, KVUnavailable.
    """
    from refstore.configuration.settings import ReaperSettings
    from refstore.core.step_progress import ignore_progress
    from refstore_reaper.single_run import reap_once

    return reap_once(
        lake,
        ReaperSettings(breaker_share=share_max),
        repositories=repositories,
        grace=grace,
        scrub=scrub,
        dry_run=dry_run,
        report_progress=report_progress or ignore_progress,
    )
