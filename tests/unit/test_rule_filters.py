"""Rules as seed 001 writes them: `branch/path` prefixes, descriptions; and what a person is told of rules that match
nothing.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from refstore.errors import InvalidRules
from refstore.lake import Lake
from refstore.operations import rules_document
from refstore.operations.rule_review import review_rules
from refstore.repository import Repository
from refstore.retention.rules import PathRuleFilter, gc_rules, read_rules
from refstore_gc.mark_plan import apply_branch_rules
from tests.api.service import application
from tests.commands import Command
from tests.kit.clock import FakeClock
from tests.kit.logged_events import collecting_events

LAKEFS = """
{
  "description": "what lakeFS's configuration reference shows",
  "rules": [
    {"description": "logs", "filter": {"prefix": "main/logs/"}, "status": "enabled",
     "expiration": {"all": {"weeks": 2, "days": 1}, "noncurrent": {"days": 7}}},
    {"filter": {"prefix": "users/"}, "expiration": {"all": {"days": 3}}}
  ]
}
"""
DAY = 86_400


@pytest.fixture
def repo(lake: Lake) -> Repository:
    repo = lake.create_repository("sales")
    repo.upload("main", "logs/1", b"1")
    repo.upload("main", "data/1", b"1")
    repo.commit("main", "first")
    return repo


def rule(prefix: str, branch: str = "", **expiration: int) -> dict[str, Any]:
    filter_ = {"prefix": prefix} | ({"branch": branch} if branch else {})
    return {
        "filter": filter_,
        "expiration": {kind: {"days": days} for kind, days in (expiration or {"uncommitted": 1}).items()},
    }


def document(*rules: dict[str, Any], **fields: Any) -> str:
    return json.dumps({"default_retention_days": 30, "rules": rules} | fields)


def filters(repo: Repository) -> list[PathRuleFilter]:
    found = repo.retention()
    assert found is not None
    return [each.filter for each in found.rules.rules]


class TestBranchAndPath:
    def test_the_document_of_the_reference_is_understood(self, repo: Repository) -> None:
        repo.create_branch("users", source="main")
        repo.set_retention(LAKEFS)
        assert filters(repo) == [PathRuleFilter("logs/", "main"), PathRuleFilter("", "users")]
        assert read_rules(LAKEFS).rules.rules[0].description == "logs"

    def test_a_branch_whose_name_has_slashes(self, repo: Repository) -> None:
        repo.create_branch("release/1.0", source="main")
        repo.set_retention(document(rule("release/1.0/logs/"), rule("release/2.0/logs/")))
        assert filters(repo) == [PathRuleFilter("logs/", "release/1.0"), PathRuleFilter("release/2.0/logs/")]

    def test_a_path_on_all_branches_stays_one(self, repo: Repository) -> None:
        repo.set_retention(document(rule("logs/"), rule("")))
        assert filters(repo) == [PathRuleFilter("logs/"), PathRuleFilter("")]

    @pytest.mark.parametrize("staged", [False, True], ids=["committed", "staged"])
    def test_what_can_be_read_in_two_ways_is_refused_until_it_is_said(self, repo: Repository, staged: bool) -> None:
        repo.create_branch("dev", source="main")
        repo.upload("dev", "main/logs/x", b"1")
        if not staged:
            repo.commit("dev", "a folder named like the branch")
        with pytest.raises(
            InvalidRules,
            match=r'rules\[0\]\.filter\.prefix: .*write \{"branch": "main", "prefix": "logs/"\} or \{"branch": "\*"',
        ):
            repo.set_retention(document(rule("main/logs/")))
        repo.set_retention(document(rule("logs/", "main"), rule("main/logs/", "*")))
        assert filters(repo) == [PathRuleFilter("logs/", "main"), PathRuleFilter("main/logs/", "*")]

    def test_two_branches_that_a_prefix_can_begin_with_are_refused(self, repo: Repository) -> None:
        repo.create_branch("a", source="main")
        repo.create_branch("a/b", source="main")
        with pytest.raises(InvalidRules, match="may be a path"):
            repo.set_retention(document(rule("a/b/c")))

    def test_what_a_document_meant_when_it_was_set_it_means_for_ever(self, repo: Repository) -> None:
        repo.create_branch("dev", source="main")
        repo.set_retention(document(rule("dev/logs/"), rule("new/")))
        repo.delete_branch("dev")
        repo.create_branch("new", source="main")
        assert filters(repo) == [PathRuleFilter("logs/", "dev"), PathRuleFilter("new/")]
        assert (found := repo.retention()) is not None
        assert found.document == document(rule("dev/logs/"), rule("new/"))

    def test_rules_changed_by_clients_of_lakefs_keep_their_filters(self, repo: Repository) -> None:
        repo.set_retention(document(rule("main/logs/")))
        repo.set_gc_rules(gc_rules(read_rules('{"default_retention_days": 3}').rules))
        assert filters(repo) == [PathRuleFilter("logs/", "main")]

    def test_one_filter_written_in_two_ways_is_there_twice(self, repo: Repository) -> None:
        with pytest.raises(InvalidRules, match="a second enabled rule"):
            repo.set_retention(document(rule("logs/", "main"), rule("main/logs/")))
        with pytest.raises(InvalidRules, match="a second enabled rule"):
            repo.set_retention(document(rule("logs/", "*"), rule("logs/")))

    def test_a_branch_that_is_no_name_is_refused(self) -> None:
        with pytest.raises(InvalidRules, match="not a branch name"):
            read_rules(document(rule("logs/", "rel*")))

    def test_descriptions_change_no_digest(self) -> None:
        plain = read_rules(document(rule("a"))).rules
        told = read_rules(document(rule("a") | {"description": "x"}, description="y")).rules
        assert plain.digest() == told.digest()
        assert plain.digest() != read_rules(document(rule("a", "main"))).rules.digest()


class TestStaged:
    def test_only_what_is_staged_on_its_branch_expires(self, repo: Repository, clock: FakeClock) -> None:
        repo.create_branch("dev", source="main")
        for branch in ("main", "dev"):
            for path in ("logs/2", "data/2"):
                repo.upload(branch, path, b"2")
        repo.set_retention(document(rule("dev/logs/", uncommitted=1)))
        clock.advance(2 * DAY)
        assert apply_branch_rules(repo.context).staged.objects == 1
        assert [item.path for item in repo.list("dev")] == ["data/1", "data/2", "logs/1"]
        assert [item.path for item in repo.list("main")] == ["data/1", "data/2", "logs/1", "logs/2"]


class TestReview:
    def warned(self, repo: Repository, text: str) -> list[str]:
        return list(review_rules(repo.context, rules_document.parse_rules(repo.context, text).rules).warnings)

    def test_what_is_there_is_not_warned_of(self, repo: Repository) -> None:
        text = document(rule("logs/"), rule("data/", "main"), legal_holds=[{"prefix": "data/"}])
        assert self.warned(repo, text) == []

    def test_a_mistyped_branch_and_what_holds_for_the_one_that_was_meant(self, repo: Repository) -> None:
        text = '{"default_retention_days": 3, "branches": [{"branch_id": "mian", "retention_days": 365}]}'
        assert self.warned(repo, text) == [
            (
                "'mian' is the rule of no branch that is there now; did you mean 'main', which by default is kept for "
                "3 days?"
            )
        ]

    @pytest.mark.parametrize(
        ("filter_", "words"),
        [
            (rule("lgos/"), "prefix 'lgos/' matches nothing that a branch shows now"),
            (rule("mian/logs/"), "there is no branch 'mian' either: did you mean 'main/logs/'?"),
            (rule("logs/", "mian"), "no such branch; did you mean 'main'?"),
            (rule("main/nothing/"), "prefix 'nothing/' matches nothing that branch 'main' shows now"),
        ],
    )
    def test_a_filter_that_matches_nothing(self, repo: Repository, filter_: dict[str, Any], words: str) -> None:
        (warned,) = self.warned(repo, document(filter_))
        assert words in warned

    def test_a_legal_hold_that_matches_nothing(self, repo: Repository) -> None:
        (warned,) = self.warned(repo, document(legal_holds=[{"prefix": "contratcs/"}]))
        assert "the legal hold on 'contratcs/' matches nothing" in warned

    def test_what_is_only_staged_counts_as_shown(self, repo: Repository) -> None:
        repo.upload("main", "new/1", b"1")
        repo.delete("main", "logs/1")
        assert self.warned(repo, document(rule("new/"))) == []
        assert len(self.warned(repo, document(rule("logs/")))) == 1

    def test_how_many_commits_expire_tonight(self, repo: Repository, clock: FakeClock) -> None:
        for number in range(3):
            repo.upload("main", "data/1", b"%d" % number)
            repo.commit("main", "next")
            clock.advance(10 * DAY)
        found = review_rules(repo.context, read_rules('{"default_retention_days": 1}').rules)
        assert (found.expired_commits, found.unmarked_commits) == (4, 4)
        assert found.warnings[-1] == "by these rules 4 of 5 commits expire tonight: the next collection marks them"


class TestOtherClients:
    MISTYPED = '{"default_retention_days": 3, "branches": [{"branch_id": "mian", "retention_days": 365}]}'

    def test_the_sdk_reviews_a_document_before_it_is_set_and_the_rules_in_force(self, repo: Repository) -> None:
        assert repo.review_retention().unused_rules == ()
        assert repo.review_retention(self.MISTYPED).unused_rules == ("mian",)
        repo.set_retention(self.MISTYPED)
        assert repo.review_retention().unused_rules == ("mian",)

    def test_rules_that_are_set_over_http_are_warned_of_in_the_log(self) -> None:
        with application() as service, collecting_events() as logs:
            service.lake.create_repository("sales")
            assert (
                service("PUT", "/repositories/sales/settings/gc_rules", json=json.loads(self.MISTYPED)).status_code
                == 204
            )
        warned = [log["warning"] for log in logs if log["event"] == "retention_rules"]
        assert any("did you mean 'main'" in each for each in warned)


class TestCommand:
    MISTYPED = b'{"default_retention_days": 3, "branches": [{"branch_id": "mian", "retention_days": 365}]}'

    @pytest.mark.parametrize("command", [("set",), ("set", "--dry-run")])
    def test_every_command_that_reads_rules_warns_of_a_mistyped_branch(
        self, sales: Command, command: tuple[str, ...]
    ) -> None:
        for date in ("2020-01-01", "2020-02-01", "2020-03-01"):
            sales.ok("commit", "sales", "main", "-m", "old", "--date", date, "--allow-empty")
        name, *options = command
        ran = sales.ok("retention", name, "sales", *options, "-", stdin=self.MISTYPED)
        assert "warning: 'mian' is the rule of no branch that is there now; did you mean 'main'" in ran.err
        assert "warning: by these rules " in ran.err
        assert "expire tonight" in ran.err

    def test_set_answers_with_what_expires_tonight(self, sales: Command) -> None:
        assert sales.json("retention", "set", "sales", "-", stdin=self.MISTYPED)["expire_tonight"] == 0

    def test_how_a_prefix_was_read_is_told(self, sales: Command) -> None:
        ran = sales.ok("retention", "set", "sales", "-", stdin=document(rule("main/logs/")).encode())
        assert "prefix 'main/logs/' is read as paths logs/* on branch 'main'" in ran.err
        shown = sales.json("retention", "explain", "sales")
        assert shown["paths"] == [{"paths": "logs/* on main", "rule": "uncommitted", "days": 1}]
