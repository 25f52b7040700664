"""The worked examples of the designs that retention comes from, as they are told there. Files stand for objects; a
commit is the set of files that it shows.
"""

from __future__ import annotations

import msgspec
import pytest

from refstore.core.ids import CommitId
from refstore.core.units import DAY_MS
from refstore.retention.active_commits import ExpiryState, Refs, RetentionReason, compute_expiry
from refstore.retention.commit_arrays import CommitHistory, CommitRow, TransactionType
from refstore.retention.path_rules import make_plan
from refstore.retention.rule_explanation import branch_lines, hold_reasons
from refstore.retention.rules import BranchRule, Expiration, PathRule, PathRuleFilter, RulePeriod, Rules
from tests.kit.retention import keeps_entry

NOW_MS = 1_763_708_400_000


class Story:
    """A history that is told commit by commit, oldest first: on which branch, how many days ago, and what the commit
    shows.
    """

    def __init__(self) -> None:
        self.rows: list[CommitRow] = []
        self.files: dict[str, frozenset[str]] = {}
        self.heads: dict[str, CommitId] = {}

    def branch(self, name: str, at: str) -> None:
        self.heads[name] = CommitId(at)

    def delete_branch(self, name: str) -> None:
        del self.heads[name]

    def commit(
        self, name: str, on: str, days_ago: float, *files: str, transaction: TransactionType = TransactionType.NONE
    ) -> None:
        parents = [self.heads[on]] if on in self.heads else []
        self.rows.append(CommitRow(CommitId(name), parents, NOW_MS - int(days_ago * DAY_MS), transaction=transaction))
        self.files[name] = frozenset(files)
        self.heads[on] = CommitId(name)

    def append(self, name: str, on: str, days_ago: float = 30) -> None:
        """A transaction that adds a file of its name."""
        before = self.files[self.heads[on]] if on in self.heads else frozenset[str]()
        self.commit(name, on, days_ago, *before, name, transaction=TransactionType.APPEND)

    def snapshot(self, name: str, on: str, days_ago: float = 30) -> None:
        """A transaction that begins a new view, with a file of its name."""
        self.commit(name, on, days_ago, name, transaction=TransactionType.SNAPSHOT)

    def active(self, rules: Rules) -> set[str]:
        return set(
            compute_expiry(CommitHistory.from_rows(self.rows), Refs(self.heads, {}), rules, NOW_MS).commits(
                ExpiryState.ACTIVE
            )
        )

    def left(self, rules: Rules, *, made_days_ago: float = 30) -> set[str]:
        """The files that still exist after mark and sweep."""
        made = make_plan(CommitHistory.from_rows(self.rows), Refs(self.heads, {}), rules, NOW_MS)
        at_ms = NOW_MS - int(made_days_ago * DAY_MS)
        return {
            file
            for name, files in self.files.items()
            for file in files
            if keeps_entry(made, CommitId(name), file, at_ms)
        }


def one_branch() -> Story:
    story = Story()
    story.commit("A", "main", 12, "example1", "example2", "example3")
    story.commit("B", "main", 9, "example1", "example2")  # deletes example3
    story.commit("C", "main", 5, "example1")  # deletes example2
    story.commit("D", "main", 1)  # deletes example1
    return story


def two_branches() -> Story:
    story = Story()
    story.commit("A", "main", 12, "example1")
    story.branch("feature1", "A")
    story.commit("C", "feature1", 9, "example1", "example3")
    story.commit("B", "main", 8, "example2")  # a new file; deletes example1
    story.commit("D", "feature1", 5, "example1")  # deletes example3
    story.commit("E", "main", 4)  # deletes example2
    return story


TWO_BRANCH_RULES = Rules(
    default_retention_days=7, branches=(BranchRule("main", 7), BranchRule("feature1", 3))
)  # fmt: skip


def test_cleanup_on_the_main_branch() -> None:
    """The period is 7 days, and 7 days ago the branch's HEAD pointed to B."""
    assert one_branch().active(Rules(default_retention_days=7)) == {"B", "C", "D"}
    assert one_branch().left(Rules(default_retention_days=7)) == {"example1", "example2"}


def test_cleanup_on_multiple_branches() -> None:
    """7 days for main, 3 for the feature branch: example2 is accessible from B, example1 from D; example3 from
    neither.
    """
    assert two_branches().active(TWO_BRANCH_RULES) == {"B", "E", "D"}
    assert two_branches().left(TWO_BRANCH_RULES) == {"example1", "example2"}


@pytest.mark.parametrize(
    ("days", "active"),
    [
        pytest.param(7, {"B", "E", "C", "D"}, id="7 days ago the hypothetical HEAD would have pointed at C"),
        pytest.param(3, {"B", "E"}, id="3 days ago it would have pointed at the dummy commit"),
    ],
)
def test_a_dangling_commit_with_a_default(days: int, active: set[str]) -> None:
    story = two_branches()
    story.delete_branch("feature1")
    assert story.active(Rules(default_retention_days=days, branches=(BranchRule("main", 7),))) == active


def test_the_first_commit_older_than_the_period_is_active() -> None:
    story = one_branch()
    assert story.active(Rules(default_retention_days=11)) == {"A", "B", "C", "D"}
    assert story.active(Rules(default_retention_days=8)) == {"B", "C", "D"}


def test_heads_never_expire() -> None:
    assert one_branch().active(Rules(default_retention_days=0)) == {"D"}


def test_an_object_of_two_branches_is_kept_by_the_longer_period() -> None:
    """lakeFS's page: 21 days by default, 28 for main, 7 for dev."""
    story = Story()
    story.commit("A", "main", 60, "shared")
    story.commit("B", "main", 40, "shared")
    story.branch("dev", "B")
    story.commit("C", "main", 24)
    story.commit("D", "dev", 10)
    rules = Rules(default_retention_days=21, branches=(BranchRule("main", 28), BranchRule("dev", 7)))
    assert story.active(rules) == {"B", "C", "D"}
    assert story.left(rules) == {"shared"}


def two_views() -> Story:
    """abc: T1 (APPEND), T2 (APPEND), T3 (SNAPSHOT), T4 (APPEND); xyz forks from it at T2: T5 (APPEND)."""
    story = Story()
    story.append("T1", "abc")
    story.append("T2", "abc")
    story.branch("xyz", "T2")
    story.snapshot("T3", "abc")
    story.append("T4", "abc")
    story.append("T5", "xyz")
    return story


def test_the_latest_view_of_any_branch_stays() -> None:
    """Outside abc's latest view T1 and T2 are, but in xyz's."""
    assert two_views().left(Rules(default_retention_days=0)) == {"T1", "T2", "T3", "T4", "T5"}


VIEWS = Rules(default_retention_days=0)
"""Rules without a word on the latest view."""
LIFTED = (
    Rules(default_retention_days=0, keep_latest_view=False),
    Rules(default_retention_days=0, allow_deletion_from_latest_view=True),
)


def test_a_policy_on_one_branch_marks_nothing_of_the_latest_view_of_another() -> None:
    story = two_views()
    assert story.active(VIEWS) == {"T1", "T2", "T3", "T4", "T5"}
    story.delete_branch("xyz")
    assert story.active(VIEWS) == {"T3", "T4"}


def test_a_later_snapshot_begins_the_latest_view() -> None:
    story = two_views()
    story.snapshot("T6", "xyz", 20)
    story.append("T7", "xyz", 10)
    assert story.active(VIEWS) == {"T3", "T4", "T6", "T7"}


def test_why_a_transaction_stays_names_the_branch_whose_view_it_is_in() -> None:
    story = two_views()
    history, refs = CommitHistory.from_rows(story.rows), Refs(story.heads, {})
    known = compute_expiry(history, refs, VIEWS, NOW_MS)
    for name, branches in (("T1", ["xyz"]), ("T2", ["xyz"]), ("T3", ["abc"]), ("T4", ["abc"]), ("T5", ["xyz"])):
        found = [
            each
            for each in hold_reasons(known, refs, VIEWS, CommitId(name))
            if each.reason == RetentionReason.LATEST_VIEW
        ]
        assert [(each.name, each.rule) for each in found] == [
            (branch, "keep_latest_view by default: it uses transaction types") for branch in branches
        ]
    assert [(line.branch, line.keeps_latest_view) for line in branch_lines(known, refs, VIEWS)] == [
        ("abc", True),
        ("xyz", True),
    ]


@pytest.mark.parametrize("rules", LIFTED)
def test_an_explicit_option_lifts_the_protection_of_the_latest_view(rules: Rules) -> None:
    story = two_views()
    assert story.active(rules) == {"T4", "T5"}
    history, refs = CommitHistory.from_rows(story.rows), Refs(story.heads, {})
    known = compute_expiry(history, refs, rules, NOW_MS)
    assert all(
        each.reason != RetentionReason.LATEST_VIEW
        for name in story.files
        for each in hold_reasons(known, refs, rules, CommitId(name))
    )
    assert [(line.uses_types, line.keeps_latest_view) for line in branch_lines(known, refs, rules)] == [
        (True, False)
    ] * 2
    both = msgspec.structs.replace(rules, keep_latest_view=True)
    assert story.active(both) == {"T1", "T2", "T3", "T4", "T5"}


def test_branches_without_types_follow_their_periods_beside_those_with_types() -> None:
    """Seed 000 on main, seed 003 on abc: each branch by itself, and one that forks before the types begin follows
    its period, too.
    """
    story = one_branch()
    story.branch("abc", "C")
    story.branch("plain", "B")
    story.commit("P", "plain", 6, "example1", "plain")
    assert story.active(VIEWS) == {"D", "C", "P"}
    story.append("T1", "abc")
    story.append("T2", "abc")
    assert story.active(VIEWS) == {"A", "B", "C", "D", "P", "T1", "T2"}, "abc's view begins at its first commit"
    story.snapshot("T3", "abc")
    assert story.active(VIEWS) == {"D", "P", "T3"}
    story.commit("T4", "abc", 30, "T3", "T4")  # without a word it continues the view
    assert story.active(VIEWS) == {"D", "P", "T3", "T4"}
    everywhere = Rules(default_retention_days=0, keep_latest_view=True)
    assert story.active(everywhere) == {"A", "B", "C", "D", "P", "T3", "T4"}
    story.delete_branch("abc")
    assert story.active(VIEWS) == {"D", "P"}, "a line without a branch shows no view"


@pytest.mark.parametrize("kind", ["noncurrent", "all"])
def test_rules_by_path_take_nothing_of_a_latest_view_that_is_kept(kind: str) -> None:
    story = two_views()
    rules = Rules(rules=(PathRule(Expiration(**{kind: RulePeriod(days=7)})),))
    assert story.left(rules) == {"T1", "T2", "T3", "T4", "T5"}
    story.delete_branch("xyz")
    assert story.left(rules) == {"T3", "T4"}
    story.commit("T6", "abc", 20, "T6")  # it deletes T3 and T4, and begins no view
    assert story.left(rules) == {"T3", "T4", "T6"}
    for lifted in LIFTED:
        assert "T3" not in story.left(msgspec.structs.replace(lifted, rules=rules.rules))


def test_outside_every_latest_view_transactions_go() -> None:
    story = two_views()
    story.delete_branch("xyz")
    assert story.left(Rules(default_retention_days=0)) == {"T3", "T4"}


def test_deletion_from_the_latest_view_is_opted_into() -> None:
    """A rule for all objects of some age takes what a view shows only if it is told that it may."""
    rule = PathRule(Expiration(all=RulePeriod(days=7)))
    assert two_views().left(Rules(default_retention_days=0, rules=(rule,))) == {"T1", "T2", "T3", "T4", "T5"}
    assert (
        two_views().left(Rules(default_retention_days=0, rules=(rule,), allow_deletion_from_latest_view=True)) == set()
    )
    assert two_views().left(Rules(default_retention_days=0, rules=(rule,), allow_deletion_from_latest_view=True),
    made_days_ago=6) == {
        "T1", "T2", "T3", "T4", "T5",
    }  # fmt: skip


def test_a_rule_of_one_branch_takes_nothing_that_another_branch_holds() -> None:
    ids = [CommitId(letter * 64) for letter in "abcd"]
    a, b, c, d = ids
    rows = [
        CommitRow(a, (), 0, True),
        CommitRow(b, (a,), DAY_MS, True),
        CommitRow(c, (b,), 9 * DAY_MS, True),
        CommitRow(d, (a,), DAY_MS, True),
    ]
    rules = Rules(
        default_retention_days=30, rules=(PathRule(Expiration(all=RulePeriod(days=1)), PathRuleFilter("", "main")),)
    )
    made = make_plan(CommitHistory.from_rows(rows), Refs({"main": c, "dev": d}, {}), rules, 10 * DAY_MS)
    kept = [keeps_entry(made, commit, "x", 0) for commit in ids]
    assert kept == [True, False, True, True]  # a: dev was there; b: on main alone; c and d: heads
