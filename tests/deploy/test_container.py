"""The image and the compose file: linted, and their steps run in a plain folder, because no engine can be assumed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/container"
CONTAINERFILE = (FOLDER / "Containerfile").read_text()


def instructions(stage: int) -> list[tuple[str, str]]:
    """Return the instructions of a stage of the Containerfile."""
    lines = [line for line in CONTAINERFILE.splitlines() if line and not line.startswith("#")]
    stages: list[list[tuple[str, str]]] = [[]]
    for line in lines:
        name, _, rest = line.partition(" ")
        if name == "FROM":
            stages.append([])
        stages[-1].append((name, rest))
    return stages[stage]


def test_the_image_runs_without_rights_and_names_no_registry() -> None:
    final = dict(instructions(2))
    assert instructions(0) == [("ARG", "BASE=python:3.12-slim-bookworm")]
    assert {rest for name, rest in (*instructions(1), *instructions(2)) if name == "FROM"} == {
        "${BASE} AS build",
        "${BASE}",
    }
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", final["USER"])
    assert final["ENTRYPOINT"] == '["refstore"]'
    assert "refstore-healthy" in final["HEALTHCHECK"]
    assert not re.search(r"\b(?:curl|wget|ADD|sudo|apt-get|latest)\b", CONTAINERFILE)
    assert "SECRET" not in CONTAINERFILE


def test_what_the_image_copies_is_there() -> None:
    for name, rest in instructions(1):
        if name == "COPY":
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source


def test_the_compose_file_is_valid_and_hardened() -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*check, FOLDER / "compose.yaml"], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    services: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    for name in ("api", "reaper", "gc"):
        own = services[name]
        assert own["read_only"] is True
        assert own["cap_drop"] == ["ALL"]
        assert own["security_opt"] == ["no-new-privileges:true"]
        assert own["tmpfs"][0].startswith("/tmp:")
    assert services["api"]["ports"] == ["127.0.0.1:8000:8000", "127.0.0.1:9000:9000"]
    assert "always" in services["redis"]["command"]


@pytest.mark.slow
@pytest.mark.xdist_group("image")
def test_the_images_steps_work_in_a_plain_folder(tmp_path: Path) -> None:
    """What the image would have is installed by its own script, and serves from there without writing into it."""
    source = tmp_path / "src"
    for name, rest in instructions(1):
        if name == "COPY":
            *sources, target = rest.split()
            for each in sources:
                goal = source / (target if len(sources) == 1 and (ROOT / each).is_dir() else each)
                goal.parent.mkdir(parents=True, exist_ok=True)
                copy = shutil.copytree if (ROOT / each).is_dir() else shutil.copy
                copy(ROOT / each, goal)
    installed = tmp_path / "refstore"
    (step,) = [rest for name, rest in instructions(1) if name == "RUN"]
    assert step == "deploy/container/install.sh ${SPARK:+--with-spark} /opt/refstore"
    subprocess.run(
        [source / "deploy/container/install.sh", installed],
        check=True,
        cwd=source,
        env={**os.environ, "PYTHON": sys.executable, "REFSTORE_INSTALLER": str(Path(sys.executable).with_name("uv"))},
    )
    before = set(installed.rglob("*"))
    environment = {
        "PATH": f"{installed}/bin:/usr/bin:/bin",
        "HOME": str(tmp_path / "tmp"),
        "TMPDIR": str(tmp_path / "tmp"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "REFSTORE_DATA": str(tmp_path / "lake"),
    }
    (tmp_path / "tmp").mkdir()
    shown = subprocess.run(["refstore", "--version"], check=True, capture_output=True, text=True, env=environment)
    assert shown.stdout.startswith("refstore ")
    log = tmp_path / "serve.log"
    with log.open("wb") as out:
        serving = subprocess.Popen(
            ["refstore", "serve", "--port", "0"], env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        url = ""
        while not url and serving.poll() is None:
            found = re.search(r"refstore serves (http://\S+)", log.read_text())
            url = found[1] if found else ""
        assert httpx.get(f"{url}/readiness", timeout=30).status_code == 200
        assert "Sign in" in httpx.get(f"{url}/ui/sign-in", timeout=30).text
    finally:
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(60) == 0, log.read_text()
    doctor = ["refstore", "doctor", "--json"]
    looked = subprocess.run(doctor, check=False, capture_output=True, text=True, env=environment)
    assert '"java"' in looked.stdout
    assert set(installed.rglob("*")) == before  # a read-only root would do
