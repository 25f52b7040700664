"""A URL that the store has signed writes until it expires, also after the link and the commit: what closes that."""

from __future__ import annotations

import httpx
import pytest

from refstore.core.safety import Safety
from refstore.operations.upload import LINKED_AS_COPY_CAUSE
from tests.api.service import Application, application
from tests.servers.s3_base import S3Server

pytestmark = [pytest.mark.server, pytest.mark.root, pytest.mark.slow]

BACKING = "/repositories/sales/branches/main/staging/backing"
ONLY_NEW = {"If-None-Match": "*"}


def issue(service: Application, **options: bool) -> dict[str, str]:
    service.lake.create_repository("sales")
    answer = service("GET", BACKING, params={"path": "a", "presign": True, **options})
    assert answer.status_code == 200
    given: dict[str, str] = answer.json()
    return given


def put(given: dict[str, str], body: bytes, headers: dict[str, str] | None = None) -> int:
    return httpx.put(given["presigned_url"], content=body, headers=headers, timeout=30).status_code


def link_and_commit(service: Application, given: dict[str, str]) -> None:
    body = {"staging": {"physical_address": given["physical_address"]}, "checksum": "x", "size_bytes": 5}
    assert service("PUT", BACKING, params={"path": "a"}, json=body).status_code == 200
    assert service("POST", "/repositories/sales/branches/main/commits", json={"message": "m"}).status_code == 201


def committed(service: Application) -> bytes:
    return service("GET", "/repositories/sales/refs/main/objects", params={"path": "a"}).content


def test_by_a_setting_the_link_copies_and_the_url_writes_to_nothing_that_is_named(rgw_server: S3Server) -> None:
    safety = Safety(grace_seconds=60, issue_seconds=240, copy_linked="always")
    with application(objects=rgw_server.url("copied"), safety=safety) as service:
        given = issue(service)
        assert put(given, b"right") == 200
        link_and_commit(service, given)
        assert put(given, b"wrong") == 200, "clients of lakeFS send no condition, so a plain PUT goes on working"
        assert committed(service) == b"right"
        service.clock.advance(241)
        service.reap(2)
        assert service.blobs("sales") == [b"right"], "what was written to the issued address is garbage"
        address = given["physical_address"].partition("?")[0].rpartition("/data/")[2]
        why = service.lake.repository("sales").why(f"data/{address}")
        assert LINKED_AS_COPY_CAUSE in str(why)


def test_without_the_setting_the_bytes_change_until_the_url_expires(rgw_server: S3Server) -> None:
    """The window that docs/security.md states."""
    with application(objects=rgw_server.url("window")) as service:
        given = issue(service)
        assert put(given, b"right") == 200
        link_and_commit(service, given)
        assert put(given, b"wrong") == 200
        assert committed(service) == b"wrong"


def test_who_asks_for_it_gets_a_url_that_never_replaces_what_was_written(rgw_server: S3Server) -> None:
    with application(objects=rgw_server.url("conditional")) as service:
        given = issue(service, if_absent=True)
        assert put(given, b"wrong") == 403, "the condition is signed in, so it cannot be left out"
        assert put(given, b"wrong", {"If-None-Match": "x"}) == 403
        assert put(given, b"right", ONLY_NEW) == 200
        assert put(given, b"wrong", ONLY_NEW) == 412
        link_and_commit(service, given)
        assert put(given, b"wrong", ONLY_NEW) == 412
        assert committed(service) == b"right"


def test_a_store_that_ignores_the_condition_gives_no_such_url(rgw_server: S3Server) -> None:
    with application(objects=rgw_server.url("unconditional") + "&conditional_put=0") as service:
        service.lake.create_repository("sales")
        answer = service("GET", BACKING, params={"path": "a", "presign": True, "if_absent": True})
        assert (answer.status_code, "conditional_put=0" in answer.json()["message"]) == (400, True)
        assert service("GET", BACKING, params={"path": "a", "if_absent": True}).status_code == 400
