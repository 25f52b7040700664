"""Data frames and tables in and out through `lakefs-spec`: pandas, PyArrow, Polars, DuckDB."""

from __future__ import annotations

import duckdb
import lakefs
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from lakefs_spec import LakeFSFileSystem
from pyarrow.fs import FSSpecHandler, PyFileSystem

from tests.api.conftest import KEY_ID, SECRET, Running

ROWS = {"day": ["mon", "tue", "wed"], "sold": [3, 1, 4]}


@pytest.fixture
def options(service: Running) -> dict[str, str]:
    return {"host": service.url, "username": KEY_ID, "password": SECRET}


@pytest.fixture
def root(repo: lakefs.Repository) -> str:
    return f"lakefs://{repo.id}/main"


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_pandas_writes_and_reads(root: str, options: dict[str, str], kind: str) -> None:
    frame, url = pd.DataFrame(ROWS), f"{root}/frame.{kind}"
    if kind == "parquet":
        frame.to_parquet(url, storage_options=options)
        back = pd.read_parquet(url, storage_options=options)
    elif kind == "csv":
        frame.to_csv(url, storage_options=options, index=False)
        back = pd.read_csv(url, storage_options=options)
    else:
        frame.to_json(url, storage_options=options, orient="records")
        back = pd.read_json(url, storage_options=options)
    pd.testing.assert_frame_equal(back, frame)


def test_pandas_writes_a_partitioned_data_set_that_pyarrow_reads(
    root: str, options: dict[str, str], fs: LakeFSFileSystem
) -> None:
    pd.DataFrame(ROWS).to_parquet(f"{root}/set", storage_options=options, partition_cols=["day"])
    table = pq.read_table(f"{root.removeprefix('lakefs://')}/set", filesystem=fs)
    assert sorted(zip(table["day"].to_pylist(), table["sold"].to_pylist(), strict=True)) == sorted(
        zip(*ROWS.values(), strict=True)
    )


def test_pyarrow_reads_the_columns_that_it_needs(root: str, fs: LakeFSFileSystem, repo: lakefs.Repository) -> None:
    where = f"{repo.id}/main/wide.parquet"
    pq.write_table(pa.table({"a": range(10_000), "b": range(10_000)}), where, filesystem=fs, row_group_size=1000)
    arrow = PyFileSystem(FSSpecHandler(fs))
    assert pq.read_table(where, filesystem=arrow, columns=["b"])["b"].to_pylist() == list(range(10_000))
    found = ds.dataset(where, filesystem=arrow, format="parquet")
    assert found.to_table(filter=ds.field("a") >= 9_990).num_rows == 10


def test_polars_writes_and_reads(root: str, options: dict[str, str], fs: LakeFSFileSystem) -> None:
    frame = pl.DataFrame(ROWS)
    with fs.open(f"{root}/frame.parquet", "wb") as file:
        frame.write_parquet(file)
    assert pl.read_parquet(f"{root}/frame.parquet", use_pyarrow=True, storage_options=options).equals(frame)
    with fs.open(f"{root}/frame.parquet", "rb") as file:
        assert pl.read_parquet(file).equals(frame)
    dataset = ds.dataset(f"{root.removeprefix('lakefs://')}/frame.parquet", filesystem=fs)
    assert pl.scan_pyarrow_dataset(dataset).filter(pl.col("sold") > 1).collect().height == 2
    for kind, write, read in (("csv", frame.write_csv, pl.read_csv), ("arrow", frame.write_ipc, pl.read_ipc)):
        with fs.open(f"{root}/frame.{kind}", "wb") as file:
            write(file)
        assert read(f"{root}/frame.{kind}", storage_options=options).equals(frame)


def test_what_polars_does_not_ask_fsspec_for_does_not_know_the_scheme(
    root: str, options: dict[str, str], fs: LakeFSFileSystem
) -> None:
    """As docs/api.md says. When one of these works, the page is to be changed."""
    frame, url = pl.DataFrame(ROWS), f"{root}/frame.parquet"
    with fs.open(url, "wb") as file:
        frame.write_parquet(file)
    for call in (
        lambda: pl.read_parquet(url, storage_options=options),
        lambda: pl.scan_parquet(url, storage_options=options).collect(),
        lambda: frame.write_parquet(url, storage_options=options),
    ):
        with pytest.raises(FileNotFoundError, match="lakefs://"):
            call()


def test_duckdb_writes_and_queries(root: str, fs: LakeFSFileSystem) -> None:
    with duckdb.connect() as db:
        db.register_filesystem(fs)
        db.execute("create table sales as select * from (values ('mon', 3), ('tue', 1), ('wed', 4)) as t(day, sold)")
        db.execute(f"copy sales to '{root}/sales.parquet' (format parquet)")
        fs.invalidate_cache()
        found = db.execute("select day from read_parquet(?) where sold > 2 order by day", [f"{root}/*.parquet"])
        assert found.fetchall() == [("mon",), ("wed",)]


def test_a_query_reads_the_past(root: str, options: dict[str, str], repo: lakefs.Repository) -> None:
    main = repo.branch("main")
    pd.DataFrame({"n": [1]}).to_parquet(f"{root}/n.parquet", storage_options=options)
    before = main.commit("one")
    pd.DataFrame({"n": [1, 2]}).to_parquet(f"{root}/n.parquet", storage_options=options)
    main.commit("two")
    assert len(pd.read_parquet(f"lakefs://{repo.id}/{before.id}/n.parquet", storage_options=options)) == 1
    assert len(pd.read_parquet(f"lakefs://{repo.id}/main~1/n.parquet", storage_options=options)) == 1
    assert len(pd.read_parquet(f"{root}/n.parquet", storage_options=options)) == 2
