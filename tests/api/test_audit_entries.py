"""What the service writes to the audit log: which key did it, from which address, by which route."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

import pytest

from refstore.audit import AuditEntry, AuditLog
from refstore.audit.audit_reader import entries_newest_first
from refstore.audit.audit_verification import AuditVerification
from refstore.gc_marks import Marks
from refstore.kv.memory import MemoryKV
from tests.api.conftest import KEY_ID, SECRET
from tests.api.service import Application, application
from tests.kit.faults import Faults, FaultyObjects
from tests.purge.tracking import DOCUMENT

RULES = {"default_retention_days": 5, "branches": []}
REPO = "/repositories/sales"

CALLS = {
    "branch.delete": ("DELETE", f"{REPO}/branches/dev", None),
    "tag.delete": ("DELETE", f"{REPO}/tags/v1", None),
    "repository.delete": ("DELETE", REPO, None),
    "rules.set": ("PUT", f"{REPO}/settings/gc_rules", RULES),
    "rules.delete": ("DELETE", f"{REPO}/settings/gc_rules", None),
    "purge.onboard": ("PUT", f"{REPO}/purge/document", {"document": json.dumps(DOCUMENT)}),
    "gc.confirm": ("POST", f"{REPO}/gc/marks/mark-one/confirm", None),
    "gc.unmark": ("DELETE", f"{REPO}/gc/marks/mark-one", None),
}
MUST = ("rules.set", "rules.delete", "purge.onboard", "gc.confirm")


@pytest.fixture
def app() -> Iterator[Application]:
    with application(kv=MemoryKV()) as made:
        repo = made.lake.create_repository("sales")
        repo.upload("main", "a", b"1")
        repo.commit("main", "first")
        repo.create_branch("dev", source="main")
        repo.create_tag("v1", ref="main")
        repo.set_retention('{"default_retention_days": 3}')
        marks = Marks(repo.context)
        marks.mark_run.finish(
            marks.mark_run.begin("digest", 0, [], "mark-one"), {"objects": 3}, question="all of it would go"
        )
        made.clock.advance(1)
        yield made


def entries(app: Application) -> list[AuditEntry]:
    return [read.entry for read in entries_newest_first(app.lake.kv, app.lake.own_store) if read.entry]


def break_store(app: Application) -> None:
    lake = app.lake
    down = FaultyObjects(lake.own_store, Faults(request_lost=1.0), Random(1), app.clock)
    lake.audit_log = AuditLog(lake.kv, lambda: down, app.clock, lake.ids, lake.durations)


@pytest.mark.parametrize("action", CALLS)
def test_an_entry_says_which_key_did_it_from_where(app: Application, action: str) -> None:
    method, path, body = CALLS[action]
    before = len(entries(app))
    assert app(method, path, json=body).is_success
    added = entries(app)[: len(entries(app)) - before]
    assert [entry.act.outcome for entry in added] == (["done", "begun"] if action in MUST else ["done"])
    for entry in added:
        act = entry.act
        assert (act.action, act.repository) == (action, "sales")
        assert (act.actor.kind, act.actor.id, act.actor.address) == ("http", KEY_ID, "127.0.0.1")
        assert act.actor.command.startswith(f"{method} /repositories/{{repository}}")
    assert list(AuditVerification(app.lake.kv, app.lake.own_store).findings()) == []


@pytest.mark.parametrize("action", CALLS)
def test_a_store_that_is_down_stops_changes_and_no_deletion(app: Application, action: str) -> None:
    method, path, body = CALLS[action]
    break_store(app)
    answer = app(method, path, json=body)
    if action in MUST:
        assert answer.status_code == 503
        assert answer.json()["code"] == "audit_unavailable"
        assert "nothing was changed" in answer.json()["message"]
        assert answer.headers["Retry-After"]
        if action.startswith("rules"):
            assert app("GET", f"{REPO}/settings/gc_rules").json()["default_retention_days"] == 3
    else:
        assert answer.is_success
        app.lake.audit_log = None
        app.reap()
        assert entries(app)[0].act.action == action
        assert entries(app)[0].act.actor.id == KEY_ID


def test_the_log_holds_no_secret_of_a_caller(app: Application) -> None:
    token = app("POST", "/auth/login", json={"access_key_id": KEY_ID, "secret_access_key": SECRET}).json()["token"]
    for method, path, body in list(CALLS.values())[:2]:
        assert app(method, path, json=body, headers={"Authorization": f"Bearer {token}"}, auth=None).is_success
    bodies = [app.lake.own_store.read(info.key).decode() for info in app.lake.own_store.list("_refstore/audit/")]
    assert not [body for body in bodies for secret in (SECRET, token, token.rpartition(".")[2]) if secret in body]
