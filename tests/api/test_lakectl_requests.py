"""What `lakectl`, lakeFS's command-line client, asks of the service for each command, and what it needs of the answers.

These are requests written after lakectl's public source, not the program, which has not been run against it:
treeverse/lakeFS, `cmd/lakectl/cmd`, `pkg/api/helpers`, `pkg/local` and `pkg/diff` as of commit
25abed653d7d291016a34d95fc1d68eaedaa4561 (what follows
1.80.0), or as near to it as could be read; where an older release asks for something else, its version is named.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import httpx
import pytest

from refstore.operations import commit as commit_operation
from tests.api.conftest import KEY_ID, Running
from tests.api.lakectl import COMMIT, DIFF, MTIME, OBJECT, REF, REPOSITORY, STORAGE, Json, Lakectl, client_of, shaped
from tests.api.service import Application

PART_BYTES: Final = 64 << 10
"""`--part-size`, at its least."""


@pytest.fixture
def lakectl(embedded_service: Running) -> Iterator[Lakectl]:
    with client_of(embedded_service) as http:
        yield Lakectl(http)


@pytest.fixture
def repo(lakectl: Lakectl) -> str:
    """`lakectl repo create lakefs://NAME local://NAME`."""
    name = "l-" + secrets.token_hex(8)
    lakectl.begin("repo_create")
    asked = {
        "name": name,
        "storage_id": "",
        "storage_namespace": f"local://{name}",
        "default_branch": "main",
        "sample_data": False,
    }
    made = lakectl.ask(201, "POST", "/repositories", REPOSITORY, json=asked)
    assert (made["id"], made["default_branch"]) == (name, "main")
    return name


# ---- the installation


def test_what_every_command_asks_first_lets_it_go_on(lakectl: Lakectl) -> None:
    lakectl.begin("repo_list")
    storage = shaped(lakectl.config()["storage_config"], STORAGE)
    assert not storage["pre_sign_multipart_upload"]  # it would ask for parts, which are not to be had
    assert not storage["import_support"]
    assert (
        storage["import_validity_regex"] == ""
    )  # with any other `import` would blame its source, not hear that there is none


def test_doctor_tells_a_wrong_secret_from_a_wrong_address(embedded_service: Running, lakectl: Lakectl) -> None:
    lakectl.page("/repositories", REPOSITORY)
    with client_of(embedded_service, "not the secret") as http:
        assert "secret" in Lakectl(http).said(401, "GET", "/repositories")


def test_identity_is_the_access_key(lakectl: Lakectl) -> None:
    lakectl.begin("identity")
    user = lakectl.ask(200, "GET", "/user", {"user": dict})["user"]
    assert shaped(user, {"id": str, "creation_date": int})["id"] == KEY_ID


# ---- lakectl repo


@pytest.mark.parametrize(
    ("asked", "query", "status", "word"),
    [
        ({"storage_id": "other"}, {}, 400, "storage_id"),
        ({}, {"bare": True}, 501, "bare"),
    ],
)
def test_a_repository_that_could_not_be_what_was_asked_for_is_not_made(
    lakectl: Lakectl, asked: Json, query: Json, status: int, word: str
) -> None:
    name = "l-" + secrets.token_hex(8)
    body = {"name": name, "storage_namespace": f"local://{name}", "default_branch": "main"} | asked
    assert word in lakectl.said(status, "POST", "/repositories", query=query, json=body)
    assert lakectl.said(404, "GET", f"/repositories/{name}")


def test_a_repository_is_made_once_and_with_the_sample_data_that_it_says_is_included(lakectl: Lakectl) -> None:
    """`lakectl repo create lakefs://NAME local://NAME --sample-data`."""
    name = "l-" + secrets.token_hex(8)
    asked = {
        "name": name,
        "storage_id": "",
        "storage_namespace": f"local://{name}",
        "default_branch": "main",
        "sample_data": True,
    }
    lakectl.begin("repo_create")
    assert lakectl.ask(201, "POST", "/repositories", REPOSITORY, json=asked)["storage_namespace"] == f"local://{name}"
    assert [item["path"] for item in lakectl.listing(name, "main", prefix="", delimiter="/")] == [
        "README.md",
        "data/",
        "lakes.parquet",
    ]
    assert (
        lakectl.page(f"/repositories/{name}/refs/main/commits", COMMIT, after="", amount=1)[0][0]["message"]
        == "Add sample data"
    )
    assert "already exists" in lakectl.said(409, "POST", "/repositories", json=asked)


# ---- lakectl branch, tag


def test_branches_are_created_listed_shown_and_deleted(lakectl: Lakectl, repo: str) -> None:
    lakectl.begin("branch_create")
    commit = lakectl.branch(repo, "dev")
    branches = f"/repositories/{repo}/branches"
    assert "branch already exists" in lakectl.said(409, "POST", branches, json={"name": "dev", "source": "main"})
    (first,), pagination = lakectl.page(branches, REF, prefix="", after="", amount=1)
    assert (first, pagination["has_more"]) == ({"id": "dev", "commit_id": commit}, True)
    (second,), _ = lakectl.page(branches, REF, prefix="", after=pagination["next_offset"], amount=1)
    assert second["id"] == "main"
    assert lakectl.ask(200, "GET", f"{branches}/dev", REF)["commit_id"] == commit
    lakectl.call(204, "DELETE", f"{branches}/dev")
    assert "dev" in lakectl.said(404, "GET", f"{branches}/dev")


def test_a_revert_undoes_a_commit_and_asks_which_parent_of_a_merge(lakectl: Lakectl, repo: str) -> None:
    lakectl.branch(repo, "dev")
    lakectl.upload(repo, "a", b"body")
    first = lakectl.commit(repo, "first")["id"]
    revert = f"/repositories/{repo}/branches/main/revert"
    lakectl.begin("branch_revert")
    lakectl.call(204, "POST", revert, json={"parent_number": 0, "ref": first, "allow_empty": False})
    assert lakectl.listing(repo, "main", prefix="", delimiter="") == []
    assert "no changes" in lakectl.said(
        400, "POST", revert, json={"parent_number": 0, "ref": first, "allow_empty": False}
    )
    lakectl.call(204, "POST", revert, json={"parent_number": 0, "ref": first, "allow_empty": True})
    lakectl.ask(
        201,
        "POST",
        f"/repositories/{repo}/branches/dev/commits",
        COMMIT,
        json={"message": "on dev", "allow_empty": True},
    )
    merged = lakectl.merge(repo, "dev", allow_empty=True).json()["reference"]
    assert "parents" in lakectl.said(
        400, "POST", revert, json={"parent_number": 0, "ref": merged, "allow_empty": False}
    )


def test_a_cherry_pick_names_the_first_parent_unless_it_is_told(lakectl: Lakectl, repo: str) -> None:
    lakectl.branch(repo, "dev")
    lakectl.upload(repo, "a", b"body")
    picked = lakectl.commit(repo, "to be picked")
    lakectl.begin("cherry-pick")
    asked = {"ref": picked["id"], "parent_number": 1}
    made = lakectl.ask(201, "POST", f"/repositories/{repo}/branches/dev/cherry-pick", COMMIT, json=asked)
    assert (made["message"], len(made["parents"])) == ("to be picked", 1)
    assert lakectl.download(repo, "dev", "a") == b"body"


def test_tags_are_created_moved_by_force_listed_shown_and_deleted(lakectl: Lakectl, repo: str) -> None:
    tags = f"/repositories/{repo}/tags"
    first = lakectl.ask(201, "POST", tags, REF, json={"id": "v1", "ref": "main"})
    assert "tag already exists" in lakectl.said(409, "POST", tags, json={"id": "v1", "ref": "main"})
    assert "a branch is named 'main'" in lakectl.said(409, "POST", tags, json={"id": "main", "ref": "main"})
    branch = {"name": "v1", "source": "main"}
    assert "a tag is named 'v1'" in lakectl.said(409, "POST", f"/repositories/{repo}/branches", json=branch)
    second = lakectl.commit(repo, "second", allow_empty=True)["id"]
    lakectl.begin("tag_create")
    assert lakectl.ask(200, "GET", f"/repositories/{repo}/commits/main", COMMIT)["id"] == second
    lakectl.call(204, "DELETE", f"{tags}/v1")
    moved = lakectl.ask(201, "POST", tags, REF, json={"id": "v1", "ref": "main"})
    assert (first["commit_id"] != second, moved["commit_id"]) == (True, second)
    assert lakectl.page(tags, REF, prefix="", after="", amount=100)[0] == [moved]
    assert lakectl.ask(200, "GET", f"{tags}/v1", REF) == moved
    lakectl.call(204, "DELETE", f"{tags}/v1")
    assert "v1" in lakectl.said(404, "GET", f"{tags}/v1")


# ---- lakectl commit, log, show commit, diff, merge


def test_a_commit_has_what_is_printed_of_it(lakectl: Lakectl, repo: str) -> None:
    lakectl.upload(repo, "a", b"body")
    made = lakectl.commit(repo, "a message", metadata={"job": "7"}, date=1_700_000_000)
    assert (made["message"], made["metadata"], made["creation_date"]) == ("a message", {"job": "7"}, 1_700_000_000)
    body: Json = {"message": "again", "metadata": {}, "allow_empty": False}
    assert "no changes" in lakectl.said(400, "POST", f"/repositories/{repo}/branches/main/commits", json=body)
    lakectl.begin("show_commit")
    assert lakectl.ask(200, "GET", f"/repositories/{repo}/commits/{made['id']}", COMMIT)["id"] == made["id"]


def test_what_1_74_0_asks_before_it_commits_or_merges_sends_it_the_plain_way(lakectl: Lakectl, repo: str) -> None:
    """It goes on after a 501 that is JSON, and dies of a 404. Later ones look at `capabilities_config`; 1.74.2 mended a
    panic there.
    """
    body: Json = {"message": "m", "metadata": {}, "allow_empty": False}
    assert lakectl.said(501, "POST", f"/repositories/{repo}/branches/main/commits/async", json=body)
    assert lakectl.said(501, "POST", f"/repositories/{repo}/refs/dev/merge/main/async", json=body)


def test_a_log_takes_every_flag(lakectl: Lakectl, repo: str) -> None:
    ids: list[str] = []
    for number in range(4):
        lakectl.upload(repo, f"{'odd' if number % 2 else 'even'}/{number}", b"body")
        ids.append(lakectl.commit(repo, f"c{number}", date=1_700_000_000 + 60 * number)["id"])
    base = {"limit": False, "first_parent": False, "stop_at": ""}  # sent whether they were given or not
    where = f"/repositories/{repo}/refs/main/commits"

    def messages(amount: int, **flags: Any) -> list[str]:
        return [item["message"] for item in lakectl.page(where, COMMIT, after="", amount=amount, **base | flags)[0]]

    lakectl.begin("log")
    assert messages(1000) == ["c3", "c2", "c1", "c0", "Repository created"]
    assert messages(1000, objects=["odd/1", "even/2"]) == ["c2", "c1"]
    assert messages(1000, prefixes=["odd/"]) == ["c3", "c1"]
    assert messages(1000, stop_at=ids[2]) == ["c3", "c2"]
    assert messages(1000, since="2023-11-14T22:15:20Z") == ["c3", "c2"]
    assert messages(1000, since="2023-11-15T00:15:20+02:00") == ["c3", "c2"]
    assert messages(1000, first_parent=True, limit=True)[0] == "c3"
    results, pagination = lakectl.page(where, COMMIT, after=ids[3], amount=2, **base)
    assert ([item["message"] for item in results], pagination["has_more"]) == (["c2", "c1"], True)
    assert all(len(item["id"]) >= 8 for item in results)  # --dot cuts them there, without looking


def changes(lakectl: Lakectl, repo: str, left: str, right: str, **query: Any) -> list[tuple[str, str]]:
    """`StreamRepositoryDiffs`: three dots unless a type is given, pages of the size that the service likes."""
    found = lakectl.pages(
        f"/repositories/{repo}/refs/{left}/diff/{right}", DIFF, prefix=query.pop("prefix", ""), **query
    )
    return [(item["type"], item["path"]) for page in found for item in page]


def test_a_diff_of_refs_is_what_a_merge_would_do(lakectl: Lakectl, repo: str) -> None:
    for path in ("both", "gone", "same", "stays"):
        lakectl.upload(repo, path, b"base")
    lakectl.commit(repo, "base")
    lakectl.branch(repo, "dev")
    for path in ("both", "gone", "same"):  # on main: what dev meets
        lakectl.call(204, "DELETE", f"/repositories/{repo}/branches/main/objects", query={"path": path})
    lakectl.upload(repo, "both", b"main")
    lakectl.upload(repo, "only main", b"main")
    lakectl.commit(repo, "main")
    dev = f"/repositories/{repo}/branches/dev"
    for path in ("same", "stays"):
        lakectl.call(204, "DELETE", f"{dev}/objects", query={"path": path})
    for path in ("both", "dir/new"):
        lakectl.call(201, "POST", f"{dev}/objects", query={"path": path}, files={"content": (path, b"dev")})
    lakectl.ask(201, "POST", f"{dev}/commits", COMMIT, json={"message": "dev"})
    lakectl.begin("diff")
    three = [("conflict", "both"), ("added", "dir/new"), ("removed", "stays")]
    assert changes(lakectl, repo, "main", "dev") == three
    assert changes(lakectl, repo, "main", "dev", amount=1) == three
    assert changes(lakectl, repo, "main", "dev", prefix="dir/") == [("added", "dir/new")]
    two = [("changed", "both"), ("added", "dir/new"), ("added", "gone"), ("removed", "only main"), ("removed", "stays")]
    assert changes(lakectl, repo, "main", "dev", type="two_dot") == two
    assert changes(lakectl, repo, "main~1", "dev") == [
        ("changed", "both"),
        ("added", "dir/new"),
        ("removed", "same"),
        ("removed", "stays"),
    ]


def test_a_merge_answers_its_commit_and_is_told_from_a_conflict(lakectl: Lakectl, repo: str) -> None:
    lakectl.upload(repo, "a", b"base")
    lakectl.commit(repo, "base")
    lakectl.branch(repo, "dev")
    lakectl.call(
        201, "POST", f"/repositories/{repo}/branches/dev/objects", query={"path": "a"}, files={"content": ("a", b"dev")}
    )
    lakectl.ask(201, "POST", f"/repositories/{repo}/branches/dev/commits", COMMIT, json={"message": "dev"})
    lakectl.upload(repo, "a", b"main")
    lakectl.commit(repo, "main")
    base = lakectl.ask(
        200, "GET", f"/repositories/{repo}/refs/dev/merge/main",
        {"source_commit_id": str, "destination_commit_id": str, "base_commit_id": str},
    )  # fmt: skip
    assert base["base_commit_id"] == lakectl.ask(200, "GET", f"/repositories/{repo}/commits/main~1", COMMIT)["id"]
    shaped(lakectl.merge(repo, "dev", status=409).json(), {"reference": str})  # "Conflict found."
    merged = shaped(lakectl.merge(repo, "dev", strategy="source-wins").json(), {"reference": str})["reference"]
    assert lakectl.ask(200, "GET", f"/repositories/{repo}/commits/main", COMMIT)["id"] == merged
    assert lakectl.download(repo, "main", "a") == b"dev"
    assert "no changes" in str(lakectl.merge(repo, "dev", status=400).json()["message"])


def test_a_branch_that_others_keep_changing_is_not_called_a_conflict(
    asgi: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lakectl calls every 409 of a merge "Conflict found."; after a 503 it asks again by itself."""
    assert asgi("POST", "/repositories", json={"name": "lake", "storage_namespace": "mem://lake"}).status_code == 201
    asgi("POST", "/repositories/lake/branches", json={"name": "dev", "source": "main"})
    asgi("POST", "/repositories/lake/branches/dev/commits", json={"message": "m", "allow_empty": True})
    with monkeypatch.context() as never:
        never.setattr(commit_operation, "ATTEMPTS", 0)
        refused = asgi("POST", "/repositories/lake/refs/dev/merge/main", json={"allow_empty": True})
    assert (refused.status_code, refused.json()["code"], refused.headers["Retry-After"]) == (503, "contention", "1")
    assert asgi("POST", "/repositories/lake/refs/dev/merge/main", json={"allow_empty": True}).status_code == 200


# ---- lakectl fs


def test_a_listing_shows_folders_or_everything(lakectl: Lakectl, repo: str) -> None:
    paths = [f"dir/{number:03}" for number in range(120)] + ["top"]
    for path in paths:
        lakectl.upload(repo, path, b"x")
    lakectl.begin("fs_ls")
    shown = [(item["path_type"], item["path"]) for item in lakectl.listing(repo, "main", prefix="", delimiter="/")]
    assert shown == [("common_prefix", "dir/"), ("object", "top")]
    assert [item["path"] for item in lakectl.listing(repo, "main", prefix="", delimiter="")] == paths
    lakectl.begin("fs_rm")
    found = lakectl.pages(f"/repositories/{repo}/refs/main/objects/ls", OBJECT, prefix="dir/", delimiter="")
    for page in found:  # it goes on listing while others delete what was listed
        body = {"paths": [item["path"] for item in page]}
        assert (
            lakectl.ask(200, "POST", f"/repositories/{repo}/branches/main/objects/delete", {"errors": list}, json=body)[
                "errors"
            ]
            == []
        )
    assert [item["path"] for item in lakectl.listing(repo, "main", prefix="", delimiter="")] == ["top"]
    lakectl.call(204, "DELETE", f"/repositories/{repo}/branches/main/objects", query={"path": "top"})
    assert lakectl.listing(repo, "main", prefix="", delimiter="") == []


@pytest.mark.parametrize("body", [b"1,2\n", b""], ids=["some", "none"])
@pytest.mark.parametrize("kind", ["text/csv", ""], ids=["typed", "untyped"])
@pytest.mark.parametrize("signed", [False, True], ids=["direct", "signed"])
def test_an_upload_is_stated_and_read(lakectl: Lakectl, repo: str, body: bytes, kind: str, signed: bool) -> None:
    lakectl.begin("fs_upload")
    lakectl.config()
    upload = lakectl.upload_signed if signed else lakectl.upload
    told = upload(repo, "dir/a.csv", body, kind=kind)
    lakectl.begin("fs_stat")
    stats = lakectl.stat(repo, "main", "dir/a.csv")
    assert (stats["size_bytes"], stats["content_type"]) == (len(body), kind or "application/octet-stream")
    assert {name: told[name] for name in OBJECT} == {name: stats[name] for name in OBJECT}
    assert stats["checksum"] == hashlib.md5(body, usedforsecurity=False).hexdigest()
    assert (
        lakectl.download(repo, "main", "dir/a.csv") == lakectl.download(repo, "main", "dir/a.csv", presign=True) == body
    )
    assert type(lakectl.stat(repo, "main", "dir/a.csv", presign=True)["physical_address_expiry"]) is int


@pytest.mark.parametrize(
    ("path", "disposition", "kind"),
    [
        ("plain.csv", 'form-data; name="content"; filename="plain.csv"', "application/octet-stream"),
        ('a "quote"\\.csv', 'form-data; name="content"; filename="a \\"quote\\"\\\\.csv"', "application/octet-stream"),
        ("é+ü.csv", 'form-data; name="content"; filename="é+ü.csv"', "application/octet-stream"),
        ("plain.csv", "form-data; filename=plain.csv; name=content", "text/csv"),
        ("é.csv", "form-data; filename*=utf-8''%C3%A9.csv; name=content", "text/csv"),
    ],
)
def test_a_form_is_read_as_go_writes_it(lakectl: Lakectl, repo: str, path: str, disposition: str, kind: str) -> None:
    """By `CreateFormFile`, or, where a type is given, by `mime.FormatMediaType`: in another order, and without
    quotes.
    """
    boundary = secrets.token_hex(30)
    body = (
        f"--{boundary}\r\nContent-Disposition: {disposition}\r\nContent-Type: {kind}\r\n\r\n1,2\n\r\n--{boundary}--\r\n"
    ).encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    where = f"/repositories/{repo}/branches/main/objects"
    lakectl.call(
        201, "POST", where, query={"path": path}, content=iter([body[:9], body[9:]]), headers=headers
    )  # without a length
    assert lakectl.download(repo, "main", path) == b"1,2\n"
    assert lakectl.stat(repo, "main", path)["content_type"] == kind


@pytest.mark.server
@pytest.mark.slow
def test_on_s3_it_is_told_to_sign_and_the_store_does(redis_s3_service: Running) -> None:
    with client_of(redis_s3_service) as http:
        lakectl, name = Lakectl(http), "l-" + secrets.token_hex(8)
        storage = lakectl.config()["storage_config"]
        assert storage["pre_sign_support"]
        namespace = f"{storage['default_namespace_prefix']}/{name}"
        lakectl.ask(201, "POST", "/repositories", REPOSITORY, json={"name": name, "storage_namespace": namespace})
        for path, body, kind in (
            ("typed", b"1,2\n", "text/csv"),
            ("empty", b"", ""),
            ("large", secrets.token_bytes(3 * PART_BYTES), ""),
        ):
            told = lakectl.upload_signed(name, path, body, kind=kind, metadata={MTIME: "1600000000"})
            assert (told["size_bytes"], told["metadata"]) == (len(body), {MTIME: "1600000000"})
            assert lakectl.download(name, "main", path, presign=True) == body
        url = lakectl.stat(name, "main", "large", presign=True)["physical_address"]
        part = httpx.get(url, headers={"Range": f"bytes={PART_BYTES}-{2 * PART_BYTES - 1}"})
        assert (part.status_code, part.headers["Content-Length"]) == (206, str(PART_BYTES))


def test_a_large_download_comes_in_parts_of_a_signed_url(lakectl: Lakectl, repo: str) -> None:
    """`downloadPresignMultipart`: each part has to say how long it is."""
    body = secrets.token_bytes(2 * PART_BYTES + 100)
    lakectl.upload(repo, "large", body)
    lakectl.begin("fs_download")
    stats = lakectl.stat(repo, "main", "large", presign=True)
    found = b""
    for start in range(0, stats["size_bytes"], PART_BYTES):
        end = min(start + PART_BYTES, stats["size_bytes"])
        part = httpx.get(stats["physical_address"], headers={"Range": f"bytes={start}-{end - 1}"})
        assert (part.status_code, part.headers["Content-Length"]) == (206, str(end - start))
        found += part.content
    assert found == body


def test_a_recursive_download_lists_with_metadata_and_reads_each(lakectl: Lakectl, repo: str) -> None:
    bodies = {f"dir/{name}": name.encode() for name in ("a", "b", "sub/c")}
    for path, body in bodies.items():
        lakectl.upload(repo, path, body)
    lakectl.begin("fs_download")
    found = lakectl.listing(repo, "main", prefix="dir/", user_metadata=True, presign=False)
    assert {item["path"]: lakectl.download(repo, "main", item["path"]) for item in found} == bodies


def test_stage_looks_where_the_namespace_is_and_names_what_lies_outside(lakectl: Lakectl, repo: str) -> None:
    lakectl.begin("fs_stage")
    lakectl.ask(200, "GET", f"/repositories/{repo}", REPOSITORY)
    asked: Json = {
        "checksum": "c", "physical_address": "s3://elsewhere/key", "size_bytes": 7, "content_type": "", "metadata": {},
    }  # fmt: skip
    staged = lakectl.ask(
        201, "PUT", f"/repositories/{repo}/branches/main/objects", OBJECT, query={"path": "a"}, json=asked
    )
    assert (staged["physical_address"], staged["size_bytes"]) == ("s3://elsewhere/key", 7)


# ---- lakectl local, fs upload --recursive


class File(NamedTuple):
    body: bytes
    mtime: int


def modified(folder: dict[str, File], remote: list[Json]) -> list[tuple[str, str]]:
    """`DiffLocalWithHead`: a file is as it was if its size and the time that was kept with it are."""
    there = {item["path"]: item for item in remote}

    def kept(item: Json) -> int:
        return int(item.get("metadata", {}).get(MTIME, item["mtime"]))

    def kind(path: str) -> str:
        if path not in there:
            return "added"
        if path not in folder:
            return "removed"
        same = there[path]["size_bytes"] == len(folder[path].body) and kept(there[path]) == folder[path].mtime
        return "" if same else "modified"

    return [(kind(path), path) for path in sorted(there.keys() | folder.keys()) if kind(path)]


@pytest.mark.parametrize("signed", [False, True], ids=["direct", "signed"])
def test_a_folder_that_was_committed_has_no_changes_until_it_is_changed(
    lakectl: Lakectl, repo: str, signed: bool
) -> None:
    upload = lakectl.upload_signed if signed else lakectl.upload

    def remote(ref: str) -> list[Json]:
        return lakectl.listing(repo, ref, prefix="", user_metadata=True)

    def commit(folder: dict[str, File], head: str) -> str:
        """`local commit`."""
        lakectl.begin("local_commit")
        lakectl.config()
        assert lakectl.ask(200, "GET", f"/repositories/{repo}/branches/main", REF)["commit_id"] == head
        todo = modified(folder, remote(head))
        diff = f"/repositories/{repo}/branches/main/diff"
        assert lakectl.page(diff, DIFF, amount=1)[0] == []
        assert lakectl.page(diff, DIFF, amount=1, after=".0")[0] == []  # `hasExternalChange`, of the repository's root
        assert lakectl.said(404, "GET", f"/repositories/{repo}/refs/main/objects/stat", query={"path": ".0"})
        for kind, path in todo:
            if kind == "removed":
                lakectl.call(204, "DELETE", f"/repositories/{repo}/branches/main/objects", query={"path": path})
            else:
                upload(repo, path, folder[path].body, metadata={MTIME: str(folder[path].mtime)})
        body: Json = {"message": "from a folder", "metadata": {}}
        return str(lakectl.ask(201, "POST", f"/repositories/{repo}/branches/main/commits", COMMIT, json=body)["id"])

    lakectl.begin("local_init")
    empty = lakectl.ask(200, "GET", f"/repositories/{repo}/commits/main", COMMIT)["id"]
    folder = {"a": File(b"1", 1_600_000_001), "sub/b": File(b"22", 1_600_000_002), "none": File(b"", 1_600_000_003)}
    first = commit(folder, empty)
    lakectl.begin("local_status")
    assert modified(folder, remote(first)) == []
    assert changes(lakectl, repo, first, "main") == []
    folder["a"] = File(b"2", 1_600_000_004)
    del folder["none"]
    assert modified(folder, remote(first)) == [("modified", "a"), ("removed", "none")]
    second = commit(folder, first)
    assert modified(folder, remote(second)) == []
    lakectl.begin("local_clone")
    cloned = {
        item["path"]: File(
            lakectl.download(repo, second, item["path"]),
            int(lakectl.stat(repo, second, item["path"])["metadata"][MTIME]),
        )
        for item in remote(second)
    }
    assert cloned == folder
    lakectl.begin("local_checkout")
    assert changes(lakectl, repo, first, second) == [("changed", "a"), ("removed", "none")]


def test_permissions_and_links_are_kept_with_what_they_belong_to(lakectl: Lakectl, repo: str) -> None:
    """`lakectl local` with `posix_permissions` and `symlink_support`; a folder is an empty object whose path ends with
    a slash.
    """
    permissions = {
        MTIME: "1600000000",
        "::lakefs::posix-permissions": '{"UID":1000,"GID":1000,"Mode":493}',
        "owner": "sales",
    }
    link = {MTIME: "1600000000", "::lakefs::symlink-target": "../elsewhere"}
    lakectl.upload(repo, "folder/", b"", metadata=permissions)
    lakectl.upload(repo, "link", b"", metadata=link)
    found = {item["path"]: item["metadata"] for item in lakectl.listing(repo, "main", prefix="", user_metadata=True)}
    assert found == {"folder/": permissions, "link": link}
