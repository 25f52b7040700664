"""Rules that change between mark and sweep: what the rules of today keep is not deleted, a legal hold's data least of
all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from refstore.core import ids
from refstore.core.ids import CommitId
from refstore.errors import CorruptRecord, NotFound
from refstore.gc_marks import LiveCommit, Marks, RunState
from refstore.operations import rules_document
from refstore.public_types import stored_commit
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.repository_records import RetentionRecord
from refstore.retention.path_rules import KeepLevel, RetentionPlan, make_plan
from refstore_gc import gc_run, mark_plan, sweep
from refstore_gc.gc_run import GcOptions
from refstore_gc.live_in_commits import FilterPart, TreeFilter
from refstore_gc.mark_plan import decide_marks, tree_filter_of
from tests.offline.world import World, marked_in, outcomes

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines

HOLD = [{"prefix": "held/", "reason": "case 4711"}]


@pytest.fixture
def old(world: World) -> CommitId:
    """A commit whose `held/a` and `other` nothing else names."""
    made = world.commit(days_ago=9, held__a=b"held", other=b"other")
    world.commit(days_ago=8, held__a=None, other=None)
    world.commit(days_ago=7, new=b"new")
    world.settle()
    return made


def hold_set_after_the_mark(world: World, engines: Engines, old: CommitId) -> None:
    """The check: raises AssertionError where the held object is gone."""
    held, other = world.address(old, "held/a"), world.address(old, "other")
    summary = gc_run.mark(world.ctx, engines, GcOptions())
    assert {held, other} <= set(marked_in(world, summary.mark_id))
    world.set_rules(legal_holds=HOLD)
    swept = gc_run.sweep(world.ctx, engines, summary.mark_id)
    assert held in world.data()
    assert other not in world.data()
    assert outcomes(swept) == {"deleted": 1, "excluded": 1}
    assert swept.sweep is not None
    assert swept.sweep.have_rules_changed


def test_a_legal_hold_that_is_set_after_the_mark_saves_the_data(world: World, engines: Engines, old: CommitId) -> None:
    hold_set_after_the_mark(world, engines, old)
    assert world.repo.read(old, "held/a") == b"held"


def without_holds(*given: Any) -> RetentionPlan:
    history, refs, found, now_ms = given
    return make_plan(history, refs, msgspec.structs.replace(found, legal_holds=()), now_ms)


def test_were_the_hold_ignored_at_the_sweep_that_check_would_fail(
    world: World, engines: Engines, old: CommitId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "make_plan", without_holds)
    with pytest.raises(AssertionError):
        hold_set_after_the_mark(world, engines, old)


def test_and_no_later_run_takes_it_either(world: World, engines: Engines, old: CommitId) -> None:
    hold_set_after_the_mark(world, engines, old)
    left = world.data()
    world.commit(days_ago=6, newer=b"newer")
    world.settle()
    gc_run.run_nightly(world.ctx, engines, GcOptions())
    assert left <= world.data()


def test_were_the_hold_ignored_when_marking_that_check_would_fail(
    world: World, engines: Engines, old: CommitId, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_set_after_the_mark(world, engines, old)
    held = world.address(old, "held/a")
    monkeypatch.setattr(mark_plan, "make_plan", without_holds)
    monkeypatch.setattr(sweep, "make_plan", without_holds)
    gc_run.run_nightly(world.ctx, engines, GcOptions())
    assert held not in world.data()


def test_a_hold_that_is_set_while_the_sweep_reads_the_history_counts(
    world: World, engines: Engines, old: CommitId, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = world.address(old, "held/a")
    summary = gc_run.mark(world.ctx, engines, GcOptions())
    read = rules_document.read_history

    def read_history(ctx: Any) -> Any:
        found = read(ctx)
        world.set_rules(legal_holds=HOLD)
        return found

    monkeypatch.setattr(rules_document, "read_history", read_history)
    gc_run.sweep(world.ctx, engines, summary.mark_id)
    assert held in world.data()


def test_a_hold_keeps_what_a_swept_commit_named_there_and_another_one_elsewhere(world: World, engines: Engines) -> None:
    first = world.commit(days_ago=9, held__a=b"data", own=b"nobody else's")
    world.repo.copy("main", "held/a", to_branch="main", to_path="elsewhere")
    world.commit(days_ago=8, held__a=None, own=None)
    world.settle()
    address = world.address("main", "elsewhere")
    gc_run.run_nightly(world.ctx, engines, GcOptions())
    assert Marks(world.ctx).commits.read_marks([first])[0].swept_ms
    world.commit(days_ago=7, elsewhere=None)
    world.settle()
    summary = gc_run.mark(world.ctx, engines, GcOptions())
    assert address in marked_in(world, summary.mark_id)
    world.set_rules(legal_holds=HOLD)
    gc_run.sweep(world.ctx, engines, summary.mark_id)
    assert address in world.data()


def longer(world: World) -> None:
    world.set_rules(default_retention_days=30)


def pinned(world: World) -> None:
    world.set_rules(pins={"commits": [world.repo.get_commit("main~2").id]})


def none(world: World) -> None:
    world.repo.delete_retention()


def all_held(world: World) -> None:
    world.set_rules(legal_holds=[{"prefix": ""}])


@pytest.mark.parametrize("change", [longer, pinned, none, all_held])
def test_a_commit_that_the_rules_keep_by_now_is_active_again(
    world: World, engines: Engines, old: CommitId, change: Callable[[World], object]
) -> None:
    orphan = world.plant(ids.new_address(ids.RandomIds(), world.clock.now_ms()))
    world.age()
    before = world.data()
    summary = gc_run.mark(world.ctx, engines, GcOptions())
    change(world)
    swept = gc_run.sweep(world.ctx, engines, summary.mark_id)
    assert world.data() == before - {orphan}
    assert outcomes(swept) == {"deleted": 1, "excluded": 2}
    assert Marks(world.ctx).commits.read_marks([old]) == [None]
    assert world.repo.copy(old, "other", to_branch="main", to_path="back").size_bytes == 5


def test_the_summary_says_how_many_the_rules_took_out(world: World, engines: Engines, old: CommitId) -> None:
    summary = gc_run.mark(world.ctx, engines, GcOptions())
    world.set_rules(default_retention_days=30)
    swept = gc_run.sweep(world.ctx, engines, summary.mark_id).sweep
    assert swept is not None
    assert swept.excluded_commits == swept.excluded_by_rules == summary.commits["commits_marked"]


def test_a_branch_that_keeps_longer_brings_back_what_came_before_it(
    world: World, engines: Engines, old: CommitId
) -> None:
    """The rules are what they were; the history is not."""
    world.set_rules(branches=[{"branch_id": "audit-*", "retention_days": 365}])
    held = world.address(old, "held/a")
    summary = gc_run.mark(world.ctx, engines, GcOptions())
    world.repo.create_branch("audit-2026", source="main")
    swept = gc_run.sweep(world.ctx, engines, summary.mark_id).sweep
    assert held in world.data()
    assert swept is not None
    assert swept.excluded_by_rules == summary.commits["commits_marked"]


NONCURRENT = [{"filter": {"prefix": "logs/"}, "expiration": {"noncurrent": {"days": 3}}}]


@pytest.mark.parametrize(
    "fields",
    [
        {"rules": []},
        {"rules": [{"filter": {"prefix": "logs/"}, "expiration": {"noncurrent": {"days": 60}}}]},
        {"rules": NONCURRENT, "legal_holds": [{"prefix": "lo"}]},
        {"rules": NONCURRENT, "legal_holds": [{"prefix": "logs/a"}]},
    ],
    ids=["no path rule", "a longer one", "a hold above it", "a hold below it"],
)
def test_what_a_path_rule_had_marked_stays_if_the_rules_keep_it_by_now(
    world: World, engines: Engines, fields: dict[str, Any]
) -> None:
    world.set_rules(default_retention_days=365, rules=NONCURRENT)
    world.commit(days_ago=30, logs__a=b"log")
    world.commit(days_ago=20, logs__a=None)
    world.commit(days_ago=0, new=b"new")
    world.settle()
    log = world.address("main~2", "logs/a")
    summary = gc_run.mark(world.ctx, engines, GcOptions())
    assert log in marked_in(world, summary.mark_id)
    world.set_rules(**({"default_retention_days": 365} | fields))
    gc_run.sweep(world.ctx, engines, summary.mark_id)
    assert log in world.data()


def test_the_sweep_unmarks_a_partly_marked_commit_that_todays_rules_keep_whole(world: World, engines: Engines) -> None:
    """Data that stays under a mark that says it is gone could not be copied any more."""
    world.set_rules(default_retention_days=365, rules=NONCURRENT)
    commit = world.commit(days_ago=30, logs__a=b"log")
    world.commit(days_ago=20, logs__a=None)
    world.commit(days_ago=0, new=b"new")
    world.settle()
    summary = gc_run.mark(world.ctx, engines, GcOptions())
    assert [mark.prefixes for mark in Marks(world.ctx).commits.read_marks([commit]) if mark] == [("logs/",)]
    world.set_rules(default_retention_days=365)
    swept = gc_run.sweep(world.ctx, engines, summary.mark_id).sweep
    assert Marks(world.ctx).commits.read_marks([commit]) == [None]
    assert world.repo.copy(commit, "logs/a", to_branch="main", to_path="back").size_bytes == 3
    assert swept is not None
    assert swept.excluded_by_rules == swept.excluded_commits == summary.commits["commits_partly_marked"]


def test_what_became_too_young_for_a_path_rule_stays(world: World, engines: Engines) -> None:
    """`all` counts from when the object was made, which its address says: so this one is made when it says."""
    days = {"filter": {"prefix": "logs/"}, "expiration": {"all": {"days": 2}}}
    world.set_rules(default_retention_days=365, rules=[days])
    world.commit(logs__a=b"log")
    world.commit(logs__a=None)
    world.clock.skipped_seconds += 5 * 86_400
    world.settle()
    log = world.address("main~1", "logs/a")
    summary = gc_run.mark(world.ctx, engines, GcOptions())
    assert log in marked_in(world, summary.mark_id)
    world.set_rules(default_retention_days=365, rules=[days | {"expiration": {"all": {"days": 20}}}])
    gc_run.sweep(world.ctx, engines, summary.mark_id)
    assert log in world.data()


def test_rules_that_cannot_be_read_end_the_sweep_and_nothing_is_deleted(
    world: World, engines: Engines, old: CommitId
) -> None:
    summary = gc_run.mark(world.ctx, engines, GcOptions())
    before = world.data()
    world.ctx.kv.set(
        keys.retention_rules(world.ctx.repo), encode(RetentionRecord('{"from_a_later_version": 1}', 0, "", "w"))
    )
    with pytest.raises(CorruptRecord, match="set them again"):
        gc_run.sweep(world.ctx, engines, summary.mark_id)
    assert world.data() == before
    assert Marks(world.ctx).runs.get(summary.mark_id).state is RunState.MARKED


def test_a_hold_covers_a_commit_that_the_rules_know_nothing_of(world: World, old: CommitId) -> None:
    """One that came behind the reading of the history."""
    world.set_rules(legal_holds=HOLD)
    kept_of = tree_filter_of(decide_marks(world.ctx).plan)
    record = stored_commit(world.repo.get_commit(old))
    found = kept_of(LiveCommit(CommitId("0" * 64), record, ("",)))
    assert found == TreeFilter((FilterPart("", KeepLevel.NOTHING), FilterPart("held/", KeepLevel.ALL)))


def test_a_mark_that_is_not_there_is_said_so(world: World, engines: Engines) -> None:
    with pytest.raises(NotFound):
        gc_run.sweep(world.ctx, engines, "m-none")
