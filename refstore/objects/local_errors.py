"""Translate errors of the operating system into refstore's errors, which say what to do next."""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from refstore.core.disk_space import describe_full_disk, is_full
from refstore.errors import Conflict, InvalidPath, ObjectNotFound, ObjectsUnavailable, RefstoreError, StoreMisconfigured

_REFUSED: Final = (errno.EACCES, errno.EPERM)
_HINTS: Final = {
    errno.EIO: "the disk reported an I/O error; look at the kernel's log and check the disk",
    errno.EROFS: "the file system is read-only; a failing disk is often why, look at the kernel's log",
    errno.ESTALE: "the network file system lost the directory; check its mount",
    errno.EMFILE: "this process has too many open files; raise its limit (ulimit -n) or lower its concurrency",
    errno.ENFILE: "this machine has too many open files; find out which processes hold them",
}


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
