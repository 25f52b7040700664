"""`lakectl` as calls: the requests of its commands, each with what it needs of the answer. See test_lakectl_requests.py
for where they are from.

lakectl takes one status for each call and dies of any other; and it is written in Go, so what a template or a pointer
reaches for without looking has to be there: a `Shape` says what.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

import httpx

from tests.api.conftest import KEY_ID, SECRET, Running

VERSION: Final = "1.80.0"
Shape = dict[str, type]
Json = dict[str, Any]

PAGINATION: Final[Shape] = {"has_more": bool, "next_offset": str, "results": int, "max_per_page": int}
REPOSITORY: Final[Shape] = {"id": str, "creation_date": int, "default_branch": str, "storage_namespace": str}
REF: Final[Shape] = {"id": str, "commit_id": str}
COMMIT: Final[Shape] = {
    "id": str, "parents": list, "committer": str, "message": str, "creation_date": int, "meta_range_id": str,
    "metadata": dict,
}  # fmt: skip
OBJECT: Final[Shape] = {
    "path": str, "path_type": str, "physical_address": str, "checksum": str, "mtime": int, "size_bytes": int,
    "content_type": str,
}  # fmt: skip
COMMON_PREFIX: Final[Shape] = {"path": str, "path_type": str}
DIFF: Final[Shape] = {"type": str, "path": str, "path_type": str}
STORAGE: Final[Shape] = {
    "blockstore_type": str, "blockstore_namespace_example": str, "blockstore_namespace_ValidityRegex": str,
    "pre_sign_support": bool,
    "pre_sign_support_ui": bool, "import_support": bool, "import_validity_regex": str,
    "pre_sign_multipart_upload": bool,
}  # fmt: skip
ERROR: Final[Shape] = {"message": str}

MTIME: Final = "::lakefs::client-mtime"


def shaped(found: Any, shape: Shape) -> Json:
    """Every field that lakectl reaches for is there, as what Go decodes it into."""
    assert {name: type(found.get(name)) for name in shape} == shape, found
    return dict(found)


class Lakectl(NamedTuple):
    """Commands as calls. Each begins with what all of them send."""

    http: httpx.Client

    def call(
        self, status: int, method: str, path: str, *, query: Json | None = None, json: Json | None = None, **more: Any
    ) -> httpx.Response:
        """Dies of any other status (`DieOnErrorOrUnexpectedStatusCode`). Go writes booleans as words."""
        params = {
            name: str(value).lower() if isinstance(value, bool) else value for name, value in (query or {}).items()
        }
        answered = self.http.request(method, path, params=params, json=json, **more)
        assert answered.status_code == status, answered.text
        return answered

    def ask(
        self, status: int, method: str, path: str, shape: Shape, *, query: Json | None = None, json: Json | None = None
    ) -> Json:
        """What is only decoded if its type says that it is JSON."""
        answered = self.call(status, method, path, query=query, json=json)
        assert "json" in answered.headers["content-type"]
        return shaped(answered.json(), shape)

    def page(self, path: str, shape: Shape, **query: Any) -> tuple[list[Json], Json]:
        found = self.ask(200, "GET", path, {"pagination": dict, "results": list}, query=query)
        return [shaped(item, shape) for item in found["results"]], shaped(found["pagination"], PAGINATION)

    def pages(self, path: str, shape: Shape, **query: Any) -> Iterator[list[Json]]:
        """All of them, as every loop of lakectl does it: `after` is sent from the first on, empty."""
        after, more = "", True
        while more:
            results, pagination = self.page(path, shape, after=after, **query)
            yield results
            after, more = pagination["next_offset"], pagination["has_more"]

    def begin(self, command: str) -> None:
        """`sendStats` and `checkServerIsEnterprise`: at every command."""
        self.call(204, "POST", "/statistics", json={"events": [{"class": "lakectl", "name": command, "count": 1}]})
        assert self.http.get("/license").status_code not in (
            200,
            429,
            500,
            503,
        )  # 200 is a warning, the others it asks again

    def config(self) -> Json:
        """`getStorageConfigOrDie`, `lakectl --version`, and what `commit` and `merge` look at before they begin."""
        found = self.ask(
            200, "GET", "/config", {"version_config": dict, "storage_config": dict, "capabilities_config": dict}
        )
        assert "storage_config_list" not in found  # of several it wants the repository's own
        shaped(found["version_config"], {"version": str})
        return found

    # ---- lakectl fs

    def upload(
        self, repo: str, path: str, body: bytes, *, kind: str = "", metadata: dict[str, str] | None = None
    ) -> Json:
        """`ClientUpload`: a form with one part; lakeFS's own metadata under a header's name of its own."""
        own = len("::lakefs::")
        headers = {
            f"x-lakefs-internal-{name[own:]}" if name.startswith("::lakefs::") else f"x-lakefs-meta-{name}": value
            for name, value in (metadata or {}).items()
        }
        part = (PurePosixPath(path).name, body, kind or "application/octet-stream")
        where = f"/repositories/{repo}/branches/main/objects"
        return shaped(
            self.call(201, "POST", where, query={"path": path}, files={"content": part}, headers=headers).json(), OBJECT
        )

    def upload_signed(
        self, repo: str, path: str, body: bytes, *, kind: str = "", metadata: dict[str, str] | None = None
    ) -> Json:
        """`ClientUploadPreSign`, without the parts that `pre_sign_multipart_upload` would ask for."""
        backing = f"/repositories/{repo}/branches/main/staging/backing"
        given = self.ask(
            200, "GET", backing, {"physical_address": str, "presigned_url": str}, query={"path": path, "presign": True}
        )
        headers = {"Content-Type": kind} if kind else {}
        put = httpx.put(given["presigned_url"], content=body, headers=headers)
        assert put.status_code == 200, put.text
        etag = put.headers["ETag"].strip('" ')
        assert etag
        known = {
            name: given[name] for name in ("physical_address", "presigned_url", "presigned_url_expiry") if name in given
        }
        linked: Json = {
            "checksum": etag, "size_bytes": len(body), "staging": known, "user_metadata": metadata or {},
            "content_type": kind,
        }  # fmt: skip
        return self.ask(200, "PUT", backing, OBJECT, query={"path": path}, json=linked)

    def stat(self, repo: str, ref: str, path: str, *, presign: bool = False) -> Json:
        query = {"path": path, "presign": presign, "user_metadata": True}
        return self.ask(200, "GET", f"/repositories/{repo}/refs/{ref}/objects/stat", OBJECT, query=query)

    def download(self, repo: str, ref: str, path: str, *, presign: bool = False) -> bytes:
        """`downloadObject`; Go follows where it is sent."""
        query = {"path": path, "presign": presign}
        found = self.call(200, "GET", f"/repositories/{repo}/refs/{ref}/objects", query=query, follow_redirects=True)
        assert len(found.content) == int(found.headers["content-length"])
        return found.content

    def listing(self, repo: str, ref: str, **query: Any) -> list[Json]:
        found = self.pages(f"/repositories/{repo}/refs/{ref}/objects/ls", COMMON_PREFIX, **query)
        return [
            item if item["path_type"] == "common_prefix" else shaped(item, OBJECT) for page in found for item in page
        ]

    # ---- others

    def commit(self, repo: str, message: str, *, branch: str = "main", **more: Any) -> Json:
        self.begin("commit")
        assert self.config()["capabilities_config"] == {"async_ops": False}
        body: Json = {"message": message, "metadata": {}, "allow_empty": False, **more}
        return self.ask(201, "POST", f"/repositories/{repo}/branches/{branch}/commits", COMMIT, json=body)

    def merge(self, repo: str, source: str, *, status: int = 200, **more: Any) -> httpx.Response:
        self.begin("merge")
        self.config()
        body: Json = {
            "message": "",
            "metadata": {},
            "strategy": "",
            "force": False,
            "allow_empty": False,
            "squash_merge": False,
            **more,
        }
        return self.call(status, "POST", f"/repositories/{repo}/refs/{source}/merge/main", json=body)

    def branch(self, repo: str, name: str) -> str:
        answered = self.call(201, "POST", f"/repositories/{repo}/branches", json={"name": name, "source": "main"})
        return answered.text

    def said(self, status: int, method: str, path: str, *, query: Json | None = None, json: Json | None = None) -> str:
        """What the user reads of a refusal: nothing but the status, if the body is not an error's."""
        return str(self.ask(status, method, path, ERROR, query=query, json=json)["message"])


def client_of(running: Running, secret: str = SECRET) -> httpx.Client:
    headers = {"User-Agent": f"lakectl/{VERSION}/linux/6.1/x86_64", "Accept": "*/*", "Accept-Encoding": "gzip"}
    return httpx.Client(base_url=f"{running.url}/api/v1", auth=(KEY_ID, secret), headers=headers, timeout=60)
