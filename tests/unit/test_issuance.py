"""Tokens of issued addresses: which are let in, and what a good signature does not make good."""

from __future__ import annotations

from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refstore.core.ids import Address, BranchName, Path, RepositoryId
from refstore.core.signing_keys import SigningKey
from refstore.errors import InvalidToken
from refstore.versioning.issuance import AddressTokenIssuer, IssuedAddressClaims
from tests.kit.clock import FakeClock

OLD, NEW = SigningKey("old", b"o" * 32), SigningKey("new", b"n" * 32)
REPO = RepositoryId("sales-01kaxyz")
ADDRESS = Address("data/2026112107/01kb0000000000000000000000")
BRANCH, PATH = BranchName("main"), Path("a/ü b.csv")


def claims_at(clock: FakeClock) -> IssuedAddressClaims:
    return IssuedAddressClaims(REPO, BRANCH, PATH, ADDRESS, "01jti", clock.now_ms() // 1000 * 1000 + 60_000)


@pytest.mark.parametrize("key", [OLD, NEW], ids=lambda key: key.kid)
def test_whichever_key_signed_it(key: SigningKey) -> None:
    clock = FakeClock()
    token = AddressTokenIssuer(lambda: [key], clock).sign(claims_at(clock))
    issuer = AddressTokenIssuer(lambda: [NEW, OLD], clock)
    assert issuer.verify(token, REPO, BRANCH, PATH) == claims_at(clock)


@pytest.mark.parametrize(
    "change",
    [
        {"aud": "other-01kaxyz"},
        {"aud": "refstore-api"},
        {"iss": "somebody"},
        {"nbf": 1 << 40},
        {"jti": None},
        {"jti": 7},
        {"iat": None},
        {"exp": None},
        {"exp": 0},
        {"address": "_refstore/namespace"},
        {"address": "../data"},
        {"branch": "other"},
        {"path": "other"},
    ],
    ids=str,
)
def test_a_good_signature_does_not_make_other_claims_good(change: dict[str, Any]) -> None:
    clock = FakeClock()
    issuer = AddressTokenIssuer(lambda: [NEW], clock)
    claims = jwt.decode(issuer.sign(claims_at(clock)), options={"verify_signature": False}) | change
    claims = {name: value for name, value in claims.items() if value is not None}
    token = jwt.encode(claims, NEW.secret, algorithm="HS256", headers={"kid": NEW.kid})
    with pytest.raises(InvalidToken):
        issuer.verify(token, REPO, BRANCH, PATH)


@given(st.data())
def test_a_token_with_any_one_character_changed_is_refused(data: st.DataObject) -> None:
    clock = FakeClock()
    issuer = AddressTokenIssuer(lambda: [NEW, OLD], clock)
    token = issuer.sign(claims_at(clock))
    at = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.characters().filter(lambda character: character != token[at]))
    with pytest.raises(InvalidToken):
        issuer.verify(token[:at] + other + token[at + 1 :], REPO, BRANCH, PATH)
