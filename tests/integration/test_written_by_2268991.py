"""Lakes that commit 2268991 wrote are read and worked on: records, KV keys and files keep their layout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from refstore import access_keys
from refstore.core import ids, keys
from refstore.core.records import encode
from refstore.gc_marks import Marks, RunState
from tests.lakes_of_2268991 import DAY, OldLake, decode_record, open_old_lake, partition_names, read_lake
from tests.servers.redis_servers import valkey_binary

SERVERS = {"redis": None, "valkey": valkey_binary()}


@pytest.fixture(
    params=[
        "local",
        pytest.param("redis", marks=pytest.mark.server),
        pytest.param("valkey", marks=pytest.mark.server),
    ]
)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OldLake]:
    name = "local" if request.param == "local" else "redis"
    with open_old_lake(name, tmp_path, binary=SERVERS.get(request.param)) as lake:
        yield lake


class TestReading:
    def test_everything_reads_as_it_did_when_it_was_written(self, old: OldLake) -> None:
        found = read_lake(old.lake, old.notes)
        for name, repository in old.expected["repositories"].items():
            for part, expected in repository.items():
                assert found["repositories"][name][part] == expected, f"{part} of {name}"
        assert found == old.expected

    def test_every_record_keeps_its_tag_and_fields_and_new_fields_come_last(self, old: OldLake) -> None:
        stored = {
            (partition, name): value
            for partition in partition_names(old.lake)
            for name, value in old.lake.kv.scan_all(partition)
        }
        decoded = {place: decode_record(*place, value) for place, value in stored.items()}
        for place, record in decoded.items():
            if record is not None:
                fields = msgspec.msgpack.decode(stored[place])
                assert _begins_with(msgspec.msgpack.decode(encode(record)), fields), place
        assert {type(record).__name__ for record in decoded.values()} >= {
            *("RepositoryRecord", "AccessKeyRecord", "Branch", "Tag", "TokenRecord", "Entry", "Tombstone", "Commit"),
            *("Listed", "Emptied", "Issued", "Due", "DeletedToken", "CommittedTokens", "RetentionRecord"),
            *("Mark", "GcRun", "GcFlag", "Heartbeat", "Stamp"),
        }

    def test_access_keys_open_with_the_secrets_they_were_made_with(self, old: OldLake) -> None:
        for name, secret in old.notes["keys"].items():
            record = access_keys.find(old.lake.kv, name)
            assert record is not None
            assert access_keys.find_secret(record, secret) is not None
            assert access_keys.find_secret(record, secret + "x") is None

    def test_nothing_that_is_named_is_lost(self, old: OldLake) -> None:
        for name in old.expected["repositories"]:
            found = old.audit(name)
            assert found.lost == []
            assert found.unreadable == []

    def test_the_journal_explains_what_the_reaper_deleted(self, old: OldLake) -> None:
        repo = old.lake.repository("sales")
        for address in old.notes["reaped"]:
            (deletion,) = repo.why(address).deletions
            assert (deletion.by, deletion.run, deletion.outcome) == ("reaper", "reaper-1", "deleted")
            assert deletion.path == "scratch.csv"

    def test_the_mark_that_waits_explains_what_it_holds(self, old: OldLake) -> None:
        repo = old.lake.repository("sales")
        fifth = next(name for name, commit in repo.log("main") if commit.message == "fifth")
        address = repo.stat(fifth, "a.csv").address
        assert [each.mark_id for each in repo.why(address).marked] == [old.notes["waiting_mark"]]

    def test_a_swept_object_names_the_sweep_that_deleted_it(self, old: OldLake) -> None:
        repo = old.lake.repository("sales")
        fourth = next(name for name, commit in repo.log("main") if commit.message == "fourth")
        entry = repo.context.trees.get(repo.get_commit(fourth)[1].metarange, ids.object_path("x.csv"))
        assert entry is not None
        (deletion,) = repo.why(entry.address).deletions
        assert (deletion.by, deletion.run, deletion.outcome) == ("sweep", old.notes["swept_mark"], "deleted")

    def test_the_pins_of_a_run_that_died_are_read(self, old: OldLake) -> None:
        repo = old.lake.repository("stuck")
        pins = [name for name, _ in old.lake.kv.scan_all(keys.gc_pins(repo.context.repo))]
        assert pins == [f"{old.notes['died_mark']}/{repo.stat('side', 'again.csv').address}"]


class TestGoingOn:
    def test_what_was_staged_is_committed(self, old: OldLake) -> None:
        repo = old.lake.repository("sales")
        commit = repo.commit("main", "with today's code").id
        assert repo.read(commit, "staged.csv") == b"second version, staged"
        assert repo.read(commit, "copies/again.csv") == b"a of day 20"
        assert "e.csv" not in repo.stat_many(commit, ["e.csv"])
        assert list(repo.diff("main")) == []
        old.reap()
        assert old.audit("sales").lost == []

    def test_an_issued_address_is_linked_with_its_old_token(self, old: OldLake) -> None:
        repo, issued = old.lake.repository("sales"), old.notes["issued"]
        linked = repo.link("main", issued["path"], issued["token"])
        assert linked.address == issued["address"]
        assert repo.read("main", issued["path"]) == b"written by its client"

    def test_everything_in_the_trash_is_restored(self, old: OldLake) -> None:
        repo = old.lake.repository("sales")
        found = {item.path: item for item in repo.in_grace() if item.branch in {"feature", "late"}}
        assert set(found) == {"feature.csv", "late.csv"}
        for path, item in found.items():
            repo.restore("main", item.address, path)
        assert repo.read("main", "feature.csv") == b"lost with its branch"
        assert repo.read("main", "late.csv") == b"its branch was deleted last"

    def test_a_mark_that_waits_is_taken_back(self, old: OldLake) -> None:
        repo = old.lake.repository("sales")
        assert repo.unmark(old.notes["waiting_mark"]).unmarked > 0
        assert Marks(repo.context).run(old.notes["waiting_mark"]).state is RunState.ABANDONED

    def test_the_reaper_deletes_what_is_due_and_nothing_else(self, old: OldLake) -> None:
        repo = old.lake.repository("sales")
        named = {
            (ref, *line[:2])
            for ref, lines in old.expected["repositories"]["sales"]["listings"].items()
            for line in lines
        }
        trash = [item.address for item in repo.in_grace()]
        assert len(trash) >= 4
        old.reap()
        old.clock.advance(3 * DAY)
        old.reap()
        assert {repo.address(address).state.value for address in trash} == {"gone"}
        assert repo.address(old.notes["issued"]["address"]).state.value == "gone"
        after = read_lake(old.lake, old.notes)["repositories"]["sales"]["listings"]
        assert {(ref, *line[:2]) for ref, lines in after.items() for line in lines} == named
        assert old.audit("sales").ok
        assert old.audit("stuck").ok

    def test_the_reaper_drains_the_repository_that_was_deleted_last(self, old: OldLake) -> None:
        assert old.expected["deleted"] == ["closing"]
        old.reap()
        old.clock.advance(3 * DAY)
        old.reap()
        assert [name for name, record in old.lake.all_repositories() if record.closed_ms] == []
        drained = [name.partition(".")[0] for name, _ in old.lake.kv.scan_all(keys.CLOSED_REPOSITORIES)]
        assert drained == ["archive", "closing"]


def _begins_with(encoded: object, stored: object) -> bool:
    """Whether the record has what was stored, each field in its place. Records may have grown at their ends."""
    if isinstance(encoded, list) and isinstance(stored, list):
        return len(encoded) >= len(stored) and all(map(_begins_with, encoded, stored))
    return encoded == stored
