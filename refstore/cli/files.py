"""Read and write local files for the commands, with errors that name the file."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from refstore.core.disk_space import is_full
from refstore.core.json_documents import CHARACTERS_MAX
from refstore.errors import Invalid
from refstore.objects.base import CHUNK_BYTES


class SourceFile(NamedTuple):
    file: Path
    size_bytes: int
    mtime_ms: int

    def chunks(self) -> Iterator[bytes]:
        """Yield the file's bytes. It is opened only now, because a batch holds hundreds of files."""
        with local_errors(), self.file.open("rb") as opened:
            while chunk := opened.read(CHUNK_BYTES):
                yield chunk


def source_file(file: Path) -> SourceFile:
    """Return the file with its size and time. Raises Invalid if it is not a readable regular file."""
    with local_errors():
        status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise Invalid(
            f"{file} is not a regular file; give a file, '-' for standard input, or a folder with --recursive"
        )
    return SourceFile(file, status.st_size, status.st_mtime_ns // 1_000_000)


def tree(folder: Path) -> list[tuple[str, SourceFile]]:
    """List every regular file below a folder with its relative path, sorted. Links to folders are not followed, and
    special files are skipped.
    """
    files: list[tuple[str, SourceFile]] = []
    with local_errors():
        if not folder.is_dir():
            raise Invalid(f"{folder} is not a folder; leave --recursive out for a single file")
        for parent, _, names in os.walk(folder, onerror=_raise):
            for name in names:
                file = Path(parent, name)
                if file.is_file():
                    files.append((file.relative_to(folder).as_posix(), source_file(file)))
    return sorted(files)


def read_document(file: str) -> str:
    """Read a document; '-' is standard input. Raises Invalid."""
    most = 4 * CHARACTERS_MAX + 4
    with local_errors():
        if file == "-":
            raw = sys.stdin.buffer.read(most)
        else:
            with Path(file).open("rb") as opened:
                raw = opened.read(most)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Invalid(f"{file} is not UTF-8 (byte {error.start}); save it as UTF-8") from None


@contextmanager
def replace_file(goal: Path) -> Generator[BinaryIO, None, None]:
    """Write a file that replaces `goal` at the end of the block; an error leaves no partial file."""
    goal.parent.mkdir(parents=True, exist_ok=True)
    import secrets

    beside = goal.with_name(f".{goal.name[:200]}.{secrets.token_hex(4)}.part")
    try:
        with beside.open("xb") as file:
            yield file
        beside.replace(goal)
    except OSError as error:
        if error.filename is None:  # of a write
            error.filename = str(goal)
        raise
    finally:
        with suppress(FileNotFoundError):
            beside.unlink()


@contextmanager
def local_errors() -> Generator[None, None, None]:
    """Turn errors of local files into Invalid, because the user can correct them."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if is_full(error.errno):
            raise  # the call is not wrong (`cli/errors.py`)
        raise Invalid(
            f"{error.filename or 'a local file'}: {error.strerror or error}; name another file, or correct this one"
        ) from error


def _raise(error: OSError) -> None:
    raise error
