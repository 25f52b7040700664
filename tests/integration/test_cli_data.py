"""The commands for objects: upload, ls, stat, cat, download, cp, mv, rm, stage, issue, link, trash, restore,
address.
"""

from __future__ import annotations

import hashlib
import pathlib
from typing import Any

import pytest

from refstore.cli import objects
from refstore.context import Context
from refstore.core.ids import BranchName, Path
from refstore.errors import RefstoreError
from refstore.operations import move, upload
from refstore.operations.upload import Upload
from tests.commands import Command, paths


@pytest.fixture
def filled(sales: Command) -> Command:
    """a, b/1 and b/2 committed on main; b/3 staged."""
    for path in ("a", "b/1", "b/2"):
        sales.ok("upload", "sales", "main", "-", path, stdin=path.encode())
    sales.ok("commit", "sales", "main", "-m", "three")
    sales.ok("upload", "sales", "main", "-", "b/3", stdin=b"b/3")
    return sales


class TestUpload:
    def test_a_file_keeps_its_name_and_its_time(self, sales: Command) -> None:
        file = sales.folder / "x.csv"
        file.write_bytes(b"1,2\n")
        answer = sales.json("upload", "sales", "main", file, "--meta", "till=3", "--content-type", "text/csv")
        assert answer["path"] == "x.csv"
        assert answer["size_bytes"] == 4
        assert answer["metadata"] == {"till": "3"}
        assert answer["content_type"] == "text/csv"
        assert sales.ok("cat", "sales", "main", "x.csv").out_bytes == b"1,2\n"

    @pytest.mark.parametrize(
        ("words", "path"),
        [
            (["sales", "main", "x.csv", "2026/y.csv"], "2026/y.csv"),
            (["sales", "main", "x.csv", "2026/"], "2026/x.csv"),
            (["sales", "main", "x.csv"], "x.csv"),
        ],
    )
    def test_where_it_goes(self, sales: Command, words: list[str], path: str) -> None:
        (sales.folder / "x.csv").write_bytes(b"1")
        assert sales.json("upload", *words)["path"] == path

    def test_a_folder(self, sales: Command) -> None:
        for name in ("t/a", "t/u/b", "t/u/ü c"):
            file = sales.folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(name.encode())
        answer = sales.json("upload", "-r", "sales", "main", "t", "2026/")
        assert answer == {
            "branch": "main",
            "prefix": "2026/",
            "objects": 3,
            "size_bytes": 3 + 5 + 8,
            "not_uploaded": 0,
            "unchanged": 0,
        }
        assert paths(sales.json("ls", "sales", "main", "-r")) == ["2026/a", "2026/u/b", "2026/u/ü c"]
        assert sales.ok("cat", "sales", "main", "2026/u/ü c").out == "t/u/ü c"

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["sales", "main", "nowhere"], "No such file"),
            (["sales", "main", "."], "not a regular file"),
            (["sales", "main", "/dev/null"], "not a regular file"),
            (["sales", "main", "-"], "give DST"),
            (["sales", "main"], "Missing argument 'SRC'"),
            (["sales", "main", "x", "a", "b"], "unexpected extra argument"),
            (["-r", "sales", "main", "x.csv"], "not a folder"),
            (["-r", "sales", "main", "empty"], "holds no files"),
        ],
    )
    def test_what_cannot_be_uploaded(self, sales: Command, words: list[str], said: str) -> None:
        (sales.folder / "x.csv").write_bytes(b"1")
        (sales.folder / "empty").mkdir()
        ran = sales("upload", *words)
        assert (ran.code, ran.out) == (2, "")
        assert said in ran.err

    def test_no_such_branch(self, sales: Command) -> None:
        ran = sales("upload", "sales", "dev", "-", "x", "--json")
        assert (ran.code, ran.error["code"]) == (3, "branch_not_found")


class TestLooking:
    def test_ls_folds_at_slashes(self, filled: Command) -> None:
        assert paths(filled.json("ls", "sales", "main")) == ["a", "b/"]
        assert paths(filled.json("ls", "sales", "main", "b/")) == ["b/1", "b/2", "b/3"]
        assert paths(filled.json("ls", "sales", "main", "--recursive")) == ["a", "b/1", "b/2", "b/3"]
        assert paths(filled.json("ls", "sales", "main@", "-r")) == ["a", "b/1", "b/2"]
        assert paths(filled.json("ls", "sales", "main", "-r", "--limit", "2", "--after", "a")) == ["b/1", "b/2"]
        assert filled.json("ls", "sales", "main", "c") == []

    def test_ls_for_people(self, filled: Command) -> None:
        header, first, second = filled.ok("ls", "sales", "main").out.splitlines()
        assert header.split() == ["path", "size", "mtime", "address"]
        assert first.split()[:2] == ["a", "1"]
        assert second == "b/"

    def test_stat(self, filled: Command) -> None:
        assert filled.json("stat", "sales", "main", "a")["state"] == "committed"
        staged = filled.json("stat", "sales", "main", "b/3")
        assert staged["state"] == "staged"
        assert staged["checksum"] == hashlib.sha256(b"b/3").hexdigest()

    def test_what_is_not_there(self, filled: Command) -> None:
        for words in (
            ["stat", "sales", "main", "z"],
            ["cat", "sales", "main", "z"],
            ["download", "sales", "main", "z"],
        ):
            ran = filled(*words, "--json")
            assert (ran.code, ran.out, ran.error["code"]) == (3, "", "object_not_found")
        ran = filled("ls", "sales", "nowhere")
        assert (ran.code, ran.out) == (3, "")
        assert "nowhere" in ran.err

    def test_a_branch_with_a_slash(self, filled: Command) -> None:
        filled.ok("branch", "create", "sales", "team/x")
        assert paths(filled.json("ls", "sales", "team/x", "b/")) == ["b/1", "b/2"]


class TestDownload:
    def test_one(self, filled: Command) -> None:
        assert filled.json("download", "sales", "main", "b/1") == {"path": "b/1", "file": "1", "size_bytes": 3}
        assert (filled.folder / "1").read_bytes() == b"b/1"
        filled.ok("download", "sales", "main", "b/1", "deep/er/one")
        assert (filled.folder / "deep/er/one").read_bytes() == b"b/1"

    def test_a_prefix(self, filled: Command) -> None:
        assert filled.json("download", "-r", "sales", "main", "b/", "got") == {
            "folder": "got",
            "objects": 3,
            "not_downloaded": 0,
            "size_bytes": 9,
        }
        assert {file.name: file.read_bytes() for file in (filled.folder / "got").iterdir()} == {
            "1": b"b/1",
            "2": b"b/2",
            "3": b"b/3",
        }

    def test_nothing_leads_out_of_the_folder(self, sales: Command) -> None:
        sales.ok("upload", "sales", "main", "-", "etc//passwd", stdin=b"x")
        sales.ok("download", "-r", "sales", "main", "", "got")
        assert (sales.folder / "got/etc/passwd").read_bytes() == b"x"

    def test_a_blob_that_changed_is_not_handed_out(self, sales: Command) -> None:
        address = sales.json("upload", "sales", "main", "-", "a", stdin=b"good")["address"]
        namespace = sales.json("repo", "show", "sales")["namespace"].removeprefix("file://")
        pathlib.Path(namespace, address).write_bytes(b"evil")
        ran = sales("download", "sales", "main", "a", "--json")
        assert (ran.code, ran.error["code"]) == (6, "corrupt_object")
        assert [file.name for file in sales.folder.iterdir() if file.is_file()] == []

    def test_a_target_that_cannot_be_written(self, filled: Command) -> None:
        (filled.folder / "file").touch()
        ran = filled("download", "sales", "main", "a", "file/x")
        assert ran.code == 2
        assert "file" in ran.err


class TestCopyAndMove:
    def test_cp_across_branches(self, filled: Command) -> None:
        filled.ok("branch", "create", "sales", "dev")
        assert filled.json("cp", "sales", "main", "b/3", "--to", "dev") == {"branch": "dev", "copied": 1}
        filled.ok("cp", "sales", "main", "b/3", "--to", "dev", "--as", "c/")
        filled.ok("cp", "sales", "main", "b/3", "--to", "dev", "--as", "d")
        assert paths(filled.json("ls", "sales", "dev", "-r")) == ["a", "b/1", "b/2", "b/3", "c/3", "d"]
        address = filled.json("stat", "sales", "dev", "d")["address"]
        named = filled.json("why", "sales", address)["references"]
        assert [name.partition(",")[0] for name in named] == [
            "main b/3 (staged",
            "dev b/3 (staged",
            "dev c/3 (staged",
            "dev d (staged",
        ]

    def test_cp_a_prefix_from_a_commit(self, filled: Command) -> None:
        filled.ok("tag", "create", "sales", "v1")
        filled.ok("rm", "sales", "main", "", "-r", "--yes")
        assert filled.json("cp", "-r", "sales", "v1", "b/", "--to", "main", "--as", "back/") == {
            "branch": "main",
            "copied": 2,
        }
        assert paths(filled.json("ls", "sales", "main", "-r")) == ["back/1", "back/2"]

    def test_mv(self, filled: Command) -> None:
        assert filled.json("mv", "sales", "main", "b/3", "--as", "c") == {"branch": "main", "moved": 1}
        assert filled.json("mv", "-r", "sales", "main", "b/", "--as", "b/b/") == {"branch": "main", "moved": 2}
        assert paths(filled.json("ls", "sales", "main", "-r")) == ["a", "b/b/1", "b/b/2", "c"]
        assert filled.ok("cat", "sales", "main", "b/b/1").out == "b/1"

    @pytest.mark.parametrize("what", ["mv", "cp"])
    @pytest.mark.parametrize(("source", "goal"), [("b/", "b/b/"), ("b/b/", "b/")])
    def test_what_goes_over_the_source_of_another_batch_waits_for_it(
        self, filled: Command, monkeypatch: pytest.MonkeyPatch, what: str, source: str, goal: str
    ) -> None:
        for path in ("b/b/1", "b/b/b/1", "b/b/c", "b/b/b/c"):
            filled.ok("upload", "sales", "main", "-", path, stdin=path.encode())
        before = paths(filled.json("ls", "sales", "main", "-r"))
        monkeypatch.setattr(objects, "BATCH", 1)
        filled.ok(what, "-r", "sales", "main", source, "--to", "main", "--as", goal)
        for path in map(str, before):
            if path.startswith(source):
                assert filled.ok("cat", "sales", "main", goal + path[len(source) :]).out == path

    def test_mv_across_branches(self, filled: Command) -> None:
        filled.ok("branch", "create", "sales", "dev")
        filled.ok("mv", "sales", "main", "b/3", "--to", "dev")
        assert paths(filled.json("ls", "sales", "dev", "-r")) == ["a", "b/1", "b/2", "b/3"]
        assert paths(filled.json("ls", "sales", "main", "-r")) == ["a", "b/1", "b/2"]

    def test_mv_across_branches_leaves_what_was_written_since(
        self, filled: Command, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        filled.ok("branch", "create", "sales", "dev")
        real = move.delete_sources

        def upload_and_delete(ctx: Context, *args: Any) -> dict[Path, RefstoreError]:
            upload.upload_many(ctx, BranchName("main"), [Upload(path="b/3", body=b"new")])
            return real(ctx, *args)

        monkeypatch.setattr(move, "delete_sources", upload_and_delete)
        ran = filled("mv", "sales", "main", "b/3", "--as", "moved", "--to", "dev")
        assert (ran.code, "was changed by others while it was moved" in ran.err) == (4, True)
        assert filled.ok("cat", "sales", "main", "b/3").out == "new"
        assert "moved" not in paths(filled.json("ls", "sales", "dev", "-r"))

    def test_history_is_not_moved(self, filled: Command) -> None:
        filled.ok("tag", "create", "sales", "v1")
        ran = filled("mv", "sales", "v1", "a", "--as", "z", "--to", "main")
        assert ran.code == 3
        assert paths(filled.json("ls", "sales", "main")) == ["a", "b/"]

    @pytest.mark.parametrize(
        ("words", "code", "said"),
        [
            (["cp", "sales", "main", "z", "--to", "main", "--as", "y"], 3, "is not on"),
            (["cp", "-r", "sales", "main", "z", "--to", "main", "--as", "y"], 3, "starts with"),
            (["cp", "sales", "main", "a"], 2, "Missing option '--to'"),
            (["mv", "sales", "main", "a"], 2, "say where it goes: --as PATH, --to BRANCH, or both"),
            (["rm", "sales", "main"], 2, "Missing argument 'PATH'"),
            (["rm", "sales", "main", "a", "b/", "-r"], 2, "--recursive takes one PATH"),
            (["download", "sales", "main"], 2, "name the object's PATH"),
        ],
    )
    def test_what_cannot_be_copied_or_removed(self, filled: Command, words: list[str], code: int, said: str) -> None:
        ran = filled(*words)
        assert (ran.code, ran.out) == (code, "")
        assert said in ran.err


class TestRemove:
    def test_named_paths(self, filled: Command) -> None:
        assert filled.json("rm", "sales", "main", "a", "b/1", "a") == {"branch": "main", "deleted": 2}
        assert filled.json("rm", "sales", "main", "b/2", "b/3") == {"branch": "main", "deleted": 2}
        assert filled.json("ls", "sales", "main") == []

    def test_one_that_is_not_there_and_nothing_is_deleted(self, filled: Command) -> None:
        assert filled("rm", "sales", "main", "a", "z").code == 3
        assert paths(filled.json("ls", "sales", "main")) == ["a", "b/"]

    def test_a_prefix_is_asked_about(self, filled: Command) -> None:
        ran = filled("rm", "sales", "main", "b/", "-r")
        assert ran.code == 2
        assert "--yes" in ran.err
        assert paths(filled.json("rm", "sales", "main", "b/", "-r", "--dry-run")) == ["b/1", "b/2", "b/3"]
        assert len(filled.json("ls", "sales", "main", "-r")) == 4
        assert filled.json("rm", "sales", "main", "b/", "-r", "--yes") == {"branch": "main", "deleted": 3}
        assert paths(filled.json("ls", "sales", "main")) == ["a"]

    def test_a_dry_run_of_named_paths(self, filled: Command) -> None:
        assert filled.json("rm", "sales", "main", "a", "--dry-run") == [{"path": "a", "size_bytes": 1}]
        assert paths(filled.json("ls", "sales", "main")) == ["a", "b/"]


class TestTrash:
    def test_what_was_thrown_away_is_listed_and_taken_back(self, filled: Command) -> None:
        address = filled.json("stat", "sales", "main", "b/3")["address"]
        filled.ok("rm", "sales", "main", "b/3")
        (item,) = filled.json("trash", "sales")
        assert (item["path"], item["branch"], item["cause"], item["address"], item["size_bytes"]) == (
            "b/3",
            "main",
            "deleted",
            address,
            3,
        )
        assert filled.json("trash", "sales", "--from", "dev") == []
        assert filled.json("why", "sales", address)["state"] == "in grace"
        planned = filled.json("restore", "sales", address, "--to", "main", "--dry-run")
        assert (planned["path"], planned["outcome"]) == ("b/3", "restored")
        assert filled.json("restore", "sales", address, "--to", "main")["outcome"] == "restored"
        assert filled.ok("cat", "sales", "main", "b/3").out == "b/3"
        assert filled.json("trash", "sales") == []

    def test_restore_elsewhere(self, filled: Command) -> None:
        address = filled.json("stat", "sales", "main", "b/3")["address"]
        filled.ok("rm", "sales", "main", "b/3")
        assert filled.json("restore", "sales", address, "--to", "main", "--as", "again")["path"] == "again"
        assert filled.ok("cat", "sales", "main", "again").out == "b/3"

    def test_what_a_reset_lost_is_listed_at_once_and_comes_back_whole(self, sales: Command) -> None:
        before = sales.json(
            "upload", "sales", "main", "-", "x", "--meta", "owner=ann", "--content-type", "text/csv", stdin=b"1"
        )
        sales.ok("reset", "sales", "main", "--yes")
        (item,) = sales.json("trash", "sales")
        assert (item["path"], item["cause"], item["deletes_at"]) == ("x", "reset", None)
        assert sales.json("restore", "sales", item["address"], "--to", "main") == {**before, "outcome": "restored"}
        assert sales.json("restore", "sales", item["address"], "--to", "main") == {**before, "outcome": "unchanged"}
        assert sales.json("stat", "sales", "main", "x")["metadata"] == {"owner": "ann"}

    def test_a_path_is_taken_back(self, filled: Command) -> None:
        filled.ok("rm", "sales", "main", "b/3")
        assert filled.json("restore", "sales", "b/3", "--to", "main")["path"] == "b/3"
        assert filled.json("restore", "sales", "b/3", "--to", "main")["outcome"] == "unchanged"
        ran = filled("restore", "sales", "nothing", "--to", "main")
        assert ran.code == 3
        assert "refstore trash sales" in ran.err

    def test_a_prefix_is_taken_back(self, filled: Command) -> None:
        filled.ok("upload", "sales", "main", "-", "c", stdin=b"c")
        filled.ok("reset", "sales", "main", "--yes")
        (item,) = filled.json("restore", "sales", "b/", "-r", "--to", "main", "--dry-run")
        assert (item["path"], item["outcome"]) == ("b/3", "restored")
        done = filled.json("restore", "sales", "b/", "-r", "--to", "main")
        assert done == {
            "branch": "main", "restored": 1, "unchanged": 0, "older": 0, "conflict": 0, "too_late": 0, "size_bytes": 3,
            "left": [],
        }  # fmt: skip
        assert paths(filled.json("trash", "sales")) == ["c"]

    def test_what_a_deleted_branch_lost_is_taken_back_on_another(self, filled: Command) -> None:
        filled.ok("branch", "create", "sales", "try")
        filled.ok("upload", "sales", "try", "-", "t", stdin=b"t")
        filled.ok("branch", "delete", "sales", "try", "--yes")
        ran = filled("restore", "sales", "--from", "try")
        assert ran.code == 3
        assert "refstore restore sales --from try --to BRANCH" in ran.err
        assert filled.json("restore", "sales", "--to", "main", "--from", "try")["restored"] == 1
        assert filled.ok("cat", "sales", "main", "t").out == "t"

    def test_all_that_a_branch_lost_is_taken_back_but_over_nothing_newer(self, sales: Command) -> None:
        for path in "xy":
            sales.ok("upload", "sales", "main", "-", path, stdin=b"1")
        sales.ok("reset", "sales", "main", "--yes")
        sales.ok("upload", "sales", "main", "-", "y", stdin=b"2")
        ran = sales("restore", "sales", "--from", "main", "--json")
        assert ran.code == 4
        assert (ran.json["restored"], ran.json["conflict"]) == (1, 1)
        assert [(item["path"], item["outcome"]) for item in ran.json["left"]] == [("y", "conflict")]
        assert "'y' on 'main' was written since" in ran.err
        assert sales.ok("cat", "sales", "main", "y").out == "2"
        ran = sales("restore", "sales", "y", "--to", "main")
        assert ran.code == 4
        sales.ok("restore", "sales", "y", "--to", "main", "--force")
        assert sales.ok("cat", "sales", "main", "y").out == "1"

    @pytest.mark.parametrize(
        "words",
        [
            ["sales"],
            ["sales", "--to", "main"],
            ["sales", "x"],
            ["sales", "x", "--to", "main", "--as", "y"],
            ["sales", "y", "-r"],
        ],
    )
    def test_what_to_restore_must_be_said(self, filled: Command, words: list[str]) -> None:
        assert filled("restore", *words).code == 2

    def test_what_is_gone(self, filled: Command) -> None:
        ran = filled("restore", "sales", "data/2026010100/00000000000000000000000000", "--to", "main", "--json")
        assert (ran.code, ran.error["code"]) == (4, "gone")


class TestOtherWriters:
    def test_issue_write_link(self, sales: Command) -> None:
        given = sales.json("issue", "sales", "main", "x")
        assert given["url"] == "file://" + given["file"]
        pathlib.Path(given["file"]).write_bytes(b"by another")
        found = sales.json("why", "sales", given["address"])
        assert (found["state"], found["expires"] is None) == ("issued", False)
        assert (
            sales.json("link", "sales", "main", "x", "--token", "-", stdin=given["token"].encode())["size_bytes"] == 10
        )
        assert sales.ok("cat", "sales", "main", "x").out == "by another"
        ran = sales("link", "sales", "main", "x", "--token", given["token"], "--json")
        assert (ran.code, ran.error["code"]) == (4, "already_linked")

    @pytest.mark.parametrize(
        ("path", "code", "error"),
        [
            pytest.param("y", 2, "invalid_token", id="a token for another path"),
            pytest.param("x", 3, "object_not_found", id="nothing written"),
        ],
    )
    def test_what_cannot_be_linked(self, sales: Command, path: str, code: int, error: str) -> None:
        given = sales.json("issue", "sales", "main", "x")
        ran = sales("link", "sales", "main", path, "--token", given["token"], "--json")
        assert (ran.code, ran.error["code"]) == (code, error)

    def test_download_takes_foreign_objects_and_names_those_it_cannot_read(self, sales: Command) -> None:
        sales.ok("import", "--stage", "sales", "main", "ftp://archive/1", "old/1", "--size", "3")
        ran = sales("download", "-r", "sales", "main", "old/", "down")
        assert (ran.code, "'ftp://archive/1' cannot be read from here" in ran.err) == (6, True)
        (sales.folder / "two").write_bytes(b"2")
        sales.ok("import", "--stage", "sales", "main", f"file://{sales.folder}/two", "old/2", "--size", "1")
        sales.ok("upload", "sales", "main", "-", "old/3", stdin=b"3")
        for nowhere in ("", "FTP://archive/"):
            assert sales("download", "-r", "sales", "main", "old/", "down", "--allow-foreign", nowhere).code == 2
        ran = sales("download", "-r", "sales", "main", "old/", "down", "--json", "--allow-foreign", ".")
        assert (ran.code, ran.json["objects"], ran.json["not_downloaded"]) == (6, 2, 1)
        assert [(sales.folder / "down" / name).read_bytes() for name in ("2", "3")] == [b"2", b"3"]
        assert "'old/1', which lies at ftp://archive/1, was not downloaded" in ran.err

    def test_stage(self, sales: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("REFSTORE_COMMITTER", "ann")
        answer = sales.json("import", "--stage", "sales", "main", "gs://archive/2019.csv", "old", "--size", "12")
        assert answer["address"] == "gs://archive/2019.csv"
        for wrong in (["--stage"], ["--stage", "--size", "1", "-m", "m"], ["--size", "1"]):
            assert sales("import", "sales", "main", "gs://archive/2019.csv", "old", *wrong).code == 2
        ran = sales("cat", "sales", "main", "old")
        assert ran.code == 6
        assert "gs://archive/2019.csv" in ran.err

    def test_what_lies_inside_cannot_be_staged(self, sales: Command) -> None:
        namespace = sales.json("repo", "show", "sales")["namespace"]
        ran = sales(
            "import",
            "--stage",
            "sales",
            "main",
            f"{namespace}/data/2026010100/00000000000000000000000000",
            "x",
            "--size",
            "1",
            "--json",
        )
        assert (ran.code, ran.error["code"]) == (2, "invalid_name")
