"""Read objects in processes of their own: a library that crashes at a file does so for that file only."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import lru_cache, partial
from typing import BinaryIO, TypeVar, cast

from refstore.objects import open_objects
from refstore.objects.base import ObjectStore
from refstore.objects.stored_file import open_object
from refstore_gc.engines import worker_processes
from refstore_purge.file_allowance import NO_MEMORY, limit_memory
from refstore_purge.purge_error import PurgeError

T = TypeVar("T")


@lru_cache(maxsize=4)
def open_store(url: str, io_timeout_seconds: float) -> ObjectStore:
    return open_objects(url, io_timeout_seconds=io_timeout_seconds)


def crash_reason(error: worker_processes.CrashedError) -> str:
    """Say why an object stays, or was not looked at, whose reader ended."""
    code = error.exit_code or 0
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
    return (
        f"the process that read or wrote it {how}, twice: a library crashed at it, or there is too little memory; see "
        "to it by other means"
    )


def read_in_process(
    url: str, io_timeout_seconds: float, address: str, size_bytes: int, read: Callable[[BinaryIO], T]
) -> T:
    """Return what `read` makes of an object of the store at a URL, in a process of its own. Raises PurgeError where
    that ended, and what `read` raises.
    """
    try:
        return worker_processes.call(partial(_read_object, url, io_timeout_seconds, address, size_bytes, read))
    except worker_processes.CrashedError as error:
        raise PurgeError(crash_reason(error)) from error
    except MemoryError as error:
        raise PurgeError(NO_MEMORY) from error


def _read_object(
    url: str, io_timeout_seconds: float, address: str, size_bytes: int, read: Callable[[BinaryIO], T]
) -> T:
    source = cast(BinaryIO, open_object(open_store(url, io_timeout_seconds), address, size_bytes))
    with limit_memory(size_bytes):
        return read(source)
