"""Refuse the routes of lakeFS that this service does not have. Clients would take a "not found" for an answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from fastapi import APIRouter
from starlette.responses import Response

from refstore_api.auth import Reader
from refstore_api.encoded_slashes import EncodedNameRoute
from refstore_http.http_errors import NotSupported

router = APIRouter(route_class=EncodedNameRoute)

METHODS: Final = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
_REPO: Final = "/repositories/{repository}"
_USERS: Final = "users, groups and policies are not kept here; make access keys with: refstore keys create"
_RANGES: Final = "metaranges are not served; list a commit's objects, or diff two commits"
_DUMP: Final = "refs are not dumped or restored through the API; back up the KV"
_COLLECTOR: Final = (
    "lakeFS's own collector cannot delete here: it does not know what refstore protects; run `refstore gc run` instead"
)
_ASYNC: Final = (
    "this call does not run in the background; make the request without /async or /status, and wait for its answer"
)

UNSUPPORTED: Final[tuple[tuple[str, str], ...]] = (
    # `lakectl commit` and `merge` of 1.74.0 try these first; they continue after a 501, and fail after a 404
    (_REPO + "/branches/{branch}/commits/async{rest:path}", _ASYNC),
    (_REPO + "/refs/{source_ref}/merge/{destination_branch}/async{rest:path}", _ASYNC),
    (_REPO + "/gc/prepare_commits{rest:path}", _COLLECTOR),
    (_REPO + "/gc/prepare_uncommited", _COLLECTOR),  # lakeFS's spelling
    (
        _REPO + "/branches/{branch}/hard_reset",
        "a branch is not moved to another commit; revert commits, or make another branch",
    ),
    (
        _REPO + "/branches/{branch}/staging/pmpu{rest:path}",
        "there are no presigned multipart uploads; upload the object in one request",
    ),
    (
        _REPO + "/branches/{branch}/objects/stat/user_metadata",
        "the metadata of an object is not changed; upload or link it again",
    ),
    (
        _REPO + "/branch_protection{rest:path}",
        "branches are not protected by rules; give access keys a role and repositories",
    ),
    (
        _REPO + "/settings/branch_protection",
        "branches are not protected by rules; give access keys a role and repositories",
    ),
    (_REPO + "/pulls{rest:path}", "there are no pull requests; merge the branch"),
    (
        _REPO + "/actions{rest:path}",
        "there are no actions or hooks; call what should happen from the program that commits",
    ),
    (_REPO + "/commits", "commits are not made from records; commit a branch"),
    (_REPO + "/refs/dump", _DUMP),
    (_REPO + "/refs/restore", _DUMP),
    (_REPO + "/dump", _DUMP),
    (_REPO + "/restore", _DUMP),
    (_REPO + "/refs/{branch}/symlink", "there are no symlink files; list the objects with presign=true"),
    (_REPO + "/metadata/{kind}/{id}", _RANGES),
    (_REPO + "/metadata/object/{kind}/{id}", _RANGES),
    ("/auth/users{rest:path}", _USERS),
    ("/auth/groups{rest:path}", _USERS),
    ("/auth/policies{rest:path}", _USERS),
    ("/auth/external{rest:path}", "no other identity provider is known here; log in with an access key"),
    ("/auth/get-token{rest:path}", "there is no login in a browser; configure an access key"),
    ("/sts/login", "no other identity provider is known here; log in with an access key"),
    ("/license", "there is no licence to show; nothing here needs one"),
    ("/usage-report/summary", "usage is not counted; /metrics has what this process answered"),
)
"""Each path, and what to do instead."""


def _make_refusal(why: str) -> Callable[[Reader], Awaitable[Response]]:
    async def refuse(_call: Reader) -> Response:
        raise NotSupported(why)

    return refuse


for _path, _why in UNSUPPORTED:
    router.add_api_route(_path, _make_refusal(_why), methods=METHODS, include_in_schema=False)
