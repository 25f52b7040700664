"""Records that pages and metrics show: figures of reaper and offline job, and runs under way."""

from __future__ import annotations

from typing import NamedTuple

from refstore.records.encoding import Record


class Amount(NamedTuple):
    objects: int = 0
    bytes: int = 0


class DayAmount(NamedTuple):
    """What was deleted on one day, as the store confirmed it."""

    day: str
    """`2026-11-24`, in UTC."""
    objects: int
    bytes: int


class ReaperFigures(Record, frozen=True, tag=87):
    """`figures/<repo>/reaper`: what the reapers found in a repository, and deleted (`refstore/monitoring/figures.py`).

    Nothing is decided by these figures, so a lost write of them does no harm.
    """

    write_ids: tuple[str, ...] = ()
    """Of the last writes, the newest last: a writer that got no reply finds out whether it wrote."""
    measured_ms: int = 0
    """When the amounts below were measured. 0: not yet."""
    measuring_ms: int = 0
    """How long that took."""
    live: Amount = Amount()
    """What the default branch's head names: its entries, of which several may name one object."""
    staged: Amount = Amount()
    """What is staged on all branches, likewise."""
    in_grace: Amount = Amount()
    """What nothing names, before the end of its grace window; also where no reaper has begun this window."""
    due: Amount = Amount()
    """What nothing names, after the end of its grace window."""
    branches: int = 0
    stop_reason: str = ""
    """Why hard deletion is stopped; '' if it is not."""
    kv_went_back: bool = False
    """Whether it is stopped because the KV lost writes."""
    error: str = ""
    """The first error of the last pass that had one, until a pass has none."""
    error_ms: int = 0
    refused_objects: int = 0
    """Objects that the store did not delete in the last pass."""
    reclaimed: tuple[DayAmount, ...] = ()
    """Of the last days, the oldest first."""
    versions_warning: str = ""
    """That the bucket keeps versions of what is deleted, or that this is not known; '' if it does not."""


class GcFigures(Record, frozen=True, tag=88):
    """`figures/<repo>/gc`: what the offline job did in a repository, likewise."""

    write_ids: tuple[str, ...] = ()
    run_ms: int = 0
    """When the last run that succeeded ended."""
    marked_ms: int = 0
    """When the last mark was finished. 0: never."""
    mark_id: str = ""
    orphans: Amount = Amount()
    """What the last run found that the online path had missed."""
    orphans_before: Amount = Amount()
    """The same of the run before."""
    failed_objects: int = 0
    """Objects that the store did not delete in the last sweep."""
    error: str = ""
    """Why the last run failed; '' if it did not."""
    error_ms: int = 0
    reclaimed: tuple[DayAmount, ...] = ()
    marked: Amount = Amount()
    """What the marks hold that are not swept yet, at most."""
    next_sweep_ms: int = 0
    """When the first of these marks is due. 0: there is none, or each waits for an operator."""
    questions: int = 0
    """How many marks wait for an operator."""


class RunProgress(Record, frozen=True, tag=89):
    """`<repo>/progress/<run>`: how far a run of the offline job or a purge is, while it lasts."""

    kind: str
    """`mark`, `sweep`, `purge` or `restore`."""
    owner: str
    """The host and process."""
    began_ms: int
    beat_ms: int
    """When this was written: a run that did not write for long is dead."""
    step: str = ""
    done_items: int = 0
    total_items: int = 0
    """0: unknown."""
    remaining_ms: int = -1
    """How long the step may still take, by its speed so far. -1: unknown."""
    until_ms: int = 0
    """When the step ends, if it waits for a time. 0: it does not."""


class StopRequest(Record, frozen=True, tag=90):
    """`<repo>/progress/<run>/stop`: an operator asked the run to stop."""

    by: str
    at_ms: int
