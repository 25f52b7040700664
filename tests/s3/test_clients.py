"""The clients that people bring, each as they would use it, over HTTP and over TLS.

Each writes to a branch and reads it back, and what arrived is looked at past the service.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import boto3.s3.transfer
import obstore
import pandas
import polars
import pyarrow
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet
import pytest
import requests
import s3fs
from botocore.exceptions import ClientError
from obstore.exceptions import AlreadyExistsError, NotFoundError, PreconditionError
from obstore.store import S3Store

from refstore.repository import Repository
from tests.api.conftest import KEY_ID
from tests.integration.test_documentation import ROOT
from tests.s3.s3_service import REGION, S3_SECRET, S3Service
from tests.servers.s3_servers import _program

MIB = 1 << 20
BODY = os.urandom(12 * MIB)
"""More than clients send in one part."""
TABLE = pyarrow.table({"id": list(range(1000)), "name": [f"row {number}" for number in range(1000)]})
NAMES = [
    "plain.txt",
    "a folder/with spaces + plus.txt",
    "ümläut/日本.bin",
    "percent%2Fand&more=.txt",
    "tilde~!'()*.txt",
]
"""The last part of keys, which clients encode each in its own way."""
DUCKDB = Path(sys.prefix) / "duckdb-httpfs"


def paths(repo: Repository, prefix: str = "") -> list[str]:
    return [item.path for item in repo.list("main", prefix=prefix)]


def run(service: S3Service, *command: str, input_bytes: bytes | None = None, **environment: str) -> str:
    """A program's output."""
    done = subprocess.run(
        command, env={**service.environment(), **environment}, input=input_bytes, capture_output=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr).decode()[-3000:]
    return done.stdout.decode()


def test_boto3(s3: S3Service, repo: Repository) -> None:
    client = s3.client()
    bucket = repo.name
    for name in NAMES:
        client.put_object(Bucket=bucket, Key=f"main/names/{name}", Body=name.encode())
        assert repo.read("main", f"names/{name}") == name.encode()
        assert client.get_object(Bucket=bucket, Key=f"main/names/{name}")["Body"].read() == name.encode()
    pages = client.get_paginator("list_objects_v2").paginate(
        Bucket=bucket, Prefix="main/names/", PaginationConfig={"PageSize": 2}
    )
    assert [item["Key"] for page in pages for item in page["Contents"]] == sorted(f"main/names/{n}" for n in NAMES)
    parts = boto3.s3.transfer.TransferConfig(multipart_threshold=5 * MIB, multipart_chunksize=5 * MIB)
    client.upload_fileobj(io.BytesIO(BODY), bucket, "main/large", Config=parts)
    assert repo.read("main", "large") == BODY
    into = io.BytesIO()
    client.download_fileobj(bucket, "main/large", into, Config=parts)
    assert into.getvalue() == BODY
    client.copy({"Bucket": bucket, "Key": "main/large"}, bucket, "main/copy", Config=parts)
    assert repo.read("main", "copy") == BODY
    deleted = client.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": f"main/names/{n}"} for n in NAMES]})
    assert len(deleted["Deleted"]) == len(NAMES)
    assert paths(repo) == ["copy", "large"]
    with pytest.raises(ClientError, match="PreconditionFailed"):
        client.put_object(Bucket=bucket, Key="main/copy", Body=b"", IfNoneMatch="*")
    params = {"Bucket": bucket, "Key": "main/copy"}
    url = s3.client(signature_version="s3v4").generate_presigned_url("get_object", Params=params)
    assert requests.get(url, verify=s3.verify, timeout=60).content == BODY


def test_aws_cli(s3: S3Service, repo: Repository, tmp_path: Path) -> None:
    def aws(*arguments: str) -> str:
        return run(s3, _program("aws"), *arguments)

    (tmp_path / "tree" / "deep").mkdir(parents=True)
    for name in ("a.txt", "deep/b c.txt", "deep/ü.txt"):
        (tmp_path / "tree" / name).write_text(name)
    (tmp_path / "large").write_bytes(BODY)
    root = f"s3://{repo.name}/main"
    aws("s3", "cp", str(tmp_path / "large"), f"{root}/large")
    assert repo.read("main", "large") == BODY
    aws("s3", "sync", str(tmp_path / "tree"), f"{root}/tree")
    assert paths(repo) == ["large", "tree/a.txt", "tree/deep/b c.txt", "tree/deep/ü.txt"]
    assert aws("s3", "sync", str(tmp_path / "tree"), f"{root}/tree") == ""
    assert "PRE deep/" in aws("s3", "ls", f"{root}/tree/")
    aws("s3", "mv", f"{root}/tree/a.txt", f"{root}/moved.txt")
    aws("s3", "cp", f"{root}/large", f"{root}/large copy")
    aws("s3", "cp", f"{root}/large copy", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == BODY
    aws("s3", "rm", "--recursive", f"{root}/tree/")
    assert paths(repo) == ["large", "large copy", "moved.txt"]
    head = json.loads(aws("s3api", "head-object", "--bucket", repo.name, "--key", "main/moved.txt"))
    assert head["ETag"].strip('"') == hashlib.md5(b"a.txt", usedforsecurity=False).hexdigest()


def test_urls_that_the_clients_sign(s3: S3Service, repo: Repository, tmp_path: Path) -> None:
    """By default by version 2: the answer names the setting, which docs/s3.md has in each client's section."""
    repo.upload("main", "a", b"signed for")
    page, configuration = (ROOT / "docs/s3.md").read_text(), tmp_path / "aws.ini"
    params = {"Bucket": repo.name, "Key": "main/a"}

    def aws_url() -> str:
        return run(
            s3, _program("aws"), "s3", "presign", f"s3://{repo.name}/main/a", AWS_CONFIG_FILE=str(configuration)
        ).strip()

    def s3fs_url(**options: object) -> str:
        keys = {"aws_access_key_id": KEY_ID, "aws_secret_access_key": S3_SECRET, "region_name": REGION}
        fs = s3fs.S3FileSystem(
            endpoint_url=s3.url, client_kwargs={**keys, "verify": s3.verify}, skip_instance_cache=True, **options
        )
        return str(fs.sign(f"{repo.name}/main/a"))

    ways: dict[str, tuple[Callable[[], str], Callable[[], str], str]] = {
        "AWS CLI": (aws_url, aws_url, "aws configure set default.s3.signature_version s3v4"),
        "boto3": (
            lambda: s3.client().generate_presigned_url("get_object", Params=params),
            lambda: s3.client(signature_version="s3v4").generate_presigned_url("get_object", Params=params),
            'Config(signature_version="s3v4")',
        ),
        "pandas and s3fs": (
            s3fs_url,
            lambda: s3fs_url(config_kwargs={"signature_version": "s3v4"}),
            'config_kwargs={"signature_version": "s3v4"}',
        ),
    }
    for client, (default, told, setting) in ways.items():
        refused = requests.get(default(), verify=s3.verify, timeout=60)
        assert refused.status_code == 400, client
        if client != "pandas and s3fs":
            assert setting in unescape(refused.text)
        assert setting in page.partition(f"\n### {client}\n")[2].partition("\n### ")[0]
        if client == "AWS CLI":
            command = ("configure", "set", "default.s3.signature_version", "s3v4")
            run(s3, _program("aws"), *command, AWS_CONFIG_FILE=str(configuration))
        assert requests.get(told(), verify=s3.verify, timeout=60).content == b"signed for", client


def test_s3fs(s3: S3Service, repo: Repository) -> None:
    fs = s3fs.S3FileSystem(
        key=KEY_ID, secret=S3_SECRET, endpoint_url=s3.url, client_kwargs={"region_name": REGION, "verify": s3.verify},
        skip_instance_cache=True,
    )  # fmt: skip
    root = f"{repo.name}/main"
    fs.pipe_file(f"{root}/a/small ü.txt", b"small")
    with fs.open(f"{root}/a/large", "wb", block_size=5 * MIB) as file:
        file.write(BODY)
    assert repo.read("main", "a/large") == BODY
    with fs.open(f"{root}/a/large", "rb") as file:
        file.seek(7 * MIB)
        assert file.read(1000) == BODY[7 * MIB :][:1000]
    assert fs.ls(f"{root}/a", detail=False) == [f"{root}/a/large", f"{root}/a/small ü.txt"]
    assert sorted(fs.find(root)) == [f"{root}/a/large", f"{root}/a/small ü.txt"]
    fs.copy(f"{root}/a/large", f"{root}/b/large")
    fs.mv(f"{root}/a/small ü.txt", f"{root}/b/small")
    assert paths(repo) == ["a/large", "b/large", "b/small"]
    assert fs.info(f"{root}/b/small")["size"] == 5
    assert not fs.exists(f"{root}/none")
    fs.rm(f"{root}/b", recursive=True)
    assert paths(repo) == ["a/large"]


def test_rclone(s3: S3Service, repo: Repository, tmp_path: Path) -> None:
    trust = ("--ca-cert", str(s3.certificate)) if s3.certificate else ()
    remote = (
        f":s3,provider=Other,env_auth=true,region={REGION},endpoint='{s3.url}',upload_cutoff=5Mi,chunk_size=5Mi:"
        f"{repo.name}/main"
    )

    def rclone(*arguments: str) -> str:
        return run(s3, _program("rclone"), "--config", os.devnull, *trust, *arguments)

    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    for name in ("a.txt", "deep/b c.txt", "deep/ü.txt"):
        (tree / name).write_text(name)
    (tree / "large").write_bytes(BODY)
    rclone("copy", str(tree), f"{remote}/tree")
    assert paths(repo) == ["tree/a.txt", "tree/deep/b c.txt", "tree/deep/ü.txt", "tree/large"]
    assert repo.read("main", "tree/large") == BODY
    rclone("check", "--download", str(tree), f"{remote}/tree")
    (tree / "a.txt").unlink()
    rclone("sync", str(tree), f"{remote}/tree")
    rclone("copyto", f"{remote}/tree/large", f"{remote}/copied")
    assert rclone("cat", f"{remote}/tree/deep/b c.txt") == "deep/b c.txt"
    rclone("purge", f"{remote}/tree")
    assert paths(repo) == ["copied"]
    assert repo.read("main", "copied") == BODY


def store_of(s3: S3Service, repo: Repository, prefix: str = "main") -> S3Store:
    return S3Store(
        repo.name, prefix=prefix, endpoint=s3.url, region=REGION, access_key_id=KEY_ID, secret_access_key=S3_SECRET,
        copy_if_not_exists="header: If-None-Match: *",
        client_options={"allow_http": True, "allow_invalid_certificates": s3.is_secure},
    )  # fmt: skip


def test_obstore(s3: S3Service, repo: Repository) -> None:
    store = store_of(s3, repo)
    for name in NAMES:
        obstore.put(store, f"names/{name}", name.encode())
        assert repo.read("main", f"names/{name}") == name.encode()
        assert bytes(obstore.get(store, f"names/{name}").bytes()) == name.encode()
    listed = [item["path"] for page in obstore.list(store, "names", chunk_size=2) for item in page]
    assert sorted(listed) == sorted(f"names/{name}" for name in NAMES)
    assert obstore.list_with_delimiter(store)["common_prefixes"] == ["names"]
    obstore.put(store, "large", io.BytesIO(BODY), chunk_size=5 * MIB)
    assert repo.read("main", "large") == BODY
    assert bytes(obstore.get_range(store, "large", start=5 * MIB, length=100)) == BODY[5 * MIB :][:100]
    made = obstore.put(store, "once", b"1", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "once", b"2", mode="create")
    changed = obstore.put(store, "once", b"3", mode={"e_tag": made["e_tag"]})
    assert changed["e_tag"] != made["e_tag"]
    with pytest.raises(PreconditionError):
        obstore.put(store, "once", b"4", mode={"e_tag": made["e_tag"]})
    assert repo.read("main", "once") == b"3"
    obstore.copy(store, "once", "twice")
    with pytest.raises(AlreadyExistsError):
        obstore.copy(store, "once", "twice", overwrite=False)
    obstore.rename(store, "once", "thrice")
    obstore.delete(store, [f"names/{name}" for name in NAMES])
    assert paths(repo) == ["large", "thrice", "twice"]
    with pytest.raises((NotFoundError, FileNotFoundError)):
        obstore.head(store, "none")


def test_pyarrow(s3: S3Service, repo: Repository) -> None:
    trust = {"tls_ca_file_path": str(s3.certificate)} if s3.certificate else {}
    fs = pyarrow.fs.S3FileSystem(
        access_key=KEY_ID, secret_key=S3_SECRET, endpoint_override=s3.url.partition("://")[2], region=REGION,
        scheme="https" if s3.is_secure else "http", **trust,
    )  # fmt: skip
    root = f"{repo.name}/main/dataset"
    table = TABLE.append_column("day", pyarrow.array([f"2026-11-{number % 3 + 1:02}" for number in range(1000)]))
    pyarrow.dataset.write_dataset(table, root, filesystem=fs, format="parquet", partitioning=["day"])
    read = pyarrow.dataset.dataset(root, filesystem=fs, format="parquet", partitioning=["day"]).to_table()
    assert sorted(read["id"].to_pylist()) == list(range(1000))
    assert len([path for path in paths(repo) if path.endswith(".parquet")]) == 3
    with fs.open_output_stream(f"{repo.name}/main/large") as out:
        out.write(BODY)
    assert repo.read("main", "large") == BODY
    with fs.open_input_file(f"{repo.name}/main/large") as file:
        file.seek(MIB)
        assert file.read(10) == BODY[MIB:][:10]
    fs.copy_file(f"{repo.name}/main/large", f"{repo.name}/main/copied")
    fs.move(f"{repo.name}/main/copied", f"{repo.name}/main/moved")
    fs.delete_dir(root)
    assert [path for path in paths(repo) if not path.endswith("/")] == ["large", "moved"]
    assert fs.get_file_info(f"{repo.name}/main/none").type == pyarrow.fs.FileType.NotFound


def storage_options(s3: S3Service) -> dict[str, str]:
    """Of delta-rs and Polars."""
    return {
        "aws_access_key_id": KEY_ID,
        "aws_secret_access_key": S3_SECRET,
        "aws_region": REGION,
        "aws_endpoint_url": s3.url,
        "allow_http": "true",
        "allow_invalid_certificates": str(s3.is_secure).lower(),
    }


def test_polars(s3: S3Service, repo: Repository) -> None:
    options = storage_options(s3)
    frame = polars.DataFrame({"id": range(100_000), "name": [f"row {number}" for number in range(100_000)]})
    for number in range(3):
        frame.slice(number * 10, 10).write_parquet(
            f"s3://{repo.name}/main/frames/{number}.parquet", storage_options=options
        )
    frame.lazy().sink_parquet(f"s3://{repo.name}/main/sunk.parquet", storage_options=options)
    found = polars.scan_parquet(f"s3://{repo.name}/main/frames/*.parquet", storage_options=options).collect()
    assert sorted(found["id"].to_list()) == list(range(30))
    query = polars.scan_parquet(f"s3://{repo.name}/main/sunk.parquet", storage_options=options)
    assert query.filter(polars.col("id") == 77_777).select("name").collect().item() == "row 77777"
    assert paths(repo) == ["frames/0.parquet", "frames/1.parquet", "frames/2.parquet", "sunk.parquet"]


def test_pandas(s3: S3Service, repo: Repository) -> None:
    options: dict[str, Any] = {
        "key": KEY_ID, "secret": S3_SECRET, "endpoint_url": s3.url,
        "client_kwargs": {"region_name": REGION, "verify": s3.verify},
    }  # fmt: skip
    frame = TABLE.to_pandas()
    frame.to_parquet(f"s3://{repo.name}/main/p.parquet", storage_options=options)
    frame.to_csv(f"s3://{repo.name}/main/p.csv", index=False, storage_options=options)
    assert pandas.read_parquet(f"s3://{repo.name}/main/p.parquet", storage_options=options).equals(frame)
    assert pandas.read_csv(f"s3://{repo.name}/main/p.csv", storage_options=options).equals(frame)
    assert paths(repo) == ["p.csv", "p.parquet"]


DUCKDB_PROGRAM = """
    import json, os, sys
    from pathlib import Path
    import duckdb, duckdb_extension_httpfs
    bucket, host, secure, trust = sys.argv[1:]
    db = duckdb.connect()
    [extension] = Path(duckdb_extension_httpfs.__file__).parent.glob("extensions/*/httpfs.duckdb_extension")
    db.load_extension(str(extension))
    if trust:
        db.execute(f"SET ca_cert_file = '{trust}'")
    db.execute(f\"\"\"CREATE SECRET (TYPE s3, KEY_ID '{os.environ["AWS_ACCESS_KEY_ID"]}',
        SECRET '{os.environ["AWS_SECRET_ACCESS_KEY"]}', REGION 'us-east-1', ENDPOINT '{host}', URL_STYLE 'path',
        USE_SSL {secure})\"\"\")
    root = f"s3://{bucket}/main"
    db.execute(f"COPY (SELECT range id, range % 3 part FROM range(100000)) TO '{root}/one.parquet'")
    db.execute(f"COPY (SELECT range id, range % 3 part FROM range(100000)) TO '{root}/parts' "
               "(FORMAT parquet, PARTITION_BY (part))")
    db.execute(f"COPY (SELECT range id, md5(range::varchar) x, md5((range+1)::varchar) y FROM range(2000000)) "
               f"TO '{root}/large.parquet' (COMPRESSION uncompressed)")
    print(json.dumps([
        db.sql(f"SELECT count(*), sum(id) FROM '{root}/one.parquet'").fetchone(),
        db.sql(f"SELECT count(*), count(DISTINCT part) FROM read_parquet('{root}/parts/*/*.parquet')").fetchone(),
        db.sql(f"SELECT count(*) FROM '{root}/large.parquet' WHERE id > 1999990").fetchone(),
        len(db.sql(f"SELECT * FROM glob('{root}/parts/**')").fetchall()),
    ]))
"""


def test_duckdb(s3: S3Service, repo: Repository) -> None:
    """In a process of its own: its S3 is for another version than the DuckDB of the other tests."""
    host = s3.url.partition("://")[2]
    printed = run(
        s3, sys.executable, "-c", textwrap.dedent(DUCKDB_PROGRAM), repo.name, host, str(s3.is_secure).lower(),
        str(s3.certificate or ""), PYTHONPATH=str(DUCKDB),
    )  # fmt: skip
    assert json.loads(printed.splitlines()[-1]) == [[100_000, 4_999_950_000], [100_000, 3], [9], 3]
    assert len(pyarrow.parquet.read_table(io.BytesIO(repo.read("main", "large.parquet")))) == 2_000_000


def test_pyiceberg(s3: S3Service, repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if s3.certificate:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(s3.certificate))
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog(
        "lake",
        **{
            "uri": f"sqlite:///{tmp_path}/catalog.db",
            "warehouse": f"s3://{repo.name}/main/warehouse",
            "s3.endpoint": s3.url,
            "s3.access-key-id": KEY_ID,
            "s3.secret-access-key": S3_SECRET,
            "s3.region": REGION,
            # PyArrow's has no setting for a certificate
            "py-io-impl": f"pyiceberg.io.{'fsspec.Fsspec' if s3.is_secure else 'pyarrow.PyArrow'}FileIO",
        },
    )
    catalog.create_namespace("sales")
    table = catalog.create_table("sales.orders", schema=TABLE.schema)
    table.append(TABLE)
    first = table.current_snapshot()
    table.append(TABLE.slice(0, 10))
    table.delete("id >= 500")
    assert len(table.scan().to_arrow()) == 510
    assert first is not None
    assert len(table.scan(snapshot_id=first.snapshot_id).to_arrow()) == 1000
    assert any(path.endswith(".metadata.json") for path in paths(repo))


def test_a_client_with_many_requests_at_once(s3: S3Service, repo: Repository) -> None:
    store = store_of(s3, repo)

    async def write_all() -> None:
        await asyncio.gather(*(obstore.put_async(store, f"{number:04}", b"%d" % number) for number in range(200)))

    asyncio.run(write_all())
    listed = [item["path"] for page in obstore.list(store) for item in page]
    assert listed == [f"{number:04}" for number in range(200)]
