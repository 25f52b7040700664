"""Tokens of issued addresses: the short way that nearly all of them go decides as PyJWT does."""

from __future__ import annotations

from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refstore.errors import InvalidToken
from refstore.ids import Address, BranchName, Path, RepositoryId
from refstore.issuance import ISSUER, Claims, Issuer, SigningKey
from refstore.testing.clock import FakeClock

OLD, NEW = SigningKey("old", b"o" * 32), SigningKey("new", b"n" * 32)
REPO = RepositoryId("sales-01kaxyz")
ADDRESS = Address("data/2026112107/01kb0000000000000000000000")
BRANCH, PATH = BranchName("main"), Path("a/ü b.csv")


def claims_at(clock: FakeClock) -> Claims:
    return Claims(REPO, BRANCH, PATH, ADDRESS, "01jti", clock.now_ms() // 1000 * 1000 + 60_000)


def refuse(*_: object, **__: object) -> Any:
    raise AssertionError("PyJWT was asked")


@pytest.mark.parametrize("key", [OLD, NEW], ids=lambda key: key.kid)
def test_a_token_as_we_write_it_is_checked_without_pyjwt_whichever_key_signed_it(key: SigningKey, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    token = Issuer([key], clock).sign(claims_at(clock))
    issuer = Issuer([NEW, OLD], clock)
    monkeypatch.setattr(jwt, "decode", refuse)
    assert issuer.verify(token, REPO, BRANCH, PATH) == claims_at(clock)


def test_a_token_that_another_writer_signed_with_our_key_is_as_good_as_pyjwt_finds_it() -> None:
    clock = FakeClock()
    own = jwt.decode(Issuer([NEW], clock).sign(claims_at(clock)), options={"verify_signature": False})
    other = jwt.encode(own, NEW.secret, algorithm="HS256", headers={"kid": NEW.kid, "made_by": "somebody"})
    assert Issuer([NEW], clock).verify(other, REPO, BRANCH, PATH) == claims_at(clock)


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
    issuer = Issuer([NEW], clock)
    claims = jwt.decode(issuer.sign(claims_at(clock)), options={"verify_signature": False}) | change
    claims = {name: value for name, value in claims.items() if value is not None}
    token = jwt.encode(claims, NEW.secret, algorithm="HS256", headers={"kid": NEW.kid})
    with pytest.raises(InvalidToken):
        issuer.verify(token, REPO, BRANCH, PATH)


@given(st.data())
def test_a_token_with_any_one_character_changed_is_refused(data: st.DataObject) -> None:
    clock = FakeClock()
    issuer = Issuer([NEW, OLD], clock)
    token = issuer.sign(claims_at(clock))
    at = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.characters().filter(lambda character: character != token[at]))
    with pytest.raises(InvalidToken):
        issuer.verify(token[:at] + other + token[at + 1 :], REPO, BRANCH, PATH)


@given(st.integers(1, 60), st.sampled_from(["", "=", "==", ".", "\n", "A"]))
def test_a_token_cut_off_or_lengthened_is_let_in_only_where_pyjwt_does(cut: int, end: str) -> None:
    clock = FakeClock()
    issuer = Issuer([NEW], clock)
    token = issuer.sign(claims_at(clock))
    for wrong in (token[:-cut] + end, *([token + end] if end else [])):
        try:
            assert issuer.verify(wrong, REPO, BRANCH, PATH) == claims_at(clock)
        except InvalidToken:
            continue
        jwt.decode(
            wrong, NEW.secret, algorithms=["HS256"], issuer=ISSUER, audience=REPO, options={"verify_exp": False, "verify_iat": False}
        )
