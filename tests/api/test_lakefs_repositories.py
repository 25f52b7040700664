"""lakeFS's high-level client: the installation, repositories, and who may come in."""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lakefs
import pytest
from lakefs.client import Client
from lakefs.exceptions import (
    BadRequestException,
    ConflictException,
    NotAuthorizedException,
    NotFoundException,
    ServerException,
)
from lakefs_sdk import ApiException
from lakefs_sdk.client import LakeFSClient

from refstore.configuration.settings import embedded_urls
from tests.api.conftest import Running, client_of, serving


def test_the_client_learns_version_and_storage(client: Client, service: Running) -> None:
    assert [int(part) for part in client.version.split(".")] >= [
        1,
        3,
        1,
    ]  # what lakefs-spec wants before it touches a file
    storage = client.storage_config
    assert storage.blockstore_type == ("s3" if service.objects.startswith("s3:") else "local")
    assert storage.pre_sign_support == service.objects.startswith("s3:")
    assert not storage.import_support


def test_a_repository_is_what_it_was_created_as(repo: lakefs.Repository, client: Client) -> None:
    properties = lakefs.Repository(repo.id, client).properties
    assert properties == repo.properties
    assert (properties.id, properties.default_branch) == (repo.id, "main")
    assert properties.storage_namespace.endswith(f"/{repo.id}")
    assert [branch.id for branch in repo.branches()] == ["main"]
    assert repo.branch("main").get_commit().message == "Repository created"
    assert repo.branch("main").get_commit().metadata == {}


@pytest.mark.parametrize("given", ["local://{name}", "local://team/a/{name}", "local://{name}/"])
def test_a_namespace_comes_back_as_it_was_given(embedded_service: Running, given: str) -> None:
    """And what is stored below it is shown below it: nobody learns where the server keeps it on its disk."""
    with embedded_service.http() as http:
        name = "t-" + secrets.token_hex(8)
        given = given.replace("{name}", name)
        made = http.post("/repositories", json={"name": name, "storage_namespace": given})
        assert made.status_code == 201
        listed = http.get("/repositories", params={"prefix": name}).json()["results"]
        assert [made.json()["storage_namespace"], listed[0]["storage_namespace"]] == [given] * 2
        assert http.get(f"/repositories/{name}").json()["storage_namespace"] == given
        branch = f"/repositories/{name}/branches/main"
        stored = http.post(f"{branch}/objects", params={"path": "a"}, content=b"x").json()["physical_address"]
        location = http.get(f"{branch}/staging/backing", params={"path": "b", "presign": True}).json()
        assert stored.startswith(f"{given.rstrip('/')}/data/")
        assert location["physical_address"].startswith(f"{given.rstrip('/')}/data/")
        assert http.put(location["presigned_url"], content=b"yy").status_code == 200
        linked = http.put(
            f"{branch}/staging/backing",
            params={"path": "b"},
            json={"staging": location, "checksum": "", "size_bytes": 2},
        )
        assert linked.json()["physical_address"] == location["physical_address"].partition("?")[0]
        staged = http.put(
            f"{branch}/objects",
            params={"path": "c"},
            json={"physical_address": stored, "checksum": "", "size_bytes": 1},
        )
        assert (staged.status_code, "namespace" in staged.json()["message"]) == (400, True)
        named = http.get(f"/repositories/{name}/addresses", params={"physical_address": stored}).json()
        assert (named["physical_address"], [reference["path"] for reference in named["references"]]) == (stored, ["a"])


def test_a_repository_is_created_once(repo: lakefs.Repository, client: Client) -> None:
    namespace = f"{client.storage_config.default_namespace_prefix}/{repo.id}"
    with pytest.raises(ConflictException):
        lakefs.Repository(repo.id, client).create(namespace)
    assert lakefs.Repository(repo.id, client).create(namespace, exist_ok=True).properties == repo.properties


def test_a_repository_has_the_default_branch_it_was_asked_for(client: Client) -> None:
    name = "t-" + secrets.token_hex(8)
    made = lakefs.Repository(name, client).create(
        f"{client.storage_config.default_namespace_prefix}/{name}", default_branch="trunk"
    )
    assert made.properties.default_branch == "trunk"
    assert [branch.id for branch in made.branches()] == ["trunk"]


def test_a_repository_that_could_not_be_what_was_asked_for_is_not_made(client: Client, sdk: LakeFSClient) -> None:
    from lakefs_sdk import RepositoryCreation

    name = "t-" + secrets.token_hex(8)
    where = f"{client.storage_config.default_namespace_prefix}/{name}"
    with pytest.raises(ServerException) as bare:
        lakefs.Repository(name, client).create(where, bare=True)
    with pytest.raises(ApiException) as read_only:
        sdk.repositories_api.create_repository(RepositoryCreation(name=name, storage_namespace=where, read_only=True))
    assert (bare.value.status_code, read_only.value.status) == (501, 501)
    assert list(lakefs.repositories(client, prefix=name)) == []


@pytest.mark.parametrize(
    "where", ["local://../up", "s3://bucket/x?endpoint=http://127.0.0.1:1", "gs://bucket/x", "https://example.org/x"]
)
def test_a_namespace_that_the_service_does_not_keep_is_refused(client: Client, where: str) -> None:
    with pytest.raises(BadRequestException):
        lakefs.Repository("t-" + secrets.token_hex(8), client).create(where)


def test_repositories_are_listed_by_prefix_page_by_page(client: Client) -> None:
    base = "t-" + secrets.token_hex(6)
    names = [f"{base}-{number}" for number in range(5)]
    for name in names:
        lakefs.Repository(name, client).create(f"{client.storage_config.default_namespace_prefix}/{name}")
    assert [found.id for found in lakefs.repositories(client, prefix=base, amount=2)] == names
    assert [found.id for found in lakefs.repositories(client, prefix=base, after=names[2])] == names[3:]
    assert [found.id for found in lakefs.repositories(client, search=base[3:])] == names


def test_a_deleted_repository_is_gone(repo: lakefs.Repository, client: Client) -> None:
    repo.delete()
    with pytest.raises(NotFoundException):
        _ = lakefs.Repository(repo.id, client).properties
    with pytest.raises(NotFoundException):
        repo.delete()
    assert repo.id not in {found.id for found in lakefs.repositories(client, prefix=repo.id)}


def test_metadata_of_a_repository_is_set_and_removed(repo: lakefs.Repository, sdk: LakeFSClient) -> None:
    from lakefs_sdk import RepositoryMetadataKeys, RepositoryMetadataSet

    assert repo.metadata == {}
    sdk.internal_api.set_repository_metadata(repo.id, RepositoryMetadataSet(metadata={"owner": "sales", "tier": "1"}))
    assert repo.metadata == {"owner": "sales", "tier": "1"}
    sdk.internal_api.delete_repository_metadata(repo.id, RepositoryMetadataKeys(keys=["tier", "never there"]))
    assert repo.metadata == {"owner": "sales"}


def test_branches_and_tags_are_listed_in_order_by_prefix_and_page_by_page(repo: lakefs.Repository) -> None:
    for number in range(7):
        repo.tag(f"v{number}").create(repo.branch(f"b{number}").create("main"))
    repo.branch("other").create("main")
    assert [found.id for found in repo.branches()] == [*(f"b{number}" for number in range(7)), "main", "other"]
    assert [found.id for found in repo.branches(prefix="b", after="b3", amount=2)] == ["b4", "b5", "b6"]
    assert [found.id for found in repo.tags(amount=2)] == [f"v{number}" for number in range(7)]
    assert [found.id for found in repo.tags(max_amount=2, after="v0")] == ["v1", "v2"]
    assert [found.id for found in repo.tags(prefix="w")] == []


def test_several_workers_answer_on_one_port(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    with serving(tmp_path, *embedded_urls(tmp_path / "lake"), "--workers", "2", "--no-reaper") as running:
        branch = lakefs.Repository("shared", client_of(running)).create("local://shared").branch("main")
        paths = [f"{number:02}" for number in range(20)]
        with ThreadPoolExecutor(4) as together:  # each thread has its own connections, so both workers have some
            list(
                together.map(
                    lambda path: lakefs.Branch("shared", "main", client_of(running)).object(path).upload(path), paths
                )
            )
        assert [found.path for found in branch.objects(amount=7)] == paths


@pytest.mark.parametrize(
    ("key_id", "secret"), [("AKIATESTS", "not the secret, but as long"), ("AKIANOBODY", "whatever it may be")]
)
def test_wrong_credentials_are_refused(service: Running, key_id: str, secret: str) -> None:
    other = client_of(service, key_id, secret)
    with pytest.raises(NotAuthorizedException):
        list(lakefs.repositories(other))
    with pytest.raises(NotAuthorizedException):
        _ = other.version


def test_a_client_works_with_the_token_that_login_answered(
    service: Running, sdk: LakeFSClient, repo: lakefs.Repository
) -> None:
    from lakefs_sdk import LoginInformation

    from tests.api.conftest import KEY_ID, SECRET

    answered = sdk.auth_api.login(LoginInformation(access_key_id=KEY_ID, secret_access_key=SECRET))
    by_token = Client(host=service.url, access_token=answered.token)
    branch = lakefs.Repository(repo.id, by_token).branch("main")
    assert branch.object("a").upload("by token").reader("r").read() == "by token"
    assert by_token.sdk_client.auth_api.get_current_user().user.id == KEY_ID
