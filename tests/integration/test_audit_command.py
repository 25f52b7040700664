"""`refstore audit`, and what commands write to the log; on the KVs there are."""

from __future__ import annotations

import getpass
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from refstore.audit.audit_reader import entries_newest_first
from refstore.audit.audit_verification import AuditVerification, FindingKind
from refstore.kv import open_kv
from refstore.lake import Lake
from refstore.records import keys
from refstore.service import access_keys
from refstore.service.access_keys import Role
from tests.commands import Command


def files(command: Command) -> list[Path]:
    return sorted((command.folder / "lake" / "objects" / "_refstore" / "audit").rglob("*.json"))


def test_commands_say_who_and_which_command(sales: Command, tmp_path: Path) -> None:
    rules = tmp_path / "rules.json"
    rules.write_text('{"default_retention_days": 3}')
    sales.ok("branch", "create", "sales", "dev")
    sales.ok("tag", "create", "sales", "v1", "--from", "main")
    made = sales.ok("keys", "create", "--role", "reader", "--json").json
    sales.ok("keys", "rotate", made["access_key_id"], "--now", "--yes")
    sales.ok("retention", "set", "sales", rules)
    sales.ok("branch", "delete", "sales", "dev", "--yes")
    sales.ok("tag", "delete", "sales", "v1", "--yes")
    sales.ok("keys", "revoke", made["access_key_id"], "--yes")
    sales.ok("repo", "delete", "sales", "--yes")
    shown = sales.ok("audit", "log", "--json").json
    done = [(row["action"], row["actor"]["command"]) for row in reversed(shown) if row["outcome"] == "done"]
    assert done == [
        ("key.create", "refstore keys create"),
        ("key.rotate", "refstore keys rotate"),
        ("rules.set", "refstore retention set"),
        ("branch.delete", "refstore branch delete"),
        ("tag.delete", "refstore tag delete"),
        ("key.revoke", "refstore keys revoke"),
        ("repository.delete", "refstore repo delete"),
    ]
    assert {(row["actor"]["kind"], row["actor"]["id"], row["actor"]["address"]) for row in shown} == {
        ("cli", getpass.getuser(), socket.gethostname())
    }
    assert len(files(sales)) == 11
    assert not [path for path in files(sales) if made["secret_access_key"] in path.read_text()]
    assert sales.ok("audit", "verify", "--json").json == []


def test_the_log_is_filtered(sales: Command) -> None:
    first = sales.ok("keys", "create", "--json").json["access_key_id"]
    sales.ok("keys", "create")
    sales.ok("branch", "create", "sales", "dev")
    sales.ok("branch", "delete", "sales", "dev", "--yes")

    def actions(*options: str) -> list[str]:
        return [row["action"] for row in sales.ok("audit", "log", "--json", *options).json]

    assert actions() == ["branch.delete", *["key.create"] * 4]
    assert actions("--limit", "2") == ["branch.delete", "key.create"]
    assert actions("--action", "key.*", "--limit", "0") == ["key.create"] * 4
    assert actions("--action", "branch.delete") == ["branch.delete"]
    assert actions("--repository", "sales") == ["branch.delete"]
    assert actions("--by", "nobody") == []
    assert actions("--since", "2999-01-01") == []
    assert len(actions("--since", "2020-01-01")) == 5
    assert first in sales.ok("audit", "log").out


def test_damage_is_named_and_ends_with_6(sales: Command) -> None:
    for _ in range(2):
        sales.ok("keys", "create")
    changed = files(sales)[0]
    changed.write_text(changed.read_text().replace("key.create", "key.revoke"))
    ran = sales("audit", "verify", "--json")
    assert ran.code == 6
    assert [(row["finding"], row["damage"], row["number"]) for row in ran.json] == [("changed", True, 1)]
    assert changed.parent.name == ran.json[0]["chain"]
    files(sales)[-1].unlink()
    ran = sales("audit", "verify")
    assert ran.code == 6
    assert "tail cut" in ran.out
    assert "2 faults were found" in ran.err
    ran = sales("audit", "log")
    assert ran.code == 6
    assert "refstore audit verify" in ran.err


def test_processes_at_once_write_chains_of_their_own(sales: Command) -> None:
    with ThreadPoolExecutor(2) as pool:
        ran = list(pool.map(lambda _: sales.process("keys", "create", "--json"), range(2)))
    assert len({each.json["access_key_id"] for each in ran}) == 2
    assert len({path.parent for path in files(sales)}) == 2
    assert sales.ok("audit", "verify", "--json").json == []


@pytest.mark.parametrize("kv", ["sqlite", "redis_url"])
def test_the_log_on_a_real_kv(request: pytest.FixtureRequest, tmp_path: Path, kv: str) -> None:
    # a lake of its own on the Redis that other tests have used
    url = f"sqlite:///{tmp_path}/kv.db" if kv == "sqlite" else request.getfixturevalue(kv) + "?prefix=audited"
    with (
        Lake(open_kv(url), f"file://{tmp_path}/objects") as lake,
        Lake(open_kv(url), f"file://{tmp_path}/objects") as other,
    ):
        repo = lake.create_repository("sales")
        repo.create_branch("dev", source="main")
        access_keys.create_key(other, Role.READER, id="key")
        repo.delete_branch("dev")
        access_keys.revoke_key(other, "key")
        found = [read.entry.act.action for read in entries_newest_first(lake.kv, lake.own_store) if read.entry]
        assert found == ["key.revoke", "key.revoke", "branch.delete", "key.create", "key.create"]
        assert list(AuditVerification(lake.kv, lake.own_store).findings()) == []
        assert lake.kv.count(keys.AUDIT_WAITING, limit=1) == 0
        last = max(info.key for info in lake.own_store.list("_refstore/audit/"))
        lake.own_store.delete_many([last])
        assert [finding.kind for finding in AuditVerification(lake.kv, lake.own_store).findings()] == [FindingKind.CUT]
