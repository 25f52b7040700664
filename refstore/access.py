"""Access keys: who may call the service, and what for.

A key is an id and a secret. The secret is shown once; what is stored is a salted HMAC of it, so a copied KV opens nothing. One
fast hash is enough because secrets are random: those that are made here have 240 bits, and one that is brought along needs
`SECRET_CHARACTERS_MIN`. Secrets are compared in constant time.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from refstore import ids, keys
from refstore.clock import Clock
from refstore.errors import AlreadyExists, Invalid, InvalidName, NotFound
from refstore.kv.base import ABSENT, KV
from refstore.records import AccessKeyRecord, decode, encode, maybe

SECRET_CHARACTERS_MIN: Final = 20
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{2,127}")
_SALT_BYTES: Final = 16


class Role(IntEnum):
    """Each may do what those before it may."""

    READER = 1
    WRITER = 2
    """Objects, branches, tags, commits."""
    OPERATOR = 3
    """Repositories, reaper, collection, rules, marks."""


class AccessKey(NamedTuple):
    """A key as it may be shown: without its secret."""

    id: str
    role: Role
    repositories: tuple[str, ...]
    """The only repositories it is for; empty: all of them."""
    description: str
    created_ms: int


class NewKey(NamedTuple):
    key: AccessKey
    secret: str
    """Shown once; it cannot be had again."""


def create(
    kv: KV,
    clock: Clock,
    role: Role,
    *,
    repositories: Sequence[str] = (),
    description: str = "",
    id: str | None = None,  # noqa: A002  # the field's word
    secret: str | None = None,
) -> NewKey:
    """Make a key. Raises AlreadyExists, InvalidName, Invalid (a secret that is too short)."""
    chosen = id if id is not None else "RS" + secrets.token_hex(9).upper()
    word = secret if secret is not None else secrets.token_urlsafe(30)
    record = _record(clock, role, repositories, description, _checked(chosen, word))
    if not kv.set_if(keys.access_key(chosen), ABSENT, encode(record)):
        raise AlreadyExists(f"access key {chosen!r} exists already; choose another id, or revoke it first")
    return NewKey(_shown(chosen, record), word)


def ensure(kv: KV, clock: Clock, id: str, secret: str) -> AccessKey:  # noqa: A002  # likewise
    """An operator's key with this id and this secret: made, or changed if its secret was another one."""
    key = keys.access_key(id)
    found = maybe(kv.get(key), AccessKeyRecord)
    if found is None or found.role != Role.OPERATOR or not matches(found, secret):
        found = _record(clock, Role.OPERATOR, (), "from the environment of the service", _checked(id, secret))
        kv.set(key, encode(found))
    return _shown(id, found)


def find(kv: KV, id: str) -> AccessKeyRecord | None:  # noqa: A002  # likewise
    """None where there is no such key, or its id cannot be one."""
    return maybe(kv.get(keys.access_key(id)), AccessKeyRecord) if _ID.fullmatch(id) else None


def matches(record: AccessKeyRecord, secret: str) -> bool:
    """Whether the secret is the key's own, in a time that does not tell how much of it was right."""
    return hmac.compare_digest(_hashed(record.salt, secret), record.hash)


def scan(kv: KV) -> Iterator[AccessKey]:
    """All keys, in order of id."""
    for name, value in kv.scan_all(keys.ACCESS_KEYS):
        yield _shown(name, decode(value, AccessKeyRecord))


def revoke(kv: KV, id: str) -> AccessKey:  # noqa: A002  # likewise
    """Raises NotFound. A service that has seen the key goes on taking it for as long as `api.key_seconds` says."""
    found = find(kv, id)
    if found is None:
        raise NotFound(f"access key {id[:80]!r} does not exist; list them with: refstore keys list")
    kv.delete(keys.access_key(id))
    return _shown(id, found)


def any_there(kv: KV) -> bool:
    return bool(kv.scan(keys.ACCESS_KEYS, limit=1))


def _checked(id_: str, secret: str) -> str:
    if not _ID.fullmatch(id_):
        raise InvalidName(
            f"{id_[:80]!r} is not an access key id; use 3 to 128 letters, digits and '_ . -', starting with a letter or digit"
        )
    if len(secret) < SECRET_CHARACTERS_MIN:
        raise Invalid(
            f"the secret of access key {id_!r} has {len(secret)} characters; it needs at least {SECRET_CHARACTERS_MIN}, at random"
        )
    return secret


def _record(clock: Clock, role: Role, repositories: Sequence[str], description: str, secret: str) -> AccessKeyRecord:
    salt = secrets.token_bytes(_SALT_BYTES)
    only = tuple(sorted({ids.repository_name(name) for name in repositories}))
    return AccessKeyRecord(salt, _hashed(salt, secret), int(role), clock.now_ms(), only, description)


def _hashed(salt: bytes, secret: str) -> bytes:
    return hmac.digest(salt, secret.encode(errors="surrogatepass"), "sha256")


def _shown(id_: str, record: AccessKeyRecord) -> AccessKey:
    return AccessKey(id_, Role(record.role), record.repositories, record.description, record.created_ms)
