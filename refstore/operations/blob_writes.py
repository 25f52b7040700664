"""Write the blobs of a batch, several at a time; every thread checks the operation's deadline."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Final, TypeVar

from refstore.context import Context
from refstore.core import deadline
from refstore.core.ids import Address
from refstore.objects.base import ObjectInfo, StoredObject, chunks_of
from refstore.operations import upload_bodies

WRITE_THREADS: Final = 4
"""How many blobs of a batch are written at a time; more only helps where the store is far away."""

T = TypeVar("T")


def put_all(ctx: Context, blobs: Sequence[tuple[Address, upload_bodies.UploadBody]]) -> list[StoredObject]:
    """Write each blob to its address."""

    def put(address: Address, source: upload_bodies.UploadBody) -> StoredObject:
        if isinstance(source, bytes):
            return ctx.objects.put(address, source)
        with upload_bodies.open_body(source) as body:
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
