"""S3 secrets: a second kind of secret of access keys, with which S3 clients sign.

Whoever checks a signature needs the secret itself, so a hash does not do. Each secret is encrypted with AES-GCM under a
server key that the KV does not have: a copy of the KV gives no access. It is bound to the access key's id, so it cannot
be moved to another key. An S3 secret opens nothing but the S3 gateway, and an access key has none until one is made.

It is made, rotated and ended as the key's own secret is (`access_keys.py`), and ends with its key.
"""

from __future__ import annotations

import hmac
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from refstore.core.clock import Clock, format_utc
from refstore.core.key_files import read_key
from refstore.errors import Conflict, CorruptRecord, Invalid, MissingExtra
from refstore.kv.base import KV
from refstore.records.lake_records import AccessKeyRecord, EncryptedSecret, SecretHash
from refstore.service import access_keys
from refstore.service.access_keys import KeyStore, NewKey

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

FILE: Final = "s3.key"
_NONCE_BYTES: Final = 12
_NO_HASH: Final = SecretHash(b"", b"")


class S3Caller(NamedTuple):
    """An access key and the S3 secrets that are valid for it now."""

    record: AccessKeyRecord
    secrets: tuple[str, ...]


class SecretCipher:
    """Encrypt and decrypt secrets under one server key."""

    def __init__(self, server_key: bytes) -> None:
        """Raises MissingExtra."""
        # The server key is long and random, so one keyed hash makes keys of the right size from it.
        self._cipher = _make_cipher(hmac.digest(server_key, b"refstore S3 secrets: AES-256-GCM", "sha256"))
        self._mark = hmac.digest(server_key, b"refstore S3 secrets: mark", "sha256")[:8]

    def encrypt(self, key_id: str, secret: str, created_ms: int) -> EncryptedSecret:
        """Encrypt a secret of this access key."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        ciphertext = self._cipher.encrypt(nonce, secret.encode(), key_id.encode())
        return EncryptedSecret(nonce, ciphertext, self._mark, created_ms)

    def can_decrypt(self, secret: EncryptedSecret) -> bool:
        """Say whether the secret was encrypted under this server key."""
        return secret.server_key_mark == self._mark

    def decrypt(self, key_id: str, secret: EncryptedSecret) -> str:
        """Return a secret of this access key. Raises Invalid if it was encrypted under another server key, and
        CorruptRecord.
        """
        from cryptography.exceptions import InvalidTag

        if not self.can_decrypt(secret):
            raise Invalid(
                f"the S3 secret of access key {key_id!r} is encrypted under another server key; set s3.secrets_key to "
                f"that one, or make a new secret with: refstore keys rotate {key_id} --s3 --now"
            )
        try:
            return self._cipher.decrypt(secret.nonce, secret.ciphertext, key_id.encode()).decode()
        except (InvalidTag, ValueError) as error:  # ValueError: a nonce that is none
            raise CorruptRecord(
                f"the S3 secret of access key {key_id!r} was changed in the KV; make a new one with: "
                f"refstore keys rotate {key_id} --s3 --now"
            ) from error


def read_cipher(setting: str, data: Path | None) -> SecretCipher | None:
    """Return the cipher of the setting `s3.secrets_key`, or of the file in the embedded default's folder, which is made
    if it is missing. None: the stores were given by URL, and no key is set. Raises InvalidSettings, MissingExtra.
    """
    server_key = read_key(setting, data, FILE, "the server key of S3 secrets")
    return SecretCipher(server_key) if server_key is not None else None


def make_s3_secret(
    store: KeyStore, cipher: SecretCipher, key_id: str, *, overlap_ms: int, secret: str | None = None
) -> NewKey:
    """Give the key an S3 secret. One that it has is valid for `overlap_ms` more; 0: it ends at once.

    Raises NotFound, Contention, Invalid (a secret that is too short), and Conflict if the key has two valid S3 secrets
    already and `overlap_ms` is not 0.
    """
    new_secret = secret if secret is not None else access_keys.new_secret()
    if len(new_secret) < access_keys.SECRET_CHARACTERS_MIN:
        raise Invalid(f"an S3 secret needs at least {access_keys.SECRET_CHARACTERS_MIN} characters, at random")

    def add_secret(record: AccessKeyRecord) -> AccessKeyRecord:
        now_ms = store.clock.now_ms()
        valid = [each for each in record.s3_secrets if not _has_ended(each, now_ms)]
        if overlap_ms and len(valid) > 1:
            raise Conflict(
                f"access key {key_id!r} has two S3 secrets until {format_utc(valid[1].ends_ms)}; wait for that, or end "
                f"the old one with: refstore keys revoke {key_id} --only old-s3-secret"
            )
        old = [each._replace(ends_ms=now_ms + overlap_ms) for each in valid[:1] if overlap_ms]
        encrypted = cipher.encrypt(key_id, new_secret, now_ms)
        return msgspec.structs.replace(record, s3_secrets=(encrypted, *old))

    changed = access_keys.change_key(store, "key.s3-secret", key_id, add_secret)
    return NewKey(access_keys.display_key(key_id, changed), new_secret)


def end_s3_secrets(store: KeyStore, key_id: str, *, only_old: bool = False) -> access_keys.AccessKey:
    """End the key's S3 secrets now. `only_old`: only the one before the last rotation. Raises NotFound, Contention, and
    Conflict if there is none.
    """

    def remove_secrets(record: AccessKeyRecord) -> AccessKeyRecord:
        kept = record.s3_secrets[:1] if only_old else ()
        if not any(not _has_ended(each, store.clock.now_ms()) for each in record.s3_secrets[len(kept) :]):
            which = "no old S3 secret" if only_old else "no S3 secret"
            raise Conflict(f"access key {key_id!r} has {which}; make one with: refstore keys rotate {key_id} --s3")
        return msgspec.structs.replace(record, s3_secrets=kept)

    return access_keys.display_key(key_id, access_keys.change_key(store, "key.end-s3-secrets", key_id, remove_secrets))


def read_secrets(kv: KV, clock: Clock, cipher: SecretCipher, key_id: str) -> S3Caller | None:
    """Return an access key and its S3 secrets that are valid now, at most two; None if there is no such key.

    Raises Invalid (another server key), CorruptRecord. Whether the key has expired, `explain_refusal` says.
    """
    record = access_keys.find_key(kv, key_id)
    if record is None:
        return None
    now_ms = clock.now_ms()
    valid = [each for each in record.s3_secrets if not _has_ended(each, now_ms)]
    # After a change of the server key, the old secret of a rotation cannot be read, and the new one goes on.
    readable = [each for each in valid if cipher.can_decrypt(each)] or valid
    return S3Caller(record, tuple(cipher.decrypt(key_id, each) for each in readable))


def explain_refusal(key_id: str, record: AccessKeyRecord, now_ms: int) -> str:
    """Return why the key is not valid for a caller whose signature holds; '' if it is valid."""
    return access_keys.refusal(key_id, record, _NO_HASH, now_ms)


def _has_ended(secret: EncryptedSecret, now_ms: int) -> bool:
    return 0 < secret.ends_ms <= now_ms


def _make_cipher(key: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise MissingExtra("s3-gateway", "S3 secrets") from error
    return AESGCM(key)
