"""A KV is put back to an older copy: what keeps more holds. No revoked key lives again, no legal hold is forgotten."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from refstore.lake import Lake
from refstore.records.lake_records import SecretHash
from refstore.retention.rules import Rules, read_rules
from refstore.service import access_keys, s3_secrets
from refstore.service.access_keys import Role
from tests.commands import Command
from tests.unit.losing_lake import Losing, make_losing_lake

CIPHER = s3_secrets.SecretCipher(b"a server key of more than 32 characters")
HOLD: dict[str, Any] = {"legal_holds": [{"prefix": "contracts/", "reason": "case 4711"}]}


@pytest.fixture
def losing(refstore: Command, monkeypatch: pytest.MonkeyPatch) -> Losing:
    return make_losing_lake(refstore, monkeypatch)


def is_valid(lake: Lake, id_: str, secret: str) -> bool:
    """Whether the service accepts the secret."""
    record = access_keys.find_key(lake.kv, id_)
    proven = access_keys.find_secret(record, secret) if record is not None else None
    if record is None or proven is None:
        return False
    return not access_keys.refusal(id_, record, proven, lake.clock.now_ms())


def key_outcomes(rows: list[dict[str, Any]]) -> dict[str, str]:
    return {row["name"]: row["outcome"] for row in rows if row["kind"] == "access key"}


def set_rules(losing: Losing, rules: dict[str, Any], *words: str) -> None:
    losing.run.ok("retention", "set", "sales", "-", *words, stdin=json.dumps(rules).encode())


def parse(document: dict[str, Any]) -> Rules:
    return read_rules(json.dumps(document)).rules


def rules(losing: Losing) -> Any:
    return losing.run.json("retention", "get", "sales")


def test_a_revoked_key_does_not_live_again(losing: Losing) -> None:
    """The issue: copy the KV, revoke the key, put the copy back, reconcile."""
    run = losing.run
    made = run.json("keys", "create", "--role", "operator")
    id_, secret = made["access_key_id"], made["secret_access_key"]
    losing.copy()
    run.ok("keys", "revoke", id_, "--yes")
    losing.put_back()
    with losing.lake() as lake:
        assert is_valid(lake, id_, secret), "the copy has the key"

    ran = run("kv", "verify")
    assert ran.code == 6
    assert f"access key {id_}" in ran.out
    assert "key.revoke" in ran.out
    assert "Nothing is missing" not in ran.out
    planned = run.json("kv", "reconcile", "--dry-run")
    with losing.lake() as lake:
        assert is_valid(lake, id_, secret), "a dry run changes nothing"
    done = run.json("kv", "reconcile", "--clients-stopped")
    assert key_outcomes(done["restored_records"]) == key_outcomes(planned["restored_records"])
    with losing.lake() as lake:
        assert not is_valid(lake, id_, secret)
    assert run.json("keys", "list") == []
    run.ok("kv", "verify")
    assert "nothing to reconcile" in run.ok("kv", "reconcile", "--clients-stopped").out

    losing.put_back()  # once more, after what the first reconcile has written
    assert run("kv", "verify").code == 6
    run.ok("kv", "reconcile", "--clients-stopped")
    assert run.json("keys", "list") == []


def test_a_revocation_that_died_behind_its_entry_counts_as_done(losing: Losing) -> None:
    id_ = losing.run.json("keys", "create")["access_key_id"]
    with losing.lake() as lake:
        record = access_keys.find_key(lake.kv, id_)
        assert record is not None
        change = lake.audit.change("key.revoke", target=id_, before=access_keys.audit_values(record))
        with pytest.raises(KeyboardInterrupt), change:
            raise KeyboardInterrupt
    assert losing.run("kv", "verify").code == 6
    losing.run.ok("kv", "reconcile", "--clients-stopped")
    assert losing.run.json("keys", "list") == []


CHANGES: dict[str, tuple[Callable[[Lake], object], str]] = {
    "rotate": (lambda lake: access_keys.rotate_secret(lake, "key", overlap_ms=0), "its new secret is lost"),
    "set": (lambda lake: access_keys.ensure_key(lake, "key", "another-secret-of-enough"), "its new secret is lost"),
    "rotate, with an overlap": (
        lambda lake: access_keys.rotate_secret(lake, "key", overlap_ms=3_600_000),
        "its new secret is lost",
    ),
    "end tokens": (lambda lake: access_keys.end_tokens(lake, "key"), "its tokens have ended"),
    "end the overlap": (lambda lake: access_keys.end_overlap(lake, "key"), "its tokens have ended"),
    "end S3 secrets": (lambda lake: s3_secrets.end_s3_secrets(lake, "key"), "its tokens have ended"),
    "revoke": (lambda lake: access_keys.revoke_key(lake, "key"), "revoked again"),
    "make it anew": (
        lambda lake: (access_keys.revoke_key(lake, "key"), access_keys.create_key(lake, Role.READER, id="key")),
        "revoked again",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_change_of_a_key_ended_stays_ended(losing: Losing, name: str) -> None:
    change, outcome = CHANGES[name]
    with losing.lake() as lake:
        first = access_keys.create_key(lake, Role.WRITER, id="key", repositories=["sales"]).secret
        second = access_keys.rotate_secret(lake, "key", overlap_ms=3_600_000).secret
        s3_secrets.make_s3_secret(lake, CIPHER, "key", overlap_ms=0)
        access_keys.create_key(lake, Role.READER, id="other")
    if name.startswith("rotate"):
        with losing.lake() as lake:
            access_keys.end_overlap(lake, "key")
    losing.copy()
    with losing.lake() as lake:
        before = access_keys.find_key(lake.kv, "key")
        change(lake)
        expected = [is_valid(lake, "key", secret) for secret in (first, second)]
        changed = access_keys.find_key(lake.kv, "key")
    losing.put_back()
    done = losing.run.json("kv", "reconcile", "--clients-stopped")["restored_records"]
    found = key_outcomes(done)
    assert list(found) == ["key"]
    assert found["key"].startswith(outcome)
    with losing.lake() as lake:
        after = access_keys.find_key(lake.kv, "key")
        assert [is_valid(lake, "key", secret) for secret in (first, second)] == expected
        if outcome == "revoked again":
            assert after is None
        else:
            assert before is not None
            assert after is not None
            assert changed is not None
            assert (after.role, after.repositories) == (before.role, before.repositories)
            assert after.token_generation > max(before.token_generation, changed.token_generation)
            assert {each.created_ms for each in after.s3_secrets} <= {each.created_ms for each in changed.s3_secrets}
            assert is_valid(lake, "key", access_keys.rotate_secret(lake, "key", overlap_ms=0).secret)
    losing.run.ok("kv", "verify")


def test_a_secret_of_before_a_rotation_cannot_be_set_from_the_environment(losing: Losing) -> None:
    """It ended by the rotation, which the KV forgot."""
    with losing.lake() as lake:
        old = access_keys.create_key(lake, Role.OPERATOR, id="first").secret
    losing.copy()
    with losing.lake() as lake:
        access_keys.rotate_secret(lake, "first", overlap_ms=0)
    losing.put_back()
    losing.run.ok("kv", "reconcile", "--clients-stopped")
    with losing.lake() as lake:
        with pytest.raises(access_keys.Conflict, match="ended"):
            access_keys.ensure_key(lake, "first", old)
        access_keys.ensure_key(lake, "first", "a-new-secret-from-the-environment")  # the operator's way in
        assert is_valid(lake, "first", "a-new-secret-from-the-environment")


def test_a_key_that_is_lost_is_named_once_and_not_enabled(losing: Losing) -> None:
    losing.copy()
    made = losing.run.json("keys", "create", "--role", "reader")
    losing.put_back()
    assert f"access key {made['access_key_id']}: lost" in losing.run("kv", "verify").out
    losing.run.ok("kv", "reconcile", "--clients-stopped")
    assert losing.run.json("keys", "list") == []
    losing.run.ok("kv", "verify")


def test_sessions_end_with_a_reconcile(losing: Losing) -> None:
    """A session that had ended may be open again, and no log names it."""
    with losing.lake() as lake:
        access_keys.create_key(lake, Role.READER, id="key")
    losing.copy()
    losing.commit("main", "a")
    losing.put_back()
    with losing.lake() as lake:
        record = access_keys.find_key(lake.kv, "key")
        assert record is not None
        token = access_keys.make_token_mark(record, SecretHash(record.salt, record.hash))
    done = losing.run.json("kv", "reconcile", "--clients-stopped")["restored_records"]
    assert "sessions" in {row["kind"] for row in done}
    with losing.lake() as lake:
        record = access_keys.find_key(lake.kv, "key")
        assert record is not None
        assert access_keys.find_token_secret(record, token) is None


def test_a_hold_and_a_pin_are_put_back_and_more_than_they_is_withheld(losing: Losing) -> None:
    run = losing.run
    commit = losing.commit("main", "contracts/a")
    set_rules(losing, {"default_retention_days": 7, "pins": {"tags": False}})
    losing.copy()
    set_rules(losing, {"default_retention_days": 30, "pins": {"tags": ["v*"], "commits": [commit]}, **HOLD})
    losing.put_back()
    ran = run("kv", "verify")
    assert ran.code == 6
    for name in ("retention rules", "hold:contracts/", f"pin:{commit}", "tag:v*"):
        assert name in ran.out
    run.ok("kv", "reconcile", "--clients-stopped")
    found = rules(losing)
    assert found["document"]["legal_holds"] == HOLD["legal_holds"]
    assert found["document"]["pins"] == {"tags": ["v*"], "commits": [commit]}
    assert found["document"]["default_retention_days"] == 7
    assert "may let more expire" in found["withheld"]
    run.ok("kv", "verify")

    ran = run("gc", "run", "sales", "--engine", "local")
    assert ran.code == 6
    assert "nothing expires in 'sales'" in ran.err
    doctor = run("doctor", "--json").json
    assert ("repository sales", "error") in {(check["check"], check["state"]) for check in doctor}
    assert rules(losing)["withheld"]
    set_rules(losing, found["document"])
    assert not rules(losing)["withheld"]
    run.ok("gc", "run", "sales", "--engine", "local")


@pytest.mark.parametrize(
    ("older", "newer", "is_withheld"),
    [
        ({"default_retention_days": 30}, {"default_retention_days": 7}, False),
        ({"default_retention_days": 7}, {"default_retention_days": 30}, True),
        ({"default_retention_days": 7}, {}, True),
        ({}, {"default_retention_days": 7}, False),
        ({**HOLD, "keep_last": 2}, {"keep_last": 1}, False),
        ({"branches": [{"branch_id": "a", "retention_days": 1}]}, {"default_retention_days": 1}, True),
        ({"rules": [{"filter": {"prefix": "tmp/"}, "expiration": {"noncurrent": {"days": 1}}}]}, HOLD, True),
        ({"default_retention_days": 7, "grace_days": 1}, {"default_retention_days": 7, "grace_days": 7}, True),
    ],
)
def test_rules_that_keep_more_hold(
    losing: Losing, older: dict[str, Any], newer: dict[str, Any], is_withheld: bool
) -> None:
    set_rules(losing, older)
    losing.copy()
    set_rules(losing, newer, *(("--remove", "hold:contracts/") if "legal_holds" in older else ()))
    losing.put_back()
    losing.run.ok("kv", "reconcile", "--clients-stopped")
    found = rules(losing)
    holds = [*older.get("legal_holds", []), *newer.get("legal_holds", [])]
    assert parse(found["document"]) == parse({**older, "legal_holds": holds})
    assert bool(found["withheld"]) == is_withheld
    losing.run.ok("kv", "verify")


@pytest.mark.parametrize("rebuilt", [False, True], ids=["reconcile", "rebuild"])
def test_rules_that_are_lost_leave_their_holds(losing: Losing, rebuilt: bool) -> None:
    losing.copy()
    set_rules(losing, {"default_retention_days": 1, **HOLD})
    if rebuilt:
        losing.lose()
        losing.run.ok("kv", "rebuild", "--yes")
    else:
        losing.put_back()
        losing.run.ok("kv", "reconcile", "--clients-stopped")
    assert parse(rules(losing)["document"]) == parse(HOLD)
    losing.run.ok("gc", "run", "sales", "--engine", "local")


def test_rules_that_were_deleted_since_let_nothing_expire(losing: Losing) -> None:
    set_rules(losing, {"default_retention_days": 1, "pins": {"tags": False}})
    losing.copy()
    losing.run.ok("retention", "delete", "sales", "--yes")
    losing.put_back()
    losing.run.ok("kv", "reconcile", "--clients-stopped")
    assert rules(losing)["withheld"]
    losing.run.ok("retention", "delete", "sales", "--yes")
    losing.run.ok("gc", "run", "sales", "--engine", "local")


def test_an_older_purge_document_is_withdrawn(losing: Losing) -> None:
    def onboard(identifier: str) -> None:
        data_set = {"name": "orders", "prefix": "orders/", "format": "csv", "identifier": identifier, "mode": "rewrite"}
        document = {"whitelist": ["orders"], "datasets": [data_set]}
        losing.run.ok("purge", "onboard", "sales", "-", stdin=json.dumps(document).encode())

    onboard("customer")
    losing.copy()
    onboard("buyer")
    losing.put_back()
    assert "purge document sales: withdrawn" in losing.run("kv", "verify").out
    losing.run.ok("kv", "reconcile", "--clients-stopped")
    assert losing.run("purge", "show", "sales").code == 3
    losing.run.ok("kv", "verify")
    onboard("customer")
    losing.run.ok("kv", "verify")


def test_durations_are_set_again(losing: Losing) -> None:
    losing.copy()
    losing.run.ok("durations", "set", "clock_skew_seconds=0.2")
    losing.put_back()
    assert losing.run("kv", "verify").code == 6
    done = losing.run.json("kv", "reconcile", "--clients-stopped")["restored_records"]
    assert [row["kind"] for row in done] == ["durations"]
    losing.run.ok("kv", "verify")
