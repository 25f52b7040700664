"""A source whose names a test gives, and runs with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa

from refstore.core.clock import SystemClock
from refstore.core.step_progress import ignore_progress
from refstore_gc.engines.choice import Engines
from refstore_prune.prune_report import PruneReport
from refstore_prune.prune_run import PruneOptions, run_prune
from refstore_prune.sources.base import MetadataPlace, NamePart, NameSource, SourceFacts


class GivenNames(NameSource):
    text = "given"
    min_age = timedelta(0)

    def __init__(self, names: Iterable[str], *, base_url: str = "", tasks: int = 0) -> None:
        """`tasks`: in how many tasks the names are read; 0: in the run's process."""
        self.names = list(names)
        self.base_url = base_url
        self.tasks = tasks
        self.as_of_ms = 0
        self.reads: tuple[str, ...] = ()
        """Kinds of metadata that it reads."""

    def parts(self) -> Iterator[NamePart]:
        for number in range(self.tasks):
            yield partial(read_part, self.names[number :: self.tasks])
        if not self.tasks:
            yield pa.array(self.names, pa.string())

    def facts(self) -> SourceFacts:
        return SourceFacts(source=self.text, began_ms=SystemClock().now_ms(), as_of_ms=self.as_of_ms)

    def reads_metadata(self, place: MetadataPlace, store_url: str) -> bool:
        return place.kind in self.reads


def read_part(names: list[str]) -> Iterator[Any]:
    yield pa.array(names, pa.string())


def prune(
    url: str,
    names: Iterable[str] | NameSource,
    engines: Engines,
    more: Sequence[Iterable[str] | NameSource] = (),
    **options: Any,
) -> PruneReport:
    """Make a run. Without a grace period, unless the options say so. `more`: the names of further sources."""
    sources = [each if isinstance(each, NameSource) else GivenNames(each) for each in (names, *more)]
    with_defaults: dict[str, Any] = {"grace": timedelta(0), **options}
    return run_prune(url, sources, PruneOptions(**with_defaults), engines, ignore_progress)


def count_of(report: PruneReport, verdict: str) -> int:
    return report.verdicts[verdict].objects
