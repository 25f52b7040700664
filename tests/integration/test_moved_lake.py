"""A lake in a folder is moved, copied and mounted elsewhere; two copies of it never share a store."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import refstore
from refstore import lake_identity
from refstore.errors import ObjectsUnavailable, StoreMisconfigured, WrongStore
from refstore.lake import Lake, open_lake_at
from refstore.namespaces import HOLDER_OBJECT
from refstore.objects.local import LocalObjects
from tests.commands import Command


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """The folder of a lake with one repository below its objects, and one beside them."""
    folder = tmp_path / "lake"
    with refstore.create(folder) as made:
        for name, namespace in (("sales", None), ("cold", f"file://{folder}/cold")):
            repo = made.create_repository(name, namespace=namespace)
            repo.upload("main", "a", b"committed")
            repo.commit("main", "one")
            repo.upload("main", "b", b"staged")
    return folder


def move(lake: Path) -> Path:
    return Path(shutil.move(lake, lake.with_name("elsewhere")))


def copy(lake: Path) -> Path:
    return Path(shutil.copytree(lake, lake.with_name("copy"), symlinks=True))


def copy_away(lake: Path) -> Path:
    copied = copy(lake)
    shutil.rmtree(lake)
    return copied


def mount(lake: Path) -> Path:
    lake.with_name("mount").symlink_to(lake)
    return lake.with_name("mount")


def read_all(lake: Lake) -> dict[str, list[bytes]]:
    return {repo.name: [repo.read("main", path) for path in ("a", "b")] for repo in lake.repositories()}


WHOLE = {name: [b"committed", b"staged"] for name in ("cold", "sales")}


@pytest.mark.parametrize("how", [move, copy, copy_away, mount])
def test_a_lake_works_on_wherever_its_folder_is(lake: Path, refstore: Command, how: Callable[[Path], Path]) -> None:
    place = how(lake)
    assert refstore.json("--data", place, "repo", "list")[0]["namespace"] == f"file://{place}/cold"
    for name in ("sales", "cold"):
        for words in (
            ("commit", name, "main", "-m", "two"),
            ("branch", "create", name, "dev", "--from", "main"),
            ("rm", name, "dev", "a"),
            ("reaper", "--once"),
            ("ls", name, "main"),
        ):
            ran = refstore("--data", place, *words)
            assert (words, ran.code) == (words, 0), ran.err
    refstore.ok("--data", place, "repo", "create", "new")
    refstore.ok("--data", place, "kv", "reconcile", "--clients-stopped", "--yes")
    refstore.ok("--data", place, "reaper", "--once")
    refstore.ok("--data", place, "kv", "verify")
    assert refstore.ok("--data", place, "cat", "cold", "main", "b").out == "staged"


def test_a_moved_lake_is_made_anew_from_its_objects(lake: Path, refstore: Command) -> None:
    place = move(lake)
    for file in place.glob("kv.sqlite*"):
        file.unlink()
    refstore.ok("--data", place, "kv", "rebuild", "--yes")
    for name in ("sales", "cold"):
        assert refstore.ok("--data", place, "cat", name, "main", "a").out == "committed"


def test_what_a_copy_deletes_stays_in_the_other_one(lake: Path) -> None:
    copied = copy(lake)
    with refstore.open(copied) as other:
        other.delete_repository("cold")
        shutil.rmtree(copied / "cold")
        shutil.rmtree(copied / "objects")
    with refstore.open(lake) as own:
        assert read_all(own) == WHOLE


def test_no_file_of_a_lake_has_its_folders_path(lake: Path, refstore: Command) -> None:
    """But the audit log, which says how something was called then."""
    run = refstore
    for name in ("sales", "cold"):
        run.ok("tag", "create", name, "v1", "--from", "main")
        run.ok("issue", name, "main", "later")
        run.ok("upload", name, "main", "-", "b", stdin=b"again")
        run.ok("reaper", "--once")
    named = [
        file
        for file in lake.rglob("*")
        if file.is_file() and "/_refstore/audit/" not in str(file) and str(lake).encode() in file.read_bytes()
    ]
    assert named == []


# ---- what lies outside of the folder


@pytest.fixture
def outside(lake: Path, tmp_path: Path) -> Path:
    """A namespace outside of the folder."""
    with refstore.open(lake) as opened:
        repo = opened.create_repository("far", namespace=f"file://{tmp_path}/far")
        repo.upload("main", "a", b"committed")
        repo.commit("main", "one")
        repo.upload("main", "b", b"staged")
    return tmp_path / "far"


@pytest.mark.parametrize("how", [move, mount])
def test_a_moved_lake_keeps_what_lies_outside(lake: Path, outside: Path, how: Callable[[Path], Path]) -> None:
    with refstore.open(how(lake)) as moved:
        assert read_all(moved) == {**WHOLE, "far": WHOLE["cold"]}
    assert (outside / HOLDER_OBJECT).is_file()


def test_a_copy_is_refused_what_it_would_share(lake: Path, outside: Path, refstore: Command) -> None:
    copied = copy(lake)
    before = {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    for words in (
        ("rm", "far", "main", "b"),
        ("cat", "far", "main", "b"),
        ("upload", "far", "main", "-", "c"),
        ("gc", "run", "far"),
        ("reaper", "--once"),
        ("repo", "delete", "far", "--yes"),
        ("doctor",),
    ):
        ran = refstore("--data", copied, *words)
        assert (words, ran.code) == (words, 6), ran.err
        assert "another copy of this folder holds it" in ran.out + ran.err
    assert {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()} == before
    assert refstore.ok("--data", copied, "cat", "cold", "main", "b").out == "staged"
    assert refstore.ok("--data", lake, "cat", "far", "main", "b").out == "staged"


def test_an_operator_gives_a_copy_what_the_other_one_held(lake: Path, outside: Path, refstore: Command) -> None:
    copied = copy(lake)
    reconcile = ("--data", copied, "kv", "reconcile", "--clients-stopped")
    refused = refstore(*reconcile, stdin=b"n\n")
    assert refused.code != 0
    assert "must never be used again" in refused.out + refused.err
    assert refstore("--data", copied, "cat", "far", "main", "b").code == 6
    assert json.loads(refstore.ok(*reconcile, "--yes", "--json").out)["moved"] == [f"file://{outside}"]
    assert refstore.ok("--data", copied, "cat", "far", "main", "b").out == "staged"
    assert refstore("--data", lake, "cat", "far", "main", "b").code == 6


def test_a_copy_whose_objects_are_behind_a_link_is_refused(lake: Path, tmp_path: Path) -> None:
    shutil.move(lake / "objects", tmp_path / "large-disk")
    (lake / "objects").symlink_to(tmp_path / "large-disk")
    with refstore.open(lake) as own:
        assert read_all(own) == WHOLE
    with pytest.raises(WrongStore, match="another copy of this folder holds it"):
        refstore.open(copy(lake))


def test_a_copy_is_refused_what_is_named_by_its_path(lake: Path, refstore: Command) -> None:
    """Of a lake that was opened by a link: the namespace is not seen to lie below it."""
    place = mount(lake)
    namespace = f"file://{lake}/objects/near"
    refstore.ok("--data", place, "repo", "create", "near", "--namespace", namespace)
    assert refstore("--data", copy(lake), "ls", "near", "main").code == 6
    refstore.ok("--data", lake, "ls", "near", "main")


def test_who_only_reads_holds_nothing(lake: Path, outside: Path) -> None:
    (outside / HOLDER_OBJECT).unlink()
    with refstore.open(copy(lake), read_only=True) as reading:
        assert reading.repository("far").read("main", "b") == b"staged"
    assert not (outside / HOLDER_OBJECT).exists()
    with refstore.open(lake) as own:
        own.repository("far")
    with refstore.open(lake.with_name("copy"), read_only=True) as reading, pytest.raises(WrongStore):
        reading.repository("far")


def test_a_creation_that_fails_holds_nothing(lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("refstore.versioning.branches.Branches.create", fail)
    with refstore.open(lake) as own, pytest.raises(KeyboardInterrupt):
        own.create_repository("far", namespace=f"file://{tmp_path}/far")
    assert not [path for path in (tmp_path / "far").rglob("*") if path.is_file()]


def test_who_still_has_the_old_place_of_the_objects_finds_them_where_the_kv_is_elsewhere(tmp_path: Path) -> None:
    kv, old, new = f"sqlite://{tmp_path}/kv/kv.sqlite", tmp_path / "old", tmp_path / "new"
    with open_lake_at(kv, f"file://{old}/objects") as made:
        made.create_repository("sales").upload("main", "a", b"1")
    shutil.copytree(old, new)
    with open_lake_at(kv, f"file://{new}/objects") as moved, open_lake_at(kv, f"file://{old}/objects") as behind:
        moved.repository("sales").upload("main", "b", b"by the one that has the new place")
        assert behind.repository("sales").read("main", "b") == b"by the one that has the new place"


def test_a_store_that_is_held_is_read_with_credentials_that_may_only_read(
    lake: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(*_: object, **__: object) -> None:
        raise StoreMisconfigured("403 AccessDenied: s3:PutObject")

    monkeypatch.setattr(LocalObjects, "put", deny)
    with refstore.open(lake) as own:
        assert own.repository("far").read("main", "a") == b"committed"
    assert (outside / HOLDER_OBJECT).is_file()


def test_a_namespace_that_does_not_answer_is_not_taken(lake: Path, outside: Path) -> None:
    """So that a store which is gone for good stops neither `kv reconcile` nor the end of `kv copy`."""
    with refstore.open(copy_away(lake)) as moved:
        shutil.move(outside, outside.with_name("away"))
        assert moved.take_stores() == []
        with pytest.raises(ObjectsUnavailable):
            moved.take_stores(must_answer=True)
        shutil.move(outside.with_name("away"), outside)
        assert moved.take_stores() == [f"file://{outside}"]


def test_a_namespace_that_is_another_lakes_by_now_is_not_taken(lake: Path, outside: Path) -> None:
    shutil.rmtree(outside)
    with refstore.create(lake.with_name("other")) as other:
        other.create_repository("theirs", namespace=f"file://{outside}")
        held = (outside / HOLDER_OBJECT).read_bytes()
    with refstore.open(lake) as own:
        assert own.take_stores() == []
    assert (outside / HOLDER_OBJECT).read_bytes() == held


def test_a_kv_that_is_made_anew_holds_what_lies_outside(lake: Path, outside: Path, refstore: Command) -> None:
    copied = copy(lake)
    for file in lake.glob("kv.sqlite*"):
        file.unlink()
    refstore.ok("--data", lake, "kv", "rebuild", "--yes")
    assert refstore.ok("--data", lake, "cat", "far", "main", "a").out == "committed"
    assert refstore("--data", copied, "cat", "far", "main", "a").code == 6


def test_a_kv_whose_time_of_making_is_not_known_is_told_by_its_inode(
    lake: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may not be told it, and another mount changes the device."""

    def is_opened(held: str, own: str) -> bool:
        (outside / HOLDER_OBJECT).write_text(held)
        monkeypatch.setattr(lake_identity, "read_file_identity", {lake / "kv.sqlite": own}.__getitem__)
        with refstore.open(lake) as opened:
            try:
                return opened.repository("far").read("main", "b") == b"staged"
            except WrongStore:
                return False

    for held, own in (("5:7", "1:5:7"), ("5:7", "2:5:0"), ("5:0", "2:5:7"), ("5:0", "2:5:0")):
        assert is_opened(held, own)
    for held, own in (("5:7", "1:5:8"), ("5:7", "1:6:7"), ("5:0", "1:6:0")):
        assert not is_opened(held, own)


def test_a_copy_whose_objects_are_a_mount_is_refused(
    lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a folder of the same disk, so that the device does not tell."""
    place = Path(shutil.move(lake, tmp_path / "with space"))
    copied, mounts = tmp_path / "copied", tmp_path / "mountinfo"
    shutil.copytree(place, copied)
    names = [str(each / "objects").replace(" ", r"\040") for each in (place, copied)]
    mounts.write_text("".join(f"30 25 8:1 /big {name} rw - ext4 /dev/sda rw\n" for name in names))
    monkeypatch.setattr("refstore.lake_identity.MOUNTS", mounts)
    with refstore.open(place) as own:
        assert read_all(own) == WHOLE
    shutil.rmtree(copied / "objects")
    shutil.copytree(place / "objects", copied / "objects")
    with pytest.raises(WrongStore, match="another copy of this folder holds it"):
        refstore.open(copied)
