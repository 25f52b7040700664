"""Access keys: the callers of the service, and their rights.

A key is an id and a secret. The secret is shown once. The KV stores a salted HMAC of it, so a copy of the KV gives no
access. One fast hash is enough because secrets are random: generated secrets have 240 bits, and a secret that the
caller chooses needs `SECRET_CHARACTERS_MIN`. Secrets are compared in constant time.

A rotation gives a key a second secret, and keeps the first one valid for a while. When a secret ends, the bearer tokens
that were issued for it end, too. A key may expire. Its tokens can be ended without changing its secret.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from refstore.audit import AuditLog
from refstore.core import ids
from refstore.core.clock import Clock, format_utc
from refstore.core.pinned_buckets import parse_pinned_buckets
from refstore.errors import AlreadyExists, Conflict, Contention, Invalid, InvalidName, NotFound
from refstore.kv.base import ABSENT, KV, Absent
from refstore.records import keys
from refstore.records.encoding import decode, decode_optional, encode
from refstore.records.lake_records import AccessKeyRecord, SecretHash
from refstore.records.reaper_records import StampRecord

SECRET_CHARACTERS_MIN: Final = 20
_ATTEMPTS: Final = 20
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{2,127}")
_SALT_BYTES: Final = 16


class Role(IntEnum):
    """Each role has the rights of the roles before it."""

    READER = 1
    WRITER = 2
    """Objects, branches, tags, commits."""
    OPERATOR = 3
    """Repositories, reaper, collection, rules, marks."""


class AccessKey(NamedTuple):
    """A key without its secret, for display."""

    id: str
    role: Role
    repositories: tuple[str, ...]
    """The only repositories that it is valid for; empty: all."""
    description: str
    created_ms: int
    expires_ms: int = 0
    """0: it does not expire."""
    old_secret_ends_ms: int = 0
    """The end of the secret before the last rotation; it may be in the past. 0: there is none."""
    last_used_ms: int = 0
    """To the hour. 0: never used, or not read."""
    s3_secret_created_ms: int = 0
    """0: S3 clients cannot use the key."""
    old_s3_secret_ends_ms: int = 0
    """The end of the S3 secret before the last rotation; it may be in the past. 0: there is none."""
    buckets: tuple[str, ...] = ()
    """The buckets that are a branch for this key, as `NAME=REPOSITORY:BRANCH`."""


class KeyStore(Protocol):
    """The KV of the keys, and the audit log that every change of a key needs. A lake is one."""

    @property
    def kv(self) -> KV: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def audit(self) -> AuditLog: ...


class NewKey(NamedTuple):
    key: AccessKey
    secret: str
    """Shown once. It cannot be read again."""


def create_key(
    store: KeyStore,
    role: Role,
    *,
    repositories: Sequence[str] = (),
    description: str = "",
    id: str | None = None,  # noqa: A002  # the field's word
    secret: str | None = None,
    expires_ms: int = 0,
    buckets: Sequence[str] = (),
) -> NewKey:
    """Create a key. `expires_ms`: the time from which it is invalid; 0: it does not expire. `buckets`: what is a branch
    for this key only, as `NAME=REPOSITORY:BRANCH`.

    Raises AlreadyExists, InvalidName, Invalid (a secret that is too short, an expiry that has passed, a bucket of a
    repository that the key may not use), AuditUnavailable, as all changes do.
    """
    pinned = parse_pinned_buckets(buckets)
    for bucket in pinned.values():
        if repositories and bucket.repository not in repositories:
            raise Invalid(
                f"the bucket {bucket.name!r} is pinned to the repository {bucket.repository!r}, which the key may not "
                "use; allow it, too"
            )
    if expires_ms and expires_ms <= store.clock.now_ms():
        raise Invalid(f"the access key would have expired at {format_utc(expires_ms)} already; give a later time")
    key_id = id if id is not None else new_id()
    new_key_secret = secret if secret is not None else new_secret()
    record = _new_record(
        store.clock, role, repositories, description, _check_secret(key_id, new_key_secret), expires_ms, tuple(buckets)
    )
    with store.audit.change("key.create", target=key_id, after=audit_values(record)):
        if not store.kv.set_if(keys.access_key(key_id), ABSENT, encode(record)):
            raise AlreadyExists(f"access key {key_id!r} exists already; choose another id, or revoke it first")
    return NewKey(display_key(key_id, record), new_key_secret)


def ensure_key(store: KeyStore, id: str, secret: str) -> AccessKey:  # noqa: A002  # likewise
    """Return an operator's key with this id and this secret. Create it, or change it if it has another secret.

    It does not bring back the old secret of a rotation. Raises Conflict if that secret has ended; InvalidName, Invalid,
    Contention.
    """
    key = keys.access_key(_check_new_id(id))
    for _ in range(_ATTEMPTS):
        raw = store.kv.get(key)
        record = decode_optional(raw, AccessKeyRecord)
        proven = find_secret(record, secret) if record is not None else None
        if proven is not None and has_ended(proven, store.clock.now_ms()):
            raise Conflict(
                f"the secret of access key {id!r} ended at {format_utc(proven.ends_ms)}, after a rotation; give its "
                "new secret"
            )
        if record is not None and proven is not None and record.role == Role.OPERATOR:
            return display_key(id, record)
        new_record = _new_record(
            store.clock, Role.OPERATOR, (), "from the environment of the service", _check_secret(id, secret)
        )
        # who had fewer rights does not get more by the S3 secret
        if record is not None and record.role == Role.OPERATOR:
            new_record = msgspec.structs.replace(new_record, s3_secrets=record.s3_secrets, buckets=record.buckets)
        if _replace_key(store, "key.set", id, raw, new_record):
            return display_key(id, new_record)
    raise _contention(id)


def rotate_secret(store: KeyStore, id: str, *, overlap_ms: int) -> NewKey:  # noqa: A002  # likewise
    """Give the key a new secret. The old one is valid for `overlap_ms` more, then ends with its tokens; 0: it ends at
    once.

    Raises NotFound, Contention, and Conflict if the key has two valid secrets already and `overlap_ms` is not 0.
    """
    secret, salt = new_secret(), secrets.token_bytes(_SALT_BYTES)

    def replace_secret(record: AccessKeyRecord) -> AccessKeyRecord:
        now_ms = store.clock.now_ms()
        if overlap_ms and record.previous_secret is not None and not has_ended(record.previous_secret, now_ms):
            raise Conflict(
                f"access key {id!r} has two secrets until {format_utc(record.previous_secret.ends_ms)}; wait for "
                f"that, or end the old one with: refstore keys revoke {id} --only old-secret"
            )
        previous = SecretHash(record.salt, record.hash, now_ms + overlap_ms)
        return msgspec.structs.replace(record, salt=salt, hash=_hash_secret(salt, secret), previous_secret=previous)

    return NewKey(display_key(id, change_key(store, "key.rotate", id, replace_secret)), secret)


def end_overlap(store: KeyStore, id: str) -> AccessKey:  # noqa: A002  # likewise
    """End the old secret of a rotation now, with its tokens. Raises NotFound, Contention, and Conflict if there is
    none.
    """

    def end_previous(record: AccessKeyRecord) -> AccessKeyRecord:
        now_ms = store.clock.now_ms()
        if record.previous_secret is None or has_ended(record.previous_secret, now_ms):
            raise Conflict(f"access key {id!r} has one secret only; make a second one with: refstore keys rotate {id}")
        return msgspec.structs.replace(record, previous_secret=record.previous_secret._replace(ends_ms=now_ms))

    return display_key(id, change_key(store, "key.end-overlap", id, end_previous))


def end_tokens(store: KeyStore, id: str) -> AccessKey:  # noqa: A002  # likewise
    """End all bearer tokens that the key has got so far. Its secret stays valid. Raises NotFound, Contention."""

    def end_tokens_of(record: AccessKeyRecord) -> AccessKeyRecord:
        return msgspec.structs.replace(record, token_generation=record.token_generation + 1)

    return display_key(id, change_key(store, "key.end-tokens", id, end_tokens_of))


def find_key(kv: KV, id: str) -> AccessKeyRecord | None:  # noqa: A002  # likewise
    """Return the record of a key; None if it does not exist, or its id is invalid."""
    return decode_optional(kv.get(keys.access_key(id)), AccessKeyRecord) if _ID.fullmatch(id) else None


def find_secret(record: AccessKeyRecord, secret: str) -> SecretHash | None:
    """Return the secret of the key that matches, ended or not; None if none does.

    The time that it takes shows neither how much of the secret was right, nor how many secrets the key has.
    """
    matching = None
    for candidate in (SecretHash(record.salt, record.hash), record.previous_secret or _NO_SECRET):
        if hmac.compare_digest(_hash_secret(candidate.salt, secret), candidate.hash) and candidate is not _NO_SECRET:
            matching = matching or candidate
    return matching


def find_token_secret(record: AccessKeyRecord, token_mark: str) -> SecretHash | None:
    """Return the secret for which the token with this mark was issued, ended or not. None: there is none, or the key's
    tokens were ended.
    """
    token_bytes = token_mark.encode(errors="surrogatepass")
    for candidate in (SecretHash(record.salt, record.hash), record.previous_secret):
        if candidate is not None and hmac.compare_digest(make_token_mark(record, candidate).encode(), token_bytes):
            return candidate
    return None


def make_token_mark(record: AccessKeyRecord, bought_with: SecretHash) -> str:
    """Return the mark that ties a bearer token to the secret for which it was issued. It differs for two keys made
    under one id, for two secrets, and for two generations of tokens. It reveals nothing about the secret.
    """
    generation = str(record.token_generation).encode() if record.token_generation else b""
    return hmac.digest(bought_with.salt, b"the making of this key" + generation, "sha256").hex()[:32]


def has_ended(secret: SecretHash, now_ms: int) -> bool:
    """Return whether the secret is no longer valid."""
    return 0 < secret.ends_ms <= now_ms


def refusal(id: str, record: AccessKeyRecord, proven: SecretHash, now_ms: int) -> str:  # noqa: A002  # likewise
    """Return why the key is not valid for a caller that proved this secret; '' if it is valid. Only such a caller may
    see it.
    """
    if 0 < record.expires_ms <= now_ms:
        return f"access key {id!r} expired at {format_utc(record.expires_ms)}; ask an operator for another"
    if has_ended(proven, now_ms):
        at = format_utc(proven.ends_ms)
        return f"this secret of access key {id!r} ended at {at}, after a rotation; use its new secret"
    return ""


def note_use(kv: KV, clock: Clock, id: str) -> None:  # noqa: A002  # likewise
    """Record that the key is in use now. Callers do so at most once an hour."""
    kv.set(keys.access_key_use(id), encode(StampRecord(clock.now_ms())))


def scan_keys(kv: KV) -> Iterator[AccessKey]:
    """Yield all keys in the order of their ids, with the time of their last use."""
    uses = {name: decode(value, StampRecord).at_ms for name, value in kv.scan_all(keys.ACCESS_KEY_USES)}
    for name, value in kv.scan_all(keys.ACCESS_KEYS):
        key, used_ms = display_key(name, decode(value, AccessKeyRecord)), uses.get(name, 0)
        # An earlier use belongs to another key, which had the same id.
        yield key._replace(last_used_ms=used_ms) if used_ms >= key.created_ms else key


def revoke_key(store: KeyStore, id: str) -> AccessKey:  # noqa: A002  # likewise
    """Delete the key. Raises NotFound, Contention. A service that has cached the key accepts it for at most
    `auth.KEY_SECONDS` more.
    """
    for _ in range(_ATTEMPTS):
        raw, record = _read_key(store.kv, id)
        with store.audit.change("key.revoke", target=id, before=audit_values(record)) as draft:
            draft.happened = store.kv.set_if(keys.access_key(id), raw, ABSENT)
            if draft.happened:
                store.kv.delete(keys.access_key_use(id))
        if draft.happened:
            return display_key(id, record)
    raise _contention(id)


def restrict_to_logged(record: AccessKeyRecord, logged: Mapping[str, Any], now_ms: int) -> AccessKeyRecord:
    """Return an older copy of a key with what the audit log says of its newest state, where that ends something.

    Nothing is valid for longer than it was, in the copy or by the log. A secret that was replaced since ends when the
    rotation said, or now; the new one is lost, so no secret opens the key until it is given another one. All bearer
    tokens end.
    """
    ends = {each["created_ms"]: each["ends_ms"] for each in logged["s3_secrets"]}
    s3_secrets = tuple(
        each._replace(ends_ms=_earlier_end(each.ends_ms, ends[each.created_ms]))
        for each in record.s3_secrets
        if each.created_ms in ends
    )
    restricted = msgspec.structs.replace(
        record,
        role=min(record.role, Role[logged["role"].upper()]),
        expires_ms=_earlier_end(record.expires_ms, logged["expires_ms"]),
        token_generation=max(record.token_generation, logged["token_generation"]) + 1,
        s3_secrets=s3_secrets,
        write_id=_new_write_id(),
    )
    own, previous = _salt_mark(record.salt), record.previous_secret
    if own == logged["secret_mark"]:
        if previous is not None and _salt_mark(previous.salt) == logged["old_secret_mark"]:
            previous = previous._replace(ends_ms=_earlier_end(previous.ends_ms, logged["old_secret_ends_ms"]))
        return msgspec.structs.replace(restricted, previous_secret=previous)
    ends_ms = logged["old_secret_ends_ms"] if own == logged["old_secret_mark"] else now_ms
    return msgspec.structs.replace(
        restricted,
        salt=secrets.token_bytes(_SALT_BYTES),
        hash=secrets.token_bytes(len(record.hash)),  # of no secret
        previous_secret=SecretHash(record.salt, record.hash, ends_ms or now_ms),
    )


def has_lost_secret(record: AccessKeyRecord, logged: Mapping[str, Any]) -> bool:
    """Return whether the key has another secret by the audit log than in this copy of it."""
    return _salt_mark(record.salt) != logged["secret_mark"]


def _earlier_end(one_ms: int, other_ms: int) -> int:
    """Return the earlier of two ends; 0 is none."""
    return min(one_ms, other_ms) if one_ms and other_ms else one_ms or other_ms


def new_id() -> str:
    """Return a random access key id, which is unique for all practical purposes."""
    return "RS" + secrets.token_hex(9).upper()


def new_secret() -> str:
    """Return a random secret of 240 bits."""
    return secrets.token_urlsafe(30)


def is_id(text: str) -> bool:
    """Return whether the text is a valid access key id."""
    return _ID.fullmatch(text) is not None


def has_any_key(kv: KV) -> bool:
    return bool(kv.scan(keys.ACCESS_KEYS, limit=1))


def change_key(
    store: KeyStore, action: str, id_: str, change: Callable[[AccessKeyRecord], AccessKeyRecord]
) -> AccessKeyRecord:
    """Change the key's record, with an entry in the audit log. Raises NotFound, Contention."""
    for _ in range(_ATTEMPTS):
        raw, record = _read_key(store.kv, id_)
        changed = msgspec.structs.replace(change(record), write_id=_new_write_id())
        if _replace_key(store, action, id_, raw, changed):
            return changed
    raise _contention(id_)


def _read_key(kv: KV, id_: str) -> tuple[bytes | Absent, AccessKeyRecord]:
    raw = kv.get(keys.access_key(id_)) if _ID.fullmatch(id_) else ABSENT
    record = decode_optional(raw, AccessKeyRecord)
    if record is None:
        raise _not_found(id_)
    return raw, record


def _replace_key(store: KeyStore, action: str, id_: str, raw: bytes | Absent, new: AccessKeyRecord) -> bool:
    """Replace the key's record if it has not changed since it was read. Return whether it was replaced."""
    before = decode_optional(raw, AccessKeyRecord)
    with store.audit.change(
        action, target=id_, before=audit_values(before) if before is not None else None, after=audit_values(new)
    ) as draft:
        draft.happened = store.kv.set_if(keys.access_key(id_), raw, encode(new))
    return draft.happened


def audit_values(record: AccessKeyRecord) -> dict[str, object]:
    """Return the key as the audit log shows it, without its secrets and their hashes. A salt says nothing of its
    secret, and differs with each: its mark tells which secret the key had.
    """
    previous = record.previous_secret
    return {
        "write_id": record.write_id,
        "secret_mark": _salt_mark(record.salt),
        "old_secret_mark": _salt_mark(previous.salt) if previous is not None else "",
        "role": Role(record.role).name.lower(),
        "repositories": list(record.repositories),
        "buckets": list(record.buckets),
        "description": record.description,
        "created_ms": record.created_ms,
        "expires_ms": record.expires_ms,
        "old_secret_ends_ms": previous.ends_ms if previous is not None else 0,
        "token_generation": record.token_generation,
        "s3_secrets": [{"created_ms": each.created_ms, "ends_ms": each.ends_ms} for each in record.s3_secrets],
    }


def _new_write_id() -> str:
    return secrets.token_hex(8)


def _salt_mark(salt: bytes) -> str:
    return hashlib.sha256(salt).hexdigest()[:16]


def _not_found(id_: str) -> NotFound:
    return NotFound(f"access key {id_[:80]!r} does not exist; list them with: refstore keys list")


def _contention(id_: str) -> Contention:
    return Contention(f"other clients kept changing access key {id_[:80]!r}; make the same call again")


def _check_secret(id_: str, secret: str) -> str:
    _check_new_id(id_)
    if len(secret) < SECRET_CHARACTERS_MIN:
        raise Invalid(
            f"the secret of access key {id_!r} has {len(secret)} characters; it needs at least "
            f"{SECRET_CHARACTERS_MIN}, at random"
        )
    return secret


def _check_new_id(id_: str) -> str:
    if not _ID.fullmatch(id_):
        raise InvalidName(
            f"{id_[:80]!r} is not an access key id; use 3 to 128 letters, digits and '_ . -', starting with a letter "
            "or digit"
        )
    return id_


def _new_record(
    clock: Clock,
    role: Role,
    repositories: Sequence[str],
    description: str,
    secret: str,
    expires_ms: int = 0,
    buckets: tuple[str, ...] = (),
) -> AccessKeyRecord:
    salt = secrets.token_bytes(_SALT_BYTES)
    only = tuple(sorted({ids.repository_name(name) for name in repositories}))
    hashed = _hash_secret(salt, secret)
    return AccessKeyRecord(
        salt,
        hashed,
        int(role),
        clock.now_ms(),
        only,
        description,
        expires_ms,
        write_id=_new_write_id(),
        buckets=tuple(sorted(buckets)),
    )


def _hash_secret(salt: bytes, secret: str) -> bytes:
    return hmac.digest(salt, secret.encode(errors="surrogatepass"), "sha256")


def display_key(id_: str, record: AccessKeyRecord) -> AccessKey:
    """Return the key as it is shown, without its secrets."""
    old_ends_ms = record.previous_secret.ends_ms if record.previous_secret is not None else 0
    return AccessKey(
        id_,
        Role(record.role),
        record.repositories,
        record.description,
        record.created_ms,
        record.expires_ms,
        old_ends_ms,
        s3_secret_created_ms=record.s3_secrets[0].created_ms if record.s3_secrets else 0,
        old_s3_secret_ends_ms=record.s3_secrets[1].ends_ms if len(record.s3_secrets) > 1 else 0,
        buckets=record.buckets,
    )


_NO_SECRET: Final = SecretHash(secrets.token_bytes(_SALT_BYTES), secrets.token_bytes(32))
