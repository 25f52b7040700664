from __future__ import annotations

from pathlib import Path

import pytest

from refstore.objects.local import LocalObjects


@pytest.fixture
def in_folder(tmp_path: Path) -> LocalObjects:
    """A store in a folder of its own."""
    return LocalObjects(tmp_path / "store", fsync=False)
