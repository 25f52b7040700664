"""Container, compose, Kubernetes, systemd and cron agree: on one file of settings, on tags, and on the version."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import refstore
from refstore.configuration.settings_loader import load_settings
from refstore.service import access_keys
from tests.api.service import application

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SETTINGS = "/etc/refstore/refstore.toml"
PROMETHEUS = DEPLOY / "prometheus/prometheus.yml"
FILES = [*DEPLOY.rglob("*"), ROOT / "docs/upgrading.md", ROOT / "docs/operating.md", ROOT / "README.md"]
TEXTS = {
    str(file.relative_to(ROOT)): file.read_text("utf-8") for file in FILES if file.is_file() and file.suffix != ".pyc"
}
OURS = re.compile(r"refstore:(\d[\w.-]*)")


def test_there_is_one_place_for_settings() -> None:
    named = {
        name: set(re.findall(r"/etc/[\w/.-]*refstore[\w/.-]*\.toml", text)) - {SETTINGS} for name, text in TEXTS.items()
    }
    assert {name: others for name, others in named.items() if others} == {}
    for name in ("container/Containerfile", "container/compose.yaml", "cron/refstore-gc", "README.md"):
        assert SETTINGS in TEXTS[f"deploy/{name}"], name
    units = sorted((DEPLOY / "systemd").glob("*.service"))
    assert [unit.name for unit in units if f"--config {SETTINGS}" not in unit.read_text()] == []
    chart = TEXTS["deploy/helm/refstore/templates/_helpers.tpl"]
    assert "mountPath: /etc/refstore" in chart
    assert "\n  refstore.toml: " in TEXTS["deploy/helm/refstore/templates/config.yaml"]


def test_the_example_of_settings_is_read(tmp_path: Path) -> None:
    text = TEXTS["deploy/refstore.toml"]
    assert tomllib.loads(text) == {}
    written = tmp_path / "refstore.toml"
    written.write_text(re.sub(r"^# (?=[\[a-z0-9_]+(?:\]| =))", "", text, flags=re.MULTILINE))
    settings = load_settings({}, {"REFSTORE_CONFIG": str(written)}, default_data=tmp_path).settings
    assert (settings.kv, settings.reaper.rate_per_second) == ("redis://redis:6379/0", 500)


def test_every_image_has_a_tag_and_ours_is_of_this_version() -> None:
    assert [name for name, text in TEXTS.items() if re.search(r":latest\b|-t refstore(?:\s|$)", text)] == []
    services = yaml.safe_load(TEXTS["deploy/container/compose.yaml"])["services"]
    images = [service["image"].partition(":-")[2].rstrip("}") for service in services.values()]
    assert all(re.fullmatch(r"[\w./-]+:[\w.-]+", image) for image in images), images
    newer = TEXTS["docs/upgrading.md"]
    tags = {tag for name, text in TEXTS.items() if text != newer for tag in OURS.findall(text)}
    tags |= set(re.findall(r"/opt/refstore-([\d.]+\d)", TEXTS["deploy/README.md"]))
    chart = yaml.safe_load(TEXTS["deploy/helm/refstore/Chart.yaml"])
    assert tags | {chart["version"], chart["appVersion"]} == {refstore.__version__}


def test_prometheus_is_given_a_key_and_files_that_are_there() -> None:
    scraped = yaml.safe_load(TEXTS["deploy/prometheus/prometheus.yml"])
    (service, *others) = scraped["scrape_configs"]
    assert set(service["basic_auth"]) == {"username", "password_file"}
    assert all("basic_auth" not in other for other in others)
    assert [name for name in scraped["rule_files"] if not (PROMETHEUS.parent / name).is_file()] == []


def test_a_readers_key_scrapes_the_service() -> None:
    """As prometheus.yml says: by the key as user and password. Without one, nobody does."""
    with application() as service:
        new = access_keys.create_key(service.lake, access_keys.Role.READER, description="Prometheus")
        scraped = service("GET", "http://lake.test/metrics", auth=(new.key.id, new.secret))
        assert scraped.status_code == 200
        assert "refstore_kv_probe_seconds" in scraped.text
        assert service("GET", "http://lake.test/metrics", auth=None).status_code == 401


@pytest.mark.root
def test_promtool_reads_what_prometheus_is_told() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: make setup-system")
    checked = subprocess.run(
        [promtool, "check", "config", "--syntax-only", PROMETHEUS], check=False, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
