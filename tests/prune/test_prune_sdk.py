"""The functions of `refstore_prune`, as an application calls them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import refstore
import refstore_prune
from refstore.errors import Invalid, NotFound, PruneStopped
from refstore_prune.sources import open_sources
from tests.prune.folders import make_store, stored_keys, write_list

NAMED = {"a/1", "a/2", "b/1"}


class Database(refstore_prune.NameSource):
    """A source of an application's own."""

    text = "the database"

    def __init__(self, names: set[str]) -> None:
        self.names = names
        self.store_url = ""

    def check(self, store_url: str) -> None:
        self.store_url = store_url

    def parts(self) -> Iterator[Any]:
        yield pa.array(sorted(self.names))

    def facts(self) -> refstore_prune.SourceFacts:
        return refstore_prune.SourceFacts(source=self.text, began_ms=2_000_000_000_000, read={"rows": len(self.names)})


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "store", {*NAMED, "b/2"})


def test_an_application_brings_its_own_names(store: Path) -> None:
    steps: list[refstore.StepProgress] = []
    source = Database(NAMED)
    simulated = refstore_prune.prune(store, source, dry_run=True, report_progress=steps.append)
    assert source.store_url == f"file://{store}"
    assert simulated.verdicts["unnamed"] == refstore_prune.ObjectCount(1, 3)
    assert simulated.sources[0].read == {"rows": 3}
    assert steps
    assert refstore_prune.status(store) == []

    marked = refstore_prune.prune(store, [source])
    assert refstore_prune.report(store) == marked
    swept = refstore_prune.prune(f"file://{store}", [Database(NAMED)], grace=timedelta(0))
    assert swept.state == "done"
    assert stored_keys(store) == NAMED
    assert [each.run_id for each in refstore_prune.status(store)] == [marked.run_id, swept.run_id]
    history = refstore_prune.why(store, f"file://{store}/b/2")
    assert [(each.run_id, each.found) for each in history.events] == [
        (marked.run_id, "unnamed"),
        (swept.run_id, "unnamed"),
        (swept.run_id, "deleted"),
    ] or [each.found for each in history.events] == ["unnamed", "deleted"]
    assert refstore_prune.why(store, "a/1").events == []
    with pytest.raises(NotFound):
        refstore_prune.report(store, "00")
    with pytest.raises(NotFound):
        refstore_prune.unmark(store, "00")
    with pytest.raises(Invalid):
        refstore_prune.why(store, "s3://elsewhere/b/2")


def test_what_a_run_asks_for_is_raised(store: Path) -> None:
    with pytest.raises(PruneStopped):
        refstore_prune.prune(store, Database({"c/1", "c/2"}))
    with pytest.raises(PruneStopped):
        refstore_prune.prune(store, Database(set()), consent=["few-found"])


def test_a_mark_is_taken_back(store: Path) -> None:
    marked = refstore_prune.prune(store, Database(NAMED))
    assert refstore_prune.unmark(store, marked.run_id[:20]).run_id == marked.run_id
    again = refstore_prune.prune(store, Database(NAMED), grace=timedelta(0))
    assert again.newly_marked.objects == 1
    assert stored_keys(store) == {*NAMED, "b/2"}


def test_a_list_older_than_the_mark_deletes_nothing(store: Path, tmp_path: Path) -> None:
    """What it does not name may have been named since."""
    names = f"list:{write_list(tmp_path / 'names', NAMED)}"
    refstore_prune.prune(store, names)
    assert refstore_prune.prune(store, names, grace=timedelta(0)).due.objects == 0
    assert stored_keys(store) == {*NAMED, "b/2"}
    write_list(tmp_path / "names", NAMED)
    assert refstore_prune.prune(store, names, grace=timedelta(0)).due.objects == 1


def test_each_source_gets_the_options_of_its_kind() -> None:
    options = refstore_prune.SourceOptions(column="path")
    assert [each.text for each in open_sources(["list:a.csv", "exec:cat b"], options)] == ["list:a.csv", "exec:cat"]
    with pytest.raises(Invalid, match="'endpoint'"):
        open_sources(["list:a.csv"], refstore_prune.SourceOptions(endpoint="http://localhost"))
    with pytest.raises(Invalid, match="no source of names"):
        open_sources([], options)
    with pytest.raises(Invalid, match="no kind of source"):
        open_sources(["other:a"], options)
