"""Prove who sends a request by its signature, before its body is read and before any store is asked but for the key.

The S3 secrets of an access key are looked up once and then cached for `KEY_SECONDS`. Signatures that do not hold are
counted as wrong secrets are (`login_throttle.py`). From where a key's signature held before, however long ago, a right
one is let in at any time, so that nobody can lock out a key that is seldom used. All others wait behind too many wrong
ones, whether theirs is right or not.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from refstore.records.lake_records import AccessKeyRecord
from refstore.service import access_keys, s3_secrets
from refstore.service.access_keys import Role
from refstore.service.s3_secrets import S3Caller
from refstore_http.http_errors import TooManyWrongSecrets, hide_faults
from refstore_http.login_throttle import WRONG_SECRETS_MAX, LoginCaller, LoginThrottle, site_of
from refstore_http.principals import KEY_SECONDS, KeyLastUse, Principal
from refstore_http.service import Service
from refstore_s3 import signature_v4
from refstore_s3.s3_errors import S3Error
from refstore_s3.s3_requests import AuthenticatedRequest, S3Request
from refstore_s3.signature_v4 import SignatureClaims, SignedRequest, VerifiedRequest

KEYS_MAX: Final = 4096
"""Access keys that are cached."""
NOTED_SECONDS: Final = 150.0
"""How often the use of a key is recorded, for each caller."""
PROVEN_KEYS_MAX: Final = 4096
PROVEN_SITES_MAX: Final = 64
"""Of one key, so that the holder of a key cannot push out others by using many addresses."""


SecretReader = Callable[[str], S3Caller | None]
"""Reads the S3 secrets of an access key; None: there is no such key."""


class Authentication(Protocol):
    async def authenticate(self, request: S3Request, address: str) -> AuthenticatedRequest:
        """Return who sent the request, from this address. Raises S3Error, RefstoreError."""
        ...


class KeyAuthentication:
    """Authenticate the requests of one process; used by its event loop."""

    def __init__(self, service: Service, read_secrets: SecretReader) -> None:
        self._service = service
        self._read_secrets = read_secrets
        self._keys: OrderedDict[str, tuple[S3Caller, float]] = OrderedDict()
        self._proven: OrderedDict[str, OrderedDict[bytes, float]] = OrderedDict()
        """When the use of a key was noted last, by the sites from which its signature held."""
        self._guesses = LoginThrottle(service.lake.clock, WRONG_SECRETS_MAX)
        self._uses = KeyLastUse(service.lake)

    async def authenticate(self, request: S3Request, address: str) -> AuthenticatedRequest:
        signed = request.to_sign
        claims = signature_v4.read_claims(signed)
        key_id = claims.credential.key_id
        if "x-amz-security-token" in request.headers:
            raise S3Error("InvalidToken", "session tokens are not supported; sign with an access key's S3 secret")
        if not access_keys.is_id(key_id):
            raise _unknown_key()
        request.claimed_key = key_id
        caller = LoginCaller(key_id, address)
        too_many = self._find_too_many(caller)
        try:
            record, verified = await self._verify(signed, claims)
        except S3Error as error:
            if error.code in ("InvalidAccessKeyId", "SignatureDoesNotMatch"):
                self._guesses.record_wrong_secret(caller)
                if too_many is not None:
                    raise too_many from None
            raise
        if self._is_new(caller):
            self._service.run_later(lambda: self._uses.record_use(key_id, record.created_ms))
        if refusal := s3_secrets.explain_refusal(key_id, record, self._service.lake.clock.now_ms()):
            raise S3Error("AccessDenied", refusal)
        return AuthenticatedRequest(
            Principal(key_id, Role(record.role), record.repositories, record.created_ms, record.buckets), verified
        )

    def _find_too_many(self, caller: LoginCaller) -> TooManyWrongSecrets | None:
        """Return what a wrong signature is answered with after too many. Raises it if none held from there before."""
        try:
            self._guesses.check(caller)
        except TooManyWrongSecrets as error:
            if site_of(caller.address) not in self._proven.get(caller.key_id, ()):
                raise
            return error
        return None

    async def _verify(self, signed: SignedRequest, claims: SignatureClaims) -> tuple[AccessKeyRecord, VerifiedRequest]:
        """Verify the signature with the secrets that are cached, and if it does not hold, with those that are stored
        now: a new secret works at once. Raises S3Error.
        """
        key_id = claims.credential.key_id
        cached, until = self._keys.get(key_id, (None, 0.0))
        if cached is not None and time.monotonic() < until:
            self._keys.move_to_end(key_id)
            try:
                return cached.record, self._check(signed, claims, cached)
            except S3Error as error:
                if error.code != "SignatureDoesNotMatch":
                    raise
        with hide_faults():
            known = await self._service.run(lambda: self._read_secrets(key_id))
        self._keys.pop(key_id, None)
        if known is None:
            raise _unknown_key()
        verified = self._check(signed, claims, known)
        self._keys[key_id] = known, time.monotonic() + KEY_SECONDS
        while len(self._keys) > KEYS_MAX:
            self._keys.popitem(last=False)
        return known.record, verified

    def _check(self, signed: SignedRequest, claims: SignatureClaims, known: S3Caller) -> VerifiedRequest:
        return signature_v4.verify(signed, known.secrets, self._service.lake.clock.now_ms(), claims)

    def _is_new(self, caller: LoginCaller) -> bool:
        """Remember that a signature of the caller held; return whether the use of the key is to be noted."""
        sites = self._proven.setdefault(caller.key_id, OrderedDict())
        self._proven.move_to_end(caller.key_id)
        site, now = site_of(caller.address), time.monotonic()
        is_new = sites.get(site, -NOTED_SECONDS) + NOTED_SECONDS <= now
        if is_new:
            sites[site] = now
        sites.move_to_end(site)
        while len(sites) > PROVEN_SITES_MAX:
            sites.popitem(last=False)
        while len(self._proven) > PROVEN_KEYS_MAX:
            self._proven.popitem(last=False)
        return is_new


def _unknown_key() -> S3Error:
    return S3Error("InvalidAccessKeyId", "no such access key; list the keys with: refstore keys list")
