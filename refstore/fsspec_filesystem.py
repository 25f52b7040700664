"""A lake as a filesystem of fsspec, which pandas, Polars, PyArrow, DuckDB, Dask and others read and write through.

    pandas.read_parquet("refstore://sales/main/2026/frame.parquet", storage_options={"lake": "./lake"})

A path is `REPOSITORY/REF/PATH`. In a ref, `%2F` stands for a slash. As in S3, a folder is what paths have in common: it
is there while it holds an object, and making one does nothing. Whatever is written is staged on the branch, and nothing
is cached. Errors are those of the operating system (`refstore/file_objects.py`).
"""

# fsspec has no types
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, cast

from fsspec.callbacks import DEFAULT_CALLBACK, Callback
from fsspec.spec import AbstractFileSystem

import refstore
from refstore.core.ids import decode_ref, encode_ref, object_path
from refstore.errors import InvalidName, InvalidPath
from refstore.file_objects import open_raw, translate_errors
from refstore.operations.read import ListedPath
from refstore.public_types import Entry
from refstore.repository import Repository

PROTOCOL: Final = "refstore"


class PathParts(NamedTuple):
    """What a path names; each part may be empty, and those after it are, then."""

    repository: str
    ref: str
    path: str

    @property
    def name(self) -> str:
        return "/".join(filter(None, (self.repository, encode_ref(self.ref), self.path)))


class RefstoreFileSystem(AbstractFileSystem):
    """The repositories of a lake, their refs and the objects of these, as folders and files."""

    protocol = PROTOCOL
    cachable = True

    def __init__(
        self,
        lake: str | None = None,
        *,
        kv: str | None = None,
        objects: str | None = None,
        config: str | None = None,
        **options: Any,
    ) -> None:
        """Open the lake that the arguments name, as `refstore.open` takes them. By default the environment names it."""
        super().__init__(**options)
        self._lake = refstore.open(lake, kv=kv, objects=objects, config=config)

    def close(self) -> None:
        """Close the lake. fsspec keeps a filesystem for the life of the process, and does not call this."""
        self._lake.close()
        self.clear_instance_cache()  # so that nobody is given this one again

    # ---- what is there

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return what is known of a file or folder. Raises FileNotFoundError."""
        parts = self._split(path)
        with translate_errors(parts.name):
            if not parts.repository:
                return _folder("")
            repo = self._lake.repository(parts.repository)
            if not parts.ref:
                return _folder(parts.name)
            if not parts.path:
                repo.get_commit(parts.ref)
                return _folder(parts.name)
            entry = repo.stat_many(parts.ref, [parts.path]).get(parts.path)
            if entry is not None:
                return _file(parts.name, entry)
            if repo.list_page(parts.ref, prefix=f"{parts.path}/", amount=1).results:
                return _folder(parts.name)
        raise _not_found(parts)

    def exists(self, path: str, **_: Any) -> bool:
        try:
            self.info(path)
        except (FileNotFoundError, InvalidName, InvalidPath):
            return False
        return True

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """List a folder, or the file of that name. Raises FileNotFoundError."""
        parts = self._split(path)
        with translate_errors(parts.name):
            listed = [*self._list(parts)]
        if not listed and parts.path:
            listed = [self.info(path)]  # of a file, or it raises
        return listed if detail else [item["name"] for item in listed]

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **kwargs: Any
    ) -> Any:
        """List all files below a folder, and with `withdirs` the folders; in one listing, if it is one of a ref."""
        parts = self._split(path)
        if not parts.ref or maxdepth is not None:
            return super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **kwargs)
        found: dict[str, dict[str, Any]] = {}
        with translate_errors(parts.name):
            for item in self._lake.repository(parts.repository).list(parts.ref, prefix=_prefix(parts)):
                for info in _describe(parts, item):
                    found[info["name"]] = info
        if withdirs:
            above = {str(folder) for name in found for folder in _folders_between(parts.name, name)}
            found |= {name: _folder(name) for name in above}
        if not found and self.isfile(path):
            found[parts.name] = self.info(path)
        return dict(sorted(found.items())) if detail else sorted(found)

    def created(self, path: str) -> datetime:
        """Return when the content of a file was written: it is never changed."""
        return self.modified(path)

    def modified(self, path: str) -> datetime:
        info = self.info(path)
        if info["type"] == "directory":
            raise IsADirectoryError(errno.EISDIR, "a folder has no time of its own; ask for a file's", info["name"])
        return datetime.fromtimestamp(info["mtime"], UTC)

    # ---- data

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: dict[str, Any] | None = None,
        compression: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Open a file as `Repository.open` does; 'xb' and 'x' write one only where none is."""
        if compression is not None and "r" not in mode:
            raise NotImplementedError("to write with a compression, use fsspec.open(url, mode, compression=...)")
        if "b" in mode or compression is not None:
            return super().open(path, mode, block_size, cache_options, compression, **kwargs)
        return self._open(path, mode.replace("t", ""), autocommit=not self._intrans, **kwargs)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        del block_size, cache_options
        if not autocommit:
            raise NotImplementedError("refstore has no transactions of fsspec; write to a branch, and merge it")
        parts, repo = self._find_file(path)
        if "x" in mode:
            mode, kwargs = mode.replace("x", "w"), {**kwargs, "if_absent": True}
        with translate_errors(parts.name):
            return repo.open(parts.ref, parts.path, cast(Any, mode), **kwargs)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Return the bytes from `start` up to `end`, both counted from the end where they are negative."""
        parts, repo = self._find_file(path)
        with translate_errors(parts.name):
            file = open_raw(repo.context, parts.ref, object_path(parts.path))
            first, last, _step = slice(start, end).indices(file.seek(0, io.SEEK_END))
            return b"".join(file.read_range(first, last)) if first < last else b""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        parts, repo = self._find_file(path)
        with translate_errors(parts.name):
            repo.upload(parts.ref, parts.path, value, if_absent=mode == "create", **kwargs)

    def put_file(
        self, lpath: str, rpath: str, callback: Callback = DEFAULT_CALLBACK, mode: str = "overwrite", **kwargs: Any
    ) -> None:
        source = Path(lpath)
        if source.is_dir():
            return
        parts, repo = self._find_file(rpath)
        callback.set_size(source.stat().st_size)
        with translate_errors(parts.name):
            entry = repo.upload(parts.ref, parts.path, source, if_absent=mode == "create", **kwargs)
        callback.absolute_update(entry.size_bytes)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copy a file; within a repository, no data is read."""
        if self.isdir(path1):
            return
        (source, repo), (target, other) = self._find_file(path1), self._find_file(path2)
        with translate_errors(source.name):
            if source.repository == target.repository:
                repo.copy(source.ref, source.path, to_branch=target.ref, to_path=target.path)
            else:
                with repo.open(source.ref, source.path) as file:
                    other.upload(target.ref, target.path, cast(BinaryIO, file))

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Delete files, and with `recursive` folders with all that they hold. A deleted file can be restored."""
        for name in self.expand_path(path, recursive=recursive and maxdepth is not None, maxdepth=maxdepth):
            parts, info = self._split(name), self.info(name)
            if not parts.ref or (info["type"] == "directory" and not recursive):
                raise IsADirectoryError(errno.EISDIR, "is a folder, a ref or a repository", parts.name)
            repo = self._lake.repository(parts.repository)
            with translate_errors(parts.name):
                if parts.path:
                    repo.delete(parts.ref, parts.path)
                if recursive and maxdepth is None:
                    repo.delete_prefix(parts.ref, _prefix(parts))

    def rm_file(self, path: str) -> None:
        """Delete the file of exactly this name."""
        parts, info = self._split(path), self.info(path)
        if info["type"] == "directory":
            raise IsADirectoryError(errno.EISDIR, "is a folder, a ref or a repository", parts.name)
        with translate_errors(parts.name):
            self._lake.repository(parts.repository).delete(parts.ref, parts.path)

    # ---- helpers

    def _split(self, path: str) -> PathParts:
        repository, _, rest = cast(str, self._strip_protocol(path)).strip("/").partition("/")
        ref, _, name = rest.partition("/")
        return PathParts(repository, decode_ref(ref), name)

    def _find_file(self, path: str) -> tuple[PathParts, Repository]:
        """Return what a path names, and its repository. Raises IsADirectoryError for a ref or a repository."""
        parts = self._split(path)
        if not parts.path:
            raise IsADirectoryError(errno.EISDIR, "is no file; a path is REPOSITORY/REF/PATH", parts.name)
        with translate_errors(parts.name):
            return parts, self._lake.repository(parts.repository)

    def _list(self, parts: PathParts) -> Iterator[dict[str, Any]]:
        if not parts.repository:
            yield from (_folder(str(repo.name)) for repo in self._lake.repositories())
            return
        repo = self._lake.repository(parts.repository)
        if not parts.ref:
            refs = [branch.name for branch in repo.branches() if not branch.is_hidden]
            yield from (
                _folder(PathParts(repo.name, str(ref), "").name) for ref in (*refs, *(tag.name for tag in repo.tags()))
            )
            return
        for item in repo.list(parts.ref, prefix=_prefix(parts), delimiter="/"):
            yield from _describe(parts, item)


def _prefix(parts: PathParts) -> str:
    return f"{parts.path}/" if parts.path else ""


def _describe(parts: PathParts, item: ListedPath) -> Iterator[dict[str, Any]]:
    """Yield what a listing has below a path, without the empty objects that some programs keep for folders."""
    name = parts._replace(path=item.path).name
    if item.entry is None:
        yield _folder(name.rstrip("/"))
    elif not name.endswith("/"):
        yield _file(name, item.entry)


def _folder(name: str) -> dict[str, Any]:
    return {"name": name, "size": 0, "type": "directory"}


def _file(name: str, entry: Entry) -> dict[str, Any]:
    return {
        "name": name,
        "size": entry.size_bytes,
        "type": "file",
        "mtime": entry.modified.timestamp(),
        "checksum": entry.checksum,
        "content_type": entry.content_type,
        "metadata": dict(entry.metadata),
    }


def _folders_between(top: str, name: str) -> Iterator[str]:
    """Yield a folder, and the folders below it that a file lies in."""
    while len(name) > len(top):
        name = name.rpartition("/")[0]
        yield name


def _not_found(parts: PathParts) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), parts.name)
