"""Directories of the local store: open them, create them, list them in key order, and sweep empty ones. Errors of the
system become refstore's, which say what to do next.

Every function takes the descriptor of the root (or of a directory below it) and single names. The kernel resolves no
path, so no symbolic link below the root is ever followed.
"""

from __future__ import annotations

import errno
import os
import stat
from bisect import bisect_left
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from itertools import groupby
from typing import Final

from refstore.core.disk_space import describe_full_disk, is_full
from refstore.core.file_modes import FileModes
from refstore.errors import Conflict, InvalidPath, ObjectNotFound, ObjectsUnavailable, RefstoreError, StoreMisconfigured
from refstore.objects.base import LISTED_PAGE_KEYS, ObjectPage, SkippedKeys
from refstore.objects.object_keys import KEY_BYTES_MAX, STAGING_SEGMENT, key_fault

_REFUSED: Final = (errno.EACCES, errno.EPERM)
_HINTS: Final = {
    errno.EIO: "the disk reported an I/O error; look at the kernel's log and check the disk",
    errno.EROFS: "the file system is read-only; a failing disk is often why, look at the kernel's log",
    errno.ESTALE: "the network file system lost the directory; check its mount",
    errno.EMFILE: "this process has too many open files; raise its limit (ulimit -n) or lower its concurrency",
    errno.ENFILE: "this machine has too many open files; find out which processes hold them",
}
_FileRun = tuple[int, str, list[str]]
"""The descriptor of a directory, the prefix of its keys ('' or `a/b/`), and names of files in it that follow each other
in a listing.
"""
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def open_directory(root: int, directory: str) -> Generator[int, None, None]:
    """Open `directory` ('' is the root itself) for the block. Raises FileNotFoundError, and OSError(ELOOP) at a
    symbolic link.
    """
    descriptor = os.dup(root)
    try:
        for segment in directory.split("/") if directory else ():
            below = _open_child(descriptor, segment)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def make_directory(root: int, directory: str, modes: FileModes) -> bool:
    """Create `directory` and those above it. Return whether any was missing. Raises FileNotFoundError if a sweep
    removes one meanwhile.
    """
    created = False
    descriptor = os.dup(root)
    try:
        for segment in directory.split("/") if directory else ():
            try:
                below = _open_child(descriptor, segment)
            except FileNotFoundError:
                with suppress(FileExistsError):  # another put created it first
                    os.mkdir(segment, modes.folder, dir_fd=descriptor)
                created = True
                below = _open_child(descriptor, segment)
                if modes.is_shared:
                    with suppress(PermissionError):  # another user's put created it first, and sets its mode
                        os.fchmod(below, modes.folder)
            os.close(descriptor)
            descriptor = below
    finally:
        os.close(descriptor)
    return created


def _open_child(parent: int, segment: str) -> int:
    try:
        return os.open(segment, _DIRECTORY, dir_fd=parent)
    except NotADirectoryError:
        # Linux gives this answer for a file and for a link. Only the link is an attack or an operator's mistake.
        if stat.S_ISLNK(os.stat(segment, dir_fd=parent, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), segment) from None
        raise


@dataclass(frozen=True, slots=True)
class FolderListing:
    """What is listed of a folder."""

    shown: str
    """The folder, as errors name it."""
    prefix: str = ""
    after: str = ""
    before: str = ""
    _: KW_ONLY
    is_own: bool
    """Whether the folder belongs to a store. Staged files there are not reported as skipped."""
    skipped: SkippedKeys

    def read_pages(self, root: int, rows: int = LISTED_PAGE_KEYS) -> Iterator[ObjectPage]:
        """Yield the objects below `root`, in the order of their keys' bytes, as pages of about so many rows."""
        page = ObjectPage([], [], [], [])
        for descriptor, base, names in self._read_runs(root):
            wanted = bisect_left(names, self.before, key=base.__add__) if self.before else len(names)
            for start in range(0, wanted, rows):
                for name in names[start : min(start + rows, wanted)]:
                    self._add_file(page, descriptor, base, name)
                if len(page.keys) >= rows:
                    yield page
                    page = ObjectPage([], [], [], [])
            if wanted < len(names):
                break
        if page.keys:
            yield page

    def _add_file(self, page: ObjectPage, descriptor: int, base: str, name: str) -> None:
        key = base + name
        # Printable ASCII has no other fault: the segments before this one were checked already.
        if not name.isascii() or not name.isprintable() or len(key) > KEY_BYTES_MAX // 4 or name == STAGING_SEGMENT:
            fault = key_fault(key)
            if fault:
                self.skipped.add(key, fault)
                return
        try:
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return  # deleted since its directory was read
        except OSError as error:
            raise translate_error(error, f"listing {key!r} in {self.shown}", self.shown) from error
        page.keys.append(key)
        page.sizes_bytes.append(status.st_size)
        page.mtimes_ms.append(status.st_mtime_ns // 1_000_000)
        page.etags.append("")

    def _read_runs(self, root: int) -> Iterator[_FileRun]:
        start = self.prefix.rpartition("/")[0]
        with translate_errors(f"listing {start!r} in {self.shown}", self.shown), ExitStack() as opened:
            try:
                first = opened.enter_context(open_directory(root, start))
            except (FileNotFoundError, NotADirectoryError):
                return
            yield from self._read_directory(first, f"{start}/" if start else "")

    def _read_directory(self, descriptor: int, base: str) -> Iterator[_FileRun]:
        """Yield the files of a directory and of those below it in key order, as runs of files from one directory.

        Siblings are sorted with a '/' after the names of directories: `a-b`, `a.b`, `a/…`, `a0`. Only the names of the
        directories on the way to the current one are in memory.
        """
        for is_directory, names in groupby(self._names_to_visit(descriptor, base), key=lambda name: name[-1] == "/"):
            if not is_directory:
                yield descriptor, base, list(names)
                continue
            for name in names:
                key = base + name
                if self.before and key >= self.before:
                    return  # all other directories come later in the order
                fault = key_fault(key[:-1])
                if fault:
                    self.skipped.add(key, fault)
                    continue
                with ExitStack() as opened:
                    try:
                        below = opened.enter_context(open_directory(descriptor, name[:-1]))
                    except FileNotFoundError:
                        continue  # a sweep removed it since its parent was read: it was empty
                    yield from self._read_directory(below, key)

    def _names_to_visit(self, descriptor: int, base: str) -> list[str]:
        """Return the names to visit below `base`, sorted. Names that can never be part of a key are skipped."""
        names: list[str] = []
        prefix, after = self.prefix, self.after
        with os.scandir(descriptor) as entries:
            for entry in entries:
                key = base + entry.name
                if entry.is_file(follow_symlinks=False):
                    if key > after and key.startswith(prefix):
                        names.append(entry.name)
                elif not entry.is_dir(follow_symlinks=False):
                    kind = "a symbolic link" if entry.is_symlink() else "neither a file nor a folder"
                    self.skipped.add(key, f"it is {kind}")
                elif entry.name != STAGING_SEGMENT or not self.is_own:
                    key += "/"
                    if (key.startswith(prefix) or prefix.startswith(key)) and (key > after or after.startswith(key)):
                        names.append(entry.name + "/")
        names.sort()
        return names


def sweep_staging(root: int, before_ns: int) -> int:
    """Remove staged files that were last written before that time: their writers died. Return their number."""
    swept = 0
    with suppress(FileNotFoundError), open_directory(root, STAGING_SEGMENT) as staging:
        with os.scandir(staging) as entries:
            names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
        for name in names:
            with suppress(FileNotFoundError):  # its put has ended, or another sweep removed it
                if os.stat(name, dir_fd=staging, follow_symlinks=False).st_mtime_ns < before_ns:
                    os.unlink(name, dir_fd=staging)
                    swept += 1
    return swept


def sweep_directories(parent: int, before_ns: int) -> None:
    """Remove directories below `parent` that have been empty since before that time. A put that needs one creates it
    again.
    """
    with os.scandir(parent) as entries:
        names = [
            entry.name for entry in entries if entry.is_dir(follow_symlinks=False) and entry.name != STAGING_SEGMENT
        ]
    for name in names:
        try:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if status.st_mtime_ns < before_ns:
                try:
                    os.rmdir(name, dir_fd=parent)
                    continue
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise
            # Two links mean that it has no directories. Its files, which may be very many, need not be read.
            if status.st_nlink != 2:
                with open_directory(parent, name) as below:
                    sweep_directories(below, before_ns)
        except (FileNotFoundError, NotADirectoryError):
            continue  # removed or replaced since its parent was read


@contextmanager
def translate_errors(doing: str, folder: str) -> Generator[None, None, None]:
    """Translate OSError inside the block. `doing` says what was tried ("writing 'a/b'") and starts the message.
    `folder`: the store's, to name its disk.
    """
    try:
        yield
    except OSError as error:
        raise translate_error(error, doing, folder) from error


def translate_error(error: OSError, doing: str, folder: str) -> RefstoreError:
    """Return refstore's error for an OSError. `doing` says what was tried and starts the message."""
    number = error.errno or 0
    message = f"{doing} failed: {os.strerror(number) if number else error}"
    if number == errno.ENOENT:
        return ObjectNotFound(f"{message}; name something else")
    if is_full(number):
        return ObjectsUnavailable(f"{message}: {describe_full_disk(folder, number)}")
    if number in _REFUSED:
        return StoreMisconfigured(
            f"{message}; give user {os.geteuid()} read and write permission to the store's directory and all below it"
        )
    if number == errno.ENAMETOOLONG:
        return InvalidPath(f"{message}; a file system takes 255 bytes between two slashes")
    if number in (errno.ENOTDIR, errno.EISDIR):
        return Conflict(f"{message}; a file cannot hold both an object and, below it, others: use another key")
    if number == errno.ELOOP:
        return StoreMisconfigured(
            f"{message}; no symbolic link below the store's directory is followed: remove the link, or mount the other "
            "directory there instead"
        )
    if number == errno.EXDEV:
        return StoreMisconfigured(
            f"{message}; the store's directory and all below it must be on one file system, because objects are renamed"
        )
    return ObjectsUnavailable(
        f"{message}; {_HINTS.get(number, 'check that the file system is healthy, then try again')}"
    )


def short_reason(error: OSError) -> str:
    """Return a short reason for the failure of a single key, with the name of the error, which operators look for."""
    return f"{errno.errorcode.get(error.errno or 0, 'error')}: {error.strerror or error}"
