"""The real files of the demo: by default, those of the running Python installation."""

from __future__ import annotations

import hashlib
import os
import random
import sysconfig
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from refstore.core.ids import object_path
from refstore.errors import Invalid, InvalidPath

SIZE_BYTES_MAX: Final = 1 << 20
"""Larger files test the disk rather than the bookkeeping."""

FILES_MIN: Final = 60
"""With fewer files, some clients of the plan have no steps."""

_NOT_SOURCES: Final = frozenset({"__pycache__", "site-packages", "dist-packages", ".git"})
"""Folders that other programs write to while the job runs, or that have too many files."""


class Source(NamedTuple):
    path: str
    """The path relative to the folder; also its path in the repository."""
    file: Path
    size_bytes: int
    sha256: str


def choose(folder: Path | None, files: int, seed: int) -> list[Source]:
    """Choose at most `files` regular files, and read and hash them. Raises Invalid if there are none.

    Without a folder: from the standard library and, if it has not enough, from the packages installed beside it.
    """
    if folder is not None:
        found = _below(folder)
    else:
        paths = sysconfig.get_paths()
        found = _below(Path(paths["stdlib"]))
        if len(found) < files:
            found = {**_below(Path(paths["purelib"]), at_most=files - len(found)), **found}
    names = sorted(found)
    if len(names) > files:
        # reproducible, and no secret
        names = sorted(random.Random(seed).sample(names, files))  # noqa: S311  # no secret
    if len(names) < FILES_MIN:
        where = folder or "this Python's library"
        raise Invalid(
            f"{where} holds {len(names)} readable files of at most {SIZE_BYTES_MAX} bytes, and {FILES_MIN} are needed; "
            "name"
            " another folder with --source"
        )
    return [_read(name, found[name]) for name in names]


def _below(base: Path, at_most: int | None = None) -> dict[str, Path]:
    return {file.relative_to(base).as_posix(): file for file in islice(_walk(base), at_most)}


def _walk(base: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(base):
        folders[:] = sorted(name for name in folders if name not in _NOT_SOURCES)
        for name in sorted(names):
            file = Path(parent, name)
            if _usable(file, base):
                yield file


def _usable(file: Path, base: Path) -> bool:
    try:
        object_path("archive/" + file.relative_to(base).as_posix())
        return (
            file.is_file()
            and not file.is_symlink()
            and file.stat().st_size <= SIZE_BYTES_MAX
            and os.access(file, os.R_OK)
        )
    except (OSError, InvalidPath):
        return False


def _read(name: str, file: Path) -> Source:
    content = file.read_bytes()
    return Source(name, file, len(content), hashlib.sha256(content).hexdigest())
