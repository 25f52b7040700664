"""Directories of the local store: how they are opened, made, listed in key order, and swept when empty.

Every function takes the descriptor of the root (or of a directory below it) and single names: no path is resolved by the
kernel, so no symbolic link below the root is ever followed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from refstore.objects.base import ObjectInfo
from refstore.objects.local_errors import translated
from refstore.objects.naming import KEY_BYTES_MAX, STAGING_SEGMENT, fault_of

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def opened(root: int, directory: str) -> Generator[int, None, None]:
    """The directory `directory` ('' is the root itself). Raises FileNotFoundError, and OSError(ELOOP) at a symbolic link."""
    descriptor = os.dup(root)
    try:
        for segment in directory.split("/") if directory else ():
            below = _step(descriptor, segment)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def make(root: int, directory: str) -> bool:
    """Make `directory` and those above it. Returns whether any was missing. Raises FileNotFoundError if a sweep is quicker."""
    made = False
    descriptor = os.dup(root)
    try:
        for segment in directory.split("/") if directory else ():
            try:
                below = _step(descriptor, segment)
            except FileNotFoundError:
                with suppress(FileExistsError):  # another put was quicker
                    os.mkdir(segment, dir_fd=descriptor)
                made = True
                below = _step(descriptor, segment)
            os.close(descriptor)
            descriptor = below
    finally:
        os.close(descriptor)
    return made


def _step(parent: int, segment: str) -> int:
    try:
        return os.open(segment, _DIRECTORY, dir_fd=parent)
    except NotADirectoryError:
        # Linux answers so for a file and for a link alike; only the link is an attack, or an operator's mistake.
        if stat.S_ISLNK(os.stat(segment, dir_fd=parent, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), segment) from None
        raise


class _Level(NamedTuple):
    descriptor: int
    base: str
    """What the keys of this directory start with: '' or `a/b/`."""
    names: Iterator[str]
    """Sorted; directories end in '/'."""


def walk(root: int, prefix: str, after: str, before: str, shown: str) -> Iterator[ObjectInfo]:
    """The objects below `root` in the order of their keys' bytes, which is that of their code points.

    Siblings are sorted with a '/' behind the names of directories: `a-b`, `a.b`, `a/…`, `a0`. Only the names of the
    directories on the way to the current key are held. What cannot be a key is left out and counted in the log.
    """
    start = prefix.rpartition("/")[0]
    foreign = 0
    levels: list[_Level] = []

    def enter(parent: int, segment: str, base: str) -> None:
        nonlocal foreign
        with translated(f"listing {base!r} in {shown}"):
            try:
                descriptor = _step(parent, segment)
            except FileNotFoundError:
                return  # swept since it was seen: it was empty
            try:
                names, strange = _names(descriptor, base, prefix, after)
            except BaseException:
                os.close(descriptor)
                raise
        foreign += strange
        levels.append(_Level(descriptor, base, iter(names)))

    try:
        with translated(f"listing {start!r} in {shown}"):
            try:
                with opened(root, start) as first:
                    enter(first, ".", f"{start}/" if start else "")
            except (FileNotFoundError, NotADirectoryError):
                return
        while levels:
            level = levels[-1]
            name = next(level.names, None)
            if name is None:
                os.close(levels.pop().descriptor)
                continue
            key = level.base + name
            if before and key >= before:
                return  # nor is anything that is not yet looked into
            if name.endswith("/"):
                enter(level.descriptor, name[:-1], key)
                continue
            fault = fault_of(key)
            if fault:
                foreign += 1
                continue
            with translated(f"listing {key!r} in {shown}"):
                try:
                    found = os.stat(name, dir_fd=level.descriptor, follow_symlinks=False)
                except FileNotFoundError:
                    continue  # deleted since it was seen
            yield ObjectInfo(key, found.st_size, found.st_mtime_ns // 1_000_000)
    finally:
        for level in levels:
            os.close(level.descriptor)
        if foreign:
            import structlog  # not above: it takes far longer to import than this, and who only deletes has no use for it

            log = structlog.get_logger(__name__)
            log.warning("left out of a listing: files that refstore could not have written", root=shown, prefix=prefix, count=foreign)


def _names(descriptor: int, base: str, prefix: str, after: str) -> tuple[list[str], int]:
    """The names to visit below `base`, sorted, and how many things there can never be part of a key."""
    names: list[str] = []
    foreign = 0
    with os.scandir(descriptor) as entries:
        for entry in entries:
            name = entry.name
            if entry.is_file(follow_symlinks=False):
                key = base + name
                if key > after and key.startswith(prefix):
                    names.append(name)
            elif not entry.is_dir(follow_symlinks=False):
                foreign += 1  # a link, a socket
            elif name != STAGING_SEGMENT:
                name += "/"
                key = base + name
                if len(key) > KEY_BYTES_MAX:
                    foreign += 1
                elif (key.startswith(prefix) or prefix.startswith(key)) and (key > after or after.startswith(key)):
                    names.append(name)
    names.sort()
    return names, foreign


def sweep_staging(root: int, before_ns: int) -> int:
    """Remove staged files that were last written to before that time and whose writer is gone."""
    swept = 0
    try:
        staging = _step(root, STAGING_SEGMENT)
    except FileNotFoundError:
        return 0
    try:
        with os.scandir(staging) as entries:
            names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
        for name in names:
            try:
                if os.stat(name, dir_fd=staging, follow_symlinks=False).st_mtime_ns < before_ns and not _locked(staging, name):
                    os.unlink(name, dir_fd=staging)
                    swept += 1
            except FileNotFoundError:
                continue  # its put has ended, or another sweep took it
    finally:
        os.close(staging)
    return swept


def _locked(staging: int, name: str) -> bool:
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=staging)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file system without locks: age alone decides
    finally:
        os.close(file)
    return False


def sweep_directories(parent: int, before_ns: int) -> None:
    """Remove directories below `parent` that are empty and were so before that time. A put into one makes it again."""
    with os.scandir(parent) as entries:
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False) and entry.name != STAGING_SEGMENT]
    for name in names:
        try:
            found = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if found.st_mtime_ns < before_ns:
                try:
                    os.rmdir(name, dir_fd=parent)
                    continue
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise
            if found.st_nlink != 2:  # two links: no directory in it; its files, which may be very many, need not be read
                below = _step(parent, name)
                try:
                    sweep_directories(below, before_ns)
                finally:
                    os.close(below)
        except (FileNotFoundError, NotADirectoryError):
            continue  # gone, or replaced, since it was seen
