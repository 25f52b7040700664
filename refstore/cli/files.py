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


class LocalFileError(Invalid):
    """A local file could not be read or written; the user can correct that, or name another one."""


class SourceFile(NamedTuple):
    file: Path
    size_bytes: int
    mtime_ms: int

    def chunks(self) -> Iterator[bytes]:
        """Yield the file's bytes. It is opened only now, because a batch holds hundreds of files. Raises
        LocalFileError, also if somebody wrote the file meanwhile: what was read may be neither the old nor the new one.
        """
        with local_errors(), self.file.open("rb") as opened:
            before = os.fstat(opened.fileno())
            while chunk := opened.read(CHUNK_BYTES):
                yield chunk
            after = os.fstat(opened.fileno())
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise LocalFileError(f"{self.file} changed while it was read; upload it again")

    def find_fault(self) -> str:
        """Return why the file cannot be opened; '': it can."""
        try:
            with local_errors():
                self.file.open("rb").close()
        except LocalFileError as error:
            return str(error)
        return ""


class SourceTree(NamedTuple):
    """What lies below a folder, by relative path."""

    files: dict[str, SourceFile]
    left_out: dict[str, str]
    """Why something is no file that can be read."""


def source_file(file: Path) -> SourceFile:
    """Return the file with its size and time. Raises Invalid if it is not a readable regular file."""
    with local_errors():
        status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise Invalid(
            f"{file} is not a regular file; give a file, '-' for standard input, or a folder with --recursive"
        )
    return SourceFile(file, status.st_size, status.st_mtime_ns // 1_000_000)


def tree(folder: Path) -> SourceTree:
    """List what lies below a folder, sorted. Links to files are followed, and links to folders are not. Raises Invalid
    if it is not a readable folder.
    """
    found = SourceTree({}, {})

    def skip_folder(error: OSError) -> None:
        if Path(error.filename) == folder:
            raise error
        found.left_out[os.path.relpath(error.filename, folder)] = f"it cannot be read: {error.strerror}"

    with local_errors():
        if not folder.is_dir():
            raise Invalid(f"{folder} is not a folder; leave --recursive out for a single file")
        for parent, folders, names in os.walk(folder, onerror=skip_folder):
            folders.sort()
            below = Path(parent).relative_to(folder)
            for name in folders:
                if Path(parent, name).is_symlink():
                    found.left_out[(below / name).as_posix()] = "it is a link to a folder, and these are not followed"
            for name in sorted(names):
                file, path = Path(parent, name), (below / name).as_posix()
                try:
                    status = file.stat()
                except OSError as error:
                    is_dangling = isinstance(error, FileNotFoundError) and file.is_symlink()
                    found.left_out[path] = "it is a link to nothing" if is_dangling else f"{error.strerror}"
                    continue
                if stat.S_ISREG(status.st_mode):
                    found.files[path] = SourceFile(file, status.st_size, status.st_mtime_ns // 1_000_000)
                else:
                    found.left_out[path] = f"it is {_describe_kind(status.st_mode)}"
    return SourceTree(dict(sorted(found.files.items())), found.left_out)


def _describe_kind(mode: int) -> str:
    return "a FIFO" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device, or no file at all"


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
    import errno
    import secrets

    if goal.is_dir() and not goal.is_symlink():  # raises for a name that is too long
        raise IsADirectoryError(errno.EISDIR, "a folder has this name", str(goal))
    goal.parent.mkdir(parents=True, exist_ok=True)

    beside = goal.with_name(f".{secrets.token_hex(8)}.part")  # no longer than any name that the file system takes
    try:
        with beside.open("xb") as file:
            yield file
        beside.replace(goal)
    except OSError as error:
        if error.filename is None or os.fspath(error.filename) == str(beside):
            error.filename = str(goal)
        raise
    finally:
        with suppress(FileNotFoundError):
            beside.unlink()


@contextmanager
def local_errors() -> Generator[None, None, None]:
    """Turn errors of local files into LocalFileError, because the user can correct them."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if is_full(error.errno):
            raise  # the call is not wrong (`cli/errors.py`)
        raise LocalFileError(
            f"{error.filename or 'a local file'}: {error.strerror or error}; name another file, or correct this one"
        ) from error
