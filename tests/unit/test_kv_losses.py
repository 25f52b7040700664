"""A KV that went back in time deletes nothing (rule 21): what a witness or the manifest tells, and other servers."""

from __future__ import annotations

import dataclasses
from contextlib import suppress

import pytest

from refstore.core.ids import Address, BranchName, CommitId, RepositoryName, TagName
from refstore.core.safety import CopyMode
from refstore.errors import CorruptRecord, KVReconciling, KVSettling, KVWentBack, ObjectsUnavailable
from refstore.kv.base import ABSENT, Key, Op, Server, SetIf
from refstore.kv.memory import MemoryKV
from refstore.kv_recovery import manifest_backfill, reconciliation
from refstore.kv_recovery.fence import SERVERS_FOLDER, WITNESSES_FOLDER, DryRunFence, PositionFence
from refstore.kv_recovery.manifest_check import check_repository, describe_entry
from refstore.objects.base import Body, StoredObject
from refstore.operations import refs
from refstore.operations.upload import Link
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.reference_records import Deleting, Emptied, Listed, decode_reference
from refstore.versioning.commits import object_names
from refstore.versioning.manifest import (
    CONFIRMED_FOLDER,
    WAITING_FOLDER,
    AnyEntry,
    CommitLanded,
    EntriesPlaced,
    Manifest,
    RepositoryDeleted,
)
from refstore_reaper import breaker, reaper_pass
from tests.reaper_world import GRACE_SECONDS, SCRUB_AFTER_SECONDS, Crash, World


class Losing:
    """A world whose KV can be copied and put back, and whose servers can be others."""

    def __init__(self) -> None:
        self.world = World()
        self.identity = "run-1"
        self.world.kv.servers = lambda: [Server("positions", self.identity)]

    def copy(self) -> MemoryKV:
        kept = MemoryKV()
        kept.set_many(list(self.world.kv.dump().items()))
        return kept

    def put_back(self, kept: MemoryKV) -> None:
        self.world.kv.inner = kept

    def manifest(self, folder: str) -> list[str]:
        return [info.key for info in self.world.objects.inner.list(folder)]

    def witnesses(self) -> list[str]:
        return [info.key for info in self.world.lake.own_store.list(WITNESSES_FOLDER)]

    def witness_always(self, copy_linked: CopyMode = "never") -> None:
        lake = self.world.lake
        lake.safety = dataclasses.replace(lake.safety, witness="always", copy_linked=copy_linked)
        self.world.repo = lake.repository("lake")

    def link(self, path: str) -> Address:
        repo = self.world.repo
        issued = repo.issue("main", path)
        repo.context.objects.put(issued.address, b"x")
        repo.link("main", path, issued.token)
        return issued.address

    def stopped(self) -> str:
        ctx = self.world.repo.context
        return breaker.explain(breaker.read_state(ctx.kv, ctx.repo))


class CutOff(DryRunFence):
    def pass_through(self) -> None:
        raise KVSettling("planted: other servers answer")


@pytest.fixture
def losing() -> Losing:
    return Losing()


def test_a_commit_that_the_kv_forgot_stops_hard_deletion(losing: Losing) -> None:
    """The case of the issue: reset, copy the KV, restore and commit, put the copy back, reap."""
    world = losing.world
    entry = world.upload("main", "a")[0]
    world.repo.reset("main")
    world.run_once()
    kept = losing.copy()
    world.repo.restore(entry.address, to="main", path="a")
    commit = world.repo.commit("main", "keep it").id
    losing.put_back(kept)
    world.clock.advance(GRACE_SECONDS + 1)
    done = world.run_once()
    assert world.stored() == {entry.address}
    assert (done.deleted, done.corrupt, done.blocked) == (0, True, 1)
    assert {error.code for error in done.errors} == {KVWentBack.code}
    assert commit[:12] in done.errors[0].message
    assert losing.stopped() == breaker.KV_WENT_BACK


def test_a_kv_from_before_a_witness_stops_hard_deletion_everywhere(losing: Losing) -> None:
    world = losing.world
    kept = losing.copy()
    world.upload("main", "a")
    world.repo.commit("main", "a")
    world.run_once()
    assert losing.manifest(WAITING_FOLDER) == []
    assert len(losing.manifest(CONFIRMED_FOLDER)) == 1
    losing.put_back(kept)
    world.upload("main", "b")
    world.repo.reset("main")
    world.clock.advance(GRACE_SECONDS + 1)
    done = world.run_once()
    assert [(error.unit, error.code) for error in done.errors] == [("kv", KVWentBack.code)]
    assert done.released == 0
    assert len(world.stored()) == 2
    assert losing.stopped() == breaker.KV_WENT_BACK


def test_a_running_reaper_notices_that_its_own_position_is_lost(losing: Losing) -> None:
    world = losing.world
    fence = PositionFence(world.kv, lambda: world.lake.own_store, world.clock, world.lake.durations, "d1")
    fence.begin(lambda: None)
    kept = losing.copy()
    fence.pass_through()
    losing.put_back(kept)
    with pytest.raises(KVWentBack, match="position of d1"):
        fence.pass_through()


def test_nothing_is_deleted_without_a_witness(losing: Losing) -> None:
    world = losing.world
    world.upload("main", "a")
    world.repo.reset("main")
    world.run_once()
    store = world.lake.own_store
    put = store.inner.put

    def refuse(key: str, body: object, *, if_absent: bool = False) -> object:
        if key.startswith(WITNESSES_FOLDER):
            raise ObjectsUnavailable("planted: no room")
        return put(key, body, if_absent=if_absent)

    store.inner.put = refuse
    world.clock.advance(GRACE_SECONDS + 1)
    done = world.run_once()
    assert (done.deleted, done.unavailable) == (0, True)
    assert len(world.stored()) == 1
    store.inner.put = put
    assert world.run_once().deleted == 1


def test_the_witness_is_written_before_the_objects_go(losing: Losing) -> None:
    world = losing.world
    world.upload("main", "a")
    world.repo.reset("main")
    world.run_once()
    seen: list[tuple[int, int]] = []
    reaper = world.reaper()
    fence = PositionFence(world.kv, lambda: world.lake.own_store, world.clock, world.lake.durations, "beside")

    def look(_keys: object) -> None:
        position = world.kv.get(Key("positions", reaper.id))
        witness = fence.witnesses()[reaper.id]
        assert position is not ABSENT
        seen.append((witness.positions["positions"], fence.find_lost({reaper.id: witness}) == []))

    world.objects.before_delete = look
    world.clock.advance(GRACE_SECONDS + 1)
    with reaper:
        reaper.run_once(lambda: False)
    assert [held for _, held in seen] == [True]


def test_other_servers_are_settled_when_old_operations_have_ended(losing: Losing) -> None:
    world = losing.world
    world.upload_due("a")
    losing.identity = "run-2"
    done = world.run_once()
    assert [(error.unit, error.code) for error in done.errors] == [("kv", KVSettling.code)]
    assert (done.deleted, losing.stopped()) == (0, "")
    world.clock.advance(SCRUB_AFTER_SECONDS)
    assert world.run_once().deleted == 1
    losing.identity = "run-1"  # settled under it before: its witnesses still hold
    assert world.run_once().error_count == 0
    assert not list(world.lake.own_store.list(SERVERS_FOLDER))


def test_a_settlement_restores_the_reference_that_a_shard_lost(losing: Losing) -> None:
    """ "Copy added" and "original released" are lost, and the entry is not."""
    world = losing.world
    world.repo.create_branch("feat", source="main")
    entry = world.upload("main", "a")[0]
    world.run_once()
    key = keys.reference(world.repo.context.repo, entry.address)
    before = world.kv.get(key)
    assert before is not ABSENT
    world.repo.copy("main", "a", to_branch="feat", to_path="b")
    world.repo.reset("main")
    world.run_once()
    world.kv.set(key, before)
    losing.identity = "run-2"
    world.run_once()
    world.clock.advance(SCRUB_AFTER_SECONDS + GRACE_SECONDS)
    for _ in range(2):
        world.run_once(scrub_now=True)
        world.clock.advance(SCRUB_AFTER_SECONDS + GRACE_SECONDS)
    assert world.stored() == {entry.address}
    raw = world.kv.get(key)
    assert raw is not ABSENT
    listed = decode_reference(raw)
    assert isinstance(listed, Listed)
    assert [(reference.path, reference.token.partition(":")[0]) for reference in listed.references] == [("b", "feat")]


def test_a_marker_whose_decision_was_lost_touches_no_live_token(losing: Losing) -> None:
    world = losing.world
    branch = keys.branch(
        world.repo.context.repo, world.repo.context.branches.read_open(BranchName("main")).record.id and "main"
    )
    world.upload("main", "a")
    before = world.kv.get(branch)
    assert before is not ABSENT
    world.repo.reset("main")
    world.kv.set(branch, before)
    assert world.run_once().released == 0
    losing.identity = "run-2"
    world.run_once()
    world.clock.advance(SCRUB_AFTER_SECONDS)
    world.run_once()
    assert world.kv.count(keys.deleted_tokens(world.repo.context.repo), limit=9) == 0
    assert [path for path, _ in world.repo.list("main")] == ["a"]
    world.upload("main", "b")
    world.clock.advance(SCRUB_AFTER_SECONDS + GRACE_SECONDS)
    world.run_once(scrub_now=True)
    assert len(world.stored()) == 2


def test_a_tag_that_the_kv_forgot_is_noticed_and_a_deleted_one_is_not(losing: Losing) -> None:
    world = losing.world
    world.upload("main", "a")
    world.repo.commit("main", "a")
    world.run_once()
    world.repo.create_tag("v1", ref="main")
    world.repo.delete_tag("v1")
    world.repo.create_branch("gone", source="main")
    world.repo.delete_branch("gone")
    world.upload("main", "b")
    world.repo.reset("main")
    assert world.run_once().error_count == 0
    kept = losing.copy()
    world.repo.create_tag("v2", ref="main")
    losing.put_back(kept)
    world.upload("main", "c")
    world.repo.reset("main")
    done = world.run_once()
    assert "tag 'v2'" in done.errors[0].message
    assert done.corrupt


def test_a_deletion_needs_no_object_store_and_raises_no_alarm_later(losing: Losing) -> None:
    world = losing.world
    world.repo.create_tag("v1", ref="main")
    world.repo.create_branch("gone", source="main")
    world.objects.down = True
    world.repo.delete_tag("v1")
    world.repo.delete_branch("gone")
    world.objects.down = False
    world.upload("main", "a")
    world.repo.reset("main")
    assert world.run_once().error_count == 0
    assert world.kv.count(keys.unwritten_manifest(world.repo.context.repo), limit=9) == 0


def test_a_commit_whose_entry_cannot_be_written_is_not_acknowledged(losing: Losing) -> None:
    world = losing.world
    world.upload("main", "a")
    put = world.objects.inner.put

    def refuse(key: str, body: object, *, if_absent: bool = False) -> object:
        if key.startswith(WAITING_FOLDER):
            raise ObjectsUnavailable("planted: no room")
        return put(key, body, if_absent=if_absent)

    world.objects.inner.put = refuse
    with pytest.raises(ObjectsUnavailable, match="do not commit again"):
        world.repo.commit("main", "a")
    world.objects.inner.put = put
    assert world.run_once().published == 1  # the reaper publishes it, and writes the entry before
    assert len(losing.manifest(CONFIRMED_FOLDER)) == 1
    confirmed = world.objects.inner.read(losing.manifest(CONFIRMED_FOLDER)[0]).decode()
    assert world.repo.get_branch("main").head in confirmed


def test_that_a_tag_was_deleted_explains_no_loss_of_one_that_was_made_again(losing: Losing) -> None:
    """Within one millisecond, and of the same commit."""
    world = losing.world
    world.upload("main", "a")
    world.repo.commit("main", "a")
    world.repo.create_tag("v1", ref="main")
    world.repo.delete_tag("v1")
    world.repo.create_tag("v1", ref="main")
    ctx = world.repo.context
    world.kv.delete(keys.tag(ctx.repo, TagName("v1")))
    with pytest.raises(KVWentBack, match="tag 'v1'"):
        check_repository(ctx)


def a_fence(losing: Losing, deleter: str) -> PositionFence:
    world = losing.world
    return PositionFence(world.kv, lambda: world.lake.own_store, world.clock, world.lake.durations, deleter)


def test_witnesses_of_deleters_that_ended_are_forgotten_and_their_positions_later(losing: Losing) -> None:
    world = losing.world
    first, second = a_fence(losing, "d1"), a_fence(losing, "d2")
    first.begin(lambda: None)
    world.clock.advance(2 * 86_400)
    second.begin(lambda: None)
    second.forget_ended_deleters()
    assert losing.witnesses() == [f"{WITNESSES_FOLDER}d2.json"]
    assert world.kv.get(Key("positions", "d1")) is not ABSENT
    world.clock.advance(30 * 86_400)
    second.begin(lambda: None)
    second.forget_ended_deleters()
    assert world.kv.get(Key("positions", "d1")) is ABSENT
    first.begin(lambda: None)  # it was only asleep: it begins anew
    first.pass_through()
    assert world.kv.get(Key("positions", "d1-1")) is not ABSENT
    assert set(losing.witnesses()) == {f"{WITNESSES_FOLDER}d1-1.json", f"{WITNESSES_FOLDER}d2.json"}


def test_a_deleter_that_was_stopped_before_its_witness_creates_one_that_the_kv_holds(losing: Losing) -> None:
    """Its witness was forgotten meanwhile. Taken for a KV that went back, it would stop deletion everywhere."""
    world = losing.world
    first, second = a_fence(losing, "d1"), a_fence(losing, "d2")
    first.begin(lambda: None)
    put = world.lake.own_store.put

    def stall(key: str, body: Body, *, if_absent: bool = False) -> StoredObject:
        if key == f"{WITNESSES_FOLDER}d1.json":
            world.clock.advance(2 * 86_400)
            second.begin(lambda: None)
            second.forget_ended_deleters()
            assert losing.witnesses() == [f"{WITNESSES_FOLDER}d2.json"]
        return put(key, body, if_absent=if_absent)

    world.lake.own_store.put = stall  # its process is stopped in here
    first.pass_through()
    world.lake.own_store.put = put
    second.begin(lambda: None)
    first.begin(lambda: None)
    assert len(losing.witnesses()) == 2


def test_a_deleter_that_is_forgotten_within_its_pass_deletes_nothing_and_begins_anew(losing: Losing) -> None:
    world = losing.world
    first, second = a_fence(losing, "d1"), a_fence(losing, "d2")
    first.begin(lambda: None)
    world.clock.advance(31 * 86_400)
    first.begin(lambda: None)
    second.begin(lambda: None)
    second.forget_ended_deleters()
    with pytest.raises(KVSettling, match="begins anew"):
        first.pass_through()
    first.begin(lambda: None)
    first.pass_through()


def test_positions_that_a_crash_left_without_a_witness_go(losing: Losing) -> None:
    world = losing.world
    first, second = a_fence(losing, "d1"), a_fence(losing, "d2")
    first.begin(lambda: None)
    world.lake.own_store.delete_many([f"{WITNESSES_FOLDER}d1.json"])  # `forget_ended_deleters` died after this
    world.clock.advance(31 * 86_400)
    second.begin(lambda: None)
    second.forget_ended_deleters()
    assert [name for name, _ in world.kv.scan_all("positions")] == ["d2"]
    first.begin(lambda: None)
    first.pass_through()


def test_witnesses_are_forgotten_for_a_later_one_only(losing: Losing) -> None:
    world = losing.world
    first, second = a_fence(losing, "d1"), a_fence(losing, "d2")
    first.begin(lambda: None)
    first.pass_through()
    world.clock.advance(60)
    second.begin(lambda: None)
    second.pass_through()
    world.clock.advance(2 * 86_400)
    first.begin(lambda: None)  # its own witness is older than the other's
    first.forget_ended_deleters()
    assert {witness.deleter: witness.at_ms for witness in first.witnesses().values()} == {"d1": world.clock.now_ms()}


def test_a_stop_for_another_reason_stays(losing: Losing) -> None:
    ctx = losing.world.repo.context
    breaker.Breaker(ctx, losing.world.settings, "r1").stop(breaker.Reason.SHARE)
    breaker.Breaker(ctx, losing.world.settings, "r1").stop(breaker.Reason.KV_WENT_BACK)
    assert losing.stopped() != breaker.KV_WENT_BACK


def test_reconcile_protects_a_commit_whose_processing_one_server_lost(losing: Losing) -> None:
    """The commit was processed, its entry confirmed; then the server of its address lost that, and a position."""
    world = losing.world
    entry = world.upload("main", "a")[0]
    world.repo.commit("main", "a")
    key = keys.reference(world.repo.context.repo, entry.address)
    before = world.kv.get(key)
    assert before is not ABSENT
    world.run_once()
    assert losing.manifest(WAITING_FOLDER) == []
    world.kv.set(key, before)
    for name, _ in list(world.kv.scan_all("positions")):
        world.kv.delete(Key("positions", name))
    assert {error.code for error in world.run_once().errors} == {KVWentBack.code}
    reconciliation.restore_lost_records(world.lake)
    reconciliation.settle_lake(world.lake, accept=False, clients_stopped=True)
    for _ in range(3):
        world.clock.advance(SCRUB_AFTER_SECONDS + GRACE_SECONDS)
        assert world.run_once(scrub_now=True).error_count == 0
    assert world.stored() == {entry.address}


def test_a_repository_whose_deletion_was_cut_short_is_not_called_deleted(losing: Losing) -> None:
    """Else a KV that is made anew would hand its data to the offline job."""
    world = losing.world

    def deletions() -> list[AnyEntry]:
        return [entry for entry in world.lake.manifest.read_all() if isinstance(entry, RepositoryDeleted)]

    def closes(op: Op) -> bool:
        return isinstance(op, SetIf) and op.key.partition == keys.REPOSITORIES

    world.kv.crash_at(closes)
    with pytest.raises(Crash):
        world.lake.delete_repository("lake")
    assert deletions() == []
    world.kv.crash_at(closes, behind=True)
    with pytest.raises(Crash):
        world.lake.delete_repository("lake")
    for _ in range(3):
        world.clock.advance(SCRUB_AFTER_SECONDS + GRACE_SECONDS)
        world.run_once(scrub_now=True)
    assert [entry.id for entry in deletions()] == [world.repo.context.repo]


ISSUED_SECONDS = 3600.0


@pytest.mark.parametrize("copy_linked", ["never", "always"])
def test_a_lost_link_is_noticed_where_links_are_witnessed(losing: Losing, copy_linked: CopyMode) -> None:
    """The copy is put back into the same file: nothing but the entry of the manifest tells."""
    losing.witness_always(copy_linked)
    world = losing.world
    issued = world.repo.issue("main", "a")
    world.objects.put(issued.address, b"x")
    world.run_once()
    kept = losing.copy()
    linked = world.repo.link("main", "a", issued.token).address
    losing.put_back(kept)
    world.clock.advance(ISSUED_SECONDS + SCRUB_AFTER_SECONDS + GRACE_SECONDS)
    for _ in range(2):
        done = world.run_once(scrub_now=True)
        assert {error.code for error in done.errors} == {KVWentBack.code}
        assert "'a' on branch 'main', linked or restored" in done.errors[0].message
        world.clock.advance(SCRUB_AFTER_SECONDS + GRACE_SECONDS)
    assert world.stored() == {issued.address, linked}
    assert losing.stopped() == breaker.KV_WENT_BACK


@pytest.mark.parametrize("copy_linked", ["never", "always"])
def test_what_was_linked_twice_at_one_path_comes_back_under_two_names(losing: Losing, copy_linked: CopyMode) -> None:
    losing.witness_always(copy_linked)
    world = losing.world
    issued = [world.repo.issue("main", "a") for _ in range(2)]
    for number, each in enumerate(issued):
        world.objects.put(each.address, b"%d" % number)
    kept = losing.copy()
    for each in issued:
        world.repo.link("main", "a", each.token)
    losing.put_back(kept)
    world.repo.upload("main", "a", b"newer")
    reconciliation.restore_lost_records(world.lake)
    assert {world.repo.read("main", each.path) for each in world.repo.list("main")} == {b"newer", b"0", b"1"}


def test_a_lost_link_is_not_noticed_where_only_commits_are_witnessed(losing: Losing) -> None:
    world = losing.world
    issued = world.repo.issue("main", "a")
    world.objects.put(issued.address, b"x")
    kept = losing.copy()
    world.repo.link("main", "a", issued.token)
    losing.put_back(kept)
    world.clock.advance(ISSUED_SECONDS + SCRUB_AFTER_SECONDS + GRACE_SECONDS)
    for _ in range(2):
        world.run_once(scrub_now=True)
        world.clock.advance(SCRUB_AFTER_SECONDS + GRACE_SECONDS)
    assert (world.stored(), losing.stopped()) == (set(), "")


@pytest.mark.parametrize("marked", [False, True], ids=["in grace", "marked for deletion meanwhile"])
def test_a_lost_restore_is_noticed_when_other_servers_answer(losing: Losing, marked: bool) -> None:
    losing.witness_always()
    world = losing.world
    entry = world.upload("main", "a")[0]
    world.repo.reset("main")
    world.run_once()
    kept = losing.copy()
    world.repo.restore(entry.address, to="main", path="b")
    losing.put_back(kept)
    if marked:
        key = keys.reference(world.repo.context.repo, entry.address)
        raw = world.kv.get(key)
        assert raw is not ABSENT
        emptied = decode_reference(raw)
        assert isinstance(emptied, Emptied)
        world.kv.set(key, encode(Deleting(world.clock.now_ms(), emptied.last_reference, emptied.cause)))
    losing.identity = "run-2"
    world.clock.advance(GRACE_SECONDS + 1)
    world.run_once()
    world.clock.advance(SCRUB_AFTER_SECONDS)
    done = world.run_once()
    assert {error.code for error in done.errors} == {KVWentBack.code}
    assert world.stored() == {entry.address}
    assert losing.stopped() == breaker.KV_WENT_BACK


def test_a_lost_entry_whose_reference_stands_is_noticed(losing: Losing) -> None:
    losing.witness_always()
    world = losing.world
    world.upload("main", "z")
    world.run_once()
    address = losing.link("a")
    ctx = world.repo.context
    token = ctx.branches.read_open("main").record.token
    world.kv.delete(keys.entry(ctx.repo, token, "a"))
    losing.identity = "run-2"
    world.run_once()
    world.clock.advance(SCRUB_AFTER_SECONDS)
    done = world.run_once(scrub_now=True)
    assert {error.code for error in done.errors} == {KVWentBack.code}
    assert address in world.stored()


def test_a_planned_switch_explains_what_became_of_witnessed_entries(losing: Losing) -> None:
    """Overwritten, deleted, committed, reset, and the objects already gone: nothing of it is a loss."""
    losing.witness_always()
    world = losing.world
    repo = world.repo
    world.upload("main", "first")
    world.run_once()
    gone = losing.link("gone")
    repo.delete("main", "gone")
    losing.link("committed")
    repo.commit("main", "c")
    losing.link("overwritten")
    world.upload("main", "overwritten")
    losing.link("deleted")
    repo.delete("main", "deleted")
    losing.link("reset")
    repo.reset("main")
    losing.link("kept")
    tools = dataclasses.replace(world.tools(), fence=CutOff())
    with suppress(KVSettling):  # a pass that releases, and ends before it deletes or confirms
        reaper_pass.run_pass(world.lake.context(repo.name, world.record), world.record, tools)
    assert len([key for key in losing.manifest(WAITING_FOLDER) if "/entries." in key]) == 6
    repo.context.objects.delete_many([gone])  # another deleter had come so far
    repo.context.kv.delete(keys.reference(repo.context.repo, gone))
    losing.identity = "run-2"
    world.run_once()
    world.clock.advance(SCRUB_AFTER_SECONDS + GRACE_SECONDS)
    for _ in range(3):
        done = world.run_once(scrub_now=True)
        assert [error.message for error in done.errors] == []
        world.clock.advance(SCRUB_AFTER_SECONDS + GRACE_SECONDS)
    assert losing.stopped() == ""
    assert len(world.stored()) == 3  # first and committed, in the commit; kept, which is staged
    assert losing.manifest(WAITING_FOLDER) == []


def test_one_call_writes_one_manifest_entry_and_a_pass_drops_it(losing: Losing) -> None:
    losing.witness_always()
    world = losing.world
    repo = world.repo
    entries = [key for key in losing.manifest(WAITING_FOLDER) if "/entries." in key]
    assert entries == []
    links = []
    for path in ("a", "b", "c"):
        issued = repo.issue("main", path)
        repo.context.objects.put(issued.address, b"x")
        links.append(Link(path=path, token=issued.token, if_absent=path == "c"))
    repo.link_many("main", links[:2])
    assert len([key for key in losing.manifest(WAITING_FOLDER) if "/entries." in key]) == 1
    repo.link_many("main", links[2:])
    assert len([key for key in losing.manifest(WAITING_FOLDER) if "/entries." in key]) == 2
    placed = [
        item
        for entry in repo.context.manifest.read_waiting()
        if isinstance(entry, EntriesPlaced)
        for item in entry.entries
    ]
    assert sorted(item.path for item in placed) == ["a", "b", "c"]
    repo.reset("main")
    world.run_once()
    assert [key for key in losing.manifest(WAITING_FOLDER) if "/entries." in key] == []
    assert not any(isinstance(entry, EntriesPlaced) for entry in repo.context.manifest.read_confirmed())


def test_by_default_a_link_writes_no_manifest_entry(losing: Losing) -> None:
    before = losing.manifest(WAITING_FOLDER)
    losing.link("a")
    assert losing.manifest(WAITING_FOLDER) == before


def test_a_repository_record_that_cannot_be_read_stops_no_reaper_and_no_other_stop(losing: Losing) -> None:
    world = losing.world
    kept = losing.copy()
    world.upload("main", "a")
    world.repo.commit("main", "a")
    world.run_once()
    losing.put_back(kept)
    world.kv.set(keys.repository(RepositoryName("a-torn-one")), b"\xc1")
    done = world.run_once()
    assert {(error.repository, error.code) for error in done.errors} == {
        ("", KVWentBack.code),
        ("a-torn-one", CorruptRecord.code),
    }
    assert losing.stopped() == breaker.KV_WENT_BACK


def test_a_reaper_that_looks_during_a_reconcile_trips_nothing(losing: Losing) -> None:
    world = losing.world
    fence = PositionFence(world.kv, lambda: world.lake.own_store, world.clock, world.lake.durations, "reconcile")
    fence.block()
    done = world.run_once()
    assert [(error.unit, error.code) for error in done.errors] == [("kv", KVReconciling.code)]
    assert losing.stopped() == ""
    fence.unblock()
    assert world.run_once().errors == ()


@pytest.mark.parametrize("what", ["tag", "branch", "repository"])
def test_what_landed_without_its_entry_gets_one_from_the_reaper(
    losing: Losing, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    world = losing.world
    repo = world.repo
    make = {
        "tag": lambda: repo.create_tag("v1", ref="main"),
        "branch": lambda: repo.create_branch("dev", source="main"),
        "repository": lambda: world.lake.create_repository("other"),
    }[what]
    add = Manifest.add

    def refuse(manifest: Manifest, entry: AnyEntry) -> None:
        if entry.kind == {"tag": "record"}.get(what, what) and "main" not in describe_entry(entry):
            raise ObjectsUnavailable("planted")
        add(manifest, entry)

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "add", refuse)
        with pytest.raises(ObjectsUnavailable, match=f"{what} '[a-z0-9]+' was created, but .* a reaper writes it"):
            make()
    assert world.run_once().errors == ()
    entries = [*repo.context.manifest.read_all(), *world.lake.manifest.read_all()]
    assert any(describe_entry(entry).startswith(what) and "main" not in describe_entry(entry) for entry in entries)
    assert not repo.context.manifest.read_unwritten()
    assert not world.lake.manifest.read_unwritten()


def test_record_confirms_nothing_that_no_later_position_covers(losing: Losing) -> None:
    world = losing.world
    world.upload("main", "a")
    world.repo.commit("main", "a")
    world.run_once()
    world.objects.inner.delete_many([*losing.manifest(WAITING_FOLDER), *losing.manifest(CONFIRMED_FOLDER)])
    answers = iter(("run-1", "run-2"))
    world.kv.servers = lambda: [Server("positions", next(answers))]
    with pytest.raises(KVSettling):
        manifest_backfill.fill_gaps(world.lake)
    assert losing.manifest(CONFIRMED_FOLDER) == []
    world.kv.servers = lambda: [Server("positions", "run-1")]
    assert [len(each.commits) for each in manifest_backfill.fill_gaps(world.lake)] == [2]


def test_one_listing_that_cannot_be_read_keeps_only_its_own_entry(losing: Losing) -> None:
    world = losing.world
    commits: list[CommitId] = []
    for name in "abc":
        world.upload("main", name)
        commits.append(world.repo.commit("main", name).id)
    ctx = world.repo.context
    listing = refs.get_commit(ctx, commits[1]).added_addresses_id
    for _, marker in list(ctx.markers.scan_committed()):
        ctx.markers.set_deleted(marker.tokens, "processed elsewhere")
    for commit, _ in list(ctx.markers.scan_committed()):
        ctx.markers.remove_committed(commit)
    world.objects.inner.delete_many([object_names.key(object_names.ADDED_ADDRESSES, listing)])
    done = world.run_once()
    assert [error.unit for error in done.errors] == [f"manifest/{commits[1]}"]
    assert [entry.commit for entry in ctx.manifest.read_waiting() if isinstance(entry, CommitLanded)] == [commits[1]]


def test_what_a_removal_at_hand_explains_needs_no_confirmed_entries(
    losing: Losing, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = losing.world
    world.repo.create_branch("short", source="main")
    world.repo.delete_branch("short")
    world.upload("main", "a")
    world.repo.reset("main")
    monkeypatch.setattr(Manifest, "read_confirmed", lambda _: pytest.fail("nobody needs them"))
    assert world.run_once().errors == ()
    assert losing.manifest(WAITING_FOLDER) == []
