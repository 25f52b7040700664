"""The real files of the demo: by default, those of the running Python installation."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from refstore.errors import Invalid

SIZE_BYTES_MAX: Final = 1 << 20
"""Larger files test the disk rather than the bookkeeping."""

PATH_BYTES_MAX: Final = 1000
"""refstore takes 1024; the clients put a folder before the path."""

FILES_MIN: Final = 60
"""With fewer files, some clients have nothing to do."""

_NOT_SOURCES: Final = frozenset({"__pycache__", "site-packages", "dist-packages", ".git"})
"""Folders that other programs write to while the job runs, or that have too many files."""


class SourceFile(msgspec.Struct, frozen=True):
    path: str
    """Relative to the folder that it was found in."""
    file: str
    size_bytes: int
    sha256: str


def choose_files(folder: Path | None, count: int) -> Sequence[SourceFile]:
    """Choose the first `count` regular files, and read and hash them. Raises Invalid if there are too few.

    Without a folder: from the standard library and, if it has not enough, from the packages installed beside it.
    """
    installed = sysconfig.get_paths()
    folders = [folder] if folder is not None else [Path(installed["stdlib"]), Path(installed["purelib"])]
    files: dict[str, Path] = {}
    for path, file in (found for each in folders for found in _list_files(each)):
        files.setdefault(path, file)
        if len(files) == count:
            break
    if len(files) < FILES_MIN:
        raise Invalid(
            f"{folders[0]} holds {len(files)} readable files of at most {SIZE_BYTES_MAX} bytes, and {FILES_MIN} are "
            "needed; name another folder with --source"
        )
    return [_hash(path, file) for path, file in files.items()]


def _list_files(folder: Path) -> Iterator[tuple[str, Path]]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _NOT_SOURCES)
        for file in (Path(parent, name) for name in sorted(names)):
            path = file.relative_to(folder).as_posix()
            if _can_be_uploaded(path, file):
                yield path, file


def _can_be_uploaded(path: str, file: Path) -> bool:
    try:
        is_short = len(path.encode()) <= PATH_BYTES_MAX
    except UnicodeEncodeError:  # a name of other bytes than UTF-8
        return False
    is_small = file.is_file() and not file.is_symlink() and file.stat().st_size <= SIZE_BYTES_MAX
    return is_short and is_small and os.access(file, os.R_OK)


def _hash(path: str, file: Path) -> SourceFile:
    content = file.read_bytes()
    return SourceFile(path, str(file), len(content), hashlib.sha256(content).hexdigest())
