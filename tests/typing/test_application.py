"""The library's types hold: a program that uses all of it runs, and passes strict pyright and strict mypy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("application.py")
CHECKERS = {
    "pyright": ["pyright", "--pythonpath", sys.executable],
    "mypy": ["mypy", "--strict", "--no-incremental", "--python-executable", sys.executable],
}
MISTAKES = """\
import refstore
import refstore_gc
def misuse(lake: refstore.Lake, repo: refstore.Repository, branch: refstore.Branch) -> None:
    repo.merge("dev", "main")  # wrong: the second of two names is a keyword
    repo.stat("main", "a").token  # wrong: a record's field
    branch.upload("a", b"", modified=7)  # wrong: a time is a datetime
    branch.open("a", "rb").write(1)  # wrong: bytes are written
    branch.open("a", "w").write(b"1")  # wrong: text is written
    refstore.Retention(default=30)  # wrong: a duration is a timedelta
    refstore_gc.collect(repo, onyl="mark")  # wrong: no such option
    refstore_gc.collect(lake).sweeps  # wrong: a report for each repository
"""


def check(checker: str, program: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Check one file in a folder of its own, where no configuration of this project holds."""
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    (copy := tmp_path / "application.py").write_bytes(program.read_bytes())
    name, *options = CHECKERS[checker]
    return subprocess.run(
        [Path(sys.executable).with_name(name), *options, copy.name],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": "", "MYPYPATH": os.environ.get("PYTHONPATH", "")},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def test_the_program_runs(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", PROGRAM, tmp_path / "lake"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout == ("True\nload 21 ['2026/11/21.csv', 'cold.csv'] v1\n(1, 0) 1\nweather ['main'] ['v1']\n")


@pytest.mark.parametrize("checker", CHECKERS)
def test_the_program_passes(checker: str, tmp_path: Path) -> None:
    checked = check(checker, PROGRAM, tmp_path)
    assert checked.returncode == 0, checked.stdout[-3000:]


@pytest.mark.parametrize("checker", CHECKERS)
def test_each_mistake_is_found(checker: str, tmp_path: Path) -> None:
    (wrong := tmp_path / "wrong.py").write_text(MISTAKES)
    checked = check(checker, wrong, tmp_path)
    found = {int(line) for line in re.findall(r"application\.py:(\d+)(?::\d+)?.*? error", checked.stdout)}
    due = {number for number, line in enumerate(MISTAKES.splitlines(), 1) if "# wrong" in line}
    assert due <= found, checked.stdout
