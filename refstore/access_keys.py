"""Access keys: who may call the service, and what for.

A key is an id and a secret. The secret is shown once; what is stored is a salted HMAC of it, so a copied KV opens
nothing. One fast hash is enough because secrets are random: those that are made here have 240 bits, and one that is
brought along needs `SECRET_CHARACTERS_MIN`. Secrets are compared in constant time.

A rotation gives a key a second secret and lets the first one go on for a while. What a secret opened ends with it: so
do the bearer tokens that it bought. A key may expire; and its tokens can be ended without changing its secret.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

import msgspec

from refstore.audit import AuditLog
from refstore.core import ids, keys
from refstore.core.clock import Clock, utc_text
from refstore.core.records import AccessKeyRecord, SecretHash, Stamp, decode, encode, maybe
from refstore.errors import AlreadyExists, Conflict, Contention, Invalid, InvalidName, NotFound
from refstore.kv.base import ABSENT, KV, Absent

SECRET_CHARACTERS_MIN: Final = 20
_ATTEMPTS: Final = 20
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
    expires_ms: int = 0
    """0: it does not."""
    old_secret_ends_ms: int = 0
    """Until when the secret before the last rotation is good, or was. 0: there is none."""
    last_used_ms: int = 0
    """To the hour. 0: not yet, or it was not asked for."""


class KeyStore(Protocol):
    """Where keys are kept, and the log of their changes, without which none is made: a lake."""

    @property
    def kv(self) -> KV: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def audit(self) -> AuditLog: ...


class NewKey(NamedTuple):
    key: AccessKey
    secret: str
    """Shown once; it cannot be had again."""


def create(
    store: KeyStore,
    role: Role,
    *,
    repositories: Sequence[str] = (),
    description: str = "",
    id: str | None = None,  # noqa: A002  # the field's word
    secret: str | None = None,
    expires_ms: int = 0,
) -> NewKey:
    """Make a key. `expires_ms`: from when on it opens nothing; 0: it does not expire.

    Raises AlreadyExists, InvalidName, Invalid (a secret that is too short, an expiry that has passed),
    AuditUnavailable, as all changes do.
    """
    if expires_ms and expires_ms <= store.clock.now_ms():
        raise Invalid(f"the access key would have expired at {utc_text(expires_ms)} already; name a time to come")
    chosen = id if id is not None else new_id()
    word = secret if secret is not None else new_secret()
    record = _record(store.clock, role, repositories, description, _checked(chosen, word), expires_ms)
    with store.audit.change("key.create", target=chosen, after=_logged(record)):
        if not store.kv.set_if(keys.access_key(chosen), ABSENT, encode(record)):
            raise AlreadyExists(f"access key {chosen!r} exists already; choose another id, or revoke it first")
    return NewKey(_shown(chosen, record), word)


def ensure(store: KeyStore, id: str, secret: str) -> AccessKey:  # noqa: A002  # likewise
    """Return an operator's key with this id and this secret: made, or changed if its secret was another one.

    The old secret of a rotation does not come back by this. Raises Conflict where it has ended; InvalidName, Invalid,
    Contention.
    """
    key = keys.access_key(_checked_id(id))
    for _ in range(_ATTEMPTS):
        raw = store.kv.get(key)
        record = maybe(raw, AccessKeyRecord)
        proven = find_secret(record, secret) if record is not None else None
        if proven is not None and has_ended(proven, store.clock.now_ms()):
            raise Conflict(
                f"the secret of access key {id!r} ended at {utc_text(proven.ends_ms)}, after a rotation; give its new "
                "secret"
            )
        if record is not None and proven is not None and record.role == Role.OPERATOR:
            return _shown(id, record)
        new_record = _record(
            store.clock, Role.OPERATOR, (), "from the environment of the service", _checked(id, secret)
        )
        if _replace(store, "key.set", id, raw, new_record):
            return _shown(id, new_record)
    raise _contention(id)


def rotate(store: KeyStore, id: str, *, overlap_ms: int) -> NewKey:  # noqa: A002  # likewise
    """Give the key a new secret. The old one goes on for `overlap_ms`, and then ends with the tokens that it bought; 0:
    at once.

    Raises NotFound, Contention; Conflict where two secrets are good already and `overlap_ms` is not 0.
    """
    word, salt = new_secret(), secrets.token_bytes(_SALT_BYTES)

    def rotated(record: AccessKeyRecord) -> AccessKeyRecord:
        now_ms = store.clock.now_ms()
        if overlap_ms and record.previous is not None and not has_ended(record.previous, now_ms):
            raise Conflict(
                f"access key {id!r} has two secrets until {utc_text(record.previous.ends_ms)}; wait for that, or end "
                f"the old one with: refstore keys end-overlap {id}"
            )
        previous = SecretHash(record.salt, record.hash, now_ms + overlap_ms)
        return msgspec.structs.replace(record, salt=salt, hash=_hashed(salt, word), previous=previous)

    return NewKey(_shown(id, _change(store, "key.rotate", id, rotated)), word)


def end_overlap(store: KeyStore, id: str) -> AccessKey:  # noqa: A002  # likewise
    """End the old secret of a rotation now, and the tokens that it bought. Raises NotFound, Contention, Conflict
    (there is none).
    """

    def ended(record: AccessKeyRecord) -> AccessKeyRecord:
        now_ms = store.clock.now_ms()
        if record.previous is None or has_ended(record.previous, now_ms):
            raise Conflict(f"access key {id!r} has one secret only; make a second one with: refstore keys rotate {id}")
        return msgspec.structs.replace(record, previous=record.previous._replace(ends_ms=now_ms))

    return _shown(id, _change(store, "key.end-overlap", id, ended))


def end_tokens(store: KeyStore, id: str) -> AccessKey:  # noqa: A002  # likewise
    """End the bearer tokens that the key was given so far; its secret goes on. Raises NotFound, Contention."""

    def ended(record: AccessKeyRecord) -> AccessKeyRecord:
        return msgspec.structs.replace(record, token_generation=record.token_generation + 1)

    return _shown(id, _change(store, "key.end-tokens", id, ended))


def find(kv: KV, id: str) -> AccessKeyRecord | None:  # noqa: A002  # likewise
    """Return None where there is no such key, or its id cannot be one."""
    return maybe(kv.get(keys.access_key(id)), AccessKeyRecord) if _ID.fullmatch(id) else None


def find_secret(record: AccessKeyRecord, secret: str) -> SecretHash | None:
    """Return which of the key's secrets it is, ended or not; None where it is none of them.

    It takes a time that does not tell how much was right, nor how many secrets the key has.
    """
    matching = None
    for each in (SecretHash(record.salt, record.hash), record.previous or _NO_SECRET):
        if hmac.compare_digest(_hashed(each.salt, secret), each.hash) and each is not _NO_SECRET:
            matching = matching or each
    return matching


def find_token_secret(record: AccessKeyRecord, token_mark: str) -> SecretHash | None:
    """Return which of the key's secrets bought the token with this mark, ended or not; None where none did, or the
    key's tokens ended.
    """
    token_bytes = token_mark.encode(errors="surrogatepass")
    for each in (SecretHash(record.salt, record.hash), *((record.previous,) if record.previous is not None else ())):
        if hmac.compare_digest(mark_token(record, each).encode(), token_bytes):
            return each
    return None


def mark_token(record: AccessKeyRecord, bought_with: SecretHash) -> str:
    """Return what a bearer token carries of the secret that it was bought with: it tells apart two keys made under one
    id, two secrets and two generations of tokens, and says nothing of any secret.
    """
    generation = str(record.token_generation).encode() if record.token_generation else b""
    return hmac.digest(bought_with.salt, b"the making of this key" + generation, "sha256").hex()[:32]


def has_ended(secret: SecretHash, now_ms: int) -> bool:
    """Return whether the secret opens nothing any more."""
    return 0 < secret.ends_ms <= now_ms


def refusal(id: str, record: AccessKeyRecord, proven: SecretHash, now_ms: int) -> str:  # noqa: A002  # likewise
    """Return why a key opens nothing to who proved this secret of it; '' where it does. Only such a caller may hear
    it.
    """
    if 0 < record.expires_ms <= now_ms:
        return f"access key {id!r} expired at {utc_text(record.expires_ms)}; ask an operator for another"
    if has_ended(proven, now_ms):
        at = utc_text(proven.ends_ms)
        return f"this secret of access key {id!r} ended at {at}, after a rotation; use its new secret"
    return ""


def note_use(kv: KV, clock: Clock, id: str) -> None:  # noqa: A002  # likewise
    """Write down that the key is in use now. For callers that do so at most once an hour."""
    kv.set(keys.access_key_use(id), encode(Stamp(clock.now_ms())))


def scan(kv: KV) -> Iterator[AccessKey]:
    """Yield all keys, in order of id, with when each was used last."""
    uses = {name: decode(value, Stamp).at_ms for name, value in kv.scan_all(keys.ACCESS_KEY_USES)}
    for name, value in kv.scan_all(keys.ACCESS_KEYS):
        key, used_ms = _shown(name, decode(value, AccessKeyRecord)), uses.get(name, 0)
        yield (
            key._replace(last_used_ms=used_ms) if used_ms >= key.created_ms else key
        )  # else it was another key of this id


def revoke(store: KeyStore, id: str) -> AccessKey:  # noqa: A002  # likewise
    """Take the key away. Raises NotFound. A service that has seen the key goes on taking it for as long as
    `api.key_seconds` says.
    """
    record = find(store.kv, id)
    if record is None:
        raise _not_found(id)
    with store.audit.change("key.revoke", target=id, before=_logged(record)):
        store.kv.delete(keys.access_key(id))
        store.kv.delete(keys.access_key_use(id))
    return _shown(id, record)


def new_id() -> str:
    """Return an access key id that no other key has, for all practical purposes."""
    return "RS" + secrets.token_hex(9).upper()


def new_secret() -> str:
    """Return a random secret of 240 bits."""
    return secrets.token_urlsafe(30)


def is_id(text: str) -> bool:
    """Whether the text could be an access key's id."""
    return _ID.fullmatch(text) is not None


def any_there(kv: KV) -> bool:
    return bool(kv.scan(keys.ACCESS_KEYS, limit=1))


def _change(
    store: KeyStore, action: str, id_: str, change: Callable[[AccessKeyRecord], AccessKeyRecord]
) -> AccessKeyRecord:
    """Raises NotFound, Contention."""
    for _ in range(_ATTEMPTS):
        raw = store.kv.get(keys.access_key(id_)) if _ID.fullmatch(id_) else ABSENT
        record = maybe(raw, AccessKeyRecord)
        if record is None:
            raise _not_found(id_)
        changed = change(record)
        if _replace(store, action, id_, raw, changed):
            return changed
    raise _contention(id_)


def _replace(store: KeyStore, action: str, id_: str, raw: bytes | Absent, new: AccessKeyRecord) -> bool:
    """Return whether the key was still what was read, and is now what is given."""
    before = maybe(raw, AccessKeyRecord)
    with store.audit.change(
        action, target=id_, before=_logged(before) if before is not None else None, after=_logged(new)
    ) as told:
        told.happened = store.kv.set_if(keys.access_key(id_), raw, encode(new))
    return told.happened


def _logged(record: AccessKeyRecord) -> Mapping[str, object]:
    """The key as the audit log shows it: nothing of its secrets, and no hash of one."""
    return {
        "role": Role(record.role).name.lower(),
        "repositories": list(record.repositories),
        "description": record.description,
        "created_ms": record.created_ms,
        "expires_ms": record.expires_ms,
        "old_secret_ends_ms": record.previous.ends_ms if record.previous is not None else 0,
        "token_generation": record.token_generation,
    }


def _not_found(id_: str) -> NotFound:
    return NotFound(f"access key {id_[:80]!r} does not exist; list them with: refstore keys list")


def _contention(id_: str) -> Contention:
    return Contention(f"others kept changing access key {id_[:80]!r}; make the same call again")


def _checked(id_: str, secret: str) -> str:
    _checked_id(id_)
    if len(secret) < SECRET_CHARACTERS_MIN:
        raise Invalid(
            f"the secret of access key {id_!r} has {len(secret)} characters; it needs at least "
            f"{SECRET_CHARACTERS_MIN}, at random"
        )
    return secret


def _checked_id(id_: str) -> str:
    if not _ID.fullmatch(id_):
        raise InvalidName(
            f"{id_[:80]!r} is not an access key id; use 3 to 128 letters, digits and '_ . -', starting with a letter "
            "or digit"
        )
    return id_


def _record(
    clock: Clock, role: Role, repositories: Sequence[str], description: str, secret: str, expires_ms: int = 0
) -> AccessKeyRecord:
    salt = secrets.token_bytes(_SALT_BYTES)
    only = tuple(sorted({ids.repository_name(name) for name in repositories}))
    return AccessKeyRecord(salt, _hashed(salt, secret), int(role), clock.now_ms(), only, description, expires_ms)


def _hashed(salt: bytes, secret: str) -> bytes:
    return hmac.digest(salt, secret.encode(errors="surrogatepass"), "sha256")


def _shown(id_: str, record: AccessKeyRecord) -> AccessKey:
    old_ends_ms = record.previous.ends_ms if record.previous is not None else 0
    return AccessKey(
        id_,
        Role(record.role),
        record.repositories,
        record.description,
        record.created_ms,
        record.expires_ms,
        old_ends_ms,
    )


_NO_SECRET: Final = SecretHash(secrets.token_bytes(_SALT_BYTES), secrets.token_bytes(32))
