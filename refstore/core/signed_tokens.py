"""Sign and verify JSON Web Tokens (RFC 7519): of issued addresses, of logins and of signed URLs.

One algorithm, HS256, is pinned: a token that asks for another, or for none, is refused. PyJWT signs. A token is
verified by signing its text again and comparing the two signatures, before anything but its header is parsed
(docs/decisions/0137). The first key signs, and every key verifies, selected by its id. So an operator rotates keys by
putting the new one first, and by removing the old one when its tokens have expired. Who asks must say which audience a
token is for, so that none passes for a token of another kind.

`jwt` is imported only where it is used: with its cryptography package it takes 8 MB, which most processes do not need.
"""

from __future__ import annotations

import hmac
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal

import msgspec

from refstore.core.signing_keys import SigningKey

ISSUER: Final = "refstore"
_ALGORITHM: Final = "HS256"
_CLAIMS: Final = msgspec.json.Decoder(dict[str, Any])
_HEADER_CHARACTERS_MAX: Final = 256
"""The longest header of a token; ours is far shorter."""


class UnknownSigningKey(Exception):
    """The token names a signing key that is not in use here."""


class NotValid(Exception):
    """The token is not one of ours, or not for this."""


class _Header(msgspec.Struct):
    """A header is refused with anything that would change what its signature means (RFC 7515, 4.1.11; RFC 7797)."""

    alg: Literal["HS256"]
    kid: str
    crit: msgspec.UnsetType = msgspec.UNSET
    b64: msgspec.UnsetType = msgspec.UNSET


def sign(claims: Mapping[str, object], key: SigningKey) -> str:
    """Return the claims as a token of this issuer. Times are in seconds since the epoch."""
    import jwt

    return jwt.encode({"iss": ISSUER, **claims}, key.secret, algorithm=_ALGORITHM, headers={"kid": key.kid})


def verify(token: str, keys: Sequence[SigningKey], *, audience: str, required: Sequence[str]) -> dict[str, Any]:
    """Return the claims of a token that one of the keys signed for this audience, with all the required claims.

    The caller compares `exp` with the clock of its own context. Raises UnknownSigningKey; any other exception means
    that the token is not valid, because a hostile one can make a parser raise anything. Source: RFC 7515, 5.2, and
    RFC 7519, 4.1 and 7.2.
    """
    signed, _, signature = token.rpartition(".")
    header, _, payload = signed.partition(".")
    kid = _kid_in(header[:_HEADER_CHARACTERS_MAX])
    key = next((key for key in keys if key.kid == kid), None)
    if key is None:
        raise UnknownSigningKey(kid)
    if not hmac.compare_digest(_signature(signed, key), signature.encode()):
        raise NotValid("its signature is wrong")
    claims = _CLAIMS.decode(_decoded(payload))
    if claims.get("iss") != ISSUER or claims.get("aud") != audience:
        raise NotValid("it is for something else")
    if missing := [name for name in ("exp", *required) if claims.get(name) is None]:
        raise NotValid(f"it has no {missing}")
    if not all(isinstance(claims.get(name, ""), str) for name in ("jti", "sub")):
        raise NotValid("jti and sub are text")
    if int(claims.get("nbf", 0)) > time.time():
        raise NotValid("it is not valid yet")
    return claims


def _signature(signed: str, key: SigningKey) -> bytes:
    return urlsafe_b64encode(hmac.digest(key.secret, signed.encode(), "sha256")).rstrip(b"=")


def _decoded(part: str) -> bytes:
    return urlsafe_b64decode(part + "=" * (-len(part) % 4))


def unverified_claims(token: str) -> dict[str, Any]:
    """Return what a token claims, for a log: nothing of it is proven. Raises any exception for what is no token."""
    import jwt

    return jwt.decode(token, options={"verify_signature": False})


@lru_cache(maxsize=64)
def _kid_in(header: str) -> str:
    """Return the key id that a header claims; only the signature proves it. All tokens of a key begin alike."""
    return msgspec.json.decode(_decoded(header), type=_Header).kid
