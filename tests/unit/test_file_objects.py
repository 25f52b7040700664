"""`Repository.open`: what a file reads is one object, what it writes is one upload, and none after an error."""

from __future__ import annotations

import csv
import gc
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from refstore.errors import Invalid
from refstore.objects.stored_file import AHEAD_BYTES_MAX, ReadAheadFile
from refstore.repository import Repository
from tests.reaper_world import World


def read(repo: Repository, path: str, ref: str = "main") -> bytes:
    with repo.open(ref, path) as file:
        return file.read()


def write_half(file: IO[Any], text: bytes | str) -> None:
    with file:
        file.write(text)
        raise ZeroDivisionError


def forget_half(repo: Repository, mode: str) -> None:
    repo.open("main", "a.txt", mode).write(b"half" if mode == "wb" else "half")  # type: ignore[call-overload]
    gc.collect()


def test_what_is_written_is_there_when_the_file_is_closed(repo: Repository) -> None:
    with repo.open("main", "a.bin", "wb", metadata={"owner": "ann"}, content_type="text/plain") as file:
        file.write(b"one, ")
        file.write(bytearray(b"two"))
        assert repo.stat_many("main", ["a.bin"]) == {}
    assert read(repo, "a.bin") == b"one, two"
    entry = repo.stat("main", "a.bin")
    assert (entry.size_bytes, entry.metadata, entry.content_type) == (8, {"owner": "ann"}, "text/plain")
    file.close()  # a second time does nothing
    with pytest.raises(ValueError, match="closed"):
        file.write(b"more")


def test_texts(repo: Repository) -> None:
    with repo.open("main", "a.csv", "w", newline="") as file:
        csv.writer(file).writerows([["day", "sold"], ["möntag", "3"]])
    assert read(repo, "a.csv") == "day,sold\r\nmöntag,3\r\n".encode()
    with repo.open("main", "a.csv", "r") as file:
        assert [*csv.DictReader(file)] == [{"day": "möntag", "sold": "3"}]
    with repo.open("main", "b.txt", "w", encoding="utf-16") as file:
        file.write("ä")
    with repo.open("main", "b.txt", "r", encoding="utf-16") as file:
        assert file.read() == "ä"


def test_a_writer_may_go_back(repo: Repository) -> None:
    with repo.open("main", "a.zip", "wb") as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.txt", "content")
    with repo.open("main", "a.zip") as file, zipfile.ZipFile(file) as archive:
        assert archive.read("x.txt") == b"content"


def test_what_is_large_waits_on_disk(repo: Repository, own_temporary_folder: None) -> None:
    body = bytes(range(256)) * 40_000
    with repo.open("main", "a.bin", "wb") as file:
        for start in range(0, len(body), 1 << 20):
            file.write(body[start : start + (1 << 20)])
    assert read(repo, "a.bin") == body


@pytest.mark.parametrize("mode", ["wb", "w"])
def test_nothing_is_uploaded_after_an_error_in_the_block(repo: Repository, mode: str) -> None:
    file = repo.open("main", "a.txt", mode)  # type: ignore[call-overload]
    with pytest.raises(ZeroDivisionError):
        write_half(file, b"half" if mode == "wb" else "half")
    assert file.closed
    assert [*repo.list("main")] == []


def test_nor_where_another_file_lies_in_between(repo: Repository) -> None:
    """As fsspec's, gzip's and pandas' handles: they close what they write to, whatever ended their block."""
    with pytest.raises(ZeroDivisionError), pytest.warns(RuntimeWarning, match="nothing was uploaded"):
        write_half(io.TextIOWrapper(repo.open("main", "a.txt", "wb")), "half")
    assert [*repo.list("main")] == []


def test_a_file_of_an_error_is_uploaded(repo: Repository) -> None:
    try:
        raise ZeroDivisionError("no number")
    except ZeroDivisionError as error:
        with repo.open("main", "error.txt", "w") as file:
            file.write(str(error))
    with repo.open("main", "later.txt", "w") as file:
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            file.write("handled")
    assert (read(repo, "error.txt"), read(repo, "later.txt")) == (b"no number", b"handled")


@pytest.mark.parametrize("mode", ["wb", "w"])
def test_nothing_is_uploaded_where_the_block_raises_the_error_again_that_it_began_in(
    repo: Repository, mode: str
) -> None:
    def fail_again() -> None:
        try:
            raise ValueError("first")
        except ValueError:
            with repo.open("main", "again", mode) as file:  # type: ignore[call-overload]
                file.write("half" if mode == "w" else b"half")
                raise

    with pytest.raises(ValueError, match="first"):
        fail_again()
    assert repo.stat_many("main", ["again"]) == {}


def test_a_file_that_is_closed_while_an_error_is_handled_says_that_it_uploads_nothing(repo: Repository) -> None:
    file = repo.open("main", "handled", "wb")
    file.write(b"whole")
    try:
        raise KeyError("no more")
    except KeyError:
        with pytest.warns(RuntimeWarning, match="'handled' was closed while KeyError was handled"):
            file.close()
    assert repo.stat_many("main", ["handled"]) == {}


@pytest.mark.parametrize("mode", ["wb", "w"])
def test_nothing_is_uploaded_of_what_nobody_closed(repo: Repository, mode: str) -> None:
    with pytest.warns(ResourceWarning, match=r"'a.txt' was not closed, so nothing was uploaded"):
        forget_half(repo, mode)
    assert [*repo.list("main")] == []


def test_nothing_is_uploaded_after_a_write_that_failed(repo: Repository) -> None:
    file = repo.open("main", "a.bin", "wb")
    file.write(b"half")
    with pytest.raises(TypeError):
        file.write("text")  # type: ignore[arg-type]
    file.close()
    assert [*repo.list("main")] == []


def test_an_object_that_is_there_may_be_spared(repo: Repository) -> None:
    with repo.open("main", "a.txt", "w", if_absent=True) as file:
        file.write("mine")
        repo.upload("main", "a.txt", b"theirs")
        with pytest.raises(FileExistsError) as refused:
            file.close()
    assert refused.value.filename == "a.txt"
    with pytest.raises(FileExistsError):
        repo.open("main", "a.txt", "wb", if_absent=True)
    assert read(repo, "a.txt") == b"theirs"


def test_what_is_not_there(repo: Repository) -> None:
    for ref, path in (("main", "a.txt"), ("mian", "a.txt")):
        with pytest.raises(FileNotFoundError):
            repo.open(ref, path)
    with pytest.raises(FileNotFoundError, match="did you mean 'main'"):
        repo.open("mian", "a.txt")
    with pytest.raises(FileNotFoundError, match="did you mean 'main'"):
        repo.open("mian", "a.txt", "wb")
    repo.create_branch("short", source="main")
    file = repo.open("short", "a.txt", "wb")
    repo.delete_branch("short")
    with pytest.raises(FileNotFoundError):
        file.close()
    assert file.closed


def test_a_mode_is_one_of_four(repo: Repository) -> None:
    with pytest.raises(Invalid, match="'rb' or 'wb'"):
        repo.open("main", "a.txt", "a")  # type: ignore[call-overload]
    with pytest.raises(LookupError):
        repo.open("main", "a.txt", "w", encoding="no such")


def test_a_file_is_one_object(repo: Repository) -> None:
    repo.upload("main", "a.bin", b"a" * 300_000)
    with repo.open("main", "a.bin") as file:
        assert file.read(10) == b"a" * 10
        repo.upload("main", "a.bin", b"b" * 400_000)
        repo.delete("main", "a.bin")
        assert file.read() == b"a" * 299_990
        assert file.seek(0, io.SEEK_END) == 300_000


def test_a_file_whose_object_went_away(at_once: World) -> None:
    repo = at_once.repo
    repo.upload("main", "a.bin", b"a" * 300_000)
    with repo.open("main", "a.bin") as file:
        repo.upload("main", "a.bin", b"b" * 300_000)
        at_once.run_past_grace()
        with pytest.raises(FileNotFoundError, match="open it again"):
            file.read()
    assert read(repo, "a.bin") == b"b" * 300_000


def test_reading_as_python_reads(repo: Repository, tmp_path: Path) -> None:
    body = b"".join(b"line %d\n" % number for number in range(40_000))
    (tmp_path / "a").write_bytes(body)
    repo.upload("main", "a", body)
    steps: list[Callable[[io.BufferedReader], object]] = [
        lambda file: file.read(100),
        lambda file: file.tell(),
        lambda file: file.seek(-5, io.SEEK_CUR),
        lambda file: file.readline(),
        lambda file: file.seek(250_000),
        lambda file: file.read(200_000),
        lambda file: file.seek(-3, io.SEEK_END),
        lambda file: file.read(10),
        lambda file: file.read(10),
        lambda file: file.seek(900_000),
        lambda file: file.read(),
        lambda file: file.seek(0),
        lambda file: sum(1 for _ in file),
        lambda file: (file.readable(), file.writable(), file.seekable()),
        lambda file: file.seek(1),
        lambda file: file.read(),
    ]
    with repo.open("main", "a") as ours, (tmp_path / "a").open("rb") as theirs:
        for step in steps:
            assert step(ours) == step(theirs)


@pytest.mark.parametrize("width", [1_000, 100_000])
def test_one_row_group_is_read_without_the_others(repo: Repository, width: int) -> None:
    """At most 1.2 times its bytes, whether pyarrow reads it column by column or as it chooses."""
    columns = 8 if width < 10_000 else 1
    text = pa.array([f"{number:0100}" for number in range(10 * width)])
    table = pa.table({f"c{number}": text for number in range(columns)})
    with repo.open("main", "a.parquet", "wb") as file:
        pq.write_table(table, file, row_group_size=width, compression="none", use_dictionary=False)
    for pre_buffer in (False, True):
        with repo.open("main", "a.parquet") as file:
            raw = file.raw
            assert isinstance(raw, ReadAheadFile)
            parquet = pq.ParquetFile(file, pre_buffer=pre_buffer)
            opening_bytes = raw.requested_bytes
            group = parquet.metadata.row_group(5)
            size_bytes = sum(group.column(number).total_compressed_size for number in range(group.num_columns))
            assert parquet.read_row_group(5, use_threads=False).num_rows == width
            assert raw.requested_bytes - opening_bytes <= 1.2 * size_bytes


def test_the_longer_a_file_is_read_in_order_the_fewer_requests_it_makes() -> None:
    requests: list[int] = []

    def read_range(start: int, end: int) -> list[bytes]:
        requests.append(end - start)
        return [bytes(end - start)]

    size_bytes = 400 << 20
    raw = ReadAheadFile(read_range, size_bytes, ahead_bytes=64 << 10)  # type: ignore[arg-type]
    with io.BufferedReader(raw, 64 << 10) as file:
        while file.read(10_000_000):
            pass
        assert sum(requests) == size_bytes
        file.seek(0)
        requests.clear()
        for _ in range(100_000):
            file.read(1000)
        assert len(requests) < 100
        assert max(requests) <= AHEAD_BYTES_MAX + (64 << 10)
        file.seek(200 << 20)
        requests.clear()
        file.read(10)
        assert requests == [128 << 10]
