"""Name who acts: a request or a command sets it once, and each audit entry reads it."""

from __future__ import annotations

import getpass
import os
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec


class Actor(msgspec.Struct, frozen=True):
    kind: str
    """`http`, `cli`, `sdk`, `reaper` or `gc`."""
    id: str
    """An access key's id, a user of the operating system, or a reaper's id."""
    address: str
    """The client's address, or the host's name."""
    command: str = ""
    """The route or the command, without its arguments: they may hold secrets."""


_current: ContextVar[Actor | None] = ContextVar("refstore_audit_actor", default=None)


@contextmanager
def act_as(actor: Actor) -> Generator[None, None, None]:
    """Name the actor of everything that the block does, including threads that copy its context."""
    token = _current.set(actor)
    try:
        yield
    finally:
        _current.reset(token)


def set_actor(actor: Actor) -> None:
    """Name the actor for the rest of this context; each request has its own."""
    _current.set(actor)


def local_actor(kind: str, command: str = "") -> Actor:
    """Return the user of this process on this host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container without users
        user = ""
    return Actor(kind, user, os.uname().nodename, command)


def current_actor() -> Actor:
    """Return the actor that was named; without one, an application that embeds the SDK acts."""
    return _current.get() or local_actor("sdk")
