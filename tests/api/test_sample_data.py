"""lakeFS's quickstart, with its queries, by DuckDB over `lakefs-spec`."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import duckdb
import lakefs
import pytest
from lakefs.client import Client
from lakefs_spec import LakeFSFileSystem

COUNTRIES = """
SELECT   country, COUNT(*)
FROM     READ_PARQUET('lakefs://{}/lakes.parquet')
GROUP BY country
ORDER BY COUNT(*)
DESC LIMIT 5;
"""
TABLE = "CREATE OR REPLACE TABLE lakes AS SELECT * FROM READ_PARQUET('lakefs://{}/denmark-lakes/lakes.parquet');"
DEEPEST = "SELECT Hylak_id, Lake_name, Depth_m FROM 'lakefs://{}/main/lakes.parquet' ORDER BY Depth_m DESC LIMIT 1"


@pytest.fixture
def quickstart(client: Client) -> lakefs.Repository:
    name = "q-" + secrets.token_hex(8)
    where = f"{client.storage_config.default_namespace_prefix}/{name}"
    return lakefs.Repository(name, client).create(where, include_samples=True)


@pytest.fixture
def duck(fs: LakeFSFileSystem) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.register_filesystem(fs)
        yield connection


def test_the_quickstart_goes_from_query_to_rollback(
    quickstart: lakefs.Repository, duck: duckdb.DuckDBPyConnection
) -> None:
    name, main = quickstart.id, quickstart.branch("main")

    def countries(branch: str) -> list[tuple[str, int]]:
        return duck.sql(COUNTRIES.format(f"{name}/{branch}")).fetchall()

    before = countries("main")
    assert (len(before), before[0][1] > before[4][1] > 1000) == (5, True)
    denmark = quickstart.branch("denmark-lakes").create("main")
    duck.sql(TABLE.format(name))
    assert duck.sql("SELECT COUNT(*) FROM lakes").fetchall() == [(100_000,)]
    duck.sql("DELETE FROM lakes WHERE Country != 'Denmark';")
    duck.sql(f"COPY lakes TO 'lakefs://{name}/denmark-lakes/lakes.parquet';")
    ((country, lakes),) = countries("denmark-lakes")
    assert (country, lakes > 100) == ("Denmark", True)
    assert countries("main") == before
    denmark.commit("Create a dataset of just the lakes in Denmark")
    denmark.merge_into(main)
    assert countries("main") == [(country, lakes)]
    main.revert("main", parent_number=1)
    assert countries("main") == before
    assert len(duck.sql(DEEPEST.format(name)).fetchall()) == 1
