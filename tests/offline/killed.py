"""A process that is killed: from one of its writes on it reaches neither the KV nor the object store, and cleans up
nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from refstore.kv.base import Get

if TYPE_CHECKING:
    from tests.offline.world import World


class Killed(BaseException):
    """No handler of errors may take it for one."""


@contextmanager
def killed_at(world: World, write: int) -> Generator[list[int]]:
    """Kill this thread at its write of this number, to the KV or the object store. The list has how many it made."""
    made = [0]
    mine = threading.get_ident()
    kv, objects = type(world.lake.kv), type(world.ctx.objects)

    def guarded(real: Any, *, is_write: Any) -> Any:
        def call(self: Any, *args: Any, **options: Any) -> Any:
            if threading.get_ident() == mine:
                made[0] += is_write(*args)
                if made[0] >= write:
                    raise Killed
            return real(self, *args, **options)

        return call

    def writes(ops: Any) -> bool:
        return not all(isinstance(op, Get) for op in ops)

    def always(*_: Any) -> bool:
        return True

    with (
        mock.patch.object(kv, "execute", guarded(kv.execute, is_write=writes)),
        mock.patch.object(objects, "put", guarded(objects.put, is_write=always)),
        mock.patch.object(objects, "delete_many", guarded(objects.delete_many, is_write=always)),
    ):
        yield made
