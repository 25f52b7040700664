"""What the body of an upload may be, and how it is read: bytes, a binary file, chunks of bytes, or a file's path.

The blobs of a batch are written several at a time; every thread checks the operation's deadline.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from io import TextIOBase
from pathlib import Path
from typing import Final, TypeVar, cast

from refstore.context import Context
from refstore.core import deadline
from refstore.core.ids import Address
from refstore.errors import Invalid
from refstore.objects.base import Body, ObjectInfo, StoredObject, chunks_of

UploadBody = Body | os.PathLike[str]
"""What an upload takes."""


def check_body(body: object, path: str) -> None:
    """Refuse what is no body before anything is written. Raises Invalid."""
    if isinstance(body, bytes):
        return
    if isinstance(body, str):
        raise Invalid(
            f"the body of {path!r} is a text; give its bytes, text.encode(), or for the file of that name "
            "pathlib.Path(text)"
        )
    if isinstance(body, TextIOBase):
        raise Invalid(f"the body of {path!r} is a file in text mode; open it with mode 'rb'")
    if isinstance(body, os.PathLike):
        with open_body(cast("os.PathLike[str]", body)):
            return
    if not (hasattr(body, "read") or isinstance(body, Iterable | bytearray | memoryview) or _is_buffer(body)):
        raise Invalid(
            f"the body of {path!r} is of type {type(body).__name__}; give bytes, a file opened with mode 'rb', chunks "
            "of bytes, or a pathlib.Path"
        )


@contextmanager
def open_body(body: UploadBody) -> Generator[Body, None, None]:
    """Yield the body, and the opened file for a path. Raises Invalid."""
    if not isinstance(body, os.PathLike):
        yield body
        return
    place = Path(body)
    try:
        file = place.open("rb")
    except IsADirectoryError as error:
        raise Invalid(f"{str(place)!r} is a folder; upload the files in it, one by one") from error
    except OSError as error:
        raise Invalid(f"{str(place)!r} cannot be read ({error.strerror}); give the path of a file that can") from error
    with file:
        yield file


def _is_buffer(body: object) -> bool:
    try:
        memoryview(body)  # type: ignore[arg-type]  # what it is, is the question
    except TypeError:
        return False
    return True


WRITE_THREADS: Final = 4
"""How many blobs of a batch are written at a time; more only helps where the store is far away."""

T = TypeVar("T")


def put_all(ctx: Context, blobs: Sequence[tuple[Address, UploadBody]]) -> list[StoredObject]:
    """Write each blob to its address."""

    def put(address: Address, source: UploadBody) -> StoredObject:
        if isinstance(source, bytes):
            return ctx.objects.put(address, source)
        with open_body(source) as body:
            return ctx.objects.put(address, deadline.check_each(chunks_of(body)))

    return _run_all([partial(put, address, source) for address, source in blobs])


def copy_all(ctx: Context, copies: Sequence[tuple[Address, Address]]) -> list[ObjectInfo]:
    """Copy each (source, destination) in the store, and return what the store has at the destinations. Raises
    ObjectNotFound, CorruptObject.
    """
    return _run_all([partial(ctx.objects.copy, source, destination) for source, destination in copies])


def _run_all(writes: Sequence[Callable[[], T]]) -> list[T]:
    if len(writes) == 1:
        return [writes[0]()]
    waiting = deque(range(len(writes)))
    results: dict[int, T] = {}

    def write() -> None:
        while True:
            try:
                place = waiting.popleft()
            except IndexError:
                return
            try:
                results[place] = writes[place]()
            except BaseException:
                waiting.clear()  # the batch has failed: do not begin the rest
                raise

    # one task for each writer, not for each blob: handing small ones over one by one takes longer than writing them
    with ThreadPoolExecutor(max_workers=min(WRITE_THREADS, len(writes)), thread_name_prefix="refstore-put") as pool:
        for writer in [pool.submit(copy_context().run, write) for _ in range(min(WRITE_THREADS, len(writes)))]:
            writer.result()
    return [results[place] for place in range(len(writes))]
