"""Rules in a repository: set whole, replaced in part by lakeFS's format, gone with the repository; and the reading of
its history.
"""

from __future__ import annotations

import pytest

from refstore.core.clock import to_ms
from refstore.core.ids import BranchName, CommitId
from refstore.errors import (
    Conflict,
    ConsentNeeded,
    Contention,
    CorruptRecord,
    Invalid,
    InvalidRules,
    KVUnavailable,
    NotFound,
    RepositoryNotFound,
)
from refstore.kv.base import ABSENT, Op, SetIf
from refstore.kv.retries import RetryingKV
from refstore.lake import Lake
from refstore.operations import rules_document
from refstore.operations.rules_in_force import RetentionRules
from refstore.records import keys
from refstore.records.branch_records import ClosedBranch
from refstore.records.commit_records import StoredCommit
from refstore.records.encoding import decode, encode
from refstore.records.repository_records import RepositoryRecord, RetentionRecord
from refstore.repository import Repository
from refstore.retention.active_commits import ExpiryState, compute_expiry
from refstore.retention.rules import BranchRule, GcRules, LegalHold, Rules
from refstore_reaper.repository_removal import remove
from tests.interrupted import Interrupted
from tests.kit.clock import FakeClock

PLAIN = '{"default_retention_days": 7, "branches": [{"branch_id": "main", "retention_days": 28}]}'
HELD = '{\n  "default_retention_days": 7,\n  "legal_holds": [{"prefix": "contracts/"}]\n}'
DAY_SECONDS = 86_400.0


def commit(repo: Repository, branch: str = "main") -> CommitId:
    return repo.commit(branch, "one more", allow_empty=True).id


def in_force(repo: Repository) -> RetentionRules:
    found = repo.retention()
    assert found is not None
    return found


def taking_away(op: Op) -> bool:
    return isinstance(op, SetIf) and op.key.name == "rules" and op.value is ABSENT


def closing(op: Op) -> bool:
    return (
        isinstance(op, SetIf)
        and op.key.partition == keys.REPOSITORIES
        and op.expected is not ABSENT
        and isinstance(op.value, bytes)
        and bool(decode(op.value, RepositoryRecord).closed_ms)
    )


class TestRules:
    def test_a_repository_begins_without(self, repo: Repository) -> None:
        assert repo.retention() is None
        with pytest.raises(NotFound, match="nothing that was committed expires"):
            repo.delete_retention()

    def test_what_was_set_is_in_force_to_the_letter(self, repo: Repository, clock: FakeClock) -> None:
        done = repo.set_retention(HELD, by="ann")
        assert repo.retention() == done
        assert (done.document, done.set_by, to_ms(done.set_at)) == (HELD, "ann", clock.now_ms())
        assert done.rules == Rules(7, legal_holds=(LegalHold("contracts/"),))

    def test_a_document_replaces_the_whole_one(self, repo: Repository) -> None:
        repo.set_retention(HELD)
        for named in ((), ("hold:contracts",), ("pin:contracts/",)):
            with pytest.raises(ConsentNeeded, match="remove hold:contracts/, which keeps data") as told:
                repo.set_retention(PLAIN, remove=named)
            assert told.value.names == ("hold:contracts/",)
        for text in ("hold:contracts/", "hold:contracts/2024/"):  # one text would name whatever is a part of it
            with pytest.raises(Invalid, match=r"give \[remove\]"):
                repo.set_retention(PLAIN, remove=text)
        repo.set_retention(PLAIN, remove=["hold:contracts/", "hold:not there"])
        assert in_force(repo).rules.legal_holds == ()

    def test_bad_rules_change_nothing(self, repo: Repository) -> None:
        repo.set_retention(PLAIN)
        with pytest.raises(InvalidRules):
            repo.set_retention('{"default_retention_days": -1}')
        assert in_force(repo).document == PLAIN

    def test_deleted_rules_are_gone(self, repo: Repository) -> None:
        repo.set_retention(HELD)
        with pytest.raises(ConsentNeeded):
            repo.delete_retention()
        assert repo.delete_retention(remove=["hold:contracts/"]).document == HELD
        assert repo.retention() is None

    @pytest.mark.parametrize("landed", [True, False])
    def test_what_was_set_while_they_were_deleted_stays(self, clock: FakeClock, landed: bool) -> None:
        """Behind a deletion whose reply was lost, or before it came to its write: not these rules were to be
        deleted.
        """
        kv = Interrupted(behind=taking_away) if landed else Interrupted(before=taking_away)
        with Lake(RetryingKV(kv, clock=clock), "memory://raced", clock=clock) as lake:
            repo = lake.create_repository("sales")
            repo.set_retention(PLAIN)

            def others() -> None:
                assert (repo.retention() is None) == landed
                repo.set_retention(HELD)
                raise KVUnavailable("planted: nobody answered")

            kv.then = others
            with pytest.raises(Conflict, match="changed while they were deleted") as told:
                repo.delete_retention()
            assert not isinstance(told.value, Contention), "a client would make the call again"
            assert in_force(repo).document == HELD

    def test_deleted_by_two_at_once_they_are_gone(self, clock: FakeClock) -> None:
        kv = Interrupted(before=taking_away)
        with Lake(kv, "memory://raced", clock=clock) as lake:
            repo = lake.create_repository("sales")
            repo.set_retention(PLAIN)
            kv.then = repo.delete_retention
            assert repo.delete_retention().document == PLAIN
            assert repo.retention() is None

    def test_a_pin_of_a_commit_that_is_not_there(self, repo: Repository) -> None:
        there, not_there = commit(repo), "f" * 64
        repo.set_retention(f'{{"pins": {{"commits": ["{there}"]}}}}')
        with pytest.raises(InvalidRules, match=r"pins\.commits\[1\]: commit ffff.* does not exist in 'sales'"):
            repo.set_retention(f'{{"pins": {{"commits": ["{there}",\n               "{not_there}"]}}}}')

    def test_a_pin_of_a_commit_that_never_landed(self, repo: Repository, kv: Interrupted) -> None:
        given_up = CommitId("f" * 64)
        kv.set(keys.commit(repo.context.repo, given_up), encode(StoredCommit((), "", "", (), 0, "", "given up")))
        with pytest.raises(InvalidRules, match="does not exist"):
            repo.set_retention(f'{{"pins": {{"commits": ["{given_up}"]}}}}')

    def test_rules_that_cannot_be_read_stop_everything(self, repo: Repository, kv: Interrupted) -> None:
        """Those of a newer version, say. No rules would mean that nothing expires; older ones, that something does."""
        kv.set(keys.retention_rules(repo.context.repo), encode(RetentionRecord('{"newer": 1}', 0, "", "w")))
        for call in (repo.retention, repo.delete_retention, lambda: repo.set_gc_rules(None)):
            with pytest.raises(CorruptRecord, match="set them again before anything expires"):
                call()
        with pytest.raises(ConsentNeeded, match="they may have legal holds and pins"):
            repo.set_retention(PLAIN)
        repo.set_retention(PLAIN, remove=["unreadable"])
        assert repo.retention() is not None

    def test_another_repository_has_its_own(self, lake: Lake, repo: Repository) -> None:
        repo.set_retention(PLAIN)
        assert lake.create_repository("stock").retention() is None


class TestLakefsFormat:
    NEW = GcRules(3, (BranchRule("dev", 1),))

    def test_it_can_be_the_first(self, repo: Repository) -> None:
        done = repo.set_gc_rules(self.NEW, by="client")
        assert repo.retention() == done
        assert done is not None
        assert done.rules == Rules(3, (BranchRule("dev", 1),))

    def test_it_leaves_what_it_cannot_say(self, repo: Repository) -> None:
        repo.set_retention(HELD)
        repo.set_gc_rules(self.NEW)
        assert in_force(repo).rules == Rules(3, (BranchRule("dev", 1),), legal_holds=(LegalHold("contracts/"),))

    def test_taken_away_nothing_is_left_of_plain_rules(self, repo: Repository) -> None:
        repo.set_retention(PLAIN)
        assert repo.set_gc_rules(None) is None
        assert repo.retention() is None
        assert repo.set_gc_rules(None) is None

    def test_taken_away_holds_stay(self, repo: Repository) -> None:
        repo.set_retention(HELD)
        repo.set_gc_rules(None)
        assert in_force(repo).rules == Rules(legal_holds=(LegalHold("contracts/"),))

    def test_a_hold_that_is_set_meanwhile_is_not_lost(self, clock: FakeClock) -> None:
        kv = Interrupted(behind=lambda op: op.key.name == "rules")
        with Lake(kv, "memory://raced", clock=clock) as lake:
            repo = lake.create_repository("sales")
            kv.then = lambda: repo.set_retention(HELD)
            repo.set_gc_rules(self.NEW)
            found = in_force(repo)
            assert kv.then is None
            assert found.rules.legal_holds == (LegalHold("contracts/"),)
            assert found.rules.branches == self.NEW.branches


class TestDeletedRepositories:
    def test_none_goes_with_a_legal_hold_on_it(self, lake: Lake, repo: Repository) -> None:
        repo.set_retention(HELD)
        with pytest.raises(Conflict, match="legal hold on 'contracts/'"):
            lake.delete_repository("sales")
        repo.set_retention(PLAIN, remove=["hold:contracts/"])
        lake.delete_repository("sales")

    def test_none_goes_whose_legal_hold_came_behind_the_look(self, clock: FakeClock) -> None:
        kv = Interrupted(before=closing)
        with Lake(RetryingKV(kv, clock=clock), "memory://raced", clock=clock) as lake:
            repo = lake.create_repository("sales")
            kv.then = lambda: repo.set_retention(HELD)
            with pytest.raises(Conflict, match="legal hold on 'contracts/'"):
                lake.delete_repository("sales")
            assert kv.then is None
            assert in_force(lake.repository("sales")).document == HELD

    def test_a_legal_hold_that_came_too_late_is_refused(self, clock: FakeClock) -> None:
        kv = Interrupted(behind=lambda op: isinstance(op, SetIf) and op.key.name == "rules")
        with Lake(kv, "memory://raced", clock=clock) as lake:
            repo = lake.create_repository("sales")
            repo.set_retention(PLAIN)
            old = kv.get(keys.retention_rules(repo.context.repo))

            def others() -> None:
                """A deletion that has read the rules before."""
                now = kv.get(keys.retention_rules(repo.context.repo))
                assert isinstance(old, bytes)
                assert isinstance(now, bytes)
                kv.set(keys.retention_rules(repo.context.repo), old)
                lake.delete_repository("sales")
                kv.set(keys.retention_rules(repo.context.repo), now)

            kv.then = others
            with pytest.raises(RepositoryNotFound):
                repo.set_retention(HELD)
            assert kv.get(keys.retention_rules(repo.context.repo)) is ABSENT

    def test_metadata_and_rules_that_are_set_at_once_both_stay(self, clock: FakeClock) -> None:
        kv = Interrupted(
            before=lambda op: isinstance(op, SetIf) and op.key == keys.repository("sales") and op.expected is not ABSENT
        )
        with Lake(kv, "memory://raced", clock=clock) as lake:
            repo = lake.create_repository("sales")
            kv.then = lambda: lake.set_metadata("sales", put={"owner": "ann"})
            repo.set_retention(PLAIN)
            kv.then = lambda: repo.set_retention(HELD)
            lake.set_metadata("sales", put={"team": "x"})
            assert in_force(repo).document == HELD
            assert lake.repository("sales").record.metadata == {"owner": "ann", "team": "x"}

    def test_rules_that_come_too_late_leave_nothing(self, lake: Lake, repo: Repository, kv: Interrupted) -> None:
        lake.delete_repository("sales")
        for call in (lambda: repo.set_retention(PLAIN), lambda: repo.set_gc_rules(GcRules(1, ()))):
            with pytest.raises(RepositoryNotFound):
                call()
            assert kv.get(keys.retention_rules(repo.context.repo)) is ABSENT

    def test_its_rules_go_with_it(self, lake: Lake, repo: Repository, kv: Interrupted) -> None:
        repo.set_retention(PLAIN)
        lake.delete_repository("sales")
        assert kv.get(keys.retention_rules(repo.context.repo)) is not ABSENT
        assert remove(repo.context, next(record for _, record in lake.all_repositories()))
        assert kv.get(keys.retention_rules(repo.context.repo)) is ABSENT


class TestReadingTheHistory:
    def states(self, repo: Repository, days: int = 0) -> dict[ExpiryState, set[CommitId]]:
        history, refs = rules_document.read_history(repo.context)
        found = compute_expiry(history, refs, Rules(default_retention_days=days), repo.context.clock.now_ms())
        return {state: set(found.commits(state)) for state in ExpiryState}

    def test_commits_merges_deleted_branches_and_tags(self, repo: Repository, clock: FakeClock) -> None:
        root = repo.get_commit("main").id
        repo.create_branch("dev", source="main")
        merged = commit(repo, "dev")
        clock.advance(DAY_SECONDS)
        head = repo.merge("dev", into="main", allow_empty=True).id
        repo.create_branch("try", source="main")
        left = commit(repo, "try")
        repo.create_tag("v1", ref="try")
        repo.delete_branch("try")
        repo.delete_branch("dev")
        assert self.states(repo) == {
            ExpiryState.ACTIVE: {head, left},
            ExpiryState.EXPIRED: {root, merged},
            ExpiryState.UNLANDED: set(),
        }
        repo.delete_tag("v1")
        clock.advance(1)
        assert self.states(repo)[ExpiryState.ACTIVE] == {head}

    def test_what_did_not_land_is_told_apart(self, repo: Repository, kv: Interrupted, clock: FakeClock) -> None:
        head = commit(repo)
        given_up = CommitId("f" * 64)
        kv.set(keys.commit(repo.context.repo, given_up), encode(StoredCommit((head,), "", "", (), 0, "", "given up")))
        assert self.states(repo)[ExpiryState.UNLANDED] == {given_up}

    @pytest.mark.parametrize("behind", ["commits", "branches", "tags"])
    def test_a_commit_that_lands_while_it_is_read_is_not_lost(
        self, repo: Repository, kv: Interrupted, behind: str
    ) -> None:
        """Its id may sort before what was read already. A head of the day is active; without its commit it would be
        corruption.
        """
        for _ in range(20):
            commit(repo)
        landed: list[CommitId] = []
        partitions = {"commits": keys.commits, "branches": keys.branches, "tags": keys.tags}
        kv.scanned = partitions[behind](repo.context.repo)
        kv.then = lambda: landed.extend(commit(repo) for _ in range(5))
        found = self.states(repo)
        assert kv.then is None
        head = repo.get_branch("main").head
        assert landed[-1] == head
        if behind != "tags":  # the heads were read after it landed
            assert found[ExpiryState.ACTIVE] == {head}
        assert not found[ExpiryState.UNLANDED]

    def test_a_head_without_its_commit_is_corrupt(self, repo: Repository, kv: Interrupted) -> None:
        kv.delete(keys.commit(repo.context.repo, commit(repo)))
        with pytest.raises(CorruptRecord, match="restore the KV from a backup before anything expires"):
            rules_document.read_history(repo.context)

    def test_a_parent_without_its_commit_is_corrupt(self, repo: Repository, kv: Interrupted) -> None:
        gone = commit(repo)
        commit(repo)
        kv.delete(keys.commit(repo.context.repo, gone))
        with pytest.raises(CorruptRecord, match=f"commit {gone} is named and has no record"):
            rules_document.read_history(repo.context)

    def test_a_closed_branch_holds_nothing(self, repo: Repository, kv: Interrupted) -> None:
        """A branch that is deleted keeps a closed record until its tokens are published."""
        kv.set(keys.branch(repo.context.repo, BranchName("dev")), encode(ClosedBranch((), "w")))
        assert set(rules_document.read_history(repo.context)[1].heads) == {BranchName("main")}
