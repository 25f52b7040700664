"""Every key that a name may mean is kept, and names of other places keep nothing."""

from __future__ import annotations

import pickle
import unicodedata
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refstore.objects.object_keys import key_fault
from refstore_prune.resolve_names import NameResolver

STORE = "s3://bucket/lake/data?endpoint=http://127.0.0.1:1&conditional_put=0"
NFC, NFD = "caf\u00e9", "cafe\u0301"


def resolve(name: str | list[str], store: str = STORE, base: str = "", **more: Any) -> tuple[list[str], set[str], int]:
    """Return the keys, the keys of other spellings, and how many lie elsewhere."""
    resolver: NameResolver = pickle.loads(pickle.dumps(NameResolver(store, base, **more)))  # noqa: S301  # our own
    found = resolver.resolve(pa.array([name] if isinstance(name, str) else name, pa.string()))
    return found.keys.to_pylist(), {*found.other_keys.to_pylist()}, found.outside


def kept(name: str, store: str = STORE, base: str = "", **more: Any) -> set[str]:
    own, others, _ = resolve(name, store, base, **more)
    return {*own, *others}


@pytest.mark.parametrize(
    "name",
    [
        "s3://bucket/lake/data/t/x",
        "s3a://bucket/lake/data/t/x",
        "S3N://bucket/lake/data/t/x",
        "t/x",
        "/t/x",
        "./t/x",
        "t//x",
        "t/./x",
        "u/../t/x",
        "//t/x",
        "/lake/data/t/x",
        "s3://bucket//lake/data//t/x",
        "s3://bucket/lake%2Fdata/t%2Fx",
        "t%252Fx",
        "%74/x",
        "s3:/bucket/lake/data/t/x",
        "s3:///bucket/lake/data/t/x",
        " t/x",
        "t/x \t",
        " s3://bucket/lake/data/t/x",
        "'t/x'",
        "\ufefft/x",
        "t\\x",
        "t/x?versionId=3",
        "s3://bucket/lake/data/t/x?versionId=3#a",
    ],
)
def test_a_key_is_kept_in_every_spelling_of_its_name(name: str) -> None:
    assert "t/x" in kept(name)
    assert resolve(name)[2] == 0


@pytest.mark.parametrize(
    ("name", "key"),
    [
        (NFC, NFD),
        (NFD, NFC),
        (quote(NFC), NFD),
        ("a+b", "a b"),
        ("a b", "a b"),
        ("dt=1/x", "dt=1/x"),
        ("a:b/c", "a:b/c"),
        ("urn:/b c", "urn:/b c"),
        ("file:/b", "file:/b"),
        ("s3:/other/b", "s3:/other/b"),
        ("a?b#c", "a?b#c"),
        (" a ", " a "),
        ("a\\b", "a\\b"),
        ("caf\u00e9.txt%", "caf\u00e9.txt%"),
        ("100%", "100%"),
        ("%zz", "%zz"),
        ("%ff", "%ff"),
    ],
)
def test_other_characters(name: str, key: str) -> None:
    assert key in kept(name)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("ts=2024-01-01 10:00:00/x", "ts=2024-01-01 10%3A00%3A00/x"),
        ("ts=2024-01-01 10:00:00/x", "ts=2024-01-01%2010%3A00%3A00/x"),
        ("ts=2024-01-01 10:00:00/x", "ts%3D2024-01-01%2010%3A00%3A00/x"),
        ("ts=2024-01-01 10:00:00/x", "ts=2024-01-01%2010:00:00/x"),
        ("/a b", "a%20b"),
        (NFC, quote(NFD)),
        (NFC, quote(NFD).lower()),
        ("a:b", "a%3ab"),
        ("s3://bucket//lake/data/a b", "a%20b"),
    ],
)
def test_where_keys_are_encoded_names_may_be_decoded(name: str, key: str) -> None:
    assert key in kept(name, has_encoded_keys=True)


@pytest.mark.parametrize(
    "name",
    [
        "s3://bucket2/lake/data/t/x",
        "s3://bucke/lake/data/t/x",
        "s3://bucket/lake/data2/t/x",
        "s3://bucket/lake/dat/t/x",
        "s3://bucket/t/x",
        "s3a://other/lake/data/t/x",
        "file:///lake/data/t/x",
        "gs://bucket/lake/data/t/x",
        "http://bucket/lake/data/t/x",
    ],
)
def test_a_name_of_another_place_keeps_nothing(name: str) -> None:
    assert resolve(name) == ([], set(), 1)


@pytest.mark.parametrize(
    "name", ["s3://bucket/lake/data", "s3://bucket/lake/data/", "s3://bucket/lake/data/t/", "", "/"]
)
def test_a_folder_is_a_name_that_is_not_found(name: str) -> None:
    own, others, outside = resolve(name)
    assert len(own) == 1
    assert own[0].endswith("/")
    assert others <= {"t", "t/", "/"}
    assert outside == 0


@pytest.mark.parametrize(
    ("base", "name", "key"),
    [
        ("s3://bucket/lake", "data/x", "x"),
        ("s3://bucket/", "lake/data/x", "x"),
        ("s3://bucket", "lake/data/x", "x"),
        ("s3a://bucket/lake/data/t", "x", "t/x"),
        ("s3://bucket/lake/data/", "x", "x"),
        ("s3://bucket/lake?endpoint=http://127.0.0.1:1", "data/x", "x"),
        ("s3://other", "s3://bucket/lake/data/x", "x"),
    ],
)
def test_what_names_are_relative_to(base: str, name: str, key: str) -> None:
    assert resolve(name, base=base)[0] == [key]


@pytest.mark.parametrize(("base", "name"), [("s3://bucket/lake", "data2/x"), ("s3://other", "lake/data/x")])
def test_names_relative_to_another_place(base: str, name: str) -> None:
    assert resolve(name, base=base) == ([], set(), 1)


def test_a_whole_bucket_is_a_store() -> None:
    assert resolve(["s3://bucket/a/b", "a/b", "s3://bucket2/a/b"], "s3://bucket") == (["a/b", "a/b"], set(), 1)


def test_another_driver_has_urls_of_its_own() -> None:
    assert resolve(["memory://lake/a", "a/b", "memory://other/a"], "memory://lake") == (["a", "a/b"], set(), 1)


@pytest.mark.parametrize("store", [STORE, "s3://bucket", "file:///srv/media"])
@pytest.mark.parametrize("base", ["", "sub"])
def test_a_first_folder_may_end_with_a_colon(store: str, base: str) -> None:
    of_base = base and f"{store.partition('?')[0]}/{base}"
    key = f"{base}/urn:/x".lstrip("/")
    assert resolve("urn:/x", store, of_base) == ([key], {key}, 0)


@pytest.mark.parametrize(
    "name", ["file://{}/t/x", "file:{}/t/x", "{}/t/x", "file://localhost{}/t/x", "FILE://{}//t/x", "t/x", "{}/./t/x"]
)
@pytest.mark.parametrize("spelled", ["given", "real"])
def test_a_folder_is_meant_by_its_path_and_by_where_it_lies(tmp_path: Path, name: str, spelled: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "given").symlink_to("real")
    store = f"file://{tmp_path}/given?fsync=0"
    assert "t/x" in kept(name.format(tmp_path / spelled), store)
    assert not kept(f"file://{tmp_path}/{spelled}2/t/x", store)
    assert "t/x" not in kept(f"{tmp_path}/t/x", store)


def test_what_links_lead_to_is_kept(tmp_path: Path) -> None:
    for folder in ("store/v1", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "store/v1/x").write_text("x")
    (tmp_path / "store/current").symlink_to("v1")
    (tmp_path / "store/latest").symlink_to("current/x")
    (tmp_path / "elsewhere/back").symlink_to("../store/v1")
    store = f"file://{tmp_path}/store"
    for name in ("current/x", "latest", f"{tmp_path}/store/latest", f"file:{tmp_path}/elsewhere/back/x"):
        assert "v1/x" in kept(name, store)


def test_a_store_whose_url_is_encoded(tmp_path: Path) -> None:
    folder = f"{tmp_path}/a b/{NFC}"
    store = f"file://{quote(folder)}"
    names = [f"{folder}/x", f"file://{folder}/x", f"file:{quote(folder)}/x", f"{tmp_path}/a b/{NFD}/x"]
    assert [kept(name, store) for name in names] == [{"x"}] * 4


PLAIN = st.text(st.sampled_from("ab/.%é\u0301 =+0"), min_size=1, max_size=12)


@given(st.lists(PLAIN, max_size=30))
def test_a_name_is_resolved_the_same_way_whatever_stands_beside_it(names: list[str]) -> None:
    """Whole columns of plain names take a short way, and mixed ones do not."""
    urls = [f"s3://bucket/lake/data/{name}" if number % 2 else name for number, name in enumerate(names)]
    own, others, outside = resolve(urls)
    alone = [resolve(url) for url in urls]
    assert sorted(own) == sorted(key for keys, _, _ in alone for key in keys)
    assert others == {key for _, keys, _ in alone for key in keys}
    assert outside == sum(count for _, _, count in alone)


@given(st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20))
def test_a_key_is_kept_by_its_own_name_and_by_any_encoding_of_it(key: str) -> None:
    if key_fault(key):
        return
    for name in (
        key,
        f"s3a://bucket/lake/data/{key}",
        quote(key),
        quote(key, safe=""),
        f"s3://bucket//lake/data/{key}",
    ):
        assert key in kept(name)
    for form in ("NFC", "NFD"):
        assert unicodedata.normalize(form, key) in kept(key)
