"""The API shows and sends the content that a purge has left of an object (rule 22)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from refstore.core.ids import Address
from refstore.core.records import Content
from refstore.versioning.locations import Publication
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
        repo.create_tag("v1", "main")
        yield found


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
    repo = service.lake.repository("alpha")
    announce(repo)
    intended = intend(repo, "main", "a")
    assert intended is not None
    repo.context.locations.publish([Publication(intended, Content(Address(""), 0, "", run="run-1"))], "run-1")
    listed = service("GET", f"{OBJECTS.format(ref='main')}/ls").json()["results"]
    assert [(item["path"], item["size_bytes"]) for item in listed] == [("a", 0), ("b", 9)]
    assert service("GET", OBJECTS.format(ref="main"), params={"path": "a"}).status_code == 410
    assert service("GET", OBJECTS.format(ref="main"), params={"path": "a", "presign": True}).status_code == 410
