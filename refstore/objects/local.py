"""`file:///directory`: objects as files, for the embedded default and for any mounted POSIX file system.

The store guarantees:

- **No key leaves the root.** The store opens each segment of a key from the root's descriptor, and follows no symbolic
  link below the root (`O_NOFOLLOW` at each step). A link planted in the tree cannot lead a key out of it, not even one
  that is planted between two system calls, because no path is resolved twice. The root itself may be a link.
- **Other users cannot read it**, unless the folder is shared by group (`refstore/core/file_modes.py`).
- **An object appears completely or not at all.** A body is written to `.tmp/` on the same file system. One rename
  then gives it its key. With `if_absent` it is one hard link, which fails if the name exists.
- **What is confirmed is durable**, unless `?fsync=0` is set for data that a power cut may lose. `put` syncs the file,
  its directory, and the directories above it before it returns. `delete_many` syncs the directories.

A put creates the directories that it needs. `sweep_temporary` removes directories that have been empty for long. A put
whose directory was removed meanwhile creates it again.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
from collections.abc import Container, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from refstore.core import deadline
from refstore.core.clock import Clock, SystemClock
from refstore.core.disk_space import has_reserved_bytes
from refstore.core.file_modes import FileModes, make_folder, modes_for
from refstore.errors import (
    AlreadyExists,
    Conflict,
    CorruptObject,
    Invalid,
    InvalidSettings,
    ObjectNotFound,
    ObjectsUnavailable,
    StoreMisconfigured,
)
from refstore.objects.base import (
    CHUNK_BYTES,
    OWN_FILES,
    Body,
    BodyDigest,
    DeleteResult,
    ObjectInfo,
    ObjectPage,
    ObjectStore,
    SkippedKeys,
    StoredObject,
    check_length,
    check_range,
    chunks_of,
    clip_range,
    list_objects,
)
from refstore.objects.local_walk import (
    FolderListing,
    make_directory,
    open_directory,
    short_reason,
    sweep_directories,
    sweep_staging,
    translate_error,
    translate_errors,
)
from refstore.objects.object_keys import STAGING_SEGMENT, check_key, check_keys, check_prefix

if TYPE_CHECKING:
    from refstore.objects import OpenOptions
    from refstore.objects.store_urls import StoreURL

_PUBLISH_ATTEMPTS: Final = 100
"""A put loses its directory only to a sweep, and a sweep removes only directories that have been empty for hours."""
_SWEEP_SECONDS_MIN: Final = 3600.0
_SYNCED_SECONDS: Final = 600.0
"""How long a put trusts that the directories above its own are on disk. It is well below `_SWEEP_SECONDS_MIN`: no sweep
can have removed a directory that a put used within this time, so it is still the directory that was synced.
"""
_SYNCED_MAX: Final = 1024
_COPIED_BYTES: Final = 64 << 20
"""How much the kernel copies at a time."""
LISTED_FIRST_KEYS: Final = 256
"""How many files `list` looks at before it yields the first: its caller may want few."""


class LocalObjects(ObjectStore):
    def __init__(self, root: str | Path, *, fsync: bool = True, clock: Clock | None = None, make: bool = True) -> None:
        """`make`: whether to make the folder if it is missing. Without it, every call raises ObjectsUnavailable while
        the folder is missing.
        """
        if sys.getfilesystemencoding() != "utf-8":
            raise InvalidSettings("file names are not UTF-8 in this environment; set PYTHONUTF8=1")
        self._root = os.path.abspath(root)  # noqa: PTH100  # resolve() would follow the root if it is a link
        self._fsync = fsync
        self._url = f"file://{quote(self._root)}{'' if fsync else '?fsync=0'}"
        self._clock = clock or SystemClock()
        self._anchored: dict[str, float] = {}
        if make:
            with translate_errors(f"making {self._root}", self._root):
                _make_root(Path(self._root), fsync)

    @property
    def is_remote(self) -> bool:
        return False

    @property
    def url(self) -> str:
        return self._url

    @property
    def local_folder(self) -> Path:
        return Path(self._root)

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> StoredObject:
        check_key(key)
        tally = BodyDigest(key)
        writing = partial(translate_errors, f"writing {key!r}", self._root)
        leaves_room = not key.startswith(OWN_FILES)
        with self._open_root() as root:
            modes = modes_for(os.fstat(root))
            with self._stage_file(root, modes) as (staging, name, file):
                for chunk in chunks_of(body):
                    tally.add(chunk)
                    with writing():
                        if leaves_room and not has_reserved_bytes(file):
                            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                        _write(file, chunk)
                with writing():
                    if self._fsync:
                        os.fsync(file)
                    self._publish_staged(root, modes, staging, name, key, if_absent)
        return tally.stored_object

    def get(
        self, key: str, *, start: int = 0, end: int | None = None, size_bytes: int | None = None
    ) -> Iterator[bytes]:
        chunks = self._read_chunks(key, start, end, size_bytes)
        # Run it until the file is open: this call raises its errors, and closing the iterator closes the file.
        next(chunks)
        return chunks

    def head(self, key: str) -> ObjectInfo:
        check_key(key)
        directory, _, name = key.rpartition("/")
        with self._open_root() as root, self._missing_as_not_found(key), open_directory(root, directory) as parent:
            found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        return ObjectInfo(key, _require_regular(key, found).st_size, found.st_mtime_ns // 1_000_000)

    def head_many(self, keys: Sequence[str]) -> Sequence[ObjectInfo | None]:
        """Open each directory once for all its keys: opening it takes ten times as long as one `stat`."""
        check_keys(keys)
        found: dict[str, ObjectInfo | None] = {}
        with self._open_root() as root:
            for directory, group in _group_by_directory(keys).items():
                # A directory that does not exist, or is a file, has none of these keys.
                with (
                    suppress(ObjectNotFound, Conflict),
                    translate_errors(f"opening {directory!r}", self._root),
                    open_directory(root, directory) as parent,
                ):
                    found.update((key, _stat_key(parent, key)) for key in group)
        return [found.get(key) for key in keys]

    def list(self, prefix: str = "", *, after: str = "", before: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        skipped = SkippedKeys()
        listing = FolderListing(self._root, prefix, after, before, is_own=True, skipped=skipped)
        with self._open_root() as root:
            yield from list_objects(listing.read_pages(root, LISTED_FIRST_KEYS), skipped, self._root, prefix)

    def list_pages(
        self, prefix: str = "", *, skipped: SkippedKeys, after: str = "", before: str = ""
    ) -> Iterator[ObjectPage]:
        check_prefix(prefix)
        listing = FolderListing(self._root, prefix, after, before, is_own=False, skipped=skipped)
        with self._open_root() as root:
            yield from listing.read_pages(root)

    def delete_many(self, keys: Sequence[str]) -> DeleteResult:
        return self._delete(keys, None)

    def delete_unchanged(self, objects: ObjectPage) -> DeleteResult:
        """Look at each file right before it is unlinked, in the same open directory."""
        keys, sizes_bytes, mtimes_ms, _ = objects
        return self._delete(keys, dict(zip(keys, zip(sizes_bytes, mtimes_ms, strict=True), strict=True)))

    def _delete(self, keys: Sequence[str], given: Mapping[str, tuple[int, int]] | None) -> DeleteResult:
        check_keys(keys)
        deleted: list[str] = []
        missing: list[str] = []
        changed: list[str] = []
        failed: list[tuple[str, str]] = []
        with self._open_root() as root:
            for directory, group in _group_by_directory(keys).items():
                try:
                    with open_directory(root, directory) as parent:
                        outcome = self._unlink_all(parent, group, len(directory) + 1 if directory else 0, given)
                except (FileNotFoundError, NotADirectoryError):
                    missing.extend(group)
                except OSError as error:
                    failed.extend((key, short_reason(error)) for key in group)
                else:
                    deleted += outcome.deleted_keys
                    missing += outcome.missing_keys
                    failed += outcome.failed_keys
                    changed += outcome.changed_keys
        return DeleteResult(tuple(deleted), tuple(missing), tuple(failed), changed_keys=tuple(changed))

    def join(self, key: str, sources: Sequence[tuple[str, int]]) -> ObjectInfo:
        """Let the kernel copy the files, as one object, so that no byte passes through this process."""
        check_key(key)
        check_keys([source for source, _ in sources])
        with suppress(ObjectNotFound):
            return self.head(key)
        joining = partial(translate_errors, f"joining {key!r}", self._root)
        with self._open_root() as root:
            modes = modes_for(os.fstat(root))
            with self._stage_file(root, modes) as (staging, name, file):
                for source, size_bytes in sources:
                    with self._open_file(source) as part, joining():
                        check_length(source, size_bytes, os.fstat(part).st_size)
                        _copy_file(part, file, size_bytes)
                with joining(), suppress(AlreadyExists):
                    if self._fsync:
                        os.fsync(file)
                    self._publish_staged(root, modes, staging, name, key, if_absent=True)
        return self.head(key)

    def sweep_temporary(self, *, older_than_seconds: float, clock: Clock, spared_keys: Container[str] = ()) -> int:
        del spared_keys
        if older_than_seconds < _SWEEP_SECONDS_MIN:
            raise Invalid(
                f"older_than_seconds is {older_than_seconds:g}; use at least {_SWEEP_SECONDS_MIN:g}, so that no "
                "running put is hit"
            )
        before_ns = clock.now_ms() * 1_000_000 - int(older_than_seconds * 1e9)
        with self._open_root() as root, translate_errors(f"sweeping {self._root}", self._root):
            swept = sweep_staging(root, before_ns)
            sweep_directories(root, before_ns)
        return swept

    @contextmanager
    def _open_root(self) -> Generator[int, None, None]:
        """Open the root for one operation. A descriptor that is kept for long would keep an unmounted file system busy,
        or belong to a directory that was replaced.
        """
        try:
            root = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            # "No such object" would tell a reaper that all objects are deleted.
            raise ObjectsUnavailable(
                f"{self._root} does not exist; check that its file system is mounted, and restore the folder if it was "
                "removed"
            ) from None
        except OSError as error:
            raise translate_error(error, f"opening {self._root}", self._root) from error
        try:
            yield root
        finally:
            os.close(root)

    @contextmanager
    def _stage_file(self, root: int, modes: FileModes) -> Generator[tuple[int, str, int], None, None]:
        """Yield (staging directory, name, descriptor) of a new file. The file is removed from there when the block
        ends.
        """
        name = secrets.token_hex(16)
        with translate_errors("staging an object", self._root):
            make_directory(root, STAGING_SEGMENT, modes)
            with open_directory(root, STAGING_SEGMENT) as directory:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                file = os.open(name, flags, modes.file, dir_fd=directory)
                staging = os.dup(directory)
        try:
            with translate_errors("staging an object", self._root):
                if modes.is_shared:
                    os.fchmod(file, modes.file)
            yield staging, name, file
        finally:
            os.close(file)
            try:
                os.unlink(name, dir_fd=staging)
            except FileNotFoundError:
                pass  # renamed to its key
            except OSError as error:
                # Imported here because the import takes far longer than a deletion, which needs no log.
                from refstore.core import event_log

                log = event_log.get_logger(__name__)
                log.warning(
                    "a staged file could not be removed; a later sweep takes it",
                    root=self._root,
                    name=name,
                    error=str(error),
                )
            os.close(staging)

    def _publish_staged(
        self, root: int, modes: FileModes, staging: int, staged_name: str, key: str, if_absent: bool
    ) -> None:
        directory, _, name = key.rpartition("/")
        for _ in range(_PUBLISH_ATTEMPTS):
            try:
                created = make_directory(root, directory, modes)
                with open_directory(root, directory) as parent:
                    if if_absent:
                        os.link(staged_name, name, src_dir_fd=staging, dst_dir_fd=parent, follow_symlinks=False)
                    else:
                        os.rename(staged_name, name, src_dir_fd=staging, dst_dir_fd=parent)
                    if self._fsync:
                        os.fsync(parent)
                self._sync_parents(root, directory, created)
            except FileNotFoundError:
                if not _file_exists(staging, staged_name):
                    raise ObjectsUnavailable(
                        f"the staged file of {key!r} was removed while it was written; put it again"
                    ) from None
                continue  # a sweep removed the directory between its creation and the rename
            except FileExistsError:
                if _is_directory(root, key):
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)) from None
                raise AlreadyExists(f"there is an object at {key!r} already; it was not changed") from None
            except OSError as error:
                if if_absent and error.errno in (errno.EPERM, errno.EOPNOTSUPP):
                    raise StoreMisconfigured(
                        f"{self._root} is on a file system without hard links, which a put with if_absent needs; use "
                        "another file system"
                    ) from None
                raise
            else:
                return
        raise ObjectsUnavailable(
            f"the directory of {key!r} was removed {_PUBLISH_ATTEMPTS} times during the put; find out which program "
            "removes directories there"
        )

    def _sync_parents(self, root: int, directory: str, created: bool) -> None:
        """Sync the directories above `directory`, so that a power cut cannot lose the path to its files.

        They are synced even if another process created them, because that process may not have synced them yet.
        """
        if not self._fsync:
            return
        now = self._clock.monotonic_seconds()
        if not created and now - self._anchored.get(directory, -_SYNCED_SECONDS) < _SYNCED_SECONDS:
            return
        while directory:
            directory_above = directory.rpartition("/")[0]
            with open_directory(root, directory_above) as above:
                os.fsync(above)
            if len(self._anchored) >= _SYNCED_MAX:
                self._anchored.clear()
            self._anchored[directory] = now
            directory = directory_above

    def _read_chunks(self, key: str, start: int, end: int | None, size_bytes: int | None) -> Iterator[bytes]:
        """Yield an empty chunk once the file is open, then the chunks of the file."""
        check_key(key)
        check_range(key, start, end)
        with self._open_file(key) as file:
            found_bytes = _require_regular(key, os.fstat(file)).st_size
            check_length(key, size_bytes, found_bytes)
            first, last = clip_range(key, start, end, found_bytes)
            yield b""
            while first < last:
                with translate_errors(f"reading {key!r}", self._root):
                    chunk = os.pread(file, min(CHUNK_BYTES, last - first), first)
                if not chunk:
                    raise CorruptObject(
                        f"{key!r} became shorter while it was read; refstore never does that: find out which program "
                        f"writes to {self._root}"
                    )
                first += len(chunk)
                yield chunk

    @contextmanager
    def _open_file(self, key: str) -> Generator[int, None, None]:
        directory, _, name = key.rpartition("/")
        with self._open_root() as root, self._missing_as_not_found(key), open_directory(root, directory) as parent:
            # O_NONBLOCK: opening a FIFO that someone left there must not wait for its writer.
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        try:
            yield file
        finally:
            os.close(file)

    @contextmanager
    def _missing_as_not_found(self, key: str) -> Generator[None, None, None]:
        try:
            with translate_errors(f"opening {key!r}", self._root):
                yield
        except (ObjectNotFound, Conflict):  # Conflict: a file where the key has a directory, so the key does not exist
            raise ObjectNotFound(f"there is no object at {key!r} in {self.url}") from None

    def _unlink_all(
        self, parent: int, keys: Sequence[str], cut: int, given: Mapping[str, tuple[int, int]] | None
    ) -> DeleteResult:
        """Delete the keys of one directory; of `given`, which has sizes and times, only what has these. This is the
        reaper's inner loop: each step here runs a hundred thousand times.
        """
        unlink = os.unlink
        deleted: list[str] = []
        missing: list[str] = []
        changed: list[str] = []
        failed: list[tuple[str, str]] = []
        for key in keys:
            try:
                if given is not None and not _is_unchanged(parent, key[cut:], *given[key]):
                    changed.append(key)
                    continue
                unlink(key[cut:], dir_fd=parent)
            except (FileNotFoundError, IsADirectoryError):
                missing.append(key)
            except OSError as error:
                failed.append((key, short_reason(error)))
            else:
                deleted.append(key)
        if self._fsync and (deleted or missing):
            # An earlier call may have removed the missing keys and then failed to sync, or been killed before. So they
            # are confirmed only after a sync, too.
            try:
                os.fsync(parent)
            except OSError as error:
                # They are removed, but may come back after a power cut. So they are not confirmed, and will be deleted
                # again.
                return DeleteResult(
                    (),
                    (),
                    tuple((key, short_reason(error)) for key in (*deleted, *missing, *(key for key, _ in failed))),
                    changed_keys=tuple(changed),
                )
        return DeleteResult(tuple(deleted), tuple(missing), tuple(failed), changed_keys=tuple(changed))


def open_local(url: StoreURL, options: OpenOptions) -> ObjectStore:
    url.check_options("fsync")
    if url.host not in ("", "localhost") or not url.path.startswith("/"):
        raise InvalidSettings(
            "a file:// URL names an absolute directory of this machine; write three slashes: file:///directory"
        )
    if any(segment in (".", "..") for segment in url.path.split("/")):
        raise InvalidSettings(f"{url.path!r} has '.' or '..' in it; write the directory's own path")
    fsync = url.boolean_option("fsync", default=True)
    return LocalObjects("/" + url.path.strip("/"), fsync=fsync, clock=options.clock, make=options.create)


def _make_root(root: Path, fsync: bool) -> None:
    missing = [root, *(above for above in root.parents if not above.exists())]
    make_folder(root)
    for directory in missing if fsync else ():
        # An object in the root is only as durable as the directories above it. An unreadable one cannot be synced.
        if os.access(directory.parent, os.R_OK):
            above = os.open(directory.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(above)
            finally:
                os.close(above)


def _stat_key(parent: int, key: str) -> ObjectInfo | None:
    """Return the info of `key` from its open directory; None if it does not exist. Raises OSError, InvalidSettings."""
    try:
        found = os.stat(key.rpartition("/")[2], dir_fd=parent, follow_symlinks=False)
        return ObjectInfo(key, _require_regular(key, found).st_size, found.st_mtime_ns // 1_000_000)
    except (FileNotFoundError, ObjectNotFound):
        return None


def _is_unchanged(parent: int, name: str, size_bytes: int, mtime_ms: int) -> bool:
    """Return whether the file has this size and this time. Raises FileNotFoundError, also for a directory."""
    found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if stat.S_ISDIR(found.st_mode):
        raise FileNotFoundError
    same_file = stat.S_ISREG(found.st_mode) and found.st_size == size_bytes
    return same_file and mtime_ms == found.st_mtime_ns // 1_000_000


def _group_by_directory(keys: Sequence[str]) -> dict[str, list[str]]:
    """Group the keys by directory, each key once. A part of the reaper's inner loop."""
    by_directory: dict[str, list[str]] = {}
    for key in dict.fromkeys(keys):
        by_directory.setdefault(key.rpartition("/")[0], []).append(key)
    return by_directory


def _write(file: int, chunk: bytes) -> None:
    left = memoryview(chunk)
    while left:
        left = left[os.write(file, left) :]


def _copy_file(source: int, target: int, size_bytes: int) -> None:
    """Append the file, a piece at a time, so that the operation's deadline is kept."""
    left = size_bytes
    while left:
        deadline.check()
        if not has_reserved_bytes(target):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        copied = os.sendfile(target, source, None, min(left, _COPIED_BYTES))
        if not copied:
            raise OSError(errno.EIO, "it became shorter while it was read")
        left -= copied


def _file_exists(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _is_directory(root: int, directory: str) -> bool:
    try:
        with open_directory(root, directory):
            return True
    except OSError:
        return False


def _require_regular(key: str, found: os.stat_result) -> os.stat_result:
    if stat.S_ISREG(found.st_mode):
        return found
    if stat.S_ISDIR(found.st_mode):
        raise ObjectNotFound(f"there is no object at {key!r}; it is a directory")
    raise StoreMisconfigured(
        f"{key!r} is neither a file nor a directory; refstore did not write it: find out which program writes to the "
        "store's directory, and remove it"
    )
