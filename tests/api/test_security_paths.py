"""Attacks on what is stored and how it is answered: paths that leave the store, headers that end early, pages that run
as ours.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from refstore.errors import Invalid
from refstore_api.encoded_slashes import check_encoding
from tests.api.service import Application, application

UPLOAD = "/repositories/alpha/branches/main/objects"
READ = "/repositories/alpha/refs/main/objects"
STAT = READ + "/stat"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The lake's objects, with something beside them that is none of its business."""
    (tmp_path / "secret").write_text("not yours")
    (tmp_path / "objects").mkdir()
    return tmp_path / "objects"


@pytest.fixture
def service(folder: Path) -> Iterator[Application]:
    """On files: what leaves the store there is somebody else's file."""
    with application(objects=f"file://{folder}") as found:
        found.lake.create_repository("alpha")
        yield found


def upload(service: Application, path: str = "p", body: bytes = b"body", **options: Any) -> httpx.Response:
    return service("POST", UPLOAD, params={"path": path}, content=body, **options)


def files(folder: Path) -> set[str]:
    return {str(found.relative_to(folder.parent)) for found in folder.parent.rglob("*") if found.is_file()}


# ---- paths


HOSTILE = [
    "..",
    "../secret",
    "a/../../secret",
    "/../secret",
    "a/./b",
    ".",
    "a/..",
    "nul\0l",
    "\0",
    "x" * 1025,
    "é" * 600,
    "\ud800",
]


@pytest.mark.parametrize("path", [path for path in HOSTILE if "\ud800" not in path])
def test_a_path_that_would_leave_the_store_is_refused(service: Application, folder: Path, path: str) -> None:
    before = files(folder)
    for answered in (
        upload(service, path),
        service("GET", READ, params={"path": path}),
        service("DELETE", UPLOAD, params={"path": path}),
        service("GET", "/repositories/alpha/branches/main/staging/backing", params={"path": path}),
        service("POST", UPLOAD + "/copy", params={"dest_path": path}, json={"src_path": "p"}),
        service("POST", UPLOAD + "/move", json={"src_path": "p", "dest_path": path}),
        service(
            "PUT", UPLOAD, params={"path": path}, json={"physical_address": "s3://b/x", "checksum": "", "size_bytes": 1}
        ),
    ):
        assert answered.status_code == 400, answered.text
    assert files(folder) == before


@pytest.mark.parametrize(
    "raw", ["%2e%2e%2fsecret", "a%2f..%2f..%2fsecret", "..%5csecret", "%2e%2e/secret", "p%00", "..%c0%afsecret", "%ff"]
)
def test_an_encoded_traversal_does_not_leave_the_store(service: Application, folder: Path, raw: str) -> None:
    """Refused, or taken for the name of an object like any other: the name is nothing that a file is called."""
    answered = service("POST", f"{UPLOAD}?path={raw}", content=b"evil")
    assert answered.status_code in (201, 400)
    assert (folder.parent / "secret").read_text() == "not yours"
    assert all(name.startswith(("objects/alpha.", "objects/_refstore/")) for name in files(folder) - {"secret"})


@pytest.mark.parametrize(
    "path",
    [
        "..\\secret",
        "C:\\x",
        "file:///etc/passwd",
        "%2e%2e/secret",
        "a//b",
        "a b",
        "~",
        "$(id)",
        "-rf",
        "*",
    ],
)
def test_a_path_that_only_looks_hostile_is_a_name_like_any_other(service: Application, folder: Path, path: str) -> None:
    assert upload(service, path).status_code == 201
    assert service("GET", READ, params={"path": path}).content == b"body"
    assert [found["path"] for found in service("GET", READ + "/ls").json()["results"]] == [path]
    assert all("/data/" in name or "/_refstore/" in name for name in files(folder) - {"secret"})


@pytest.mark.parametrize(("prefix", "shown"), [(".", [".hidden"]), ("a/.", ["a/..b", "a/.b"]), ("a/..", ["a/..b"])])
def test_a_prefix_that_ends_in_dots_is_the_beginning_of_a_name(
    service: Application, prefix: str, shown: list[str]
) -> None:
    for path in (".hidden", "a/.b", "a/..b", "a/b"):
        assert service("POST", UPLOAD, params={"path": path}, content=b"x").status_code == 201
    found = service("GET", "/repositories/alpha/refs/main/objects/ls", params={"prefix": prefix})
    assert found.status_code == 200, found.text
    assert [row["path"] for row in found.json()["results"]] == shown


def test_a_lone_surrogate_in_json_is_refused(service: Application) -> None:
    headers = {"content-type": "application/json"}
    refused = service("POST", UPLOAD + "/move", content=b'{"src_path": "p", "dest_path": "\\ud800"}', headers=headers)
    assert refused.status_code == 400


NOT_UTF8 = ["%ff", "%fe", "a%c3", "%c0%af", "%ed%a0%80", "a%FFb%c3%a9"]


@pytest.mark.parametrize("raw", NOT_UTF8)
def test_a_path_that_is_not_utf8_is_refused(service: Application, raw: str) -> None:
    """A server reads it as U+FFFD, whatever it was: two paths would be one object."""
    backing = "/repositories/alpha/branches/main/staging/backing"
    for answered in (
        service("POST", f"{UPLOAD}?path={raw}", content=b"x"),
        service("GET", f"{READ}?path={raw}"),
        service("HEAD", f"{READ}?path={raw}"),
        service("GET", f"{STAT}?path={raw}"),
        service("DELETE", f"{UPLOAD}?path={raw}"),
        service("GET", f"{READ}/ls?prefix={raw}"),
        service("GET", f"{READ}/ls?after={raw}"),
        service("GET", f"{backing}?path={raw}"),
        service("POST", f"{UPLOAD}/copy?dest_path={raw}", json={"src_path": "p"}),
        service("GET", f"/repositories?prefix={raw}"),
        service("GET", f"/repositories/{raw}"),
        service("GET", f"/repositories/alpha/branches/{raw}"),
        service("GET", f"/repositories/alpha/refs/x%2F{raw}/commits"),
        service("DELETE", f"/repositories/alpha/tags/{raw}"),
    ):
        assert answered.status_code == 400, answered.request.url
    assert service("GET", f"{READ}/ls").json()["results"] == []


def test_the_replacement_character_itself_is_a_name_like_any_other(service: Application) -> None:
    assert service("POST", f"{UPLOAD}?path=%ef%bf%bd", content=b"x").status_code == 201
    assert service("GET", STAT, params={"path": "\ufffd"}).json()["path"] == "\ufffd"


@pytest.mark.parametrize("part", ["raw_path", "query_string"])
def test_bytes_that_were_not_written_as_percents_are_refused(part: str) -> None:
    """They would be read as latin-1, and shown as other letters than were meant."""
    check_encoding({"type": "http", part: b"/objects%C3%A9"})
    for sent in (b"/objects\xc3\xa9", b"/\xff"):
        with pytest.raises(Invalid):
            check_encoding({"type": "http", part: sent})


@pytest.mark.parametrize("name", [b"\xff", b"\xed\xa0\x80"])
def test_a_body_with_a_name_that_is_not_utf8_is_refused(service: Application, name: bytes) -> None:
    upload(service)
    headers = {"content-type": "application/json"}
    for method, url, body in (
        ("POST", UPLOAD + "/move", b'{"src_path": "p", "dest_path": "%s"}'),
        ("POST", UPLOAD + "/delete", b'{"paths": ["%s"]}'),
        ("POST", "/repositories", b'{"name": "beta", "storage_namespace": "local://%s"}'),
        ("POST", "/repositories/alpha/branches", b'{"name": "%s", "source": "main"}'),
        ("POST", "/repositories/alpha/branches/main/commits", b'{"message": "%s"}'),
        ("POST", "/repositories/alpha/metadata", b'{"metadata": {"%s": "x"}}'),
    ):
        answered = service(method, url, content=body % name, headers=headers)
        assert answered.status_code == 400, (url, answered.text)
    assert service("GET", STAT, params={"path": "p"}).status_code == 200


def test_an_access_key_that_is_not_utf8_is_nobodys(service: Application) -> None:
    sent = b64encode(b"AKIA\xff:\xfe").decode()
    assert service("GET", "/repositories", auth=None, headers={"authorization": f"Basic {sent}"}).status_code == 401


@pytest.mark.parametrize("field", ["branch", "ref", "repository", "tag", "commit"])
@pytest.mark.parametrize("name", ["%2e%2e", "a%2f..%2fb", "a%00b", "%0d%0aX-Evil:1", "x" * 300])
def test_a_hostile_name_in_the_url_is_refused(service: Application, field: str, name: str) -> None:
    url = {
        "branch": f"/repositories/alpha/branches/{name}",
        "ref": f"/repositories/alpha/refs/{name}/commits",
        "repository": f"/repositories/{name}/branches",
        "tag": f"/repositories/alpha/tags/{name}",
        "commit": f"/repositories/alpha/commits/{name}",
    }[field]
    answered = service("GET", url)
    assert answered.status_code in (400, 404), answered.text
    assert "x-evil" not in answered.headers


@pytest.mark.parametrize(
    "namespace",
    [
        "file:///etc",
        "file:///",
        "{own}/../secret",
        "{own}/a/../../secret",
        "{own}/%2e%2e/secret",
        "{own}/a%2f..%2f..%2fsecret",
        "{own}x",
        "{own}/a?fsync=0",
        "{own}/a#b",
        "{own}/a\0b",
        "{own}/a%00b",
        "{own}/a%0d%0ab",
        "{own}/a%ffb",
        "{own}/%2F",
        "{own}/%2f%2F/",
        "local://..",
        "local://../secret",
        "local://a/../..",
        "FILE:///etc",
        "file://localhost/etc",
        "file://otherhost/etc",
        "s3://bucket/x",
        "s3://bucket/x?endpoint=http://169.254.169.254",
        "memory://x",
        "http://169.254.169.254/",
        "/etc",
        "..",
    ],
)
def test_a_repository_cannot_be_made_outside_of_the_store(service: Application, folder: Path, namespace: str) -> None:
    before = files(folder)
    asked = namespace.replace("{own}", f"file://{folder}")
    refused = service("POST", "/repositories", json={"name": "evil", "storage_namespace": asked})
    assert refused.status_code == 400, refused.text
    assert files(folder) == before


@pytest.mark.parametrize(
    "spelling", ["{own}/sub", "{own}/s%75b", "{own}//sub", "{own}/sub/", "{own}/sub/data", "{own}/s%75b/data"]
)
def test_a_repository_cannot_be_made_in_anothers_namespace(service: Application, folder: Path, spelling: str) -> None:
    own = f"file://{folder}"
    assert (
        service("POST", "/repositories", json={"name": "first", "storage_namespace": f"{own}/sub"}).status_code == 201
    )
    refused = service(
        "POST", "/repositories", json={"name": "evil", "storage_namespace": spelling.replace("{own}", own)}
    )
    assert refused.status_code == 409, refused.text


@pytest.mark.parametrize(
    "spelling",
    [
        "{url}",
        "{FILE}",
        "{url%}",
        "{url%%}",
        "{local}",
        "file://localhost{path}",
        "file://LOCALHOST{path}",
        "file:////{path}",
        "file:///elsewhere/..{path}",
        "file://{path}?x",
        "file://{path}#x",
        "file:///x/%2e%2e{path}",
        "file:///x\\..{path}",
    ],
)
def test_what_lies_in_the_namespace_cannot_be_staged_by_any_spelling(service: Application, spelling: str) -> None:
    """It would be named twice, once by an entry that keeps nobody from deleting it."""
    address = upload(service, "q").json()["physical_address"]
    path = address.removeprefix("file://")
    asked = (
        spelling.replace("{url%%}", address.replace("data", "%2564ata").replace("alpha", "%2561lpha"))
        .replace("{url%}", address.replace("alpha", "%61lpha"))
        .replace("{url}", address)
        .replace("{FILE}", address.replace("file:", "FILE:"))
        .replace("{local}", "local://" + path.partition("/objects/")[2])
        .replace("{path}", path)
    )
    body = {"physical_address": asked, "checksum": "c", "size_bytes": 4}
    refused = service("PUT", UPLOAD, params={"path": "p"}, json=body)
    assert refused.status_code == 400, asked
    assert service("GET", STAT, params={"path": "p"}).status_code == 404


def test_a_file_of_the_server_is_not_staged_unless_an_operator_allows_its_folder(service: Application) -> None:
    body = {"physical_address": "file:///etc/passwd", "checksum": "c", "size_bytes": 4}
    refused = service("PUT", UPLOAD, params={"path": "p"}, json=body)
    assert (refused.status_code, "import_from" in refused.json()["message"]) == (400, True)


@pytest.mark.parametrize("url", ["http://169.254.169.254/latest/meta-data", "s3://other/secret"])
def test_what_is_staged_from_outside_is_not_fetched_by_the_service(service: Application, url: str) -> None:
    """Else whoever may write could read what only the service may."""
    body = {"physical_address": url, "checksum": "c", "size_bytes": 4}
    assert service("PUT", UPLOAD, params={"path": "p"}, json=body).status_code == 201
    for options in ({}, {"presign": True}):
        refused = service("GET", READ, params={"path": "p", **options})
        assert (refused.status_code, refused.json()["code"]) == (403, "foreign_not_allowed")
    assert service("GET", STAT, params={"path": "p", "presign": True}).json()["physical_address"] == url


@pytest.mark.parametrize(
    "address",
    [
        "../secret",
        "data/../../../secret",
        "/etc/passwd",
        "data/2026112113/../../x",
        "file:///etc/passwd",
        "_refstore/namespace",
    ],
)
def test_no_address_but_our_own_is_looked_at_or_restored(service: Application, address: str) -> None:
    for route in ("addresses", "addresses/why"):
        assert service("GET", f"/repositories/alpha/{route}", params={"physical_address": address}).status_code == 400
    refused = service("POST", UPLOAD + "/restore", json={"physical_address": address, "path": "p"})
    assert refused.status_code == 400


# ---- headers


@pytest.mark.parametrize(
    "value",
    ["x\r\nX-Evil: 1", "x\nX-Evil: 1", "x\r\n\r\n<script>", "é\r\nX-Evil: 1", "x\0y", "\u2028X-Evil: 1", "x" * 5000],
)
@pytest.mark.parametrize("where", ["value", "name", "content type", "checksum"])
def test_what_is_linked_or_staged_with_line_breaks_ends_no_header(service: Application, where: str, value: str) -> None:
    """By JSON anything can be sent; what no header can hold is left out of the headers and told by stat."""
    body: dict[str, Any] = {"physical_address": "s3://b/x", "checksum": "c", "size_bytes": 1, "metadata": {"a": "b"}}
    if where == "value":
        body["metadata"] = {"a": value}
    elif where == "name":
        body["metadata"] = {value: "b"}
    elif where == "content type":
        body["content_type"] = "text/plain" + value
    else:
        body["checksum"] = value
    staged = service("PUT", UPLOAD, params={"path": "p"}, json=body)
    assert staged.status_code in (201, 400), staged.text
    if staged.status_code == 201:
        head = service("HEAD", READ, params={"path": "p"})
        assert head.status_code == 200
        assert all(ord(" ") <= ord(char) < 127 for name, field in head.headers.items() for char in name + field)
        assert "x-evil" not in head.headers
        known = service("GET", STAT, params={"path": "p"}).json()
        assert known["metadata"] == body["metadata"]


@pytest.mark.parametrize(
    "sent", [b"text/html\x0bX", b"text/html; a=\xff", b"<script>", b"a/b/c", b"text/plain; " + b"x" * 300, b" "]
)
def test_a_content_type_that_is_none_is_refused(service: Application, sent: bytes) -> None:
    assert upload(service, headers=[(b"content-type", sent)]).status_code in (400, 201)
    shown = service("HEAD", READ, params={"path": "p"}).headers
    assert shown.get("content-type", "application/octet-stream") in ("application/octet-stream", "application/json")


def test_metadata_in_bytes_that_are_no_ascii_is_kept_out_of_headers(service: Application) -> None:
    answered = upload(service, headers=[(b"x-lakefs-meta-city", "Zürich".encode())])
    assert answered.status_code == 201
    assert "x-lakefs-meta-city" not in service("GET", READ, params={"path": "p"}).headers
    assert service("GET", STAT, params={"path": "p"}).json()["metadata"] == {"city": "Zürich"}


@pytest.mark.parametrize("sent", ["Zürich".encode(), "Zürich".encode("latin-1"), "東京".encode(), b"\xff\xfe"])
def test_metadata_in_a_header_is_what_was_meant(service: Application, sent: bytes) -> None:
    """Go's clients and curl send UTF-8, Python's latin-1."""
    meant = {"Zürich".encode("latin-1"): "Zürich", b"\xff\xfe": "ÿþ"}.get(sent) or sent.decode()
    assert upload(service, headers=[(b"x-lakefs-meta-city", sent)]).json()["metadata"] == {"city": meant}
    assert service("GET", STAT, params={"path": "p"}).json()["metadata"] == {"city": meant}


def test_metadata_that_is_too_much_is_refused(service: Application) -> None:
    headers = [(f"x-lakefs-meta-{number}".encode(), b"x" * 1000) for number in range(9)]
    assert upload(service, headers=headers).status_code == 400
    assert service("GET", STAT, params={"path": "p"}).status_code == 404


def test_metadata_cannot_pass_for_a_header_of_ours(service: Application) -> None:
    hostile = {
        "x-lakefs-meta-set-cookie": "a=b",
        "x-lakefs-meta-content-type": "text/html",
        "x-lakefs-meta-location": "http://evil",
    }
    assert upload(service, headers=hostile).status_code == 201
    shown = service("GET", READ, params={"path": "p"})
    assert not {"set-cookie", "location"} & set(shown.headers)
    assert shown.headers["content-type"] == "application/octet-stream"


def test_a_request_id_of_the_callers_ends_no_header(service: Application) -> None:
    for hostile in (b"a b", b"x" * 65, b"\xe9", b"<script>"):
        answered = service("GET", "/healthcheck", headers=[(b"x-request-id", hostile)])
        assert answered.headers["x-request-id"].encode() != hostile
    assert service("GET", "/healthcheck", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"


# ---- pages


@pytest.mark.parametrize("kind", ["text/html", "image/svg+xml", "application/xhtml+xml", "text/xml", "text/javascript"])
def test_an_uploaded_page_does_not_run_as_one_of_ours(service: Application, kind: str) -> None:
    assert upload(service, body=b"<script>alert(1)</script>", headers={"content-type": kind}).status_code == 201
    for method in ("GET", "HEAD"):
        shown = service(method, READ, params={"path": "p"}).headers
        assert shown["content-security-policy"] == "default-src 'none'; sandbox"
        assert shown["x-content-type-options"] == "nosniff"


def test_a_signed_url_shows_nothing_as_a_page(service: Application) -> None:
    upload(service, body=b"<script>alert(1)</script>", headers={"content-type": "text/html"})
    url = service("GET", READ, params={"path": "p", "presign": True}).headers["location"]
    shown = service("GET", url, auth=None).headers
    assert (shown["content-type"], shown["x-content-type-options"]) == ("application/octet-stream", "nosniff")
    assert "no-store" in shown["cache-control"]


def test_every_answer_says_that_it_is_what_it_says(service: Application) -> None:
    for url in (
        "/healthcheck",
        "/repositories",
        "/repositories/<script>",
        "/none",
        "http://lake.test/metrics",
        "http://lake.test/openapi.json",
    ):
        assert service("GET", url).headers["x-content-type-options"] == "nosniff", url


def test_what_the_caller_sent_comes_back_only_as_json(service: Application) -> None:
    for answered in (
        service("GET", "/repositories/<script>alert(1)<"),
        service("GET", READ, params={"path": "<script>"}),
        service("GET", "/repositories", params={"amount": "<script>"}),
    ):
        assert answered.status_code in (400, 404)
        assert answered.headers["content-type"] == "application/json"


# ---- origins


def test_a_page_of_another_origin_may_not_ask(service: Application) -> None:
    headers = {
        "origin": "https://evil.example",
        "access-control-request-method": "GET",
        "access-control-request-headers": "authorization",
    }
    preflight = service("OPTIONS", "/repositories", headers=headers, auth=None)
    assert preflight.status_code in (400, 403, 404, 405)
    for answered in (preflight, service("GET", "/repositories", headers={"origin": "https://evil.example"})):
        assert not [name for name in answered.headers if name.startswith("access-control-")]


def test_nothing_sets_a_cookie(service: Application) -> None:
    """So no other origin can use what a browser would send by itself."""
    login = service(
        "POST",
        "/auth/login",
        json={"access_key_id": "AKIATESTS", "secret_access_key": "a-secret-that-only-these-tests-know"},
    )
    assert login.status_code == 200
    assert "set-cookie" not in login.headers
