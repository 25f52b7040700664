"""Folders that nobody but their owner knows, as stores to prune."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

DAY: Final = 86_400


def make_store(folder: Path, keys: Iterable[str], *, days_ago: float = 30) -> Path:
    """Write a file for each key, so many days ago; each as large as its key is long."""
    for key in keys:
        file = folder / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(key)
        written = file.stat().st_mtime - days_ago * DAY
        os.utime(file, (written, written))
    return folder


def write_list(file: Path, names: Iterable[str]) -> Path:
    file.write_text("".join(f"{name}\n" for name in names))
    return file


def stored_keys(folder: Path) -> set[str]:
    """Return the keys of a store, without refstore's own files."""
    every = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
    return {key for key in every if not key.startswith("_refstore/")}
