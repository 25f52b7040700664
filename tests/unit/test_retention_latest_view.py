"""Deletion from the latest view: a commit like anybody's removes what an `all` rule lets expire, and nothing else
changes.
"""

from __future__ import annotations

import pytest

from refstore.core.ids import Address, CommitId
from refstore.kv.base import SetIf
from refstore.operations.expire_head import HeadExpiry, RangeAges, expire_head, protected_commits
from refstore.operations.upload import Upload
from refstore.public_types import stored_commit
from refstore.repository import Repository
from refstore.retention.path_rules import latest_view_rules
from tests.contents import paths
from tests.interrupted import Interrupted
from tests.kit.clock import FakeClock

DAY_SECONDS = 86_400.0
RULES = """{
  "rules": [
    {"filter": {"prefix": "logs/"}, "expiration": {"all": {"days": 10}}},
    {"filter": {"prefix": "logs/keep/"}, "expiration": {"noncurrent": {"days": 1}}},
    {"filter": {"prefix": "old/"}, "status": "disabled", "expiration": {"all": {"days": 1}}}
  ],
  "legal_holds": [{"prefix": "logs/held/"}],
  "allow_deletion_from_latest_view": true
}"""


@pytest.fixture
def kv() -> Interrupted:
    """Before a branch's record is changed."""
    return Interrupted(before=lambda op: isinstance(op, SetIf) and op.key.partition.endswith("/branches"))


@pytest.fixture
def repo(repo: Repository) -> Repository:
    repo.set_retention(RULES)
    return repo


def removed(repo: Repository, branch: str | None = None, *, dry_run: bool = False) -> HeadExpiry:
    """By all rules, from one branch or from all."""
    ctx, retention = repo.context, repo.retention()
    assert retention is not None
    known, held = RangeAges(), protected_commits(ctx, retention.rules)
    every = [
        expire_head(ctx, name, rule, held, known, dry_run=dry_run)
        for name, _ in list(ctx.branches.scan_open())
        if branch in (None, name)
        for rule in latest_view_rules(retention.rules, name, ctx.clock.now_ms())
    ]
    return HeadExpiry(
        sum(each.objects for each in every),
        sum(each.size_bytes for each in every),
        sum(each.commits for each in every),
        next((each.remaining_reason for each in every if each.remaining_reason), ""),
    )


def commit(repo: Repository, *paths: str, branch: str = "main") -> CommitId:
    for path in paths:
        repo.upload(branch, path, b"1234")
    return repo.commit(branch, "change").id


def test_what_is_old_enough_goes_from_the_branch_by_a_commit(repo: Repository, clock: FakeClock) -> None:
    first = commit(repo, "logs/a", "logs/held/a", "logs/keep/a", "old/a", "other", "logs")
    clock.advance(9 * DAY_SECONDS)
    second = commit(repo, "logs/young")
    assert removed(repo) == HeadExpiry()
    clock.advance(DAY_SECONDS + 1)
    assert removed(repo) == HeadExpiry(1, 4, 1)
    assert paths(repo) == ["logs", "logs/held/a", "logs/keep/a", "logs/young", "old/a", "other"]
    assert repo.read(first, "logs/a") == b"1234"
    head = repo.get_commit("main")
    assert head.parents == (second,)
    assert head.id != second
    assert removed(repo) == HeadExpiry()
    assert repo.get_branch("main").head == head.id


def test_the_commit_says_which_rule_it_was(repo: Repository, clock: FakeClock) -> None:
    commit(repo, "logs/a")
    clock.advance(11 * DAY_SECONDS)
    removed(repo)
    record = stored_commit(repo.get_commit("main"))
    assert record.committer == "refstore"
    assert record.message == "Remove what was made more than 10 days ago below 'logs/'"
    assert record.notes == {"rule": "all", "prefix": "logs/", "days": "10"}


def test_it_can_be_taken_back_by_a_revert(repo: Repository, clock: FakeClock) -> None:
    commit(repo, "logs/a")
    clock.advance(11 * DAY_SECONDS)
    removed(repo)
    repo.revert("main@", on="main")
    assert repo.read("main", "logs/a") == b"1234"


def test_a_rehearsal_counts_the_same_and_touches_nothing(repo: Repository, clock: FakeClock) -> None:
    head = commit(repo, "logs/a", "logs/b")
    clock.advance(11 * DAY_SECONDS)
    assert removed(repo, dry_run=True) == HeadExpiry(2, 8, 0)
    assert repo.get_branch("main").head == head
    assert removed(repo) == HeadExpiry(2, 8, 1)


@pytest.mark.parametrize(
    "rules",
    [
        RULES.replace("true\n", "false\n"),
        RULES.replace('"legal_holds"', '"keep_last": 1, "legal_holds"'),
        RULES.replace("logs/held/", "lo"),
        RULES.replace('{"all": {"days": 10}}', '{"noncurrent": {"days": 10}}'),
    ],
    ids=["not allowed", "keep_last", "a hold above it", "another kind"],
)
def test_rules_that_do_not_let_it_go_from_a_head_leave_it(repo: Repository, clock: FakeClock, rules: str) -> None:
    head = commit(repo, "logs/a")
    repo.set_retention(rules)
    clock.advance(99 * DAY_SECONDS)
    assert removed(repo) == HeadExpiry()
    assert repo.get_branch("main").head == head


@pytest.mark.parametrize("by", ["tag", "pin"])
def test_a_head_that_a_tag_or_a_pin_holds_stays(repo: Repository, clock: FakeClock, by: str) -> None:
    head = commit(repo, "logs/a")
    if by == "tag":
        repo.create_tag("v1", ref=head)
    else:
        repo.set_retention(RULES.replace('"legal_holds"', f'"pins": {{"commits": ["{head}"]}}, "legal_holds"'))
    clock.advance(11 * DAY_SECONDS)
    assert removed(repo) == HeadExpiry()


def test_a_branch_with_staged_changes_is_left_and_they_stay(repo: Repository, clock: FakeClock) -> None:
    head = commit(repo, "logs/a")
    clock.advance(11 * DAY_SECONDS)
    repo.upload("main", "mine", b"staged")
    for dry_run in (True, False):
        assert removed(repo, dry_run=dry_run).remaining_reason == "it has uncommitted changes"
    assert repo.get_branch("main").head == head
    assert [change.path for change in repo.diff("main")] == ["mine"]
    repo.commit("main", "mine")
    assert removed(repo) == HeadExpiry(1, 4, 1)


def test_what_is_staged_meanwhile_stays_staged(repo: Repository, kv: Interrupted, clock: FakeClock) -> None:
    head = commit(repo, "logs/a")
    clock.advance(11 * DAY_SECONDS)
    kv.then = lambda: repo.upload("main", "mine", b"staged")
    assert removed(repo) == HeadExpiry(remaining_reason="it has uncommitted changes")
    assert kv.then is None
    assert repo.get_branch("main").head == head
    assert repo.read("main", "mine") == b"staged"
    repo.commit("main", "mine")
    assert paths(repo) == ["logs/a", "mine"]


def test_what_is_committed_meanwhile_stays_and_the_rest_goes(
    repo: Repository, kv: Interrupted, clock: FakeClock
) -> None:
    """The branch shows another object at one of the paths by then."""
    commit(repo, "logs/a", "logs/b")
    clock.advance(11 * DAY_SECONDS)
    kv.then = lambda: commit(repo, "logs/a", "new")
    assert removed(repo) == HeadExpiry(1, 4, 1)
    assert paths(repo) == ["logs/a", "new"]


def test_a_head_that_is_tagged_meanwhile_keeps_its_data_in_the_tag(
    repo: Repository, kv: Interrupted, clock: FakeClock
) -> None:
    head = commit(repo, "logs/a")
    clock.advance(11 * DAY_SECONDS)
    kv.then = lambda: repo.create_tag("v1", ref=head)
    removed(repo)
    assert repo.read("v1", "logs/a") == b"1234"


def test_a_branch_that_is_deleted_meanwhile_is_no_error(repo: Repository, kv: Interrupted, clock: FakeClock) -> None:
    repo.create_branch("dev", source="main")
    commit(repo, "logs/a", branch="dev")
    clock.advance(11 * DAY_SECONDS)
    kv.then = lambda: repo.delete_branch("dev")
    assert removed(repo, "dev") == HeadExpiry()


def test_every_branch_is_looked_at_and_shared_ranges_once(
    repo: Repository, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(repo, "logs/a")
    for name in ("dev", "try"):
        repo.create_branch(name, source="main")
    clock.advance(9 * DAY_SECONDS)
    trees = repo.context.trees
    original, read = trees.addresses_of_range, list[str]()

    def addresses_of_range(range_id: str) -> list[Address]:
        read.append(range_id)
        return original(range_id)

    monkeypatch.setattr(trees, "addresses_of_range", addresses_of_range)
    assert removed(repo) == HeadExpiry()
    assert len(read) == 1
    clock.advance(2 * DAY_SECONDS)
    assert removed(repo) == HeadExpiry(3, 12, 3)


def test_more_than_one_commit_holds(repo: Repository, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refstore.operations.expire_head.REMOVED_MAX", 1)
    repo.upload_many("main", (Upload(path=f"logs/{number:04}", body=b"1") for number in range(1600)))
    commit(repo, "zzz")
    clock.advance(11 * DAY_SECONDS)
    done = removed(repo)
    assert done.objects == done.size_bytes == 1600
    assert done.commits > 1
    assert paths(repo) == ["zzz"]


def test_an_object_from_outside_stays(repo: Repository, clock: FakeClock) -> None:
    """Nobody knows when it was made."""
    repo.stage("main", "logs/a", "s3://elsewhere/a", size_bytes=1)
    repo.stage("main", "logs/b", "az://before-data/b", size_bytes=1)
    commit(repo, "logs/c")
    clock.advance(11 * DAY_SECONDS)
    assert removed(repo) == HeadExpiry(1, 4, 1)
    assert paths(repo) == ["logs/a", "logs/b"]
