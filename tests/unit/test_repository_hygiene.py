"""What may not stand in the repository: package registries, this machine, and modules without a place."""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.git import need_clone

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted(ROOT.glob("requirements*.lock"))
ROOMS = ("refstore", "api", "reaper", "offline_gc", "purge", "prune", "s3_gateway")
ROOMS_OF_LAYERS = (
    "refstore",
    "refstore.core",
    "refstore.versioning",
    "refstore.configuration",
    "refstore.monitoring",
    "refstore.service",
)

HOME = re.compile(r"(?<![\w.])/(?:(?:home|Users)/[A-Za-z0-9]|root/)")
SECRET = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----|\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{36}\b")
URL = re.compile(
    r"[a-z]+://|\b(?:pypi|pythonhosted|artifactory|nexus)\b|--(?:extra-)?index-url|--find-links", re.IGNORECASE
)


def tracked() -> list[Path]:
    need_clone()
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, timeout=60).stdout
    return [ROOT / name for name in listed.decode().split("\0") if name and (ROOT / name).is_file()]


def texts() -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for file in tracked():
        try:
            found.append((str(file.relative_to(ROOT)), file.read_text("utf-8")))
        except UnicodeDecodeError:
            continue
    return found


def offences(pattern: re.Pattern[str], *, but: frozenset[str] = frozenset()) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()[:120]}"
        for name, text in texts()
        if name not in but
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
class TestLocks:
    def test_names_no_package_source(self, lock: Path) -> None:
        assert [line for line in lock.read_text().splitlines() if URL.search(line)] == []

    def test_has_a_hash_for_everything(self, lock: Path) -> None:
        """One requirement without a hash would let pip turn all of them off."""
        entries = [line for line in lock.read_text().replace("\\\n", " ").splitlines() if not line.startswith("#")]
        assert len(entries) > (1 if "httpfs" in lock.name else 50)
        assert [
            entry
            for entry in entries
            if not re.match(r"[a-z0-9._-]+(?:\[[a-z0-9,-]+\])?==\S+ .*--hash=sha256:[0-9a-f]{64}", entry)
        ] == []

    def test_is_of_what_the_project_asks_for_now(self, lock: Path) -> None:
        asked = subprocess.run(
            [sys.executable, "scripts/asked.py"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
        )
        assert lock.read_text().splitlines()[0] == f"# pyproject.toml: {asked.stdout.strip()}", (
            "dependencies have changed; run: make lock"
        )


def test_the_locks_agree() -> None:
    """Benchmarks measure what the tests test."""
    pins = [{line.split(" ")[0] for line in lock.read_text().splitlines() if "==" in line} for lock in LOCKS]
    bench, _, image, spark, tests = pins
    assert [lock.name for lock in LOCKS] == [
        "requirements-bench.lock",
        "requirements-duckdb-httpfs.lock",
        "requirements-image.lock",
        "requirements-spark.lock",
        "requirements.lock",
    ]
    assert tests <= spark <= bench
    assert image <= bench


def test_no_tracked_file_knows_this_machine() -> None:
    assert offences(HOME, but=frozenset({"tests/unit/test_repository_hygiene.py"})) == []
    if len(ROOT.parts) > 2:  # a checkout in /src proves nothing: the word is everywhere
        assert offences(re.compile(re.escape(str(ROOT)))) == []


def test_no_tracked_file_holds_a_secret() -> None:
    assert offences(SECRET, but=frozenset({"tests/unit/test_repository_hygiene.py"})) == []


def test_locks_of_other_tools_are_not_tracked() -> None:
    """They record registries."""
    names = {file.name for file in tracked()}
    assert not names & {"uv.lock", "pylock.toml", "poetry.lock", "Pipfile.lock", "package-lock.json"}


def test_every_module_has_its_place_among_the_layers() -> None:
    """A module that no contract names could import anything."""
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    placed = set(re.findall(r"[\w.]+", contracts["importlinter:contract:layers"]["layers"]))
    there = {
        f"{package}.{path.stem}"
        for package in ROOMS_OF_LAYERS
        for path in (ROOT / package.replace(".", "/")).iterdir()
        if (path.suffix == ".py" and path.stem != "__init__") or (path / "__init__.py").exists()
    }
    assert there - set(ROOMS_OF_LAYERS) <= placed
    assert {"refstore_api", "refstore_reaper", "refstore_gc"} <= placed


def test_every_module_says_what_it_is_for() -> None:
    modules = [file for file in tracked() if file.suffix == ".py" and file.relative_to(ROOT).parts[0] in ROOMS]
    silent = [
        str(file.relative_to(ROOT))
        for file in modules
        if file.read_text().strip() and not ast.get_docstring(ast.parse(file.read_text()))
    ]
    assert silent == []


def test_ci_runs_what_people_run() -> None:
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-1] == "exec make test-all </dev/null"
