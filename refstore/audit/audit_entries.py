"""Define an entry of the audit log, its bytes, and its key in the store; and who acts, which a request or a command
names once. An entry contains no secret, no hash of one, and no token.

An entry is JSON. Its `previous` is the SHA-256 of the bytes of the entry before it in the chain; '' in the first one.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeVar

import msgspec

from refstore.errors import CorruptObject


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


VERSION: Final = 1
PREFIX: Final = "_refstore/audit/"
"""A prefix in the lake's own object store, which no repository may use as its namespace (`namespaces.check_new`)."""
ACCEPT_ACTION: Final = "audit.accept"
"""The action of an entry by which an operator accepted others (`audit_verification.py`)."""
VALUE_BYTES_MAX: Final = 256 * 1024
"""The size limit of `before` and `after`. The entry replaces a larger value by its size, hash and beginning."""
ENTRY_BYTES_MAX: Final = 4 * VALUE_BYTES_MAX
"""No entry is larger, so a reader need not hold more."""

_BEGINNING_CHARACTERS: Final = 8192
_NAME_CHARACTERS: Final = 1024
_DIGITS: Final = 12
_KEY: Final = re.compile(rf"{PREFIX}([0-9a-z]+)/([0-9]{{{_DIGITS}}})\.json")

ActOutcome = Literal["begun", "done", "failed", "unknown"]
AuditValues = dict[str, Any]


class EntryPosition(msgspec.Struct, frozen=True):
    """The position of the entry that was written before the act."""

    chain: str
    number: int


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """What an actor did, or began to do."""

    id: str
    """The same in all entries of one act."""
    time: str
    """When it began: ISO 8601, in UTC, to the millisecond."""
    actor: Actor
    action: str
    """`key.revoke`, `branch.delete`, ..."""
    repository: str = ""
    target: str = ""
    """The branch, access key or mark that was changed, if the repository alone does not say it."""
    before: AuditValues | None = None
    after: AuditValues | None = None
    outcome: ActOutcome = "begun"
    error: str = ""
    """The error code of a failed act (`refstore.errors`)."""
    begin_entry: EntryPosition | None = None
    """In the entry of an outcome: the position of its `begin_entry` entry."""


class AuditEntry(msgspec.Struct, frozen=True):
    version: int
    chain: str
    number: int
    """From 1, without gaps."""
    previous: str
    written_ms: int
    """When the entry was written, in ms since the epoch. It is later than the act if the store was down."""
    act: Act


def entry_key(chain: str, number: int) -> str:
    return f"{PREFIX}{chain}/{number:0{_DIGITS}d}.json"


def parse_key(key: str) -> tuple[str, int] | None:
    """Return (chain, number) of an entry's key; None for any other key."""
    match = _KEY.fullmatch(key)
    return (match[1], int(match[2])) if match and int(match[2]) else None


def encode_entry(entry: AuditEntry) -> bytes:
    return msgspec.json.encode(entry)


def decode_entry(body: bytes) -> AuditEntry:
    """Raises CorruptObject."""
    return _decode(body, AuditEntry)


def decode_act(body: bytes) -> Act:
    """Raises CorruptObject."""
    return _decode(body, Act)


def sha256_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def format_timestamp(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{at_ms % 1000:03d}Z"


def shorten_values(values: Mapping[str, Any] | None) -> AuditValues | None:
    """Return the values as an entry stores them: shortened if they are too large."""
    if values is None:
        return None
    body = msgspec.json.encode(values, enc_hook=str)
    if len(body) <= VALUE_BYTES_MAX:
        return msgspec.json.decode(body, type=AuditValues)
    begins = body.decode()[:_BEGINNING_CHARACTERS]
    return {"shortened": True, "size_bytes": len(body), "sha256": sha256_of(body), "begins": begins}


def shorten_name(text: str) -> str:
    return text[:_NAME_CHARACTERS]


T = TypeVar("T")


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptObject(
            f"an audit entry cannot be read ({error}); look at it with: refstore audit verify"
        ) from error
