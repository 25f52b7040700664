"""The pages of the runs of `refstore prune`, of stores that are not the lake's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import refstore_prune
from refstore.configuration.settings import ApiSettings
from refstore.core.clock import SystemClock
from refstore.core.ids import RandomIds
from refstore.kv.memory import MemoryKV
from refstore.lake import Lake
from refstore.objects.local import LocalObjects
from refstore.service.access_keys import Role
from refstore_prune.prune_layout import PRUNE_ROOT
from refstore_prune.state import open_run, write_report
from tests.api.pages import pages_of
from tests.prune.folders import make_store, write_list

HOSTILE = "b/<script>alert(1)<script>"


@pytest.fixture
def lake() -> Iterator[Lake]:
    with Lake(MemoryKV(), "memory://prune-pages") as made:
        yield made


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "store", ["a/1", "a/22", "c/333", HOSTILE])


@pytest.fixture
def marked(store: Path, tmp_path: Path) -> refstore_prune.PruneReport:
    names = write_list(tmp_path / "names.txt", ["a/1", "a/22", "gone/4"])
    return refstore_prune.prune(store, f"list:{names}")


def shown(*states: Path | str) -> ApiSettings:
    return ApiSettings(prune_states=tuple(map(str, states)))


def test_an_operator_sees_the_runs_and_what_each_found(
    lake: Lake, store: Path, marked: refstore_prune.PruneReport
) -> None:
    runs, run = pages_of(lake, "/prunes", f"/prunes/1/{marked.run_id}", api=shown(store))
    assert str(store) in runs
    listed = runs[runs.index(f" {marked.run_id} ") :]
    assert " marked " in listed
    assert " 2 7 B 2 31 B 2 31 B 0 0 B 0 0 B in 6 d" in listed  # named, unnamed, waiting, due, deleted, next due
    assert "3 in the store, 0 outside; they keep 2 objects" in run
    assert "named, not listed gone/4" in run
    assert "waits for its grace period 2 31 B of these, marked now 2 31 B due 0 0 B" in run
    assert "30 to 90 days 2 31 B" in run
    assert "c/ 1 5 B 1 5 B" in run
    assert "b/&lt;script&gt;alert(1)&lt;script&gt; 26 B" in run


def test_what_a_run_could_not_do_is_shown_without_secrets(
    lake: Lake, store: Path, marked: refstore_prune.PruneReport
) -> None:
    report = refstore_prune.PruneReport(
        run_id=RandomIds().new_id(SystemClock().now_ms()),
        store="s3://me:secret@lake/sales",
        state="incomplete",
        began_ms=marked.began_ms,
        verdicts=marked.verdicts,
        outcomes={"deleted": refstore_prune.ObjectCount(3, 30), "failed": refstore_prune.ObjectCount(1, 10)},
        failures=["a/1: s3://me:secret@lake refused it"],
        not_looked_at=["What lies outside."],
        failed_checks=["over half is unnamed (large-share)"],
        error="Unavailable: s3://me:secret@lake is slow",
    )
    write_report(LocalObjects(store), report)
    runs, run = pages_of(lake, "/prunes", f"/prunes/1/{report.run_id}", api=shown(store))
    assert "secret" not in runs + run
    assert "incomplete Unavailable: s3://" in runs
    for text in ("lake refused it", "What lies outside.", "(large-share)", "deleted 3 30 B failed 1 10 B", "is slow"):
        assert text in run


def test_a_run_under_way_is_shown(lake: Lake, store: Path) -> None:
    files, run_id = LocalObjects(store), RandomIds().new_id(SystemClock().now_ms())
    with open_run(files, run_id):
        files.put(f"{PRUNE_ROOT}{run_id}/listing/1-1.parquet", b"")
        runs, run = pages_of(lake, "/prunes", f"/prunes/1/{run_id}", api=shown(store))
    assert f"{run_id} " in runs
    assert " running " in runs
    assert " running " in run


def test_a_state_that_cannot_be_read_hides_no_other(
    lake: Lake, store: Path, marked: refstore_prune.PruneReport, tmp_path: Path
) -> None:
    (tmp_path / "new").mkdir()
    states = shown(tmp_path / "none", f"file://{tmp_path}/none", "ftp://lake", store, tmp_path / "new")
    (runs,) = pages_of(lake, "/prunes", api=states)
    assert runs.count("Its runs cannot be read: ") == 3
    assert "the object store cannot be used now; make the same call again later" in runs
    assert marked.run_id in runs
    assert "No run has left its files there" in runs
    pages_of(lake, f"/prunes/2/{marked.run_id}", api=states, status=503)
    assert not (tmp_path / "none").exists()


def test_a_run_that_is_not_there_is_not_found(lake: Lake, store: Path, marked: refstore_prune.PruneReport) -> None:
    for path in ("/prunes/1/none", f"/prunes/0/{marked.run_id}", f"/prunes/2/{marked.run_id}"):
        assert "What to do: look at the list of prune runs" in pages_of(lake, path, api=shown(store), status=404)[0]


@pytest.mark.parametrize("role", [Role.READER, Role.WRITER])
def test_nobody_but_an_operator_sees_them(
    lake: Lake, store: Path, marked: refstore_prune.PruneReport, role: Role
) -> None:
    pages = pages_of(lake, "/prunes", f"/prunes/1/{marked.run_id}", role=role, api=shown(store), status=403)
    assert not [page for page in pages if str(store) in page or "script" in page]
    assert "Prune runs" not in pages_of(lake, "", role=role, api=shown(store))[0]


def test_a_service_that_was_told_of_no_state_has_no_such_pages(lake: Lake) -> None:
    assert "Prune runs" not in pages_of(lake, "")[0]
    assert "--prune-state" in pages_of(lake, "/prunes", status=404)[0]
    assert "Prune runs" in pages_of(lake, "", api=shown("s3://lake/sales"))[0]
