"""Signed tokens: what `verify` lets in, which is no more than bare PyJWT does."""

from __future__ import annotations

import hmac
import json
import string
import time
from base64 import urlsafe_b64encode
from itertools import product
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refstore.core import signed_tokens
from refstore.core.signed_tokens import ISSUER, InvalidSignedToken, UnknownSigningKey
from refstore.core.signing_keys import SigningKey

KEYS = [SigningKey("new", b"n" * 32), SigningKey("old", b"o" * 32)]
AUDIENCE = "sales-01kaxyz"
CLAIMS: dict[str, Any] = {"iss": ISSUER, "aud": AUDIENCE, "exp": 1, "iat": 1, "jti": "01jti", "sub": "ü"}
REQUIRED = ["jti", "iat"]
ALPHABET = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
"""Of base64url (RFC 4648, 5)."""


def compact(header: object, claims: object, secret: bytes = KEYS[0].secret, digest: str = "sha256") -> str:
    """Sign any header and any claims, as somebody who has the secret could."""
    parts = [encoded(json.dumps(part).encode()) for part in (header, claims)]
    signed = ".".join(parts)
    return f"{signed}.{encoded(hmac.digest(secret, signed.encode(), digest))}"


def encoded(text: bytes) -> str:
    return urlsafe_b64encode(text).rstrip(b"=").decode()


def verify(token: str) -> dict[str, Any]:
    return signed_tokens.verify(token, KEYS, audience=AUDIENCE, required=REQUIRED)


def verify_by_pyjwt(token: str) -> dict[str, Any]:
    kid = jwt.get_unverified_header(token)["kid"]
    return jwt.decode(
        token,
        next(key.secret for key in KEYS if key.kid == kid),
        algorithms=["HS256"],
        issuer=ISSUER,
        audience=AUDIENCE,
        options={"require": ["iss", "aud", "exp", *REQUIRED], "verify_exp": False, "verify_iat": False},
    )


def is_let_in(token: str) -> bool:
    try:
        verify(token)
    except Exception:  # noqa: BLE001  # any of them refuses
        return False
    return True


LEFT_OUT = object()
HEADERS: dict[str, list[object]] = {
    "alg": ["HS256", "none", "None", "HS512", "RS256", "", 1, None],
    "kid": ["new", "old", "other", "", 1, LEFT_OUT],
    "crit": [LEFT_OUT, None, [], ["b64"], ["exp"]],
    "b64": [LEFT_OUT, None, True, False],
    "jku": [LEFT_OUT, "https://keys.example.com"],
}
NAMES = st.sampled_from(["iss", "aud", "exp", "iat", "jti", "sub", "nbf"])
VALUES = st.sampled_from([None, "", ISSUER, AUDIENCE, [AUDIENCE], 0, 1, 1.5, 1 << 60, "later", True, {}])
CHANGES = st.dictionaries(NAMES, VALUES, max_size=2)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.kid)
def test_what_was_signed_here_is_let_in_and_pyjwt_agrees(key: SigningKey) -> None:
    token = signed_tokens.sign(CLAIMS, key)
    assert verify(token) == verify_by_pyjwt(token) == CLAIMS


def test_no_header_is_let_in_that_pyjwt_refuses() -> None:
    let_in = 0
    for values in product(*HEADERS.values()):
        header = {name: value for name, value in zip(HEADERS, values, strict=True) if value is not LEFT_OUT}
        for key, digest in product([*KEYS, SigningKey("new", b"x" * 32)], ["sha256", "sha512"]):
            token = compact(header, CLAIMS, key.secret, digest)
            if is_let_in(token):
                assert verify(token) == verify_by_pyjwt(token), header
                let_in += 1
    assert let_in == len(KEYS)


@given(CHANGES)
def test_no_claims_are_let_in_that_pyjwt_refuses(changed: dict[str, Any]) -> None:
    token = compact({"alg": "HS256", "kid": "new"}, CLAIMS | changed)
    if is_let_in(token):
        assert verify(token) == verify_by_pyjwt(token)


@given(st.text(st.characters(codec="utf-8"), max_size=300))
def test_no_text_is_a_token(text: str) -> None:
    assert not is_let_in(text)


@given(st.data())
def test_a_token_with_a_part_of_another_is_refused(data: st.DataObject) -> None:
    one, other = (signed_tokens.sign(CLAIMS | {"jti": jti}, KEYS[0]).split(".") for jti in ("1", "2"))
    mixed = ".".join(data.draw(st.lists(st.sampled_from([*one, *other, ""]), min_size=1, max_size=5)))
    assert is_let_in(mixed) == (mixed in (".".join(one), ".".join(other)))


@pytest.mark.parametrize(
    "end",
    ["=", "==", "\n", " ", "A", ".", "\x00", "\ud800"],
    ids=["pad", "pads", "line", "space", "A", "dot", "NUL", "lone"],
)
def test_a_token_has_one_spelling(end: str) -> None:
    assert not is_let_in(signed_tokens.sign(CLAIMS, KEYS[0]) + end)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_signature_has_no_spare_bits(step: int) -> None:
    """A lenient parser drops the last two bits, and lets a token that was refused come back as another text."""
    token = signed_tokens.sign(CLAIMS, KEYS[0])
    assert not is_let_in(token[:-1] + ALPHABET[ALPHABET.index(token[-1]) + step])


@pytest.mark.parametrize(("letter", "other"), [("-", "+"), ("_", "/")])
def test_a_signature_has_one_alphabet(letter: str, other: str) -> None:
    tokens = (signed_tokens.sign(CLAIMS | {"jti": str(number)}, KEYS[0]).rpartition(".") for number in range(100))
    signed, _, signature = next(token for token in tokens if letter in token[2])
    assert not is_let_in(f"{signed}.{signature.replace(letter, other)}")


def test_a_signature_is_compared_before_the_claims_are_parsed() -> None:
    """Whoever has no secret reaches no parser but the header's, which is bounded."""
    token = compact({"alg": "HS256", "kid": "new"}, CLAIMS, b"x" * 32)
    header, _, signature = token.split(".")
    with pytest.raises(jwt.InvalidSignatureError):
        verify(f"{header}.{encoded(b'[' * 100_000)}.{signature}")


def test_a_long_header_is_refused() -> None:
    with pytest.raises(InvalidSignedToken, match="too long"):
        verify(compact({"alg": "HS256", "kid": "new", "typ": "x" * 300}, CLAIMS))


def test_an_unknown_key_is_told_apart() -> None:
    with pytest.raises(UnknownSigningKey):
        verify(signed_tokens.sign(CLAIMS, SigningKey("gone", b"g" * 32)))


def test_a_token_is_not_valid_before_its_time() -> None:
    assert is_let_in(compact({"alg": "HS256", "kid": "new"}, CLAIMS | {"nbf": int(time.time()) - 1}))
    with pytest.raises(jwt.ImmatureSignatureError):
        verify(compact({"alg": "HS256", "kid": "new"}, CLAIMS | {"nbf": int(time.time()) + 1000}))
