"""What tests ask for that run git, or that read what git tracks. In CI nothing may be skipped."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def need_git() -> None:
    """Skip the test where git is not installed, and fail it where `CI=true`."""
    if shutil.which("git") is None:
        _skip("needs git, which is not installed")


def need_clone() -> None:
    """Likewise where this tree is no clone, as an unpacked archive is none."""
    need_git()
    if not (ROOT / ".git").exists():
        _skip("needs a clone of the repository: this tree is an unpacked archive, without .git")


def _skip(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
