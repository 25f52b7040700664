"""The history as arrays: what it takes, and that it refuses to guess."""

from __future__ import annotations

import pytest

from refstore.core.ids import CommitId
from refstore.core.units import DAY_MS
from refstore.errors import CorruptRecord
from refstore.retention.active_commits import ExpiryState, Refs, RetentionReason, compute_expiry
from refstore.retention.commit_arrays import NONE, CommitHistory, CommitHistoryBuilder, CommitRow, TransactionType
from refstore.retention.rules import Pins, Rules

A, B, C, D = (CommitId(letter * 64) for letter in "abcd")
ROWS = [CommitRow(A, [], 0), CommitRow(B, [A], DAY_MS), CommitRow(C, [A], DAY_MS), CommitRow(D, [B, C], 2 * DAY_MS)]


def test_a_child_may_come_before_its_parents() -> None:
    found = CommitHistory.from_rows(reversed(ROWS))
    numbers = found.numbers
    assert len(found) == 4
    assert found.first_parents[numbers[D]] == numbers[B]
    assert found.first_parents[numbers[A]] == NONE
    assert list(found.numbers) == found.ids()


def test_a_builder_says_what_is_missing() -> None:
    builder = CommitHistoryBuilder()
    builder.add(ROWS[3])
    assert builder.find_missing() == [B, C]
    for row in ROWS[1:3]:
        builder.add(row)
    assert builder.find_missing([D, CommitId("e" * 64)]) == [A, "e" * 64]
    builder.add(ROWS[0])
    assert builder.find_missing() == []
    assert len(builder.build()) == 4


@pytest.mark.parametrize("gone", [A, B, C], ids="abc")
def test_a_missing_commit_stops_it_even_a_second_parent(gone: CommitId) -> None:
    with pytest.raises(CorruptRecord, match=f"commit {gone} is some commit's parent and has no record"):
        CommitHistory.from_rows(row for row in ROWS if row.id != gone)


def test_a_commit_that_comes_twice_stops_it() -> None:
    with pytest.raises(CorruptRecord, match="read twice"):
        CommitHistory.from_rows([*ROWS, ROWS[0]])


@pytest.mark.parametrize("date", [2**63, -(2**63), 2**70])
def test_a_date_that_is_none_stops_it(date: int) -> None:
    with pytest.raises(CorruptRecord, match="has the date"):
        CommitHistory.from_rows([CommitRow(A, [], date)])


def test_a_loop_stops_it() -> None:
    looped = CommitHistory.from_rows([CommitRow(A, [B], 0), CommitRow(B, [A], 0), CommitRow(C, [], 0)])
    with pytest.raises(CorruptRecord, match="2 commits descend from themselves"):
        compute_expiry(looped, Refs({}, {}), Rules(), 0)
    typed = TransactionType.APPEND
    looped = CommitHistory.from_rows(
        [CommitRow(A, [B], 0, transaction=typed), CommitRow(B, [A], 0), CommitRow(C, [B], 0)]
    )
    with pytest.raises(CorruptRecord, match="2 commits descend from themselves"):
        compute_expiry(looped, Refs({"main": C}, {}), Rules(), 0)


@pytest.mark.parametrize(
    ("refs", "rules", "what"),
    [
        (Refs({"main": B}, {}), Rules(), "branch 'main'"),
        (Refs({}, {"v1": B}), Rules(), "tag 'v1'"),
        (Refs({}, {}), Rules(pins=Pins(commits=(B,))), "a pin of the retention rules"),
    ],
)
def test_a_name_without_its_commit_stops_it(refs: Refs, rules: Rules, what: str) -> None:
    with pytest.raises(CorruptRecord, match=f"{what} names commit {B}, which has no record"):
        compute_expiry(CommitHistory.from_rows(ROWS[:1]), refs, rules, 0)


def test_an_empty_repository() -> None:
    assert (
        compute_expiry(CommitHistory.from_rows([]), Refs({}, {}), Rules(default_retention_days=0), 0).commits(
            ExpiryState.EXPIRED
        )
        == []
    )


def test_a_head_whose_landed_mark_is_not_written_yet_has_landed() -> None:
    """The mark is written behind the move of the head."""
    rows = [CommitRow(A, [], 0), CommitRow(B, [A], 0, False)]
    found = compute_expiry(
        CommitHistory.from_rows(rows), Refs({"main": B}, {}), Rules(default_retention_days=0), DAY_MS
    )
    assert found.commits(ExpiryState.ACTIVE) == [B]
    assert found.commits(ExpiryState.EXPIRED) == [A]


def test_a_commit_given_up_lets_its_parent_expire() -> None:
    """It was written on top of a head, and never became one: it keeps the line it stood on no longer."""
    rows = [*ROWS[:2], CommitRow(C, [B], 9 * DAY_MS, False)]
    found = compute_expiry(CommitHistory.from_rows(rows), Refs({}, {}), Rules(default_retention_days=3), 5 * DAY_MS)
    assert found.commits(ExpiryState.EXPIRED) == [A, B]
    assert found.commits(ExpiryState.UNLANDED) == [C]


def test_a_period_of_lakefs_longest_is_no_overflow() -> None:
    found = compute_expiry(
        CommitHistory.from_rows(ROWS), Refs({"main": D}, {}), Rules(default_retention_days=2**31 - 1), 5 * DAY_MS
    )
    assert len(found.commits(ExpiryState.ACTIVE)) == 4
    assert all(why in (RetentionReason.HEAD, RetentionReason.BRANCH, RetentionReason.DANGLING) for why in found.reasons)


def test_second_parents_are_not_walked() -> None:
    """C came in by the merge only: it is on no branch's line."""
    found = compute_expiry(
        CommitHistory.from_rows(ROWS), Refs({"main": D}, {}), Rules(default_retention_days=3), 4 * DAY_MS
    )
    assert not found.on_branch[found.history.numbers[C]]
    assert set(found.commits(ExpiryState.EXPIRED)) == {A, C}
