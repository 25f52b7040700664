"""Addresses that callers stage: what nothing can parse is refused, what is there already stops nobody else, and no
answer tells where the lake, the server's files or another repository are.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from refstore.errors import InvalidName
from tests.api.service import Application, application
from tests.kit.unchecked_staging import stage_unchecked

OBJECTS = "/repositories/sales/branches/main/objects"
LISTING = "/repositories/sales/refs/main/objects/ls"
UNPARSEABLE = [
    "s3://[bad/x",
    "s3://b]/x",
    "s3://b\uff0fx/k",  # to urlsplit a slash in the host
    "s3://b/x%00y",
    "s3://b/%ff",
    "s3:///x",
    "file://{folder}/landing/x%00y",
    "file://{folder}/landing/%ff",
    "local://x%00/y",
]
OF_OTHERS = ["https://[bad/x", "gs://b/x%00y", "\u017f3://b/x"]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Application]:
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "good.csv").write_bytes(b"good")
    (tmp_path / "lake").mkdir()
    allowed = (f"file://{tmp_path}/landing/", "s3://b/")
    with application(import_from=allowed, objects=f"file://{tmp_path}/lake/objects") as found:
        found.lake.create_repository("sales")
        yield found


def staged(service: Application, url: str, path: str = "p", size_bytes: int = 4) -> tuple[int, str]:
    body = {"physical_address": url, "checksum": "", "size_bytes": size_bytes}
    answer = service("PUT", OBJECTS, params={"path": path}, json=body)
    return answer.status_code, answer.text


@pytest.mark.parametrize("given", [*UNPARSEABLE, *OF_OTHERS])
def test_an_address_that_nothing_can_parse_is_refused(service: Application, tmp_path: Path, given: str) -> None:
    url = given.format(folder=tmp_path)
    assert staged(service, url)[0] == 400
    with pytest.raises(InvalidName):
        service.lake.repository("sales").stage("main", "p", url, size_bytes=1)
    for kind in ("common_prefix", "object"):
        body = {"commit": {"message": "m"}, "paths": [{"path": url, "destination": "in/x", "type": kind}]}
        assert service("POST", "/repositories/sales/branches/main/import", json=body).status_code == 400
    assert service("GET", LISTING).json()["results"] == []


def test_what_is_staged_already_is_listed_as_unreadable_and_keeps_nobody_else(
    service: Application, tmp_path: Path
) -> None:
    repo = service.lake.repository("sales")
    bad = [url.format(folder=tmp_path) for url in [*UNPARSEABLE, *OF_OTHERS]]
    for number, url in enumerate(bad):
        stage_unchecked(repo, f"bad-{number:02}", url)
    assert staged(service, f"file://{tmp_path}/landing/good.csv", "good")[0] == 201
    for committed in (False, True):
        if committed:
            repo.commit("main", "all of them")
        for presign in (False, True):
            answer = service("GET", LISTING, params={"presign": presign})
            assert answer.status_code == 200
            unreadable = {each["path"]: each.get("unreadable", "") for each in answer.json()["results"]}
            assert [path for path, why in unreadable.items() if why] == [f"bad-{n:02}" for n in range(len(bad))]
        for number in range(len(bad)):
            path = {"path": f"bad-{number:02}"}
            assert service("GET", "/repositories/sales/refs/main/objects", params=path).status_code == 403
            assert service("GET", "/repositories/sales/refs/main/objects/stat", params=path).status_code == 200
        assert service("GET", "/repositories/sales/refs/main/objects", params={"path": "good"}).content == b"good"


def test_an_erased_object_keeps_nobody_from_listing_with_signed_urls(service: Application) -> None:
    repo = service.lake.repository("sales")
    stage_unchecked(repo, "erased", "")  # as content is shown that a purge erased
    repo.stage("main", "other", "s3://elsewhere/x", size_bytes=1)
    answer = service("GET", LISTING, params={"presign": True})
    assert [each["path"] for each in answer.json()["results"]] == ["erased", "other"]


@pytest.mark.parametrize(
    "spelling",
    [
        "local://{name}/x",
        "local:///{name}/x",
        "mem://{name}/x",
        "file://{lake}/objects/{name}/x",
        "file://localhost{lake}/objects/{name}/x",
        "file:///elsewhere/{name}/x",
        "file:///elsewhere/../{lake}/objects/{name}/x",
    ],
)
def test_what_is_refused_tells_nothing_of_other_repositories_or_of_the_server(
    service: Application, tmp_path: Path, spelling: str
) -> None:
    made = service("POST", "/repositories", json={"name": "hidden", "storage_namespace": "local://hidden"})
    assert made.status_code == 201
    lake = f"{tmp_path}/lake"
    answers = [staged(service, spelling.format(lake=lake, name=name)) for name in ("hidden", "absent")]
    known, guessed = ((status, text.replace("hidden", "absent")) for status, text in answers)
    assert known == guessed
    assert known[0] == 400
    assert "{lake}" in spelling or lake not in known[1]
