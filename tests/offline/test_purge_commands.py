"""`refstore purge`: what people type."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from refstore.agreed_durations import shared_seconds
from refstore.cli.errors import exit_code
from refstore.errors import ObjectsRefused
from refstore.objects.base import DeleteResult
from refstore.objects.local import LocalObjects
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.lake_records import DurationsRecord
from refstore_purge.ids_file import FOLDER_PREFIX
from refstore_purge.purge_cleanup import scan_backups
from tests.commands import Command
from tests.durations import COLLECTOR
from tests.offline.world import World
from tests.purge.tracking import DOCUMENT, PARTITION, PREFIX, event, guestids, parquet, rows_at
from tests.purging import rewrite
from tests.reaping import release_all

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

DAY_SECONDS = 86_400
PATH = f"{PREFIX}{PARTITION}/part-0.parquet"


@pytest.fixture
def lake(refstore: Command, engines: Engines) -> World:
    world = World(refstore.folder / "lake")
    world.repo.upload("main", PATH, parquet([event("bob", 1), event("ann", 2)]))
    world.repo.commit("main", "events")
    return world


def test_onboard_run_verify_and_report(refstore: Command, lake: World) -> None:
    document = refstore.folder / "purge.json"
    document.write_text(json.dumps(DOCUMENT, indent=2))
    ids = guestids(refstore.folder, "bob")
    assert refstore.json("purge", "onboard", "sales", document, "--dry-run")[0]["purged"] is True
    assert refstore("purge", "show", "sales").code == 3
    assert refstore("purge", "onboard", "sales", "--dry-run").code == 3
    assert refstore("purge", "onboard", "sales").code == 2
    refstore.ok("purge", "onboard", "sales", document)
    assert refstore.json("purge", "onboard", "sales", "--dry-run")[0]["purged"] is True
    assert refstore("purge", "onboard", "sales", "-", stdin=b"").code == 2, (
        "an empty document is not the one that is set"
    )
    assert json.loads(refstore.ok("purge", "show", "sales").out) == DOCUMENT

    assert refstore("purge", "verify", "sales", "--ids", ids).code == 4
    tried = refstore.json("purge", "run", "sales", "--ids", ids, "--dry-run")
    assert (tried["state"], tried["rows"][0]["matched_objects"]) == ("dry run", 1)
    assert refstore("purge", "run", "sales", "--ids", ids).code == 2  # nobody to ask
    made = refstore.json("purge", "run", "sales", "--ids", ids, "--yes")
    assert made["published_commits"][0]["branch"] == "main"
    assert rows_at(lake.repo, "main", PATH) == [event("ann", 2)]
    refstore.ok("purge", "verify", "sales", "--ids", ids)
    left = refstore("purge", "verify", "sales", "--ids", ids, "--history")
    assert left.code == 4
    assert PATH in left.out
    assert [row["state"] for row in refstore.json("purge", "status", "sales")] == ["done", "dry run"]
    shown = refstore.json("purge", "status", "sales", "last")
    assert shown == made | {"places_ms": shown["places_ms"]}
    assert "commit" in refstore.ok("purge", "status", "sales", made["run"]).out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "sales", "--ids", "nothing.csv", "--dry-run"], "nothing.csv"),
        (["status", "sales", "last"], "no purge was run"),
        (["run", "sales", "--ids", "ids.csv", "--max-partitions", "0"], "max-partitions"),
    ],
)
def test_a_wrong_call_is_told_what_is_wrong(
    refstore: Command, lake: World, words: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(refstore.folder)
    lake.repo.onboard_purge(json.dumps(DOCUMENT), by="tests")
    ran = refstore("purge", *words)
    assert ran.code in (2, 3)
    assert told in ran.err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (json.dumps({**DOCUMENT, "whitelists": []}), "unknown field 'whitelists'; did you mean 'whitelist'?"),
        ('{\n "whitelist": [}', "line 2, column"),
    ],
)
def test_a_document_with_a_mistake_is_told_where_it_is(refstore: Command, lake: World, text: str, told: str) -> None:
    document = refstore.folder / "purge.json"
    document.write_text(text)
    ran = refstore("purge", "onboard", "sales", document)
    assert ran.code == 2
    assert told in ran.err


def test_ids_may_lie_in_the_lake(refstore: Command, lake: World, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = refstore.folder / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))  # others purge at the same time
    lake.repo.onboard_purge(json.dumps(DOCUMENT), by="tests")
    file = guestids(refstore.folder, "bob")
    other = lake.lake.create_repository("requests")
    other.upload("main", "today/guestids.parquet", file.read_bytes())
    place = "lakefs://requests/main/today/guestids.parquet"
    assert refstore("purge", "verify", "sales", "--ids", place).code == 4
    refstore.ok("purge", "run", "sales", "--ids", place, "--yes")
    assert rows_at(lake.repo, "main", PATH) == [event("ann", 2)]
    refstore.ok("purge", "verify", "sales", "--ids", place)
    assert not list(folder.glob(f"{FOLDER_PREFIX}*"))


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("lakefs://requests/main/nothing", "requests"),
        ("lakefs://sales/main/nothing", "nothing"),
        ("lakefs://sales/main", "names no object"),
        ("s3://bucket/ids.csv", "give a file, or lakefs://"),
    ],
)
def test_ids_that_do_not_lie_in_the_lake(refstore: Command, lake: World, place: str, told: str) -> None:
    lake.repo.onboard_purge(json.dumps(DOCUMENT), by="tests")
    ran = refstore("purge", "run", "sales", "--ids", place, "--yes")
    assert ran.code in (2, 3)
    assert told in ran.err


def test_a_report_names_no_id(refstore: Command, lake: World) -> None:
    lake.repo.onboard_purge(json.dumps(DOCUMENT), by="tests")
    lake.repo.upload("main", f"{PREFIX}{PARTITION}/<b>&.parquet", b"no Parquet")
    lake.repo.commit("main", "damage")
    assert refstore("purge", "run", "sales", "--ids", guestids(refstore.folder, "bob"), "--yes").code == 4
    assert "bob" not in refstore.ok("purge", "status", "sales", "last", "--json").out


class TestEveryVersion:
    """The mode `rewrite`, with the commands that only it needs."""

    @pytest.fixture
    def ids(self, refstore: Command, lake: World) -> Path:
        document = refstore.folder / "purge.json"
        dataset = {**DOCUMENT["datasets"][0], "mode": "rewrite"}
        policy = {"backup": {"days": 0, "versions": 0}, "trash": {"days": 0}}
        document.write_text(json.dumps({**DOCUMENT, "datasets": [dataset], **policy}))
        refstore.ok("purge", "onboard", "sales", document)
        return guestids(refstore.folder, "bob")

    def test_run_restore_and_clean(self, refstore: Command, lake: World, ids: Path) -> None:
        first = lake.repo.get_branch("main").head
        made = refstore.json("purge", "run", "sales", "--ids", ids, "--yes")
        assert (made["rows"][0]["rewritten_objects"], made["published_commits"]) == (1, [])
        assert [(each["kind"], each["objects"]) for each in made["places"]] == [("backups", 1)]
        assert made["places"][0]["deletes_at_ms"] > made["ended_ms"]
        assert rows_at(lake.repo, first, PATH) == [event("ann", 2)]
        refstore.ok("purge", "verify", "sales", "--ids", ids)
        assert "not final: one place still has rows" in refstore.ok("purge", "status", "sales", "last").out
        (backup,) = refstore.json("purge", "backups", "sales")
        assert (backup["by"], backup["kind"]) == (made["run"], "backup")
        assert refstore("purge", "backups", "sales", "no-such-run").out.count(backup["of"]) == 0
        assert refstore("purge", "restore", "sales", made["run"]).code == 2  # nobody to ask
        assert refstore.json("purge", "restore", "sales", made["run"], "--dry-run")["objects"] == 1
        assert refstore.json("purge", "restore", "sales", made["run"], "--yes")["objects"] == 1
        assert rows_at(lake.repo, first, PATH) == [event("bob", 1), event("ann", 2)]
        assert refstore("purge", "restore", "sales", "no-such-run", "--yes").code == 3
        cleaned = refstore.json("purge", "clean", "sales", "--yes")
        assert cleaned["waiting_contents"]["objects"] == 1  # readers may still be on their way
        assert "trash of restores past its days" in refstore.ok("purge", "clean", "sales", "--dry-run").out
        assert "is" in refstore.ok("why", "sales", backup["address"]).out

    def test_a_store_that_refuses_to_delete_is_told_with_its_reason_and_asked_again(
        self, refstore: Command, lake: World, ids: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        agreed = DurationsRecord(shared_seconds(COLLECTOR), "a-test", 0)
        lake.ctx.kv.set(keys.DURATIONS, encode(agreed))
        lake.clock.off_seconds = -DAY_SECONDS  # so that every reader of the backup has ended by now
        release_all(lake.repo)
        rewrite(lake.repo, "main", PATH, b"new")
        delete_many = LocalObjects.delete_many

        def refuse(store: LocalObjects, paths: Sequence[str]) -> DeleteResult:
            if any(path.startswith("data/") for path in paths):
                raise ObjectsRefused("deleting failed: AccessDenied; allow these credentials DeleteObject")
            return delete_many(store, paths)

        with monkeypatch.context() as patch:
            patch.setattr(LocalObjects, "delete_many", refuse)
            cleaned = refstore("purge", "clean", "sales", "--yes")
            assert (cleaned.code, "AccessDenied; allow these credentials DeleteObject" in cleaned.err) == (5, True)
            night = refstore("gc", "run", "sales", "--json")
            assert night.code == 5
            assert night.json["runs"][0]["purge_cleanup"]["failed_objects"] == 1
            assert "DeleteObject" in night.json["runs"][0]["purge_cleanup"]["failures"][0]
            assert exit_code(ObjectsRefused) == 6
        assert refstore.json("purge", "clean", "sales", "--yes")["pending_deletions"]["objects"] == 1
        assert list(scan_backups(lake.ctx)) == []

    def test_the_nightly_job_looks_for_what_came_late(self, refstore: Command, lake: World, ids: Path) -> None:
        agreed = DurationsRecord(shared_seconds(COLLECTOR), "a-test", 0)
        lake.ctx.kv.set(keys.DURATIONS, encode(agreed))  # so that the job has not to wait for an hour
        made = refstore.json("purge", "run", "sales", "--ids", ids, "--yes")
        assert [row["run"] for row in refstore.json("purge", "ledger", "sales")] == [made["run"]]
        late, broken = f"{PREFIX}late.parquet", f"{PREFIX}broken.parquet"
        lake.repo.upload("main", late, parquet([event("bob", 1), event("dan", 2)]))
        lake.repo.upload("main", broken, b"no Parquet")
        lake.repo.commit("main", "late")
        ran = refstore("gc", "run", "sales", "--purge-ledger")
        shown = " ".join(ran.out.split())
        assert (ran.code, "rows changed 1 " in shown, "skipped count 1 " in shown) == (4, True, True)
        assert re.search(f"not purged: .*{broken}: the file cannot be read", ran.err)
        assert rows_at(lake.repo, "main", late) == [event("dan", 2)]
        assert [row["state"] for row in refstore.json("purge", "status", "sales")] == ["done", "done"]
        assert refstore("purge", "run", "sales").code == 2
        assert refstore("purge", "run", "sales", "--ledger", "--ids", ids).code == 2
        alone = refstore("purge", "run", "sales", "--ledger", "--yes", "--json")
        assert (alone.code, alone.json["is_from_ledger"]) == (4, True)
        assert refstore.json("purge", "ledger", "sales", "--forget", made["run"], "--yes") == []
        assert refstore("purge", "run", "sales", "--ledger", "--yes").code == 3
        assert refstore.json("gc", "run", "sales", "--purge-ledger")["purges"] == []


def test_statistics_are_ignored_if_asked(refstore: Command, lake: World) -> None:
    body = parquet([event("aaa", 1), event("zoe", 2)], compression="none")
    footer = int.from_bytes(body[-8:-4], "little") + 8
    lake.repo.upload("main", PATH, body[:-footer] + body[-footer:].replace(b"zoe", b"aaa"))
    lake.repo.commit("main", "statistics that lie")
    document = refstore.folder / "purge.json"
    document.write_text(json.dumps(DOCUMENT))
    refstore.ok("purge", "onboard", "sales", document)
    ids = guestids(refstore.folder, "zoe")
    assert refstore.json("purge", "run", "sales", "--ids", ids, "--yes")["published_commits"] == []
    assert refstore.json("purge", "run", "sales", "--ids", ids, "--ignore-statistics", "--yes")["published_commits"]
    assert rows_at(lake.repo, "main", PATH) == [event("aaa", 1)]
