"""Attacks with keys that should open nothing any more: expired ones, the old secret of a rotation, tokens that were
ended.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import jwt
import pytest

from refstore.errors import KVUnavailable
from refstore.kv.base import ABSENT, Op, Result, Set
from refstore.kv.memory import MemoryKV
from refstore.records import keys
from refstore.service import access_keys
from refstore_http.principals import HOUR_MS, KEY_SECONDS
from tests.api.service import Application, application

WRONG = "a-secret-that-nobody-ever-had"
DAY_MS = 86_400_000


class CountingUses(MemoryKV):
    """Counts how often a key's use is written down; may refuse it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0
        self.refuses = False

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        uses = sum(isinstance(op, Set) and op.key.partition == keys.ACCESS_KEY_USES for op in ops)
        self.written += uses
        if uses and self.refuses:
            raise KVUnavailable("no")
        return super().execute(ops)


@pytest.fixture
def kv() -> CountingUses:
    return CountingUses()


@pytest.fixture
def asgi(kv: CountingUses) -> Iterator[Application]:
    """It looks at the key with each request."""
    with application(constants={"api.auth.KEY_SECONDS": 0, "api.auth.WRONG_SECRETS_MAX": 0}, kv=kv) as found:
        yield found


def made(asgi: Application, **options: Any) -> access_keys.NewKey:
    return access_keys.create_key(asgi.lake, access_keys.Role.READER, **options)


def ask(asgi: Application, key: access_keys.NewKey | str, secret: str | None = None) -> httpx.Response:
    """By secret, or by token."""
    if isinstance(key, str):
        return asgi("GET", "/user", headers={"Authorization": f"Bearer {key}"}, auth=None)
    return asgi("GET", "/user", auth=(key.key.id, key.secret if secret is None else secret))


def log_in(asgi: Application, key: access_keys.NewKey) -> httpx.Response:
    return asgi("POST", "/auth/login", json={"access_key_id": key.key.id, "secret_access_key": key.secret}, auth=None)


def token_of(asgi: Application, key: access_keys.NewKey) -> str:
    found: str = log_in(asgi, key).json()["token"]
    return found


def test_an_expired_key_opens_nothing_and_says_so_to_its_owner_only(asgi: Application) -> None:
    key = made(asgi, expires_ms=asgi.clock.now_ms() + 60_000)
    token = token_of(asgi, key)
    assert [ask(asgi, key).status_code, ask(asgi, token).status_code] == [200, 200]
    asgi.clock.advance(60)
    assert [ask(asgi, key).status_code, log_in(asgi, key).status_code, ask(asgi, token).status_code] == [401] * 3
    for refused in (ask(asgi, key), log_in(asgi, key)):
        assert f"access key '{key.key.id}' expired at " in refused.json()["message"]
    wrong, nobody = ask(asgi, key, WRONG), asgi("GET", "/user", auth=("NOBODY", WRONG))
    assert wrong.status_code == 401
    assert wrong.json() == nobody.json()


def test_a_token_ends_no_later_than_its_key_and_its_secret(asgi: Application) -> None:
    key = made(asgi, expires_ms=asgi.clock.now_ms() + 60_000)
    rotated = made(asgi)
    access_keys.rotate_secret(asgi.lake, rotated.key.id, overlap_ms=30_000)
    now = asgi.clock.now_ms() // 1000
    for each, seconds in ((key, 60), (rotated, 30)):
        answered = log_in(asgi, each).json()
        assert answered["token_expiration"] - now == seconds
        assert jwt.decode(answered["token"], options={"verify_signature": False})["exp"] - now == seconds


def test_the_old_secret_and_its_tokens_end_with_the_overlap(asgi: Application) -> None:
    old = made(asgi)
    token = token_of(asgi, old)  # before the rotation, so for a day
    new = access_keys.rotate_secret(asgi.lake, old.key.id, overlap_ms=60_000)
    fresh = token_of(asgi, new)
    assert [ask(asgi, each).status_code for each in (old, token, new, fresh)] == [200] * 4
    asgi.clock.advance(60)
    assert [ask(asgi, each).status_code for each in (old, token, new, fresh)] == [401, 401, 200, 200]
    assert log_in(asgi, old).status_code == 401
    assert "use its new secret" in ask(asgi, old).json()["message"]
    assert ask(asgi, old, WRONG).json() == asgi("GET", "/user", auth=("NOBODY", WRONG)).json()


def test_a_rotation_without_overlap_ends_the_old_secret_and_its_tokens_at_once(asgi: Application) -> None:
    old = made(asgi)
    token = token_of(asgi, old)
    new = access_keys.rotate_secret(asgi.lake, old.key.id, overlap_ms=0)
    assert [ask(asgi, each).status_code for each in (old, token, new)] == [401, 401, 200]


def test_an_overlap_that_is_ended_ends_the_old_secret_and_its_tokens(asgi: Application) -> None:
    old = made(asgi)
    token = token_of(asgi, old)
    new = access_keys.rotate_secret(asgi.lake, old.key.id, overlap_ms=DAY_MS)
    access_keys.end_overlap(asgi.lake, old.key.id)
    assert [ask(asgi, each).status_code for each in (old, token, new)] == [401, 401, 200]


def test_a_secret_from_before_the_last_two_rotations_is_like_any_wrong_one(asgi: Application) -> None:
    old = made(asgi)
    for _ in range(2):
        access_keys.rotate_secret(asgi.lake, old.key.id, overlap_ms=0)
    assert ask(asgi, old).json() == asgi("GET", "/user", auth=("NOBODY", WRONG)).json()


def test_tokens_that_were_ended_are_refused_and_the_secret_goes_on(asgi: Application) -> None:
    key, other = made(asgi), made(asgi)
    token, others = token_of(asgi, key), token_of(asgi, other)
    access_keys.end_tokens(asgi.lake, key.key.id)
    assert [ask(asgi, each).status_code for each in (token, key, others)] == [401, 200, 200]
    fresh = token_of(asgi, key)
    assert ask(asgi, fresh).status_code == 200
    access_keys.end_tokens(asgi.lake, key.key.id)
    assert [ask(asgi, each).status_code for each in (token, fresh)] == [401, 401]


def test_tokens_of_both_secrets_are_ended_during_an_overlap(asgi: Application) -> None:
    old = made(asgi)
    new = access_keys.rotate_secret(asgi.lake, old.key.id, overlap_ms=DAY_MS)
    tokens = [token_of(asgi, old), token_of(asgi, new)]
    access_keys.end_tokens(asgi.lake, old.key.id)
    assert [ask(asgi, each).status_code for each in (*tokens, old, new)] == [401, 401, 200, 200]


def test_ended_tokens_do_not_come_back_by_a_rotation(asgi: Application) -> None:
    old = made(asgi)
    token = token_of(asgi, old)
    access_keys.end_tokens(asgi.lake, old.key.id)
    access_keys.rotate_secret(asgi.lake, old.key.id, overlap_ms=DAY_MS)
    assert ask(asgi, token).status_code == 401


@pytest.mark.parametrize("how", ["expired", "rotated", "tokens ended"])
def test_what_ended_is_known_no_longer_than_key_seconds(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    now = time.monotonic()
    monkeypatch.setattr("refstore_api.auth.time.monotonic", lambda: now)
    with application() as asgi:
        key = made(asgi, expires_ms=asgi.clock.now_ms() + 1000)
        caller = token_of(asgi, key) if how == "tokens ended" else key
        assert ask(asgi, caller).status_code == 200
        if how == "expired":
            asgi.clock.advance(1)
        elif how == "rotated":
            access_keys.rotate_secret(asgi.lake, key.key.id, overlap_ms=0)
        else:
            access_keys.end_tokens(asgi.lake, key.key.id)
        now += KEY_SECONDS - 0.1
        assert ask(asgi, caller).status_code == 200
        now += 0.2
        assert ask(asgi, caller).status_code == 401


def test_the_use_of_a_key_is_written_once_an_hour(asgi: Application, kv: CountingUses) -> None:
    key = made(asgi)
    asgi.clock.wall_ms -= asgi.clock.wall_ms % HOUR_MS  # the hour's beginning
    began_ms = asgi.clock.now_ms()
    for _ in range(20):
        assert ask(asgi, key).status_code == 200
        token_of(asgi, key)
        asgi.clock.advance(100)
    assert kv.written == 1
    assert used_ms(asgi, key) == began_ms
    asgi.clock.advance(3600)
    token = token_of(asgi, key)
    for _ in range(20):
        assert ask(asgi, token).status_code == 200
    assert kv.written == 2
    assert used_ms(asgi, key) == asgi.clock.now_ms()


def test_who_is_refused_causes_no_write(asgi: Application, kv: CountingUses) -> None:
    key = made(asgi, expires_ms=asgi.clock.now_ms() + 1000)
    asgi.clock.advance(1)
    for _ in range(20):
        ask(asgi, key)
        ask(asgi, key, WRONG)
    assert kv.written == 0
    assert kv.get(keys.access_key_use(key.key.id)) is ABSENT


def test_a_use_that_cannot_be_written_fails_no_request_and_is_not_tried_with_each(
    asgi: Application, kv: CountingUses
) -> None:
    key = made(asgi)
    kv.refuses = True
    assert [ask(asgi, key).status_code for _ in range(5)] == [200] * 5
    assert kv.written == 1


def used_ms(asgi: Application, key: access_keys.NewKey) -> int:
    return next(each.last_used_ms for each in access_keys.scan_keys(asgi.lake.kv) if each.id == key.key.id)
