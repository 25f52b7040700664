"""Keys: where everything stands in the KV. What stands here can never move once there is data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refstore.core import ids
from refstore.core.ids import (
    Address,
    BranchName,
    CommitId,
    Path,
    RandomIds,
    RepositoryId,
    RepositoryName,
    TagName,
    Token,
)
from refstore.errors import CorruptRecord
from refstore.kv.base import Key
from refstore.records import keys

REPO = RepositoryId("lake.01j8x6w3vr0000000000000000")
TOKEN = Token("a/b:01j8x6w3vr0000000000000000")
ADDRESS = Address("data/2023111422/01j8x6w3vr0000000000000000")
COMMIT = CommitId("c" * 64)


def test_where_things_stand() -> None:
    assert keys.repository(RepositoryName("lake")) == Key("repositories", "lake")
    assert keys.closed_repository(REPO) == Key("closed-repositories", REPO)
    assert keys.branch(REPO, BranchName("a/b")) == Key(f"{REPO}/branches", "a/b")
    assert keys.tag(REPO, TagName("v1")) == Key(f"{REPO}/tags", "v1")
    assert keys.token(REPO, TOKEN) == Key(f"{REPO}/tokens", TOKEN)
    assert keys.entry(REPO, TOKEN, Path("x/y")) == Key(f"{REPO}/staging/{TOKEN}", "x/y")
    assert keys.reference(REPO, ADDRESS) == Key(f"{REPO}/references/23", ADDRESS)
    assert keys.due_hint(REPO, 1_700_000_000_000, ADDRESS) == Key(f"{REPO}/due/23", f"1700000000000/{ADDRESS}")
    assert keys.deleted_token(REPO, TOKEN) == Key(f"{REPO}/staging/deleted", TOKEN)
    assert keys.committed_marker(REPO, COMMIT) == Key(f"{REPO}/staging/committed", COMMIT)
    assert keys.commit(REPO, COMMIT) == Key(f"{REPO}/commits", COMMIT)
    assert keys.mark(REPO, COMMIT) == Key(f"{REPO}/marks", COMMIT)
    assert keys.gc_flag(REPO) == Key(f"{REPO}/gc", "on")
    assert keys.gc_run(REPO, "m1") == Key(f"{REPO}/gc/runs", "m1")
    assert keys.gc_pin(REPO, "m1", ADDRESS) == Key(f"{REPO}/gc/pins", f"m1/{ADDRESS}")
    assert keys.gc_marked_commit(REPO, "m1", COMMIT) == Key(f"{REPO}/gc/marked/m1", COMMIT)
    upload_id = ids.upload_id_of(ADDRESS)
    assert keys.upload(REPO, BranchName("a/b"), Path("x/y"), upload_id) == Key(
        f"{REPO}/uploads", f"a/b\x01x/y\x01{upload_id}"
    )
    assert keys.upload_part(REPO, upload_id, 7, ADDRESS) == Key(f"{REPO}/parts/{upload_id}", f"00007/{ADDRESS}")
    assert keys.reaper_state(REPO, "breaker") == Key(f"{REPO}/reaper", "breaker")
    assert keys.retention_rules(REPO) == Key(f"{REPO}/retention", "rules")
    assert keys.lease(REPO, "due/00") == Key("leases", f"{REPO}/due/00")
    assert keys.heartbeat("host-1") == Key("reapers", "host-1")


def test_the_number_of_shards_never_changes() -> None:
    """It decides where a reference is looked for: with another number every reference would seem to be gone."""
    assert keys.SHARDS == 64
    assert [keys.shard_of(Address(f"data/2023111422/{n:026d}")) for n in range(4)] == [9, 31, 37, 51]


def test_references_are_spread() -> None:
    source = RandomIds()
    seen = [0] * keys.SHARDS
    for n in range(6400):
        seen[keys.shard_of(ids.new_address(source, 1_700_000_000_000 + n))] += 1
    assert min(seen) > 40
    assert max(seen) < 200


def test_no_token_has_the_name_of_a_marker_partition() -> None:
    assert keys.staging(REPO, TOKEN) not in (keys.deleted_tokens(REPO), keys.committed_tokens(REPO))
    for name in ("deleted", "committed"):
        with pytest.raises(ids.InvalidName):
            ids.staging_token(name)


@given(st.integers(-(2**63), 2**63), st.integers(-(2**63), 2**63))
def test_due_keys_sort_as_time_does(first_ms: int, second_ms: int) -> None:
    first, second = keys.format_due_time(first_ms), keys.format_due_time(second_ms)
    assert len(first) == len(second) == 13
    if first_ms <= second_ms:
        assert first <= second


def test_a_due_key_is_read_back() -> None:
    assert keys.parse_due_hint(keys.due_hint(REPO, 1_700_000_000_000, ADDRESS).name) == (1_700_000_000_000, ADDRESS)


@pytest.mark.parametrize(
    "name", ["", "x", "1700000000000", f"x/{ADDRESS}", "1700000000000/../../etc/passwd", f"1700000000000/{ADDRESS}x"]
)
def test_a_due_key_that_is_none(name: str) -> None:
    with pytest.raises(CorruptRecord, match="nothing that depends on it will be deleted"):
        keys.parse_due_hint(name)


def test_the_key_of_an_upload_says_what_it_is_of() -> None:
    upload_id = ids.upload_id_of(ADDRESS)
    assert ids.upload_address(upload_id) == ADDRESS
    assert upload_id == ADDRESS.removeprefix("data/").replace("/", ".")
    names = (BranchName("a/b"), Path("x\x01/y"), upload_id)
    assert keys.parse_upload(keys.upload(REPO, *names).name) == names
    assert keys.parse_upload_part(keys.upload_part(REPO, upload_id, 7, ADDRESS).name) == (7, ADDRESS)
    for name in ("", "main", f"main\x01x\x01{upload_id}x", f"\x01x\x01{upload_id}", f"main\x01../x\x01{upload_id}"):
        with pytest.raises(CorruptRecord):
            keys.parse_upload(name)
    for name in ("", "7", f"x/{ADDRESS}", "00007/data/x"):
        with pytest.raises(CorruptRecord):
            keys.parse_upload_part(name)


def test_uploads_lie_in_the_order_of_their_paths() -> None:
    upload_id = ids.upload_id_of(ADDRESS)
    paths = sorted(["a", "a.b", "a/b", "a b", "ab", "ä", "b"])
    assert paths == sorted(paths, key=lambda path: keys.upload(REPO, BranchName("main"), Path(path), upload_id).name)
