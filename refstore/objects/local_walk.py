"""Directories of the local store: open them, create them, list them in key order, and sweep empty ones.

Every function takes the descriptor of the root (or of a directory below it) and single names. The kernel resolves no
path, so no symbolic link below the root is ever followed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from bisect import bisect_left
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from refstore.core.file_modes import FileModes
from refstore.objects.base import LISTED_PAGE_KEYS, ObjectInfo, ObjectPage, SkippedKeys
from refstore.objects.local_errors import translate_error, translate_errors
from refstore.objects.object_keys import KEY_BYTES_MAX, STAGING_SEGMENT, key_fault

LOCKED_WITHIN_SECONDS: Final = 60.0
"""A writer locks its file right after creating it. A writer that took longer, because it was stopped, has to put its
object again.
"""
WALKED_PAGE_KEYS: Final = 256
"""How many files `walk_objects` looks at before it yields the first: its caller may want few."""
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


class _DirectoryLevel(NamedTuple):
    descriptor: int
    base: str
    """The prefix of the keys of this directory: '' or `a/b/`."""
    names: Iterator[str]
    """Sorted; directories end in '/'."""


class _FileRun(NamedTuple):
    """Files of one directory that follow each other in a listing, with no other directory between them."""

    descriptor: int
    base: str
    names: list[str]


def walk_objects(root: int, prefix: str, after: str, before: str, shown: str) -> Iterator[ObjectInfo]:
    """Yield the objects below `root` in the order of their keys' bytes, which is the order of their code points.

    Files with invalid keys are skipped; the log says how many.
    """
    foreign = SkippedKeys()
    try:
        runs = _file_runs(root, prefix, after, before, shown, foreign, own=True)
        for page in _runs_to_pages(runs, before, shown, foreign, WALKED_PAGE_KEYS):
            yield from map(ObjectInfo, page.keys, page.sizes_bytes, page.mtimes_ms)
    finally:
        if foreign.count:
            # Imported here because the import takes far longer than a deletion, which needs no log.
            from refstore.core import event_log

            log = event_log.get_logger(__name__)
            log.warning(
                "left out of a listing: files that refstore could not have written",
                root=shown,
                prefix=prefix,
                count=foreign.count,
            )


def walk_pages(root: int, prefix: str, shown: str, skipped: SkippedKeys) -> Iterator[ObjectPage]:
    """Yield the objects below `root` as columns. The folder need not belong to a store."""
    return _runs_to_pages(
        _file_runs(root, prefix, "", "", shown, skipped, own=False), "", shown, skipped, LISTED_PAGE_KEYS
    )


def _runs_to_pages(
    runs: Iterator[_FileRun], before: str, shown: str, skipped: SkippedKeys, rows: int
) -> Iterator[ObjectPage]:
    """Yield the files of runs as pages of about so many rows, up to the key `before`."""
    stat_of = os.stat
    page = ObjectPage([], [], [], [])
    for descriptor, base, names in runs:
        room = KEY_BYTES_MAX - len(base.encode())
        wanted = bisect_left(names, before, key=base.__add__) if before else len(names)
        for start in range(0, wanted, rows):
            for name in names[start : min(start + rows, wanted)]:
                # Printable ASCII has no other fault: the segments before this one were checked already.
                if not name.isascii() or not name.isprintable() or len(name) > room or name == STAGING_SEGMENT:
                    fault = key_fault(base + name)
                    if fault:
                        skipped.add(base + name, fault)
                        continue
                try:
                    status = stat_of(name, dir_fd=descriptor, follow_symlinks=False)
                except FileNotFoundError:
                    continue  # deleted since its directory was read
                except OSError as error:
                    raise translate_error(error, f"listing {base + name!r} in {shown}", shown) from error
                page.keys.append(base + name)
                page.sizes_bytes.append(status.st_size)
                page.mtimes_ms.append(status.st_mtime_ns // 1_000_000)
            if len(page.keys) >= rows:
                page.etags.extend([""] * len(page.keys))
                yield page
                page = ObjectPage([], [], [], [])
        if wanted < len(names):
            break
    if page.keys:
        page.etags.extend([""] * len(page.keys))
        yield page


def _file_runs(
    root: int, prefix: str, after: str, before: str, shown: str, foreign: SkippedKeys, *, own: bool
) -> Iterator[_FileRun]:
    """Yield the files below `root` in key order, as runs of files from one directory.

    Siblings are sorted with a '/' after the names of directories: `a-b`, `a.b`, `a/…`, `a0`. Only the names of the
    directories on the way to the current one are in memory.
    """
    start = prefix.rpartition("/")[0]
    levels: list[_DirectoryLevel] = []

    def enter(parent: int, segment: str, base: str) -> None:
        with translate_errors(f"listing {base!r} in {shown}", shown):
            try:
                descriptor = _open_child(parent, segment)
            except FileNotFoundError:
                return  # a sweep removed it since its parent was read: it was empty
            try:
                names = _names_to_visit(descriptor, base, prefix, after, foreign, own=own)
            except BaseException:
                os.close(descriptor)
                raise
        levels.append(_DirectoryLevel(descriptor, base, iter(names)))

    try:
        with translate_errors(f"listing {start!r} in {shown}", shown):
            try:
                with open_directory(root, start) as first:
                    enter(first, ".", f"{start}/" if start else "")
            except (FileNotFoundError, NotADirectoryError):
                return
        while levels:
            level = levels[-1]
            files: list[str] = []
            directory = ""
            for name in level.names:
                if name.endswith("/"):
                    directory = name
                    break
                files.append(name)
            if files:
                yield _FileRun(level.descriptor, level.base, files)
            if not directory:
                os.close(levels.pop().descriptor)
                continue
            key = level.base + directory
            if before and key >= before:
                return  # all other directories come later in the order
            fault = "" if own else key_fault(key[:-1])
            if fault:
                foreign.add(key, fault)
                continue
            enter(level.descriptor, directory[:-1], key)
    finally:
        for level in levels:
            os.close(level.descriptor)


def _names_to_visit(
    descriptor: int, base: str, prefix: str, after: str, foreign: SkippedKeys, *, own: bool
) -> list[str]:
    """Return the names to visit below `base`, sorted. Names that can never be part of a key are added to `foreign`.

    `own`: whether the folder belongs to a store. Staged files there are not reported as foreign.
    """
    names: list[str] = []
    with os.scandir(descriptor) as entries:
        for entry in entries:
            name = entry.name
            if entry.is_file(follow_symlinks=False):
                key = base + name
                if key > after and key.startswith(prefix):
                    names.append(name)
            elif not entry.is_dir(follow_symlinks=False):
                foreign.add(
                    base + name, "it is a symbolic link" if entry.is_symlink() else "it is neither a file nor a folder"
                )
            elif name != STAGING_SEGMENT:
                name += "/"
                key = base + name
                if len(key) > KEY_BYTES_MAX:
                    foreign.add(key, f"it has over {KEY_BYTES_MAX} bytes")
                elif (key.startswith(prefix) or prefix.startswith(key)) and (key > after or after.startswith(key)):
                    names.append(name)
            elif not own:
                foreign.add(base + name + "/", f"the segment {STAGING_SEGMENT!r} is the store's own")
    names.sort()
    return names


def new_staged_name() -> str:
    """Return a new name for a file that is being written. It contains the id of the kernel under which its
    writer runs.
    """
    return f"{_kernel_id()}-{secrets.token_hex(16)}"


@cache
def _kernel_id() -> str:
    """Return an id that differs for each boot and each machine, and is the same in all containers of one machine. '' if
    the system has none.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    except OSError:
        return ""


def sweep_staging(root: int, before_ns: int, now_ns: int) -> int:
    """Remove staged files whose writer died. Return their number.

    A writer holds a lock on its file. If it ran under this kernel, an unlocked file means that the writer died, except
    in the moment between creating the file and locking it. Otherwise (on a network file system) the locks of other
    machines may not be visible. Such files are removed if they were last written before `before_ns`.
    """
    own = f"{_kernel_id()}-" if _kernel_id() else None
    unlocked_ns = now_ns - int(LOCKED_WITHIN_SECONDS * 1e9)
    swept = 0
    try:
        staging = _open_child(root, STAGING_SEGMENT)
    except FileNotFoundError:
        return 0
    try:
        with os.scandir(staging) as entries:
            names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
        for name in names:
            try:
                written_ns = os.stat(name, dir_fd=staging, follow_symlinks=False).st_mtime_ns
                ours = own is not None and name.startswith(own)
                if written_ns >= (max(before_ns, unlocked_ns) if ours else before_ns):
                    continue
                locked = _is_locked(staging, name)
                if locked is False or (locked is None and written_ns < before_ns):
                    os.unlink(name, dir_fd=staging)
                    swept += 1
            except FileNotFoundError:
                continue  # its put has ended, or another sweep removed it
    finally:
        os.close(staging)
    return swept


def _is_locked(staging: int, name: str) -> bool | None:
    """Return whether the file is locked; None if the file system has no locks."""
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=staging)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(file)
    return False


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
                below = _open_child(parent, name)
                try:
                    sweep_directories(below, before_ns)
                finally:
                    os.close(below)
        except (FileNotFoundError, NotADirectoryError):
            continue  # removed or replaced since its parent was read
