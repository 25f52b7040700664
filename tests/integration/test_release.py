"""`make release`, in a copy of this checkout. A program that only says that it was called replaces the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import refstore
from tests.git import need_clone

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("packaging")]

ROOT = Path(__file__).resolve().parents[2]
VERSION = refstore.__version__


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=ann", "-c", "user.email=ann@example.com")
    command = ["git", *identity, *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the files of this checkout, whose changelog has a section of the version."""
    need_clone()
    folder = tmp_path_factory.mktemp("release") / "origin"
    for name in filter(None, git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    changelog = folder / "CHANGELOG.md"
    if f"## {VERSION}" not in changelog.read_text():
        changelog.write_text(changelog.read_text().replace("## Unreleased", f"## {VERSION} (2026-11-22)", 1))
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "All files")
    return folder


@pytest.fixture
def checkout(origin: Path, tmp_path: Path) -> Path:
    git(tmp_path, "clone", "--quiet", str(origin), "checkout")
    return tmp_path / "checkout"


def release(checkout: Path, *words: str, tests: str = "echo the tests were called") -> subprocess.CompletedProcess[str]:
    program = checkout.parent / "make"
    program.write_text(f'#!/bin/sh\ntest "$*" = test-release && {tests}\n')
    program.chmod(0o700)
    identity = {f"GIT_{who}_{what}": "a@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return subprocess.run(
        [checkout / "scripts" / "release.sh", *words],
        cwd=checkout.parent,
        env={**os.environ, **identity, "PYTHON": sys.executable, "MAKE": str(program)},
        capture_output=True,
        text=True,
        check=False,
    )


def dirty(checkout: Path) -> None:
    (checkout / "new").touch()


def another_version(checkout: Path) -> None:
    file = checkout / "refstore" / "__init__.py"
    file.write_text(file.read_text().replace(f'__version__ = "{VERSION}"', '__version__ = "0.0.1"'))
    git(checkout, "commit", "--quiet", "--all", "--message", "another version")


def not_in_the_changelog(checkout: Path) -> None:
    file = checkout / "CHANGELOG.md"
    file.write_text(file.read_text().replace(f"## {VERSION}", "## Unreleased"))
    git(checkout, "commit", "--quiet", "--all", "--message", "another changelog")


def tagged_before(checkout: Path) -> None:
    git(checkout, "tag", f"v{VERSION}")


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (dirty, "uncommitted changes"),
        (another_version, "names another version"),
        (not_in_the_changelog, "has no section"),
        (tagged_before, "exists already"),
    ],
)
def test_a_release_is_refused_before_anything_is_built(checkout: Path, prepare: object, reason: str) -> None:
    assert callable(prepare)
    prepare(checkout)
    done = release(checkout, VERSION)
    assert done.returncode == 1
    assert reason in done.stderr
    assert not (checkout / "dist").exists()


@pytest.mark.parametrize("words", [(), ("v1.0.0",), ("1.0",), ("1.0.0", "1.0.1"), ("1.0.0", "--force")])
def test_a_release_needs_one_version_and_known_options(checkout: Path, words: tuple[str, ...]) -> None:
    done = release(checkout, *words)
    assert done.returncode == 1
    assert done.stderr.startswith("release: ")


def test_a_dry_run_does_everything_but_the_tag(checkout: Path) -> None:
    done = release(checkout, VERSION, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "the tests were called" in done.stdout
    names = {entry.name for entry in (checkout / "dist").iterdir()}
    assert names == {f"refstore_lake-{VERSION}.tar.gz", f"refstore_lake-{VERSION}-py3-none-any.whl"}
    assert git(checkout, "tag") == ""


def test_a_release_is_tagged_here_and_pushed_nowhere(checkout: Path, origin: Path) -> None:
    done = release(checkout, VERSION)
    assert done.returncode == 0, done.stderr
    assert "the tests were called" in done.stdout
    assert git(checkout, "cat-file", "-t", f"v{VERSION}") == "tag\n"
    assert git(checkout, "rev-parse", f"v{VERSION}^{{commit}}") == git(checkout, "rev-parse", "HEAD")
    assert git(origin, "tag") == ""


def test_tests_that_fail_end_a_release_unless_they_are_skipped(checkout: Path) -> None:
    assert release(checkout, VERSION, tests="exit 2").returncode == 2
    assert git(checkout, "tag") == ""
    done = release(checkout, VERSION, "--skip-tests", tests="exit 2")
    assert done.returncode == 0, done.stderr
    assert "the tests were skipped" in done.stderr
    assert git(checkout, "tag") == f"v{VERSION}\n"


@pytest.mark.parametrize("extra", ["tests/kit/explorer.py", "api/__init__.py"])
def test_a_distribution_with_a_foreign_package_is_noticed(tmp_path: Path, extra: str) -> None:
    dist = tmp_path / "dist"
    build = [sys.executable, "-m", "hatchling", "build", "--directory", dist]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(dist / f"refstore_lake-{VERSION}-py3-none-any.whl", "a") as archive:
        archive.writestr(extra, "")
    check = [sys.executable, ROOT / "scripts" / "check_dist.py", dist, VERSION]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert extra.split("/", 1)[0] in done.stderr
