"""The ledger: ids that were purged are found again when their rows come late or return."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from refstore.errors import Corrupt, Invalid, NotFound, ObjectsRefused
from refstore.objects.base import DeleteResult
from refstore.purge_document.document import read_document
from refstore_purge import id_index, ledger, restore_backups
from refstore_purge.ledger import LedgerSet
from refstore_purge.purge_ids import IdSet
from refstore_purge.purge_report import PurgeReport
from refstore_purge.restore_backups import RestoreScope
from tests.offline.purge_runs import purge_with
from tests.offline.world import World
from tests.purge.tracking import DOCUMENT, PATH, PREFIX, events, guestids, guests_at, onboard

if TYPE_CHECKING:
    from pathlib import Path

    from refstore_gc.engines.choice import Engines

SECRET = b"a key of at least thirty-two characters"
KEY = id_index.IndexKey.derive(SECRET)

Purge = Callable[..., PurgeReport]


@pytest.fixture
def purge(world: World, engines: Engines) -> Purge:
    def made(*guests: str, **options: Any) -> PurgeReport:
        ids = guestids(world.folder, *guests) if guests else None
        return purge_with(world, engines, ids, **{"purge_key": SECRET, **options})

    return made


@pytest.mark.parametrize("mode", ["keep-history", "rewrite"])
def test_what_comes_late_is_purged_without_the_ids(world: World, purge: Purge, mode: str) -> None:
    world.commit_files({PATH: events("ann", "bob", "cid")})
    onboard(world.repo, mode=mode)
    purge("bob")
    purge("cid")
    late = f"{PREFIX}late.parquet"
    world.commit_files({late: events("bob", "cid", "dan", None)})
    assert [(each.ids, each.kind) for each in ledger.scan_ledger(world.ctx.objects, KEY)] == [
        (1, "string"),
        (1, "string"),
    ]
    made = purge()
    assert (made.is_from_ledger, made.ids, made.is_whole) == (True, 2, True)
    assert guests_at(world.repo, "main", late) == ["dan", None]
    assert len(list(ledger.scan_ledger(world.ctx.objects, KEY))) == 2
    assert sum(row.matched_objects for row in purge().rows) == 0


def test_what_a_restore_brings_back_is_found(world: World, purge: Purge) -> None:
    world.commit_files({PATH: events("ann", "bob")})
    onboard(world.repo, mode="rewrite")
    first = purge("bob")
    restore_backups.restore_backups(world.repo, RestoreScope(run=first.run))
    assert guests_at(world.repo, "main") == ["ann", "bob"]
    assert purge().is_whole
    assert guests_at(world.repo, "main") == ["ann"]


def test_objects_are_erased_again(world: World, purge: Purge) -> None:
    onboard(world.repo, mode="erase", identifier="guestid", format=None)
    for number in range(2):
        world.repo.upload("main", f"{PREFIX}guestid=bob/{number}", b"a picture")
        world.repo.commit("main", "pictures")
        made = purge("bob") if not number else purge()
        assert sum(row.erased_objects for row in made.rows) == 1


def test_a_run_is_forgotten(world: World, purge: Purge, monkeypatch: pytest.MonkeyPatch) -> None:
    world.commit_files({PATH: events("ann", "bob")})
    onboard(world.repo)
    first = purge("bob")
    with monkeypatch.context() as refusing:
        refusing.setattr(type(world.ctx.objects), "delete_many", _refuse)
        with pytest.raises(ObjectsRefused, match=r"1 files of the ledger.*access denied"):
            ledger.forget_run(world.ctx.objects, KEY, first.run)
    assert [each.run for each in ledger.scan_ledger(world.ctx.objects, KEY)] == [first.run]
    ledger.forget_run(world.ctx.objects, KEY, first.run)
    with pytest.raises(NotFound, match="no run"):
        ledger.forget_run(world.ctx.objects, KEY, first.run)
    with pytest.raises(NotFound, match="the ledger has no ids"):
        purge()


def _refuse(_store: Any, keys: Sequence[str]) -> DeleteResult:
    return DeleteResult((), (), tuple((key, "access denied") for key in keys))


def test_without_the_key_it_says_nothing(world: World, purge: Purge) -> None:
    world.commit_files({PATH: events("ann", "bob")})
    onboard(world.repo)
    purge("bob")
    body = b"".join(world.ctx.objects.read(info.key) for info in world.ctx.objects.list(ledger.FOLDER))
    assert b"bob" not in body
    with pytest.raises(NotFound):
        purge(purge_key=b"another key of at least thirty-two characters")
    with pytest.raises(Invalid, match="needs the key"):
        purge(purge_key=None)
    assert not any(b"bob" in world.ctx.objects.read(info.key) for info in world.ctx.objects.list("_refstore/purge/"))


def test_a_run_that_failed_or_only_looked_adds_nothing(world: World, purge: Purge) -> None:
    world.commit_files({PATH: events("bob", "bob")})
    onboard(world.repo)
    purge("bob", dry_run=True)
    with pytest.raises(Exception, match="would go"):
        purge("bob", floor_rows=1)
    assert list(ledger.scan_ledger(world.ctx.objects, KEY)) == []


def test_a_damaged_ledger_stops_the_run(world: World, purge: Purge) -> None:
    world.commit_files({PATH: events("ann", "bob")})
    onboard(world.repo)
    purge("bob")
    (info,) = world.ctx.objects.list(ledger.FOLDER)
    world.ctx.objects.put(info.key, b"no Parquet")
    with pytest.raises(Corrupt, match="the ledger's file"):
        purge()


def through_the_ledger(world: World, ids: IdSet, folder: Path) -> LedgerSet:
    """Write ids to the ledger as those of one data set, and load them."""
    dataset = read_document(json.dumps(DOCUMENT)).document.datasets[0]
    ledger.write_ledger(world.ctx.objects, KEY, "run", [(ids, [dataset.name])], 1)
    (name,) = ledger.load_ledger(world.ctx.objects, KEY, folder, [dataset]).sets[dataset.name]
    return LedgerSet(folder, prefix=name)


@pytest.mark.parametrize(
    ("ids", "values", "found"),
    [
        (pa.array(["a", "b", ""]), pa.array(["b", "c", None, "a", "b"]), [True, False, False, True, True]),
        (pa.array([1, -7, 2**62]), pa.array([7, -7, None, 1], pa.int16()), [False, True, False, True]),
        (pa.array([2**64 - 1], pa.uint64()), pa.array([2**64 - 1, 0], pa.uint64()), [True, False]),
        (pa.array([b"\0x", b"y"]), pa.array([b"y", b"\0x", b"\0"]), [True, True, False]),
        (pa.array(["a"]), pa.array(["a", "b", "a"]).dictionary_encode(), [True, False, True]),
        (pa.array(["a"]), pa.array([], pa.string()), []),
    ],
)
def test_values_are_compared_as_ids_are(world: World, tmp_path: Path, ids: Any, values: Any, found: list[bool]) -> None:
    from refstore_purge import ids_file
    from refstore_purge import purge_ids as id_sets

    file = tmp_path / "ids.parquet"
    pq.write_table(pa.table({"id": ids}), file)
    ids_file.load_ids(ids_file.IdsFile(file), tmp_path / "ids")
    opened = id_sets.IdSet(tmp_path / "ids")
    told = through_the_ledger(world, opened, tmp_path / "ledger")
    assert (told.kind, told.count) == (opened.kind, opened.count)
    assert told.matches(values).tolist() == opened.matches(values).tolist() == found


def test_ids_that_share_a_hash_are_told_apart(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    monkeypatch.setattr(id_index, "hash_each", lambda values, *_: np.full(len(values), 7, np.uint64))
    from refstore_purge import purge_ids as id_sets

    id_sets.write_ids(tmp_path / "ids", "string", [pa.array(["a", "b", "c"])])
    told = through_the_ledger(world, id_sets.IdSet(tmp_path / "ids"), tmp_path / "ledger")
    assert told.matches(pa.array(["d", "c", "a"])).tolist() == [False, True, True]
