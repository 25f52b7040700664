"""What answers and pages give away or do by mistake: redirections, transport security, proxies, previews, hosts."""

from __future__ import annotations

import json
import os
import re
import socket
from typing import Any

import httpx
import pytest

from refstore.configuration.settings import ApiSettings, ReaperSettings
from refstore.errors import Invalid
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.mark_records import GcFlag
from refstore.records.reaper_records import Heartbeat
from refstore.service import access_keys
from refstore.service.access_keys import Role
from refstore_api.models import RESUME_SECONDS_MAX
from refstore_api.ui import trash
from refstore_reaper import breaker
from refstore_reaper.daemon import Reaper
from tests.api.service import Application, application
from tests.api.test_security_sessions import Browser

# ---- where answers lead, and what they promise


@pytest.mark.parametrize("public_url", ["", "https://lake.test"])
@pytest.mark.parametrize("path", ["/", "/ui", "/ui/", "/ui/keys/", "/api/v1/repositories/", "/docs/", "/readiness/"])
def test_no_redirection_leads_to_the_host_of_the_request(public_url: str, path: str) -> None:
    with application(ApiSettings(public_url=public_url)) as found:
        answered = found("GET", f"http://lake.test{path}", headers={"Host": "evil.test"})
        assert "evil" not in answered.headers.get("location", "")
        assert answered.headers.get("location", "/ui").startswith("/ui")


def test_a_page_with_a_slash_behind_it_is_found(alpha: Application) -> None:
    answered = alpha("GET", "http://lake.test/ui/")
    assert (answered.status_code, answered.headers["location"]) == (303, "/ui")


@pytest.mark.parametrize(
    ("public_url", "promised"), [("https://lake.test", True), ("http://lake.test", False), ("", False)]
)
def test_browsers_keep_to_tls_where_the_public_url_has_it(public_url: str, promised: bool) -> None:
    with application(ApiSettings(public_url=public_url)) as found:
        for path in ("/api/v1/user", "/api/v1/none", "/ui/sign-in", "/healthcheck"):
            answered = found("GET", f"http://lake.test{path}")
            assert (answered.headers.get("strict-transport-security") == "max-age=31536000") == promised, path


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        ("198.51.100.7", "198.51.100.7"),
        ("198.51.100.7:8080", "198.51.100.7"),
        ("[2001:db8::7]:8080", "2001:db8::7"),
        ("unknown", "10.0.0.1"),
        ("_hidden", "10.0.0.1"),
        ("198.51.100.7, unknown", "10.0.0.1"),
        ("fe80::1%any text", "10.0.0.1"),
        ("x" * 300, "10.0.0.1"),
        ("", "10.0.0.1"),
    ],
)
def test_what_a_trusted_proxy_names_is_an_address(forwarded: str, client: str) -> None:
    from tests.kit.logged_events import collecting_events

    with application(ApiSettings(trusted_proxies=("10.0.0.0/8",))) as found, collecting_events() as events:
        transport = httpx.ASGITransport(found.app, client=("10.0.0.1", 1))
        http = httpx.AsyncClient(transport=transport, base_url="http://lake.test")
        found.runner.run(http.get("/api/v1/user", headers={"X-Forwarded-For": forwarded}))
        assert [line["client"] for line in events if line["event"] == "request"] == [client]


# ---- acts that nobody looked at


def proof(page: str) -> str:
    found = re.search(r'name="confirmed" value="([0-9a-f]+)"', page)
    assert found is not None, page
    return found[1]


def hidden(page: str) -> dict[str, Any]:
    from html import unescape

    return {name: unescape(value) for name, value in re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page)}


@pytest.fixture
def browser(alpha: Application) -> Browser:
    found = Browser(alpha)
    assert found.sign_in().status_code == 303
    return found


def test_nobody_revokes_a_key_unseen(alpha: Application, browser: Browser) -> None:
    one, other = (access_keys.create_key(alpha.lake, Role.READER).key.id for _ in range(2))
    form = {"form_token": browser.form_token("/ui")}
    seen = proof(browser("GET", f"/ui/keys/{other}/revoke").text)
    for confirmed in ({}, {"confirmed": "yes"}, {"confirmed": "0" * 64}, {"confirmed": seen}):
        assert browser("POST", f"/ui/keys/{one}/revoke", data=form | confirmed).status_code == 409
    assert {key.id for key in access_keys.scan_keys(alpha.lake.kv)} >= {one, other}
    assert browser("POST", f"/ui/keys/{other}/revoke", data=form | {"confirmed": seen}).status_code == 200
    assert other not in {key.id for key in access_keys.scan_keys(alpha.lake.kv)}


def test_what_one_session_has_seen_another_has_not(alpha: Application, browser: Browser) -> None:
    key = access_keys.create_key(alpha.lake, Role.READER).key.id
    again = Browser(alpha)
    again.sign_in()
    form = {"form_token": browser.form_token("/ui"), "confirmed": proof(again("GET", f"/ui/keys/{key}/revoke").text)}
    assert browser("POST", f"/ui/keys/{key}/revoke", data=form).status_code == 409


def test_nobody_restores_unseen(alpha: Application, browser: Browser) -> None:
    repo = alpha.lake.repository("alpha")
    for path in ("a/1", "a/2", "b/1"):
        repo.upload("main", path, b"x")
    repo.delete_many("main", ["a/1", "a/2", "b/1"])
    url = "/ui/repositories/alpha/trash/restore"
    form = {"form_token": browser.form_token("/ui"), "all": "yes", "branch": "main", "to": ""}

    asked = browser("POST", url, data=form | {"prefix": "a/", "confirmed": "yes"}).text
    assert "2 objects" in asked
    assert not list(repo.list("main"))
    widened = hidden(asked) | {"prefix": ""}
    assert "3 objects" in browser("POST", url, data=widened).text  # asked again, and for all of them
    assert not list(repo.list("main"))
    assert "Restored" in browser("POST", url, data=hidden(asked)).text
    assert len(list(repo.list("main"))) == 2


def test_what_the_page_shows_is_what_is_restored(alpha: Application, browser: Browser) -> None:
    repo = alpha.lake.repository("alpha")
    turned = "a/\u202e\n1"
    lost = [turned, *(f"a/{number}" for number in range(8))]
    for path in lost:
        repo.upload("main", path, b"x")
    repo.delete("main", turned)
    url = "/ui/repositories/alpha/trash/restore"
    form = {"form_token": browser.form_token("/ui"), "all": "yes", "branch": "main", "to": "", "prefix": "a/"}
    asked = browser("POST", url, data=form).text
    assert ("1 objects" in asked, "a/\\u202e" in asked) == (True, True)
    repo.delete_many("main", lost[1:])

    again = browser("POST", url, data=hidden(asked)).text
    assert "The trash has changed since this page was shown" in again
    assert all(path in again for path in lost[1:])
    assert not list(repo.list("main"))
    assert "9 objects" in browser("POST", url, data=hidden(again)).text
    assert sorted(item.path for item in repo.list("main")) == sorted(lost)


def test_a_chosen_object_returns_to_the_path_that_was_shown(alpha: Application, browser: Browser) -> None:
    """An object may have been lost at several paths."""
    repo = alpha.lake.repository("alpha")
    repo.create_branch("dev", source="main")
    repo.upload("dev", "a b\nc", b"x")
    repo.copy("dev", "a b\nc", to_branch="dev", to_path="z")
    repo.delete_branch("dev")
    items = re.findall(r'name="item" value="([^"]+)"', browser("GET", "/ui/repositories/alpha/trash").text)
    restored: list[str] = []
    for item in items:
        url = "/ui/repositories/alpha/trash/restore"
        form = {"form_token": browser.form_token("/ui"), "item": item, "to": "main"}
        browser("POST", url, data=hidden(browser("POST", url, data=form).text))
        restored += [found.path for found in repo.list("main")]
        repo.delete_many("main", restored)
    assert restored == ["a b\nc", "z"]


def test_one_act_restores_no_more_than_its_page_names(
    alpha: Application, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trash, "OBJECTS_MAX", 2)
    repo = alpha.lake.repository("alpha")
    for path in ("1", "2", "3"):
        repo.upload("main", path, b"x")
    repo.delete_many("main", ["1", "2", "3"])
    url = "/ui/repositories/alpha/trash/restore"
    form = {"form_token": browser.form_token("/ui"), "all": "yes", "branch": "main", "to": ""}
    asked = browser("POST", url, data=form).text
    assert ("2 objects" in asked, "Left for the next time" in asked) == (True, True)
    browser("POST", url, data=hidden(asked))
    assert [found.path for found in repo.list("main")] == ["1", "2"]


def test_nobody_sets_rules_unseen(alpha: Application, browser: Browser) -> None:
    url = "/ui/repositories/alpha/rules/edit"
    rules = '{\r\n "default_retention_days": 5, "branches": [], "grace_days": 7}'
    form = hidden(browser("GET", url).text) | {"document": rules, "confirmed": "yes"}
    repo = alpha.lake.repository("alpha")

    preview = browser("POST", url, data=form).text
    assert "Nothing is saved yet" in preview
    assert repo.retention() is None
    answer = hidden(preview)
    assert "Nothing is saved yet" in browser("POST", url, data=answer | {"document": rules.replace("5", "0")}).text
    assert repo.retention() is None
    assert "The rules are set" in browser("POST", url, data=answer | {"document": rules}).text
    assert repo.retention() is not None


def test_no_form_removes_a_hold_that_it_does_not_name(alpha: Application, browser: Browser) -> None:
    repo = alpha.lake.repository("alpha")
    prefix = "a/\u202e 1%31\nb"
    repo.set_retention(json.dumps({"default_retention_days": 5, "legal_holds": [{"prefix": prefix}]}))
    url = "/ui/repositories/alpha/rules/edit"
    form = hidden(browser("GET", url).text) | {"document": '{"default_retention_days": 5}'}
    preview = browser("POST", url, data=form).text
    answer = hidden(preview)
    (name,) = re.findall(r'name="remove" value="([^"]*)"', preview)
    for removed in ([], ["hold:a/"], ["hold:a"], ["yes"], ["unreadable"]):
        assert browser("POST", url, data=answer | {"remove": removed}).status_code == 409
    assert repo.retention().rules.legal_holds  # type: ignore[union-attr]  # rules are set
    assert "The rules are set" in browser("POST", url, data=answer | {"remove": name}).text
    assert not repo.retention().rules.legal_holds  # type: ignore[union-attr]  # rules are set


# ---- how long nothing guards


@pytest.mark.parametrize("seconds", [0, -1, RESUME_SECONDS_MAX + 1, 3600 * 10**9, float("inf"), float("nan")])
def test_deletion_does_not_go_on_unguarded_for_ever(alpha: Application, seconds: float) -> None:
    ctx = alpha.lake.repository("alpha").context
    with pytest.raises(Invalid, match="at most 30 days"):
        breaker.resume(ctx, seconds=seconds)
    breaker.resume(ctx, seconds=RESUME_SECONDS_MAX)
    assert breaker.RESUME_SECONDS_MAX == RESUME_SECONDS_MAX


def test_nor_by_a_page_or_a_call() -> None:
    with application() as found:
        found.lake.create_repository("alpha")
        browser = Browser(found)
        browser.sign_in()
        url = "/ui/repositories/alpha/resume"
        form = hidden(browser("GET", url).text)
        answered = browser("POST", url, data=form | {"bound": "hours", "amount": str(10**9)})
        assert (answered.status_code, "1 to 720 hours" in answered.text) == (400, True)
        body = {"seconds": RESUME_SECONDS_MAX + 1}
        assert found("POST", "/repositories/alpha/reaper/resume", json=body).status_code == 400


# ---- what pages show of the machines


def test_readers_do_not_learn_hosts_and_processes() -> None:
    with application() as found:
        repo = found.lake.create_repository("alpha", grace_seconds=0)
        address = repo.upload("main", "p", b"x").address
        repo.delete("main", "p")
        key = access_keys.create_key(found.lake, Role.READER)
        operator, reader = Browser(found), Browser(found)
        operator.sign_in()
        reader.sign_in(access_key_id=key.key.id, secret_access_key=key.secret)
        own = f"-{os.getpid()}-"
        names = [own, f"process {os.getpid()}"] + ([socket.gethostname()] if len(socket.gethostname()) > 5 else [])
        with Reaper(found.lake, ReaperSettings(), grace_seconds=0, asynchronous=False) as daemon:
            daemon.run_once(lambda: False)
        now_ms = found.clock.now_ms()
        beat = Heartbeat(socket.gethostname(), os.getpid(), now_ms, now_ms, 10)
        found.lake.kv.set(keys.heartbeat(f"host-{os.getpid()}-abc"), encode(beat))
        flag = GcFlag("m", now_ms, now_ms, f"host-{os.getpid()}-abc")
        found.lake.kv.set(keys.gc_flag(repo.context.repo), encode(flag))
        pages = ("/reapers", f"/repositories/alpha/address?address={address}", "/repositories/alpha/runs")
        for path in (f"/ui{page}" for page in pages):
            page = reader("GET", path)
            assert page.status_code == 200, (path, page.text)
            assert not [name for name in names if name in page.text], path
            assert own in operator("GET", path).text, path
        url = "/repositories/alpha/addresses/why"
        asked = {"params": {"physical_address": address}}
        assert own in found("GET", url, **asked).text
        told = found("GET", url, auth=(key.key.id, key.secret), **asked)
        assert told.json()["events"]
        assert own not in told.text
