"""The token of an issued physical address: a JWT (RFC 7519) that binds repository, branch, path and address.

The signature proves that refstore issued the address; the reference key ensures that it is linked once (rule 10). One
algorithm, HS256, is pinned: a token that asks for another, or for none, is refused before its claims are read. The
first key signs, and every key verifies, selected by its id. So an operator rotates keys by putting the new one first,
and by removing the old one after `issue_seconds`.

`jwt` is imported only where it is used: with its cryptography package it takes 8 MB, which most processes do not need.
"""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64decode
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from refstore.core.clock import Clock, utc_text
from refstore.core.ids import Address, BranchName, Path, RepositoryId, own_address
from refstore.core.signing_keys import SigningKey
from refstore.errors import InvalidSettings, InvalidToken
from refstore.kv.base import ABSENT, KV, Key

ISSUER: Final = "refstore"
ALGORITHM: Final = "HS256"
_HEADER_CHARACTERS_MAX: Final = 256
"""The longest header of a token; ours is far shorter."""
_KEYS: Final = Key("configuration", "signing-keys")


class _Header(msgspec.Struct):
    kid: str


class Claims(NamedTuple):
    repo: RepositoryId
    branch: BranchName
    path: Path
    address: Address
    token_id: str
    expires_ms: int


class Issuer:
    def __init__(self, keys: Sequence[SigningKey], clock: Clock) -> None:
        if not keys:
            raise InvalidSettings("at least one signing key is needed to issue physical addresses")
        self._signing = keys[0]
        self._by_id = {key.kid: key for key in keys}
        self._clock = clock

    def sign(self, claims: Claims) -> str:
        import jwt

        payload = {
            "iss": ISSUER,
            "aud": claims.repo,
            "jti": claims.token_id,
            "iat": self._clock.now_ms() // 1000,
            "exp": -(-claims.expires_ms // 1000),
            "branch": claims.branch,
            "path": claims.path,
            "address": claims.address,
        }
        return jwt.encode(payload, self._signing.secret, algorithm=ALGORITHM, headers={"kid": self._signing.kid})

    def verify(self, token: str, repo: RepositoryId, branch: BranchName, path: Path) -> Claims:
        """Return the claims of a valid token for this repository, branch and path. Raises InvalidToken."""
        import jwt

        try:
            key = self._by_id.get(kid_of(token))
            if key is None:
                raise InvalidToken("the token was not signed with a key in use here; get a new physical address")
            payload = jwt.decode(
                token,
                key.secret,
                algorithms=[ALGORITHM],
                issuer=ISSUER,
                audience=repo,
                # the expiry is checked below, by the clock that is passed in
                options={"require": ["iss", "aud", "jti", "iat", "exp"], "verify_exp": False, "verify_iat": False},
            )
            claims = Claims(
                repo,
                payload["branch"],
                payload["path"],
                own_address(payload["address"]),
                payload["jti"],
                int(payload["exp"]) * 1000,
            )
        except InvalidToken:
            raise
        except Exception as error:
            # whatever error a hostile token causes in the parser, the caller gets the same message
            raise InvalidToken("the token is not valid for this repository; get a new physical address") from error
        if claims.expires_ms <= self._clock.now_ms():
            raise InvalidToken(
                f"the token expired at {utc_text(claims.expires_ms)}; get a new physical address and upload again"
            )
        if claims.branch != branch or claims.path != path:
            raise InvalidToken("the token was issued for another branch or path; link it where it was issued for")
        return claims


def kid_of(token: str) -> str:
    """Return the key id that a token claims; only the signature, checked with that key, proves it.

    All tokens of a key begin with the same header, so it is parsed once. Raises ValueError, msgspec.MsgspecError.
    """
    return _kid_in(token[:_HEADER_CHARACTERS_MAX].partition(".")[0])


@lru_cache(maxsize=64)
def _kid_in(header: str) -> str:
    return msgspec.json.decode(urlsafe_b64decode(header + "=" * (-len(header) % 4)), type=_Header).kid


def keys_of(kv: KV, configured: Sequence[SigningKey]) -> Sequence[SigningKey]:
    """Return the configured keys, or else a key that is made on first use and shared through the KV."""
    if configured:
        return configured
    raw = kv.get(_KEYS)
    if raw is ABSENT:
        kv.set_if(_KEYS, ABSENT, secrets.token_hex(4).encode() + b":" + secrets.token_hex(32).encode())
        raw = kv.get(_KEYS)
        if raw is ABSENT:
            raise InvalidSettings(
                "the KV did not keep the signing key that was written to it; check the KV's eviction and persistence"
            )
    kid, _, secret = raw.partition(b":")
    return (SigningKey(kid.decode(), secret),)
