"""Which paths a filter of paths and prefixes matches, and where between two paths it may."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from refstore.versioning.commits.path_filter import PathFilter

PATHS = st.text("ab/\U0010ffff", max_size=5)


@given(st.lists(PATHS, max_size=6), st.lists(PATHS, max_size=6), PATHS)
def test_it_matches_its_paths_and_what_starts_with_its_prefixes(
    paths: list[str], prefixes: list[str], path: str
) -> None:
    assert PathFilter(paths, prefixes).matches(path) == (path in paths or path.startswith(tuple(prefixes)))


@given(st.lists(PATHS, max_size=4), st.lists(PATHS, max_size=4), st.lists(PATHS, min_size=1, max_size=8))
def test_a_range_of_paths_that_holds_a_match_is_never_left_out(
    paths: list[str], prefixes: list[str], inside: list[str]
) -> None:
    only = PathFilter(paths, prefixes)
    if any(only.matches(path) for path in inside):
        assert only.may_match_between(min(inside), max(inside))


def test_a_range_of_paths_beside_everything_is_left_out() -> None:
    only = PathFilter(["c"], ["a/", "a/b/", "e/"])
    assert not only.may_match_between("a0", "bz")
    assert not only.may_match_between("c0", "e")
    assert only.may_match_between("a/z", "b")
    assert only.may_match_between("b", "c")
    assert only.may_match_between("d", "e/")
