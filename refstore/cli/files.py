"""Local files of the commands: a tree to upload, a file to replace, and errors that say which file."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from refstore.errors import Invalid
from refstore.objects.base import CHUNK_BYTES


class SourceFile(NamedTuple):
    file: Path
    size_bytes: int
    mtime_ms: int

    def chunks(self) -> Iterator[bytes]:
        """The file, opened only when its turn has come: a batch holds hundreds."""
        with local_errors(), self.file.open("rb") as opened:
            while chunk := opened.read(CHUNK_BYTES):
                yield chunk


def source_file(file: Path) -> SourceFile:
    """Raises Invalid for what is not a readable regular file."""
    with local_errors():
        found = file.stat()
    if not stat.S_ISREG(found.st_mode):
        raise Invalid(f"{file} is not a regular file; give a file, '-' for standard input, or a folder with --recursive")
    return SourceFile(file, found.st_size, found.st_mtime_ns // 1_000_000)


def tree(folder: Path) -> list[tuple[str, SourceFile]]:
    """Every regular file below a folder, by relative path, in order. Links to folders are not followed; special files are left out."""
    found: list[tuple[str, SourceFile]] = []
    with local_errors():
        if not folder.is_dir():
            raise Invalid(f"{folder} is not a folder; leave --recursive out for a single file")
        for parent, _, names in os.walk(folder, onerror=_raise):
            for name in names:
                file = Path(parent, name)
                if file.is_file():
                    found.append((file.relative_to(folder).as_posix(), source_file(file)))
    return sorted(found)


@contextmanager
def replaced(goal: Path) -> Generator[BinaryIO, None, None]:
    """A file to write that takes its place at the end of the block, and leaves nothing behind if that fails."""
    goal.parent.mkdir(parents=True, exist_ok=True)
    beside = goal.with_name(f".{goal.name[:200]}.{secrets.token_hex(4)}.part")
    try:
        with beside.open("xb") as file:
            yield file
        beside.replace(goal)
    finally:
        with suppress(FileNotFoundError):
            beside.unlink()


@contextmanager
def local_errors() -> Generator[None, None, None]:
    """A local file that cannot be read or written is the caller's to mend, and no defect."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Invalid(f"{error.filename or 'a local file'}: {error.strerror or error}; name another file, or mend this one") from error


def _raise(error: OSError) -> None:
    raise error
