"""Calls as data: (name, *arguments), a method of the protocol."""

from __future__ import annotations

from typing import Any

from .store import Store

Call = tuple[Any, ...]


class Do(tuple[Call, ...]):
    """What a call may answer: do these calls in its place. Nothing it read is kept, so each must stand by itself."""

    __slots__ = ()


def run(store: Store, proto: Any, *calls: Call) -> Store:
    """The calls one after the other, undisturbed."""
    for name, *args in calls:
        steps = proto.retrying(getattr(proto, name)(*args))
        try:
            op = steps.send(None)
            while True:
                store, reply = store.apply(op)
                op = steps.send(reply)
        except StopIteration as end:
            if isinstance(end.value, Do):
                store = run(store, proto, *end.value)
    return store
