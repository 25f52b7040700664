"""`upload -r` and `download -r`: what cannot be taken over is named, the rest is, and the exit code says so."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from refstore.cli import download, files
from refstore.cli.files import SourceFile
from refstore.configuration.settings import embedded_urls
from refstore.core import ids
from refstore.core.ids import BranchName
from refstore.lake import Lake, open_lake_at
from refstore.operations.upload import Upload
from refstore.public_types import stored_entry
from refstore.records import keys as record_keys
from refstore.records.encoding import encode
from tests.commands import Command, paths


def make_socket(file: Path) -> None:
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(os.path.relpath(file))
    bound.close()


NOBODY = 65534
ODD: dict[str, tuple[Callable[[Path], object], str]] = {
    "fifo": (os.mkfifo, "a FIFO"),
    "socket": (make_socket, "a socket"),
    "dangling": (lambda file: file.symlink_to("nowhere"), "a link to nothing"),
    "loop": (lambda file: file.symlink_to("loop"), "Too many levels"),
    "folder-link": (lambda file: file.symlink_to("deep", target_is_directory=True), "a link to a folder"),
    "device-link": (lambda file: file.symlink_to("/dev/null"), "a device"),
    "bad-\udcff": (lambda file: file.write_bytes(b"1"), "valid Unicode"),
}
"""What lies in folders and is no file that can be uploaded: how it is made, and what is said of it."""


@pytest.fixture
def tree(sales: Command) -> Path:
    folder = sales.folder / "t"
    (folder / "deep").mkdir(parents=True)
    for name in ("a", "deep/b", "line\nbreak", "z"):
        (folder / name).write_bytes(name.encode())
    (folder / "file-link").symlink_to("a")
    return folder


GOOD = ["a", "deep/b", "file-link", "line\nbreak", "z"]


class TestUpload:
    @pytest.mark.parametrize("name", ODD, ids=ascii)
    def test_what_is_no_file_is_named_and_the_rest_is_uploaded(self, sales: Command, tree: Path, name: str) -> None:
        make, said = ODD[name]
        make(tree / name)
        for options in (["--dry-run"], []):
            ran = sales("upload", "-r", "sales", "main", "t", *options, "--json")
            assert ran.code == 2
            (line,) = ran.err.splitlines()
            assert repr(name) in line
            assert said in line
        assert (ran.json["objects"], ran.json["not_uploaded"]) == (5, 1)
        assert paths(sales.json("ls", "sales", "main", "-r")) == GOOD
        again = sales("upload", "-r", "sales", "main", "t", "--json")
        assert (again.code, again.json["objects"], again.json["unchanged"]) == (2, 0, 5)
        assert sales.json("upload", "-r", "sales", "main", "t", "--exclude", name)["not_uploaded"] == 0

    def test_a_folder_whose_name_is_not_utf_8(self, sales: Command, tree: Path) -> None:
        for name in ("one", "two"):
            file = tree / "bad-\udcff" / name
            file.parent.mkdir(exist_ok=True)
            file.touch()
        ran = sales("upload", "-r", "sales", "main", "t", "--json")
        assert (ran.code, ran.json["objects"], ran.json["not_uploaded"]) == (2, 5, 2)
        assert ran.err.count("valid Unicode") == 2

    def test_a_name_that_is_too_long_below_the_prefix(self, sales: Command, tree: Path) -> None:
        (tree / ("x" * 200)).touch()
        ran = sales("upload", "-r", "sales", "main", "t", "p" * 900, "--json")
        assert (ran.code, ran.json["objects"], ran.json["not_uploaded"]) == (2, 5, 1)
        assert "at most 1024 bytes" in ran.err
        for prefix in ("../up", "p" * 1024):
            refused = sales("upload", "-r", "sales", "main", "t", prefix, "--json")
            assert (refused.code, refused.error["code"], refused.out) == (2, "invalid_path", "")

    def test_a_folder_with_nothing_that_can_be_uploaded(self, sales: Command) -> None:
        (sales.folder / "t").mkdir()
        os.mkfifo(sales.folder / "t" / "fifo")
        ran = sales("upload", "-r", "sales", "main", "t")
        assert (ran.code, ran.out) == (2, "")
        assert "'fifo' is not uploaded" in ran.err
        assert "holds no files" in ran.err

    @pytest.mark.parametrize("change", ["deleted", "replaced by a folder", "appended", "rewritten"])
    def test_a_file_that_changes_meanwhile_and_the_others_are_uploaded(
        self, sales: Command, tree: Path, monkeypatch: pytest.MonkeyPatch, change: str
    ) -> None:
        chunks = SourceFile.chunks

        def change_then_read(source: SourceFile):  # type: ignore[no-untyped-def]
            if source.file.name not in ("a", "deep", "b"):
                yield from chunks(source)
                return
            read = chunks(source)
            if change == "deleted":
                source.file.unlink(missing_ok=True)
            elif change == "replaced by a folder":
                source.file.unlink(missing_ok=True)
                source.file.mkdir(exist_ok=True)
            yield next(read)
            with source.file.open("ab" if change == "appended" else "wb") as opened:
                opened.write(b"new")
            os.utime(source.file, ns=(1, 1))
            yield from read

        (tree / "file-link").unlink()
        monkeypatch.setattr(SourceFile, "chunks", change_then_read)
        ran = sales("upload", "-r", "sales", "main", "t", "--json")
        assert (ran.code, ran.json["objects"], ran.json["not_uploaded"]) == (2, 2, 2)
        assert [line.count("is not uploaded") for line in ran.err.splitlines()] == [1, 1]
        assert paths(sales.json("ls", "sales", "main", "-r")) == ["line\nbreak", "z"]

    def test_what_may_not_be_read(self, tree: Path) -> None:
        for folder in (Path(), tree):
            folder.chmod(0o755)
        (tree / "a").chmod(0)
        (tree / "deep").chmod(0)
        user = os.geteuid()
        with contextlib.ExitStack() as stack:
            if user == 0:  # who may read everything
                os.seteuid(NOBODY)
                stack.callback(os.seteuid, user)
            found = files.tree(Path("t"))
            faults = {path: file.find_fault() for path, file in found.files.items()}
        assert found.left_out == {"deep": "it cannot be read: Permission denied"}
        assert [path for path, fault in faults.items() if "Permission denied" in fault] == ["a", "file-link"]
        assert faults["z"] == ""


def open_lake(command: Command) -> Lake:
    return open_lake_at(*embedded_urls(command.folder / "lake"))


def put(command: Command, *names: str) -> None:
    """Upload what other clients would, markers of folders among it."""
    with open_lake(command) as lake:
        uploads = [Upload(path, b"" if path.endswith("/") else path.encode()) for path in names]
        lake.repository("sales").upload_many("main", uploads)


def files_below(folder: Path) -> list[str]:
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


class TestDownload:
    def test_a_folder_marker_is_a_folder(self, sales: Command) -> None:
        put(sales, "t/", "t/d/", "t/d/one", "t/empty/", "t/two")
        for target, prefix in (("all", ""), ("below", "t/"), ("part", "t/d")):
            answer = sales.json("download", "-r", "sales", "main", prefix, target)
            assert answer["not_downloaded"] == 0
        assert files_below(sales.folder / "all") == ["t/d/one", "t/two"]
        assert files_below(sales.folder / "below") == ["d/one", "two"]
        assert files_below(sales.folder / "part") == ["d/one"]
        assert (sales.folder / "all/t/empty").is_dir()
        assert (sales.folder / "below/empty").is_dir()

    @pytest.mark.parametrize(
        ("paths_there", "left_out"),
        [
            (["x/y", "x//y"], "x/y"),
            (["x", "x/y", "x/z/1"], "x/y x/z/1"),
            (["x", "x/"], "x/"),
            (["x/y/", "x//y"], "x/y/"),
        ],
    )
    def test_of_two_paths_that_need_one_name_the_first_is_downloaded(
        self, sales: Command, paths_there: list[str], left_out: str
    ) -> None:
        put(sales, "a", *paths_there, "z")
        ran = sales("download", "-r", "sales", "main", "", "got", "--json")
        assert (ran.code, ran.json["not_downloaded"]) == (2, len(left_out.split()))
        assert [line.count("was not downloaded") for line in ran.err.splitlines()] == [1] * len(left_out.split())
        assert all(repr(path) in ran.err for path in left_out.split())
        assert (sales.folder / "got/a").read_bytes() == b"a"
        assert (sales.folder / "got/z").read_bytes() == b"z"

    @pytest.mark.parametrize("path", ["x" * 256, "x" * 256 + "/y", "é" * 128, "d/" + "x" * 300])
    def test_a_name_that_is_too_long_here(self, sales: Command, path: str) -> None:
        longest = "é" * 127  # 254 bytes
        put(sales, "a", path, longest, "\U0001f600")
        ran = sales("download", "-r", "sales", "main", "", "got", "--json")
        assert (ran.code, ran.json["objects"], ran.json["not_downloaded"]) == (2, 3, 1)
        assert path in ran.err
        assert "too long" in ran.err
        assert files_below(sales.folder / "got") == sorted(["a", longest, "\U0001f600"])
        alone = sales("download", "sales", "main", path)
        assert alone.code == (0 if path.endswith("/y") else 2), "alone, it needs no folder"

    def test_a_folder_that_is_there_already(self, sales: Command) -> None:
        put(sales, "a", "b")
        (sales.folder / "got/a").mkdir(parents=True)
        ran = sales("download", "-r", "sales", "main", "", "got", "--json")
        assert (ran.code, ran.json["objects"]) == (2, 1)
        assert "got/a: a folder has this name" in ran.err
        assert files_below(sales.folder / "got") == ["b"]

    def test_names_that_are_one_on_this_file_system(self, sales: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        put(sales, "A", "a", "b")
        assert sales.json("download", "-r", "sales", "main", "", "apart")["objects"] == 3
        monkeypatch.setattr(download, "is_same_file", lambda first, second: first != second)
        ran = sales("download", "-r", "sales", "main", "", "got", "--json")
        assert (ran.code, ran.json["not_downloaded"]) == (2, 1)
        assert files_below(sales.folder / "got") == ["A", "b"]

    @pytest.mark.parametrize("path", ["../up", "d/../../up", "..", "/../up", "d/./e", "nul\0"])
    def test_no_path_of_a_record_leads_out_of_the_folder(self, sales: Command, path: str) -> None:
        """None is taken on any way in; this one is written past refstore."""
        put(sales, "a", "b")
        with open_lake(sales) as lake:
            context = lake.repository("sales").context
            token = lake.repository("sales").context.branches.read_open(BranchName("main")).record.token
            entry = stored_entry(lake.repository("sales").stat("main", "a"))
            context.kv.set(record_keys.entry(context.repo, token, ids.Path(path)), encode(entry))
        ran = sales("download", "-r", "sales", "main", "", "deep/got", "--json")
        assert ran.code == 2
        assert "it is no path of a file" in ran.err
        assert files_below(sales.folder / "deep") == ["got/a", "got/b"]
        assert not list(sales.folder.rglob("up"))
