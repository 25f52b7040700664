"""The commands for repositories, branches, tags and history."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import refstore
from refstore.core.ids import BranchName, CommitId
from refstore.gc_marks import Marks
from refstore.operations import commit as commit_operation
from refstore.operations.commit import CommitOptions
from refstore_api.ui.pages import format_time
from tests.commands import Command, paths


def put(refstore: Command, branch: str, path: str, content: str) -> None:
    refstore.ok("upload", "sales", branch, "-", path, stdin=content.encode())


def commit(refstore: Command, branch: str, message: str) -> str:
    return refstore.json("commit", "sales", branch, "-m", message)["commit"]


class TestRepositories:
    def test_create_list_show_delete(self, refstore: Command) -> None:
        made = refstore.json(
            "repo", "create", "sales", "--default-branch", "trunk", "--grace", "1m", "--meta", "team=x"
        )
        assert (made["repository"], made["default_branch"]) == ("sales", "trunk")
        refstore.ok("repo", "create", "stock")
        assert [row["repository"] for row in refstore.json("repo", "list")] == ["sales", "stock"]
        assert [row["repository"] for row in refstore.json("repo", "list", "--prefix", "st")] == ["stock"]
        shown = refstore.json("repo", "show", "sales")
        assert (shown["grace_seconds"], shown["metadata"]) == (60, {"team": "x"})
        assert [row["branch"] for row in refstore.json("repo", "delete", "sales", "--dry-run")] == ["trunk"]
        assert refstore("repo", "delete", "sales").code == 2
        refstore.ok("repo", "delete", "sales", "--yes")
        assert [row["repository"] for row in refstore.json("repo", "list")] == ["stock"]

    def test_a_repository_starts_with_sample_data_where_it_is_asked_for(self, refstore: Command) -> None:
        made = refstore.json("repo", "create", "quickstart", "--sample-data")
        assert refstore.json("log", "quickstart", "main")[0]["commit"] == made["sample_data"]
        assert [row["path"] for row in refstore.json("ls", "quickstart", "main")] == [
            "README.md",
            "data/",
            "lakes.parquet",
        ]
        assert "Lake" in refstore.ok("cat", "quickstart", "main", "README.md").out

    @pytest.mark.parametrize(
        ("words", "code", "error"),
        [
            (["repo", "create", "sales"], 4, "already_exists"),
            (["repo", "create", "No"], 2, "invalid_name"),
            (["repo", "create", "other", "--namespace", "nowhere"], 2, "invalid_settings"),
            (["repo", "show", "other"], 3, "repository_not_found"),
            (["repo", "delete", "other", "--yes"], 3, "repository_not_found"),
            (["ls", "other", "main"], 3, "repository_not_found"),
        ],
    )
    def test_refusals(self, sales: Command, words: list[str], code: int, error: str) -> None:
        ran = sales(*words, "--json")
        assert (ran.code, ran.out, ran.error["code"]) == (code, "", error)

    def test_a_mistyped_folder_is_not_made_into_a_lake(self, refstore: Command) -> None:
        ran = refstore("repo", "list", "--data", "typo")
        assert ran.code == 3
        assert "refstore repo create" in ran.err
        assert not (refstore.folder / "typo").exists()

    @pytest.mark.parametrize(
        "words",
        [
            ["repo", "list", "--data", "shut"],
            ["upload", "-r", "sales", "main", "shut", "x/"],
            ["download", "sales", "main", "a", "shut"],
        ],
    )
    def test_a_folder_that_may_not_be_looked_for_is_no_defect(
        self, sales: Command, monkeypatch: pytest.MonkeyPatch, words: list[str]
    ) -> None:
        put(sales, "main", "a", "1")
        looked = Path.stat

        def stat(path: Path, **how: bool) -> os.stat_result:
            if path.name == "shut":
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return looked(path, **how)

        monkeypatch.setattr(Path, "stat", stat)
        ran = sales(*words)
        assert (ran.code, "Permission denied" in ran.err) == (2, True)


class TestBranches:
    def test_create_list_delete(self, sales: Command) -> None:
        put(sales, "main", "a", "1")
        first = commit(sales, "main", "a")
        assert sales.json("branch", "create", "sales", "dev") == {"branch": "dev", "commit": first}
        sales.ok("branch", "create", "sales", "old", "--from", "main~1")
        sales.ok("branch", "create", "sales", "secret", "--hidden")
        put(sales, "dev", "b", "2")
        found = {row["branch"]: row["uncommitted"] for row in sales.json("branch", "list", "sales")}
        assert found == {"dev": True, "main": False, "old": False}
        assert "secret" in [row["branch"] for row in sales.json("branch", "list", "sales", "--hidden")]
        assert paths(sales.json("branch", "delete", "sales", "dev", "--dry-run")) == ["b"]
        ran = sales("branch", "delete", "sales", "dev")
        assert ran.code == 2
        assert "1 uncommitted" in ran.err
        sales.ok("branch", "delete", "sales", "dev", "--yes")
        assert [row["branch"] for row in sales.json("branch", "list", "sales")] == ["main", "old"]

    def test_without_a_terminal_it_says_what_to_give_and_no_more(self, sales: Command) -> None:
        sales.ok("branch", "create", "sales", "dev")
        refused = sales("branch", "delete", "sales", "dev").err
        assert "give --yes to do it, or --dry-run to see what it would do" in refused
        ran = sales("keys", "revoke", "RS0123456789ABCDEF01")
        assert (ran.code, "--dry-run" in ran.err) == (2, False)
        assert "give --yes to do it" in ran.err

    def test_the_default_branch_stays(self, sales: Command) -> None:
        ran = sales("branch", "delete", "sales", "main", "--yes", "--json")
        assert (ran.code, ran.error["code"]) == (4, "conflict")

    def test_reset(self, sales: Command) -> None:
        put(sales, "main", "a", "1")
        commit(sales, "main", "a")
        for path in ("a", "t/1", "t/2"):
            put(sales, "main", path, "new")
        rows = sales.json("reset", "sales", "main", "--dry-run")
        assert [(row["change"], row["path"]) for row in rows] == [("changed", "a"), ("added", "t/1"), ("added", "t/2")]
        assert paths(sales.json("reset", "sales", "main", "t/", "-r", "--dry-run")) == ["t/1", "t/2"]
        assert paths(sales.json("reset", "sales", "main", "t/1", "--dry-run")) == ["t/1"]
        assert "2 uncommitted changes below 't/'" in sales("reset", "sales", "main", "t/", "-r").err
        sales.ok("reset", "sales", "main", "t/1")
        assert paths(sales.json("diff", "sales", "main")) == ["a", "t/2"]
        assert sales("reset", "sales", "main", "t/", "-r").code == 2
        assert "needs a PATH" in sales("reset", "sales", "main", "", "-r", "--yes").err
        assert "needs a PATH" in sales("reset", "sales", "main", "-r", "--yes").err
        assert sales.json("reset", "sales", "main", "t")["reset"] == "nothing was staged"
        assert paths(sales.json("diff", "sales", "main")) == ["a", "t/2"]
        sales.ok("reset", "sales", "main", "t/", "-r", "--yes")
        assert paths(sales.json("diff", "sales", "main")) == ["a"]
        sales.ok("reset", "sales", "main", "--yes")
        assert sales.json("diff", "sales", "main") == []
        assert sales.ok("cat", "sales", "main", "a").out == "1"

    def test_nothing_is_asked_where_there_is_nothing_to_discard(self, sales: Command) -> None:
        put(sales, "main", "a", "1")
        commit(sales, "main", "a")
        put(sales, "main", "t/1", "new")
        assert sales.json("reset", "sales", "main", "none/", "-r")["reset"] == "nothing was staged"
        assert sales.json("rm", "sales", "main", "none/", "-r")["deleted"] == 0
        assert paths(sales.json("diff", "sales", "main")) == ["t/1"]
        sales.ok("reset", "sales", "main", "--yes")
        assert sales.json("reset", "sales", "main")["reset"] == "nothing was staged"
        assert sales("reset", "sales", "none").code == 3
        assert sales("rm", "sales", "main", "a", "-r").code == 2

    def test_it_takes_one_path(self, sales: Command) -> None:
        assert sales("reset", "sales", "main", "a", "b").code == 2


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["branch", "delete", "sales", "main"], 4),
        (["tag", "delete", "sales", "v1"], 3),
        (["repo", "delete", "sales"], 4),
    ],
)
def test_a_dry_run_refuses_what_the_call_itself_would(sales: Command, words: list[str], code: int) -> None:
    sales.ok("retention", "set", "sales", "-", stdin=b'{"legal_holds": [{"prefix": "contracts/"}]}')
    really, dry = sales(*words, "--yes", "--json"), sales(*words, "--dry-run", "--json")
    assert (really.code, dry.code, dry.out) == (code, code, "")
    assert dry.error == really.error


class TestTags:
    def test_create_list_delete(self, sales: Command) -> None:
        put(sales, "main", "a", "1")
        first = commit(sales, "main", "a")
        assert sales.json("tag", "create", "sales", "v1") == {"tag": "v1", "commit": first}
        sales.ok("tag", "create", "sales", "v0", "--from", "main~1")
        assert [row["tag"] for row in sales.json("tag", "list", "sales")] == ["v0", "v1"]
        assert sales("tag", "create", "sales", "v1").code == 4
        assert sales.json("tag", "delete", "sales", "v1", "--dry-run") == [{"tag": "v1", "commit": first}]
        sales.ok("tag", "delete", "sales", "v1", "--yes")
        assert sales("tag", "delete", "sales", "v1", "--yes").code == 3


class TestHistory:
    def test_commit_log_diff(self, sales: Command) -> None:
        put(sales, "main", "a", "1")
        answer = sales.json(
            "commit", "sales", "main", "-m", "one", "--meta", "k=v", "--by", "me", "--date", "2026-11-21"
        )
        assert answer["branch"] == "main"
        assert (answer["message"], answer["committer"], answer["metadata"]) == ("one", "me", {"k": "v"})
        assert answer["date"] == "2026-11-21T00:00:00Z"
        put(sales, "main", "a", "22")
        put(sales, "main", "b", "3")
        assert [(row["change"], row["path"], row["size_bytes"]) for row in sales.json("diff", "sales", "main")] == [
            ("changed", "a", 2),
            ("added", "b", 1),
        ]
        commit(sales, "main", "two")
        assert [row["message"] for row in sales.json("log", "sales")] == ["two", "one", "Repository created"]
        assert [row["message"] for row in sales.json("log", "sales", "main~1", "--limit", "1")] == ["one"]
        assert paths(sales.json("diff", "sales", "main~1", "--to", "main")) == ["a", "b"]
        assert paths(sales.json("diff", "sales", "main", "--to", "main~2")) == ["a", "b"]
        assert paths(sales.json("diff", "sales", "main~1", "--to", "main", "--prefix", "b")) == ["b"]
        assert sales.ok("diff", "sales", "main~1", "--to", "main").out.splitlines()[1].split() == [
            "changed",
            "a",
            "2",
            "B",
        ]

    def test_the_log_shows_the_first_line_of_a_message(self, sales: Command) -> None:
        put(sales, "main", "a", "1")
        commit(sales, "main", "the first line\n\nand a paragraph")
        shown = sales.ok("log", "sales", "--limit", "1").out
        assert "the first line" in shown
        assert "paragraph" not in shown
        assert sales.json("log", "sales")[0]["message"] == "the first line\n\nand a paragraph"

    def test_the_log_tells_what_has_expired(self, sales: Command) -> None:
        put(sales, "main", "a", "1")
        old = commit(sales, "main", "one")
        put(sales, "main", "a", "2")
        commit(sales, "main", "two")
        with refstore.open(str(sales.folder / "lake")) as lake:
            marks = Marks(lake.repository("sales").context)
            begun = marks.mark_run.begin("", 86_400_000, [CommitId(old)], "night-1")
            examined = {row["message"]: row for row in sales.json("log", "sales")}["one"]
            marks.mark_run.finish(begun, {})
        names = ("state", "mark", "deletes_at", "examining_run")
        assert [examined[name] for name in names] == ["being examined", None, None, "night-1"]
        lines = {row["message"]: row for row in sales.json("log", "sales")}
        assert (lines["two"]["state"], lines["two"]["mark"]) == ("active", None)
        assert (lines["one"]["state"], lines["one"]["mark"], lines["one"]["swept"]) == ("marked", "night-1", None)
        assert lines["one"]["marked"] < lines["one"]["deletes_at"]
        assert "marked in 23 h one" in " ".join(sales.ok("log", "sales").out.split())
        shown = sales.ok("show", "sales", "main~1").out
        assert f"marked {lines['one']['marked']}, deletes at {lines['one']['deletes_at']}, by night-1" in shown

    def test_nothing_to_commit(self, sales: Command) -> None:
        ran = sales("commit", "sales", "main", "-m", "x", "--json")
        assert (ran.code, ran.error["code"]) == (4, "nothing_to_commit")
        sales.ok("commit", "sales", "main", "-m", "x", "--allow-empty")

    def test_a_commit_without_a_message(self, sales: Command) -> None:
        ran = sales("commit", "sales", "main")
        assert ran.code == 2
        assert "--message" in ran.err

    def test_a_date_that_is_none(self, sales: Command) -> None:
        put(sales, "main", "a", "1")
        ran = sales("commit", "sales", "main", "-m", "x", "--date", "yesterday")
        assert ran.code == 2
        assert "2026-11-21" in ran.err

    @pytest.mark.parametrize("date", ["9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00"])
    def test_a_date_beyond_the_calendar_commits_nothing(self, sales: Command, date: str) -> None:
        put(sales, "main", "a", "1")
        ran = sales("commit", "sales", "main", "-m", "x", "--date", date, "--json")
        assert (ran.code, ran.error["code"]) == (2, "invalid")
        assert [row["message"] for row in sales.json("log", "sales")] == ["Repository created"]

    def test_a_year_has_four_digits(self, sales: Command) -> None:
        sales.ok("commit", "sales", "main", "-m", "x", "--date", "0001-01-01T00:00:00", "--allow-empty")
        assert "0001-01-01T00:00:00Z" in [row["date"] for row in sales.json("log", "sales")]
        assert " ago" in sales.ok("log", "sales").out, "people see how long it is ago"
        assert format_time(-62_135_596_800_000) == "0001-01-01 00:00 UTC", "and at the page"

    def test_a_commit_that_was_dated_beyond_the_calendar_hides_no_other(self, sales: Command) -> None:
        with refstore.open(str(sales.folder / "lake")) as lake:
            ctx = lake.repository("sales").context
            for message, at in (("late", 1 << 60), ("early", -(1 << 60))):
                commit_operation.commit(
                    ctx, BranchName("main"), CommitOptions(message=message, date_ms=at, allow_empty=True)
                )
        dates = {row["message"]: row["date"] for row in sales.json("log", "sales")}
        assert (dates["late"], dates["early"]) == ("after the year 9999", "before the year 1")
        assert "after the year 9999" in sales.ok("log", "sales").out

    def test_merge_and_its_conflicts(self, sales: Command) -> None:
        put(sales, "main", "a", "1")
        commit(sales, "main", "base")
        sales.ok("branch", "create", "sales", "dev")
        put(sales, "dev", "b", "2")
        commit(sales, "dev", "b")
        assert len(sales.json("merge", "sales", "dev", "--into", "main")["parents"]) == 2
        assert sales.ok("cat", "sales", "main", "b").out == "2"
        assert sales("merge", "sales", "dev", "--into", "main").code == 4
        put(sales, "dev", "a", "dev")
        commit(sales, "dev", "a on dev")
        put(sales, "main", "a", "main")
        commit(sales, "main", "a on main")
        ran = sales("merge", "sales", "dev", "--into", "main", "--json")
        assert (ran.code, ran.error["code"], ran.error["paths"]) == (4, "merge_conflict", ["a"])
        ran = sales("merge", "sales", "dev", "--into", "main")
        assert "conflict: 'a'" in ran.err
        answer = sales.json(
            "merge", "sales", "dev", "--into", "main", "--strategy", "source-wins", "--squash", "-m", "take it"
        )
        assert (answer["message"], len(answer["parents"])) == ("take it", 1)
        assert sales.ok("cat", "sales", "main", "a").out == "dev"

    def test_merge_with_uncommitted_changes(self, sales: Command) -> None:
        sales.ok("branch", "create", "sales", "dev")
        put(sales, "dev", "b", "2")
        commit(sales, "dev", "b")
        put(sales, "main", "c", "3")
        ran = sales("merge", "sales", "dev", "--into", "main", "--json")
        assert (ran.code, ran.error["code"]) == (4, "dirty_branch")

    def test_revert_and_cherry_pick(self, sales: Command) -> None:
        put(sales, "main", "a", "1")
        commit(sales, "main", "a")
        sales.ok("branch", "create", "sales", "dev")
        put(sales, "dev", "b", "2")
        commit(sales, "dev", "b")
        put(sales, "dev", "c", "3")
        commit(sales, "dev", "c")
        sales.ok("cherry-pick", "sales", "dev~1", "--onto", "main")
        assert paths(sales.json("ls", "sales", "main")) == ["a", "b"]
        assert sales.json("revert", "sales", "main", "--on", "main")["message"] == "Revert main"
        assert paths(sales.json("ls", "sales", "main")) == ["a"]
        assert sales("revert", "sales", "nowhere", "--on", "main").code == 3
