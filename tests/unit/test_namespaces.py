"""What lies in a repository's namespace is not named as if it were foreign, however its URL is spelt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from refstore.core.ids import Address
from refstore.errors import InvalidName
from refstore.kv.memory import MemoryKV
from refstore.lake import Lake
from refstore.namespaces import Namespaces, check_outside_lake
from refstore.repository import Repository

S3 = Namespaces(["s3://lake-data/prod/sales.1?endpoint=http://ceph:8000&region=x"])
OTHERS = Namespaces(["shelf://Lake-Data/prod/sales.1?wood=oak"])
"""In a store that another package's driver opens."""
FOLDERS = Namespaces(["file:///var/lakes/objects/sales.1?fsync=0"])


@pytest.mark.parametrize(
    "url",
    [
        "s3://lake-data/prod/sales.1/data/x",
        "s3a://lake-data/prod/sales.1/data/x",
        "s3n://lake-data/prod/sales.1/data/x",
        "S3://LAKE-data//prod/sales.1/data/x",
        "s3://lake-data/prod/s%61les.1/x",
        "s3://lake-data/prod/s%2561les.1/x",
        "s3://lake-data/prod/sales.1/x?versionId=1",
        "s3://user@lake-data/prod/sales.1/x",
        "https://lake-data.s3.amazonaws.com/prod/sales.1/x",
        "https://lake-data.s3.eu-central-1.amazonaws.com/prod/sales.1/x",
        "https://lake-data.s3.dualstack.eu-central-1.amazonaws.com/prod/sales.1/x?X-Amz-Signature=1",
        "https://s3.amazonaws.com/lake-data/prod/sales.1/x",
        "https://s3.eu-central-1.amazonaws.com:443/lake-data/prod/sales.1/x",
        "http://ceph:8000/lake-data/prod/sales.1/x",
        "http://ceph:8000/lake%2Ddata/prod/sales.1/x",
        "http://ceph:8000/tenant:lake-data/prod/sales.1/x",
        "http://ceph:8000/Lake-Data/prod/sales.1/x",
        "http://lake-data:8000/prod/sales.1/x",
        "s3://ceph:8000/lake-data/prod/sales.1/x",
        "s3://s3.amazonaws.com/lake-data/prod/sales.1/x",
        "s3://lake-data.s3.amazonaws.com/prod/sales.1/x",
        "s3://arn:aws:s3:us-east-1:1:accesspoint/of-us/prod/sales.1/x",
        "s3://of-us-abc123-s3alias/prod/sales.1/x",
        "https://of-us-1.s3-accesspoint.us-east-1.amazonaws.com/prod/sales.1/x",
        "local://prod/sales.1/x",
        "local://sales.1/data/x",
    ],
)
def test_every_spelling_of_an_object_in_a_bucket_is_known(url: str) -> None:
    assert S3.find_holding(url) == "s3://lake-data/prod/sales.1/"
    with pytest.raises(InvalidName, match="a repository's namespace"):
        S3.check_object(url)


@pytest.mark.parametrize(
    "url",
    [
        "shelf://lake-data/prod/sales.1/data/x",
        "shelf://lake-data//prod/s%61les.1/data/x",
        "s3://lake-data/prod/sales.1/data/x",
        "https://shelves.example/lake-data/prod/sales.1/data/x",
        "file:///mnt/lake-data/prod/sales.1/data/x",
        "other://gateway/of/lake-data/prod/sales.1/data/x",
    ],
)
def test_an_object_in_a_store_of_others_is_known_under_any_scheme(url: str) -> None:
    with pytest.raises(InvalidName, match="a repository's namespace"):
        OTHERS.check_object(url)


def test_beside_a_namespace_in_a_store_of_others_objects_are_foreign() -> None:
    for url in ("shelf://lake-data/prod/sales.10/x", "shelf://lake-data/sales.1/x", "s3://lake-data/prod/x"):
        OTHERS.check_source(url)
    for above in ("shelf://lake-data/prod/", "shelf://lake-data/prod/sal", "s3://gateway/lake-data/", "s3://lake-data"):
        with pytest.raises(InvalidName, match="a repository's namespace"):
            OTHERS.check_source(above)


@pytest.mark.parametrize(
    "url",
    [
        "s3://lake-data/prod/sales.10/x",
        "s3://lake-data/prod/sales",
        "s3://lake-data/x",
        "s3://other/prod/sales.1/x",
        "https://other.s3.amazonaws.com/prod/sales.1/x",
        "https://s3.amazonaws.com/other/prod/sales.1/x",
        "https://example.com/prod/sales.1/x",
        "https://s3.amazonaws.com/lake-data/other/x",
        "file:///lake-data/prod/sales.1/x",
        "gs://lake-data/prod/sales.1/x",
    ],
)
def test_objects_beside_a_namespace_are_foreign(url: str) -> None:
    assert S3.find_holding(url) is None
    S3.check_object(url)


@pytest.mark.parametrize(
    "url",
    [
        "s3://lake-data/prod/anything/x",
        "s3a://lake-data//prod/sales.2/x",
        "https://lake-data.s3.amazonaws.com/prod/%73ales.2/x",
        "http://ceph:8000/lake-data/prod/sales.2/x",
        "s3://arn:aws:s3:us-east-1:1:accesspoint/of-us/prod/sales.2/x",
        "mem://sales.2/x",
        "local://sales.2/x",
    ],
)
def test_below_the_lakes_root_every_guess_is_refused_alike(url: str) -> None:
    with pytest.raises(InvalidName, match="in or beside a repository's namespace"):
        check_outside_lake(url, "s3://lake-data/prod?endpoint=http://ceph:8000")
    check_outside_lake("s3://lake-data/raw/x", "s3://lake-data/prod")


@pytest.mark.parametrize(
    "url", ["s3://other/../lake-data/prod/sales.1/x", "s3://b/a/%2e%2e/x", "https://h/a/./b", "file:///a/..\\b"]
)
def test_a_path_that_leads_elsewhere_than_it_says_is_refused(url: str) -> None:
    with pytest.raises(InvalidName, match="between slashes"):
        S3.check_object(url)


@pytest.mark.parametrize(
    "url",
    [
        "file:///var/lakes/objects/sales.1/data/x",
        "file://localhost/var/lakes/objects/sales.1/data/x",
        "file://host/var/lakes/objects/sales.1/data/x",
        "FILE:////var//lakes/objects/sales.1/x",
        "file:///var/lakes/objects/s%61les.1/x#y",
        "local://sales.1/data/x",
        "local://objects/sales.1/data/x",
    ],
)
def test_every_spelling_of_a_file_in_a_folder_is_known(url: str) -> None:
    assert FOLDERS.find_holding(url) == "file:///var/lakes/objects/sales.1/"


@pytest.mark.parametrize(
    ("url", "held"),
    [
        ("s3://lake-data/", True),
        ("s3://lake-data", True),
        ("s3://lake-data/pro", True),
        ("s3://lake-data/prod/", True),
        ("https://lake-data.s3.amazonaws.com/prod/", True),
        ("s3://lake-data/prod/sales.1/data/", True),
        ("s3://lake-data/prod/sales/", False),
        ("s3://lake-data/raw/", False),
        ("s3://other/", False),
    ],
)
def test_a_source_that_holds_a_namespace_is_refused(url: str, held: bool) -> None:
    if not held:
        S3.check_source(url)
        return
    with pytest.raises(InvalidName, match="a repository's namespace"):
        S3.check_source(url)


class TestOnADisk:
    @pytest.fixture
    def lake(self, tmp_path: Path) -> Iterator[Lake]:
        with Lake(MemoryKV(), f"file://{tmp_path}/objects?fsync=0") as lake:
            yield lake

    @pytest.fixture
    def repo(self, lake: Lake) -> Repository:
        return lake.create_repository("sales")

    @pytest.fixture
    def address(self, repo: Repository) -> Address:
        return repo.upload("main", "a", b"1").address

    def test_a_link_to_the_folder_a_folder_in_it_or_a_file_in_it(
        self, tmp_path: Path, repo: Repository, address: Address
    ) -> None:
        folder = tmp_path / "objects" / repo.context.repo
        for name, target in (
            ("folder", folder),
            ("above", tmp_path / "objects"),
            ("data", folder / "data"),
            ("file", folder / address),
        ):
            (tmp_path / name).symlink_to(target)
        (tmp_path / "again").symlink_to("folder")
        (tmp_path / "what?x").symlink_to(folder)
        for url in (
            f"file://{tmp_path}/folder/{address}",
            f"file://{tmp_path}/above/{repo.context.repo}/{address}",
            f"file://{tmp_path}/data/{address.removeprefix('data/')}",
            f"file://{tmp_path}/file",
            f"file://{tmp_path}/again/{address}",
            f"file://{tmp_path}/what?x/{address}",
            f"file://{tmp_path}/folder/not-there-yet",
        ):
            with pytest.raises(InvalidName, match="a repository's namespace"):
                repo.stage("main", "x", url, size_bytes=1)

    def test_a_lake_that_is_itself_reached_by_a_link(self, tmp_path: Path) -> None:
        (tmp_path / "disk").mkdir()
        (tmp_path / "lake").symlink_to("disk")
        with Lake(MemoryKV(), f"file://{tmp_path}/lake/objects?fsync=0") as lake:
            repo = lake.create_repository("sales")
            entry = repo.upload("main", "a", b"1")
            with pytest.raises(InvalidName, match="a repository's namespace"):
                repo.stage(
                    "main", "x", f"file://{tmp_path}/disk/objects/{repo.context.repo}/{entry.address}", size_bytes=1
                )

    def test_another_repositorys_object_is_not_foreign_either(
        self, tmp_path: Path, lake: Lake, repo: Repository, address: Address
    ) -> None:
        other = lake.create_repository("other")
        with pytest.raises(InvalidName, match="copy it from its repository"):
            other.stage("main", "x", f"file://{tmp_path}/objects/{repo.context.repo}/{address}", size_bytes=1)

    def test_files_beside_the_lake_are_foreign(self, tmp_path: Path, repo: Repository) -> None:
        (tmp_path / "archive").mkdir()
        (tmp_path / "old").symlink_to("archive")
        for name in ("archive/1", "old/1", "not/there"):
            assert (
                repo.stage("main", name, f"file://{tmp_path}/{name}", size_bytes=1).address
                == f"file://{tmp_path}/{name}"
            )

    def test_a_source_that_holds_the_lake_by_a_link(self, tmp_path: Path, lake: Lake, repo: Repository) -> None:
        del repo
        (tmp_path / "link").symlink_to(tmp_path / "objects")
        (tmp_path / "archive").mkdir()
        namespaces = Namespaces.read(lake.kv, lake.objects_url)
        for url in (
            f"file://{tmp_path}/link",
            f"file://{tmp_path}/link/",
            f"file://{tmp_path}/",
            f"file://{tmp_path}/link/sal",
        ):
            with pytest.raises(InvalidName, match="a repository's namespace"):
                namespaces.check_source(url)
        namespaces.check_source(f"file://{tmp_path}/archive/")
