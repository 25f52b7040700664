"""Names: what is refused on the way in, and what new ids look like."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refstore.core import ids
from refstore.core.ids import BranchName, RandomIds, RepositoryName
from refstore.errors import InvalidName, InvalidPath

ID = "01j8x6w3vr0000000000000000"
NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize("name", ["abc", "0-9", "a" * 63])
def test_repository_names(name: str) -> None:
    assert ids.repository_name(name) == name


@pytest.mark.parametrize("name", ["", "ab", "a" * 64, "-abc", "Abc", "a_b", "a/b", "a.b", "abc\n", "äbc", "abc\0"])
def test_bad_repository_names(name: str) -> None:
    with pytest.raises(InvalidName, match="use 3 to 63"):
        ids.repository_name(name)


@pytest.mark.parametrize("name", ["main", "_x", "feature/a.b-c_d", "a" * 255, "v1.0", "a..b"])
@pytest.mark.parametrize("check", [ids.branch_name, ids.tag_name])
def test_branch_and_tag_names(check, name: str) -> None:
    assert check(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "a" * 256, "-a", "/a", "a:b", "a~1", "a^", "a@b", "a b", "a/../b", "a/.", "main\n", "a\0b", "ä", "f" * 64],
    ids=lambda name: repr(name)[:12],
)
@pytest.mark.parametrize("check", [ids.branch_name, ids.tag_name])
def test_bad_branch_and_tag_names(check, name: str) -> None:
    """No operator of ref expressions, nothing that a commit id or a staging token could be mistaken for."""
    with pytest.raises(InvalidName):
        check(name)


def test_a_token_says_which_branch_it_belongs_to() -> None:
    token = ids.new_token(RandomIds(), BranchName("a/b"), NOW_MS)
    assert ids.staging_token(token) == token
    assert ids.branch_of(token) == "a/b"


@pytest.mark.parametrize(
    "text", ["", "main", "main:", f":{ID}", f"main:{ID}0", f"main:{ID}\n", f"ma:in:{ID}", "deleted", "committed"]
)
def test_bad_tokens(text: str) -> None:
    with pytest.raises(InvalidName):
        ids.staging_token(text)


@pytest.mark.parametrize(
    "path", ["a", "a/b", "a//b", "a/", " ", "...", "a/..b", "ä", "x" * 1024, "\n", "\U0010ffff"], ids=repr
)
def test_paths(path: str) -> None:
    assert ids.object_path(path) == path


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "must not be empty"),
        ("x" * 1025, "at most 1024 bytes; this one has 1025"),
        ("ä" * 513, "this one has 1026"),
        ("a\0b", "must not contain NUL"),
        ("\ud800", "lone surrogate"),
        ("/a/b", "write 'a/b'"),
        ("//", "give the path of an object"),
        ("..", "'.' or '..'"),
        (".", "'.' or '..'"),
        ("../a", "'.' or '..'"),
        ("a/../b", "'.' or '..'"),
        ("a/./b", "'.' or '..'"),
        ("a/..", "'.' or '..'"),
        ("x" * 2048, "this one has 2048"),
    ],
    ids=lambda value: repr(value)[:12],
)
def test_hostile_paths(path: str, message: str) -> None:
    with pytest.raises(InvalidPath, match=message):
        ids.object_path(path)


@given(st.text())
def test_a_path_is_taken_as_it_is_or_refused(path: str) -> None:
    try:
        taken = ids.object_path(path)
    except InvalidPath as error:
        assert len(str(error)) < 300  # noqa: PT017  # however long the path; many are taken
    else:
        assert taken == path
        assert 1 <= len(path.encode()) <= ids.PATH_BYTES_MAX
        assert not {".", ".."} & set(path.split("/"))


@pytest.mark.parametrize("prefix", ["", "a", "a/", "a//", ".", "a/.", "a/..", "a" * 1024, "a" * 1022 + "/."])
def test_prefixes(prefix: str) -> None:
    assert ids.path_prefix(prefix) == prefix


@pytest.mark.parametrize("prefix", ["../", "a/../", "a/./", "a/../.", "a\0", "a\0.", "a" * 1025, "a" * 1024 + "."])
def test_bad_prefixes(prefix: str) -> None:
    with pytest.raises(InvalidPath):
        ids.path_prefix(prefix)


def test_new_addresses_are_own_and_sliced_by_the_hour() -> None:
    address = ids.new_address(RandomIds(), NOW_MS)
    assert address.startswith("data/2023111422/")
    assert ids.own_address(address) == address
    assert ids.is_own(address)


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"data/2023111422/{ID}/",
        f"data/2023111422/../{ID}",
        f"/data/2023111422/{ID}",
        f"../data/2023111422/{ID}",
        f"data/20231114/{ID}",
        f"data/٢٠٢٣١١١٤٢٢/{ID}",
        f"data/2023111422/{ID.upper()}",
        f"data/2023111422/{ID}\n",
        "s3://bucket/key",
        "_refstore/namespace",
    ],
)
def test_what_refstore_did_not_make_is_never_its_own(text: str) -> None:
    """What is not its own is not deleted, so this is the gate before every deletion."""
    assert not ids.is_own(ids.Address(text))
    with pytest.raises(InvalidName):
        ids.own_address(text)


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**48 - 1))
def test_ids_sort_as_time_does(first_ms: int, second_ms: int) -> None:
    source = RandomIds()
    first, second = source.new_id(first_ms), source.new_id(second_ms)
    assert len(first) == len(second) == 26
    assert first != second
    if first_ms != second_ms:
        assert (first < second) == (first_ms < second_ms)


def test_repository_ids_differ_where_the_name_is_the_same() -> None:
    name = RepositoryName("lake")
    first, second = (ids.new_repository_id(RandomIds(), name, NOW_MS) for _ in range(2))
    assert first != second
    assert ids.repository_id(first) == first
    with pytest.raises(InvalidName):
        ids.repository_id("lake")


def test_commit_ids() -> None:
    assert ids.commit_id("0" * 64) == "0" * 64
    for text in ("", "0" * 63, "0" * 65, "G" * 64, "A" * 64, "0" * 64 + "\n"):
        with pytest.raises(InvalidName):
            ids.commit_id(text)
