"""Sign and verify JSON Web Tokens (RFC 7519): of issued addresses, of logins and of signed URLs.

PyJWT does it. One algorithm, HS256, is pinned: a token that asks for another, or for none, is refused. The first key
signs, and every key verifies, selected by its id. So an operator rotates keys by putting the new one first, and by
removing the old one when its tokens have expired. Who asks must say which audience a token is for, so that none passes
for a token of another kind.

`jwt` is imported only where it is used: with its cryptography package it takes 8 MB, which most processes do not need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from refstore.core.signing_keys import SigningKey

ISSUER: Final = "refstore"
_ALGORITHM: Final = "HS256"
_HEADER_CHARACTERS_MAX: Final = 256
"""The longest header of a token; ours is far shorter. Anybody can make us parse one."""
_HEADER: Final = {"alg", "kid", "typ"}
"""The fields of our headers. Others could change what a signature means (RFC 7515, 4.1.11; RFC 7797)."""


class UnknownSigningKey(Exception):
    """The token names a signing key that is not in use here."""


class InvalidSignedToken(Exception):
    """The token is not one of ours."""


def sign(claims: Mapping[str, object], key: SigningKey) -> str:
    """Return the claims as a token of this issuer. Times are in seconds since the epoch."""
    import jwt

    return jwt.encode({"iss": ISSUER, **claims}, key.secret, algorithm=_ALGORITHM, headers={"kid": key.kid})


def verify(token: str, keys: Sequence[SigningKey], *, audience: str, required: Sequence[str]) -> dict[str, Any]:
    """Return the claims of a token that one of the keys signed for this audience, with all the required claims.

    The caller compares `exp` with the clock of its own context. Raises UnknownSigningKey; any other exception means
    that the token is not valid, because a hostile one can make a parser raise anything.
    """
    import jwt

    if "=" in token:
        raise InvalidSignedToken("it is padded; a token has one spelling")
    kid = _read_kid(token.partition(".")[0][: _HEADER_CHARACTERS_MAX + 1])
    key = next((key for key in keys if key.kid == kid), None)
    if key is None:
        raise UnknownSigningKey(kid)
    return jwt.decode(
        token,
        key.secret,
        algorithms=[_ALGORITHM],
        audience=audience,
        issuer=ISSUER,
        options={
            "require": ["iss", "aud", "exp", *required],
            "verify_exp": False,
            "verify_iat": False,
            "strict_aud": True,
        },
    )


def unverified_claims(token: str) -> dict[str, Any]:
    """Return what a token claims, for a log: nothing of it is proven. Raises any exception for what is no token."""
    import jwt

    return jwt.decode(token, options={"verify_signature": False})


@lru_cache(maxsize=64)
def _read_kid(header: str) -> object:
    """Return the key id that a header claims; only the signature proves it. All tokens of a key begin alike."""
    import jwt

    if len(header) > _HEADER_CHARACTERS_MAX:
        raise InvalidSignedToken("its header is too long")
    fields = jwt.get_unverified_header(f"{header}..")
    if not fields.keys() <= _HEADER:
        raise InvalidSignedToken("its header has more than an algorithm and a key")
    return fields["kid"]
