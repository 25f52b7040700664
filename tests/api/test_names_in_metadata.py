"""Names of ours in metadata: every route refuses them, and what a client was told of an object it may send back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refstore.core.ids import BranchName
from refstore.operations import complete_upload, multipart
from refstore.operations.upload import Upload
from refstore.records.s3_attributes import ContentDescription, S3Attributes
from tests.api.service import Application, application
from tests.kit.names_of_ours import ATTACK, NAMES

Way = Callable[[Application, dict[str, str]], httpx.Response]

REPOSITORY: Final = "/repositories/alpha"
MAIN: Final = f"{REPOSITORY}/branches/main"
OBJECTS: Final = f"{MAIN}/objects"
STAGED: Final = {"physical_address": "s3://b/x", "checksum": "c", "size_bytes": 1}
ATTRIBUTES: Final = S3Attributes(
    ContentDescription("crc32", "AAAAAA==", etag="e-2", part_runs=((2, 5),)), {"expires": "0"}, {"a": "1"}
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    folder: Path = tmp_path_factory.mktemp("landing")
    (folder / "a").write_bytes(b"a")
    with application(import_from=(f"file://{folder}/", "s3://b/")) as made:
        repo = made.lake.create_repository("alpha")
        repo.upload("main", "a", b"1")
        repo.commit("main", "first")
        repo.create_branch("dev", source="main")
        repo.upload("dev", "b", b"1")
        repo.commit("dev", "second")
        yield made


def link(service: Application, metadata: dict[str, str], path: str = "new") -> httpx.Response:
    backing = f"{MAIN}/staging/backing"
    issued = service("GET", backing, params={"path": path}).json()
    repo = service.lake.repository("alpha")
    address = "data/" + issued["physical_address"].partition("/data/")[2].partition("?")[0]
    repo.context.objects.put(address, b"1")
    staging = {"physical_address": issued["physical_address"], "token": issued["token"]}
    body = {"staging": staging, "checksum": "c", "size_bytes": 1, "user_metadata": metadata}
    return service("PUT", backing, params={"path": path}, json=body)


def upload(service: Application, metadata: dict[str, str], path: str = "new") -> httpx.Response:
    headers = {f"x-lakefs-meta-{name}": value for name, value in metadata.items()}
    return service("POST", OBJECTS, params={"path": path}, headers=headers, content=b"1")


def stage(service: Application, metadata: dict[str, str], path: str = "new") -> httpx.Response:
    return service("PUT", OBJECTS, params={"path": path}, json=STAGED | {"metadata": metadata})


def import_at(service: Application, metadata: dict[str, str]) -> httpx.Response:
    commit = {"message": "m", "metadata": metadata}
    paths = [{"type": "common_prefix", "path": "s3://b/x/", "destination": "in/"}]
    return service("POST", f"{MAIN}/import", json={"paths": paths, "commit": commit})


WAYS: Final[dict[str, Way]] = {
    "uploadObject": upload,
    "stageObject": stage,
    "linkPhysicalAddress": link,
    "importStart": import_at,
    "commit": lambda service, metadata: service(
        "POST", f"{MAIN}/commits", json={"message": "m", "metadata": metadata, "allow_empty": True}
    ),
    "mergeIntoBranch": lambda service, metadata: service(
        "POST", f"{REPOSITORY}/refs/dev/merge/main", json={"metadata": metadata}
    ),
    "revertBranch": lambda service, metadata: service(
        "POST", f"{MAIN}/revert", json={"ref": "main", "commit_overrides": {"metadata": metadata}}
    ),
    "cherryPick": lambda service, metadata: service(
        "POST", f"{MAIN}/cherry-pick", json={"ref": "dev", "commit_overrides": {"metadata": metadata}}
    ),
    "setRepositoryMetadata": lambda service, metadata: service(
        "POST", f"{REPOSITORY}/metadata", json={"metadata": metadata}
    ),
}
BY_HEADERS: Final = {"uploadObject"}
REMOVES: Final = {"deleteRepositoryMetadata"}


@pytest.mark.parametrize("way", WAYS)
def test_no_route_takes_a_name_of_ours(served: Application, way: str) -> None:
    before = list(served.lake.repository("alpha").log("main"))
    for metadata in [*({name: "x"} for name in NAMES), {"owner": "ann", NAMES[0]: "x"}, ATTACK]:
        answer = WAYS[way](served, metadata)
        assert (answer.status_code, "give it another name" in answer.json()["message"]) == (400, True), metadata
    repo = served.lake.repository("alpha")
    assert list(repo.log("main")) == before
    assert [path for path, _ in repo.list("main")] == ["a"]
    assert repo.record.metadata == {}


def test_every_route_whose_body_has_metadata_is_a_way_in(served: Application) -> None:
    """A route with a new body must be given its line in the table."""
    document: dict[str, Any] = served.app.openapi()

    def names_in(schema: Any, seen: frozenset[str] = frozenset()) -> set[str]:
        if isinstance(schema, list):
            return set().union(*(names_in(each, seen) for each in schema))
        if not isinstance(schema, dict):
            return set()
        ref = str(schema.get("$ref", ""))
        if ref:
            return set() if ref in seen else names_in(document["components"]["schemas"][ref[21:]], seen | {ref})
        return set(schema.get("properties", ())).union(*(names_in(each, seen) for each in schema.values()))

    found = {
        operation["operationId"]
        for operations in document["paths"].values()
        for operation in operations.values()
        if {"metadata", "user_metadata"} & names_in(operation.get("requestBody", {}))
    }
    assert found - WAYS.keys() - REMOVES == set()
    assert found == WAYS.keys() - BY_HEADERS - REMOVES


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    metadata=st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=12), st.text(max_size=12)
    )
)
def test_what_stat_answers_can_be_sent_back(served: Application, metadata: dict[str, str]) -> None:
    """Also of an object of which S3 clients are told more than that."""
    repo = served.lake.repository("alpha")
    repo.upload_many("main", [Upload("told", b"1", metadata, s3=lambda: ATTRIBUTES)])
    told = served("GET", f"{REPOSITORY}/refs/main/objects/stat", params={"path": "told"}).json()
    assert told["metadata"] == metadata
    for send in (stage, link):
        assert send(served, told["metadata"], "back").json()["metadata"] == metadata
    repo.upload("main", "back", b"1", metadata=told["metadata"])
    for path in ("told", "back"):
        repo.delete("main", path)


def test_what_a_commit_answers_can_be_sent_back(served: Application) -> None:
    repo = served.lake.repository("alpha")
    repo.create_branch("answered", source="main")
    made = served(
        "POST", f"{REPOSITORY}/branches/answered/cherry-pick", json={"ref": "dev", "commit_overrides": {"metadata": {}}}
    ).json()
    assert sorted(made["metadata"]) == ["cherry-pick-committer", "cherry-pick-origin"]
    body = {"message": "m", "metadata": made["metadata"], "allow_empty": True}
    again = served("POST", f"{REPOSITORY}/branches/answered/commits", json=body)
    assert again.json()["metadata"] == made["metadata"]
    repo.delete_branch("answered")


def test_the_checksum_of_an_object_in_parts_is_its_etag(alpha: Application) -> None:
    content = ContentDescription(etag="d41d8cd98f00b204e9800998ecf8427e-1")
    context = alpha.lake.repository("alpha").context
    begun = multipart.begin(context, BranchName("main"), "joined", seconds=60)
    part = multipart.write_part(context, begun.name, 1, b"1").part
    parts = [complete_upload.RequestedPart(1, part.etag)]
    complete_upload.complete(context, begun.name, parts, describe=lambda *_: S3Attributes(content))
    told = alpha("GET", f"{REPOSITORY}/refs/main/objects/stat", params={"path": "joined"}).json()
    assert (told["checksum"], told["metadata"]) == (content.etag, {})
