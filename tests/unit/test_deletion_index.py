"""The index of deletions: what is written is found once, by few requests, whoever dies while it is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from refstore.deletion_history import deletion_index
from refstore.deletion_history.deletion_index import FOLDER, Period, read_index
from refstore.deletion_history.explain import Deletion, explain_address
from refstore.errors import AddressNotFound, CorruptObject, ObjectsRefused, ObjectsUnavailable
from refstore.objects.base import Body, DeleteResult, StoredObject
from refstore.objects.local import LocalObjects
from refstore.objects.memory import MemoryObjects
from refstore.repository import Repository
from refstore_gc import deletion_index_writer
from refstore_gc.run_layout import write_table
from refstore_gc.untyped_arrow import pa


def addresses(run: int, count: int) -> list[str]:
    """In no order."""
    return [f"data/2026112107/{sha256(f'{run} {number}'.encode()).hexdigest()[:26]}" for number in range(count)]


def outcomes(
    repo: Repository, run: int, count: int, *, outcome: str = "deleted", reason: str = "expired", unit: int = 10
) -> list[str]:
    """The outcome files of a sweep, of `unit` addresses each."""
    files: list[str] = []
    for at in range(0, count, unit):
        some = addresses(run, count)[at : at + unit]
        key = f"_refstore/gc/run-{run}/sweep/{at:06d}.parquet"
        columns = {"address": some, "size_bytes": [run] * len(some), "reason": [reason] * len(some)}
        write_table(
            repo.context.objects, key, pa.table({**columns, "outcome": [outcome] * len(some), "why": [""] * len(some)})
        )
        files.append(key)
    return files


def index(repo: Repository, run: int, count: int = 20, **options: Any) -> None:
    deletion_index_writer.index_sweep(repo.context, f"run-{run}", outcomes(repo, run, count, **options), at_ms=run)


def found(repo: Repository, address: str) -> Sequence[Deletion]:
    try:
        return explain_address(repo.context, address).deletions
    except AddressNotFound:
        return ()


def check_all(repo: Repository, runs: Sequence[int], count: int = 20) -> None:
    wanted = {address: run for run in runs for address in addresses(run, count)}
    store = repo.context.objects
    records = deletion_index.lookup(store, read_index(store).files, list(wanted)).records
    for address, run in wanted.items():
        (told,) = records[address]
        assert (told.address, told.run, told.at_ms, told.size_bytes) == (address, f"run-{run}", run, run)
        assert (told.by, told.outcome, told.cause) == ("sweep", "deleted", "expired")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index whose runs have several files, and its files several row groups."""
    monkeypatch.setattr(deletion_index_writer, "UNITS_PER_FILE", 2)
    monkeypatch.setattr(deletion_index, "ROW_GROUP_ROWS", 7)


@pytest.mark.usefixtures("small")
def test_every_address_of_every_run_is_found_once_under_its_run(repo: Repository) -> None:
    for run in range(5):
        index(repo, run, 50)
    index(repo, 3, 50)
    check_all(repo, range(5), 50)
    assert found(repo, addresses(99, 1)[0]) == ()
    indexed = read_index(repo.context.objects)
    assert (len(indexed.files), indexed.runs) == (15, {f"run-{run}" for run in range(5)})


def test_what_was_excluded_is_not_told_as_deleted(repo: Repository) -> None:
    index(repo, 1, outcome="excluded")
    assert found(repo, addresses(1, 1)[0]) == ()
    index(repo, 2, outcome="tagged", reason="orphan blob")
    (told,) = found(repo, addresses(2, 1)[0])
    assert (told.outcome, told.cause) == ("tagged", "orphan blob")


def test_two_deletions_of_one_address_are_both_told_oldest_first(repo: Repository) -> None:
    for mark_id, at_ms in (("later", 9), ("earlier", 3)):
        deletion_index_writer.index_sweep(repo.context, mark_id, outcomes(repo, 1, 1), at_ms)
    assert [told.run for told in found(repo, addresses(1, 1)[0])] == ["earlier", "later"]


class Dies(MemoryObjects):
    """Dies at its n-th write to the index, before or behind it."""

    def __init__(self, at: int, *, behind: bool) -> None:
        super().__init__(name=f"dies-{at}-{behind}")
        self.left = at
        self.behind = behind

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> StoredObject:
        self.left -= key.startswith(FOLDER)
        if self.left == 0 and not self.behind:
            raise KeyboardInterrupt
        done = super().put(key, body, if_absent=if_absent)
        if self.left == 0:
            raise KeyboardInterrupt
        return done


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("at", range(1, 7))
def test_whoever_dies_while_it_is_written_loses_and_invents_nothing(repo: Repository, at: int, behind: bool) -> None:
    dying = Dies(at, behind=behind)
    dead = Repository(repo.name, repo.record, lambda: replace(repo.context, objects=dying))

    def index_both() -> None:
        for run in (1, 2):
            index(dead, run, 50)

    with pytest.raises(KeyboardInterrupt):
        index_both()
    written = at - 1 + behind
    assert read_index(dying).runs == {f"run-{run}" for run in (1, 2) if written >= 3 * run}, "only with its last file"
    dying.left = -1
    index_both()
    check_all(dead, (1, 2), 50)


def test_a_store_that_does_not_answer_is_not_taken_for_one_without_an_index(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(repo, 1)

    def refuse(*_: object, **__: object) -> Iterator[bytes]:
        raise ObjectsUnavailable("planted: the store is down")

    monkeypatch.setattr(repo.context.objects, "get", refuse)
    with pytest.raises(ObjectsUnavailable):
        found(repo, addresses(1, 1)[0])


@pytest.mark.parametrize("damage", ["empty", "short", "footer", "keys", "values", "no Parquet", "another's Parquet"])
def test_a_damaged_file_is_named_and_not_read_as_empty(repo: Repository, damage: str) -> None:
    index(repo, 1, 2_000, unit=1_000)
    store = repo.context.objects
    (file,) = read_index(store).files
    body = bytearray(store.read(file.key))
    match damage:
        case "empty":
            body.clear()
        case "short":
            del body[-1]
        case "footer":
            body[-200:-100] = bytes(100)
        case "keys":
            body[2_000] ^= 1
        case "values":
            body[body.index(b"refstore.unreadable") - 1_500 - len(body)] ^= 1
        case "no Parquet":
            body[:] = b"x" * len(body)
        case _:
            body[:] = store.read(outcomes(repo, 2, 10)[0])
    store.put(file.key, bytes(body))
    with pytest.raises(CorruptObject, match=f"{file.key} .*refstore gc run REPO --only index"):
        found(repo, addresses(1, 1)[0])
    store.delete_many([file.key])
    assert read_index(store).runs == frozenset(), "it is known to be missing"
    index(repo, 1, 2_000, unit=1_000)
    check_all(repo, [1], 1)


class KeepsAll(MemoryObjects):
    """Lets nobody delete anything."""

    def delete_many(self, keys: Sequence[str]) -> DeleteResult:
        return DeleteResult((), (), tuple((key, "planted: AccessDenied") for key in keys))


def test_a_file_that_cannot_be_removed_is_not_taken_for_one_that_was_written_again(repo: Repository) -> None:
    store = KeepsAll(name="keeps-all")
    key = deletion_index.journal_file(Period(0, 10))
    store.put(key, b"damaged")
    with pytest.raises(ObjectsRefused, match=f"{key}: planted"):
        deletion_index_writer.rebuild(replace(repo.context, objects=store))


class Counting(LocalObjects):
    """Counts what is asked of a store, as S3 would."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root), fsync=False)
        self.requests = 0
        self.bytes = 0

    def get(
        self, key: str, *, start: int = 0, end: int | None = None, size_bytes: int | None = None
    ) -> Iterator[bytes]:
        self.requests += 1
        chunks = list(super().get(key, start=start, end=end, size_bytes=size_bytes))
        self.bytes += sum(map(len, chunks))
        return iter(chunks)


def test_a_lookup_reads_of_each_file_the_footer_and_one_row_group(tmp_path: Path, repo: Repository) -> None:
    """The addresses of each run are all over the time, so that every file may have each."""
    store = Counting(tmp_path)
    many = Repository(repo.name, repo.record, lambda: replace(repo.context, objects=store))
    for run in range(3):
        index(many, run, 40_000, unit=10_000)
    address = addresses(1, 40_000)[17_777]
    index(many, 4, 10)
    size = sum(info.size_bytes for info in read_index(store).files)
    store.requests = store.bytes = 0
    (told,) = found(many, address)
    assert told.run == "run-1"
    assert store.requests <= 4 + 3 + 1, "the end of each, which is all of the small one; keys; what the right one has"
    assert store.bytes < size / 2
