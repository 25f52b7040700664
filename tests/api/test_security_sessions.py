"""Attacks on sessions: tokens after a sign-out, and forms and cookies that another port of the same host brings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import httpx
import pytest

from refstore.configuration.settings import ApiSettings
from refstore.kv.base import Op, Result
from refstore.kv.memory import MemoryKV
from refstore.records import keys
from refstore.service import access_keys
from refstore.service.access_keys import Role
from refstore_api.auth import LOGIN_SECONDS
from refstore_api.ui.sessions import SIGN_IN_SECONDS
from tests.api.conftest import KEY_ID, SECRET
from tests.api.service import Application, application

HERE: Final = "http://lake.test"
OWN: Final = {"Origin": HERE}
HOUR: Final = 3600


class CountingKV(MemoryKV):
    """Counts what is asked about ended sessions."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        self.asked += sum(op.key.partition == keys.ENDED_SESSIONS for op in ops)
        return super().execute(ops)


@pytest.fixture
def kv() -> CountingKV:
    return CountingKV()


class Browser:
    """A browser's cookies, at an address."""

    def __init__(self, at: Application, *, address: str = "192.0.2.1", here: str = HERE) -> None:
        self.at = at
        self.here = here
        transport = httpx.ASGITransport(at.app, client=(address, 1))
        self.http = httpx.AsyncClient(transport=transport, base_url=here)

    def __call__(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self.at.runner.run(self.http.request(method, path, **options))

    def form_token(self, path: str = "/ui/sign-in") -> str:
        found = re.search(r'name="form_token" value="([0-9a-f]+)"', self("GET", path).text)
        assert found is not None
        return found[1]

    def sign_in(self, token: str = "", headers: dict[str, str] | None = None, **fields: str) -> httpx.Response:
        form = {
            "form_token": token or self.form_token(), "access_key_id": KEY_ID, "secret_access_key": SECRET, **fields,
        }  # fmt: skip
        return self("POST", "/ui/sign-in", data=form, headers={"Origin": self.here} if headers is None else headers)

    def sign_out(self) -> httpx.Response:
        return self("POST", "/ui/sign-out", data={"form_token": self.form_token("/ui")})

    def session(self) -> str:
        (token,) = [value for name, value in self.http.cookies.items() if name.endswith("refstore_session")]
        return token


def user(at: Application, token: str) -> int:
    return at("GET", "/user", auth=None, headers={"Authorization": f"Bearer {token}"}).status_code


def log_in(at: Application) -> str:
    body = {"access_key_id": KEY_ID, "secret_access_key": SECRET}
    return str(at("POST", "/auth/login", json=body).json()["token"])


# ---- signing out


def test_no_two_tokens_are_equal(steady: Application) -> None:
    """The clock stands still."""
    assert len({log_in(steady) for _ in range(20)}) == 20


def test_a_sign_out_ends_the_session_also_as_a_bearer(steady: Application) -> None:
    one, other = Browser(steady), Browser(steady)
    assert one.sign_in().status_code == other.sign_in().status_code == 303
    token = one.session()
    assert (user(steady, token), one("GET", "/ui").status_code) == (200, 200)
    assert one.sign_out().headers["location"] == "/ui/sign-in"
    assert user(steady, token) == 401
    stolen = Browser(steady)
    assert stolen("GET", "/ui", headers={"Cookie": f"refstore_session={token}"}).status_code == 303
    assert other("GET", "/ui").status_code == 200
    assert steady("GET", "/user").status_code == 200


def test_a_sign_out_ends_the_session_in_other_processes(steady: Application, kv: CountingKV) -> None:
    with application(constants={"api.auth.KEY_SECONDS": 0}, kv=kv) as elsewhere:
        browser = Browser(steady)
        browser.sign_in()
        token = browser.session()
        assert user(elsewhere, token) == 200
        browser.sign_out()
        assert user(elsewhere, token) == 401


def test_ended_sessions_are_asked_for_with_tokens_only_and_seldom(steady: Application, kv: CountingKV) -> None:
    token = log_in(steady)
    for _ in range(10):
        assert steady("GET", "/user").status_code == 200
    assert kv.asked == 0
    for _ in range(10):
        assert user(steady, token) == 200
    assert kv.asked == 1


def test_what_is_kept_of_ended_sessions_goes_with_their_tokens(steady: Application, kv: CountingKV) -> None:
    def sign_in_and_out() -> None:
        browser = Browser(steady)
        browser.sign_in()
        browser.sign_out()

    for _ in range(5):
        sign_in_and_out()
    assert kv.count(keys.ENDED_SESSIONS, limit=100) == 5
    steady.clock.advance(LOGIN_SECONDS + 1)
    sign_in_and_out()
    assert kv.count(keys.ENDED_SESSIONS, limit=100) == 1


def test_only_its_own_form_ends_a_session(steady: Application) -> None:
    browser = Browser(steady)
    browser.sign_in()
    token = browser.session()
    assert browser("POST", "/ui/sign-out", data={"form_token": "0" * 64}).status_code == 403
    assert user(steady, token) == 200


# ---- the sign-in form


def test_the_token_of_the_form_is_bound_to_more_than_a_cookie(steady: Application) -> None:
    """Another port of this host sets a cookie that its owner has fetched a form for."""
    attacker, victim = Browser(steady, address="198.51.100.7"), Browser(steady)
    token = attacker.form_token()
    victim.http.cookies = attacker.http.cookies
    assert victim.sign_in(token).status_code == 403
    assert victim.sign_in().status_code == 303


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://lake.test:8081"},
        {"Origin": "https://lake.test"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": HERE, "Sec-Fetch-Site": "same-site"},
        {"Origin": HERE, "Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_only_the_services_own_page_sends_the_form(steady: Application, headers: dict[str, str]) -> None:
    assert Browser(steady).sign_in(headers=headers).status_code == 403


@pytest.mark.parametrize("headers", [OWN, {"Sec-Fetch-Site": "same-origin"}, OWN | {"Sec-Fetch-Site": "same-origin"}])
def test_the_services_own_page_sends_the_form(steady: Application, headers: dict[str, str]) -> None:
    assert Browser(steady).sign_in(headers=headers).status_code == 303


@pytest.mark.parametrize("token", ["", "x", "0" * 76, "f" * 76, "0" * 11, "é"])
def test_a_token_that_is_none_is_refused(steady: Application, token: str) -> None:
    browser = Browser(steady)
    browser.form_token()
    assert browser.sign_in(token or "-").status_code == 403


def test_a_form_may_be_filled_in_for_an_hour(steady: Application) -> None:
    browser = Browser(steady)
    token = browser.form_token()
    late = Browser(steady)
    late_token = late.form_token()
    steady.clock.advance(SIGN_IN_SECONDS - 1)
    assert browser.sign_in(token).status_code == 303
    steady.clock.advance(1)
    assert late.sign_in(late_token).status_code == 403


def test_over_tls_no_one_else_can_set_the_cookies() -> None:
    with application(ApiSettings(public_url="https://lake.test")) as found:
        browser = Browser(found, here="https://lake.test")
        assert browser.sign_in().status_code == 303
        assert list(browser.http.cookies) == ["__Host-refstore_session"]
        answer = browser("GET", "/ui/sign-in")
        assert answer.headers["set-cookie"].startswith("__Host-refstore_sign_in=")
        assert {"path=/", "secure"} <= {part.strip().lower() for part in answer.headers["set-cookie"].split(";")}
        plain = {"Cookie": f"refstore_session={browser.session()}"}
        assert Browser(found, here="https://lake.test")("GET", "/ui", headers=plain).status_code == 303
        # a page that came without TLS is another one
        assert Browser(found, here="https://lake.test").sign_in(headers=OWN).status_code == 403


def test_below_a_proxys_path_the_cookies_are_for_that_path() -> None:
    with application(ApiSettings(public_url="https://lake.test/data")) as found:
        cookie = Browser(found, here="https://lake.test")("GET", "/ui/sign-in").headers["set-cookie"]
        assert cookie.startswith("__Secure-refstore_sign_in=")
        assert "path=/data/ui" in cookie.lower()


# ---- forms


def test_a_form_is_bounded_by_its_page(steady: Application) -> None:
    browser = Browser(steady)
    browser.sign_in()
    steady.lake.create_repository("alpha")
    token = browser.form_token("/ui")
    for path, size, expected in (
        ("/ui/sign-out", 70_000, 413),
        ("/ui/keys/create", 70_000, 413),
        ("/ui/repositories/alpha/trash/restore", 70_000, 400),
        ("/ui/repositories/alpha/trash/restore", 700_000, 413),
        ("/ui/repositories/alpha/rules/edit", 300_000, 400),
        ("/ui/repositories/alpha/rules/edit", 5 << 20, 413),
    ):
        answer = browser("POST", path, data={"form_token": token, "document": "x" * size})
        assert answer.status_code == expected, (path, size, answer.text)


def test_a_reader_sends_no_form_that_is_anothers(steady: Application) -> None:
    """The role comes before the form is read."""
    key = access_keys.create_key(steady.lake, Role.READER)
    browser = Browser(steady)
    browser.sign_in(access_key_id=key.key.id, secret_access_key=key.secret)
    assert browser("POST", "/ui/keys/create", content=b"x" * (5 << 20)).status_code == 403
