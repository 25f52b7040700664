"""The filesystem `refstore://REPOSITORY/REF/PATH`: fsspec's own suite, data frames, and what is ours."""

from __future__ import annotations

import os
import pickle
import re
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from fsspec.tests import abstract

import refstore
from refstore.fsspec_filesystem import RefstoreFileSystem

ROOT = Path(__file__).resolve().parents[2]
ROWS = {"day": ["mon", "tue", "wed"], "sold": [3, 1, 4]}


fsspec.register_implementation("refstore", RefstoreFileSystem, clobber=True)
"""As the entry point does where the project is installed anew."""


@pytest.fixture
def lake_path(tmp_path: Path) -> Path:
    """A lake with the repository `sales`."""
    with refstore.create(tmp_path / "lake") as lake:
        lake.create_repository("sales")
    return tmp_path / "lake"


@pytest.fixture
def options(lake_path: Path) -> dict[str, str]:
    return {"lake": str(lake_path)}


@pytest.fixture
def filesystem(options: dict[str, str]) -> Iterator[RefstoreFileSystem]:
    fs = fsspec.filesystem("refstore", **options)
    assert isinstance(fs, RefstoreFileSystem)
    yield fs
    fs.close()
    RefstoreFileSystem.clear_instance_cache()


@pytest.fixture
def fs(filesystem: RefstoreFileSystem) -> RefstoreFileSystem:
    return filesystem


class _Fixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, filesystem: RefstoreFileSystem) -> RefstoreFileSystem:
        return filesystem

    @pytest.fixture
    def fs_path(self, fs: RefstoreFileSystem) -> str:
        """A folder of the branch, which has to hold something to be there."""
        fs.touch("sales/main/suite/anchor")
        return "sales/main/suite"

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return False


class TestCopy(abstract.AbstractCopyTests, _Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, _Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, _Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, _Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, _Fixtures):
    pass


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_pandas(fs: RefstoreFileSystem, options: dict[str, str], kind: str) -> None:
    frame, url = pd.DataFrame(ROWS), f"refstore://sales/main/frame.{kind}"
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


def test_polars(fs: RefstoreFileSystem, options: dict[str, str]) -> None:
    frame, url = pl.DataFrame(ROWS), "refstore://sales/main/frame"
    with fs.open(f"{url}.parquet", "wb") as file:
        frame.write_parquet(file)
    with fs.open(f"{url}.parquet") as file:
        assert pl.read_parquet(file).equals(frame)
    assert pl.read_parquet(f"{url}.parquet", use_pyarrow=True, storage_options=options).equals(frame)
    dataset = ds.dataset("sales/main/frame.parquet", filesystem=fs)
    assert pl.scan_pyarrow_dataset(dataset).filter(pl.col("sold") > 1).collect().height == 2
    for kind, write, read in (("csv", frame.write_csv, pl.read_csv), ("arrow", frame.write_ipc, pl.read_ipc)):
        with fs.open(f"{url}.{kind}", "wb") as file:
            write(file)
        assert read(f"{url}.{kind}", storage_options=options).equals(frame)


def test_what_polars_does_not_ask_fsspec_for(fs: RefstoreFileSystem, options: dict[str, str]) -> None:
    """As docs/usage.md says. When one of these works, the page is to be changed."""
    frame, url = pl.DataFrame(ROWS), "refstore://sales/main/frame.parquet"
    with fs.open(url, "wb") as file:
        frame.write_parquet(file)
    for call in (
        lambda: pl.read_parquet(url, storage_options=options),
        lambda: pl.scan_parquet(url, storage_options=options).collect(),
        lambda: frame.write_parquet(url, storage_options=options),
    ):
        with pytest.raises((pl.exceptions.ComputeError, OSError, ValueError, ImportError)):
            call()


def test_duckdb(fs: RefstoreFileSystem, options: dict[str, str]) -> None:
    pd.DataFrame(ROWS).to_parquet("refstore://sales/main/in.parquet", storage_options=options)
    with duckdb.connect() as connection:
        connection.register_filesystem(fs)
        connection.execute(
            "COPY (SELECT day, sold * 2 AS sold FROM 'refstore://sales/main/in.parquet') TO"
            " 'refstore://sales/main/out.parquet' (FORMAT parquet)"
        )
        found = connection.execute("SELECT sum(sold) FROM 'refstore://sales/main/*.parquet'").fetchone()
    assert found == (24,)


def test_pyarrow_data_sets(fs: RefstoreFileSystem) -> None:
    table = pa.table(ROWS)
    ds.write_dataset(table, "sales/main/set", filesystem=fs, format="parquet", partitioning=["day"])
    back = ds.dataset("sales/main/set", filesystem=fs, partitioning=["day"]).to_table(filter=ds.field("sold") > 1)
    assert sorted(zip(back["day"].to_pylist(), back["sold"].to_pylist(), strict=True)) == [("mon", 3), ("wed", 4)]
    pq.write_table(table, "sales/main/one.parquet", filesystem=fs)
    assert pq.ParquetFile(fs.open("sales/main/one.parquet")).read(use_threads=False).equals(table)


def test_folders_are_what_paths_have_in_common(fs: RefstoreFileSystem, lake_path: Path) -> None:
    fs.pipe({"sales/main/a/x.txt": b"1", "sales/main/a/b/y.txt": b"22", "sales/main/z": b""})
    with refstore.open(lake_path) as lake:
        repo = lake.repository("sales")
        repo.upload("main", "a/folder/", b"")  # as consoles of S3 keep an empty folder
        repo.commit("main", "first")
        repo.create_branch("feature/x", source="main")
        repo.create_tag("v1", ref="main")
    assert fs.ls("", detail=False) == ["sales"]
    assert fs.ls("refstore://sales", detail=False) == ["sales/feature%2Fx", "sales/main", "sales/v1"]
    assert fs.ls("sales/main/a/", detail=False) == ["sales/main/a/b", "sales/main/a/folder", "sales/main/a/x.txt"]
    assert fs.ls("sales/main/z", detail=False) == ["sales/main/z"]
    assert fs.cat("sales/feature%2Fx/a/b/y.txt") == fs.cat("refstore://sales/v1/a/b/y.txt") == b"22"
    for path, is_there in (
        ("sales/main", True),
        ("sales/none", False),
        ("none", False),
        ("sales/main/a/n", False),
        ("No such!", False),
    ):
        assert fs.exists(path) is is_there
    assert (fs.isdir("sales/main/a"), fs.isfile("sales/main/a"), fs.isfile("sales/main/z")) == (True, False, True)
    with pytest.raises(FileNotFoundError):
        fs.ls("sales/main/none")
    below = ["sales/main/a/b/y.txt", "sales/main/a/x.txt"]
    assert fs.find("sales/main/a") == below
    assert fs.find("sales/main/a", withdirs=True) == ["sales/main/a", "sales/main/a/b", *below]
    assert fs.find("sales/main/a", maxdepth=1) == below[1:]
    assert fs.find("sales/main/z") == ["sales/main/z"]
    assert fs.glob("sales/main/**/*.txt") == below
    assert fs.du("sales/main") == 3


def test_what_is_known_of_a_file(fs: RefstoreFileSystem) -> None:
    fs.pipe_file("sales/main/a.txt", b"abc", metadata={"owner": "ann"}, content_type="text/plain")
    info = fs.info("refstore://sales/main/a.txt")
    assert (info["size"], info["type"], info["metadata"]) == (3, "file", {"owner": "ann"})
    assert (
        fs.created("sales/main/a.txt") == fs.modified("sales/main/a.txt") == datetime.fromtimestamp(info["mtime"], UTC)
    )
    before = fs.checksum("sales/main/a.txt")
    fs.pipe_file("sales/main/a.txt", b"abd")
    assert fs.checksum("sales/main/a.txt") != before
    with pytest.raises(IsADirectoryError):
        fs.modified("sales/main")


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (None, None, b"0123456789"),
        (2, 5, b"234"),
        (-3, None, b"789"),
        (0, -1, b"012345678"),
        (5, 2, b""),
        (3, 99, b"3456789"),
    ],
)
def test_ranges(fs: RefstoreFileSystem, start: int | None, end: int | None, expected: bytes) -> None:
    fs.pipe_file("sales/main/a", b"0123456789")
    assert fs.cat_file("sales/main/a", start, end) == expected
    assert fs.cat_ranges(["sales/main/a"], [start], [end]) == [expected]


def test_copies_and_moves(fs: RefstoreFileSystem, lake_path: Path) -> None:
    with refstore.open(lake_path) as lake:
        lake.create_repository("other")
        lake.repository("sales").create_branch("try", source="main")
    fs.pipe_file("sales/main/a", b"abc")
    fs.cp("sales/main/a", "sales/try/b")
    fs.cp("sales/main/a", "other/main/c")
    fs.mv("sales/main/a", "sales/main/d")
    assert (fs.cat("sales/try/b"), fs.cat("other/main/c"), fs.cat("sales/main/d")) == (b"abc",) * 3
    assert not fs.exists("sales/main/a")
    with pytest.raises(FileNotFoundError):
        fs.cp("sales/main/none", "sales/main/e")
    with pytest.raises(FileNotFoundError):
        fs.cp_file("sales/main/d", "sales/nobranch/e")


def test_a_file_is_removed_by_exactly_its_name(fs: RefstoreFileSystem) -> None:
    for name in ("part[1].csv", "part1.csv", "a*"):
        fs.pipe_file(f"sales/main/exact/{name}", b"1")
    fs.rm_file("sales/main/exact/part[1].csv")
    fs.rm_file("sales/main/exact/a*")
    assert fs.ls("sales/main/exact", detail=False) == ["sales/main/exact/part1.csv"]
    with pytest.raises(IsADirectoryError):
        fs.rm_file("sales/main/exact")
    with pytest.raises(FileNotFoundError):
        fs.rm_file("sales/main/exact/none")


def test_removing(fs: RefstoreFileSystem) -> None:
    fs.pipe({f"sales/main/a/{name}": b"x" for name in ("x", "y", "b/z")})
    with pytest.raises(IsADirectoryError):
        fs.rm("sales/main/a")
    with pytest.raises(IsADirectoryError, match="repository"):
        fs.rm("sales", recursive=True)
    with pytest.raises(FileNotFoundError):
        fs.rm("sales/main/none")
    fs.rm("sales/main/a", recursive=True, maxdepth=1)
    assert fs.find("sales/main") == ["sales/main/a/b/z"]
    fs.rm("sales/main/a", recursive=True)
    assert fs.find("sales/main") == []
    assert fs.exists("sales/main")


@pytest.mark.filterwarnings("ignore:.*was closed while ZeroDivisionError was handled:RuntimeWarning")
@pytest.mark.parametrize("mode", ["wb", "w"])
def test_nothing_is_written_after_an_error(options: dict[str, str], fs: RefstoreFileSystem, mode: str) -> None:
    def write_half(file: Any) -> None:
        with file as half:
            half.write(b"half" if mode == "wb" else "half")
            raise ZeroDivisionError

    url = "refstore://sales/main/a.txt"
    for opened in (
        lambda: fs.open(url, mode),
        lambda: fsspec.open(url, mode, **options),
        lambda: fsspec.open(url, mode, compression="gzip", **options),
    ):
        with pytest.raises(ZeroDivisionError):
            write_half(opened())
        assert not fs.exists(url)


def test_files_with_compression_and_texts(options: dict[str, str], fs: RefstoreFileSystem) -> None:
    url = "refstore://sales/main/a.txt.gz"
    with fsspec.open(url, "wt", compression="infer", **options) as file:
        file.write("ä")
    with fsspec.open(url, "rt", compression="infer", **options) as file:
        assert file.read() == "ä"
    assert fs.cat(url)[:2] == b"\x1f\x8b"
    with fs.open(url, "rt", compression="gzip", encoding="utf-8") as file:
        assert file.read() == "ä"
    with pytest.raises(NotImplementedError, match=r"fsspec\.open"):
        fs.open(url, "wb", compression="gzip")  # the file of the compression would not close ours
    with pytest.raises(FileExistsError):
        fs.open(url, "x")
    with pytest.raises(NotImplementedError, match="branch"), fs.transaction:
        fs.open(url, "wb")


def test_it_is_opened_again_in_another_process(fs: RefstoreFileSystem) -> None:
    fs.pipe_file("sales/main/a", b"abc")
    packed = pickle.dumps(fs)
    RefstoreFileSystem.clear_instance_cache()
    again = pickle.loads(packed)  # noqa: S301
    assert again is not fs
    assert again.cat("sales/main/a") == b"abc"
    again.close()


def test_the_environment_names_the_lake(lake_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFSTORE_DATA", os.fspath(lake_path))
    fs = fsspec.filesystem("refstore", skip_instance_cache=True)
    assert fs.ls("sales", detail=False) == ["sales/main"]
    fs.close()


def test_the_project_brings_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    kind = RefstoreFileSystem
    assert project["entry-points"]["fsspec.specs"] == {kind.protocol: f"{kind.__module__}:{kind.__qualname__}"}
    assert any(line.startswith("fsspec") for line in project["optional-dependencies"]["fsspec"])


def test_the_blocks_of_the_page_run(
    tmp_path: Path, lake_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    section = (
        (ROOT / "docs/usage.md").read_text("utf-8").partition("## Files and data frames\n")[2].partition("\n## ")[0]
    )
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE):
        exec(block, names)  # noqa: S102
    assert capsys.readouterr().out == "1\n[(4,)]\n"
    names["fs"].close()
    RefstoreFileSystem.clear_instance_cache()


def test_a_closed_filesystem_is_given_to_nobody_again(fs: RefstoreFileSystem, options: dict[str, str]) -> None:
    fs.pipe_file("sales/main/a.txt", b"1")
    fs.close()
    again: RefstoreFileSystem = fsspec.filesystem("refstore", **options)
    assert again.cat_file("sales/main/a.txt") == b"1"
    again.close()
