"""What users may write about repositories and commits, and what a page of it may take."""

from __future__ import annotations

from typing import Any, Final

import pytest

from refstore.core.user_metadata import METADATA_BYTES_MAX
from refstore.errors import Invalid
from refstore.operations import read
from tests.api.service import Application

REPOSITORY: Final = "/repositories/alpha"
PIECE: Final = "ü" * 4096
"""The largest value that the API takes by itself has 8,192 characters."""


def of_bytes(size_bytes: int) -> dict[str, str]:
    """Metadata of exactly so many bytes in UTF-8."""
    found: dict[str, str] = {}
    while size_bytes > len(PIECE.encode()) + 4:
        found[f"k{len(found):03}"] = PIECE
        size_bytes -= len(PIECE.encode()) + 4
    return {**found, "k": "v" * (size_bytes - 1)}


FITS: Final = of_bytes(METADATA_BYTES_MAX)
TOO_MUCH: Final = of_bytes(METADATA_BYTES_MAX + 1)


def refused(answered: Any) -> None:
    assert (answered.status_code, answered.json()["code"]) == (400, "invalid")
    assert f"has {METADATA_BYTES_MAX + 1} bytes, and may have {METADATA_BYTES_MAX}" in answered.json()["message"]


def test_a_repositorys_metadata_takes_64_kib_in_all(alpha: Application) -> None:
    refused(alpha("POST", REPOSITORY + "/metadata", json={"metadata": TOO_MUCH}))
    assert alpha("POST", REPOSITORY + "/metadata", json={"metadata": FITS}).status_code == 204
    assert alpha("GET", REPOSITORY + "/metadata").json() == FITS
    assert alpha("POST", REPOSITORY + "/metadata", json={"metadata": {"more": ""}}).status_code == 400
    assert alpha("GET", REPOSITORY + "/metadata").json() == FITS
    with pytest.raises(Invalid, match="repository 'beta'"):
        alpha.lake.create_repository("beta", metadata=TOO_MUCH)
    assert alpha("GET", "/repositories/beta").status_code == 404


def test_a_commits_metadata_takes_64_kib_in_all(alpha: Application) -> None:
    repo = alpha.lake.repository("alpha")
    repo.create_branch("dev", source="main")
    repo.upload("dev", "p", b"x")
    before = repo.get_branch("dev").head
    refused(alpha("POST", REPOSITORY + "/branches/dev/commits", json={"message": "c", "metadata": TOO_MUCH}))
    assert repo.get_branch("dev").head == before
    made = alpha("POST", REPOSITORY + "/branches/dev/commits", json={"message": "c", "metadata": FITS})
    assert (made.status_code, made.json()["metadata"]) == (201, FITS)
    refused(alpha("POST", REPOSITORY + "/refs/dev/merge/main", json={"metadata": TOO_MUCH}))
    overrides = {"ref": "dev", "commit_overrides": {"metadata": TOO_MUCH}}
    refused(alpha("POST", REPOSITORY + "/branches/dev/revert", json=overrides))
    with pytest.raises(Invalid, match="the metadata of the commit has"):
        repo.merge("dev", into="main", metadata=TOO_MUCH)
    assert repo.diff("main", to="dev")


@pytest.mark.parametrize("ref", ["main", "main@"])
def test_a_listing_ends_early_where_metadata_fills_the_page(
    alpha: Application, monkeypatch: pytest.MonkeyPatch, ref: str
) -> None:
    monkeypatch.setattr(read, "PAGE_BYTES_MAX", 10_000)
    repo = alpha.lake.repository("alpha")
    paths = [f"p{number:02}" for number in range(10)]
    for path in paths:
        repo.upload("main", path, b"x", metadata={"k": "v" * 4000})
    if ref == "main@":
        repo.commit("main", "c")
    found, pages = all_of(alpha, f"{REPOSITORY}/refs/{ref}/objects/ls", "path")
    assert (found, pages) == (paths, [3, 3, 3, 1])
    assert [listed.path for listed in repo.list(ref)] == paths


def test_a_log_ends_early_where_metadata_fills_the_page(alpha: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refstore_api.page_responses.PAGE_BYTES_MAX", 100_000)
    repo = alpha.lake.repository("alpha")
    made = [repo.commit("main", f"c{number}", metadata={"k": "v" * 60_000}, allow_empty=True).id for number in range(5)]
    found, pages = all_of(alpha, REPOSITORY + "/refs/main/commits", "id")
    assert found[:5] == made[::-1]
    assert pages == [2, 2, 2]


@pytest.mark.parametrize("kind", ["two_dot", "three_dot"])
def test_a_difference_ends_early_where_paths_fill_the_page(
    alpha: Application, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("refstore_api.commit_responses.PAGE_BYTES_MAX", 2000)
    repo = alpha.lake.repository("alpha")
    paths = [f"p{number:02}" + "x" * 900 for number in range(7)]
    for path in paths:
        repo.upload("main", path, b"x")
    assert all_of(alpha, REPOSITORY + "/branches/main/diff", "path") == (paths, [3, 3, 1])
    repo.commit("main", "c")
    assert all_of(alpha, f"{REPOSITORY}/refs/main~1/diff/main?type={kind}", "path") == (paths, [3, 3, 1])


def test_a_page_has_one_item_however_large_it_is(alpha: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "PAGE_BYTES_MAX", 1)
    repo = alpha.lake.repository("alpha")
    for path in ("a/1", "a/2", "b", "c/1"):
        repo.upload("main", path, b"x")
    assert all_of(alpha, REPOSITORY + "/refs/main/objects/ls?delimiter=/", "path") == (["a/", "b", "c/"], [1, 1, 1])


def all_of(alpha: Application, route: str, name: str) -> tuple[list[str], list[int]]:
    """(the names on all pages, how many each page has)."""
    found: list[str] = []
    pages: list[int] = []
    after = ""
    while True:
        page = alpha(
            "GET",
            route,
            params=dict(pair.split("=", 1) for pair in route.partition("?")[2].split("&") if pair) | {"after": after},
        )
        body = page.json()
        found += [item[name] for item in body["results"]]
        pages.append(len(body["results"]))
        assert body["pagination"]["results"] == len(body["results"])
        if not body["pagination"]["has_more"]:
            return found, pages
        after = body["pagination"]["next_offset"]
