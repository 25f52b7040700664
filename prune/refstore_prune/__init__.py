"""Prune a store that refstore does not own: delete what nothing names any more.

    report = refstore_prune.prune("s3://bucket/media", ["list:names.csv"], column="path", dry_run=True)
    print(report.verdicts["unnamed"].bytes)

`prune` makes a run, `status`, `report` and `why` look at runs, and `unmark` takes a mark back. The rest:

    prune_run.py              one run, from the lock to the report
    prune_layout.py           where a run keeps its files
    state.py                  the runs of a store: one at a time, and what each left
    list_store.py             list the store, by intervals of its keys
    inventory.py              read an inventory of S3 in place of a listing
    resolve_names.py          make keys of names, in every spelling
    compare.py                compare what is listed with what is named
    checks.py                 stop before anything is marked
    prune_sweep.py            delete what is still unnamed and unchanged
    prune_report.py           what a run found and did
    key_history.py            what runs found and did with one key
    lakefs_reports.py         a mark beside a report of lakeFS's own collector
    sources/                  where names come from

A store is listed before the names are read. What is listed, old enough and unnamed is marked; a later run deletes it
if its grace period is over, and it is still unnamed and unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from refstore.errors import NotFound

if TYPE_CHECKING:
    from refstore.core.step_progress import ReportProgress
    from refstore.objects import ObjectStore
    from refstore_gc.engines.choice import Choice, EngineOptions
    from refstore_gc.run_summary import ObjectCount
    from refstore_prune.key_history import KeyEvent, KeyHistory
    from refstore_prune.lakefs_reports import ReportComparison
    from refstore_prune.prune_report import AgeRow, NamesCount, PrefixRow, PruneReport, UnnamedObject
    from refstore_prune.sources.base import MetadataPlace, NameSource, SourceFacts, SourceOptions

__all__ = [
    "AgeRow",
    "KeyEvent",
    "KeyHistory",
    "MetadataPlace",
    "NameSource",
    "NamesCount",
    "ObjectCount",
    "PrefixRow",
    "PruneReport",
    "ReportComparison",
    "SourceFacts",
    "SourceOptions",
    "UnnamedObject",
    "compare_with_lakefs",
    "prune",
    "report",
    "status",
    "unmark",
    "why",
]

_MODULES: Final = {
    "KeyEvent": "refstore_prune.key_history",
    "KeyHistory": "refstore_prune.key_history",
    "MetadataPlace": "refstore_prune.sources.base",
    "NameSource": "refstore_prune.sources.base",
    "ObjectCount": "refstore_gc.run_summary",
    "ReportComparison": "refstore_prune.lakefs_reports",
    "SourceFacts": "refstore_prune.sources.base",
    "SourceOptions": "refstore_prune.sources.base",
}
"""Where the classes are that are not of the report."""

Place = str | os.PathLike[str]
"""A store: its URL, or the path of a folder."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES.get(name, "refstore_prune.prune_report")), name)


def prune(
    store: Place,
    names: str | NameSource | Iterable[str | NameSource],
    *,
    dry_run: bool = False,
    min_age: timedelta | None = None,
    grace: timedelta = timedelta(days=7),
    state: Place | None = None,
    inventory: Place | None = None,
    protect: Sequence[str] = (),
    consent: Sequence[str] = (),
    share_max: float = 0.5,
    take_over: bool = False,
    endpoint: str = "",
    column: str = "",
    rules: bytes | None = None,
    properties: Mapping[str, str] | None = None,
    engine: Choice | EngineOptions = "auto",
    report_progress: ReportProgress | None = None,
) -> PruneReport:
    """Make a run, as `refstore prune run` does: mark what nothing names, and delete what an earlier run had marked a
    grace period ago, is still unnamed, and has not changed since.

    `names`: sources of names, such as `list:names.csv`; what one of them names stays. `dry_run`: change nothing, and
    say what would be marked and deleted. `min_age`: younger objects stay; None: as long as the sources need. `grace`:
    between the run that marks and the one that deletes. `state`: another store for the files of runs. `inventory`: the
    `manifest.json` of an S3 Inventory, which is read in place of a listing. `protect`: patterns of keys that stay.
    `consent`: what a run that stopped asked for. `share_max`: a run that finds more than this share of the store
    unnamed stops. `take_over`: from a run that died a moment ago. `endpoint`, `column`, `rules`, `properties`: for the
    sources. `engine`, `report_progress`: as of `refstore_gc.collect`.

    Raises PruneStopped: before anything was marked, with what has to be looked at; RunUnderWay, Invalid,
    InvalidSettings, MissingExtra, NotFound, Corrupt, Unavailable, StoreMisconfigured.
    """
    from refstore.core.step_progress import ignore_progress
    from refstore_gc.engines.choice import EngineOptions, open_engines
    from refstore_prune.prune_run import PruneOptions, run_prune
    from refstore_prune.sources import open_sources
    from refstore_prune.sources.base import NameSource, SourceOptions

    url = _url_of(store)
    of_sources = SourceOptions(endpoint=endpoint, column=column, rules=rules, properties=properties or {})
    sources = open_sources([names] if isinstance(names, str | NameSource) else names, of_sources)
    options = PruneOptions(
        min_age=min_age,
        grace=grace,
        state=None if state is None else _url_of(state),
        inventory="" if inventory is None else _file_url_of(inventory),
        protect=tuple(protect),
        consent=tuple(consent),
        share_max=share_max,
        dry_run=dry_run,
        take_over=take_over,
    )
    with open_engines(EngineOptions.make(engine)) as engines:
        return run_prune(url, sources, options, engines, report_progress or ignore_progress)


def status(store: Place, *, state: Place | None = None) -> list[PruneReport]:
    """Return the report of each run that is kept, the oldest first. Raises Corrupt, Unavailable."""
    from refstore_prune.state import read_runs

    with _open_files(store, state) as files:
        return read_runs(files)


def report(store: Place, run_id: str = "last", *, state: Place | None = None) -> PruneReport:
    """Return the report of a run, which the beginning of its id names; or the last report. Raises NotFound, Corrupt,
    Unavailable.
    """
    from refstore_prune.state import read_report

    with _open_files(store, state) as files:
        return read_report(files, run_id if run_id == "last" else _full_id(files, run_id))


def why(store: Place, key: str, *, state: Place | None = None) -> KeyHistory:
    """Return what runs found and did with a key, or a URL below the store. Raises Invalid, Corrupt, Unavailable."""
    from refstore_prune.key_history import read_history

    with _open_files(store, state) as files:
        return read_history(files, _url_of(store), key)


def unmark(store: Place, run_id: str, *, state: Place | None = None) -> PruneReport:
    """Take back what a run was the first to mark, or with `all` what any run did: it is not deleted before a later run
    has marked it again, and a grace period has passed since. Raises NotFound, RunUnderWay, Corrupt, Unavailable.
    """
    from refstore_prune import state as run_state

    with _open_files(store, state) as files:
        return run_state.unmark(files, run_id if run_id == "all" else _full_id(files, run_id))


def compare_with_lakefs(
    store: Place, report_url: str, *, namespace: str = "", state: Place | None = None, write: Place | None = None
) -> ReportComparison:
    """Compare the last mark with a report of lakeFS's own collector: its folder with `summary.json`.

    `namespace`: the URL of the repository's namespace; '': the one in which the report lies. `write`: also write the
    mark there in the form of such a report. Raises Invalid, NotFound, Corrupt, Unavailable.
    """
    from refstore_prune.lakefs_reports import compare, write_as_lakefs

    of_state = None if state is None else _url_of(state)
    compared = compare(_url_of(store), _url_of(report_url), state=of_state, namespace=namespace)
    if write is not None:
        write_as_lakefs(_url_of(store), _url_of(write), namespace=compared.namespace, state=of_state)
    return compared


def _full_id(files: ObjectStore, beginning: str) -> str:
    """Return the id of the only run whose id begins so. Raises NotFound."""
    from refstore_prune.state import read_runs

    found = [each.run_id for each in read_runs(files) if each.run_id.startswith(beginning)]
    if len(found) != 1:
        raise NotFound(
            f"{len(found)} runs of {files.url} have an id that begins with {beginning!r}; see `refstore prune status`"
        )
    return found[0]


def _url_of(place: Place) -> str:
    """Return the URL of a store. Raises NotFound: there is no such folder."""
    text = os.fspath(place)
    if "://" in text:
        return text
    folder = Path(text).expanduser().absolute()
    if not folder.is_dir():
        raise NotFound(f"there is no folder {folder}; give a folder, or the URL of a store, such as s3://bucket/prefix")
    return f"file://{quote(str(folder))}"


def _file_url_of(place: Place) -> str:
    """Return the URL of a file."""
    text = os.fspath(place)
    return text if "://" in text else f"file://{quote(str(Path(text).expanduser().absolute()))}"


@contextmanager
def _open_files(store: Place, state: Place | None) -> Generator[ObjectStore, None, None]:
    """Open the store that has the files of the runs."""
    from refstore.objects import open_objects

    with closing(open_objects(_url_of(store if state is None else state))) as files:
        yield files
