"""The API shows and sends the content that a purge has left of an object (rule 22)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from refstore.core.ids import Address
from refstore.records.location_records import Content
from refstore.repository import Repository
from refstore.versioning.locations import WrittenContent
from tests.api.service import Application, application
from tests.purging import announce, content_of, intend, rewrite

OBJECTS = "/repositories/alpha/refs/{ref}/objects"


@pytest.fixture
def service() -> Iterator[Application]:
    with application() as found:
        repo = found.lake.create_repository("alpha")
        repo.upload("main", "a", b"all the rows")
        repo.upload("main", "b", b"untouched")
        repo.commit("main", "both")
        repo.create_tag("v1", ref="main")
        yield found


def erase(repo: Repository) -> None:
    announce(repo)
    intended = intend(repo, "main", "a")
    assert intended is not None
    repo.context.locations.publish([WrittenContent(intended, Content(Address(""), 0, "", run="run-1"))], "run-1")


@pytest.mark.parametrize("ref", ["main", "v1"])
def test_every_answer_is_of_the_content_as_it_is_now(service: Application, ref: str) -> None:
    repo = service.lake.repository("alpha")
    where = OBJECTS.format(ref=ref)
    before = service("GET", where, params={"path": "a"})
    assert before.content == b"all the rows"
    published = rewrite(repo, "main", "a", b"fewer rows")
    repo.context.objects.delete_many([repo.resolve("main", "a").entry.address])  # the backup has ended
    after = service("GET", where, params={"path": "a"}, headers={"If-None-Match": before.headers["ETag"]})
    assert (after.status_code, after.content) == (200, b"fewer rows")
    assert after.headers["ETag"] != before.headers["ETag"]
    again = service("GET", where, params={"path": "a"}, headers={"If-None-Match": after.headers["ETag"]})
    assert again.status_code == 304
    part = service("GET", where, params={"path": "a"}, headers={"Range": "bytes=2-4"})
    assert (part.status_code, part.content, part.headers["Content-Range"]) == (206, b"wer", "bytes 2-4/10")
    stale = service(
        "GET", where, params={"path": "a"}, headers={"Range": "bytes=2-4", "If-Range": before.headers["ETag"]}
    )
    assert (stale.status_code, stale.content) == (200, b"fewer rows")
    head = service("HEAD", where, params={"path": "a"})
    assert (head.headers["Content-Length"], head.headers["ETag"]) == ("10", after.headers["ETag"])
    stat = service("GET", f"{where}/stat", params={"path": "a"}).json()
    assert stat["size_bytes"] == 10
    md5 = hashlib.md5(b"fewer rows", usedforsecurity=False).hexdigest()
    assert (stat["checksum"], after.headers["ETag"]) == (md5, f'"{md5}"')
    assert stat["physical_address"].endswith(content_of(published))
    listed = {item["path"]: item for item in service("GET", f"{where}/ls").json()["results"]}
    assert listed["a"] == stat
    assert listed["b"]["size_bytes"] == 9


def test_a_presigned_url_reads_the_content(service: Application) -> None:
    repo = service.lake.repository("alpha")
    rewrite(repo, "main", "a", b"fewer rows")
    answer = service("GET", OBJECTS.format(ref="main"), params={"path": "a", "presign": True}, follow_redirects=False)
    assert answer.status_code == 302
    assert service("GET", answer.headers["Location"]).content == b"fewer rows"


def test_an_erased_object_is_listed_and_not_read(service: Application) -> None:
    erase(service.lake.repository("alpha"))
    listed = service("GET", f"{OBJECTS.format(ref='main')}/ls").json()["results"]
    assert [(item["path"], item["size_bytes"]) for item in listed] == [("a", 0), ("b", 9)]
    assert service("GET", OBJECTS.format(ref="main"), params={"path": "a"}).status_code == 410
    assert service("GET", OBJECTS.format(ref="main"), params={"path": "a", "presign": True}).status_code == 410


def test_the_original_that_is_uploaded_again_is_a_change_in_every_diff(service: Application) -> None:
    repo = service.lake.repository("alpha")
    repo.create_branch("dev", source="main")
    before = repo.stat("main", "a")
    rewrite(repo, "main", "a", b"fewer rows")
    repo.upload("dev", "a", b"all the rows", modified=before.modified)

    def changes(path: str) -> list[str]:
        return [f"{row['type']} {row['path']}" for row in service("GET", path).json()["results"]]

    assert changes("/repositories/alpha/branches/dev/diff") == ["changed a"]
    repo.commit("dev", "back")
    assert changes("/repositories/alpha/refs/main/diff/dev?type=two_dot") == ["changed a"]
    assert changes("/repositories/alpha/refs/main/diff/dev") == ["changed a"]
    log = service("GET", "/repositories/alpha/refs/dev/commits", params={"objects": ["a"]}).json()["results"]
    assert [each["message"] for each in log] == ["back", "both"]


@pytest.mark.parametrize("is_erased", [False, True])
def test_a_three_dot_diff_takes_purged_objects_for_what_the_merge_takes_them_for(
    service: Application, is_erased: bool
) -> None:
    """Both branches have the same object, which is purged; on main another commit came."""
    repo = service.lake.repository("alpha")
    repo.create_branch("dev", source="main")
    if is_erased:
        erase(repo)
    else:
        rewrite(repo, "main", "a", b"fewer rows")
    repo.upload("dev", "a", b"new rows")
    repo.commit("dev", "new rows")
    repo.upload("main", "c", b"c")
    repo.commit("main", "more")
    results = service("GET", "/repositories/alpha/refs/main/diff/dev").json()["results"]
    assert [(row["path"], row["type"]) for row in results] == [("a", "changed")]
    repo.merge("dev", into="main")
    assert repo.read("main", "a") == b"new rows"
