"""Files of real installations and of Pebble, which are not in this repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER_VARIABLE = "LAKEFS_FIXTURES_DIR"


def real_file(name: str) -> Path:
    """A file by its name. Without the folder the test is skipped."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        pytest.skip(f"{name} is needed; set {FOLDER_VARIABLE} to the folder of lakeFS's test files")
    return Path(folder) / name
