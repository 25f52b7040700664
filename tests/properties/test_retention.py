"""Active commits against a slow and obvious oracle, over random histories: merges, deleted branches, equal dates,
clocks that go back.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, SupportsIndex

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refstore.core.ids import CommitId
from refstore.retention import rule_explanation
from refstore.retention.active_commits import (
    FOREVER_MS,
    CommitExpiry,
    ExpiryState,
    Refs,
    RetentionReason,
    compute_expiry,
)
from refstore.retention.commit_arrays import NONE, CommitHistory, CommitRow, TransactionType
from refstore.retention.path_rules import KeepLevel, latest_view_rules, make_plan
from refstore.retention.rules import (
    DAY_MS,
    BranchPeriods,
    BranchRule,
    Expiration,
    LegalHold,
    PathRule,
    PathRuleFilter,
    Pins,
    RulePeriod,
    Rules,
)
from tests.kit.retention import keeps_entry

FOREVER_DAYS = 10**9
LAST_DAY = 40
"""By then everything that expires has: dates, periods and the question are within a dozen days of 0."""


class Case(NamedTuple):
    rows: list[CommitRow]
    refs: Refs
    rules: Rules
    day: int

    @property
    def history(self) -> CommitHistory:
        return CommitHistory.from_rows(self.rows)

    def expiry(self, day: int | None = None) -> CommitExpiry:
        return compute_expiry(self.history, self.refs, self.rules, (self.day if day is None else day) * DAY_MS)


def name_of(number: int) -> CommitId:
    return CommitId(f"{number:064x}")


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rows: list[CommitRow] = []
    types = st.sampled_from(TransactionType) if draw(st.booleans()) else st.just(TransactionType.NONE)
    for number in range(draw(st.integers(1, 12))):
        parents = draw(st.lists(st.integers(0, number - 1), unique=True, max_size=3)) if number else []
        rows.append(
            CommitRow(
                name_of(number),
                [name_of(parent) for parent in parents],
                draw(st.integers(0, 9)) * DAY_MS,
                transaction=draw(types),
            )
        )
    for number in range(draw(st.integers(0, 2))):  # on their way, or given up: on top of what has landed
        parent = draw(st.integers(0, len(rows) - 1))
        rows.append(CommitRow(name_of(100 + number), [rows[parent].id], draw(st.integers(0, 9)) * DAY_MS, False))
    landed = [row.id for row in rows if row.has_landed]
    heads = draw(st.dictionaries(st.sampled_from(["main", "dev", "dev-2", "try"]), st.sampled_from(landed), max_size=4))
    tags = draw(st.dictionaries(st.sampled_from(["v1", "w1"]), st.sampled_from(landed), max_size=2))
    days = st.integers(0, 9)
    rules = Rules(
        default_retention_days=draw(st.none() | days),
        branches=tuple(
            BranchRule(name, draw(days))
            for name in draw(st.lists(st.sampled_from(["main", "dev", "dev*"]), unique=True))
        ),
        keep_last=draw(st.integers(0, 3)),
        keep_latest_view=draw(st.none() | st.booleans()),
        pins=Pins(
            tags=draw(st.sampled_from((True, False, ("v*",)))),
            commits=tuple(draw(st.lists(st.sampled_from(landed), unique=True, max_size=1))),
        ),
    )
    order = draw(st.permutations(rows))
    return Case(list(order), Refs(heads, tags), rules, draw(st.integers(0, 12)))


@dataclass
class Oracle:
    """Every branch and every dangling commit by itself: its line is walked, and each commit on it asked until when it
    was HEAD.
    """

    case: Case

    def __post_init__(self) -> None:
        self.by_id = {row.id: row for row in self.case.rows}

    def line(self, head: CommitId) -> list[CommitId]:
        found = [head]
        while self.by_id[found[-1]].parents:
            found.append(self.by_id[found[-1]].parents[0])
        return found

    def latest_view(self, line: list[CommitId]) -> list[CommitId]:
        """What the rules keep of a branch as its latest view."""
        rules, transactions = self.case.rules, [self.by_id[commit].transaction for commit in line]
        is_kept = rules.keep_latest_view
        if is_kept is None:
            is_kept = set(transactions) != {TransactionType.NONE} and not rules.allow_deletion_from_latest_view
        if not is_kept:
            return []
        begins = transactions.index(TransactionType.SNAPSHOT) if TransactionType.SNAPSHOT in transactions else len(line)
        return line[: begins + 1]

    def day(self, commit: CommitId) -> int:
        return self.by_id[commit].created_ms // DAY_MS

    def until(
        self,
        *,
        most_days: int | None = None,
        capped: Mapping[str | None, int] | None = None,
        but_for: Set[str | None] = frozenset(),
    ) -> dict[CommitId, int]:
        """The day on which each expires; FOREVER_DAYS: none; without those that never landed.

        `capped`: the most days of each branch (None: of lines without one); `but_for`: those that hold nothing.
        """
        capped = capped or {}
        rules, refs = self.case.rules, self.case.refs
        lines = {branch: self.line(head) for branch, head in refs.heads.items()}
        on_branch = {commit for line in lines.values() for commit in line}
        landed = {commit for row in self.case.rows if row.has_landed for commit in self.line(row.id)}
        found = dict.fromkeys(landed, -FOREVER_DAYS)

        def claim(commit: CommitId, until: int) -> None:
            found[commit] = max(found[commit], until)

        def walk(branch: str | None, line: list[CommitId], days: int | None, first_left: int) -> None:
            if branch in but_for:
                return
            most = capped.get(branch, most_days)
            period = min(FOREVER_DAYS if days is None else days, FOREVER_DAYS if most is None else most)
            for at, commit in enumerate(line):
                left = first_left if at == 0 else max(self.day(commit), self.day(line[at - 1]))
                claim(commit, FOREVER_DAYS if FOREVER_DAYS in (period, left) else left + period)

        for branch, line in lines.items():
            walk(branch, line, BranchPeriods(rules).period_of(branch).days, FOREVER_DAYS)
            for commit in line[: rules.keep_last]:
                claim(commit, FOREVER_DAYS)
            for commit in self.latest_view(line) if branch not in but_for else ():
                claim(commit, FOREVER_DAYS)
        for commit in landed - on_branch:
            walk(
                None, self.line(commit), rules.default_retention_days, self.day(commit)
            )  # the dummy child has its date
        for tag, commit in refs.tags.items():
            if rules.pins.tags is True or (rules.pins.tags and tag.startswith("v")):
                claim(commit, FOREVER_DAYS)
        for commit in rules.pins.commits:
            claim(CommitId(commit), FOREVER_DAYS)
        return found


def days_of(found: CommitExpiry) -> dict[CommitId, int]:
    return {
        commit: FOREVER_DAYS if found.expires_ms[number] == FOREVER_MS else found.expires_ms[number] // DAY_MS
        for commit, number in found.history.numbers.items()
        if found.reasons[number] != RetentionReason.NOTHING
    }


@settings(deadline=None, max_examples=1000)
@given(cases())
def test_every_commit_expires_when_the_oracle_says(case: Case) -> None:
    assert days_of(case.expiry()) == Oracle(case).until()


@settings(deadline=None, max_examples=200)
@given(cases(), st.integers(0, 5))
def test_so_it_does_when_periods_are_capped(case: Case, most_days: int) -> None:
    found = compute_expiry(case.history, case.refs, case.rules, case.day * DAY_MS, most_days=lambda _branch: most_days)
    assert days_of(found) == Oracle(case).until(most_days=most_days)


@settings(deadline=None, max_examples=200)
@given(cases())
def test_a_commit_is_active_until_the_day_that_was_foretold(case: Case) -> None:
    foretold = days_of(case.expiry())
    for day in range(0, LAST_DAY, 3):
        active = set(case.expiry(day).commits(ExpiryState.ACTIVE))
        assert active == {commit for commit, until in foretold.items() if until > day}


@settings(deadline=None, max_examples=200)
@given(cases())
def test_a_head_is_active_and_so_is_every_commit_that_was_one_within_the_period(case: Case) -> None:
    """Day by day, for dates that do not lie in the future: the words of the definition, on each branch by itself."""
    oracle, active = Oracle(case), set(case.expiry().commits(ExpiryState.ACTIVE))
    for branch, head in case.refs.heads.items():
        days, line = BranchPeriods(case.rules).period_of(branch).days, oracle.line(head)
        assert head in active
        for left, commit in pairwise(line):
            made, gone = sorted((oracle.day(commit), oracle.day(left)))
            was_head = range(made, gone + 1)
            if days is None or any(case.day - days < day <= case.day for day in was_head):
                assert commit in active


@settings(deadline=None, max_examples=200)
@given(cases())
def test_what_never_landed_holds_nothing_and_is_not_expired(case: Case) -> None:
    with_them, without = case.expiry(), case._replace(rows=[row for row in case.rows if row.has_landed]).expiry()
    assert days_of(with_them) == days_of(without)
    never = {row.id for row in case.rows if not row.has_landed}
    assert set(with_them.commits(ExpiryState.UNLANDED)) == never
    assert not set(with_them.commits(ExpiryState.EXPIRED)) & never


@settings(deadline=None, max_examples=200)
@given(cases(), st.randoms())
def test_the_order_in_which_commits_are_read_does_not_matter(case: Case, rng: random.Random) -> None:
    shuffled = case.rows[:]
    rng.shuffle(shuffled)
    one, other = case.expiry(), case._replace(rows=shuffled).expiry()

    def told(found: CommitExpiry) -> dict[CommitId, tuple[int, int, int]]:
        numbers = found.history.numbers
        return {commit: (found.expires_ms[at], found.reasons[at], found.holders[at]) for commit, at in numbers.items()}

    assert told(one) == told(other)


@settings(deadline=None, max_examples=200)
@given(cases())
def test_the_reasons_of_a_commit_begin_with_the_one_that_lasts(case: Case) -> None:
    found = case.expiry()
    for commit, number in found.history.numbers.items():
        reasons = rule_explanation.hold_reasons(found, case.refs, case.rules, commit)
        if found.reasons[number] == RetentionReason.NOTHING:
            assert reasons == []
        else:
            assert reasons[0].until_ms == found.expires_ms[number]
            assert reasons[0].reason == found.reasons[number]


@settings(deadline=None, max_examples=200)
@given(cases())
def test_lines_and_totals_count_what_is_there(case: Case) -> None:
    found, oracle = case.expiry(), Oracle(case)
    until = oracle.until()
    for line in rule_explanation.branch_lines(found, case.refs, case.rules):
        commits = oracle.line(case.refs.heads[line.branch])
        active = [commit for commit in commits if until[commit] > case.day]
        coming = [until[commit] * DAY_MS for commit in active if until[commit] != FOREVER_DAYS]
        assert (line.commits, line.active_commits, line.expired_commits) == (
            len(commits),
            len(active),
            len(commits) - len(active),
        )
        assert line.next_expires_ms == min(coming, default=None)
    totals = rule_explanation.expiry_totals(found)
    assert totals.active_commits == sum(day > case.day for day in until.values())
    assert totals.active_commits + totals.expired_commits + totals.unlanded_commits == totals.commits == len(case.rows)
    on_branch = {commit for head in case.refs.heads.values() for commit in oracle.line(head)}
    assert totals.dangling_commits == len(set(until) - on_branch)


@settings(deadline=None, max_examples=400)
@given(cases(), st.data())
def test_path_rules_and_holds_against_the_oracle(case: Case, data: st.DataObject) -> None:
    days = st.none() | st.integers(1, 5).map(lambda days: RulePeriod(days=days))
    filters = data.draw(
        st.lists(
            st.tuples(st.sampled_from(["", "a", "a/b", "c"]), st.sampled_from(["", "", "main", "dev"])), unique=True
        )
    )
    rules = msgspec.structs.replace(
        case.rules,
        rules=tuple(
            PathRule(Expiration(data.draw(days), data.draw(days), RulePeriod(days=1)), PathRuleFilter(prefix, branch))
            for prefix, branch in filters
        ),
        legal_holds=tuple(
            LegalHold(prefix) for prefix in data.draw(st.lists(st.sampled_from(["a", "a/b/c", "d"]), unique=True))
        ),
        allow_deletion_from_latest_view=data.draw(st.booleans()),
    )
    case = case._replace(rules=rules)
    made = make_plan(case.history, case.refs, rules, case.day * DAY_MS)
    path, made_day = (
        data.draw(st.sampled_from(["x", "a", "a/b", "a/b/c", "a/bc", "c", "d/e"])),
        data.draw(st.integers(0, 12)),
    )

    oracle, heads = Oracle(case), set(case.refs.heads.values())
    own: dict[str | None, Expiration] = {}
    for branch in (*case.refs.heads, None):
        among = [
            rule for rule in rules.rules if path.startswith(rule.filter.prefix) and rule.filter.branch in ("", branch)
        ]
        if among:
            own[branch] = max(among, key=lambda rule: (len(rule.filter.prefix), rule.filter.branch != "")).expiration
    capped = {branch: each.noncurrent.total_days for branch, each in own.items() if each.noncurrent is not None}
    aged = {branch: each.all.total_days for branch, each in own.items() if each.all is not None}
    by_others = oracle.until(capped=capped, but_for=aged.keys())
    held = any(path.startswith(hold.prefix) for hold in rules.legal_holds)
    shown = {commit for head in heads for commit in (head, *oracle.latest_view(oracle.line(head)))}
    for commit, until in oracle.until(capped=capped).items():
        kept = until > case.day
        if (
            kept
            and aged
            and by_others[commit] <= case.day
            and (commit not in shown or rules.allow_deletion_from_latest_view)
        ):
            kept = made_day >= case.day - max(aged.values())
        assert keeps_entry(made, commit, path, made_day * DAY_MS) == (kept or held)

    made_ms, pinned = made_day * DAY_MS, {CommitId(commit) for commit in rules.pins.commits}
    tagged = {commit for tag, commit in case.refs.tags.items() if rules.holds_tag(tag)}
    for branch, head in case.refs.heads.items():
        goes = any(each.expires(path, made_ms) for each in latest_view_rules(rules, branch, case.day * DAY_MS))
        due = rules.allow_deletion_from_latest_view and not rules.keep_last and not held and branch in aged
        assert goes is (due and made_day < case.day - aged.get(branch, 0))
        if head not in pinned | tagged and not keeps_entry(made, head, path, made_ms):
            assert goes  # what a head names is not let go of before the head's own branch has let go of it
    partly = dict(made.partly_expired_commits())
    for commit, number in made.expiry.history.numbers.items():
        less = any(each.keep_levels[number] != KeepLevel.ALL for each in made.classes if not each.on_hold)
        assert (commit in partly) == (less and made.expiry.state(number) == ExpiryState.ACTIVE)


class Counted(Sequence[int]):
    """An array that counts how often it is asked."""

    def __init__(self, values: Sequence[int]) -> None:
        self._values = values
        self.asked = 0

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, at: SupportsIndex | slice) -> int:
        self.asked += 1
        return self._values[at]


def steps(commits: int, branches: int) -> int:
    """What `compute_expiry` reads of a history of so many commits that all branches share but for their heads."""
    rows = [CommitRow(name_of(at), [name_of(at - 1)] if at else [], at * DAY_MS) for at in range(commits)]
    heads = {f"b{at}": name_of(commits + at) for at in range(branches)}
    rows += [CommitRow(head, [name_of(commits - 1)], commits * DAY_MS) for head in heads.values()]
    history = CommitHistory.from_rows(rows)
    first, created = Counted(history.first_parents), Counted(history.created_ms)
    rules = Rules(default_retention_days=1, keep_last=5)
    compute_expiry(
        CommitHistory(history.numbers, first, created, history.landed_flags, history.transactions, history.uses_types),
        Refs(heads, {}),
        rules,
        commits * DAY_MS,
    )
    return first.asked + created.asked


def test_the_work_grows_with_commits_and_not_with_branches_times_commits() -> None:
    assert steps(2000, 1) < 2.1 * steps(1000, 1)
    assert steps(1000, 1000) < 2.1 * steps(1000, 1)


def test_a_root_has_no_parent() -> None:
    assert CommitHistory.from_rows([CommitRow(name_of(0), [], 0)]).first_parents[0] == NONE


@pytest.mark.parametrize("kind", list(RetentionReason))
def test_every_reason_is_met(kind: RetentionReason) -> None:
    """What the tests above rest on: their histories have each of them."""
    rng, seen = random.Random(1), set[int]()
    for _ in range(200):
        rows = [
            CommitRow(name_of(at), [name_of(rng.randrange(at))] if at else [], rng.randrange(9) * DAY_MS, at < 6)
            for at in range(8)
        ]
        refs = Refs({"main": name_of(rng.randrange(6))}, {"v1": name_of(rng.randrange(6))})
        rules = Rules(
            default_retention_days=3,
            keep_last=2,
            pins=Pins(commits=(name_of(rng.randrange(6)),)),
            keep_latest_view=rng.random() < 0.5,
        )
        seen |= set(compute_expiry(CommitHistory.from_rows(rows), refs, rules, 9 * DAY_MS).reasons)
    assert kind in seen
