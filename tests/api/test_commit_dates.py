"""The date that a client gives a commit: who may thereby decide what expires."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from refstore.operations import rules_document
from refstore.retention.active_commits import ExpiryState, compute_expiry
from refstore.service import access_keys
from refstore.service.access_keys import Role
from tests.api.service import Application, application

DAY_SECONDS = 86_400


@pytest.fixture
def service() -> Iterator[Application]:
    with application() as app:
        repo = app.lake.create_repository("sales")
        repo.set_retention(json.dumps({"default_retention_days": 365}))
        yield app


@pytest.mark.parametrize(
    ("role", "date", "expires"),
    [
        (Role.WRITER, 0, False),
        (Role.WRITER, 4_000_000_000, True),
        (Role.OPERATOR, 0, True),
        (Role.OPERATOR, 4_000_000_000, False),
    ],
)
def test_a_writers_date_is_shown_and_retention_counts_from_the_services_clock(
    service: Application, role: Role, date: int, expires: bool
) -> None:
    """Dated 0, a commit would let the head before it expire at once; dated ahead, it would keep it for ever."""
    repo = service.lake.repository("sales")
    old_head = repo.commit("main", "old head", allow_empty=True).id
    service.clock.advance(400 * DAY_SECONDS)
    key = access_keys.create_key(service.lake, role)
    body = {"message": "dated", "date": date, "allow_empty": True}
    made = service("POST", "/repositories/sales/branches/main/commits", json=body, auth=(key.key.id, key.secret)).json()
    assert made["creation_date"] == date
    if date:
        service.clock.advance(366 * DAY_SECONDS)
    history, refs = rules_document.read_history(repo.context)
    now_ms = repo.context.clock.now_ms()
    retention = repo.retention()
    assert retention is not None
    assert (old_head in compute_expiry(history, refs, retention.rules, now_ms).commits(ExpiryState.EXPIRED)) == expires
