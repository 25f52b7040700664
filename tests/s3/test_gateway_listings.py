"""Listings through the gateway: V1, V2 and versions, across refs and within one, paged at any size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NamedTuple

import pytest

from refstore.kv.base import Key
from refstore.lake import Lake
from refstore.operations.upload import Upload
from refstore.records import keys
from refstore.repository import Repository
from refstore_s3 import listings
from refstore_s3.listings import KeyQuery
from refstore_s3.targets import S3Bucket
from tests.kit.clock import FakeClock
from tests.kit.counting_kv import CountingKV
from tests.reaping import reap_all
from tests.s3.served_gateway import REPOSITORY, ServedGateway, serve_gateway
from tests.s3.test_gateway_objects import code_of

PATHS = ["a", "b/1", "b/2", "b/c/3", "b-d", "e f+g", "ä/é", "z%41"]
KEYS = [f"main/{path}" for path in sorted(PATHS)]


@pytest.fixture(scope="module")
def gateway() -> Iterator[ServedGateway]:
    with serve_gateway() as served:
        repo = served.repository
        for path in PATHS[:4]:
            repo.upload("main", path, path.encode())
        repo.commit("main", "half of them")
        repo.create_tag("v1", ref="main")
        for path in PATHS[4:]:
            repo.upload("main", path, path.encode())
        repo.create_branch("team/x", source="v1")
        yield served


@pytest.fixture
def s3(gateway: ServedGateway) -> Any:
    return gateway.client()


def keys_of(page: dict[str, Any], rows: str = "Contents") -> tuple[list[str], list[str]]:
    return [each["Key"] for each in page.get(rows, [])], [each["Prefix"] for each in page.get("CommonPrefixes", [])]


def test_the_refs_are_the_first_folders(s3: Any) -> None:
    page = s3.list_objects_v2(Bucket=REPOSITORY, Delimiter="/")
    assert keys_of(page) == ([], ["main/", "team%2Fx/", "v1/"])
    assert keys_of(s3.list_objects_v2(Bucket=REPOSITORY, Delimiter="/", Prefix="t")) == ([], ["team%2Fx/"])
    assert keys_of(s3.list_objects(Bucket=REPOSITORY, Delimiter="/", Marker="main/")) == ([], ["team%2Fx/", "v1/"])


def test_a_ref_is_listed_by_folders_and_as_a_whole(s3: Any) -> None:
    page = s3.list_objects_v2(Bucket=REPOSITORY, Prefix="main/", Delimiter="/")
    assert keys_of(page) == (["main/a", "main/b-d", "main/e f+g", "main/z%41"], ["main/b/", "main/ä/"])
    assert page["KeyCount"] == 6
    assert keys_of(s3.list_objects_v2(Bucket=REPOSITORY, Prefix="main/")) == (KEYS, [])
    assert keys_of(s3.list_objects_v2(Bucket=REPOSITORY, Prefix="team%2Fx/b/c/")) == (["team%2Fx/b/c/3"], [])
    assert keys_of(s3.list_objects_v2(Bucket=REPOSITORY, Prefix="main/b", Delimiter="-")) == (
        ["main/b/1", "main/b/2", "main/b/c/3"],
        ["main/b-"],
    )
    assert keys_of(s3.list_objects_v2(Bucket=REPOSITORY, Prefix="nowhere/")) == ([], [])
    assert keys_of(s3.list_objects_v2(Bucket=REPOSITORY, Prefix="main//")) == ([], [])


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("method", ["list_objects", "list_objects_v2", "list_object_versions"])
def test_pages_of_any_size_have_everything_once(s3: Any, method: str, size: int) -> None:
    rows = "Versions" if method == "list_object_versions" else "Contents"
    pages = list(s3.get_paginator(method).paginate(Bucket=REPOSITORY, PaginationConfig={"PageSize": size}))
    listed = [key for page in pages for key in keys_of(page, rows)[0]]
    committed = [f"{ref}/{path}" for ref in ("team%2Fx", "v1") for path in sorted(PATHS[:4])]
    assert listed == KEYS + committed
    assert all(len(page.get(rows, [])) <= size for page in pages)
    folded = list(
        s3.get_paginator(method).paginate(
            Bucket=REPOSITORY, Delimiter="/", Prefix="main/", PaginationConfig={"PageSize": size}
        )
    )
    names = [name for page in folded for part in keys_of(page, rows) for name in part]
    assert sorted(names) == sorted(["main/a", "main/b-d", "main/e f+g", "main/z%41", "main/b/", "main/ä/"])


def test_a_listing_has_what_head_has(s3: Any) -> None:
    (row,) = s3.list_objects_v2(Bucket=REPOSITORY, Prefix="main/b/1", FetchOwner=True)["Contents"]
    head = s3.head_object(Bucket=REPOSITORY, Key="main/b/1")
    assert (row["ETag"], row["Size"], row["LastModified"]) == (
        head["ETag"],
        head["ContentLength"],
        head["LastModified"],
    )
    assert row["Owner"]
    (version,) = s3.list_object_versions(Bucket=REPOSITORY, Prefix="main/b/1")["Versions"]
    assert (version["VersionId"], version["IsLatest"]) == ("null", True)
    assert s3.get_object(Bucket=REPOSITORY, Key="main/b/1", VersionId="null")["Body"].read() == b"b/1"
    assert code_of(s3.get_object, Bucket=REPOSITORY, Key="main/b/1", VersionId="x1") == ("NoSuchVersion", 404)


def test_wrong_parameters_are_refused(s3: Any) -> None:
    assert code_of(s3.list_objects_v2, Bucket=REPOSITORY, ContinuationToken="x") == ("InvalidArgument", 400)
    assert code_of(s3.list_objects_v2, Bucket=REPOSITORY, MaxKeys=-1) == ("InvalidArgument", 400)
    empty = s3.list_objects_v2(Bucket=REPOSITORY, MaxKeys=0)
    assert (empty["KeyCount"], empty["IsTruncated"]) == (0, False)
    assert keys_of(s3.list_objects_v2(Bucket=REPOSITORY, StartAfter="main/e f+g", Prefix="main/")) == (KEYS[-2:], [])


@pytest.mark.parametrize(("size", "stem_names"), [(1, 1), (3, 2), (3, 1000)])
def test_refs_are_listed_in_the_order_of_their_keys(
    size: int, stem_names: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slash in a name sorts by its encoding; a page may end anywhere, and refs with one stem may be many."""
    monkeypatch.setattr(listings, "STEM_NAMES_MAX", stem_names)
    names = ["ab", "ab-c", "ab-", "ab--c", "ab.c", "ab/c", "ab/c/d", "ab0", "a", "zz", "team/x", "team-y", "team"]
    with serve_gateway() as gateway:
        for name in names:
            gateway.repository.create_branch(name, source="main")
        gateway.repository.create_tag("ab/t", ref="main")
        s3 = gateway.client()
        segments = sorted(f"{name.replace('/', '%2F')}/" for name in [*names, "main", "ab/t"])
        paging = {"PageSize": size}
        for prefix in ("", "ab", "ab%", "ab%2", "ab%2F", "team-", "nothing"):
            pages = s3.get_paginator("list_objects_v2").paginate(
                Bucket=REPOSITORY, Delimiter="/", Prefix=prefix, PaginationConfig=paging
            )
            listed = [name for page in pages for name in keys_of(page)[1]]
            assert listed == [segment for segment in segments if segment.startswith(prefix)]
        for after in ("ab%2", "ab!", "ab-", "ab-c/", "ab/x", "ab0", "a\u00e9", "team-"):
            page = s3.list_objects_v2(Bucket=REPOSITORY, Delimiter="/", StartAfter=after)
            assert keys_of(page)[1] == [segment for segment in segments if segment > after]


@pytest.mark.parametrize("delimiter", ["", "/"])
def test_pages_have_once_what_was_there_throughout_while_others_commit(delimiter: str) -> None:
    """Between any two pages the branch moves: its keys are committed, overwritten, deleted, reset and come back."""
    with serve_gateway() as gateway:
        repo = gateway.repository
        kept = [f"{number:03}/k" if delimiter else f"{number:03}" for number in range(60)]
        for number, path in enumerate(kept):
            repo.upload("main", path, b"first")
            if number == 40:
                repo.commit("main", "most of them")
        changes: list[Callable[[int], object]] = [
            lambda _: repo.commit("main", "what is staged"),
            lambda step: repo.upload_many("main", [Upload(f"{step:03}-{name}", b"new") for name in "abc"]),
            lambda _: repo.reset("main"),
            lambda step: repo.upload_many("main", [Upload(path, b"again") for path in kept[step % 7 :: 7]]),
            lambda _: repo.commit("main", "overwritten"),
            lambda step: repo.upload("main", f"{step:03}-x", b"new"),
            lambda step: repo.delete_many("main", [f"{step - 1:03}-x", f"{step + 30:03}-never"]),
            lambda step: repo.copy("main", kept[step], to_branch="main", to_path=f"{step:03}-copy"),
            lambda _: reap_all(repo),
        ]
        seen: list[str] = []
        query = {"Bucket": REPOSITORY, "Prefix": "main/", "Delimiter": delimiter, "MaxKeys": 2}
        page = gateway.client().list_objects_v2(**query)
        for step in count():
            seen += [key for part in keys_of(page) for key in part]
            if not page["IsTruncated"]:
                break
            changes[step % len(changes)](step)
            page = gateway.client().list_objects_v2(**query, ContinuationToken=page["NextContinuationToken"])
        shown = [f"main/{path.removesuffix('k')}" for path in kept]
        assert [key for key in seen if key in shown] == shown
        assert len(seen) == len(set(seen))


class ManyRefs(NamedTuple):
    kv: CountingKV
    repo: Repository


@pytest.fixture(scope="module")
def many_refs() -> Iterator[ManyRefs]:
    """3,500 branches without a key whose names begin with `feature/`, and as many with `feature-`."""
    kv = CountingKV()
    with Lake(kv, "memory://listing-costs", clock=FakeClock()) as lake:
        repo = lake.create_repository(REPOSITORY)
        repo.create_branch("feature", source="main")
        branches = keys.branches(repo.context.repo)
        record = kv.get(Key(branches, "feature"))
        assert isinstance(record, bytes)
        kv.set_many([(Key(branches, f"feature{mark}{number:04}"), record) for mark in "/-" for number in range(3500)])
        repo.upload("main", "a", b"")
        yield ManyRefs(kv, repo)


@pytest.mark.parametrize(
    ("prefix", "after", "first"),
    [
        ("", "", "feature%2F0000/"),
        ("feature", "feature%2F1999/", "feature%2F2000/"),
        ("", "feature-2999/", "feature-3000/"),
        ("feature-2", "", "feature-2000/"),
    ],
)
def test_a_page_of_refs_with_one_stem_reads_few_of_them(
    many_refs: ManyRefs, prefix: str, after: str, first: str
) -> None:
    before = many_refs.kv.scans
    page = listings.read_keys(many_refs.repo, S3Bucket("b", REPOSITORY), KeyQuery(prefix, after, 10, "/"))
    assert (page.rows[0].key, len(page.rows), page.next_after) == (first, 10, page.rows[-1].key)
    assert many_refs.kv.scans - before <= 6


def test_refs_without_keys_end_a_page(many_refs: ManyRefs) -> None:
    before = many_refs.kv.calls
    bucket, query = S3Bucket("b", REPOSITORY), KeyQuery("", "", 1000, "")
    page = listings.read_keys(many_refs.repo, bucket, query)
    assert (page.rows, page.next_after) == ([], f"feature%2F{listings.EMPTY_REFS_MAX - 1:04}0")
    assert many_refs.kv.calls - before < 10 * listings.EMPTY_REFS_MAX
    page = listings.read_keys(many_refs.repo, bucket, query._replace(after="feature-34990"))
    assert [row.key for row in page.rows] == ["main/a"]
