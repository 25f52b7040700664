"""The systemd units: they can be read, and are hardened."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = sorted((Path(__file__).parents[2] / "deploy/systemd").glob("*.service"))
EXPOSURE_MAX = 2.5


@pytest.mark.root
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_is_hardened(unit: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    done = subprocess.run(
        [analyze, "security", "--offline=true", "--no-pager", unit], check=False, capture_output=True, text=True
    )
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) <= EXPOSURE_MAX, done.stdout
    assert "Unknown" not in done.stderr


def test_there_are_units_for_service_reaper_and_job() -> None:
    assert [unit.stem for unit in UNITS] == ["refstore-gc", "refstore-reaper", "refstore-serve"]
    assert (UNITS[0].parent / "refstore-gc.timer").is_file()


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_what_a_unit_starts_is_a_command_of_refstore(unit: Path) -> None:
    import sys

    words = re.findall(r"^ExecStart=\S+/refstore (.*)$", unit.read_text(), re.MULTILINE)[0].split()
    command = [word for word in words[:2] if not word.startswith("-")]
    helped = "".join(  # the options of every command are described once, in the help of all
        subprocess.run(
            [sys.executable, "-m", "refstore", *each, "--help"], check=True, stdout=subprocess.PIPE, text=True
        ).stdout
        for each in ([], command)
    )
    assert all(word in helped for word in words if word.startswith("--"))
