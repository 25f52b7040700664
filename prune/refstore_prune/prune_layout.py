"""Where a run keeps its files, in the store itself or in the store of `--state`, and what its mark holds.

    _refstore/prune/<run id>/listing/<number>-<attempt>.parquet   what the store listed, in order of keys
    _refstore/prune/<run id>/listing/<attempt>.arrows             rows of an inventory, sorted by keys
    _refstore/prune/<run id>/names/<number>.parquet               names, as a source has them
    _refstore/prune/<run id>/mark/<number>-<attempt>.parquet      a unit of what is unnamed
    _refstore/prune/<run id>/sweep/<number>-<attempt>.parquet     what became of a unit
    _refstore/prune/<run id>/mark.json                            the units; the mark stands when this is there
    _refstore/prune/<run id>/report.json                          what the run found and did
    _refstore/prune/locks/                                        one run at a time

A dry run has all of them in a folder that goes with it, and reads the last run's.
"""

from __future__ import annotations

import secrets
from typing import Final

import msgspec

from refstore.objects.base import OWN_FILES
from refstore_gc.run_layout import RunLayout

PRUNE_ROOT: Final = f"{OWN_FILES}prune/"
MARK_FILE: Final = "mark.json"

UNIT_ROWS: Final = 10_000
"""How many objects a unit of the mark has at most."""


class PruneLayout(RunLayout, frozen=True, kw_only=True):
    """What every task of a run needs to know. `mark_id` is the run's id."""

    root: str = PRUNE_ROOT

    @property
    def run_id(self) -> str:
        return self.mark_id


class PruneUnit(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the mark: at most `UNIT_ROWS` unnamed objects, in order of keys. Its columns are `key`, `size_bytes`,
    `mtime_ms`, `etag` and `marked_ms`.
    """

    file: str
    first_key: str
    objects: int
    is_due: bool = False
    """Whether this run sweeps it; else it waits for its grace period to end."""


class PruneManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a mark holds: everything that its run found unnamed."""

    run_id: str
    store: str
    marked_ms: int
    """When the run began. Its units have this time for what no earlier run had marked."""
    stood_ms: int
    """When it had read all names: the grace period of what it was the first to mark counts from then (rule 25)."""
    grace_ms: int = 0
    """The grace period of the run. That of the run that sweeps counts."""
    names: int
    """How many distinct names the store had."""
    names_by_source: dict[str, int]
    """Those that each source had, as of `checks.names_by_source`."""
    units: list[PruneUnit]
    """Those that are due, in order of keys, and those that wait, in order of keys."""


def make_prune_layout(store_url: str, run_id: str, *, files: str = "", io_timeout_seconds: float = 60.0) -> PruneLayout:
    """Return the layout of a new run. `files`: the store of its files, if it is another one."""
    seed = secrets.randbits(64)
    return PruneLayout(
        url=store_url, files=files or store_url, mark_id=run_id, seed=seed, io_timeout_seconds=io_timeout_seconds
    )
