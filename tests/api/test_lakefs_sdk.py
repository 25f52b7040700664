"""lakeFS's generated client: the routes that the high-level one has no word for."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import lakefs
import lakefs_sdk
import pytest
import urllib3
from lakefs_sdk import (
    ApiException,
    GarbageCollectionRule,
    GarbageCollectionRules,
    ObjectStageCreation,
    StagingLocation,
    StagingMetadata,
)
from lakefs_sdk.client import LakeFSClient

from refstore.service import access_keys
from tests.api.conftest import Running, client_of, upload_all

pytestmark = pytest.mark.filterwarnings("ignore:(GET|PUT|POST|DELETE) /.* is deprecated:DeprecationWarning")
"""lakeFS would have its older routes called no more; who calls them still gets an answer."""


def refused(status: int, call: Callable[[], Any]) -> str:
    """The message of the error that is answered."""
    with pytest.raises(ApiException) as raised:
        call()
    assert raised.value.status == status, raised.value
    return str(json.loads(raised.value.body)["message"])


def put(url: str, body: bytes) -> urllib3.BaseHTTPResponse:
    with urllib3.PoolManager() as pool:
        return pool.request("PUT", url, body=body)


def metadata_of(location: StagingLocation, body: bytes) -> StagingMetadata:
    return StagingMetadata(
        staging=location, size_bytes=len(body), checksum="told by the writer", user_metadata={"k": "v"}
    )


# ---- the installation


def test_health_setup_and_configuration(sdk: LakeFSClient) -> None:
    sdk.health_check_api.health_check()
    assert sdk.internal_api.get_setup_state().state == "initialized"
    config = sdk.config_api.get_config()
    assert config.version_config.version == sdk.internal_api.get_lake_fs_version().version
    assert config.storage_config == sdk.internal_api.get_storage_config()
    assert sdk.internal_api.get_garbage_collection_config().grace_period == 86_400


def test_what_lakefs_has_and_this_service_has_not_is_said(sdk: LakeFSClient, repo: lakefs.Repository) -> None:
    for call, word in [
        (lambda: sdk.pulls_api.list_pull_requests(repo.id), "pull requests"),
        (sdk.auth_api.list_users, "keys create"),
        (lambda: sdk.repositories_api.get_branch_protection_rules(repo.id), "protected"),
        (lambda: sdk.actions_api.list_repository_runs(repo.id), "hooks"),
        (lambda: sdk.experimental_api.hard_reset_branch(repo.id, "main", "main~1"), "revert"),
        (lambda: sdk.experimental_api.create_presign_multipart_upload(repo.id, "main", "a", parts=2), "multipart"),
    ]:
        assert word in refused(501, call)
    assert "no such route" in refused(
        404, lambda: sdk.repositories_api.api_client.call_api("/no/such/route", "GET", _host=None)
    )


# ---- objects


def test_a_form_upload_is_taken_as_a_raw_one_is(sdk: LakeFSClient, repo: lakefs.Repository, tmp_path: Path) -> None:
    body = secrets.token_bytes(3_000_000)
    (tmp_path / "file").write_bytes(body)
    stats = sdk.objects_api.upload_object(repo.id, "main", "form", content=str(tmp_path / "file"))
    assert stats.size_bytes == len(body)
    assert bytes(sdk.objects_api.get_object(repo.id, "main", "form")) == body
    assert "already" in refused(
        412, lambda: sdk.objects_api.upload_object(repo.id, "main", "form", if_none_match="*", content=b"other")
    )


def test_an_object_answers_with_a_range_and_with_its_headers(sdk: LakeFSClient, repo: lakefs.Repository) -> None:
    repo.branch("main").object("digits").upload(
        b"0123456789", metadata={"owner": "sales"}, content_type="text/plain", pre_sign=False
    )
    answered = sdk.objects_api.get_object_with_http_info(repo.id, "main", "digits", range="bytes=2-4")
    assert (answered.status_code, bytes(answered.data)) == (206, b"234")
    assert answered.headers["Content-Range"] == "bytes 2-4/10"
    assert answered.headers["Content-Type"] == "text/plain"
    assert answered.headers["x-lakefs-meta-owner"] == "sales"
    assert "range" in refused(416, lambda: sdk.objects_api.get_object(repo.id, "main", "digits", range="bytes=10-"))
    head = sdk.objects_api.head_object_with_http_info(repo.id, "main", "digits")
    assert head.headers["Content-Length"] == "10"
    etag = head.headers["ETag"]
    with pytest.raises(ApiException) as unchanged:
        sdk.objects_api.get_object(repo.id, "main", "digits", if_none_match=etag)
    assert unchanged.value.status == 304
    assert sdk.objects_api.get_underlying_properties(repo.id, "main", "digits") is not None


def test_many_deletions_answer_for_those_that_could_not_be(
    sdk: LakeFSClient, repo: lakefs.Repository, main: lakefs.Branch
) -> None:
    upload_all(main, ["a", "b"])
    answered = sdk.objects_api.delete_objects(repo.id, "main", lakefs_sdk.PathList(paths=["a", "../b", "b"]))
    assert [(error.path, error.status_code) for error in answered.errors] == [("../b", 400)]
    assert list(main.objects()) == []


def test_more_paths_than_one_request_may_have_are_refused(sdk: LakeFSClient, repo: lakefs.Repository) -> None:
    paths = lakefs_sdk.PathList(paths=[str(number) for number in range(1001)])
    assert "1000" in refused(400, lambda: sdk.objects_api.delete_objects(repo.id, "main", paths))


def test_an_upload_is_allowed_or_not_before_it_is_made(
    sdk: LakeFSClient, service: Running, repo: lakefs.Repository
) -> None:
    sdk.internal_api.upload_object_preflight(repo.id, "main", "a")
    refused(404, lambda: sdk.internal_api.upload_object_preflight(repo.id, "nowhere", "a"))
    with service.open() as lake:
        made = access_keys.create_key(lake, access_keys.Role.READER)
    reader = client_of(service, made.key.id, made.secret).sdk_client
    assert "writer" in refused(403, lambda: reader.internal_api.upload_object_preflight(repo.id, "main", "a"))


# ---- what lies outside


def test_an_object_outside_is_staged_and_never_read(
    sdk: LakeFSClient, repo: lakefs.Repository, main: lakefs.Branch
) -> None:
    staged = sdk.internal_api.stage_object(
        repo.id,
        "main",
        "outside",
        ObjectStageCreation(physical_address="s3://elsewhere/key", checksum="c", size_bytes=7, mtime=1_700_000_000),
    )
    assert (staged.physical_address, staged.size_bytes, staged.mtime) == ("s3://elsewhere/key", 7, 1_700_000_000)
    main.commit("names it")
    assert main.object("outside").stat().physical_address == "s3://elsewhere/key"
    assert "import_from" in refused(403, lambda: sdk.objects_api.get_object(repo.id, "main", "outside"))


def test_an_object_inside_the_namespace_is_not_staged(
    sdk: LakeFSClient, repo: lakefs.Repository, main: lakefs.Branch
) -> None:
    inside = main.object("a").upload("x").stat().physical_address
    for address in (inside, f"{repo.properties.storage_namespace}/data/whatever"):
        body = ObjectStageCreation(physical_address=address, checksum="c", size_bytes=1)
        assert "namespace" in refused(400, lambda body=body: sdk.internal_api.stage_object(repo.id, "main", "b", body))
    assert [found.path for found in main.objects()] == ["a"]


# ---- issued addresses


def test_an_issued_address_is_written_elsewhere_and_linked_once(
    sdk: LakeFSClient, repo: lakefs.Repository, main: lakefs.Branch
) -> None:
    location = sdk.staging_api.get_physical_address(repo.id, "main", "linked", presign=True)
    assert put(location.presigned_url, b"body").status == 200
    linked = sdk.staging_api.link_physical_address(repo.id, "main", "linked", metadata_of(location, b"body"))
    assert (linked.size_bytes, linked.metadata) == (4, {"k": "v"})
    assert main.object("linked").reader("r").read() == "body"
    main.commit("linked")
    assert "linked" in refused(
        409, lambda: sdk.staging_api.link_physical_address(repo.id, "main", "linked", metadata_of(location, b"body"))
    )


def test_an_address_without_a_signed_url_is_written_by_who_reaches_the_store(
    sdk: LakeFSClient, service: Running, repo: lakefs.Repository, main: lakefs.Branch
) -> None:
    location = sdk.staging_api.get_physical_address(repo.id, "main", "by hand")
    assert location.presigned_url is None
    bare = location.physical_address.partition("?")[0]
    with service.open() as lake:
        lake.repository(repo.id).context.objects.put(
            bare.removeprefix(f"{repo.properties.storage_namespace}/"), b"by hand"
        )
    sdk.staging_api.link_physical_address(repo.id, "main", "by hand", metadata_of(location, b"by hand"))
    assert main.object("by hand").stat().physical_address == bare  # what is kept has no token in it
    assert main.object("by hand").reader("r").read() == "by hand"


def test_an_issued_address_is_good_for_its_path_and_its_branch_only(sdk: LakeFSClient, repo: lakefs.Repository) -> None:
    repo.branch("other").create("main")
    location = sdk.staging_api.get_physical_address(repo.id, "main", "mine", presign=True)
    put(location.presigned_url, b"x")
    link = sdk.staging_api.link_physical_address
    refused(400, lambda: link(repo.id, "main", "yours", metadata_of(location, b"x")))
    refused(400, lambda: link(repo.id, "other", "mine", metadata_of(location, b"x")))
    link(repo.id, "main", "mine", metadata_of(location, b"x"))


def test_an_address_that_was_never_written_is_not_linked(
    sdk: LakeFSClient, repo: lakefs.Repository, main: lakefs.Branch
) -> None:
    location = sdk.staging_api.get_physical_address(repo.id, "main", "never")
    refused(404, lambda: sdk.staging_api.link_physical_address(repo.id, "main", "never", metadata_of(location, b"x")))
    assert list(main.objects()) == []


def test_an_address_whose_token_was_taken_off_or_forged_is_not_linked(
    sdk: LakeFSClient, repo: lakefs.Repository
) -> None:
    location = sdk.staging_api.get_physical_address(repo.id, "main", "a", presign=True)
    put(location.presigned_url, b"x")
    bare, _, token = location.physical_address.partition("?token=")
    claims = jwt.decode(token, options={"verify_signature": False})
    unsigned = jwt.encode(claims, None, algorithm="none", headers={"kid": jwt.get_unverified_header(token)["kid"]})
    other = jwt.encode(
        claims, secrets.token_bytes(32), algorithm="HS256", headers={"kid": jwt.get_unverified_header(token)["kid"]}
    )
    for address in (bare, f"{bare}?token=", f"{bare}?token={unsigned}", f"{bare}?token={other}"):
        given = metadata_of(StagingLocation(physical_address=address), b"x")
        assert "token" in refused(
            400, lambda given=given: sdk.staging_api.link_physical_address(repo.id, "main", "a", given)
        )
    sdk.staging_api.link_physical_address(repo.id, "main", "a", metadata_of(location, b"x"))


def test_a_link_may_ask_that_nothing_is_there(sdk: LakeFSClient, repo: lakefs.Repository, main: lakefs.Branch) -> None:
    location = sdk.staging_api.get_physical_address(repo.id, "main", "a", presign=True)
    put(location.presigned_url, b"linked")
    main.object("a").upload("first")
    link = sdk.staging_api.link_physical_address
    refused(412, lambda: link(repo.id, "main", "a", metadata_of(location, b"linked"), if_none_match="*"))
    assert main.object("a").reader("r").read() == "first"


# ---- collection


def test_rules_are_set_shown_and_taken_away(sdk: LakeFSClient, repo: lakefs.Repository) -> None:
    api = sdk.repositories_api
    refused(404, lambda: api.get_gc_rules(repo.id))
    rules = GarbageCollectionRules(
        default_retention_days=21, branches=[GarbageCollectionRule(branch_id="main", retention_days=28)]
    )
    sdk.internal_api.set_garbage_collection_rules_preflight(repo.id)
    api.set_gc_rules(repo.id, rules)
    assert api.get_gc_rules(repo.id) == sdk.internal_api.internal_get_garbage_collection_rules(repo.id) == rules
    api.delete_gc_rules(repo.id)
    refused(404, lambda: api.get_gc_rules(repo.id))
    sdk.internal_api.internal_set_garbage_collection_rules(repo.id, rules)
    assert api.get_gc_rules(repo.id) == rules
    sdk.internal_api.internal_delete_garbage_collection_rules(repo.id)
    refused(404, lambda: api.get_gc_rules(repo.id))


def _read(service: Running, repo: lakefs.Repository, location: str) -> bytes:
    with service.open() as lake:
        return b"".join(
            lake.repository(repo.id).context.objects.get(location.removeprefix(f"{repo.properties.storage_namespace}/"))
        )
