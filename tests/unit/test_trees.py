"""Trees: what an apply writes and what it leaves alone, its helpers, and what happens when a store fails in the
middle.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refstore.core.ids import Address, RandomIds
from refstore.errors import CorruptRange, CorruptRecord, Invalid, MergeConflict, ObjectsUnavailable, Unavailable
from refstore.objects.base import Body, StoredObject
from refstore.objects.memory import MemoryObjects
from refstore.records.encoding import encode
from refstore.records.staging_records import StoredEntry
from refstore.versioning.commits import added_addresses, columns, object_names, sorted_runs
from refstore.versioning.commits.added_addresses import AddedAddressCollector
from refstore.versioning.commits.caches import Cache, Caches
from refstore.versioning.commits.object_names import hash_of
from refstore.versioning.commits.ranges import CutRule
from refstore.versioning.commits.tree_changes import PAGE_ROWS, page_entries, page_values
from refstore.versioning.commits.tree_merge import CONFLICTS_MAX, MergeStrategy, merge_changes
from refstore.versioning.commits.tree_rewrite import RUNS_MAX, WrittenTree
from refstore.versioning.commits.tree_store import TreeStore
from refstore.versioning.commits.trees import Trees
from refstore.versioning.commits.workers import Workers
from tests.kit.clock import FakeClock
from tests.kit.equality import equal_as_uploaded
from tests.kit.ids import CountingIds


@dataclass
class Watched(MemoryObjects):
    """Says what was asked of it, and fails from a given put or read on."""

    puts: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    fail_at_put: int = -1
    fail_at_read: int = -1

    def __post_init__(self) -> None:
        super().__init__()

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> StoredObject:
        self.puts.append(key)
        if 0 <= self.fail_at_put < len(self.puts):
            raise ObjectsUnavailable("the store does not answer; make the same call again")
        return super().put(key, body, if_absent=if_absent)

    def get(
        self, key: str, *, start: int = 0, end: int | None = None, size_bytes: int | None = None
    ) -> Iterator[bytes]:
        self.reads.append(key)
        if 0 <= self.fail_at_read < len(self.reads):
            raise ObjectsUnavailable("the store does not answer; make the same call again")
        return super().get(key, start=start, end=end, size_bytes=size_bytes)

    def forget(self) -> None:
        self.puts.clear()
        self.reads.clear()


def entry(number: int, version: int = 0, **fields: object) -> StoredEntry:
    return StoredEntry(
        Address(f"data/2026112107/{version:013d}{number:013d}"), number, f"{number:064x}", version, **fields
    )


def path(number: int) -> str:
    return f"p/{number:06d}"


def trees_on(objects: MemoryObjects, *, threads: int = 0, cut: CutRule | None = None) -> Trees:
    return Trees(objects, RandomIds(), FakeClock(), cut=cut or CutRule(16, 16, 64), threads=threads)


def tree_of(trees: Trees, count: int) -> str:
    return trees.apply("", [(path(number), entry(number)) for number in range(count)]).metarange


def ranges_inherited(trees: Trees, base: str, written: WrittenTree) -> set[str]:
    return set(trees.ranges(base)) & set(trees.ranges(written.metarange))


# ---- what is written and what is not


def test_nothing_from_nothing_is_nothing() -> None:
    objects = Watched()
    written = trees_on(objects).apply("", [("a", None)])
    assert written == WrittenTree("", "", 0, 0, 0, unchanged_entries=1)
    assert objects.puts == []


def test_deleting_everything_leaves_the_empty_tree() -> None:
    trees = trees_on(Watched())
    written = trees.apply(tree_of(trees, 100), [(path(number), None) for number in range(100)])
    assert (written.metarange, written.added_addresses_id, written.removed_entries) == ("", "", 100)


def test_what_changes_nothing_writes_no_tree() -> None:
    objects, ids = Watched(), CountingIds("t")
    trees = Trees(objects, ids, FakeClock(), cut=CutRule(16, 16, 64), threads=0)
    base = tree_of(trees, 100)
    objects.forget()
    given_before = ids.given
    written = trees.apply(base, [(path(5), entry(5)), (path(6), entry(6)), ("zzz", None)])
    assert written == WrittenTree(base, written.added_addresses_id, 0, 0, 0, unchanged_entries=3)
    assert [key for key in objects.puts if not key.startswith(object_names.ADDED_ADDRESSES)] == []
    assert ids.given == given_before + 1, "only the listing had to be named"


def test_what_was_there_already_is_listed_among_the_added_all_the_same() -> None:
    """Its address is in the tree, so a reference to it has to go with the commit (rule 7), whoever put it there
    first.
    """
    trees = trees_on(Watched())
    base = tree_of(trees, 100)
    assert list(trees.read_added_addresses(trees.apply(base, [(path(5), entry(5))]).added_addresses_id)) == [
        [entry(5).address]
    ]


@pytest.mark.parametrize("others", [0, 20])
def test_any_field_that_differs_is_a_change(others: int) -> None:
    """Few changes to a range are compared one by one, many column by column."""
    trees = trees_on(Watched(), cut=CutRule(100, 100, 100))
    base = tree_of(trees, 50)
    for changed in (
        entry(5, version=1),
        entry(5, metadata={"a": "b"}),
        entry(5, content_type="x"),
        StoredEntry(entry(5).address, 6, entry(5).checksum, 0),
        StoredEntry(entry(5).address, 5, "", 0),
        StoredEntry(entry(5).address, 5, entry(5).checksum, 9),
    ):
        written = trees.apply(
            base, [(path(5), changed), *((path(10 + number), entry(10 + number)) for number in range(others))]
        )
        assert (written.replaced_entries, written.unchanged_entries) == (1, others)
        assert [change.right for change in trees.diff(base, written.metarange)] == [changed]


def test_what_a_staged_entry_says_of_its_reference_is_not_committed() -> None:
    trees = trees_on(Watched())
    staged = entry(5, reference_id="r" * 26)
    written = trees.apply_encoded("", [(path(5), encode(staged))])
    assert trees.get(written.metarange, path(5)) == entry(5)
    again = trees.apply_encoded(written.metarange, [(path(5), encode(entry(5, reference_id="other")))])
    assert (again.metarange, again.unchanged_entries) == (written.metarange, 1)


def test_one_edit_reads_one_range_and_writes_one() -> None:
    objects = Watched()
    base = tree_of(trees_on(objects), 2000)
    objects.forget()
    written = trees_on(objects).apply(base, [(path(1000), entry(1000, version=1))])
    assert len(ranges_inherited(trees_on(objects), base, written)) == len(trees_on(objects).ranges(base)) - 1
    assert sorted(key.split("/")[1] for key in objects.puts) == ["added", "metaranges", "ranges"]
    assert sorted(key.split("/")[1] for key in objects.reads[:2]) == ["metaranges", "ranges"]


def test_appending_does_not_touch_what_is_closed() -> None:
    objects = Watched()
    base = tree_of(trees_on(objects), 2000)
    objects.forget()
    written = trees_on(objects).apply(base, [(path(2000), entry(2000))])
    assert len([key for key in objects.reads if key.startswith(object_names.RANGES)]) <= 1
    trees = trees_on(objects)
    assert len(trees.ranges(written.metarange)) - len(ranges_inherited(trees, base, written)) <= 2


def test_what_comes_behind_a_closed_last_range_reads_nothing() -> None:
    cut = CutRule(rows_min=4, rows_more=1000, rows_max=10)
    objects = Watched()
    base = tree_of(trees_on(objects, cut=cut), 20)
    assert [
        len(trees_on(objects, cut=cut).addresses_of_range(each)) for each in trees_on(objects, cut=cut).ranges(base)
    ] == [10, 10]
    objects.forget()
    written = trees_on(objects, cut=cut).apply(base, [(path(20), entry(20))])
    assert not [key for key in objects.reads if key.startswith(object_names.RANGES)]
    trees = trees_on(objects)
    assert (len(trees.ranges(written.metarange)), len(ranges_inherited(trees, base, written))) == (3, 2)


def test_every_written_object_has_a_new_name() -> None:
    """A name that content alone leads to could be on the offline job's list of orphans already."""
    objects = Watched()
    trees = trees_on(objects)
    one, two = tree_of(trees, 200), tree_of(trees, 200)
    assert object_names.have_same_content(one, two)
    assert hash_of(one) == hash_of(two)
    assert set(trees.ranges(one)).isdisjoint(trees.ranges(two))
    assert [hash_of(each) for each in trees.ranges(one)] == [hash_of(each) for each in trees.ranges(two)]
    assert len(objects.puts) == len(set(objects.puts))
    assert list(trees.diff(one, two)) == []


def test_going_back_makes_the_same_content_under_new_names() -> None:
    """Ranges of the tree before last are not inherited: nothing says that it is still named."""
    trees = trees_on(Watched())
    first = tree_of(trees, 200)
    second = trees.apply(first, [(path(50), None)]).metarange
    third = trees.apply(second, [(path(50), entry(50))]).metarange
    assert object_names.have_same_content(first, third)
    again = set(trees.ranges(third)) - set(trees.ranges(second))
    assert again
    assert again.isdisjoint(trees.ranges(first))


def test_a_tree_of_mixed_cuts_does_not_pass_for_one_of_a_single_cut() -> None:
    """Or what is assumed of its ranges would be wrong, and later edits would cut where no rule says."""
    objects, cut = Watched(), CutRule(4, 4, 16)
    base = tree_of(trees_on(objects, cut=CutRule(50, 1000, 50)), 200)
    mixed = trees_on(objects, cut=cut).apply(base, [(path(199), entry(199, version=1))])
    assert ranges_inherited(trees_on(objects, cut=cut), base, mixed)
    after = trees_on(objects, cut=cut).apply(mixed.metarange, [(path(10), entry(10, version=1))])
    trees = trees_on(objects, cut=cut)
    for new in set(trees.ranges(after.metarange)) - set(trees.ranges(base)):
        paths = [path(int(address[-13:])) for address in trees.addresses_of_range(new)]
        assert not any(cut.is_boundary(each) for each in paths[cut.rows_min - 1 : -1])


def test_threads_do_not_change_what_is_written() -> None:
    rng = random.Random(3)
    edits = sorted(
        {path(rng.randrange(3000)): None if rng.random() < 0.3 else entry(7, version=1) for _ in range(400)}.items()
    )
    results: list[tuple[str, list[str]]] = []
    for threads in (0, 1, 2, 8):
        trees = Trees(MemoryObjects(), CountingIds("t"), FakeClock(), cut=CutRule(16, 16, 64), threads=threads)
        written = trees.apply(tree_of(trees, 2500), edits)
        results.append((written.metarange, trees.ranges(written.metarange)))
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("step", [2, 3, 10])
def test_changes_that_alternate_with_old_rows(step: int) -> None:
    """More alternations than are handed on as slices."""
    trees = trees_on(Watched(), cut=CutRule(500, 500, 2000))
    count = 3000
    assert count / step > RUNS_MAX
    base = tree_of(trees, count)
    edits = [(path(number), entry(number, version=1)) for number in range(0, count, step)]
    written = trees.apply(base, edits)
    assert written.replaced_entries == len(edits)
    expected = {path(number): entry(number, version=int(number % step == 0)) for number in range(count)}
    assert dict(trees.scan(written.metarange, limit=count)) == expected
    fresh = trees.apply("", sorted(expected.items()))
    assert object_names.have_same_content(fresh.metarange, written.metarange)


def test_more_than_a_page_of_changes_within_one_range() -> None:
    trees = trees_on(Watched())
    base = trees.apply("", [("a", entry(1)), ("z", entry(2))]).metarange
    count = 2 * PAGE_ROWS + 10
    written = trees.apply(base, [(path(number), entry(number)) for number in range(count)])
    assert written.inserted_entries == count
    assert trees.count(written.metarange) == count + 2


# ---- bad input


@pytest.mark.parametrize(
    "paths", [["b", "a"], ["a", "a"], ["a", "b", "b"], ["", "a"], [*map(path, range(PAGE_ROWS)), path(0)]]
)
def test_unsorted_changes_are_refused(paths: list[str]) -> None:
    objects = Watched()
    trees = trees_on(objects)
    with pytest.raises(Invalid, match="sort"):
        trees.apply("", [(each, entry(1)) for each in paths])
    assert not [key for key in objects.puts if key.startswith(object_names.METARANGES)]


def test_a_staged_value_that_is_damaged_is_refused() -> None:
    trees = trees_on(Watched())
    for value in (b"", b"\xff", encode(entry(1))[:-1], encode(entry(1)) + b"\0"):
        with pytest.raises(CorruptRecord):
            trees.apply_encoded("", [("a", encode(entry(0))), ("b", value)])


# ---- a store that fails


def test_an_apply_that_fails_at_any_put_leaves_the_base_as_it_was() -> None:
    objects = Watched()
    base = tree_of(trees_on(objects), 500)
    edits = [(path(number), entry(number, version=1)) for number in range(0, 500, 50)]
    objects.forget()
    whole = trees_on(objects).apply(base, edits)
    puts = len(objects.puts)
    assert puts > 10
    for threads in (0, 8):
        for fail_at in range(puts):
            objects.forget()
            objects.fail_at_put = fail_at
            with pytest.raises(ObjectsUnavailable):
                trees_on(objects, threads=threads).apply(base, edits)
            objects.fail_at_put = -1
            assert trees_on(objects).get(base, path(50)) == entry(50)
        again = trees_on(objects, threads=threads).apply(base, edits)
        assert object_names.have_same_content(again.metarange, whole.metarange)


def test_a_store_that_does_not_answer_is_no_damage() -> None:
    objects = Watched()
    base = tree_of(trees_on(objects), 500)
    for threads in (0, 8):
        for fail_at in range(6):
            objects.forget()
            objects.fail_at_read = fail_at
            for use in (
                lambda trees: trees.scan(base),
                lambda trees: trees.get_many(base, [path(number) for number in range(0, 500, 10)]),
                lambda trees: list(trees.diff("", base)),
                lambda trees: list(trees.addresses(base)),
                lambda trees: trees.apply(base, [(path(number), None) for number in range(0, 500, 10)]),
            ):
                objects.forget()
                with pytest.raises(ObjectsUnavailable):
                    use(trees_on(objects, threads=threads))


def test_no_thread_is_left_behind() -> None:
    objects = Watched()
    before = threading.active_count()
    trees = trees_on(objects, threads=8)
    base = tree_of(trees, 2000)
    diff = trees_on(objects, threads=8).diff("", base)
    next(diff)
    diff.close()
    addresses = trees_on(objects, threads=8).addresses(base)
    next(addresses)
    addresses.close()
    objects.fail_at_put = len(objects.puts) + 3
    with pytest.raises(ObjectsUnavailable):
        trees.apply(base, [(path(number), None) for number in range(0, 2000, 10)])
    assert threading.active_count() == before


def test_a_full_temporary_directory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(columns.RowSpill):
        def add(self, rows: columns.Rows) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sorted_runs, "RowSpill", Full)
    with Workers(0) as workers:
        collector = AddedAddressCollector(workers, run_rows=2)
        first, second = page_entries([(path(number), entry(number)) for number in range(4)], 2)
        collector.add(first)
        with pytest.raises(Unavailable, match=r"No space left.*TMPDIR"):
            collector.add(second)
        collector.close()


# ---- many at once


def test_one_instance_serves_many_threads() -> None:
    trees = Trees(
        MemoryObjects(), RandomIds(), FakeClock(), cut=CutRule(8, 8, 32), threads=4, caches=Caches(ranges_bytes=4000)
    )
    base = tree_of(trees, 300)

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(5):
            chosen = sorted(rng.sample(range(300), 12))
            assert trees.get_many(base, map(path, chosen)) == {path(number): entry(number) for number in chosen}
            written = trees.apply(base, [(path(number), None) for number in chosen])
            assert [change.path for change in trees.diff(base, written.metarange)] == [
                path(number) for number in chosen
            ]

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, seed) for seed in range(4)]:
            done.result()


# ---- merge


def test_conflicts_are_raised_before_anything_is_written_and_their_paths_are_bounded() -> None:
    objects = Watched()
    trees = trees_on(objects)
    count = CONFLICTS_MAX + 50
    base = tree_of(trees, count)
    ours = trees.apply(base, [(path(number), entry(number, version=1)) for number in range(count)]).metarange
    theirs = trees.apply(base, [(path(number), entry(number, version=2)) for number in range(count)]).metarange
    objects.forget()
    with pytest.raises(MergeConflict, match="100 or more paths") as caught:
        trees.apply(ours, merge_changes(trees, base, ours, theirs, MergeStrategy.NONE, equal_as_uploaded))
    assert caught.value.paths == tuple(path(number) for number in range(CONFLICTS_MAX))
    assert objects.puts == []
    assert list(merge_changes(trees, base, ours, theirs, MergeStrategy.OURS, equal_as_uploaded)) == []
    assert len(list(merge_changes(trees, base, ours, theirs, MergeStrategy.THEIRS, equal_as_uploaded))) == count


def test_a_page_reads_the_ranges_that_it_shows() -> None:
    objects = Watched()
    base = tree_of(trees_on(objects), 2000)
    objects.forget()
    page = trees_on(objects).scan(base, after=path(1000), limit=50)
    assert [each for each, _ in page] == [path(number) for number in range(1001, 1051)]
    ranges_read = [key for key in objects.reads if key.startswith(object_names.RANGES)]
    assert len(ranges_read) <= 2 + 50 // 16, "each has at least 16 rows"
    assert len(objects.reads) == len(ranges_read) + 1, "and the metarange"


def test_a_merge_looks_only_at_what_theirs_changed() -> None:
    objects = Watched()
    trees = trees_on(objects)
    base = tree_of(trees, 3000)
    ours = trees.apply(base, [(path(number), entry(number, version=1)) for number in range(1500)]).metarange
    theirs = trees.apply(base, [(path(2000), None)]).metarange
    objects.forget()
    merged = merge_changes(trees_on(objects), base, ours, theirs, MergeStrategy.NONE, equal_as_uploaded)
    assert list(merged) == [(path(2000), None)]
    assert len({key for key in objects.reads if key.startswith(object_names.RANGES)}) <= 3


def test_the_same_change_on_both_sides_is_no_conflict_whatever_its_time() -> None:
    trees = trees_on(Watched())
    base = tree_of(trees, 10)
    new = entry(3, version=1)
    later = StoredEntry(new.address, new.size_bytes, new.checksum, new.mtime_ms + 1, new.metadata, new.content_type)
    ours, theirs = (trees.apply(base, [(path(3), each)]).metarange for each in (new, later))
    assert list(merge_changes(trees, base, ours, theirs, MergeStrategy.NONE, equal_as_uploaded)) == []


# ---- the helpers


@settings(deadline=None)
@given(st.lists(st.integers(0, 60), max_size=120), st.integers(1, 9), st.integers(1, 9), st.integers(0, 2))
def test_a_listing_is_sorted_and_unique_however_many_runs_it_takes(
    numbers: list[int], run: int, batch: int, threads: int
) -> None:
    store = TreeStore(MemoryObjects(), RandomIds(), FakeClock(), caches=Caches(0, 0))
    with Workers(threads) as workers:
        collector = AddedAddressCollector(workers, run_rows=run, run_batch_rows=batch)
        changes = [(path(at), entry(number) if number % 7 else None) for at, number in enumerate(numbers)]
        for page in page_entries(changes, 4):
            collector.add(page)
        listing = collector.finish(store, ())
        listing_id = "" if listing is None else listing.result()
        collector.close()
    found = [each for part in added_addresses.read(store, listing_id) for each in part]
    assert found == sorted({entry(number).address for number in numbers if number % 7})


@pytest.mark.parametrize(
    "address",
    [
        "s3://elsewhere/data/2026112107/" + "0" * 26,
        "data/2026112107/" + "0" * 25,
        "data/2026112107/" + "0" * 26 + "\n",
        "\ndata/2026112107/" + "0" * 26,
        "data/٢٠٢٦١١٢١٠٧/" + "0" * 26,
        "x|data/2026112107/" + "0" * 26,
        "",
    ],
)
def test_foreign_addresses_are_not_listed(address: str) -> None:
    trees = trees_on(Watched())
    written = trees.apply("", [("a", StoredEntry(Address(address), 1, "", 0))])
    assert written.added_addresses_id == ""
    assert trees.get(written.metarange, "a") == StoredEntry(Address(address), 1, "", 0)


def test_a_listing_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    trees = trees_on(Watched())
    with monkeypatch.context() as patch:
        patch.setattr(
            added_addresses, "LAYOUT", columns.Layout("refstore.added", "2", (("address", columns.ColumnKind.SORTED),))
        )
        added = trees.apply("", [("a", entry(1))]).added_addresses_id
    with pytest.raises(CorruptRange, match="newer refstore"):
        list(trees.read_added_addresses(added))


def test_pages() -> None:
    changes = [(path(number), entry(number)) for number in range(10)]
    assert [page.paths for page in page_entries(changes, 4)] == [
        [path(n) for n in part] for part in ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9))
    ]
    encoded = [(each, encode(value)) for each, value in changes]
    assert [page.rows for page in page_values(encoded, 4)] == [page.rows for page in page_entries(changes, 4)]


def test_the_cache_keeps_what_was_used_last_within_its_bytes() -> None:
    cache: Cache[str] = Cache(10)
    cache.put("a", "A", 4)
    cache.put("b", "B", 4)
    assert cache.get("a") == "A"
    cache.put("c", "C", 4)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == ("A", None, "C")
    cache.put("huge", "H", 11)
    assert cache.get("huge") is None
    cache.put("a", "A2", 1)
    cache.put("d", "D", 5)  # 1, 4 and 5 bytes fit
    assert (cache.get("a"), cache.get("c"), cache.get("d")) == ("A2", "C", "D")
    cache.put("e", "E", 1)
    assert cache.get("a") is None


def test_what_was_read_once_is_not_read_again() -> None:
    objects = Watched()
    trees = trees_on(objects)
    base = tree_of(trees, 200)
    trees.scan(base)
    objects.forget()
    assert trees.scan(base) == trees.scan(base)
    assert list(trees.diff(base, "")) != []
    assert objects.reads == []


def test_a_cache_without_room_changes_nothing() -> None:
    trees = Trees(MemoryObjects(), RandomIds(), FakeClock(), cut=CutRule(4, 4, 16), threads=0, caches=Caches(0, 0))
    base = tree_of(trees, 50)
    assert trees.get(base, path(7)) == entry(7)


def test_workers_start_no_thread_for_one_job() -> None:
    caller = threading.get_ident()
    with Workers(8) as workers:
        assert workers.submit(threading.get_ident).result() == caller
        assert workers.submit(threading.get_ident).result() == caller
        first, second = workers.submit(threading.get_ident), workers.submit(threading.get_ident)
        assert caller not in {first.result(), second.result()}
    with Workers(1) as workers:
        assert {job.result() for job in [workers.submit(threading.get_ident) for _ in range(3)]} == {caller}


def test_workers_raise_what_the_work_raised_as_often_as_it_is_asked_for() -> None:
    def fail() -> None:
        raise ObjectsUnavailable("no")

    with Workers(2) as workers:
        for job in (workers.submit(fail), workers.submit(fail), workers.submit(fail)):
            for _ in range(2):
                with pytest.raises(ObjectsUnavailable):
                    job.result()


def test_workers_read_ahead_no_further_than_two_per_thread() -> None:
    started: list[int] = []
    with Workers(2) as workers:
        results = workers.map_ahead(lambda number: started.append(number) or number, range(100))
        assert next(results) == 0
        assert len(started) <= 6
        assert list(results) == list(range(1, 100))
    assert sorted(started) == list(range(100))
