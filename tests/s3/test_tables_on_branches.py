"""Tables on branches: by pins of access keys one set of URIs works on every branch, and no merge mixes logs."""

from __future__ import annotations

import secrets

import pyarrow
import pytest
from botocore.exceptions import ClientError
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

from refstore.errors import Invalid, MergeConflict
from refstore.repository import Repository
from refstore.service.access_keys import Role, create_key, scan_keys
from tests.s3.s3_service import S3_SECRET, S3Service
from tests.s3.test_delta_tables import delta_options, ids, rows


def add_keys(s3: S3Service, repo: Repository) -> dict[str, str]:
    """For each branch a key to which the bucket `warehouse` is that branch."""
    keys = {branch: f"{branch}-{secrets.token_hex(4)}" for branch in ("main", "dev")}
    for branch, key_id in keys.items():
        s3.add_key(key_id, Role.WRITER, (repo.name,), (f"warehouse={repo.name}:{branch}",))
    return keys


def test_a_bucket_is_the_branch_of_the_key(s3: S3Service, repo: Repository) -> None:
    repo.create_branch("dev", source="main")
    keys = add_keys(s3, repo)
    for branch, key_id in keys.items():
        s3.client(key_id).put_object(Bucket="warehouse", Key="a/b", Body=branch.encode())
    assert {branch: repo.read(branch, "a/b") for branch in keys} == {"main": b"main", "dev": b"dev"}
    dev = s3.client(keys["dev"])
    assert [item["Key"] for item in dev.list_objects_v2(Bucket="warehouse")["Contents"]] == ["a/b"]
    assert "warehouse" in [item["Name"] for item in dev.list_buckets()["Buckets"]]
    dev.copy_object(Bucket="warehouse", Key="c", CopySource="warehouse/a/b")
    assert repo.read("dev", "c") == b"dev"
    assert dev.get_object(Bucket=repo.name, Key="main/a/b")["Body"].read() == b"main"  # other buckets are as ever
    with pytest.raises(ClientError, match="NotImplemented"):
        dev.delete_bucket(Bucket="warehouse")
    with pytest.raises(ClientError, match="NoSuchBucket"):
        s3.client().list_objects_v2(Bucket="warehouse")
    [shown] = [key for key in scan_keys(s3.lake.kv) if key.id == keys["dev"]]
    assert shown.buckets == (f"warehouse={repo.name}:dev",)


@pytest.mark.parametrize(
    ("buckets", "repositories"),
    [
        pytest.param(("warehouse",), (), id="no branch"),
        pytest.param(("warehouse=lake:main", "warehouse=lake:dev"), (), id="twice"),
        pytest.param(("warehouse=lake:main",), ("other",), id="a repository that the key may not use"),
    ],
)
def test_what_pins_nothing_is_refused(s3: S3Service, buckets: tuple[str, ...], repositories: tuple[str, ...]) -> None:
    with pytest.raises(Invalid, match="pin"):
        create_key(s3.lake, Role.WRITER, buckets=buckets, repositories=repositories)


def test_an_iceberg_table_is_written_on_the_branch_of_the_key(
    s3: S3Service, repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its metadata has the URIs of its files: below `s3://REPOSITORY/main/` they would name main on every branch."""
    keys = add_keys(s3, repo)
    if s3.certificate:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(s3.certificate))

    def open_catalog(branch: str) -> SqlCatalog:
        settings = {
            "s3.endpoint": s3.url,
            "s3.region": "us-east-1",
            "py-io-impl": f"pyiceberg.io.{'fsspec.Fsspec' if s3.is_secure else 'pyarrow.PyArrow'}FileIO",
        }
        owner = {"s3.access-key-id": keys[branch], "s3.secret-access-key": S3_SECRET}
        return SqlCatalog(branch, uri="sqlite://", warehouse="s3://warehouse/tables", **settings, **owner)

    main = open_catalog("main")
    main.create_namespace("shop")
    table = main.create_table("shop.sales", schema=rows(0).schema)
    table.append(rows(0))
    repo.commit("main", "a table")
    repo.create_branch("dev", source="main")
    dev = open_catalog("dev")
    dev.create_namespace("shop")
    dev.register_table("shop.sales", table.metadata_location).append(rows(100))
    assert [each.path for each in repo.diff("main")] == []
    assert len(dev.load_table("shop.sales").scan().to_arrow()) == 200
    assert len(main.load_table("shop.sales").scan().to_arrow()) == 100


def test_a_merge_never_makes_a_delta_log_of_two_branches(s3: S3Service, repo: Repository) -> None:
    options = delta_options(s3)
    where = {branch: f"s3://{repo.name}/{branch}/sales" for branch in ("main", "dev")}
    write_deltalake(where["main"], rows(0), storage_options=options)
    repo.commit("main", "a table")
    repo.create_branch("dev", source="main")
    for first, amount in ((100, 50), (150, 50)):
        write_deltalake(where["main"], rows(first, amount), mode="append", storage_options=options)
    write_deltalake(where["dev"], rows(500, 80), mode="append", storage_options=options)
    for branch in where:
        repo.commit(branch, f"rows of {branch}")
    with pytest.raises(MergeConflict, match="wrote the Delta table 'sales/'"):
        repo.merge("dev", into="main")
    repo.merge("dev", into="main", strategy="source-wins")
    merged = DeltaTable(where["main"], storage_options=options)
    assert ids(merged) == [*range(100), *range(500, 580)]
    assert isinstance(merged.to_pyarrow_table(), pyarrow.Table)
