"""`refstore why` answers for whatever the offline job deleted, or is going to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from refstore.core.clock import to_ms
from refstore.core.ids import new_address
from refstore.core.step_progress import StepProgress
from refstore.deletion_history import deletion_index
from refstore.deletion_history.deletion_index import FOLDER
from refstore.deletion_history.explain import AddressReport, Deletion, explain_address
from refstore.errors import AddressNotFound, InvalidName, ObjectsUnavailable
from refstore.gc_marks import Marks, RunState
from refstore.operations.address_info import AddressState
from refstore.records.mark_records import GcRun
from refstore.versioning.commits import object_names
from refstore_gc import deleted_repositories, deletion_index_writer, gc_run
from refstore_gc.gc_run import GcOptions
from tests.commands import Command
from tests.offline.test_deleted_repositories import delete_and_drain
from tests.offline.world import World
from tests.reaping import release_all

if TYPE_CHECKING:
    from refstore_gc.engines.choice import Engines


def expired(world: World) -> str:
    """An address that only an expired commit names."""
    world.commit(days_ago=9, a=b"one")
    address = world.address("main", "a")
    world.commit(days_ago=8, a=b"two")
    world.commit(days_ago=7, a=b"three")
    release_all(world.repo)
    return address


def orphan(world: World) -> str:
    return world.plant(new_address(world.ctx.ids, world.clock.now_ms() - 40 * 86_400_000))


def only(why: AddressReport) -> Deletion:
    (deletion,) = why.deletions
    return deletion


def test_a_sweep_tells_when_by_which_run_and_under_which_rules(world: World, engines: Engines) -> None:
    address, lost = expired(world), orphan(world)
    world.age()
    ran = gc_run.run_nightly(world.ctx, engines, GcOptions())
    mark_id = ran.mark_summary.mark_id
    why = world.repo.why(address, commits=True)
    assert why.info.state is AddressState.GONE
    told = only(why)
    assert (told.by, told.run, told.outcome, told.cause) == ("sweep", mark_id, "deleted", "expired")
    assert "default: 0 days" in told.rule
    assert abs(to_ms(told.at) - world.clock.now_ms()) < 600_000
    assert told.size_bytes == 3
    assert why.naming is not None
    assert [(commit.path, commit.mark.id if commit.mark else "") for commit in why.naming.commits] == [("a", mark_id)]
    assert why.naming.branches == ()
    told = only(world.repo.why(lost))
    assert (told.run, told.outcome, told.cause) == (mark_id, "deleted", "orphan blob")
    assert "no branch named it, and it was older than 24 hours" in told.rule
    assert why.incomplete == ()


def test_objects_of_commits_and_foreign_ones_are_explained_too(world: World, engines: Engines) -> None:
    world.commit(a=b"one")
    foreign = world.plant("data/landing/part-0.csv")
    range_ = world.plant(object_names.key(object_names.RANGES, object_names.new_id("a" * 64, world.ctx.ids.new_id(1))))
    world.age()
    mark_id = gc_run.run_nightly(world.ctx, engines, GcOptions(includes_foreign=True)).mark_summary.mark_id
    for key, cause in ((foreign, "foreign"), (range_, "orphan range")):
        told = only(world.repo.why(key))
        assert (told.run, told.outcome, told.cause) == (mark_id, "deleted", cause)
    with pytest.raises(AddressNotFound):
        world.repo.why("data/landing/part-1.csv")
    for key in ("_refstore/journal/2025", "data/../../etc/passwd", "elsewhere"):
        with pytest.raises(InvalidName):
            world.repo.why(key)


def test_what_is_marked_says_when_it_goes_and_by_which_mark(world: World, engines: Engines) -> None:
    address = expired(world)
    kept = world.address("main", "a")
    world.age()
    summary = gc_run.mark(world.ctx, engines, GcOptions(grace_days=5))
    (marked,) = world.repo.why(address).marked
    assert (marked.mark_id, marked.state, marked.cause) == (summary.mark_id, "marked", "expired")
    assert to_ms(marked.deletes_at) == summary.deletes_at_ms
    assert world.repo.why(address).meaning.startswith("only commits that have expired and are marked name it")
    assert world.repo.why(kept).meaning.startswith("commits keep it")
    why = world.repo.why(kept)
    assert why.marked == why.deletions == ()
    assert why.naming is not None
    assert why.naming.branches == (("main", "a"),)
    assert why.naming.commits[0].mark is None


class Died(BaseException):
    pass


def test_a_run_that_dies_between_the_deletion_and_the_index_does_not_make_it_lie(
    world: World, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = expired(world)
    world.age()

    def die(*_: object) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(deletion_index_writer, "index_sweep", die)
        with pytest.raises(Died):
            gc_run.run_nightly(world.ctx, engines, GcOptions())
    (mark,) = Marks(world.ctx).runs.scan()
    assert mark.state is RunState.SWEEPING, "a sweep is not done before its deletions can be found"
    assert address not in world.data()
    assert only(world.repo.why(address)).run == mark.mark_id
    gc_run.run_nightly(world.ctx, engines, GcOptions(take_over=True))
    assert Marks(world.ctx).runs.get(mark.mark_id).state is RunState.SWEPT
    assert only(world.repo.why(address)).run == mark.mark_id


def test_a_sweep_that_stopped_before_its_first_deletion_says_marked_and_not_deleted(
    world: World, engines: Engines
) -> None:
    address = expired(world)
    world.age()

    def die(now: StepProgress) -> None:
        if now.step == "sweeping":
            raise Died

    with pytest.raises(Died):
        gc_run.run_nightly(world.ctx, engines, GcOptions(), die)
    why = world.repo.why(address)
    assert (why.deletions, [marked.state for marked in why.marked]) == ((), ["sweeping"])


def remove_index(world: World) -> None:
    store = world.ctx.objects
    store.delete_many([info.key for info in store.list(FOLDER)])


def test_a_run_whose_index_file_is_lost_is_found_before_and_after_it_is_indexed_again(
    world: World, engines: Engines
) -> None:
    address = expired(world)
    world.age()
    mark_id = gc_run.run_nightly(world.ctx, engines, GcOptions()).mark_summary.mark_id
    remove_index(world)
    assert only(world.repo.why(address)).run == mark_id
    store = world.ctx.objects
    files = [info.key for info in store.list(f"_refstore/gc/{mark_id}/sweep/")]
    deletion_index_writer.index_sweep(world.ctx, mark_id, files, at_ms=7)
    store.put(deletion_index.sweep_file(mark_id, 0, 2), store.read(deletion_index.sweep_file(mark_id, 0, 1)))
    store.delete_many([deletion_index.sweep_file(mark_id, 0, 1)])
    assert to_ms(only(world.repo.why(address)).at) == 7, "the first of two parts is there"
    remove_index(world)
    assert deletion_index_writer.index_missing(world.ctx).runs == 1
    assert only(world.repo.why(address)).run == mark_id
    assert deletion_index_writer.index_missing(world.ctx).runs == 0
    assert deletion_index_writer.rebuild(world.ctx).runs == 1
    assert only(world.repo.why(address)).run == mark_id


def test_the_index_can_be_written_anew(refstore: Command, engines: Engines) -> None:
    world = World(refstore.folder / "lake")
    address = expired(world)
    world.age()
    gc_run.run_nightly(world.ctx, engines, GcOptions())
    (file,) = [info.key for info in world.ctx.objects.list(FOLDER)]
    world.ctx.objects.put(file, b"damaged")
    ran = refstore("why", "sales", address)
    assert (ran.code, "refstore gc run REPO --only index" in ran.err) == (6, True)
    assert refstore.json("gc", "run", "sales", "--only", "index", "--full")["runs"] == 1
    assert refstore.json("why", "sales", address)["deletions"][0]["cause"] == "expired"


def test_a_run_that_is_indexed_while_one_looks_is_not_missed(
    world: World, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = expired(world)
    world.age()
    gc_run.run_nightly(world.ctx, engines, GcOptions())
    remove_index(world)
    lookup = deletion_index.lookup

    def indexed_behind(*args: Any) -> Any:
        found = lookup(*args)
        monkeypatch.undo()
        deletion_index_writer.index_missing(world.ctx)
        return found

    monkeypatch.setattr(deletion_index, "lookup", indexed_behind)
    assert only(world.repo.why(address)).cause == "expired"


def test_what_the_index_has_outlives_the_files_of_the_run(world: World, engines: Engines) -> None:
    address = expired(world)
    world.age()
    mark_id = gc_run.run_nightly(world.ctx, engines, GcOptions()).mark_summary.mark_id
    store = world.ctx.objects
    store.delete_many([info.key for info in store.list(f"_refstore/gc/{mark_id}/")])
    told = only(world.repo.why(address))
    assert (told.run, told.outcome, told.cause, told.size_bytes) == (mark_id, "deleted", "expired", 3)
    assert "default: 0 days" in told.rule
    indexed = deletion_index_writer.rebuild(world.ctx)
    assert (indexed.runs, indexed.lost_runs, indexed.files) == (0, 1, 1)
    assert only(world.repo.why(address)) == told, "what cannot be written again stays"
    remove_index(world)
    for _ in range(2):
        with pytest.raises(AddressNotFound, match=f"Not looked at: mark {mark_id}, whose files were removed"):
            world.repo.why(address)
        deletion_index_writer.index_missing(world.ctx)
    assert deletion_index_writer.index_missing(world.ctx).lost_runs == 0
    later = new_address(world.ctx.ids, world.clock.now_ms() + 99 * 86_400_000)
    with pytest.raises(AddressNotFound, match=r"the right one$"):
        world.repo.why(later)


def test_so_many_runs_without_an_index_are_looked_at_and_the_rest_is_said(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = Marks(world.ctx)
    for number in range(60):
        marks.runs.create(f"mark-{number:02d}", GcRun("w", RunState.SWEPT, number, 0, 0, "", swept_ms=number))
        world.ctx.objects.put(
            f"_refstore/gc/mark-{number:02d}/mark.json", b'{"mark_id": "m", "seed": 1, "mode": "delete", "units": []}'
        )
    with pytest.raises(AddressNotFound, match="older runs that are not in the index"):
        world.repo.why("data/2026112107/00000000000000000000000000")


def test_a_store_that_does_not_answer_is_told_and_never_as_not_known(
    world: World, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = expired(world)
    world.age()
    gc_run.run_nightly(world.ctx, engines, GcOptions())

    def refuse(*_: object, **__: object) -> Any:
        raise ObjectsUnavailable("planted: the store is down")

    for name in ("get", "list"):
        with monkeypatch.context() as patch:
            patch.setattr(world.ctx.objects, name, refuse)
            with pytest.raises(ObjectsUnavailable):
                world.repo.why(address)


def test_a_deleted_repository_is_explained_as_long_as_and_as_far_as_records_remain(
    refstore: Command, engines: Engines
) -> None:
    world = World(refstore.folder / "lake")
    swept = expired(world)
    assert refstore("branch", "create", "sales", "dev").code == 0  # which gives the lake its id
    world.age()
    mark_id = gc_run.run_nightly(world.ctx, engines, GcOptions()).mark_summary.mark_id
    left = world.address("main", "a")
    delete_and_drain(world)
    world.age()
    (told,) = refstore.json("why", "sales", swept)["deletions"]
    assert (told["run"], told["cause"]) == (mark_id, "expired")
    found = refstore.json("why", "sales", left)
    assert (found["state"], found["repository_deleted"] is None) == ("left by its repository, which was deleted", False)
    ((repo, record),) = deleted_repositories.closed_repositories(world.lake)
    assert deleted_repositories.clear_repository(
        world.lake, repo, record, engines, GcOptions(grace_days=0)
    ).is_forgotten
    for what in (swept, left, "main/a"):
        found = refstore.json("why", "sales", what)
        (told,) = found["deletions"]
        assert (found["state"], told["cause"]) == ("gone with its repository", "deleted repository")
        assert f"{repo} was deleted on" in told["rule"]
    made_later = new_address(world.ctx.ids, world.clock.now_ms() + 99 * 86_400_000)
    assert refstore("why", "sales", made_later).code == 3
    assert refstore("why", "never-there", left).code == 3
    world.lake.create_repository("sales")
    assert refstore.json("why", "sales", left)["state"] == "gone with its repository", (
        "of the repository that had the name before"
    )


def test_what_is_left_of_a_deleted_repository_is_told_while_it_goes(world: World, engines: Engines) -> None:
    """A part is too young: the run is recorded, and the next one does the rest."""
    world.commit(a=b"one")
    address = world.address("main", "a")
    delete_and_drain(world)
    world.age(keys=[address])
    ((repo, record),) = deleted_repositories.closed_repositories(world.lake)
    cleared = deleted_repositories.clear_repository(world.lake, repo, record, engines, GcOptions(grace_days=0))
    assert not cleared.is_forgotten
    ((context, _),) = world.lake.repositories_of_name("sales")
    told = only(explain_address(context, address))
    assert (told.outcome, told.cause, told.rule) == ("deleted", "deleted repository", "deleted repository")
