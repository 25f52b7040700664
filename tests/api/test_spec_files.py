"""`lakefs-spec`, the fsspec file system: what a program does with files."""

from __future__ import annotations

import hashlib
import os
import secrets
from datetime import UTC, datetime
from pathlib import Path

import fsspec
import lakefs
import pytest
from lakefs_spec import LakeFSFileSystem

from tests.api.conftest import KEY_ID, SECRET, Running, upload_all

PATHS = ["a.txt", "dir/b.txt", "dir/c.txt", "dir/deep/d.txt", "directory.txt"]


@pytest.fixture
def root(repo: lakefs.Repository, main: lakefs.Branch) -> str:
    """Where five files lie."""
    upload_all(main, PATHS)
    return f"{repo.id}/main"


def test_ls_shows_one_level_and_find_shows_all(fs: LakeFSFileSystem, root: str) -> None:
    assert fs.ls(f"{root}/", detail=False) == [f"{root}/a.txt", f"{root}/dir/", f"{root}/directory.txt"]
    assert fs.ls(f"{root}/dir", detail=False) == [f"{root}/dir/b.txt", f"{root}/dir/c.txt", f"{root}/dir/deep/"]
    assert fs.find(f"{root}/") == [f"{root}/{path}" for path in PATHS]
    assert {item["name"] for item in fs.ls(f"{root}/", recursive=True, refresh=True) if item["type"] == "file"} == {
        f"{root}/{path}" for path in PATHS
    }


def test_glob_and_walk(fs: LakeFSFileSystem, root: str) -> None:
    assert fs.glob(f"lakefs://{root}/dir/*.txt") == [f"{root}/dir/b.txt", f"{root}/dir/c.txt"]
    assert fs.glob(f"lakefs://{root}/**/d.txt") == [f"{root}/dir/deep/d.txt"]
    names = {name for _, _, files in fs.walk(f"lakefs://{root}/") for name in files}
    assert names == {os.path.basename(path) for path in PATHS}  # noqa: PTH119  # keys, not files


def test_info_exists_isdir_isfile_and_times(fs: LakeFSFileSystem, root: str) -> None:
    info = fs.info(f"{root}/dir/b.txt")
    assert (info["type"], info["size"], info["content-type"], info["metadata"]) == (
        "file",
        9,
        "application/octet-stream",
        {},
    )
    assert fs.info(f"{root}/dir")["type"] == "directory"
    assert [fs.exists(f"{root}/{path}") for path in ("dir/b.txt", "dir", "dir/", "", "di", "nothing")] == [
        True,
        True,
        True,
        True,
        False,
        False,
    ]
    assert not fs.exists("no-such-repository/main/a")
    assert (fs.isfile(f"{root}/a.txt"), fs.isdir(f"{root}/dir"), fs.isfile(f"{root}/dir")) == (True, True, False)
    assert abs((fs.modified(f"{root}/a.txt") - datetime.now(UTC)).total_seconds()) < 300
    with pytest.raises(FileNotFoundError):
        fs.info(f"{root}/nothing")


@pytest.mark.parametrize("pre_sign", [True, False], ids=["signed", "direct"])
@pytest.mark.parametrize("mode", ["b", "t"])
def test_open_writes_and_reads(fs: LakeFSFileSystem, root: str, mode: str, pre_sign: bool) -> None:
    data = "Grüße\nzwei\n" if mode == "t" else "Grüße\nzwei\n".encode()
    with fs.open(
        f"lakefs://{root}/new", f"w{mode}", pre_sign=pre_sign, metadata={"k": "v"}, content_type="text/plain"
    ) as file:
        file.write(data)
    with fs.open(f"lakefs://{root}/new", f"r{mode}", pre_sign=pre_sign) as file:
        assert file.read() == data
    with fs.open(f"lakefs://{root}/new", f"r{mode}", pre_sign=pre_sign) as file:
        assert len(list(file)) == 2
    assert fs.info(f"{root}/new")["metadata"] == {"k": "v"}
    with pytest.raises(FileExistsError):
        fs.open(f"lakefs://{root}/new", f"x{mode}", pre_sign=pre_sign)
    with pytest.raises(FileNotFoundError):
        fs.open(f"lakefs://{root}/nothing", f"r{mode}", pre_sign=pre_sign)


def test_pieces_of_a_file(fs: LakeFSFileSystem, root: str) -> None:
    fs.pipe_file(f"{root}/digits", b"0123456789")
    assert fs.cat_file(f"{root}/digits", start=2, end=5) == b"234"
    assert fs.head(f"{root}/digits", 4) == b"0123"
    assert fs.tail(f"{root}/digits", 4) == b"6789"
    assert fs.cat_ranges([f"{root}/digits"] * 2, [0, 8], [2, 10]) == [b"01", b"89"]
    assert fs.cat([f"{root}/{path}" for path in PATHS]) == {f"{root}/{path}": path.encode() for path in PATHS}


def test_put_and_get_files_and_folders(fs: LakeFSFileSystem, root: str, tmp_path: Path) -> None:
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "one").write_bytes(b"1")
    (tmp_path / "tree" / "sub" / "two").write_bytes(b"22")
    fs.put(str(tmp_path / "tree"), f"{root}/put", recursive=True)
    assert {name.removeprefix(f"{root}/put/") for name in fs.find(f"{root}/put/")} == {"one", "sub/two"}
    fs.get(f"{root}/put/", str(tmp_path / "back"), recursive=True)
    assert ((tmp_path / "back/one").read_bytes(), (tmp_path / "back/sub/two").read_bytes()) == (b"1", b"22")
    fs.put_file(
        str(tmp_path / "tree" / "one"), f"{root}/put/one"
    )  # again: the same, or skipped where checksums can be compared
    assert fs.cat_file(f"{root}/put/one") == b"1"
    with pytest.raises(FileExistsError):
        fs.put_file(str(tmp_path / "tree" / "one"), f"{root}/put/one", mode="create")


def test_an_unchanged_file_is_neither_sent_nor_fetched_again(
    fs: LakeFSFileSystem, root: str, main: lakefs.Branch, tmp_path: Path
) -> None:
    """lakefs-spec compares the local file's MD5 with the checksum that the service answers."""
    (tmp_path / "file").write_bytes(b"as it was")

    def put() -> str:
        fs.put_file(str(tmp_path / "file"), f"{root}/file")
        return main.object("file").stat().physical_address

    first = put()
    assert fs.checksum(f"{root}/file") == hashlib.md5(b"as it was", usedforsecurity=False).hexdigest()
    assert put() == first
    main.commit("it")
    assert put() == first
    before = (tmp_path / "file").stat().st_mtime_ns
    fs.get_file(f"{root}/file", str(tmp_path / "file"))
    assert (tmp_path / "file").stat().st_mtime_ns == before
    (tmp_path / "file").write_bytes(b"as it is now")
    assert put() != first


def test_a_transaction_that_puts_the_same_file_again_commits_nothing(embedded_service: Running, tmp_path: Path) -> None:
    """The service hashed both. On S3 `lakefs-spec` writes past it, and the checksum is the client's word."""
    fs = LakeFSFileSystem(host=embedded_service.url, username=KEY_ID, password=SECRET, skip_instance_cache=True)
    repo = lakefs.Repository("t-" + secrets.token_hex(8), fs.client).create("local://t-" + secrets.token_hex(8))
    (tmp_path / "file").write_bytes(b"as it was")
    heads: list[str] = []
    for _ in range(2):
        with fs.transaction(repo, "main") as tx:
            fs.put_file(str(tmp_path / "file"), f"{repo.id}/{tx.branch.id}/file", precheck=False)
            tx.commit("it")
        heads.append(repo.branch("main").get_commit().id)
    assert heads[0] == heads[1]


def test_copy_move_and_touch(fs: LakeFSFileSystem, root: str) -> None:
    fs.cp_file(f"{root}/a.txt", f"{root}/copy.txt")
    fs.mv(f"{root}/copy.txt", f"{root}/moved.txt")
    assert (fs.exists(f"{root}/copy.txt"), fs.cat_file(f"{root}/moved.txt")) == (False, b"a.txt")
    fs.copy(f"{root}/dir/", f"{root}/other/", recursive=True)
    assert fs.cat_file(f"{root}/other/deep/d.txt") == b"dir/deep/d.txt"
    fs.touch(f"{root}/empty")
    fs.touch(f"{root}/a.txt", truncate=True)
    assert (fs.size(f"{root}/empty"), fs.size(f"{root}/a.txt")) == (0, 0)


def test_rm_takes_a_file_or_a_folder(fs: LakeFSFileSystem, root: str) -> None:
    fs.rm(f"{root}/a.txt")
    fs.rm(f"{root}/dir/", recursive=True)
    fs.invalidate_cache()
    assert fs.find(f"{root}/") == [f"{root}/directory.txt"]


def test_a_branch_is_made_where_a_file_is_written_to_it(
    fs: LakeFSFileSystem, repo: lakefs.Repository, root: str
) -> None:
    fs.pipe_file(f"{repo.id}/fresh/a", b"x")
    assert [found.id for found in repo.branches()] == ["fresh", "main"]


def test_commits_and_tags_are_read_and_not_written(
    fs: LakeFSFileSystem, repo: lakefs.Repository, main: lakefs.Branch, root: str
) -> None:
    commit = main.commit("files")
    repo.tag("v1").create(commit)
    fs.pipe_file(f"{root}/a.txt", b"changed")
    assert fs.cat_file(f"{repo.id}/v1/a.txt") == fs.cat_file(f"{repo.id}/{commit.id}/a.txt") == b"a.txt"
    assert fs.cat_file(f"{repo.id}/main@/a.txt") == fs.cat_file(f"{repo.id}/main~0/a.txt") == b"a.txt"
    strict = LakeFSFileSystem(
        host=fs.client.config.host, username=KEY_ID, password=SECRET, create_branch_ok=False, skip_instance_cache=True
    )
    with pytest.raises(FileNotFoundError):
        strict.pipe_file(f"{repo.id}/v1/a.txt", b"x")


def test_errors_are_those_of_a_file_system(service: Running, fs: LakeFSFileSystem, root: str) -> None:
    stranger = LakeFSFileSystem(
        host=service.url, username="AKIANOBODY", password="nobody's secret at all", skip_instance_cache=True
    )
    with pytest.raises(PermissionError):
        stranger.ls(f"{root}/")
    with pytest.raises(FileNotFoundError):
        fs.ls("no-such-repository/main/")
    with pytest.raises(OSError, match="between slashes"):
        fs.pipe_file(f"{root}/../up", b"x")


def test_a_transaction_is_committed_merged_and_tagged(
    fs: LakeFSFileSystem, repo: lakefs.Repository, main: lakefs.Branch
) -> None:
    with fs.transaction(repo, main) as tx:
        fs.pipe_file(f"{repo.id}/{tx.branch.id}/a", b"x")
        commit = tx.commit("first", metadata={"k": "v"})
        tx.tag(commit, "v1")
        assert tx.rev_parse(tx.branch).id == commit.id
        assert not fs.exists(f"{repo.id}/main/a")
    assert fs.cat_file(f"{repo.id}/main/a") == b"x"
    assert [found.message for found in main.log(max_amount=2)] == [f"Merge {tx.branch.id!r} into 'main'", "first"]
    assert repo.tag("v1").get_commit().metadata == {"k": "v"}
    assert [found.id for found in repo.branches()] == ["main"]


def test_a_transaction_merges_and_reverts_in_its_middle(
    fs: LakeFSFileSystem, repo: lakefs.Repository, main: lakefs.Branch
) -> None:
    upload_all(main, ["base"])
    main.commit("base")
    with fs.transaction(repo, main) as tx:
        fs.pipe_file(f"{repo.id}/{tx.branch.id}/a", b"x")
        tx.commit("a")
        assert tx.merge(tx.branch, into="main").message == f"Merge {tx.branch.id!r} into 'main'"
        assert tx.revert(main, main.head).message.startswith("Revert")
    assert not fs.exists(f"{repo.id}/main/a")


def test_a_transaction_that_fails_changes_nothing(
    fs: LakeFSFileSystem, repo: lakefs.Repository, main: lakefs.Branch
) -> None:
    def fail() -> None:
        with fs.transaction(repo, main, delete="always") as tx:
            fs.pipe_file(f"{repo.id}/{tx.branch.id}/a", b"x")
            tx.commit("a")
            raise KeyError("something of the caller's")

    with pytest.raises(KeyError):
        fail()
    assert not fs.exists(f"{repo.id}/main/a")
    assert [found.id for found in repo.branches()] == ["main"]


def test_fsspec_opens_by_url(service: Running, root: str) -> None:
    options = {"host": service.url, "username": KEY_ID, "password": SECRET}
    with fsspec.open(f"lakefs://{root}/by-url.gz", "wb", compression="gzip", **options) as file:
        file.write(b"x" * 10_000)
    with fsspec.open(f"lakefs://{root}/by-url.gz", "rb", compression="gzip", **options) as file:
        assert file.read() == b"x" * 10_000
