"""Intervals of a store: together they are everything, whatever the keys; and what a listing says of its owners."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from refstore.errors import InvalidPath, ObjectsUnavailable
from refstore.objects import ObjectStore, open_objects
from refstore.objects.base import ObjectInfo
from refstore.objects.memory import MemoryObjects
from refstore_gc.engines.choice import Engines
from refstore_gc.list_objects import KeyInterval
from refstore_gc.run_layout import read_table
from refstore_prune import list_store as listing
from refstore_prune.list_store import (
    FEW_KEYS,
    PLACES_MAX,
    IntervalFacts,
    cut_store,
    metadata_place,
    touching_intervals,
)
from refstore_prune.prune_layout import make_prune_layout
from refstore_prune.sources.base import MetadataPlace
from tests.servers.s3_servers import S3Server

LONG = "tenants/0/warehouse/sales.db/transactions/year=2024/month="
KEYS = st.lists(
    st.one_of(
        st.text(st.sampled_from("ab/é日😀~\ud7ff\ue000\uffff%"), min_size=1, max_size=6),
        st.text(st.sampled_from("01/"), min_size=1, max_size=9).map(LONG.__add__),
    ),
    max_size=60,
)


def fill(store: ObjectStore, keys: list[str]) -> list[str]:
    for key in keys:
        with suppress(InvalidPath):
            store.put(key, b"")
    return [info.key for info in store.list()]


def list_intervals(store: ObjectStore, intervals: list[KeyInterval]) -> list[list[str]]:
    return [[info.key for info in store.list(each.prefix, after=each.after, before=each.before)] for each in intervals]


@pytest.fixture(autouse=True)
def _time_for_all_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PROBE_SECONDS_MAX", 1e9)


@given(KEYS, KEYS)
@example(["a/b", "a"], ["a", "a/b"])
def test_intervals_between_any_cuts_have_every_key_once(keys: list[str], cuts: list[str]) -> None:
    store = MemoryObjects()
    stored = fill(store, [*keys, *cuts[::2]])
    parts = list_intervals(store, touching_intervals(cuts))
    assert [key for part in parts for key in part] == stored


@pytest.mark.parametrize("probes_of", [1, 2, 5])
@given(keys=KEYS, pieces=st.integers(1, 9))
def test_a_store_that_is_cut_has_every_key_once(probes_of: int, keys: list[str], pieces: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "FEW_KEYS", probes_of)
        store = MemoryObjects()
        stored = fill(store, keys)
        parts = list_intervals(store, cut_store(store, pieces))
    assert [key for part in parts for key in part] == stored


@pytest.mark.parametrize("objects", [FEW_KEYS - 1, FEW_KEYS, FEW_KEYS + 1])
def test_a_page_of_keys_is_cut_at_most_once(objects: int) -> None:
    store = MemoryObjects()
    stored = fill(store, [f"{LONG}{number:05d}" for number in range(objects)])
    parts = list_intervals(store, cut_store(store, 8))
    assert [key for part in parts for key in part] == stored
    assert len(parts) == 1


@pytest.mark.parametrize("key", ["{:04x}/{}", LONG + "{:04x}/{}.parquet", "data/2024-{:04x}-{}"])
def test_many_keys_are_cut_into_about_equal_parts(key: str) -> None:
    store = MemoryObjects()
    stored = fill(store, [key.format(number * 40503 % 65536, number) for number in range(20_000)])
    parts = list_intervals(store, cut_store(store, 8))
    assert [key for part in parts for key in part] == stored
    assert len(parts) >= 6
    assert max(map(len, parts)) < 7_500


def test_one_large_folder_among_many_small_ones_is_cut() -> None:
    store = MemoryObjects()
    small = [f"{folder:02d}/{number}" for folder in range(40) for number in range(20)]
    fill(store, [*small, *(f"data/part-{number:05d}" for number in range(12_000))])
    parts = list_intervals(store, cut_store(store, 8))
    assert max(map(len, parts)) < 5_000


@pytest.mark.parametrize("where", ["folder", "s3"])
def test_tasks_list_everything_once(
    tmp_path: Path, rclone_s3_server: S3Server, engines: Engines, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "FEW_KEYS", 20)
    monkeypatch.setattr(listing, "CHUNK_ROWS", 50)
    url = rclone_s3_server.url() if where == "s3" else f"file://{tmp_path}/store"
    store = open_objects(url, create=True)
    names = (f"{LONG}{number % 7}/é{number}" if number % 3 else f"b%2F{number}" for number in count())
    stored = fill(store, [next(names) for _ in range(130)])
    store.put("_refstore/x/1", b"own")
    layout = make_prune_layout(url, "run", files=f"file://{tmp_path}/files")
    open_objects(layout.files, create=True)
    found = listing.list_store(layout, engines.for_objects(0))
    tables = [read_table(open_objects(layout.files), chunk.key) for chunk in found.chunks]
    assert [key for table in tables for key in table["key"].to_pylist()] == stored
    assert [chunk.first_key for chunk in found.chunks] == [table["key"][0].as_py() for table in tables]
    assert len(tables) > 2
    assert (found.facts.own.objects, found.facts.listed.objects) == (1, len(stored) + 1)
    assert found.facts.has_encoded_keys
    assert all(table["etag"][0].as_py() for table in tables) == (where == "s3")
    store.close()


@pytest.mark.parametrize(
    ("key", "kind", "folder"),
    [
        ("_delta_log/0.json", "_delta_log", ""),
        ("a/b/_delta_log/_checkpoints/0.parquet", "_delta_log", "a/b"),
        ("a/metadata/v1.metadata.json", "iceberg", "a"),
        ("metadata/00000-x.gz.metadata.json", "iceberg", ""),
        ("a/v1.metadata.json", "iceberg", "a"),
        ("repo/_lakefs/abc", "_lakefs", "repo"),
        ("repo/.git/config", ".git", "repo"),
    ],
)
def test_whose_metadata_a_key_is(key: str, kind: str, folder: str) -> None:
    assert metadata_place(key) == MetadataPlace(kind, folder)


def test_places_of_all_intervals_beyond_the_bound_are_told_by_one_more() -> None:
    parts = [
        IntervalFacts(places=frozenset(MetadataPlace("iceberg", f"{part}/{number}") for number in range(PLACES_MAX)))
        for part in range(3)
    ]
    assert len(parts[0].plus(parts[0]).places) == PLACES_MAX
    assert len(parts[0].plus(parts[1]).plus(parts[2]).places) == PLACES_MAX + 1


class DisorderedObjects(MemoryObjects):
    """Lists its keys as its program's language compares them."""

    def list(self, prefix: str = "", *, after: str = "", before: str = "") -> Iterator[ObjectInfo]:
        listed = list(super().list(prefix, after=after, before=before))
        return iter(sorted(listed, key=lambda info: info.key.encode("utf-16-be")))


def test_a_listing_that_is_out_of_order_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DisorderedObjects()
    fill(store, ["a\U0001f600", "a\ufffd", "b"])
    layout = make_prune_layout("memory://disordered", "run", files=f"file://{tmp_path}")
    monkeypatch.setattr(listing, "open_store", Mock(return_value=store))
    with pytest.raises(ObjectsUnavailable, match="out of order"):
        list(listing.list_part(layout, (0, KeyInterval(""))))
