"""`refstore retention`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from refstore.cli import common
from refstore.configuration.settings import embedded_urls
from refstore.gc_marks import Marks
from refstore.lake import open_lake_at
from tests.commands import Command
from tests.integration.test_documentation import code, lines, parse, words
from tests.kit import collecting
from tests.kit.clock import FakeClock

PAGE = Path(__file__).resolve().parents[2] / "docs" / "retention.md"
PLAIN = '{"default_retention_days": 7, "branches": [{"branch_id": "main", "retention_days": 28}]}'
HELD = (
    '{"default_retention_days": 7, "legal_holds": [{"prefix": "contracts/"}], '
    '"branches": [{"branch_id": "rel/*", "retention_days": 90}]}'
)


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    file = tmp_path / "rules.json"
    file.write_text(PLAIN)
    return file


@pytest.fixture
def history(sales: Command) -> Command:
    """main: its root, two old commits and a new one; and a line that has lost its branch."""
    for message, date in (("old", "2020-01-01"), ("next", "2020-02-01")):
        sales.ok("commit", "sales", "main", "-m", message, "--date", date, "--allow-empty")
    sales.ok("branch", "create", "sales", "try")
    sales.ok("commit", "sales", "try", "-m", "tried", "--date", "2020-03-01", "--allow-empty")
    sales.ok("commit", "sales", "main", "-m", "new", "--allow-empty")
    sales.ok("branch", "delete", "sales", "try", "--yes")
    return sales


class TestSetAndGet:
    def test_what_was_set_comes_out_as_it_was(self, sales: Command, rules: Path) -> None:
        done = sales.json("retention", "set", "sales", rules, "--by", "ann")
        assert (done["by"], done["extended"]) == ("ann", False)
        assert sales.ok("retention", "get", "sales").out == PLAIN + "\n"
        shown = sales.json("retention", "get", "sales")
        assert shown["document"] == json.loads(PLAIN)
        assert (shown["by"], shown["set"]) == ("ann", done["set"])

    def test_a_legal_hold_goes_only_by_its_name(self, sales: Command, rules: Path) -> None:
        sales.ok("retention", "set", "sales", "-", stdin=HELD.encode())
        previewed = sales.json("retention", "set", "sales", rules, "--dry-run")
        told = [(each["change"], each["what"], each["name"], each["remove"]) for each in previewed["changes"]]
        assert told == [
            ("removed", "legal hold", "hold:contracts/", "hold:contracts/"),
            ("removed", "branch rule", "rel/*", None),
            ("added", "branch rule", "main", None),
        ]
        assert "hold:contracts/" in sales.ok("retention", "set", "sales", rules, "--dry-run").out
        assert "hold:contracts/" in sales.ok("gc", "run", "--dry-run", "sales", "--rules", rules).err
        refused = sales("retention", "set", "sales", rules)
        assert refused.code == 4
        assert "removed: legal hold hold:contracts/" in refused.err
        assert "add: --remove hold:contracts/" in refused.err
        assert sales("retention", "set", "sales", rules, "--json").error["remove"] == ["hold:contracts/"]
        assert sales("retention", "delete", "sales", "--yes").code == 4
        assert sales.ok("retention", "get", "sales").out == HELD + "\n"
        done = sales.json("retention", "set", "sales", rules, "--remove", "hold:contracts/")
        assert [each["name"] for each in done["changes"]] == ["hold:contracts/", "rel/*", "main"]
        assert sales.json("retention", "explain", "sales")["changes"] == []

    def test_a_sweep_that_has_begun_is_warned_of(self, sales: Command, rules: Path) -> None:
        with open_lake_at(*embedded_urls(sales.folder / "lake"), clock=FakeClock(1_900_000_000_000)) as lake:
            ctx = lake.repository("sales").context
            run, _ = collecting.mark(ctx, [], grace_ms=0)
            assert sales.ok("retention", "set", "sales", rules).err == ""
            Marks(ctx).sweeps.begin(run.mark_id)
        assert f"mark {run.mark_id} is being swept" in sales.ok("retention", "set", "sales", rules).err

    def test_from_standard_input(self, sales: Command) -> None:
        sales.ok("retention", "set", "sales", "-", stdin=b"\xef\xbb\xbf" + PLAIN.encode())
        assert sales.json("retention", "get", "sales")["document"] == json.loads(PLAIN)

    def test_who_set_them_is_the_user_if_not_said(
        self, sales: Command, rules: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LOGNAME", "bob")
        assert sales.json("retention", "set", "sales", rules)["by"] == "bob"

    def test_a_container_without_users(self, sales: Command, rules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def nobody() -> str:
            raise KeyError("uid")

        monkeypatch.setattr(common.getpass, "getuser", nobody)
        assert sales.json("retention", "set", "sales", rules)["by"] == ""

    def test_bad_rules_say_where(self, sales: Command) -> None:
        ran = sales("retention", "set", "sales", "-", "--json", stdin=b'{\n  "keep_lats": 1\n}')
        assert (ran.code, ran.error["code"]) == (2, "invalid_rules")
        assert ran.error["message"] == "retention rules: unknown field 'keep_lats'; did you mean 'keep_last'?"
        assert sales("retention", "get", "sales").code == 3

    def test_what_may_not_be_meant_is_warned_of(self, sales: Command) -> None:
        ran = sales.ok("retention", "set", "sales", "-", stdin=b'{"default_retention_days": 1, "grace_days": 0}')
        assert "warning: grace_days is 0" in ran.err

    def test_a_dry_run_says_what_they_come_to_and_sets_nothing(self, history: Command, rules: Path) -> None:
        assert history.json("retention", "set", "sales", rules, "--dry-run")["expired"] == 2
        assert history("retention", "get", "sales").code == 3

    @pytest.mark.parametrize(("raw", "words"), [(b"\xff", "not UTF-8"), (b"", "line 1, column 1: Expecting value")])
    def test_a_file_that_is_none(self, sales: Command, raw: bytes, words: str) -> None:
        ran = sales("retention", "set", "sales", "-", stdin=raw)
        assert ran.code == 2
        assert words in ran.err

    def test_rules_of_no_branch_are_named(self, sales: Command) -> None:
        ran = sales.ok("retention", "set", "sales", "-", "--dry-run", stdin=HELD.encode())
        assert "'rel/*' is the rule of no branch that is there now" in ran.err

    def test_a_pin_of_nothing(self, sales: Command) -> None:
        pins = json.dumps({"pins": {"commits": ["f" * 64]}}).encode()
        assert sales("retention", "set", "sales", "-", "--dry-run", stdin=pins).code == 2

    def test_a_file_that_is_not_there(self, sales: Command) -> None:
        assert sales("retention", "set", "sales", "nowhere.json").code == 2


class TestExplain:
    def test_each_branch_with_its_rule(self, history: Command, rules: Path) -> None:
        history.ok("branch", "create", "sales", "dev")
        history.ok("retention", "set", "sales", rules)
        found = history.json("retention", "explain", "sales")
        assert [(row["branch"], row["days"], row["rule"]) for row in found["branches"]] == [
            ("dev", 7, "default"),
            ("main", 28, "branch 'main'"),
        ]
        main = found["branches"][1]
        assert (main["commits"], main["active"], main["expired"]) == (4, 3, 1)
        assert main["next_expires"] is not None
        assert (found["commits"], found["active"], found["expired"], found["dangling"]) == (5, 3, 2, 1)
        assert found["back_dated"] == 1

    def test_for_people(self, history: Command, rules: Path) -> None:
        history.ok("retention", "set", "sales", rules)
        lines = history.ok("retention", "explain", "sales").out.splitlines()
        assert lines[0].split() == [
            "branch",
            "days",
            "rule",
            "commits",
            "active",
            "expired",
            "next",
            "expires",
            "latest",
            "view",
        ]
        assert lines[1].startswith("main      28  branch 'main'        4       3        1  in ")
        assert "expired                2" in lines

    def test_with_other_rules_than_those_in_force(self, history: Command) -> None:
        found = history.json("retention", "set", "sales", "-", "--dry-run", stdin=HELD.encode())
        assert found["branches"][0]["rule"] == "default"
        assert found["paths"] == [{"paths": "contracts/*", "rule": "legal hold", "days": None}]

    def test_path_rules_are_shown(self, history: Command) -> None:
        document = (
            b'{"rules": [{"filter": {"prefix": "tmp/"}, '
            b'"expiration": {"noncurrent": {"weeks": 1}, "uncommitted": {"days": 2}}}]}'
        )
        found = history.json("retention", "set", "sales", "-", "--dry-run", stdin=document)
        assert [(row["rule"], row["days"]) for row in found["paths"]] == [("noncurrent", 7), ("uncommitted", 2)]

    def test_one_commit(self, history: Command, rules: Path) -> None:
        history.ok("retention", "set", "sales", rules)
        found = history.json("retention", "explain", "sales", "main~1")
        assert found["state"] == "active"
        assert [(each["why"], each["rule"], each["over"]) for each in found["reasons"]] == [
            ("was the head of branch 'main'", "branch 'main'", False),
            (f"on a line without a branch, up to commit {found['reasons'][1]['why'][-64:]}", "default", True),
        ]
        assert found["expires"] == found["reasons"][0]["until"]

    def test_a_head_does_not_expire(self, history: Command, rules: Path) -> None:
        history.ok("retention", "set", "sales", rules)
        found = history.json("retention", "explain", "sales", "main")
        assert (found["state"], found["expires"]) == ("active", None)
        assert found["reasons"] == [
            {"why": "the head of branch 'main'", "rule": "heads never expire", "until": None, "over": False}
        ]

    def test_one_that_has_expired(self, history: Command, rules: Path) -> None:
        history.ok("retention", "set", "sales", rules)
        tried = next(row["commit"] for row in history.json("log", "sales", "main"))
        assert history.json("retention", "explain", "sales", tried)["state"] == "active"
        history.ok("retention", "set", "sales", "-", stdin=b'{"default_retention_days": 1}')
        out = history.ok("retention", "explain", "sales", "main~2").out
        assert "state        expired" in out.splitlines()
        assert "expires      2020-02-02T00:00:00Z" in out.splitlines()

    def test_a_period_beyond_the_calendar(self, history: Command) -> None:
        document = b'{"default_retention_days": 2147483647}'
        assert (
            history.json("retention", "set", "sales", "-", "--dry-run", stdin=document)["next_expires"]
            == "after the year 9999"
        )

    def test_the_latest_view_of_a_branch_that_uses_types(self, history: Command) -> None:
        history.ok("branch", "create", "sales", "abc")
        meta = ("--meta", "refstore.transaction=APPEND", "--allow-empty")
        history.ok("commit", "sales", "abc", "-m", "t1", "--date", "2020-04-01", *meta)
        history.ok("commit", "sales", "abc", "-m", "t2", "--date", "2020-05-01", *meta)
        history.ok("retention", "set", "sales", "-", stdin=b'{"default_retention_days": 1}')
        explained = history.json("retention", "explain", "sales")
        assert {row["branch"]: row["latest_view"] for row in explained["branches"]} == {"abc": "kept", "main": None}
        one = history.json("retention", "explain", "sales", "abc~1")
        assert (one["state"], one["reasons"][0]["why"]) == ("active", "in the latest view of branch 'abc'")
        assert one["reasons"][0]["rule"] == "keep_latest_view by default: it uses transaction types"
        for option in (b'"keep_latest_view": false', b'"allow_deletion_from_latest_view": true'):
            document = b'{"default_retention_days": 1, %s}' % option
            for options in (("--dry-run",), ()):
                ran = history.ok("retention", "set", "sales", "-", *options, stdin=document)
                assert "expire by their age on branches that use transaction types, too" in ran.err
                assert "do not keep their latest view: 'abc'" in ran.err
            explained = history.json("retention", "explain", "sales")
            assert [row["latest_view"] for row in explained["branches"]] == ["not kept", None]
            assert history.json("retention", "explain", "sales", "abc~1")["state"] == "expired"
            assert (
                "expire by their age"
                in history.ok("gc", "run", "--dry-run", "sales", "--rules", "-", stdin=document).err
            )

    def test_without_rules(self, sales: Command) -> None:
        ran = sales("retention", "explain", "sales")
        assert ran.code == 3
        assert "nothing that was committed expires" in ran.err


class TestDelete:
    def test_it_asks_first(self, sales: Command, rules: Path) -> None:
        sales.ok("retention", "set", "sales", rules)
        assert sales("retention", "delete", "sales").code == 2
        assert sales.json("retention", "delete", "sales", "--dry-run")["deleted"] is False
        assert sales.json("retention", "delete", "sales", "--yes")["deleted"] is True
        assert sales("retention", "delete", "sales", "--yes").code == 3


def test_every_command_line_of_the_page_exists() -> None:
    found = lines(code(PAGE.read_text()))
    assert len(found) == 9
    for line in found:
        parse(words(line))
