"""`examples/purge_events` as people start it, with a process for each command. `tests/offline/test_purge_example.py`
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
        [sys.executable, "-m", "examples.purge_events", "--size-mb", "8"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path), "JAVA_TOOL_OPTIONS": QUICK_JAVA},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    told = re.findall(r"^\$ refstore (.+)\n(?:.*\n)*?\(exit code (\d+),", ran.stdout, re.MULTILINE)
    assert [(re.sub(r"\S+/", "", words), code) for words, code in told] == [
        ("purge onboard events purge.json", "0"),
        ("purge run events --ids forget.parquet --dry-run", "0"),
        ("purge verify events --ids forget.parquet", "4"),
        ("purge run events --ids forget.parquet --yes", "0"),
        ("purge verify events --ids forget.parquet", "0"),
        ("revert events main main", "0"),
    ]
    (removed,) = re.findall(r"^([\d,]+) rows of 1,000 guests are gone, all others are there", ran.stdout, re.MULTILINE)
    changed = re.findall(r"^rows changed +(\d+)$", ran.stdout, re.MULTILINE)
    assert changed == ["0", removed.replace(",", "")]
    assert ran.stdout.rstrip().endswith("Reverted: all rows are there again.")
    assert "guest-" not in ran.stdout + ran.stderr
    assert not list(tmp_path.glob("refstore-*"))
