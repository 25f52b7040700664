"""What only time changes: issued addresses that are never linked, signed URLs, tokens. In this process, on a clock that
is moved.
"""

from __future__ import annotations

from typing import Any

from tests.api.conftest import KEY_ID, SECRET
from tests.api.service import Application, application
from tests.reaping import delete_due, reap_all

REPO = "/repositories/lake"
BACKING = f"{REPO}/branches/main/staging/backing"
A_LONG_TIME_SECONDS = 40 * 86_400


def issue(asgi: Application, path: str) -> dict[str, Any]:
    if asgi("GET", REPO).status_code == 404:
        assert (
            asgi("POST", "/repositories", json={"name": "lake", "storage_namespace": "mem://lake"}).status_code == 201
        )
    answered = asgi("GET", BACKING, params={"path": path, "presign": True})
    assert answered.status_code == 200, answered.text
    told: dict[str, Any] = answered.json()
    return told


def link(asgi: Application, path: str, told: dict[str, Any]) -> int:
    body = {"staging": told, "checksum": "x", "size_bytes": 4}
    return asgi("PUT", BACKING, params={"path": path}, json=body).status_code


def blobs(asgi: Application) -> list[str]:
    return [info.key for info in asgi.lake.repository("lake").context.objects.list("data/")]


def test_an_address_that_was_written_and_never_linked_is_reaped_when_its_time_comes(asgi: Application) -> None:
    told = issue(asgi, "a")
    assert asgi("PUT", told["presigned_url"], content=b"body").status_code == 200
    reap_all(asgi.lake.repository("lake"))
    assert len(blobs(asgi)) == 1
    asgi.clock.advance(A_LONG_TIME_SECONDS)
    assert link(asgi, "a", told) == 400
    assert delete_due(asgi.lake.repository("lake")) == 1
    assert blobs(asgi) == []


def test_an_address_is_linked_until_it_expires(asgi: Application) -> None:
    told = issue(asgi, "a")
    asgi("PUT", told["presigned_url"], content=b"body")
    asgi.clock.advance(told["expiry"] - asgi.clock.now_ms() // 1000 - 1)
    assert link(asgi, "a", told) == 200
    asgi.clock.advance(A_LONG_TIME_SECONDS)
    reap_all(asgi.lake.repository("lake"))
    assert asgi("GET", f"{REPO}/refs/main/objects", params={"path": "a"}).content == b"body"


def test_a_signed_url_writes_once_and_ends(asgi: Application) -> None:
    told = issue(asgi, "a")
    assert asgi("PUT", told["presigned_url"], content=b"body").status_code == 200
    assert asgi("PUT", told["presigned_url"], content=b"other").status_code == 409
    assert link(asgi, "a", told) == 200
    read = asgi("GET", f"{REPO}/refs/main/objects/stat", params={"path": "a", "presign": True}).json()[
        "physical_address"
    ]
    assert asgi("GET", read, auth=None).content == b"body"
    assert asgi("PUT", read, auth=None, content=b"x").status_code == 400  # it is for reading
    asgi.clock.advance(3600)
    assert asgi("GET", read, auth=None).status_code == 400
    unused = issue(asgi, "b")["presigned_url"]
    asgi.clock.advance(A_LONG_TIME_SECONDS)
    assert asgi("PUT", unused, auth=None, content=b"x").status_code == 400


def test_a_login_ends() -> None:
    with application(constants={"api.auth.KEY_SECONDS": 0}) as asgi:  # else it is known for some seconds
        told = asgi(
            "POST", "/auth/login", auth=None, json={"access_key_id": KEY_ID, "secret_access_key": SECRET}
        ).json()
        bearer = {"Authorization": f"Bearer {told['token']}"}
        assert asgi("GET", "/user", auth=None, headers=bearer).status_code == 200
        asgi.clock.advance(told["token_expiration"] - asgi.clock.now_ms() // 1000)
        assert asgi("GET", "/user", auth=None, headers=bearer).status_code == 401
