"""Attacks by many wrong secrets: on one key, on many, from one address and from several; and whom they must not hold
up.
"""

from __future__ import annotations

import asyncio
import base64
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

from refstore.kv.base import Get, Op, Result
from refstore.kv.memory import MemoryKV
from refstore.service import access_keys
from refstore_api.auth import OWNERS_MAX, TOKENS_MAX, CallerCache, SecretCredential, TokenCredential
from refstore_http.http_errors import TooManyWrongSecrets
from refstore_http.login_throttle import (
    ADDRESS_TIMES,
    KNOWN_MAX,
    WINDOW_SECONDS,
    WRONG_SECRETS_MAX,
    LoginCaller,
    LoginThrottle,
)
from refstore_http.principals import Principal
from tests.api.conftest import KEY_ID, SECRET
from tests.api.service import Application, application
from tests.kit.clock import FakeClock

WRONG_MAX = WRONG_SECRETS_MAX
WRONG = "a-secret-that-nobody-ever-had"
HERE, ELSEWHERE = "192.0.2.1", "198.51.100.7"


class CountingKV(MemoryKV):
    """How often access keys are read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        self.reads += sum(isinstance(op, Get) and "access" in str(op.key) for op in ops)
        return super().execute(ops)


@pytest.fixture
def kv() -> CountingKV:
    return CountingKV()


@pytest.fixture
def asgi(kv: CountingKV) -> Iterator[Application]:
    """Every request reads its key anew: nothing passes because it is remembered as good."""
    with application(constants={"api.auth.KEY_SECONDS": 0}, kv=kv) as found:
        yield found


def ask(asgi: Application, key_id: str, secret: str, *, address: str = HERE, **headers: str) -> httpx.Response:
    async def go() -> httpx.Response:
        transport = httpx.ASGITransport(asgi.app, client=(address, 4711))
        async with httpx.AsyncClient(transport=transport, base_url="http://lake.test/api/v1") as http:
            return await http.get("/user", auth=(key_id, secret), headers=headers)

    return asgi.runner.run(go())


def log_in(asgi: Application, key_id: str, secret: str) -> httpx.Response:
    return asgi("POST", "/auth/login", json={"access_key_id": key_id, "secret_access_key": secret}, auth=None)


def hammer(asgi: Application, key_id: str = KEY_ID, **options: Any) -> None:
    said = [ask(asgi, key_id, f"{WRONG}{number}", **options).status_code for number in range(WRONG_MAX)]
    assert said == [401] * WRONG_MAX


def another(asgi: Application) -> tuple[str, str]:
    made = access_keys.create_key(asgi.lake, access_keys.Role.READER)
    return made.key.id, made.secret


def test_after_so_many_wrong_secrets_the_next_has_to_wait(asgi: Application, kv: CountingKV) -> None:
    hammer(asgi)
    looked = kv.reads
    assert looked >= WRONG_MAX
    refused = ask(asgi, KEY_ID, WRONG)
    assert refused.status_code == 429
    assert refused.json()["code"] == "too_many_guesses"
    assert refused.headers["retry-after"] == str(int(WINDOW_SECONDS))
    assert ask(asgi, KEY_ID, SECRET).status_code == 429, "else the answer would tell which guess is right"
    assert kv.reads == looked, "it is not looked at"


def test_when_the_minute_is_over_secrets_are_looked_at_again(asgi: Application) -> None:
    hammer(asgi)
    asgi.clock.advance(WINDOW_SECONDS - 20)
    assert ask(asgi, KEY_ID, SECRET).headers["retry-after"] == "20"
    asgi.clock.advance(20)
    assert ask(asgi, KEY_ID, SECRET).status_code == 200
    hammer(asgi)


def test_waiting_does_not_begin_again_with_every_guess_that_is_not_looked_at(asgi: Application) -> None:
    hammer(asgi)
    for _ in range(int(WINDOW_SECONDS)):
        assert ask(asgi, KEY_ID, WRONG).status_code == 429
        asgi.clock.advance(1)
    assert ask(asgi, KEY_ID, SECRET).status_code == 200


def test_the_right_secret_of_another_key_is_never_held_up(asgi: Application) -> None:
    """Not one that the process has seen before either."""
    for number in range(ADDRESS_TIMES + 2):
        hammer_or_wait = [ask(asgi, f"AKIA{number}", f"{WRONG}{guess}").status_code for guess in range(WRONG_MAX + 1)]
        assert hammer_or_wait[-1] == 429
        assert ask(asgi, *another(asgi)).status_code == 200


def test_the_key_itself_is_held_up_only_where_the_wrong_ones_come_from(asgi: Application) -> None:
    hammer(asgi, address=ELSEWHERE)
    assert ask(asgi, KEY_ID, SECRET, address=ELSEWHERE).status_code == 429
    assert ask(asgi, KEY_ID, SECRET).status_code == 200


def test_who_was_let_in_before_is_not_held_up(asgi: Application) -> None:
    """Behind one proxy with a job that has an old secret, or with the attacker."""
    assert ask(asgi, KEY_ID, SECRET).status_code == 200
    hammer(asgi)
    assert ask(asgi, KEY_ID, WRONG).status_code == 429
    assert ask(asgi, KEY_ID, SECRET).status_code == 200


def test_who_logged_in_before_is_not_held_up(asgi: Application) -> None:
    assert log_in(asgi, KEY_ID, SECRET).status_code == 200
    for number in range(WRONG_MAX):
        assert log_in(asgi, KEY_ID, f"{WRONG}{number}").status_code == 401
    assert log_in(asgi, KEY_ID, WRONG).status_code == 429
    assert log_in(asgi, KEY_ID, SECRET).status_code == 200


def test_a_secret_that_was_right_once_is_a_guess_like_any_other(asgi: Application, kv: CountingKV) -> None:
    key_id, secret = another(asgi)
    assert ask(asgi, key_id, secret).status_code == 200
    access_keys.revoke_key(asgi.lake, key_id)
    said = [ask(asgi, key_id, secret).status_code for _ in range(WRONG_MAX + 1)]
    assert said == [401] * WRONG_MAX + [429]


def test_logins_and_requests_are_counted_together(asgi: Application) -> None:
    for number in range(WRONG_MAX):
        guess = f"{WRONG}{number}"
        asked = log_in(asgi, KEY_ID, guess) if number % 2 else asgi("GET", "/user", auth=(KEY_ID, guess))
        assert asked.status_code == 401
    assert log_in(asgi, KEY_ID, SECRET).status_code == 429
    assert asgi("GET", "/user").status_code == 429


def test_an_upload_with_a_wrong_secret_is_refused_before_its_body_is_read(asgi: Application) -> None:
    asgi.lake.create_repository("alpha")
    hammer(asgi, address="127.0.0.1")

    async def body() -> Any:
        raise AssertionError("it was read")
        yield b""

    place = "/repositories/alpha/branches/main/objects?path=p"
    assert asgi("POST", place, content=body(), auth=(KEY_ID, WRONG)).status_code == 429


def test_guesses_that_come_all_at_once_are_no_more(asgi: Application, kv: CountingKV) -> None:
    threads = 4
    with application(constants={"api.auth.KEY_SECONDS": 0, "http.service.THREADS": threads}, kv=kv) as found:
        before = kv.reads

        async def all_at_once() -> list[httpx.Response]:
            return await asyncio.gather(
                *(found.http.get("/user", auth=(KEY_ID, f"{WRONG}{number}")) for number in range(200))
            )

        said = [answered.status_code for answered in found.runner.run(all_at_once())]
        assert set(said) == {401, 429}
        assert said.count(401) == kv.reads - before <= WRONG_MAX + threads


def test_a_header_that_names_another_address_is_not_believed(asgi: Application) -> None:
    for number in range(WRONG_MAX):
        fields = {
            "X-Forwarded-For": f"203.0.113.{number}",
            "Forwarded": f"for=203.0.113.{number}",
            "X-Real-IP": f"203.0.113.{number}",
        }
        assert ask(asgi, KEY_ID, WRONG, **fields).status_code == 401
    assert ask(asgi, KEY_ID, WRONG, **{"X-Forwarded-For": "203.0.113.99"}).status_code == 429


def test_wrong_secrets_for_ever_new_keys_are_told_to_wait_too(asgi: Application) -> None:
    said = [ask(asgi, f"AKIA{number:05}", WRONG) for number in range(WRONG_MAX * ADDRESS_TIMES + 3)]
    assert [answered.status_code for answered in said] == [401] * (WRONG_MAX * ADDRESS_TIMES) + [429] * 3
    assert int(said[-1].headers["retry-after"]) == WINDOW_SECONDS


def test_what_is_said_does_not_tell_whether_there_is_such_a_key(asgi: Application) -> None:
    said = []
    for key_id in (KEY_ID, "AKIANOBODY"):
        hammer(asgi, key_id)
        said.append(ask(asgi, key_id, WRONG).text.replace(key_id, "ID"))
    assert said[0] == said[1]


def test_tokens_are_not_counted(asgi: Application) -> None:
    """Whoever holds one that has expired must hear so, to log in again."""
    for _ in range(WRONG_MAX * ADDRESS_TIMES + 1):
        assert asgi("GET", "/user", headers={"Authorization": "Bearer a.b.c"}, auth=None).status_code == 401
    assert asgi("GET", "/user").status_code == 200


def test_none_wait_where_that_is_switched_off() -> None:
    with application(constants={"api.auth.KEY_SECONDS": 0, "api.auth.WRONG_SECRETS_MAX": 0}) as found:
        assert {ask(found, KEY_ID, WRONG).status_code for _ in range(3 * WRONG_MAX)} == {401}


# ---- who is known


def spellings(token: str, count: int) -> Iterator[str]:
    """Headers that present the same token."""
    for number in range(count):
        scheme = "".join(letter.upper() if number >> at & 1 else letter for at, letter in enumerate("bearer"))
        yield f"{scheme}{' ' * (1 + number // 64)}{token}"


def test_who_holds_a_token_cannot_have_others_forgotten_by_spelling_it_anew(steady: Application) -> None:
    """Forgotten, ten wrong guesses would lock the rightful key out."""
    known: CallerCache = steady.app.state.authenticator.caller_cache
    token = log_in(steady, *another(steady)).json()["token"]
    assert ask(steady, KEY_ID, SECRET).status_code == 200
    before = len(known)
    for header in spellings(token, 3 * TOKENS_MAX):
        assert steady("GET", "/user", headers={"Authorization": header}, auth=None).status_code == 200
    assert len(known) == before + 1
    hammer(steady)
    assert ask(steady, KEY_ID, WRONG).status_code == 429
    assert ask(steady, KEY_ID, SECRET).status_code == 200


def test_a_key_that_logs_in_very_often_keeps_its_secret_known(steady: Application, kv: CountingKV) -> None:
    assert ask(steady, KEY_ID, SECRET).status_code == 200
    for _ in range(TOKENS_MAX + 5):
        token = log_in(steady, KEY_ID, SECRET).json()["token"]
        steady.clock.advance(1)  # the next one is another
        assert steady("GET", "/user", headers={"Authorization": f"Bearer {token}"}, auth=None).status_code == 200
    assert len(steady.app.state.authenticator.caller_cache) == TOKENS_MAX + 1
    looked = kv.reads
    assert ask(steady, KEY_ID, SECRET).status_code == 200
    assert kv.reads == looked


def test_one_credential_is_looked_up_once_however_it_is_spelled(steady: Application, kv: CountingKV) -> None:
    assert ask(steady, KEY_ID, SECRET).status_code == 200
    looked = kv.reads
    basic = base64.b64encode(f"{KEY_ID}:{SECRET}".encode()).decode()
    for scheme in ("basic", "BASIC", "bASIC"):
        assert steady("GET", "/user", headers={"Authorization": f"{scheme} {basic}"}, auth=None).status_code == 200
    assert kv.reads == looked


def principal(key_id: str) -> Principal:
    return Principal(key_id, access_keys.Role.READER, (), 0)


def test_no_key_has_more_than_its_share_of_the_known() -> None:
    known = CallerCache(3600)
    for number in range(3 * TOKENS_MAX):
        known.add(TokenCredential(f"{number}"), principal("one"))
    known.add(TokenCredential("other"), principal("two"))
    assert len(known) == TOKENS_MAX + 1
    assert known.get(TokenCredential("0")) == (None, False)
    assert known.get(TokenCredential(f"{3 * TOKENS_MAX - 1}")) == (principal("one"), True)
    assert known.get(TokenCredential("other")) == (principal("two"), True)
    for number in range(3 * TOKENS_MAX):
        known.remove(TokenCredential(f"{number}"))
    known.remove(TokenCredential("other"))
    assert len(known) == known.count_owners() == 0


def test_the_known_are_bounded_in_all() -> None:
    known = CallerCache(0)
    for number in range(OWNERS_MAX + 10):
        known.add(SecretCredential(f"{number}", "s"), principal(f"{number}"))
    assert len(known) == known.count_owners() == OWNERS_MAX
    assert known.get(SecretCredential("9", "s")) == (None, False)
    assert known.get(SecretCredential("10", "s")) == (None, True), "to be looked up again, but it was right"


def test_an_id_and_a_secret_are_not_mixed_up() -> None:
    known = CallerCache(3600)
    known.add(SecretCredential("ab", "c"), principal("ab"))
    for other in (SecretCredential("a", "bc"), TokenCredential("2:abc"), TokenCredential("abc")):
        assert known.get(other) == (None, False)


# ---- the table


def flooded(guesses: LoginThrottle, callers: Sequence[LoginCaller]) -> None:
    for caller in callers:
        try:
            guesses.check(caller)
            guesses.record_wrong_secret(caller)
        except TooManyWrongSecrets:
            pass


def test_the_table_does_not_grow_with_the_attack() -> None:
    guesses = LoginThrottle(FakeClock(), 3)
    flooded(
        guesses,
        [
            LoginCaller(f"AKIA{number}" * 50, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
            for number in range(KNOWN_MAX)
        ],
    )
    assert len(guesses) == KNOWN_MAX


def test_long_names_take_no_more_of_it_than_short_ones() -> None:
    sizes_bytes: list[int] = []
    for length in (1, 50):
        guesses = LoginThrottle(FakeClock(), 3)
        callers = [LoginCaller(f"AKIA{number:08}" * length, HERE) for number in range(1000)]
        flooded(guesses, callers[:1])  # what is made once for all is made
        tracemalloc.start()
        flooded(guesses, callers[1:])
        sizes_bytes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    assert sizes_bytes[1] < 2 * sizes_bytes[0]


def test_one_that_is_held_up_stays_so_while_others_come() -> None:
    """What is evicted is what was quiet for longest."""
    guesses = LoginThrottle(FakeClock(), 1)
    flooded(guesses, [LoginCaller("ONE", HERE)])
    flooded(guesses, [LoginCaller(f"AKIA{number}", ELSEWHERE) for number in range(KNOWN_MAX - 100)])
    with pytest.raises(TooManyWrongSecrets):
        guesses.check(LoginCaller("ONE", HERE))


def test_a_site_of_ipv6_is_one_address() -> None:
    guesses = LoginThrottle(FakeClock(), 2)
    flooded(guesses, [LoginCaller(KEY_ID, f"2001:db8:1:2:{number:x}::1") for number in range(2)])
    with pytest.raises(TooManyWrongSecrets):
        guesses.check(LoginCaller(KEY_ID, "2001:db8:1:2:ffff::9"))
    guesses.check(LoginCaller(KEY_ID, "2001:db8:1:3::1"))


def test_an_address_of_ipv4_is_the_same_by_its_ipv6_name() -> None:
    guesses = LoginThrottle(FakeClock(), 1)
    flooded(guesses, [LoginCaller(KEY_ID, HERE)])
    with pytest.raises(TooManyWrongSecrets):
        guesses.check(LoginCaller(KEY_ID, f"::ffff:{HERE}"))
    guesses.check(LoginCaller(KEY_ID, f"::ffff:{ELSEWHERE}"))


@pytest.mark.parametrize("address", ["", "a socket", "fe80::1%eth0", "\ud800"])
def test_any_name_of_an_address_counts(address: str) -> None:
    guesses = LoginThrottle(FakeClock(), 1)
    flooded(guesses, [LoginCaller("\ud800", address)])
    with pytest.raises(TooManyWrongSecrets):
        guesses.check(LoginCaller("\ud800", address))
