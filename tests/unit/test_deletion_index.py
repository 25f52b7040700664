"""The index over all deletions: what is written is found, by few requests, whoever dies while it is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from refstore.core import keys
from refstore.core.records import GcRun, encode
from refstore.deletions import index_format
from refstore.deletions.explain import explain_address
from refstore.deletions.index_format import (
    FOLDER,
    SWEEP,
    Match,
    Source,
    encode_source,
    hash_of,
    lookup,
    segment_key,
    segments,
)
from refstore.errors import AddressNotFound, CorruptObject, ObjectNotFound, ObjectsUnavailable
from refstore.kv.base import ABSENT
from refstore.objects.base import Body, Deletion, ObjectInfo, Stored
from refstore.objects.local import LocalObjects
from refstore.objects.memory import MemoryObjects
from refstore.repository import Repository
from refstore_gc import deletion_index_writer
from refstore_gc.deletion_index_writer import ENTRY
from refstore_gc.run_layout import write_table
from refstore_gc.untyped_arrow import pa


def addresses(run: int, count: int) -> list[str]:
    return [f"data/2026112107/{run:010d}{number:016d}" for number in range(count)]


def outcomes(repo: Repository, run: int, count: int, *, outcome: str = "deleted", reason: str = "expired") -> list[str]:
    """The outcome files of a sweep, of ten addresses each."""
    files: list[str] = []
    for at in range(0, count, 10):
        some = addresses(run, count)[at : at + 10]
        key = f"_refstore/gc/run-{run}/sweep/{at:06d}.parquet"
        columns = {"address": some, "size_bytes": [1] * len(some), "reason": [reason] * len(some)}
        write_table(
            repo.context.objects, key, pa.table({**columns, "outcome": [outcome] * len(some), "why": [""] * len(some)})
        )
        files.append(key)
    return files


def cover(repo: Repository, run: int, count: int = 20, **told: str) -> None:
    deletion_index_writer.cover(repo.context, f"run-{run}", outcomes(repo, run, count, **told), at_ms=run)


def found(repo: Repository, address: str) -> list[Match]:
    return lookup(repo.context.objects, [address])[address]


def check_all(repo: Repository, runs: Sequence[int], count: int = 20) -> None:
    for run in runs:
        for number, address in enumerate(addresses(run, count)):
            file = f"_refstore/gc/run-{run}/sweep/{number // 10 * 10:06d}.parquet"
            assert found(repo, address) == [Match(Source(SWEEP, f"run-{run}", file, run), "deleted", "expired")]


def test_every_address_of_every_run_is_found_under_its_run(repo: Repository) -> None:
    for run in range(30):
        cover(repo, run)
    check_all(repo, range(30))
    assert found(repo, addresses(99, 1)[0]) == []
    assert [segment.level for segment in segments(repo.context.objects)] == [1, 3], "30 is 1010 to the base 3"


def test_what_dropped_out_is_not_told_as_deleted(repo: Repository) -> None:
    cover(repo, 1, outcome="dropped out")
    assert found(repo, addresses(1, 1)[0]) == []
    cover(repo, 2, outcome="tagged", reason="orphan blob")
    assert [(match.outcome, match.reason) for match in found(repo, addresses(2, 1)[0])] == [("tagged", "orphan blob")]


def test_two_deletions_of_one_address_are_both_told_oldest_first(repo: Repository) -> None:
    address = addresses(1, 1)[0]
    for mark_id, at_ms in (("later", 9), ("earlier", 3)):
        deletion_index_writer.cover(repo.context, mark_id, outcomes(repo, 1, 1), at_ms)
    assert [match.source.run for match in found(repo, address)] == ["earlier", "later"]


def test_a_run_of_many_deletions_leaves_several_segments(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion_index_writer, "SEGMENT_ENTRIES", 50)
    cover(repo, 1, count=120)
    assert len(segments(repo.context.objects)) == 1, "three of them were merged"
    check_all(repo, [1], count=120)


def test_merging_in_small_pieces_loses_nothing(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion_index_writer, "CHUNK_ENTRIES", 7)
    monkeypatch.setattr(deletion_index_writer, "READ_BYTES", 3 * index_format.ENTRY_BYTES)
    for run in range(9):
        cover(repo, run)
    (segment,) = segments(repo.context.objects)
    assert segment.entries == 180
    check_all(repo, range(9))


class Dies(MemoryObjects):
    """Dies at its n-th write to the index, before or behind it."""

    def __init__(self, at: int, *, behind: bool) -> None:
        super().__init__(name=f"dies-{at}-{behind}")
        self.left = at
        self.behind = behind

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> Stored:
        if not key.startswith(FOLDER):
            return super().put(key, body, if_absent=if_absent)
        self._step()
        done = super().put(key, body, if_absent=if_absent)
        self._behind()
        return done

    def delete_many(self, keys: Sequence[str]) -> Deletion:
        self._step()
        done = super().delete_many(keys[: len(keys) // 2] if self.left == 0 else keys)  # it gets half of them done
        self._behind()
        return done

    def _step(self) -> None:
        self.left -= 1
        if self.left == 0 and not self.behind:
            raise KeyboardInterrupt

    def _behind(self) -> None:
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("at", range(1, 12))
def test_whoever_dies_while_it_is_written_loses_and_invents_nothing(repo: Repository, at: int, behind: bool) -> None:
    dying = Dies(at, behind=behind)
    dead = Repository(dataclasses.replace(repo.context, objects=dying), repo.record)
    run = -1
    with suppress(KeyboardInterrupt):
        while run < 20:
            run += 1
            cover(dead, run)
    assert run < 20, "it died"
    ctx = repo.context
    covered = [each for each in range(run + 1) if ctx.kv.get(keys.gc_indexed(ctx.repo, f"run-{each}")) is not ABSENT]
    assert covered[:-1] == list(range(run))[: len(covered) - 1]
    check_all(dead, covered)
    for again in range(run, 20):
        cover(dead, again)
    deletion_index_writer.merge(dead.context)
    check_all(dead, range(20))
    for run in range(20, 27):
        cover(dead, run)
    (segment,) = [segment for segment in segments(dying) if segment.level == 3]
    assert segment.entries <= 27 * 20


def test_two_hosts_that_merge_at_once_lose_nothing(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one merges the same segments while this one has read and not yet written."""
    ctx = repo.context
    monkeypatch.setattr(deletion_index_writer, "merge", lambda _: None)
    for run in range(3):
        cover(repo, run)
    monkeypatch.undo()
    due = segments(ctx.objects)
    put = ctx.objects.put

    def other(key: str, body: Body, **options: bool) -> Stored:
        monkeypatch.setattr(ctx.objects, "put", put)
        written = put(key, body, **options)
        deletion_index_writer.merge(ctx)
        return written

    monkeypatch.setattr(ctx.objects, "put", other)
    deletion_index_writer._merge(ctx.objects, due, "mine")
    check_all(repo, range(3))
    assert len(segments(ctx.objects)) == 2, "both of them wrote it"
    for run in range(3, 9):
        cover(repo, run)
    check_all(repo, range(9))


def test_a_merge_whose_segments_another_host_took_writes_nothing(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = repo.context
    monkeypatch.setattr(deletion_index_writer, "merge", lambda _: None)
    for run in range(3):
        cover(repo, run)
    monkeypatch.undo()
    due = segments(ctx.objects)
    ctx.objects.delete_many([due[1].key])
    with pytest.raises(ObjectNotFound):
        deletion_index_writer._merge(ctx.objects, due, "mine")
    assert segments(ctx.objects) == [due[0], due[2]]
    deletion_index_writer.merge(ctx)


def test_a_reader_lists_again_when_a_segment_was_merged_meanwhile(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = repo.context
    for run in range(2):
        cover(repo, run)
    get = ctx.objects.get

    def merged_now(key: str, *, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        monkeypatch.setattr(ctx.objects, "get", get)
        cover(repo, 2)
        return get(key, start=start, end=end)

    monkeypatch.setattr(ctx.objects, "get", merged_now)
    check_all(repo, [0])


def test_a_store_that_does_not_answer_is_not_taken_for_one_without_an_index(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    cover(repo, 1)

    def refuse(*_: object, **__: object) -> Iterator[bytes]:
        raise ObjectsUnavailable("planted: the store is down")

    monkeypatch.setattr(repo.context.objects, "get", refuse)
    with pytest.raises(ObjectsUnavailable):
        found(repo, addresses(1, 1)[0])


@pytest.mark.parametrize("damage", ["short", "order", "source", "number"])
def test_a_damaged_segment_is_told_and_not_read_as_empty(repo: Repository, damage: str) -> None:
    cover(repo, 1)
    store = repo.context.objects
    (segment,) = segments(store)
    body = store.read(segment.key)
    entries = [body[at : at + 16] for at in range(0, 320, 16)]
    wanted = next(at for at, entry in enumerate(entries) if entry[:8] == hash_of(addresses(1, 1)[0]))
    match damage:
        case "short":
            body = body[:-1]
        case "order":
            body = b"".join(reversed(entries)) + body[320:]
        case "source":
            body = body[:322] + b"\xff" * (len(body) - 322)
        case _:
            body = body[: wanted * 16 + 8] + b"\0\0\0\7" + body[wanted * 16 + 12 :]
    store.put(segment.key, body)
    with pytest.raises(CorruptObject, match="refstore gc index"):
        found(repo, addresses(1, 1)[0])


def test_a_code_of_a_later_version_is_told_as_unknown(repo: Repository) -> None:
    entry = hash_of("data/x") + bytes(4) + bytes((200, 201, 0, 0))
    repo.context.objects.put(segment_key(0, 1, "later"), entry + encode_source(Source("purge", "p1", "somewhere", 7)))
    (match,) = found(repo, "data/x")
    assert (match.source.kind, match.outcome, match.reason) == (
        "purge",
        "unknown to this version (200)",
        "unknown to this version (201)",
    )


def test_the_longest_mark_id_fits_into_a_source() -> None:
    mark_id = "m" * 63
    file = f"_refstore/gc/{mark_id}/sweep/{10**13}-{'f' * 16}.parquet"
    assert len(encode_source(Source(SWEEP, mark_id, file, 2**62))) == index_format.SOURCE_BYTES


class Counting(LocalObjects):
    """Counts what is asked of a store, as S3 would: a listing is one request for each thousand keys."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root), fsync=False)
        self.requests = 0
        self.bytes = 0

    def head(self, key: str) -> ObjectInfo:
        self.requests += 1
        return super().head(key)

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        self.requests += 1
        chunks = list(super().get(key, start=start, end=end))
        self.bytes += sum(map(len, chunks))
        return iter(chunks)

    def list(self, prefix: str = "", *, after: str = "", before: str = "") -> Iterator:
        listed = list(super().list(prefix, after=after, before=before))
        self.requests += 1 + len(listed) // 1000
        self.bytes += 300 * len(listed)
        return iter(listed)


def many_runs(store: Counting, runs: int, address: str) -> str:
    """Write the index files of so many runs of 100,000 deletions each, as merging leaves them; the key of the file that
    has the address.
    """
    random = np.random.default_rng(1)
    first, of_address = 0, ""
    for number, level in enumerate(power for power in range(9, -1, -1) for _ in range(runs // 3**power % 3)):
        count = 3**level
        named = range(first, first + count)
        files = [
            (f"mark-{run}", f"_refstore/gc/mark-{run}/sweep/{unit:06d}-{'a' * 16}.parquet", run)
            for run in named
            for unit in range(10)
        ]
        entries = np.zeros(count * 100_000, ENTRY)
        hashes = random.integers(0, 2**64, len(entries), np.uint64)
        if not number:
            hashes[77] = int.from_bytes(hash_of(address), "big")
        hashes.sort()
        entries["hash"] = hashes
        entries["source"] = np.arange(len(entries)) % len(files)
        entries["outcome"], entries["reason"] = 1, 1
        if not number:
            of_address = files[
                int(np.searchsorted(hashes, np.uint64(int.from_bytes(hash_of(address), "big")))) % len(files)
            ][1]
        sources = b"".join(encode_source(Source(SWEEP, *file)) for file in files)
        store.put(segment_key(level, len(files), f"{number:026d}"), iter([memoryview(entries).cast("B"), sources]))
        first += count
    assert first == runs
    return of_address


@pytest.mark.slow
@pytest.mark.parametrize("runs", [728, 1000])
def test_why_among_100_million_deletions_takes_20_requests_and_8_mib(
    tmp_path: Path, repo: Repository, runs: int
) -> None:
    """With 728 runs the index has the most segments; with 1,000 there are 100 million deletions."""
    store = Counting(tmp_path)
    ctx = dataclasses.replace(repo.context, objects=store)
    address = "data/2023111422/01hf7yat0000000000000000aa"
    file = many_runs(store, runs, address)
    rows = [f"data/2023111422/{number:026d}" for number in range(9_999)] + [address]
    columns = {
        "address": rows,
        "size_bytes": [5] * len(rows),
        "reason": ["expired"] * len(rows),
        "outcome": ["deleted"] * len(rows),
    }
    write_table(store, file, pa.table({**columns, "why": [""] * len(rows)}))
    mark_id = file.split("/")[2]
    store.put(
        f"_refstore/gc/{mark_id}/summary.json",
        b'{"mark_id": "m", "rules_digest": "abc", "expired_by": {"branch \'main\': 7 days": 3}}',
    )
    for run in range(runs):
        ctx.kv.set(keys.gc_run(ctx.repo, f"mark-{run}"), encode(GcRun("w", "swept", run, 0, 0, "abc", swept_ms=run)))
        ctx.kv.set(keys.gc_indexed(ctx.repo, f"mark-{run}"), b"")
    store.requests = store.bytes = 0
    (told,) = explain_address(ctx, address).deletions
    assert (told.run, told.outcome, told.cause, told.size_bytes) == (mark_id, "deleted", "expired", 5)
    assert "branch 'main': 7 days (3 commits)" in told.rule
    assert (store.requests <= 20, store.bytes <= 8 << 20) == (True, True), (store.requests, store.bytes)
    print(f"{runs} runs: {store.requests} requests, {store.bytes} bytes")
    with pytest.raises(AddressNotFound):
        explain_address(ctx, address[:-1] + "b")
