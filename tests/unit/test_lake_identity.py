"""A KV and an object store are used together only if both are of one lake, and what is gone is not made anew."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from refstore.configuration.settings import Settings
from refstore.core import ids
from refstore.core.ids import CommitId
from refstore.errors import ObjectsUnavailable, RefstoreError, WrongStore
from refstore.kv import open_kv
from refstore.kv.base import ABSENT
from refstore.kv.memory import MemoryKV
from refstore.lake import Lake, open_lake_at
from refstore.lake_identity import LAKE_OBJECT, agree_on_id, read_both
from refstore.namespaces import NAMESPACE_OBJECT
from refstore.objects.local import LocalObjects
from refstore.objects.memory import MemoryObjects
from refstore.records import keys
from refstore.records.branch_records import StoredTag
from refstore.records.encoding import encode
from refstore.records.lake_records import LakeRecord
from refstore_api.app import create_app
from refstore_gc.run_layout import make_layout, open_store
from tests.commands import Command


class Place(NamedTuple):
    """Where the stores of a lake lie."""

    folder: Path

    @property
    def kv(self) -> str:
        return f"sqlite://{self.folder}/kv.sqlite?fsync=0"

    @property
    def root(self) -> Path:
        return self.folder / "objects"

    @property
    def objects(self) -> str:
        return f"file://{self.root}?fsync=0"

    def open(self) -> Lake:
        return open_lake_at(self.kv, self.objects)


@pytest.fixture
def new_place(tmp_path: Path) -> Callable[[str], Place]:
    def make(name: str) -> Place:
        (tmp_path / name).mkdir()
        return Place(tmp_path / name)

    return make


@pytest.fixture
def places(new_place: Callable[[str], Place]) -> dict[str, Place]:
    """Two lakes, and folders without a lake."""
    made = {name: new_place(name) for name in ("one", "other", "nothing", "empty", "older")}
    for name in ("one", "other"):
        with made[name].open() as lake:
            lake.create_repository("sales").upload("main", "a", b"1")
    made["empty"].root.mkdir()
    (made["older"].root / "_refstore" / "manifest").mkdir(parents=True)
    (made["older"].root / "_refstore" / "manifest" / "waiting").write_bytes(b"{}")
    return made


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "kv.sqlite" not in path.name}


def rows(place: Place) -> list[tuple[str, bytes]]:
    with closing(open_kv(place.kv)) as kv:
        partitions = (keys.REPOSITORIES, keys.NAMESPACES, keys.LAKE.partition, keys.AUDIT_HEADS)
        return [row for partition in partitions for row in kv.scan_all(partition)]


WRONG = [
    pytest.param("one", "other", "is of lake", id="the store of another lake"),
    pytest.param("one", "empty", "check that its disk is mounted", id="an empty store, as of a disk that is gone"),
    pytest.param("nothing", "other", "the KV is empty", id="a new KV, and the store of a lake"),
    pytest.param("nothing", "older", "holds data of a lake", id="a new KV, and the store of a lake without id"),
]


@pytest.mark.parametrize(("kv", "objects", "reason"), WRONG)
def test_what_is_not_of_one_lake_is_refused_before_anything_is_written(
    places: dict[str, Place], kv: str, objects: str, reason: str
) -> None:
    before = rows(places[kv]), contents(places[objects].folder)
    with pytest.raises(WrongStore, match=reason):
        open_lake_at(places[kv].kv, places[objects].objects)
    assert (rows(places[kv]), contents(places[objects].folder)) == before


COMMANDS = {
    "kv verify": (),
    "repo list": (),
    "repo create": ("new",),
    "ls": ("sales", "main"),
    "cat": ("sales", "main", "a"),
    "status": (),
    "keys create": ("--role", "reader"),
    "config": ("--agreed",),
    "reaper": ("--once",),
    "reaper status": (),
    "gc run": ("--all",),
    "purge status": ("sales",),
    "serve": ("--port", "0"),
    "doctor": (),
}


def test_every_command_refuses_them(refstore: Command, places: dict[str, Place]) -> None:
    stores = ("--kv", places["one"].kv, "--objects", places["other"].objects)
    before = rows(places["one"]), contents(places["other"].folder)
    for words, arguments in COMMANDS.items():
        ran = refstore(*stores, *words.split(), *arguments)
        assert ran.code == 6, (words, ran.code, ran.err)
        assert "of lake" in ran.err + ran.out, words
    assert (rows(places["one"]), contents(places["other"].folder)) == before


def test_so_does_the_application_of_the_service(places: dict[str, Place]) -> None:
    with pytest.raises(WrongStore):
        create_app(Settings(data=None, kv=places["one"].kv, objects=places["other"].objects))


def test_a_process_that_runs_is_not_ready_when_its_stores_change(places: dict[str, Place]) -> None:
    with places["one"].open() as lake:
        lake.check_kv()
        lake.check_objects()
        shutil.rmtree(places["one"].root)
        shutil.copytree(places["other"].root, places["one"].root)
        with pytest.raises(WrongStore):
            lake.check_objects()
        lake.kv.delete(keys.LAKE)
        with pytest.raises(WrongStore):
            lake.check_kv()


def test_a_kv_that_is_made_anew_gets_the_id_of_the_object_store(refstore: Command, places: dict[str, Place]) -> None:
    stores = ("--kv", places["nothing"].kv, "--objects", places["one"].objects)
    ran = refstore(*stores, "ls", "sales", "main")
    assert ran.code == 6
    assert "kv rebuild" in ran.err
    refstore.ok(*stores, "kv", "rebuild", "--dry-run")
    assert refstore(*stores, "ls", "sales", "main").code == 6
    refstore.ok(*stores, "kv", "rebuild", "--yes")
    with places["one"].open() as lake, open_lake_at(places["nothing"].kv, places["one"].objects) as rebuilt:
        assert rebuilt.id == lake.id
        assert [repo.name for repo in rebuilt.repositories()] == ["sales"]


@pytest.mark.parametrize("lost", ["KV", "object store"])
def test_reconcile_brings_an_id_back_that_one_of_them_lost(
    refstore: Command, places: dict[str, Place], lost: str
) -> None:
    place = places["one"]
    stores = ("--kv", place.kv, "--objects", place.objects)
    with place.open() as lake:
        lake_id = lake.id
        if lost == "KV":
            lake.kv.delete(keys.LAKE)
        else:
            lake.own_store.delete_many([LAKE_OBJECT])
    ran = refstore(*stores, "ls", "sales", "main")
    assert (ran.code, "kv reconcile" in ran.err) == (6, True)
    refstore.ok(*stores, "kv", "reconcile", "--dry-run")
    assert refstore(*stores, "ls", "sales", "main").code == 6
    refstore.ok(*stores, "kv", "reconcile")
    with place.open() as lake:
        assert lake.id == lake_id


def test_reconcile_asks_before_it_takes_another_lakes_object_store(refstore: Command, places: dict[str, Place]) -> None:
    ran = refstore("--kv", places["one"].kv, "--objects", places["other"].objects, "kv", "reconcile")
    assert (ran.code, "give --yes" in ran.err) == (2, True)
    with places["one"].open() as lake:
        assert [repo.name for repo in lake.repositories()] == ["sales"]


class TestALakeWithoutId:
    """A lake of which neither store holds an id."""

    @pytest.fixture
    def place(self, places: dict[str, Place]) -> Iterator[Place]:
        place = places["one"]
        with place.open() as lake:
            lake.kv.delete(keys.LAKE)
            lake.own_store.delete_many([LAKE_OBJECT])
        yield place
        with closing(open_kv(place.kv)) as kv:
            assert (kv.get(keys.LAKE) is not ABSENT) == (place.root / LAKE_OBJECT).exists()

    def test_gets_one_if_a_namespace_is_of_a_repository_that_the_kv_knows(self, place: Place) -> None:
        with place.open() as lake:
            assert lake.id
        with place.open() as again:
            assert again.id == lake.id

    def test_gets_none_if_no_namespace_is(self, place: Place) -> None:
        for marker in place.root.glob(f"*/{NAMESPACE_OBJECT}"):
            marker.write_bytes(b"sales.01j8x6w3vr0000000000000000")
        with pytest.raises(WrongStore, match="no namespace of the repositories"):
            place.open()

    def test_gets_none_from_who_only_reads(self, place: Place) -> None:
        with open_lake_at(place.kv, place.objects, read_only=True) as lake:
            assert lake.id == ""
            assert lake.repository("sales").read("main", "a") == b"1"


class Unconditional(MemoryObjects):
    @property
    def conditional_put(self) -> bool:
        return False

    def put(self, key: str, body: object, *, if_absent: bool = False) -> object:  # type: ignore[override]  # of any body
        return super().put(key, body)  # type: ignore[arg-type]  # such a store does not look


def identify(kv: MemoryKV, store: MemoryObjects, new_id: str, meanwhile: Callable[[], None] = lambda: None) -> str:
    return agree_on_id(kv, store, new_id, meanwhile, read_only=False)


@pytest.mark.parametrize("kind", [MemoryObjects, Unconditional])
class TestANewLake:
    def test_that_two_processes_make_at_once_gets_one_id(self, kind: type[MemoryObjects]) -> None:
        """The second one begins and ends while the first one is between its look and its write."""
        kv, store, made = MemoryKV(), kind(), list[str]()
        first = identify(kv, store, "first", lambda: made.append(identify(kv, store, "second")))
        assert [first, *made] == ["second", "second"]
        assert read_both(kv, store) == ("second", "second")

    def test_whose_maker_died_is_made_by_the_next(self, kind: type[MemoryObjects]) -> None:
        for has_id in (False, True):
            kv, store = MemoryKV(), kind()
            kv.set(keys.LAKE, encode(LakeRecord("begun")))
            if has_id:
                store.put(LAKE_OBJECT, b"begun")
            assert identify(kv, store, "next") == "begun"
            assert kv.get(keys.LAKE) == encode(LakeRecord("begun", is_confirmed=True))

    def test_is_not_made_in_a_store_that_another_kv_took_meanwhile(self, kind: type[MemoryObjects]) -> None:
        kv, store = MemoryKV(), kind()
        with pytest.raises(WrongStore):
            identify(kv, store, "first", lambda: void(identify(MemoryKV(), store, "second")))
        assert store.read(LAKE_OBJECT) == b"second"
        kv.set(keys.LAKE, encode(LakeRecord("first")))
        with pytest.raises(WrongStore):
            identify(kv, store, "next")


def void(_: object) -> None: ...


def test_a_new_lake_that_many_open_at_once_has_one_id(new_place: Callable[[str], Place]) -> None:
    place = new_place("new")

    def open_and_close(_: int) -> str:
        with place.open() as lake:
            return lake.id

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(open_and_close, range(16)))) == 1


def test_each_store_is_asked_once_by_a_process(places: dict[str, Place], monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    get = LocalObjects.get

    def counting(self: LocalObjects, key: str, **bounds: int) -> Iterator[bytes]:
        read.append(key)
        return get(self, key, **bounds)

    monkeypatch.setattr(LocalObjects, "get", counting)
    with places["one"].open() as lake:
        for _ in range(3):
            lake.repository("sales").stat("main", "a")
    assert read == [LAKE_OBJECT, NAMESPACE_OBJECT]


class TestAFolderThatIsGone:
    def test_is_not_made_by_a_reader_who_opens_a_repository(self, places: dict[str, Place]) -> None:
        place = places["one"]
        with place.open() as lake:
            place.root.rename(place.folder / "elsewhere")
            with pytest.raises(ObjectsUnavailable, match="mounted"):
                lake.repository("sales")
            with pytest.raises(ObjectsUnavailable, match="mounted"):
                lake.own_store.put("_refstore/audit/x", b"")
            with pytest.raises(ObjectsUnavailable, match="mounted"):
                lake.create_repository("new")
            with pytest.raises(ObjectsUnavailable, match="mounted"):
                lake.check_objects()
            assert not place.root.exists()
            (place.folder / "elsewhere").rename(place.root)
            assert lake.repository("sales").read("main", "a") == b"1"

    def test_is_not_made_by_the_next_process(self, refstore: Command, places: dict[str, Place]) -> None:
        place = places["one"]
        place.root.rename(place.folder / "elsewhere")
        for words in (("ls", "sales", "main"), ("repo", "create", "new"), ("reaper", "--once"), ("kv", "verify")):
            assert refstore("--kv", place.kv, "--objects", place.objects, *words).code == 5
        assert not place.root.exists()

    def test_is_not_made_for_a_namespace(self, places: dict[str, Place]) -> None:
        """Of one repository among others."""
        place = places["one"]
        with place.open() as lake:
            url = lake.namespace_url(lake.repository("sales").record)
        folder = Path(url.removeprefix("file://").partition("?")[0])
        shutil.rmtree(folder)
        with place.open() as lake, pytest.raises(ObjectsUnavailable):
            lake.repository("sales")
        assert not folder.exists()

    def test_is_not_made_by_a_task_of_the_offline_job(self, places: dict[str, Place]) -> None:
        with places["one"].open() as lake:
            work = make_layout(lake.repository("sales").context, "m", 1)
        gone = places["nothing"].root
        with pytest.raises(ObjectsUnavailable):
            open_store(f"file://{gone}", work).put("a", b"")
        assert not gone.exists()

    def test_that_is_shared_keeps_its_modes_when_it_is_there_again(self, tmp_path: Path) -> None:
        """Modes are those of the folder that is there, not of the one that was there when the store was opened."""
        root = tmp_path / "shared"
        store = LocalObjects(root, make=False)
        with pytest.raises(ObjectsUnavailable):
            store.put("a/b", b"")
        root.mkdir()
        root.chmod(0o2770)
        store.put("a/b", b"")
        modes = [oct(path.stat().st_mode & 0o7777) for path in (root / "a", root / "a" / "b")]
        assert modes == ["0o2770", "0o660"]


def test_a_namespace_that_is_another_repositorys_is_refused(places: dict[str, Place]) -> None:
    place = places["one"]
    with place.open() as lake:
        marker = place.root / lake.repository("sales").record.id / NAMESPACE_OBJECT
    owner = marker.read_bytes()
    for wrong in (b"other.01j8x6w3vr0000000000000000", None):
        marker.unlink()
        if wrong is not None:
            marker.write_bytes(wrong)
        with place.open() as lake, pytest.raises(WrongStore, match="not that of repository"):
            lake.repository("sales")
        marker.write_bytes(owner)
    with place.open() as lake:
        assert isinstance(lake.repository("sales").read("main", "a"), bytes)


def test_doctor_goes_on_behind_a_namespace_that_is_not_its_repositorys(
    refstore: Command, places: dict[str, Place]
) -> None:
    place = places["one"]
    with place.open() as lake:
        (place.root / lake.repository("sales").record.id / NAMESPACE_OBJECT).unlink()
        other = lake.create_repository("tea").context
        other.kv.set(keys.tag(other.repo, ids.tag_name("main")), encode(StoredTag(CommitId("0" * 64), 1)))
    ran = refstore("--kv", place.kv, "--objects", place.objects, "doctor", "--json", "--no-write")
    found = {row["check"]: row for row in ran.json if row["check"].startswith("repository ")}
    assert (found["repository sales"]["state"], ran.code) == ("error", 6)
    assert "branches hide tags" in found["repository tea"]["found"]
    assert ran.json[-1]["found"] == "2"


def test_the_error_is_one_of_its_own() -> None:
    assert issubclass(WrongStore, RefstoreError)
    assert not WrongStore.retryable
