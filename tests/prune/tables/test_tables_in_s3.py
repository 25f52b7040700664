"""Tables in S3: the names are read there, by the credentials of the environment."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

import refstore_prune
from refstore.errors import ObjectsUnavailable
from refstore.objects import open_objects
from tests.prune.tables.delta_tables import rows_of
from tests.prune.tables.iceberg_tables import numbers, read_rows
from tests.prune.tables.table_runs import names_of
from tests.servers.s3_servers import S3Server, environment


def prune_all(url: str, names: str, properties: dict[str, str] | None = None, *, table: str = "") -> set[str]:
    """Plant an orphan in a table's folder, mark and sweep, and return which keys went. What was just written is old
    enough.
    """
    store = open_objects(url)
    store.put(f"{table}data/left-over.parquet", b"x")
    before = {each.key for each in store.list()}
    for _ in range(2):
        refstore_prune.prune(
            url,
            names,
            grace=timedelta(0),
            min_age=timedelta(0),
            consent=["min-age"],
            properties=properties,
            engine="local",
        )
    return before - {each.key for each in store.list()}


def test_an_iceberg_table(moto_s3_server: S3Server, tmp_path: Path) -> None:
    url = moto_s3_server.url()
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": url.partition("?")[0],
        "s3.endpoint": moto_s3_server.endpoint,
        "s3.region": "us-east-1",
    }
    catalog = SqlCatalog("shop", **properties)
    catalog.create_namespace("sales")
    table = catalog.create_table("sales.orders", numbers(0).schema)
    for first in (0, 10, 20):
        table.append(numbers(first))
    table.delete("id < 2")
    ids = [each.snapshot_id for each in table.snapshots()]
    before = [read_rows(table, each) for each in ids]
    folder = table.location().removeprefix(f"{properties['warehouse']}/") + "/"
    open_objects(url).put("beside/the-table.parquet", b"x")
    gone = prune_all(url, "iceberg:shop.sales.orders", properties, table=folder)
    assert gone == {f"{folder}data/left-over.parquet"}
    assert [read_rows(table, each) for each in ids] == before
    reading = {name: value for name, value in properties.items() if name.startswith("s3.")}
    assert names_of(f"iceberg:{table.location()}", reading) == names_of("iceberg:shop.sales.orders", properties)
    with pytest.raises(ObjectsUnavailable, match="metadata cannot be read"):
        names_of(f"iceberg:{table.location()}", {**reading, "s3.endpoint": "http://127.0.0.1:9"})


def test_a_delta_table(moto_s3_server: S3Server) -> None:
    url = moto_s3_server.url()
    options = {
        **environment(),
        "AWS_ENDPOINT_URL": moto_s3_server.endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "AWS_S3_ALLOW_UNSAFE_RENAME": "true",
    }
    table_url = url.partition("?")[0]
    for first in (0, 10, 20):
        write_deltalake(table_url, numbers(first), mode="append", storage_options=options)
    DeltaTable(table_url, storage_options=options).delete("id < 2")
    before = [rows_of(DeltaTable(table_url, version=version, storage_options=options)) for version in range(4)]
    assert prune_all(url, f"delta:{url}") == {"data/left-over.parquet"}
    assert [rows_of(DeltaTable(table_url, version=version, storage_options=options)) for version in range(4)] == before
