"""Commands that look: status, doctor, show, log of a path, --summarize; completion; and what upload -r skips."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path

import pytest

import refstore as lakes
from refstore.cli import doctor as doctor_
from refstore.core.ids import TagName
from refstore.records import keys
from refstore.records.branch_records import StoredTag
from refstore.records.encoding import encode
from tests.commands import Command
from tests.purging import rewrite
from tests.servers.s3_proxy import Refuse, S3FaultProxy
from tests.servers.tcp import RedisStub


@pytest.fixture
def sales(refstore: Command) -> Command:
    refstore.ok("repo", "create", "sales")
    for number, paths in enumerate((("a/1", "a/2", "b/1"), ("a/2", "top"))):
        for path in paths:
            refstore.ok("upload", "sales", "main", "-", path, stdin=f"{number}{path}".encode())
        refstore.ok("commit", "sales", "main", "-m", f"commit {number}")
    refstore.ok("upload", "sales", "main", "-", "staged", stdin=b"12345")
    return refstore


def test_status_shows_branches_and_what_waits(sales: Command) -> None:
    found = sales.json("status", "sales")
    assert found["live"] == "4 entries, 16 bytes"
    assert found["staged"] == "1 entry, 5 bytes"
    assert [(row["branch"], row["staged_changes"], row["staged_bytes"]) for row in found["branches"]] == [
        ("main", 1, 5)
    ]
    assert "no rules" in [each["warning"] for each in found["warnings"]]
    assert "main" in sales.ok("status", "sales").out
    assert [row["repository"] for row in sales.json("status")] == ["sales"]


@pytest.mark.parametrize(
    "lost_by", [("reset", "sales", "main"), ("rm", "sales", "main", "staged"), ("branch", "delete")]
)
def test_status_counts_in_grace_what_the_trash_lists(sales: Command, lost_by: tuple[str, ...]) -> None:
    """Also before a reaper comes, and an object once that had two names."""
    if lost_by[0] == "branch":
        sales.ok("reset", "sales", "main", "--yes")
        sales.ok("reaper", "--once", "--grace", "0", "--repository", "sales")
        sales.ok("branch", "create", "sales", "b")
        sales.ok("upload", "sales", "b", "-", "staged", stdin=b"12345")
        sales.ok("cp", "sales", "b", "staged", "--to", "b", "--as", "twice")
        sales.ok("branch", "delete", "sales", "b", "--yes")
    else:
        sales.ok(*lost_by, *(["--yes"] if lost_by[0] == "reset" else []))
    for _ in range(2):
        assert len({row["address"] for row in sales.json("trash", "sales")}) == 1
        found = sales.json("status", "sales")
        assert (found["in_grace"], found["staged"]) == ("1 object, 5 bytes", "0 entries, 0 bytes")
        sales.ok("reaper", "--once")


def test_status_of_all_says_what_no_reaper_has_measured(sales: Command) -> None:
    figures = ("live_bytes", "staged_bytes", "in_grace_bytes", "due_bytes", "measured")
    (row,) = sales.json("status")
    assert [row[name] for name in figures] == [None] * 5
    assert "not measured yet" in sales.ok("status").out
    sales.ok("reaper", "--once")
    (row,) = sales.json("status")
    assert [row[name] for name in figures[:4]] == [16, 5, 0, 0]
    assert row["measured"]
    assert "not measured" not in sales.ok("status").out


def test_show_tells_what_a_commit_changed(sales: Command) -> None:
    found = sales.json("show", "sales", "main")
    assert (found["message"], [each["path"] for each in found["changes"]]) == ("commit 1", ["a/2", "top"])
    shown = sales.ok("show", "sales", found["commit"][:12]).out
    assert found["commit"] in shown
    assert "commit 1" in shown


def test_log_of_a_path_lists_the_commits_that_changed_it(sales: Command) -> None:
    assert [row["message"] for row in sales.json("log", "sales", "main", "a/2")] == ["commit 1", "commit 0"]
    assert [row["message"] for row in sales.json("log", "sales", "main", "b/")] == ["commit 0"]
    assert [row["message"] for row in sales.json("log", "sales", "main", "none")] == []


def test_diff_stat_and_ls_summarize_count_by_folder(sales: Command) -> None:
    rows = {row["folder"]: row for row in sales.json("diff", "sales", "main~1", "--to", "main", "--summarize")}
    assert (rows["a/"]["changed"], rows["(top)"]["added"], rows["(top)"]["bytes"]) == (1, 1, 4)
    sums = [{"objects": 2, "size_bytes": 8, "folder": "a/"}, {"objects": 1, "size_bytes": 4, "folder": "b/"}]
    assert sales.json("ls", "--summarize", "sales", "main~1") == sums
    assert sales.json("ls", "--summarize", "sales", "main~1", "--limit", "1") == sums[:1]
    assert sales("ls", "--summarize", "sales", "main~1", "-r").code == 2


def test_output_csv_has_every_value_in_full(sales: Command) -> None:
    rows = list(csv.DictReader(io.StringIO(sales.ok("log", "sales", "--output", "csv").out)))
    assert rows[0]["commit"] == sales.json("log", "sales")[0]["commit"]
    assert sales("log", "sales", "--output", "xml").code == 2


def test_an_unknown_name_gets_a_suggestion(sales: Command) -> None:
    assert "did you mean 'sales'?" in sales("ls", "sale", "main").err
    for words in (("ls", "sales", "mian"), ("gc", "unmark", "sales", "mian")):
        assert "did you mean 'main'?" in sales(*words).err
    sales.ok("tag", "create", "sales", "v1", "--from", "main")
    asked = sales("commit", "sales", "v1", "-m", "to a tag").err
    assert "'v1' is a tag" in asked
    assert "did you mean" not in asked


def test_a_check_that_finds_nothing_says_so(sales: Command) -> None:
    """And not that there is nothing to list."""
    for check in (("kv", "verify"), ("kv", "reconcile", "--dry-run"), ("audit", "verify")):
        ran = sales(*check)
        assert ran.code == 0
        said = ran.out + ran.err
        assert "othing" in said or "none is missing" in said
        assert "to list" not in said


def test_a_folder_is_uploaded_without_what_the_branch_has(sales: Command, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    for name in ("a.csv", "b.csv", "c.tmp", "sub/d.csv"):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    words = ("upload", "-r", "sales", "main", str(folder), "t/")
    planned = sales.json(*words, "--exclude", "*.tmp", "--dry-run")
    assert [row["path"] for row in planned] == ["t/a.csv", "t/b.csv", "t/sub/d.csv"]
    assert sales.json("ls", "sales", "main", "t/") == []
    done = sales.json(*words, "--exclude", "*.tmp")
    assert (done["objects"], done["unchanged"]) == (3, 0)
    (folder / "a.csv").write_text("A.csv")
    os.utime(folder / "a.csv", (1, 1))
    done = sales.json(*words, "--include", "*.csv")
    assert (done["objects"], done["unchanged"]) == (1, 2)
    assert sales.json(*words, "--include", "*.csv", "--unchanged")["objects"] == 3
    assert sales(*words, "--include", "*.none").code == 2
    assert sales("upload", "sales", "main", str(folder / "a.csv"), "x", "--dry-run").code == 2


def test_a_folder_is_uploaded_again_over_what_a_purge_has_left_of_the_same_size(sales: Command, tmp_path: Path) -> None:
    """A purge that sets columns to null may keep the size, and its time is not the file's."""
    folder = tmp_path / "t"
    folder.mkdir()
    (folder / "a.csv").write_text("ann")
    words = ("upload", "-r", "sales", "main", str(folder), "t/")
    assert sales.json(*words)["objects"] == 1
    sales.ok("commit", "sales", "main", "-m", "a folder")
    assert sales.json(*words)["unchanged"] == 1
    with lakes.open(tmp_path / "lake") as lake:
        rewrite(lake.repository("sales"), "main", "t/a.csv", b"...")
    done = sales.json(*words)
    assert (done["objects"], done["unchanged"]) == (1, 0)
    assert sales.ok("cat", "sales", "main", "t/a.csv").out == "ann"
    assert "t/a.csv" in [row["path"] for row in sales.json("diff", "sales", "main")]
    assert sales.json(*words)["unchanged"] == 1


def test_an_interrupted_upload_says_what_stays_staged(
    sales: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from refstore.cli import upload

    monkeypatch.setattr(upload, "BATCH_FILES", 1)
    for name in ("1", "2"):
        (tmp_path / "t").mkdir(exist_ok=True)
        (tmp_path / "t" / name).write_text(name)
    (tmp_path / "t" / "2").chmod(0)
    monkeypatch.setattr(upload.SourceFile, "chunks", lambda self: _chunks(self.file))
    ran = sales("upload", "-r", "sales", "main", str(tmp_path / "t"))
    assert ran.code
    assert "1 of 2 files stay staged on 'main'" in ran.err


def _chunks(file: Path) -> list[bytes]:
    if file.name == "2":
        raise KeyboardInterrupt
    return [b"x"]


def test_the_committer_comes_from_the_environment(sales: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFSTORE_COMMITTER", "ada")
    ran = sales.ok("commit", "sales", "main", "-m", "by ada", "--json")
    assert ran.json["committer"] == "ada"
    assert "REFSTORE_COMMITTER" not in ran.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_for_the_shell(refstore: Command, shell: str) -> None:
    assert "_REFSTORE_COMPLETE" in refstore.ok("completion", shell).out
    assert refstore("completion", "tcsh").code == 2


def test_the_shell_completes_commands(refstore: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"_REFSTORE_COMPLETE": "complete_bash", "COMP_WORDS": "refstore stat", "COMP_CWORD": "1"}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    ran = refstore.process()
    assert {"stat", "status"} <= set(ran.out.split())


class TestDoctor:
    def test_all_is_well_but_for_the_reaper_and_the_rules(self, sales: Command) -> None:
        ran = sales("doctor", "--json")
        states = {row["check"]: row["state"] for row in ran.json}
        assert ran.code == 4
        assert (states["settings"], states["kv"], states["permissions and clocks"]) == ("ok", "ok", "ok")
        assert states["java"] == "ok"
        assert states["reapers"] == "warning"
        assert not [row for row in ran.json if row["state"] != "ok" and not row["advice"]]
        assert not list((sales.folder / "lake").glob("objects/_refstore/doctor/*"))

    def test_a_tag_that_a_branch_hides_is_listed(self, sales: Command) -> None:
        assert not [row for row in sales("doctor", "--json").json if "hide" in row["found"]]
        with lakes.open(sales.folder / "lake") as lake:
            repo = lake.repository("sales")
            ctx, head = repo.context, repo.get_branch("main").head
            ctx.kv.set(keys.tag(ctx.repo, TagName("main")), encode(StoredTag(head, 1)))  # its creator died
            repo.create_tag("v1", ref="main")
        (hidden,) = [row for row in sales("doctor", "--json").json if "hide" in row["found"]]
        assert (hidden["check"], hidden["state"], hidden["found"]) == (
            "repository sales",
            "warning",
            "branches hide tags of the same name: main",
        )
        sales.ok("tag", "delete", "sales", "main", "--yes")
        assert not [row for row in sales("doctor", "--json").json if "hide" in row["found"]]

    def test_a_repository_whose_folder_is_gone_is_named_and_the_others_are_looked_at(self, sales: Command) -> None:
        namespace = sales.folder / "disk" / "away"
        sales.ok("repo", "create", "away", "--namespace", f"file://{namespace}")
        namespace.rename(sales.folder / "unmounted")
        ran = sales("doctor", "--json")
        found = {row["check"]: row for row in ran.json}
        assert (ran.code, found["repository away"]["state"]) == (6, "error")
        assert str(namespace) in found["repository away"]["found"]
        assert found["repositories"]["found"] == "2"
        status = sales.ok("reaper", "status").out
        (row,) = [line for line in status.splitlines() if line.startswith("away ")]
        assert "goes on" not in row
        assert "resume" not in status

    def test_a_store_that_refuses_is_an_error(self, sales: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        (sales.folder / "lake" / "objects" / "_refstore" / "doctor").write_text("a file")
        ran = sales("doctor", "--json")
        assert ran.code == 6
        assert next(row for row in ran.json if row["check"] == "permissions and clocks")["state"] == "error"

    def test_stores_that_refuse_the_credentials_are_told_with_the_whole_reason(
        self, refstore: Command, monkeypatch: pytest.MonkeyPatch, s3_credentials: None
    ) -> None:
        monkeypatch.delenv("REFSTORE_DATA")
        with S3FaultProxy("http://127.0.0.1:1", lambda _: Refuse(400, "ExpiredToken")) as proxy:
            monkeypatch.setenv("REFSTORE_OBJECTS", f"s3://bucket/lake?endpoint={proxy.endpoint}")
            monkeypatch.setenv("REFSTORE_KV", f"sqlite://{refstore.folder}/kv.sqlite")
            ran = refstore("doctor", "--json", "--no-write")
            found = next(row for row in ran.json if row["check"].startswith("objects at "))
            assert (ran.code, found["state"]) == (6, "error")
            assert "ExpiredToken" in found["found"]
            assert proxy.endpoint in found["found"]
            assert found["advice"] == "the credentials have expired; renew them"
        with RedisStub(lambda _: b"-NOAUTH Authentication required.\r\n") as stub:
            monkeypatch.setenv("REFSTORE_KV", f"redis://127.0.0.1:{stub.port}")
            found = refstore("doctor", "--json", "--no-write").json[-1]
            assert (found["check"], found["state"]) == ("lake", "error")
            assert f"127.0.0.1:{stub.port} refused the login" in found["found"]
            assert found["advice"] == "check the user and the password in the URL"

    def test_a_wrong_clock_is_an_error(self, sales: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        from refstore.core.clock import SystemClock

        monkeypatch.setattr(SystemClock, "now_ms", lambda _self: 1_000_000_000_000)
        ran = sales("doctor", "--json")
        found = next(row for row in ran.json if row["check"] == "permissions and clocks")
        assert (ran.code, found["state"]) == (6, "error")
        assert "NTP" in found["advice"]

    def test_no_lake_is_an_error_that_says_what_to_do(self, refstore: Command, tmp_path: Path) -> None:
        ran = refstore("doctor", "--json", "--data", str(tmp_path / "none"))
        assert ran.code == 6
        assert ran.json[-1]["advice"]

    def test_exit_codes_follow_the_worst(self) -> None:
        assert sorted(doctor_.EXIT_CODES, key=doctor_.EXIT_CODES.__getitem__) == ["ok", "warning", "error"]
