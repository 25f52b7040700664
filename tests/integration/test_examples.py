"""`examples/purge_events` as people start it. `tests/offline/test_purge_example.py`
has its parts, and that its comparison can fail.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark-processes")]

ROOT = Path(__file__).parents[2]
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""As in tests/spark: these processes compile longer than they gain."""


def test_the_purge_of_events_checks_itself_and_is_taken_back(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "examples.purge_events", "--size", "8_000_000"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path), "JAVA_TOOL_OPTIONS": QUICK_JAVA},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    steps = re.findall(r"^(purge.*|verify): [\d.]+ s$", ran.stdout, re.MULTILINE)
    assert steps == ["purge, dry run", "verify", "purge", "verify"]
    (removed,) = re.findall(r"^([\d,]+) rows of 1,000 guests are gone, all others are there", ran.stdout, re.MULTILINE)
    assert int(removed.replace(",", "")) > 0
    assert ran.stdout.rstrip().endswith("Reverted: all rows are there again.")
    assert "guest-" not in ran.stdout + ran.stderr
    assert not list(tmp_path.glob("refstore-*"))
