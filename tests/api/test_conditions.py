"""Conditions on reads are kept or refused, never taken in silence; and a signed put has the deadline that every
operation has.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.api.service import Application

A = "/repositories/ranges"
OBJECTS = A + "/branches/main/objects"


@pytest.fixture
def repo(asgi: Application) -> str:
    assert asgi("POST", "/repositories", json={"name": "ranges", "storage_namespace": ""}).status_code == 201
    return A


def put(asgi: Application, path: str, body: bytes) -> dict[str, object]:
    found = asgi("POST", OBJECTS, params={"path": path}, content=body)
    assert found.status_code == 201, found.text
    return found.json()


def test_if_range_of_what_was_replaced_gets_the_whole(asgi: Application, repo: str) -> None:
    put(asgi, "a", b"one-one-one")
    first = asgi("GET", repo + "/refs/main/objects", params={"path": "a"}, headers={"Range": "bytes=0-4"})
    put(asgi, "a", b"TWO-TWO-TWO")
    rest = asgi(
        "GET",
        repo + "/refs/main/objects",
        params={"path": "a"},
        headers={"Range": "bytes=5-", "If-Range": first.headers["etag"]},
    )
    assert (rest.status_code, rest.content) == (200, b"TWO-TWO-TWO")


def test_a_condition_on_a_read_that_does_not_hold_is_not_taken_in_silence(asgi: Application, repo: str) -> None:
    put(asgi, "a", b"one-one-one")
    first = asgi("GET", repo + "/refs/main/objects", params={"path": "a"}, headers={"Range": "bytes=0-4"})
    put(asgi, "a", b"TWO-TWO-TWO")
    rest = asgi(
        "GET",
        repo + "/refs/main/objects",
        params={"path": "a"},
        headers={"Range": "bytes=5-", "If-Match": first.headers["etag"]},
    )
    assert rest.status_code in (400, 412)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"If-None-Match": "own"}, 304),
        ({"If-None-Match": "*"}, 304),
        ({"If-None-Match": '"another"'}, 200),
        ({"Range": "bytes=0-4", "If-Range": "own"}, 206),
        ({"Range": "bytes=0-4", "If-Range": '"another"'}, 200),
        ({"If-Match": '"another"'}, 400),
    ],
)
def test_a_head_keeps_the_conditions_that_a_get_keeps(
    asgi: Application, repo: str, headers: dict[str, str], status: int
) -> None:
    put(asgi, "a", b"one-one-one")
    where = repo + "/refs/main/objects"
    own = asgi("HEAD", where, params={"path": "a"}).headers["etag"]
    sent = {name: own if value == "own" else value for name, value in headers.items()}
    get, head = (asgi(method, where, params={"path": "a"}, headers=sent) for method in ("GET", "HEAD"))
    assert (get.status_code, head.status_code) == (status, status)
    same = ("etag", "content-length", "content-range", "content-type")
    assert [head.headers.get(name) for name in same] == [get.headers.get(name) for name in same]


def link(asgi: Application, body: bytes) -> None:
    given = asgi("GET", A + "/branches/main/staging/backing", params={"path": "a", "presign": "true"}).json()
    assert asgi("PUT", given["presigned_url"], content=body).status_code == 200
    told = {"staging": {"physical_address": given["physical_address"]}, "checksum": "any", "size_bytes": len(body)}
    assert asgi("PUT", A + "/branches/main/staging/backing", params={"path": "a"}, json=told).status_code == 200


def test_what_was_linked_is_not_another_link_with_the_same_checksum(asgi: Application, repo: str) -> None:
    """`any` is what the documentation's own example says of each."""
    link(asgi, b"one-one-one")
    first = asgi("GET", repo + "/refs/main/objects", params={"path": "a"})
    same = asgi(
        "GET", repo + "/refs/main/objects", params={"path": "a"}, headers={"If-None-Match": first.headers["etag"]}
    )
    assert same.status_code == 304
    link(asgi, b"TWO-TWO-TWO")
    for condition in (
        {"If-None-Match": first.headers["etag"]},
        {"Range": "bytes=5-", "If-Range": first.headers["etag"]},
    ):
        now = asgi("GET", repo + "/refs/main/objects", params={"path": "a"}, headers=condition)
        assert (now.status_code, now.content) == (200, b"TWO-TWO-TWO")
    assert asgi("GET", repo + "/refs/main/objects/stat", params={"path": "a"}).json()["checksum"] == "any"


def test_a_signed_put_has_a_deadline_as_every_operation_has(asgi: Application, repo: str) -> None:
    given = asgi("GET", A + "/branches/main/staging/backing", params={"path": "a", "presign": "true"}).json()

    async def slowly():
        for _ in range(40):
            asgi.clock.sleep(3600)
            await asyncio.sleep(0)
            yield b"x" * (1 << 17)

    told = asgi("PUT", given["presigned_url"], content=slowly())
    direct = asgi("POST", OBJECTS, params={"path": "b"}, content=slowly())
    assert direct.status_code == 503
    assert told.status_code != 200, "forty hours"


def test_a_signed_put_stores_what_it_was_sent_as_it_is(asgi: Application, repo: str) -> None:
    """As S3 does: the body is the object, whatever it says it is."""
    body = b'--B\r\nContent-Disposition: form-data; name="content"\r\n\r\nwithin\r\n--B--\r\n'
    given = asgi("GET", repo + "/branches/main/staging/backing", params={"path": "a", "presign": "true"}).json()
    sent = asgi(
        "PUT", given["presigned_url"], content=body, headers={"Content-Type": "multipart/form-data; boundary=B"}
    )
    assert sent.status_code == 200, sent.text
    told = {"staging": {"physical_address": given["physical_address"]}, "checksum": "any", "size_bytes": len(body)}
    assert asgi("PUT", repo + "/branches/main/staging/backing", params={"path": "a"}, json=told).status_code == 200
    assert asgi("GET", repo + "/refs/main/objects", params={"path": "a"}).content == body
