"""The token of an issued physical address: a JWT (RFC 7519) that binds repository, branch, path and address.

The signature proves that refstore issued the address; the reference key ensures that it is linked once (rule 10). An
operator who changed the signing keys removes the old one after `issue_seconds`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import NamedTuple

from refstore.core import signed_tokens
from refstore.core.clock import Clock, format_utc
from refstore.core.ids import Address, BranchName, Path, RepositoryId, own_address
from refstore.core.signed_tokens import UnknownSigningKey
from refstore.core.signing_keys import SigningKey
from refstore.errors import InvalidSettings, InvalidToken
from refstore.kv.base import ABSENT, KV
from refstore.records import keys


class IssuedAddressClaims(NamedTuple):
    repo: RepositoryId
    branch: BranchName
    path: Path
    address: Address
    token_id: str
    expires_ms: int


class AddressTokenIssuer:
    def __init__(self, signing_keys: Callable[[], Sequence[SigningKey]], clock: Clock) -> None:
        """`signing_keys`: who issues and links nothing needs none, and makes none."""
        self._signing_keys = signing_keys
        self._clock = clock

    def sign(self, claims: IssuedAddressClaims) -> str:
        payload = {
            "aud": claims.repo,
            "jti": claims.token_id,
            "iat": self._clock.now_ms() // 1000,
            "exp": -(-claims.expires_ms // 1000),
            "branch": claims.branch,
            "path": claims.path,
            "address": claims.address,
        }
        return signed_tokens.sign(payload, self._signing_keys()[0])

    def verify(self, token: str, repo: RepositoryId, branch: BranchName, path: Path) -> IssuedAddressClaims:
        """Return the claims of a valid token for this repository, branch and path. Raises InvalidToken."""
        try:
            payload = signed_tokens.verify(token, self._signing_keys(), audience=repo, required=["jti", "iat"])
            claims = IssuedAddressClaims(
                repo,
                payload["branch"],
                payload["path"],
                own_address(payload["address"]),
                payload["jti"],
                int(payload["exp"]) * 1000,
            )
        except UnknownSigningKey as error:
            raise InvalidToken("the token was not signed with a key in use here; get a new physical address") from error
        except Exception as error:
            # whatever error a hostile token causes in the parser, the caller gets the same message
            raise InvalidToken("the token is not valid for this repository; get a new physical address") from error
        if claims.expires_ms <= self._clock.now_ms():
            raise InvalidToken(
                f"the token expired at {format_utc(claims.expires_ms)}; get a new physical address and upload again"
            )
        if claims.branch != branch or claims.path != path:
            raise InvalidToken("the token was issued for another branch or path; link it where it was issued for")
        return claims


def signing_keys_of(kv: KV, configured: Sequence[SigningKey]) -> Sequence[SigningKey]:
    """Return the configured keys, or else a key that is made on first use and shared through the KV."""
    if configured:
        return configured
    raw = kv.get(keys.SIGNING_KEYS)
    if raw is ABSENT:
        kv.set_if(keys.SIGNING_KEYS, ABSENT, secrets.token_hex(4).encode() + b":" + secrets.token_hex(32).encode())
        raw = kv.get(keys.SIGNING_KEYS)
        if raw is ABSENT:
            raise InvalidSettings(
                "the KV did not keep the signing key that was written to it; check the KV's eviction and persistence"
            )
    kid, _, secret = raw.partition(b":")
    return (SigningKey(kid.decode(), secret),)
