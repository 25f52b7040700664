"""A KV is put back to an older copy: what keeps more holds. No revoked key lives again, no legal hold is forgotten."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from refstore.audit.audit_reader import read_histories
from refstore.errors import AlreadyExists
from refstore.kv_recovery.superseded_records import settle_superseded_records
from refstore.lake import Lake
from refstore.records import keys
from refstore.records.encoding import encode
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
    losing.run.ok("config", "--set", "issue=70s")
    losing.put_back()
    assert losing.run("kv", "verify").code == 6
    done = losing.run.json("kv", "reconcile", "--clients-stopped")["restored_records"]
    assert [row["kind"] for row in done] == ["durations"]
    losing.run.ok("kv", "verify")


def test_the_audit_log_is_whole_again_once_its_gap_is_accepted(losing: Losing) -> None:
    """The issue: `audit verify` ended with 6 for ever after an honest restore."""
    run = losing.run
    run.ok("keys", "create")
    losing.copy()
    id_ = run.json("keys", "create")["access_key_id"]
    run.ok("keys", "revoke", id_, "--yes")
    losing.put_back()
    run.ok("kv", "reconcile", "--clients-stopped")
    ran = run("audit", "verify")
    assert ran.code == 6
    assert "refstore audit accept" in ran.out
    assert id_ not in run.ok("audit", "log").out
    named = run.json("audit", "accept", "--dry-run")
    assert {(row["action"], row["target"]) for row in named} == {("key.create", id_), ("key.revoke", id_)}
    assert run("audit", "accept").code == 2, "without a terminal it needs --yes"
    assert run("audit", "verify").code == 6
    assert "4 entries were accepted" in run.ok("audit", "accept", "--yes").err
    for _ in range(2):
        ran = run.ok("audit", "verify")
        assert "accepted gap" in ran.out
    assert id_ in run.ok("audit", "log").out
    assert run.json("audit", "accept", "--yes") == []
    assert [row["outcome"] for row in run.json("audit", "log", "--action", "audit.accept")] == ["done", "begun"]


@pytest.mark.parametrize("reaped", [False, True], ids=["waiting", "confirmed"])
def test_doctor_names_what_is_known_to_be_lost(losing: Losing, reaped: bool) -> None:
    """The issue: it said of a KV that lost commits that nothing is lost, and named no repository."""
    run = losing.run
    losing.commit("main", "a")
    run.ok("reaper", "--once")
    losing.copy()
    lost = losing.commit("main", "b")
    run.ok("repo", "create", "other")
    if reaped:
        run.ok("reaper", "--once")
    losing.put_back()
    found = {check["check"]: check for check in run("doctor", "--json").json if check["state"] == "error"}
    assert lost[:12] in found["repository sales"]["found"]
    assert "repository 'other'" in found["deletion"]["found"]
    for check in found.values():
        assert "refstore kv reconcile" in check["advice"]
    assert "nothing is lost" not in run("doctor").out
    run.ok("kv", "reconcile", "--clients-stopped")
    assert not [check for check in run("doctor", "--json").json if check["state"] == "error"]


def test_rules_of_an_earlier_repository_of_the_name_are_not_put_back(losing: Losing) -> None:
    set_rules(losing, HOLD)
    with losing.lake() as lake:
        ctx = lake.repository("sales").context
        lake.kv.delete(keys.retention_rules(ctx.repo))
        assert [item.kind for item in settle_superseded_records(lake, dry_run=True)] == ["retention rules"]
        changed = read_histories(lake.kv, lake.own_store)["rules", "sales", ""].last_done
        assert changed is not None
        made_again = replace(lake.repository("sales").record, created_ms=changed.written_ms + 1)
        lake.kv.set(keys.repository(ctx.name), encode(made_again))
        assert settle_superseded_records(lake, dry_run=True) == []


def test_a_healthy_lake_has_nothing_to_settle(losing: Losing) -> None:
    """Whatever was changed, in whatever order, and whether or not it was done."""
    with losing.lake() as lake:
        for id_ in ("one", "two", "gone"):
            access_keys.create_key(lake, Role.WRITER, id=id_)
        for _ in range(3):
            s3_secrets.make_s3_secret(lake, CIPHER, "one", overlap_ms=0)
            s3_secrets.end_s3_secrets(lake, "one")
            access_keys.rotate_secret(lake, "two", overlap_ms=0)
            access_keys.end_tokens(lake, "two")
        access_keys.revoke_key(lake, "gone")
        access_keys.create_key(lake, Role.READER, id="gone")
        with pytest.raises(AlreadyExists):
            access_keys.create_key(lake, Role.READER, id="gone")
        record = access_keys.find_key(lake.kv, "two")
        assert record is not None
        died = lake.audit.change("key.rotate", target="two", before=access_keys.audit_values(record), after={"x": 1})
        with suppress(KeyboardInterrupt), died:
            raise KeyboardInterrupt
        access_keys.rotate_secret(lake, "two", overlap_ms=0)  # its caller made the call again
    for days in (7, 30, 7):
        set_rules(losing, {"default_retention_days": days})
    losing.run.ok("retention", "delete", "sales", "--yes", "--remove", "tag:*")
    set_rules(losing, HOLD)
    for seconds in (70, 80, 70):
        losing.run.ok("config", "--set", f"issue={seconds}s")
    with losing.lake() as lake:
        assert settle_superseded_records(lake, dry_run=True) == []


def test_a_reaper_revokes_at_once_and_settles_when_it_may(losing: Losing) -> None:
    """A commit was lost as well, so it deletes nothing; and no key waits for an operator."""
    run = losing.run
    losing.commit("main", "a")
    run.ok("reaper", "--once")
    with losing.lake() as lake:
        secret = access_keys.create_key(lake, Role.OPERATOR, id="key").secret
    losing.copy()
    losing.commit("main", "b")
    run.ok("keys", "revoke", "key", "--yes")
    set_rules(losing, HOLD)
    losing.put_back()
    assert run("reaper", "--once").code in (5, 6)
    with losing.lake() as lake:
        assert not is_valid(lake, "key", secret)
        assert lake.repository("sales").retention() is None, "rules wait until operations have ended"


def test_what_a_reaper_settles_by_itself(losing: Losing) -> None:
    """Nothing of the manifest is lost, so no operator is needed, and the holds are back before anything is deleted."""
    run = losing.run
    run.ok("reaper", "--once")
    losing.copy()
    set_rules(losing, HOLD)
    losing.put_back()
    assert any(run("reaper", "--once").code == 0 for _ in range(1000))  # 5: it waits for operations
    assert parse(rules(losing)["document"]) == parse(HOLD)


def test_the_service_revokes_before_it_answers(losing: Losing, monkeypatch: pytest.MonkeyPatch) -> None:
    run = losing.run
    run.ok("reaper", "--once")
    with losing.lake() as lake:
        secret = access_keys.create_key(lake, Role.OPERATOR, id="key").secret
    losing.copy()
    run.ok("keys", "revoke", "key", "--yes")
    losing.put_back()
    answered: list[bool] = []

    def answer(*_args: object, **_options: object) -> None:
        with losing.lake() as lake:
            answered.append(is_valid(lake, "key", secret))

    monkeypatch.setattr("refstore_api.server.serve_requests", answer)
    run.ok("serve", "--port", "0", "--no-reaper")
    assert answered == [False]
