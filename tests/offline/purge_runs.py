"""Runs of the purge on a lake, and the files of ids that they get."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from refstore_gc import gc_run
from refstore_purge import purge_cleanup, purge_run
from refstore_purge.purge_report import PurgeReport
from refstore_purge.purge_run import IdsFile, PurgeOptions
from tests.offline.world import World
from tests.purge.tracking import guestids

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

run_nightly = partial(gc_run.run_nightly, clean_up=purge_cleanup.clean_up)
"""The offline job of a lake that has purges."""
Purge = Callable[..., PurgeReport]
"""Purges guests."""


DATASETS: list[dict[str, Any]] = [
    {"name": "events", "prefix": "events/", "format": "csv", "identifier": "guest", "mode": "rewrite"},
    {"name": "faces", "prefix": "faces/", "identifier": "guest", "mode": "erase"},
    {"name": "visits", "prefix": "visits/", "format": "csv", "identifier": "guest", "mode": "keep-history"},
]
"""A data set of each mode."""


def onboard_visits(world: World, **changes: Any) -> None:
    """Onboard one data set, of which these are other fields; None: without that field."""
    dataset = {"name": "visits", "prefix": "visits/", "identifier": "guest", "mode": "rewrite", "format": "json"}
    dataset = {field: value for field, value in (dataset | changes).items() if value is not None}
    world.repo.onboard_purge(json.dumps({"whitelist": ["*"], "datasets": [dataset]}), by="tests")


def options_of(ids: Path | None, **options: Any) -> PurgeOptions:
    """Return the options of a run. `ids`: their file, of which options may tell more; None: those of the ledger."""
    of_file = {name: options.pop(name) for name in IdsFile._fields if name in options}
    return PurgeOptions(ids=None if ids is None else IdsFile(ids, **of_file), **options)


def purge_with(world: World, engines: Engines, ids: Path | None, **options: Any) -> PurgeReport:
    return purge_run.run_purge(world.repo, engines, options_of(ids, **options), lambda _: None)


def purge_on(world: World, engines: Engines) -> Purge:
    """Return what purges the guests of the world's data sets."""

    def purge(*guests: str | None, **options: Any) -> PurgeReport:
        return purge_with(world, engines, guestids(world.folder, *guests), **options)

    return purge


class OneDataset:
    """A lake with one data set."""

    def __init__(self, world: World, engines: Engines) -> None:
        self.world, self.engines = world, engines

    def onboard(self, format_: str | None = "parquet", **more: Any) -> None:
        onboard_visits(self.world, format=format_, **more)

    def ids(self, *values: Any, type_: Any = None) -> Path:
        file = self.world.folder / "ids.parquet"
        pq.write_table(pa.table({"id": pa.array(values, type_)}), file)
        return file

    def run(self, file: Path, **options: Any) -> PurgeReport:
        return purge_with(self.world, self.engines, file, share=1, **options)
