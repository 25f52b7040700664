"""Metrics: declared once, told in the documents, used by alerts and the dashboard, and changed by real work."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from refstore.configuration.settings import ReaperSettings
from refstore.kv.base import Key
from refstore.monitoring import metrics
from refstore.monitoring.metrics import LABELS, METRICS
from refstore.records import keys
from refstore_http.request_metrics import RequestMetrics, render_lake_metrics
from refstore_reaper.breaker import Breaker, Reason
from refstore_reaper.reaper_metrics import FileMetrics, read_metrics_file
from tests.reaper_world import GRACE_SECONDS, World

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/refstore.rules.yaml"
DASHBOARD = ROOT / "deploy/grafana/refstore.json"
_NAME = re.compile(r"\brefstore_[a-z_]+\b")


def names_in(text: str) -> set[str]:
    return {name.removesuffix("_bucket") for name in _NAME.findall(text)}


def test_each_metric_is_declared_in_one_place_and_in_full() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    for metric in METRICS:
        assert metric.help.endswith("."), metric
        assert set(metric.labels) <= set(LABELS), metric
        if metric.unit in ("seconds", "bytes"):
            assert metric.name.endswith(f"_{metric.unit}"), metric
    assert set(LABELS) == {label for metric in METRICS for label in metric.labels}
    for folder in ("refstore", "api", "reaper", "offline_gc", "purge", "prune", "s3_gateway"):
        for path in (ROOT / folder).rglob("*.py"):
            made = re.findall(r"\b(?:Counter|Gauge|Histogram|Summary)\(\s*f?\"refstore", path.read_text())
            assert not made, path


@pytest.mark.parametrize(
    ("script", "file"),
    [("metrics_table.py", "docs/metrics.md"), ("grafana_dashboard.py", "deploy/grafana/refstore.json")],
)
def test_what_is_made_from_the_declarations_is_up_to_date(script: str, file: str) -> None:
    made = subprocess.run([sys.executable, ROOT / "scripts" / script], capture_output=True, text=True, check=True)
    assert made.stdout == (ROOT / file).read_text(), f"run scripts/{script} > {file}"


@pytest.mark.parametrize("file", [RULES, DASHBOARD], ids=["alerts", "dashboard"])
def test_alerts_and_the_dashboard_name_metrics_that_exist(file: Path) -> None:
    assert names_in(file.read_text()) <= {metric.series_name for metric in METRICS}


def samples(*texts: bytes) -> dict[str, float]:
    """Return each series' value, by its name; of several series the sum."""
    found: dict[str, float] = {}
    for text in texts:
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def test_real_work_changes_every_metric_of_the_alerts_and_the_dashboard(tmp_path: Path) -> None:
    """Reapers, a breaker that trips, a store that refuses, a KV that went back; and the service's own requests."""
    world = World(pause_seconds=10)
    service = RequestMetrics()
    values: dict[str, set[float]] = {}

    def look() -> None:
        own = (service.render(), render_lake_metrics(world.lake), read_metrics_file(tmp_path))
        found = samples(*own)
        for metric in METRICS:
            name = f"{metric.name}_count" if metric.kind == "histogram" else metric.series_name
            values.setdefault(metric.series_name, set()).add(found.get(name, 0.0))

    def reap(**limits: float) -> None:
        reaper_metrics = FileMetrics(tmp_path)
        with world.reaper(metrics=reaper_metrics, **limits) as reaper:
            reaper.run_once(lambda: False)
        reaper_metrics.record_beat(world.clock.now_ms())
        look()

    look()
    for number in range(3):
        world.upload("main", f"live/{number}")
    world.repo.commit("main", "live")
    world.repo.set_retention('{"default_retention_days": 7}')
    world.upload("main", "staged", *(f"deleted/{number}" for number in range(20)))
    world.repo.delete_prefix("main", "deleted/")
    reap()
    world.clock.advance(GRACE_SECONDS + 1)
    refused = {info.key for info in world.objects.list("data/")}
    world.objects.refuses = set(sorted(refused)[:10])
    reap()
    world.objects.refuses = set()
    world.kv.set(Key(keys.due_hint_shard(world.repo.context.repo, 0), "0000000000001/damaged"), b"")
    ctx = world.repo.context
    Breaker(ctx, ReaperSettings(), "a-test").stop(Reason.SHARE)
    world.clock.advance(120)
    reap()
    service.count_request("GET", "/x", 200, 0.1)
    look()
    # tests/offline/test_figures.py sees the job's figures change
    of_the_job = {
        metric.series_name
        for metric in (
            metrics.REPOSITORY_ORPHAN_OBJECTS,
            metrics.REPOSITORY_MARKED_OBJECTS,
            metrics.REPOSITORY_QUESTIONS,
            metrics.REPOSITORY_LAST_RUN,
        )
    }
    named = names_in(RULES.read_text()) | names_in(DASHBOARD.read_text())
    still = {
        name for name in named - of_the_job - {metrics.REPOSITORY_KV_WENT_BACK.series_name} if len(values[name]) < 2
    }
    assert not still


def test_a_kv_that_does_not_answer_is_slow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(pause_seconds=10)
    assert 0 < samples(render_lake_metrics(world.lake))[metrics.KV_PROBE_SECONDS.series_name] < 60
    world.kv.down = True
    assert samples(render_lake_metrics(world.lake)) == {metrics.KV_PROBE_SECONDS.series_name: float("inf")}


def test_a_kv_that_went_back_is_told() -> None:
    world = World(pause_seconds=10)
    ctx = world.repo.context
    Breaker(ctx, ReaperSettings(), "a-test").stop(Reason.KV_WENT_BACK)
    world.run_once()
    found = samples(render_lake_metrics(world.lake))
    assert (
        found[metrics.REPOSITORY_KV_WENT_BACK.series_name]
        == found[metrics.REPOSITORY_DELETION_STOPPED.series_name]
        == 1
    )


def test_the_series_of_a_repository_end_with_it(tmp_path: Path) -> None:
    world = World(pause_seconds=10)
    gone = FileMetrics(tmp_path)
    with world.reaper(metrics=gone) as reaper:
        reaper.run_passes(lambda: False)
        gone.record_beat(world.clock.now_ms())
        assert b'repository="lake"' in read_metrics_file(tmp_path)
        world.lake.delete_repository("lake")
        for _ in range(3):
            world.clock.advance(86_400)
            reaper.run_passes(lambda: False)
        gone.record_beat(world.clock.now_ms())
    assert b'repository="lake"' not in read_metrics_file(tmp_path)
    assert b'repository="lake"' not in render_lake_metrics(world.lake)


@pytest.mark.root
def test_every_alert_is_tested_by_promtool() -> None:
    import shutil

    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: make setup-system")
    tests = RULES.with_name("refstore.rules.test.yaml")
    done = subprocess.run(
        [promtool, "test", "rules", tests], cwd=RULES.parent, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    alerts = set(re.findall(r"- alert: (\w+)", RULES.read_text()))
    told = {
        name
        for block in tests.read_text().split("alertname: ")[1:]
        for name in [block.partition("\n")[0].partition(",")[0].strip()]
        if "exp_labels" in block.partition("eval_time")[0]
    }
    assert alerts == told
