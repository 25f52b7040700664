"""The folder of confirmed entries stays small, and nobody who reads it meanwhile misses an entry."""

from __future__ import annotations

import pytest

from refstore.core.ids import BranchName
from refstore.errors import CorruptObject
from refstore.kv.memory import MemoryKV
from refstore.objects.memory import MemoryObjects
from refstore.versioning import manifest
from refstore.versioning.manifest import CONFIRMED_FOLDER, BranchDeleted, Manifest


def entry(number: int) -> BranchDeleted:
    return BranchDeleted(BranchName(f"b{number:03}"), f"id-{number}")


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


@pytest.fixture
def filled(objects: MemoryObjects) -> Manifest:
    made = Manifest(objects, MemoryKV(), "unwritten")
    for number in range(manifest.MERGED_AT):
        made.confirm([entry(number)], f"{number:03}")
    return made


def names(made: Manifest) -> list[str]:
    return sorted(each.branch for each in made.read_confirmed() if isinstance(each, BranchDeleted))


def test_many_small_objects_become_one(objects: MemoryObjects, filled: Manifest) -> None:
    before = names(filled)
    filled.merge_confirmed("merged")
    assert [info.key for info in objects.list(CONFIRMED_FOLDER)] == [f"{CONFIRMED_FOLDER}merged.jsonl"]
    assert names(filled) == before
    filled.confirm([entry(999)], "next")
    filled.merge_confirmed("too-few")
    assert len(list(objects.list(CONFIRMED_FOLDER))) == 2


def test_who_reads_while_objects_are_merged_misses_nothing(objects: MemoryObjects, filled: Manifest) -> None:
    before = names(filled)
    reading = filled.read_confirmed()
    found = [next(reading)]
    Manifest(objects, MemoryKV(), "unwritten").merge_confirmed("merged")
    found += list(reading)
    assert sorted({each.branch for each in found if isinstance(each, BranchDeleted)}) == before


def test_a_merge_that_died_between_its_steps_is_made_again(
    objects: MemoryObjects, filled: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = names(filled)
    with monkeypatch.context() as patch:
        patch.setattr(objects, "delete_many", lambda _keys: (_ for _ in ()).throw(RuntimeError("killed")))
        with pytest.raises(RuntimeError):
            filled.merge_confirmed("first")
    filled.merge_confirmed("second")
    assert names(filled) == before
    assert [info.key for info in objects.list(CONFIRMED_FOLDER)] == [f"{CONFIRMED_FOLDER}second.jsonl"]


def test_large_objects_are_left_alone(
    objects: MemoryObjects, filled: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "MERGED_BYTES", 200)
    filled.merge_confirmed("merged")
    sizes = {info.key: info.size_bytes for info in objects.list(CONFIRMED_FOLDER)}
    assert sizes[f"{CONFIRMED_FOLDER}merged.jsonl"] >= 200
    assert len(sizes) > manifest.MERGED_AT // 2
    assert len(names(filled)) == manifest.MERGED_AT


def test_an_object_that_cannot_be_read_is_not_merged(objects: MemoryObjects, filled: Manifest) -> None:
    before = names(filled)
    whole = objects.read(f"{CONFIRMED_FOLDER}000.jsonl")
    objects.put(f"{CONFIRMED_FOLDER}000.jsonl", whole[:20])
    filled.merge_confirmed("merged")
    with pytest.raises(CorruptObject, match=r"000\.jsonl"):
        names(filled)
    objects.put(f"{CONFIRMED_FOLDER}000.jsonl", whole)
    assert names(filled) == before
