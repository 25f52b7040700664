"""Attacks on the pages: forged forms, other sites, stolen tokens, large bodies."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable

import httpx
import pytest

from refstore.configuration.settings import embedded_urls
from refstore.gc_marks import Marks, RunState
from refstore.service import access_keys
from refstore.service.access_keys import Role
from tests.api.conftest import serving
from tests.ui.conftest import DAY_ZERO, HOSTILE, KEYS, SECRET, Client, Site, fill

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

MakeClient = Callable[..., Client]
ACTS = (
    ("/ui/repositories/sales/trash/restore", "writer"),
    ("/ui/repositories/sales/marks/{mark}/unmark", "operator"),
    ("/ui/repositories/sales/marks/{mark}/confirm", "operator"),
    ("/ui/repositories/sales/runs/{mark}/stop", "operator"),
    ("/ui/repositories/sales/rules/edit", "operator"),
    ("/ui/repositories/sales/resume", "operator"),
    ("/ui/repositories/events/purges/{purge}/restore", "operator"),
    ("/ui/keys/create", "operator"),
    ("/ui/keys/UI-READER/revoke", "operator"),
)
RANK = {"reader": 1, "writer": 2, "operator": 3}


def place(path: str, site: Site) -> str:
    return path.format(mark=site.mark, purge=site.purge)


@pytest.mark.parametrize(("path", "role"), ACTS)
def test_an_act_needs_its_role(client: MakeClient, site: Site, path: str, role: str) -> None:
    for other, rank in RANK.items():
        if rank < RANK[role]:
            made = client(other)
            form = {"form_token": made.form_token("/ui"), "confirmed": "yes"}
            assert made.http.post(place(path, site), data=form).status_code == 403, other


@pytest.mark.parametrize(("path", "role"), ACTS)
def test_an_act_needs_a_form_of_its_own_session(client: MakeClient, site: Site, path: str, role: str) -> None:
    made, other = client(role), client(role)
    stolen = other.form_token("/ui")
    for form in ({}, {"form_token": ""}, {"form_token": "0" * 64}, {"form_token": stolen}):
        answer = made.http.post(place(path, site), data={**form, "confirmed": "yes"})
        assert answer.status_code == 403, form
        assert "this form belongs to another session" in answer.text
    assert any(key.id == "UI-READER" for key in access_keys.scan_keys(site.lake.kv))
    assert Marks(site.lake.repository("sales").context).runs.get(site.mark).state is RunState.NEEDS_CONFIRMATION


@pytest.mark.parametrize(("path", "role"), ACTS)
def test_another_sites_page_sends_nothing(client: MakeClient, site: Site, path: str, role: str) -> None:
    made = client(role)
    form = {"form_token": made.form_token("/ui"), "confirmed": "yes"}
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "https://evil.test"}):
        assert made.http.post(place(path, site), data=form, headers=headers).status_code == 403


@pytest.mark.parametrize(("path", "role"), ACTS)
def test_without_a_session_there_is_only_the_sign_in_page(site: Site, path: str, role: str) -> None:
    for headers in ({}, {"Cookie": "refstore_session=x"}, {"Cookie": "refstore_session=a.b.c"}):
        answer = httpx.post(site.url + place(path, site), data={"confirmed": "yes"}, headers=headers)
        assert (answer.status_code, answer.headers["location"]) == (303, "/ui/sign-in")
    answer = httpx.get(site.url + "/ui/keys", auth=(KEYS["operator"], SECRET))  # a browser would store it
    assert answer.status_code == 303


def test_the_cookie_is_out_of_reach_for_scripts_and_other_sites(client: MakeClient) -> None:
    made = client()
    answer = made.sign_in(KEYS["reader"])
    cookie = next(each for each in answer.headers.get_list("set-cookie") if each.startswith("refstore_session="))
    attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/ui"} <= attributes
    assert "secure" not in attributes  # it came over plain HTTP, on loopback


def test_behind_tls_the_cookie_is_secure_and_below_the_proxys_path(site: Site, client: MakeClient) -> None:
    kv, objects = embedded_urls(site.folder / "lake")
    public = {"REFSTORE_API_PUBLIC_URL": "https://lake.test/data"}
    with serving(site.folder / secrets.token_hex(4), kv, objects, "--no-reaper", environment=public) as running:
        made = Client(running.url)
        page = made.http.get("/ui/sign-in")
        assert 'action="/data/ui/sign-in"' in page.text
        cookie = page.headers["set-cookie"]
        assert "secure" in cookie.lower()
        assert "path=/data/ui" in cookie.lower()
        made.http.close()


def test_every_page_has_a_strict_policy_and_no_inline_code(client: MakeClient, site: Site) -> None:
    made = client("operator")
    for path in ("/ui", "/ui/keys", "/ui/repositories/sales", f"/ui/repositories/sales/marks/{site.mark}", "/ui/none"):
        answer = made.http.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-frame-options"] == "DENY"
        tags = "".join(re.findall(r"<[^>]*>", answer.text))  # what users stored is text between them
        assert not re.search(r"\son\w+=|style=|<style|<script(?! src=)|javascript:", tags), path
        assert not re.search(r"(?:src|href|action)=\"(?:https?:)?//", answer.text), path


def test_stored_text_stays_text_in_every_answer(client: MakeClient, site: Site) -> None:
    made = client("operator")
    for path in ("", "/commits", "/trash", "/rules", "/rules/history", "/objects?prefix=2026/", "/objects?ref=dev/one"):
        assert HOSTILE not in made.http.get(f"/ui/repositories/sales{path}").text


@pytest.mark.parametrize(
    "wanted",
    [
        "https://evil.test/",
        "//evil.test/",
        "/\\evil.test",
        "javascript:alert(1)",
        "/api/v1/config",
        "/ui\r\nX: y",
        "ui",
    ],
)
def test_signing_in_leads_to_no_other_place(client: MakeClient, wanted: str) -> None:
    answer = client().sign_in(KEYS["reader"], next=wanted)
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui")


def test_nobody_sends_much_before_signing_in(site: Site, client: MakeClient) -> None:
    made = client()
    made.http.headers["Origin"] = site.url
    form = {"form_token": made.form_token("/ui/sign-in"), "access_key_id": "x" * 20_000}
    assert made.http.post("/ui/sign-in", data=form).status_code == 413
    assert made.http.post("/ui/sign-in", content=b"{}", headers={"content-type": "text/plain"}).status_code == 400
    body = "&".join(f"a{number}=" for number in range(2100)).encode()
    headers = {"content-type": "application/x-www-form-urlencoded"}
    assert made.http.post("/ui/sign-in", content=body, headers=headers).status_code in (400, 413)
    assert made.http.post("/ui/sign-in", content=b"a=%ff", headers=headers).status_code == 400


def test_the_sign_in_form_belongs_to_one_browser(site: Site, client: MakeClient) -> None:
    made, other = client(), client()
    form = {"form_token": other.form_token("/ui/sign-in"), "access_key_id": KEYS["reader"], "secret_access_key": SECRET}
    made.http.get("/ui/sign-in")
    assert made.http.post("/ui/sign-in", data=form).status_code == 403
    assert httpx.post(site.url + "/ui/sign-in", data=form).status_code == 403


def test_guesses_are_counted(site: Site, client: MakeClient) -> None:
    key = access_keys.create_key(site.lake, Role.READER).key.id
    statuses = {client().sign_in(key, f"a wrong secret, number {number:04}").status_code for number in range(25)}
    assert statuses == {401, 429}


def test_ended_tokens_end_sessions(site: Site, client: MakeClient) -> None:
    created = access_keys.create_key(site.lake, Role.READER)
    made = client()
    assert made.sign_in(created.key.id, created.secret).status_code == 303
    assert made.http.get("/ui").status_code == 200
    access_keys.end_tokens(site.lake, created.key.id)
    for _ in range(40):
        if made.http.get("/ui").status_code == 303:
            return
        time.sleep(0.5)
    raise AssertionError("the session goes on")


def test_a_key_of_one_repository_acts_in_no_other(site: Site, client: MakeClient) -> None:
    repo = site.repository()
    fill(repo, commits=3)
    repo.set_retention(json.dumps(DAY_ZERO))
    mark = site.standing_mark(repo)
    made = client("UI-RESTRICTED")
    form = {"form_token": made.form_token("/ui"), "confirmed": "yes"}
    assert made.http.post(f"/ui/repositories/{repo.name}/marks/{mark}/unmark", data=form).status_code == 403
    assert made.http.post("/ui/keys/create", data={**form, "role": "operator"}).status_code == 403
    assert Marks(repo.context).runs.get(mark).state is RunState.MARKED
