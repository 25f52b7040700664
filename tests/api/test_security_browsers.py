"""Attacks by another site's page, in the browser of somebody who has a key; and what the log says of who tried what
from where.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from refstore.configuration import logs
from refstore.configuration.settings import ApiSettings, LogSettings
from refstore.kv.base import KV
from refstore.kv.memory import MemoryKV
from refstore.service import access_keys
from tests.api.conftest import KEY_ID, SECRET
from tests.api.service import Application, application
from tests.api.test_security_guessing import WRONG, WRONG_MAX

UPLOAD = "/repositories/alpha/branches/main/objects"
PUBLIC = "https://lake.example.org"

UNSAFE = [
    ("POST", UPLOAD + "?path=p"),
    ("DELETE", UPLOAD + "?path=p"),
    ("POST", "/repositories/alpha/refs/main/merge/main"),
    ("POST", "/repositories/alpha/reaper/resume"),
    ("PUT", "/repositories/alpha/branches/main"),
    ("POST", "/auth/login"),
]


@pytest.fixture
def asgi() -> Iterator[Application]:
    with application(ApiSettings(public_url=PUBLIC)) as found:
        found.lake.create_repository("alpha")
        yield found


@pytest.mark.parametrize(("method", "path"), UNSAFE)
@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": ""},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://lake.test"},
        {"Origin": "https://evil.example.org"},
        {"Origin": "null"},
        {"Origin": "http://lake.test.evil.example.org"},
        {"Origin": "http://lake.test:8001"},
        {"Origin": "http://[lake.test"},
    ],
    ids=str,
)
def test_what_another_sites_page_sends_changes_nothing(
    asgi: Application, method: str, path: str, headers: dict[str, str]
) -> None:
    answered = asgi(method, path, headers=headers, content=b"x")
    assert (answered.status_code, answered.json()["code"]) == (403, "forbidden")
    assert list(asgi.lake.repository("alpha").list("main")) == []


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"User-Agent": "lakectl/1.80.0"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "http://lake.test"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "http://lake.test"},
        {"Origin": PUBLIC},
    ],
    ids=str,
)
def test_programs_and_the_services_own_pages_work(asgi: Application, headers: dict[str, str]) -> None:
    assert asgi("POST", UPLOAD, params={"path": "p"}, headers=headers, content=b"x").status_code == 201


def test_another_site_may_link_to_what_is_only_read(asgi: Application) -> None:
    assert asgi("GET", "/repositories", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200


@pytest.mark.parametrize("auth", [None, (KEY_ID, WRONG)])
@pytest.mark.parametrize(
    ("headers", "scheme"),
    [
        ({}, "Basic"),
        ({"User-Agent": "lakectl/1.80.0"}, "Basic"),
        ({"User-Agent": "python-urllib3/2.5"}, "Basic"),
        ({"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "none"}, "Bearer"),
        ({"User-Agent": "Mozilla/5.0 (X11; Linux x86_64)"}, "Bearer"),
        ({"Origin": "http://lake.test"}, "Bearer"),
    ],
    ids=str,
)
def test_a_browser_is_not_asked_for_a_password_that_it_would_keep(
    asgi: Application, headers: dict[str, str], scheme: str, auth: tuple[str, str] | None
) -> None:
    for path in ("/user", UPLOAD + "?path=p"):
        answered = asgi("GET" if path == "/user" else "POST", path, headers=headers, auth=auth)
        assert answered.status_code == 401
        assert answered.headers["www-authenticate"].split()[0] == scheme


# ---- what the log says


class Logged:
    """The service, and the lines of its log."""

    def __init__(self, asgi: Application, file: Path) -> None:
        self.asgi = asgi
        self.file = file

    def last(self, event: str = "request") -> dict[str, Any]:
        lines = [json.loads(line) for line in self.file.read_text().splitlines()]
        found: dict[str, Any] = next(line for line in reversed(lines) if line["event"] == event)
        return found


@pytest.fixture
def logged(tmp_path: Path) -> Iterator[Logged]:
    file = tmp_path / "log"
    (tmp_path / "objects").mkdir()
    with file.open("w", buffering=1) as stream, application(objects=f"file://{tmp_path / 'objects'}") as found:
        logs.configure_logs(LogSettings(format="json"), stream)
        found.lake.create_repository("alpha")
        yield Logged(found, file)


WHERE = {"client": "127.0.0.1", "repository": "alpha", "branch": "main"}
WHAT = {"route": "/repositories/{repository}/branches/{branch}/objects"}


def said(logged: Logged) -> dict[str, Any]:
    return {
        name: value
        for name, value in logged.last().items()
        if name in ("client", "repository", "branch", "route", "key", "claimed_key")
    }


def test_a_line_says_who_did_what_from_where(logged: Logged) -> None:
    logged.asgi("POST", UPLOAD, params={"path": "p"}, content=b"x")
    assert said(logged) == WHERE | WHAT | {"key": KEY_ID}
    logged.asgi("POST", "/repositories/alpha/refs/main/merge/other")
    assert said(logged)["branch"] == "other"


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_a_line_of_a_refusal_does_too(logged: Logged, method: str) -> None:
    """The first is refused before it comes to the routes. What is claimed is not taken for what is known."""
    for _ in range(WRONG_MAX):
        assert logged.asgi(method, UPLOAD, params={"path": "p"}, auth=(KEY_ID, WRONG)).status_code == 401
    assert said(logged) == WHERE | WHAT | {"key": None, "claimed_key": KEY_ID}
    assert logged.asgi(method, UPLOAD, params={"path": "p"}, auth=(KEY_ID, WRONG)).status_code == 429
    assert said(logged) == WHERE | WHAT | {"key": None, "claimed_key": KEY_ID}
    made = access_keys.create_key(logged.asgi.lake, access_keys.Role.READER)
    assert logged.asgi(method, UPLOAD, params={"path": "p"}, auth=(made.key.id, made.secret)).status_code == 403
    assert said(logged) == WHERE | WHAT | {"key": made.key.id}
    assert logged.asgi(method, UPLOAD, params={"path": "p"}, auth=None).status_code == 401
    assert said(logged) == WHERE | WHAT | {"key": None, "claimed_key": ""}
    logged.asgi(method, UPLOAD, params={"path": "p"}, headers={"Sec-Fetch-Site": "cross-site"})
    assert said(logged) == WHERE | WHAT | {"key": None, "claimed_key": KEY_ID}


def test_a_login_that_fails_and_a_token_that_is_not_valid_name_their_key(logged: Logged) -> None:
    token = logged.asgi(
        "POST", "/auth/login", json={"access_key_id": KEY_ID, "secret_access_key": SECRET}, auth=None
    ).json()["token"]
    logged.asgi("POST", "/auth/login", json={"access_key_id": KEY_ID, "secret_access_key": WRONG}, auth=None)
    assert said(logged)["claimed_key"] == KEY_ID
    logged.asgi("GET", "/user", headers={"Authorization": f"Bearer {token}x"}, auth=None)
    assert said(logged)["claimed_key"] == KEY_ID
    logged.asgi("GET", "/../../metrics", headers={"Authorization": f"Bearer {token}x"}, auth=None)
    assert (said(logged)["route"], said(logged)["claimed_key"]) == ("/metrics", KEY_ID)


@pytest.mark.parametrize("key_id", ["a\nb", "a b", "x" * 200, "\u2028abc", ""])
def test_what_is_no_key_or_branch_does_not_get_into_the_log(logged: Logged, key_id: str) -> None:
    logged.asgi("GET", "/repositories/alpha/branches/a%0Ab", auth=(key_id, WRONG))
    assert (said(logged)["claimed_key"], said(logged)["branch"]) == ("", None)


def test_a_planted_link_is_the_operators_to_hear_of(logged: Logged, tmp_path: Path) -> None:
    """It is tampering with the store, and no mistake of whoever reads."""
    (tmp_path / "secret").write_text("not yours")
    address = (
        logged.asgi("POST", UPLOAD, params={"path": "p"}, content=b"body")
        .json()["physical_address"]
        .removeprefix("file://")
    )
    Path(address).unlink()
    Path(address).symlink_to(tmp_path / "secret")
    answered = logged.asgi("GET", "/repositories/alpha/refs/main/objects", params={"path": "p"})
    assert (answered.status_code, answered.json()["code"]) == (500, "store_misconfigured")
    assert "not yours" not in answered.text
    told = logged.last("request_failed")
    assert told["level"] == "error"
    assert "symbolic link" in told["error"]
    folder = Path(address).parent
    Path(address).unlink()
    folder.rmdir()
    folder.symlink_to(tmp_path)
    assert logged.asgi("GET", "/repositories/alpha/refs/main/objects", params={"path": "p"}).status_code == 500


# ---- readiness


class ScannedKV(MemoryKV):
    def __init__(self) -> None:
        super().__init__()
        self.scans = 0

    def scan(self, partition: str, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[tuple[str, bytes]]:
        self.scans += 1
        return super().scan(partition, prefix=prefix, after=after, limit=limit)


def test_readiness_makes_nothing(tmp_path: Path) -> None:
    """A folder that is gone, such as that of a disk that is not mounted, is not ready, however often anybody asks."""
    root = tmp_path / "objects"
    with application(objects=f"file://{root}") as found:
        found.lake.create_repository("alpha")
        url = "http://lake.test/readiness"
        assert found("GET", url, auth=None).status_code == 200
        root.rename(tmp_path / "elsewhere")
        for _ in range(3):
            found.clock.advance(1)
            answered = found("GET", url, auth=None)
            assert (answered.status_code, answered.json()) == (503, {"status": "not ready"})
            assert not root.exists()
        (tmp_path / "elsewhere").rename(root)
        found.clock.advance(1)
        assert found("GET", url, auth=None).status_code == 200


def test_readiness_looks_at_the_stores_once_a_second_however_many_ask() -> None:
    import asyncio

    kv: KV = ScannedKV()
    assert isinstance(kv, ScannedKV)
    with application(kv=kv) as found:
        url = "http://lake.test/readiness"

        async def all_at_once() -> list[int]:
            return [
                answered.status_code for answered in await asyncio.gather(*(found.http.get(url) for _ in range(50)))
            ]

        before = kv.scans
        assert found.runner.run(all_at_once()) == [200] * 50
        assert kv.scans == before + 1
        found.clock.advance(1)
        assert found.runner.run(all_at_once()) == [200] * 50
        assert kv.scans == before + 2
