"""Listings name a commit's new ranges, and the offline job reads from them which ranges all commits have."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from refstore.core.clock import SystemClock
from refstore.core.ids import CommitId, RandomIds, new_address
from refstore.errors import CorruptRange
from refstore.objects import open_objects
from refstore.records.commit_records import StoredCommit
from refstore.records.staging_records import StoredEntry
from refstore.retention.path_rules import KeepLevel
from refstore.versioning.commits import added_addresses, metaranges, object_names
from refstore.versioning.commits.caches import Caches
from refstore.versioning.commits.ranges import CutRule
from refstore.versioning.commits.tree_store import TreeStore
from refstore.versioning.commits.trees import Trees
from refstore_gc.address_batches import Batch, BatchKind
from refstore_gc.address_codec import BucketBounds, encode_addresses
from refstore_gc.engines.local import LocalEngine, SharedWork
from refstore_gc.incremental.baseline import changed_sources
from refstore_gc.live_in_commits import (
    CommitSources,
    FilterPart,
    LiveCommits,
    TreeFilter,
    commit_flows,
)
from refstore_gc.run_layout import RunLayout
from refstore_gc.untyped_arrow import pa

NOTHING_KEPT = TreeFilter((FilterPart("", KeepLevel.NOTHING),))
A_PART_KEPT = TreeFilter((FilterPart("", KeepLevel.NOTHING), FilterPart("p/00000", KeepLevel.ALL)))


@dataclass
class Line:
    """Commits whose trees have many small ranges, in a folder, without a KV."""

    folder: Path
    commits: dict[CommitId, StoredCommit] = field(default_factory=dict)

    def __post_init__(self) -> None:
        url = f"file://{self.folder}?fsync=0"
        self.layout = RunLayout(url=url, files=url, mark_id="m", seed=7)
        self.objects = open_objects(url)
        self.trees = Trees(self.objects, RandomIds(), SystemClock(), cut=CutRule(4, 4, 16), threads=0)
        self.store = TreeStore(self.objects, RandomIds(), SystemClock(), Caches(0, 0))

    def commit(self, parent: CommitId | None, changes: Mapping[str, StoredEntry | None]) -> CommitId:
        base = self.commits[parent].metarange if parent else ""
        written = self.trees.apply(base, sorted(changes.items()))
        made = CommitId(f"c{len(self.commits)}")
        self.commits[made] = StoredCommit(
            (parent,) if parent else (), written.metarange, written.added_addresses_id, (), 0, "", ""
        )
        return made

    def grow(self, rng: random.Random, count: int) -> list[CommitId]:
        """Add so many commits, each to one of the last three: some put, some only delete, some change nothing."""
        made: list[CommitId] = []
        for _ in range(count):
            parent = rng.choice([*list(self.commits)[-3:], None]) if self.commits else None
            some = rng.sample(range(60), 60 if parent is None else rng.choice((0, 1, 3, 8)))
            deletes = rng.random() < 0.3
            made.append(self.commit(parent, {path(each): None if deletes else entry() for each in some}))
        return made

    def ranges_of(self, commits: Sequence[CommitId]) -> set[str]:
        return {each for commit in commits for each in self.trees.ranges(self.commits[commit].metarange)}

    def named_ranges(self, sources: CommitSources) -> list[int]:
        """Return the keys of the ranges that reading the sources finds."""

        def range_keys(batches: list[Batch]) -> Iterator[int]:
            for batch in batches:
                if batch.kind is BatchKind.RANGES:
                    yield from batch.keys.tolist()

        return list(
            LocalEngine(shared=SharedWork(0)).join(
                commit_flows(self.layout, BucketBounds.from_addresses([]), sources), 1, range_keys
            )
        )

    def keys_of(self, range_ids: set[str]) -> set[int]:
        keys = pa.array([object_names.key(object_names.RANGES, each) for each in sorted(range_ids)], pa.string())
        return set(encode_addresses(keys, self.layout.seed).tolist())


@pytest.fixture
def line(tmp_path: Path) -> Line:
    return Line(tmp_path)


@pytest.fixture
def opened_metaranges(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which metaranges are read for their ids."""
    opened: list[str] = []

    def range_ids(metarange_id: str, body: bytes) -> object:
        opened.append(metarange_id)
        return real(metarange_id, body)

    real = metaranges.range_ids
    monkeypatch.setattr(metaranges, "range_ids", range_ids)
    return opened


def path(number: int) -> str:
    return f"p/{number:06d}"


def entry() -> StoredEntry:
    return StoredEntry(new_address(RandomIds(), 1_700_000_000_000), 1, "0" * 64, 0)


def live(line: Line, how: Mapping[CommitId, TreeFilter | None]) -> LiveCommits:
    commits = LiveCommits()
    for commit, tree_filter in how.items():
        commits.add(commit, line.commits[commit], tree_filter)
    return commits


def test_a_listing_names_what_the_tree_has_and_its_base_has_not(line: Line) -> None:
    shorter = 0
    for commit in line.grow(random.Random(1), 60):
        record = line.commits[commit]
        if record.added_addresses_id:
            base = line.ranges_of(record.parents)
            with added_addresses.open_added_addresses(line.store, record.added_addresses_id) as listing:
                assert listing.new_ranges is not None
                assert set(listing.new_ranges) == line.ranges_of([commit]) - base
                shorter += len(listing.new_ranges) < len(line.ranges_of([commit]))
    assert shorter > 10


def test_a_listing_names_no_more_ranges_than_fit(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(added_addresses, "NEW_RANGES_MAX", 2)
    first = line.commit(None, {path(each): entry() for each in range(60)})
    second = line.commit(first, {path(3): entry()})
    counts: list[int | None] = []
    for commit in (first, second):
        with added_addresses.open_added_addresses(line.store, line.commits[commit].added_addresses_id) as listing:
            assert sum(map(len, listing.addresses)) in {60, 1}
            counts.append(listing.new_ranges and len(listing.new_ranges))
    assert counts == [None, 1]


@pytest.mark.parametrize("seed", range(12))
def test_the_ranges_of_all_commits_are_found(line: Line, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Whatever is kept of each commit, and whether or not its listing names its ranges, as an old one does not."""
    rng = random.Random(seed)
    for _ in range(6):
        monkeypatch.setattr(added_addresses, "NEW_RANGES_MAX", rng.choice((-1, 2, 4096)))
        line.grow(rng, 8)
    scanned = [commit for commit in line.commits if rng.random() < 0.9]
    how = {commit: rng.choice((None, None, None, NOTHING_KEPT, A_PART_KEPT)) for commit in scanned}
    expired = [commit for commit, tree_filter in how.items() if tree_filter is NOTHING_KEPT and rng.random() < 0.5]
    found = line.named_ranges(live(line, how).sources(expired))
    assert set(found) == line.keys_of(line.ranges_of(scanned))


@pytest.mark.parametrize("seed", range(12))
def test_the_next_run_finds_the_ranges_of_what_is_new(line: Line, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(added_addresses, "NEW_RANGES_MAX", rng.choice((-1, 2, 4096)))
    before = {commit: rng.choice((None, None, NOTHING_KEPT)) for commit in line.grow(rng, 20)}
    monkeypatch.setattr(added_addresses, "NEW_RANGES_MAX", rng.choice((-1, 2, 4096)))
    after = {commit: NOTHING_KEPT if rng.random() < 0.2 else tree_filter for commit, tree_filter in before.items()}
    after |= {commit: rng.choice((None, None, NOTHING_KEPT)) for commit in line.grow(rng, 20)}
    commits = live(line, after)
    reads, read_before = commits.read_names(), live(line, before).read_names()
    assert reads is not None
    assert read_before is not None
    found = set(line.named_ranges(changed_sources(commits, reads, read_before, line.layout)))
    new = line.ranges_of(list(after)) - line.ranges_of(list(before))
    assert new
    assert found >= line.keys_of(new)
    assert found <= line.keys_of(line.ranges_of(list(after)))


def test_of_a_line_of_commits_only_the_first_metarange_is_opened(line: Line, opened_metaranges: list[str]) -> None:
    first = line.commit(None, {path(each): entry() for each in range(60)})
    second = line.commit(first, {path(3): entry()})
    third = line.commit(second, {path(30): entry()})
    every = [first, second, third]
    sources = live(line, dict.fromkeys(every)).sources()
    assert [tree.metarange for tree in sources.trees] == [line.commits[first].metarange]
    assert set(line.named_ranges(sources)) == line.keys_of(line.ranges_of(every))
    assert opened_metaranges == []  # that of the first is read as a whole


def test_what_an_earlier_version_committed_is_read_from_its_metarange(
    line: Line, opened_metaranges: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = line.commit(None, {path(each): entry() for each in range(60)})
    with monkeypatch.context() as patch:
        patch.setattr(added_addresses, "NEW_RANGES_MAX", -1)
        second = line.commit(first, {path(3): entry()})
    third = line.commit(second, {path(30): entry()})
    every = [first, second, third]
    found = line.named_ranges(live(line, dict.fromkeys(every)).sources())
    assert set(found) == line.keys_of(line.ranges_of(every))
    assert len(found) == len(set(found))
    assert opened_metaranges == [line.commits[second].metarange]


def test_a_listing_with_an_invalid_range_ends_the_run(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    first = line.commit(None, {path(each): entry() for each in range(60)})
    with monkeypatch.context() as patch:
        patch.setattr(
            added_addresses.columns, "open_encoder", partial(_with_another_range, added_addresses.columns.open_encoder)
        )
        second = line.commit(first, {path(3): entry()})
    with pytest.raises(CorruptRange, match="is not the id of a range"):
        line.named_ranges(live(line, {first: None, second: None}).sources())


def _with_another_range(encoding: Callable[..., object], *rest: object) -> object:
    return encoding(*rest[:-1], {"refstore.new_ranges": "../../elsewhere"})
