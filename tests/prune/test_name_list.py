"""Names from lists and commands: all of them, or an error."""

from __future__ import annotations

import gzip
import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refstore.errors import Corrupt, Invalid, NotFound, RefstoreError, StoreMisconfigured, Unavailable
from refstore.objects import open_objects
from refstore_gc.untyped_arrow import pa, pq
from refstore_prune.sources import open_source
from refstore_prune.sources.base import BATCH_NAMES, NameSource, SourceOptions
from tests.servers.s3_servers import S3Server

STORE = "file:///somewhere/else"


def opened(place: Path | str, column: str = "", kind: str = "list") -> NameSource:
    return open_source(f"{kind}:{place}", SourceOptions(column=column))


def read(source: NameSource) -> list[str]:
    """Read all names as a run does."""
    source.check(STORE)
    batches: list[Any] = list(source.parts())
    assert all(0 < len(batch) <= BATCH_NAMES and batch.type == pa.string() for batch in batches if len(batch))
    return [name for batch in batches for name in batch.to_pylist()]


def prints(code: str) -> str:
    return shlex.join([sys.executable, "-c", code])


def parquet(file: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), file)
    return file


# ---- what is read


@pytest.mark.parametrize(
    ("name", "content", "column", "names"),
    [
        ("a.txt", b"data/1\ndata/2\n", "", ["data/1", "data/2"]),
        ("a", b"\xef\xbb\xbfdata/1\r\n\r\n\n data/2 \r\n", "", ["data/1", " data/2 "]),
        ("a.txt", "é/ü\n".encode(), "", ["é/ü"]),
        ("a.csv", b"path\nx\n", "", ["path", "x"]),  # it is not known to be a header, and one name more does no harm
        ("a.csv", b'id,path\n1,x\n\n2,"y,1"\n', "path", ["x", "y,1"]),
        ("a.tsv", b"id\tpath\r\n1\tx\r\n", "path", ["x"]),
        ("a.txt", b"id,path\n1,x\n", "path", ["x"]),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_texts(tmp_path: Path, name: str, content: bytes, column: str, names: list[str], packed: bool) -> None:
    file = tmp_path / (f"{name}.gz" if packed else name)
    file.write_bytes(gzip.compress(content, mtime=0) if packed else content)
    assert read(opened(file, column)) == names


def test_a_large_text_comes_in_bounded_batches(tmp_path: Path) -> None:
    names = [f"{number:x}" for number in range(3 * BATCH_NAMES)]
    (tmp_path / "a").write_text("".join(f"{name}\n" for name in names))
    assert read(opened(tmp_path / "a")) == names


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_parquet(tmp_path: Path, kind: Any) -> None:
    names = [f"data/{number}" for number in range(BATCH_NAMES + 1)]
    file = parquet(tmp_path / "a.parquet", path=pa.array(names).cast(kind), size=pa.array(range(len(names))))
    assert read(opened(file)) == names
    assert read(opened(file, "path")) == names


def test_a_folder_and_a_pattern(tmp_path: Path) -> None:
    for name in ("day=1/part-0.csv", "day=1/_SUCCESS", ".part-0.csv.crc", "_day=2/part-1.csv", "b.txt"):
        (tmp_path / "list" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "list" / name).write_text(f"of {name}\n")
    (tmp_path / "latest").symlink_to(tmp_path / "list")
    folder = opened(tmp_path / "latest")
    assert read(folder) == ["of _day=2/part-1.csv", "of b.txt", "of day=1/part-0.csv"]
    assert folder.facts().read == {"files": 3, "files_left_out": 2, "names": 3}
    assert read(opened(tmp_path / "list" / "*.txt")) == ["of b.txt"]
    assert read(opened(f"file://{tmp_path}/list/b.txt")) == ["of b.txt"]
    (tmp_path / "list" / "linked").symlink_to(tmp_path / "list" / "day=1")
    with pytest.raises(Invalid, match=r"linked .* symbolic link"):
        read(folder)


def test_objects_of_a_store(tmp_path: Path, rclone_s3_server: S3Server) -> None:
    url = rclone_s3_server.url()
    plain, _, options = url.partition("?")
    with_options = f"?{options}" if options else ""
    parquet(tmp_path / "a.parquet", path=pa.array(["x"]))
    store = open_objects(url)
    store.put("lists/a.parquet", (tmp_path / "a.parquet").read_bytes())
    store.put("lists/b.csv.gz", gzip.compress(b"y\n", mtime=0))
    store.put("lists/_SUCCESS", b"")
    store.close()
    assert read(opened(f"{plain}/lists/a.parquet{with_options}")) == ["x"]
    assert read(opened(f"{plain}/lists/{with_options}")) == ["x", "y"]
    assert read(opened(f"{plain}/lists/*.gz{with_options}")) == ["y"]
    with pytest.raises(Invalid, match="lies in the store"):
        opened(f"{plain}/lists/a.parquet{with_options}").check(url)
    opened(f"{plain}/lists/a.parquet{with_options}").check(f"{plain}/list{with_options}")
    for place in ("lists/c.csv", "lists/*.tsv", "none/"):
        with pytest.raises(NotFound):
            read(opened(f"{plain}/{place}{with_options}"))


def test_a_list_says_of_which_time_it_is(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("a\n")
    (tmp_path / "new").write_text("b\n")
    os.utime(tmp_path / "old", (1_000_000_000, 1_000_000_000))
    source = opened(tmp_path)
    before_ms = time.time_ns() // 1_000_000
    assert read(source) == ["b", "a"]
    facts = source.facts()
    assert facts.as_of_ms == 1_000_000_000_000
    assert facts.began_ms >= before_ms
    assert any("2001-09-09" in each for each in facts.not_seen)


def test_a_list_whose_time_is_unknown_is_never_new(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a\n")
    os.utime(tmp_path / "a", (0, 0))
    source = opened(tmp_path / "a")
    assert read(source) == ["a"]
    assert source.facts().as_of_ms == 1
    os.utime(tmp_path / "a", (time.time() + 1000,) * 2)
    with pytest.raises(Invalid, match="written in the future"):
        read(opened(tmp_path / "a"))


# ---- what is no list


@pytest.mark.parametrize(
    ("name", "content", "column", "says"),
    [
        ("a", b"", "", "empty"),
        ("a.gz", gzip.compress(b"", mtime=0), "", "empty"),
        ("a", b"\n\r\n", "", "empty"),
        ("a.csv", b"id,path\n", "path", "empty"),
        ("a", b"data/1\ndata/", "", "line 2 .* no line end"),
        ("a.csv", b"path\na", "path", "line 2 .* no line end"),
        ("a", b"a\n\xff\n", "", "not UTF-8 in line 2"),
        ("a", "data/1\n".encode("utf-16"), "", "not UTF-8"),
        ("a", "data/1\n".encode("utf-16-le"), "", "NUL in line 1"),
        ("a", b'a\n"b"\n', "", "line 2 .* quotes"),
        ("a", b"a" * 100_000, "", "more than"),
        ("a.csv", b"id,path\n1,x\n", "", r"\(--column\); it has: id, path"),
        ("a.csv", b"id,path\n1,x\n", "name", r"\(--column\); it has: id, path"),
        ("a.csv", b"path,path\n1,x\n", "path", "which column"),
        ("a.csv", b"id,path\n1,x\n2\n", "path", "line 3 .* has 1 fields"),
        ("a.csv", b"id,path\n1,x\n2,\n", "path", "line 3 .* has no name"),
        ("a.csv", b'id,note,path\n1,"oops,a\n2,",b\n', "path", "line 2 .* no row of CSV"),
        ("a.csv", b'id,path\n1,"x"y\n', "path", "line 2 .* no row of CSV"),
        ("a.csv", b'id,path\n1,"x\n' + b"2,y\n" * 100_000, "path", "line 2 .* no row of CSV"),
    ],
)
def test_texts_that_are_no_list(tmp_path: Path, name: str, content: bytes, column: str, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Invalid, match=says):
        read(opened(tmp_path / name, column))


@pytest.mark.parametrize(
    ("columns", "column", "says"),
    [
        ({"path": pa.array(["a", None, "c"])}, "path", "no name in row 2"),
        ({"path": pa.array(["a", ""])}, "", "no name in row 2"),
        ({"path": pa.array(["a"]), "bucket": pa.array(["b"])}, "", "of text are: path, bucket"),
        ({"path": pa.array(["a"])}, "name", "of text are: path"),
        ({"path": pa.array([1])}, "path", "of text are: none"),
        ({"path": pa.array([], pa.string())}, "path", "empty"),
    ],
)
def test_parquet_that_is_no_list(tmp_path: Path, columns: dict[str, Any], column: str, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        read(opened(parquet(tmp_path / "a.parquet", **columns), column))


def test_parquet_whose_text_is_not_utf_8(tmp_path: Path) -> None:
    text = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    with pytest.raises(Corrupt, match="UTF8"):
        read(opened(parquet(tmp_path / "a.parquet", path=text)))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 4] ^= 0x10
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, flip])
@pytest.mark.parametrize("suffix", ["parquet", "csv.gz"])
def test_damaged_files(tmp_path: Path, suffix: str, damage: Callable[[Path], None]) -> None:
    names = [f"data/{number * 7919 % 100_003}" for number in range(100_000)]
    file = tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.table({"path": names}), file, write_page_checksum=True, use_dictionary=False)
    else:
        file.write_bytes(gzip.compress("".join(f"{name}\n" for name in names).encode()))
    assert read(opened(file)) == names
    damage(file)
    with pytest.raises(Corrupt, match="damaged, or was cut off"):
        read(opened(file))


def test_places_without_a_list(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for place in ("none.txt", "*.txt", "none/*.txt", "none/a.txt", "part", "pipe"):
        with pytest.raises((NotFound, Unavailable, StoreMisconfigured)):
            read(opened(tmp_path / place))
    (tmp_path / "part" / "_temporary").mkdir()
    (tmp_path / "part" / "_temporary" / "part-1").write_text("a\n")
    (tmp_path / "part" / "part-0").write_text("a\n")
    with pytest.raises(Unavailable, match="still writes"):
        read(opened(tmp_path / "part"))


def test_a_file_that_grows_while_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a\n")
    parts = opened(tmp_path / "a").parts()
    next(parts)
    with (tmp_path / "a").open("a") as file:
        file.write("b\n")
    with pytest.raises(Unavailable, match="changed while it was read"):
        list(parts)


def test_a_list_in_the_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a\n")
    for store in (f"file://{tmp_path}", f"file://{tmp_path.parent}"):
        with pytest.raises(Invalid, match="lies in the store"):
            opened(tmp_path / "a").check(store)
    opened(tmp_path / "a").check(f"file://{tmp_path}/other")


# ---- what a command prints


def test_a_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a b").write_text("x\n")
    source = opened(f"cat '{tmp_path}/a b'", kind="exec")
    assert read(source) == ["x"]
    assert source.facts().read == {"names": 1}
    assert read(opened(prints("print('id,path'); print('1,x')"), "path", kind="exec")) == ["x"]
    assert read(opened("echo $HOME '*'", kind="exec")) == ["$HOME *"]  # there is no shell
    read(opened(prints("import sys; print('x'); print('a warning', file=sys.stderr)"), kind="exec"))
    assert "a warning" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("code", "error", "says"),
    [
        ("print('x'); raise SystemExit(3)", Unavailable, "ended with code 3"),
        ("import os; print('x', flush=True); os.kill(os.getpid(), 9)", Unavailable, "ended by signal 9"),
        ("print('x\\ny', end='')", Invalid, "no line end"),
        ("pass", Invalid, "empty"),
        ("print()", Invalid, "empty"),
    ],
)
def test_commands_whose_output_is_no_list(code: str, error: type[RefstoreError], says: str) -> None:
    with pytest.raises(error, match=says):
        read(opened(prints(code), kind="exec"))


def test_a_command_that_cannot_be_started(tmp_path: Path) -> None:
    for command, says in (
        (f"{tmp_path}/none --password x", "there is no program"),
        ("'a", "quotes"),
        ("''", "program"),
    ):
        with pytest.raises(Invalid, match=says) as caught:
            read(opened(command, kind="exec"))
        assert "password" not in str(caught.value)


def test_a_command_ends_when_its_reader_does(tmp_path: Path) -> None:
    code = f"import os\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\nwhile True: print('x' * 99)"
    parts = opened(prints(code), kind="exec").parts()
    next(parts)
    del parts
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
