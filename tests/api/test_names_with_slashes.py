"""Names of branches and tags may have slashes in them; clients send each as one part of the path, `%2F` for each
slash.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import lakefs
import pytest

from tests.api.service import Application, application

REPO = "/repositories/alpha"
NAMES = ("feature/x", "a/diff", "a/objects/ls", "a/b/c")


@pytest.fixture
def local() -> Iterator[Application]:
    with application() as found:
        assert found("POST", "/repositories", json={"name": "alpha"}).status_code == 201
        yield found


@pytest.mark.parametrize("name", NAMES)
def test_a_branch_with_a_slash_is_worked_with(local: Application, name: str) -> None:
    assert local("POST", f"{REPO}/branches", json={"name": "a", "source": "main"}).status_code == 201
    assert local("POST", f"{REPO}/branches", json={"name": name, "source": "main"}).status_code == 201
    part = quote(name, safe="")
    branch, ref = f"{REPO}/branches/{part}", f"{REPO}/refs/{part}"
    assert local("GET", branch).json()["id"] == name
    for body in (b"small", b"x" * (2 << 20)):
        assert local("POST", f"{branch}/objects", params={"path": "p"}, content=body).status_code == 201
        assert local("GET", f"{ref}/objects", params={"path": "p"}).content == body
    assert local("POST", f"{branch}/commits", json={"message": "made"}).status_code == 201
    assert local("GET", f"{ref}/commits").json()["results"][0]["message"] == "made"
    assert [row["path"] for row in local("GET", f"{REPO}/refs/main/diff/{part}").json()["results"]] == ["p"]
    assert local("POST", f"{ref}/merge/main", json={}).status_code == 200
    assert local("DELETE", branch).status_code == 204
    assert [row["id"] for row in local("GET", f"{REPO}/branches").json()["results"]] == ["a", "main"]


def test_a_tag_with_a_slash_is_shown_and_deleted(local: Application) -> None:
    assert local("POST", f"{REPO}/tags", json={"id": "release/1.0", "ref": "main"}).status_code == 201
    assert local("GET", f"{REPO}/tags/release%2f1.0").json()["id"] == "release/1.0"
    assert local("GET", f"{REPO}/commits/release%2F1.0").status_code == 200
    assert local("DELETE", f"{REPO}/tags/release%2F1.0").status_code == 204
    assert local("GET", f"{REPO}/tags").json()["results"] == []


def test_what_was_sent_is_decoded_once(local: Application) -> None:
    assert local("POST", f"{REPO}/branches", json={"name": "feature/x", "source": "main"}).status_code == 201
    assert local("GET", f"{REPO}/branches/feature%252Fx").status_code == 400
    assert local("GET", f"{REPO}/refs/feature%252Fx/merge/feature%2Fx").status_code == 404
    assert local("GET", f"{REPO}/refs/feature%2Fx/merge/feature%2Fx").status_code == 200


def test_a_slash_in_a_name_is_no_slash_of_a_route(local: Application) -> None:
    assert local("GET", f"{REPO}/branches/main").status_code == 200
    assert local("GET", f"{REPO}/branches%2Fmain").status_code == 404
    assert local("GET", f"{REPO}/branches/main%2Fdiff").json()["code"] == "branch_not_found"
    assert local("GET", "/repositories/alpha%2Fbranches").status_code == 400


def test_lakefs_client_works_with_such_names(repo: lakefs.Repository) -> None:
    """But for `upload`, which writes the URL itself, with the slash as it is."""
    dev = repo.branch("feature/x").create("main")
    repo.branch("main").object("a").upload("body")
    repo.branch("main").object("a").copy("feature/x", "dir/a")
    dev.object("signed").upload("signed", pre_sign=True)
    dev.commit("made")
    assert dev.object("signed").reader("r").read() == "signed"
    tag = repo.tag("release/1.0").create(dev)
    assert repo.ref("feature/x@").object("dir/a").reader("r").read() == "body"
    assert tag.object("dir/a").reader("r").read() == "body"
    tag.delete()
    dev.delete()
    assert [branch.id for branch in repo.branches()] == ["main"]
    assert list(repo.tags()) == []
