"""The local store of the tests that go beyond the suites."""

from __future__ import annotations

from pathlib import Path

import pytest

from refstore.objects.local import LocalObjects


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(directory: Path) -> LocalObjects:
    return LocalObjects(directory)
