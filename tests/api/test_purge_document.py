"""Data sets are onboarded for the purge over HTTP, by operators."""

from __future__ import annotations

import json

import httpx
import pytest

from refstore.audit import Act
from refstore.audit.audit_reader import entries_newest_first
from refstore.core.json_documents import CHARACTERS_MAX
from refstore.records import keys
from refstore.service import access_keys
from tests.api.conftest import KEY_ID
from tests.api.service import Application, application
from tests.purge.tracking import DOCUMENT

PURGE = "/repositories/sales/purge/document"
TEXT = json.dumps(DOCUMENT)


def onboarded(service: Application) -> list[Act]:
    """Return what the audit log has about the document, newest first."""
    entries = (read.entry for read in entries_newest_first(service.lake.kv, service.lake.own_store))
    return [entry.act for entry in entries if entry is not None and entry.act.action == "purge.onboard"]


def code_of(refused: httpx.Response) -> tuple[int, str]:
    return refused.status_code, refused.json()["code"]


def test_a_document_is_set_and_read() -> None:
    with application() as service:
        repo = service.lake.create_repository("sales")
        assert service("GET", PURGE).status_code == 404
        text = json.dumps({**DOCUMENT, "whitelist": ["tracking.*", "other"]}, indent=1)
        answered = service("PUT", PURGE, json={"document": text})
        assert answered.status_code == 200
        assert answered.json()["document"] == text
        assert answered.json()["datasets"] == [
            {"name": "tracking.event", "prefix": "tracking/event/", "mode": "keep-history", "is_whitelisted": True}
        ]
        assert answered.json()["warnings"] == ["nothing is described for 'other' of the whitelist"]
        assert service("GET", PURGE).json() == answered.json()
        assert repo.purge_document().text == text


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"document": '{"whitelist": ["a"],\n "datasets": [{"name": "a"}]}'}, "datasets[0]: Object missing"),
        ({"document": "{"}, "line 1, column 2"),
        ({"document": '{\n  "whitelists": []}'}, "did you mean 'whitelist'?"),
        ({"document": '{"whitelist": ["\\ud800"]}'}, "truncated"),
        ({"document": "[" * 100_000}, "too many levels"),
        ({"document": TEXT + " " * CHARACTERS_MAX}, str(CHARACTERS_MAX)),
        ({"document": 7}, "document"),
        ({}, "document"),
    ],
)
def test_a_document_with_a_mistake_is_refused_and_the_old_one_stays(body: object, told: str) -> None:
    with application() as service:
        service.lake.create_repository("sales")
        service("PUT", PURGE, json={"document": TEXT})
        refused = service("PUT", PURGE, json=body)
        assert refused.status_code == 400
        assert told in refused.json()["message"]
        assert json.loads(service("GET", PURGE).json()["document"]) == DOCUMENT


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_repository_that_is_not_there_is_told(method: str) -> None:
    with application() as service:
        body = {"document": TEXT} if method == "PUT" else None
        assert code_of(service(method, PURGE, json=body)) == (404, "repository_not_found")


def test_a_data_set_that_is_not_on_the_whitelist_is_shown_as_not_purged() -> None:
    with application() as service:
        service.lake.create_repository("sales")
        answered = service("PUT", PURGE, json={"document": json.dumps({**DOCUMENT, "whitelist": []})}).json()
        assert [each["is_whitelisted"] for each in answered["datasets"]] == [False]
        assert answered["warnings"] == ["data set 'tracking.event' is not on the whitelist: it is not purged"]


def test_readers_of_the_repository_see_it_and_operators_set_it() -> None:
    with application() as service:
        repo = service.lake.create_repository("sales")
        repo.onboard_purge(TEXT, by="tests")
        for role, repositories, seen, status in [
            (access_keys.Role.READER, (), 200, 403),
            (access_keys.Role.WRITER, ("sales",), 200, 403),
            (access_keys.Role.OPERATOR, ("other",), 403, 403),
            (access_keys.Role.OPERATOR, ("sales",), 200, 200),
        ]:
            made = access_keys.create_key(service.lake, role, repositories=repositories)
            auth = (made.key.id, made.secret)
            assert service("GET", PURGE, auth=auth).status_code == seen, (role, repositories)
            assert service("PUT", PURGE, auth=auth, json={"document": "{}"}).status_code == status, (role, repositories)
            assert repo.purge_document().set_by == (made.key.id if status == 200 else "tests")


def test_a_body_beyond_the_limit_is_refused_and_changes_nothing() -> None:
    with application() as service:
        service.lake.create_repository("sales")
        refused = service("PUT", PURGE, json={"document": TEXT + " " * (2 << 20)})
        assert code_of(refused) == (413, "too_large")
        assert service("GET", PURGE).status_code == 404


def test_the_audit_log_has_what_was_there_and_what_is() -> None:
    with application() as service:
        service.lake.create_repository("sales")
        for text in (TEXT, "{}"):
            assert service("PUT", PURGE, json={"document": text}).status_code == 200
        second, _, first, _ = onboarded(service)
        assert (first.outcome, first.before, second.before) == ("done", None, first.after)
        assert first.after is not None
        assert second.after is not None
        for after, text in ((first.after, TEXT), (second.after, "{}")):
            assert {**after, "write_id": ""} == {"document": text, "set_by": KEY_ID, "write_id": ""}
        assert first.after["write_id"] != second.after["write_id"]


def test_the_audit_log_has_nothing_of_a_document_that_is_refused() -> None:
    with application() as service:
        service.lake.create_repository("sales")
        assert code_of(service("PUT", PURGE, json={"document": "{"})) == (400, "invalid_purge")
        assert onboarded(service) == []


def test_a_document_that_cannot_be_read_is_told_and_can_be_replaced() -> None:
    with application() as service:
        repo = service.lake.create_repository("sales")
        service.lake.kv.set(keys.purge_document(repo.context.repo), b"no record")
        assert code_of(service("GET", PURGE)) == (500, "corrupt_record")
        assert service("PUT", PURGE, json={"document": TEXT}).status_code == 200
        assert service("GET", PURGE).json()["document"] == TEXT
        assert onboarded(service)[0].before == {"unreadable": True}
