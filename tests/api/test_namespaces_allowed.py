"""Where repositories may be made over HTTP: `api.namespaces`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from refstore.cli.serve import check_stores
from refstore.configuration.settings import ApiSettings, Settings
from refstore.errors import InvalidSettings
from refstore.records.keys import NAMESPACES
from tests.api.service import Application, application
from tests.kit.audit import NoAudit


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Application]:
    allowed = (f"file://{tmp_path}/objects/team/", f"file://{tmp_path}/other")
    with application(ApiSettings(namespaces=allowed), objects=f"file://{tmp_path}/objects") as found:
        yield found


def make(service: Application, tmp_path: Path, namespace: str) -> int:
    asked = namespace.replace("{root}", f"file://{tmp_path}")
    answered = service("POST", "/repositories", json={"name": "sales", "storage_namespace": asked})
    if answered.status_code == 403:
        assert f"file://{tmp_path}/objects/team/" in answered.json()["message"]
        assert f"file://{tmp_path}/other" in answered.json()["message"]
    if answered.status_code != 201:
        assert list(service.lake.kv.scan_all(NAMESPACES)) == []
    return answered.status_code


@pytest.mark.parametrize(
    "namespace",
    [
        "{root}/objects/team/sales",
        "{root}/objects//team/sales/",
        "{root}/other/a/b",
        "{root}/%6fther/a",
        "local://team/sales",
    ],
)
def test_repositories_are_made_below_what_is_allowed(service: Application, tmp_path: Path, namespace: str) -> None:
    assert make(service, tmp_path, namespace) == 201
    assert (
        service("POST", "/repositories/sales/branches/main/objects", params={"path": "p"}, content=b"x").status_code
        == 201
    )
    assert service("GET", "/repositories/sales/refs/main/objects", params={"path": "p"}).content == b"x"


@pytest.mark.parametrize(
    "namespace",
    [
        "",
        "{root}/objects",
        "{root}/objects/sales",
        "{root}/objects/team",
        "{root}/objects/team/",
        "{root}/objects/team/%2F",
        "{root}/objects/teams",
        "{root}/others/a",
        "{root}/other",
        "local://sales",
        "local://",
        "file:///etc",
    ],
)
def test_a_namespace_elsewhere_is_forbidden_and_the_answer_says_what_is_not(
    service: Application, tmp_path: Path, namespace: str
) -> None:
    assert make(service, tmp_path, namespace) == 403
    assert not (tmp_path / "others").exists()


@pytest.mark.parametrize(
    "namespace",
    ["{root}/other/../x", "{root}/other/%2e%2e/x", "{root}/other/a%00", "s3://bucket/x", "{root}/other/a?x=1"],
)
def test_a_namespace_that_leads_elsewhere_is_refused(service: Application, tmp_path: Path, namespace: str) -> None:
    assert make(service, tmp_path, namespace) == 400
    assert not (tmp_path / "x").exists()


def test_on_s3_the_buckets_are_those_allowed(tmp_path: Path) -> None:
    url = "s3://ours/lake?endpoint=http://127.0.0.1:1"  # nobody is there: the audit log has no place
    with application(ApiSettings(namespaces=("s3://ours/team",)), objects=url, audit_log=NoAudit()) as service:
        for namespace in (
            "s3://theirs/x",
            "s3://ours/x",
            "s3://ours/team",
            "s3://ours/lake/x",
            "s3://ours/team2/x",
            "",
        ):
            assert make_s3(service, namespace) == 403
        assert service("GET", "/config/storage").json()["default_namespace_prefix"] == "s3://ours/team"


def make_s3(service: Application, namespace: str) -> int:
    answered = service("POST", "/repositories", json={"name": "sales", "storage_namespace": namespace})
    assert "s3://ours/team" in answered.json()["message"]
    return answered.status_code


@pytest.mark.parametrize("url", ["team", "/srv/team", "s3://bucket/team?endpoint=http://x", "s3://bucket/#team", ""])
def test_what_is_allowed_is_named_by_urls(url: str) -> None:
    with pytest.raises(InvalidSettings, match=r"api\.namespaces"):
        ApiSettings(namespaces=(url,))


def test_what_is_allowed_lies_in_the_lakes_kind_of_store() -> None:
    with pytest.raises(InvalidSettings, match="name folders of that store"):
        check_stores(
            Settings(
                data=None, kv="sqlite:///x", objects="s3://ours/lake", api=ApiSettings(namespaces=("file:///srv/team",))
            )
        )
