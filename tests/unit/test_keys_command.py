"""`refstore keys`: expiry, rotation, and the end of secrets and tokens, as an operator does them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from refstore.configuration.settings import embedded_urls
from refstore.core.durations import parse_duration, write_duration
from refstore.errors import InvalidSettings
from refstore.lake import open_lake_at
from refstore.service import access_keys
from tests.commands import Command

PARTS = ("tokens", "old-secret", "s3-secrets", "old-s3-secret")


@pytest.fixture
def key(refstore: Command) -> dict[str, Any]:
    found: dict[str, Any] = refstore.json("keys", "create", "--role", "writer", "--description", "nightly")
    return found


def listed(refstore: Command, key_id: str) -> dict[str, Any]:
    return next(row for row in refstore.json("keys", "list") if row["access_key_id"] == key_id)


def test_a_key_with_an_expiry_shows_it(refstore: Command, key: dict[str, Any]) -> None:
    expiring = refstore.json("keys", "create", "--expires", "30d")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", expiring["expires"])
    assert listed(refstore, expiring["access_key_id"])["expires"] == expiring["expires"]
    assert key["expires"] is None
    assert listed(refstore, key["access_key_id"])["expires"] is None


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1w", "0d", "99999d", "1e9d", "nan"])
def test_an_expiry_that_is_no_length_of_time_is_refused(refstore: Command, text: str) -> None:
    ran = refstore("keys", "create", f"--expires={text}")
    assert ran.code == 2
    assert "--expires" in ran.err


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("6h", 21_600), ("1.5d", 129_600)])
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert parse_duration("--overlap", text) == seconds
    for wrong in ("6 hours", "400d", "0.5s", "inf"):
        with pytest.raises(InvalidSettings, match="is no duration"):
            parse_duration("--overlap", wrong)


def test_a_key_lists_its_role_its_expiry_and_its_last_use(refstore: Command, key: dict[str, Any]) -> None:
    row = listed(refstore, key["access_key_id"])
    assert set(row) == {
        "access_key_id", "role", "repositories", "buckets", "description", "created", "expires", "last_used",
        "old_secret_ends", "s3_secret_created", "old_s3_secret_ends",
    }  # fmt: skip
    refstore.ok("keys", "create", "--bucket", "warehouse=lake:dev", "--description", "pins")
    [pinning] = [row for row in refstore.json("keys", "list") if row["description"] == "pins"]
    assert pinning["buckets"] == ["warehouse=lake:dev"]
    assert (row["role"], row["last_used"]) == ("writer", None)
    with open_lake_at(*embedded_urls(refstore.folder / "lake")) as lake:
        access_keys.note_use(lake.kv, lake.clock, key["access_key_id"])
    assert listed(refstore, key["access_key_id"])["last_used"] is not None
    assert "last used" in refstore.ok("keys", "list").out


def test_a_rotation_shows_the_new_secret_once_and_when_the_old_one_ends(refstore: Command, key: dict[str, Any]) -> None:
    rotated = refstore.json("keys", "rotate", key["access_key_id"], "--overlap", "6h")
    assert rotated["secret_access_key"] != key["secret_access_key"]
    row = listed(refstore, key["access_key_id"])
    assert row["old_secret_ends"] == rotated["old_secret_ends"]
    assert not {rotated["secret_access_key"], key["secret_access_key"]} & set(refstore.ok("keys", "list").out.split())
    assert refstore("keys", "rotate", key["access_key_id"]).code == 4
    end = ("keys", "revoke", key["access_key_id"], "--only", "old-secret", "--yes")
    assert refstore.json(*end)["revoked"] == "old-secret"
    assert listed(refstore, key["access_key_id"])["old_secret_ends"] <= rotated["old_secret_ends"]
    assert refstore(*end).code == 4
    assert refstore("keys", "rotate", key["access_key_id"]).code == 0


def test_a_rotation_at_once_asks_first(refstore: Command, key: dict[str, Any]) -> None:
    assert refstore("keys", "rotate", key["access_key_id"], "--now").code == 2
    assert listed(refstore, key["access_key_id"])["old_secret_ends"] is None
    assert refstore.json("keys", "rotate", key["access_key_id"], "--now", "--yes")["secret_access_key"]
    refused = refstore("keys", "rotate", key["access_key_id"], "--now", "--overlap", "1d", "--yes")
    assert (refused.code, "contradict" in refused.err) == (2, True)


def test_ending_tokens_asks_first(refstore: Command, key: dict[str, Any]) -> None:
    end = ("keys", "revoke", key["access_key_id"], "--only", "tokens")
    assert refstore(*end).code == 2
    assert refstore.json(*end, "--yes") == {"access_key_id": key["access_key_id"], "revoked": "tokens"}
    assert listed(refstore, key["access_key_id"])["role"] == "writer", "the key stays"


def test_an_s3_secret_is_made_rotated_and_ended(refstore: Command, key: dict[str, Any]) -> None:
    key_id = key["access_key_id"]
    made = refstore.json("keys", "rotate", key_id, "--s3")
    assert made["old_s3_secret_ends"] is None
    row = listed(refstore, key_id)
    assert (row["s3_secret_created"] is not None, row["old_s3_secret_ends"]) == (True, None)
    rotated = refstore.json("keys", "rotate", key_id, "--s3", "--overlap", "6h")
    assert listed(refstore, key_id)["old_s3_secret_ends"] == rotated["old_s3_secret_ends"] is not None
    assert refstore("keys", "rotate", key_id, "--s3").code == 4
    assert refstore("keys", "revoke", key_id, "--only", "s3-secrets").code == 2
    refstore.ok("keys", "revoke", key_id, "--only", "old-s3-secret", "--yes")
    row = listed(refstore, key_id)
    assert (row["s3_secret_created"] is not None, row["old_s3_secret_ends"]) == (True, None)
    assert refstore("keys", "rotate", key_id, "--s3", "--now").code == 2
    last = refstore.json("keys", "rotate", key_id, "--s3", "--now", "--yes")
    refstore.ok("keys", "revoke", key_id, "--only", "s3-secrets", "--yes")
    assert listed(refstore, key_id)["s3_secret_created"] is None
    assert refstore("keys", "revoke", key_id, "--only", "s3-secrets", "--yes").code == 4
    shown = {made["s3_secret_access_key"], rotated["s3_secret_access_key"], last["s3_secret_access_key"]}
    assert len(shown) == 3
    entries = (refstore.folder / "lake").rglob("*")
    assert not [each for each in entries if each.is_file() and any(one.encode() in each.read_bytes() for one in shown)]


def test_an_s3_secret_needs_a_server_key(refstore: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REFSTORE_DATA")
    for name, url in zip(("REFSTORE_KV", "REFSTORE_OBJECTS"), embedded_urls(refstore.folder / "lake"), strict=True):
        monkeypatch.setenv(name, url)
    key_id = refstore.json("keys", "create")["access_key_id"]
    ran = refstore("keys", "rotate", key_id, "--s3")
    assert (ran.code, "REFSTORE_S3_SECRETS_KEY" in ran.err) == (2, True)
    monkeypatch.setenv("REFSTORE_S3_SECRETS_KEY", "k" * 32)
    assert refstore("keys", "rotate", key_id, "--s3").code == 0


@pytest.mark.parametrize("words", ["rotate", "rotate --s3", "revoke", *(f"revoke --only {part}" for part in PARTS)])
def test_a_key_that_does_not_exist_is_said_so(refstore: Command, key: dict[str, Any], words: str) -> None:
    del key
    ran = refstore("keys", *words.split(), "RSNOBODY", "--yes")
    assert ran.code == 3
    assert "refstore keys list" in ran.err


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0"), (0.25, "250ms"), (90, "90s"), (129_600, "36h"), (604_800, "7d")]
)
def test_a_duration_is_written_as_it_is_read(seconds: float, text: str) -> None:
    assert write_duration(seconds) == text
    assert parse_duration("--wait", text, least=0) == seconds
