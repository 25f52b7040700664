"""What was staged and never committed expires by a path rule, as a user's reset would take it; what is in use does
not.
"""

from __future__ import annotations

import pytest

from refstore.core.clock import to_datetime
from refstore.core.ids import BranchName
from refstore.kv.base import SetIf
from refstore.operations.expire_staged_entries import StagedExpiry, expire_staged_entries
from refstore.operations.rules_in_force import rules_in_force
from refstore.repository import Repository
from tests.interrupted import Interrupted, seal
from tests.kit.clock import FakeClock

DAY_SECONDS = 86_400.0
RULES = """{
  "rules": [
    {"filter": {"prefix": "tmp/"}, "expiration": {"uncommitted": {"days": 2}}},
    {"filter": {"prefix": "clicks/"}, "expiration": {"all": {"days": 4}, "uncommitted": {"days": 30}}},
    {"filter": {"prefix": "old/"}, "status": "disabled", "expiration": {"uncommitted": {"days": 1}}}
  ],
  "legal_holds": [{"prefix": "tmp/held/"}]
}"""


@pytest.fixture
def kv() -> Interrupted:
    """Before staged changes are taken away."""
    return Interrupted(before=lambda op: isinstance(op, SetIf) and "/staging/" in op.key.partition)


@pytest.fixture
def repo(repo: Repository) -> Repository:
    repo.set_retention(RULES)
    return repo


def expire(repo: Repository) -> StagedExpiry:
    total = StagedExpiry()
    for name in [each.name for each in repo.branches()]:
        total += expire_staged_entries(repo.context, rules_in_force(repo.context), name)
    return total


def staged(repo: Repository, branch: str = "main") -> list[str]:
    return [change.path for change in repo.diff(branch)]


def test_what_was_staged_long_enough_ago_is_reset(repo: Repository, clock: FakeClock) -> None:
    for path in ("tmp/a", "tmp/held/a", "clicks/a", "old/a", "a"):
        repo.upload("main", path, b"1")
    clock.advance(DAY_SECONDS)
    repo.upload("main", "tmp/young", b"1")
    assert expire(repo) == StagedExpiry()
    clock.advance(DAY_SECONDS + 1)
    assert expire(repo) == StagedExpiry(1, size_bytes=1)
    assert staged(repo) == ["a", "clicks/a", "old/a", "tmp/held/a", "tmp/young"]
    clock.advance(2 * DAY_SECONDS)
    assert expire(repo).objects == 2
    assert staged(repo) == ["a", "old/a", "tmp/held/a"]
    assert expire(repo).objects == 0


def test_it_can_be_taken_back_from_its_grace_window(repo: Repository, clock: FakeClock) -> None:
    address = repo.upload("main", "tmp/a", b"1").address
    clock.advance(3 * DAY_SECONDS)
    expire(repo)
    assert [(item.address, item.cause) for item in repo.list_trash()] == [(address, "expired")]
    repo.restore(address, to="main")
    assert repo.read("main", "tmp/a") == b"1"


def test_the_committed_object_below_shows_again(repo: Repository, clock: FakeClock) -> None:
    repo.upload("main", "tmp/a", b"committed")
    repo.commit("main", "one")
    repo.upload("main", "tmp/a", b"staged")
    repo.delete("main", "tmp/b")
    clock.advance(3 * DAY_SECONDS)
    assert expire(repo).objects == 1
    assert repo.read("main", "tmp/a") == b"committed"


@pytest.mark.parametrize("mtime_ms", [0, 1])
def test_an_old_date_does_not_make_it_old(repo: Repository, mtime_ms: int) -> None:
    repo.upload("main", "tmp/a", b"1", modified=to_datetime(mtime_ms))
    assert expire(repo).objects == 0


def test_a_copy_of_what_was_uploaded_long_ago_is_young(repo: Repository, clock: FakeClock) -> None:
    repo.upload("main", "a", b"1")
    clock.advance(9 * DAY_SECONDS)
    repo.copy("main", "a", to_branch="main", to_path="tmp/a")
    assert expire(repo).objects == 0
    clock.advance(3 * DAY_SECONDS)
    assert expire(repo).objects == 1
    assert repo.read("main", "a") == b"1"


def test_names_of_committed_and_of_foreign_objects_stay(repo: Repository, clock: FakeClock) -> None:
    """They hold nothing that could go."""
    repo.upload("main", "a", b"1")
    repo.commit("main", "one")
    repo.copy("main", "a", to_branch="main", to_path="tmp/a")
    repo.stage("main", "tmp/b", "s3://elsewhere/b", size_bytes=1)
    clock.advance(9 * DAY_SECONDS)
    assert expire(repo).objects == 0


def test_a_committed_object_keeps_its_reference_until_its_commit_is_processed(
    repo: Repository, clock: FakeClock
) -> None:
    """Its list still has a reference with the same path: that of the commit, under a token that is not this
    branch's.
    """
    repo.create_branch("dev", source="main")
    repo.upload("main", "tmp/a", b"1")
    repo.commit("main", "one")
    repo.copy("main", "tmp/a", to_branch="dev", to_path="tmp/a")
    clock.advance(9 * DAY_SECONDS)
    assert expire(repo).objects == 0
    assert staged(repo, "dev") == ["tmp/a"]


def test_every_branch_is_looked_at(repo: Repository, clock: FakeClock) -> None:
    repo.create_branch("dev", source="main")
    for branch in ("dev", "main"):
        repo.upload(branch, "tmp/a", b"1")
    clock.advance(3 * DAY_SECONDS)
    assert expire(repo).objects == 2


def test_a_branch_of_many_pages(repo: Repository, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refstore.operations.expire_staged_entries.PAGE", 3)
    for number in range(8):
        repo.upload("main", f"tmp/{number}", b"1")
    clock.advance(3 * DAY_SECONDS)
    assert expire(repo).objects == 8


def test_what_is_uploaded_meanwhile_stays(repo: Repository, kv: Interrupted, clock: FakeClock) -> None:
    repo.upload("main", "tmp/a", b"old")
    clock.advance(3 * DAY_SECONDS)
    kv.then = lambda: repo.upload("main", "tmp/a", b"new")
    assert expire(repo).objects == 0
    assert kv.then is None
    assert repo.read("main", "tmp/a") == b"new"


def test_what_is_committed_meanwhile_stays(repo: Repository, kv: Interrupted, clock: FakeClock) -> None:
    repo.upload("main", "tmp/a", b"1")
    clock.advance(3 * DAY_SECONDS)
    kv.then = lambda: repo.commit("main", "just now")
    assert expire(repo) == StagedExpiry(is_incomplete=True)
    assert repo.read("main", "tmp/a") == b"1"
    assert list(repo.list_trash()) == []


def test_what_went_while_a_commit_began_is_counted(repo: Repository, kv: Interrupted, clock: FakeClock) -> None:
    """The commit has not read it; had it, it would be there afterwards, and is not counted."""
    repo.upload("main", "tmp/a", b"four")
    clock.advance(3 * DAY_SECONDS)
    kv.then = lambda: seal(repo)
    assert expire(repo) == StagedExpiry(1, is_incomplete=True, size_bytes=4)
    assert staged(repo) == []


def test_a_branch_with_an_unfinished_commit_is_left(repo: Repository, clock: FakeClock) -> None:
    repo.upload("main", "tmp/a", b"1")
    seal(repo)
    clock.advance(3 * DAY_SECONDS)
    assert expire(repo) == StagedExpiry(is_incomplete=True)
    assert staged(repo) == ["tmp/a"]


def test_a_rehearsal_counts_it_and_touches_nothing(repo: Repository, clock: FakeClock) -> None:
    repo.upload("main", "tmp/a", b"four")
    clock.advance(3 * DAY_SECONDS)
    would = expire_staged_entries(repo.context, rules_in_force(repo.context), BranchName("main"), dry_run=True)
    assert staged(repo) == ["tmp/a"]
    assert list(repo.list_trash()) == []
    assert would == StagedExpiry(1, size_bytes=4) == expire(repo)


def test_without_rules_nothing_is_looked_at(repo: Repository, clock: FakeClock) -> None:
    repo.upload("main", "tmp/a", b"1")
    repo.delete_retention(remove=["hold:tmp/held/"])
    clock.advance(9 * DAY_SECONDS)
    assert expire(repo) == StagedExpiry()
