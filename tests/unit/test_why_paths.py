"""`why` of a path, and the index over the journal of the reaper."""

from __future__ import annotations

import pytest

from refstore.deletion_history import explain
from refstore.deletion_history.deletion_index import FOLDER
from refstore.deletion_history.deletion_journal import BEGAN, PREFIX
from refstore.deletion_history.explain import PathReport
from refstore.errors import AddressNotFound, InvalidPath, ObjectNotFound
from refstore.operations.address_info import AddressState
from refstore_gc import deletion_index_writer
from tests.reaper_world import World


def ends(why: PathReport) -> list[tuple[str, str, list[str]]]:
    """(address, state, causes of its deletions) of each object that was at the path."""
    return [
        (each.address, each.why.info.state.value, [deletion.cause for deletion in each.why.deletions])
        for each in why.versions
        if each.why
    ]


def test_a_path_tells_what_is_there_and_what_was_overwritten(world: World) -> None:
    first, second, third = (world.upload("main", "dir/a", body=body)[0].address for body in (b"1", b"2", b"3"))
    why = world.repo.why_path("main", "dir/a")
    assert why.now is not None
    assert (why.now.address, why.staged, why.ref_exists) == (third, True, True)
    assert ends(why)[0] == (third, "referenced", [])
    assert {each[:2] for each in ends(why)[1:]} == {(second, "in grace"), (first, "in grace")}
    world.run_past_grace()
    assert ends(world.repo.why_path("main", "dir/a")) == [
        (third, "referenced", []),
        *sorted(
            [(second, "gone", ["overwritten"]), (first, "gone", ["overwritten"])],
            key=lambda each: order(world, each[0]),
        ),
    ]


def order(world: World, address: str) -> int:
    return [each.address for each in world.repo.why_path("main", "dir/a").versions].index(address)


def test_a_path_of_a_branch_that_is_gone_is_explained(world: World) -> None:
    world.repo.create_branch("try/it", source="main")
    address = world.upload("try/it", "dir/a")[0].address
    world.upload("main", "dir/a")
    world.repo.delete_branch("try/it")
    world.run_past_grace()
    why = world.repo.why_path("try/it", "dir/a")
    assert (why.now, why.ref_exists) == (None, False)
    assert ends(why) == [(address, "gone", ["branch-deleted"])], "not what was at the path on another branch"


def test_a_path_is_explained_right_after_a_reset_before_the_reaper_has_passed(world: World) -> None:
    address = world.upload("main", "dir/a")[0].address
    world.repo.create_branch("try", source="main")
    other = world.upload("try", "dir/a")[0].address
    world.repo.reset("main")
    world.repo.delete_branch("try")
    assert [each.address for each in world.repo.why_path("main", "dir/a").versions] == [address]
    assert [each.address for each in world.repo.why_path("try", "dir/a").versions] == [other]
    world.run_once()
    assert ends(world.repo.why_path("main", "dir/a")) == [(address, "in grace", [])]


def test_a_path_tells_the_commits_that_had_it_and_the_one_that_removed_it(world: World) -> None:
    repo = world.repo
    first = world.upload("main", "dir/a", body=b"1")[0].address
    one = repo.commit("main", "one").id
    world.clock.advance(60)
    world.upload("main", "other")
    two = repo.commit("main", "two").id
    world.clock.advance(60)
    second = world.upload("main", "dir/a", body=b"2")[0].address
    three = repo.commit("main", "three").id
    world.clock.advance(60)
    repo.delete("main", "dir/a")
    four = repo.commit("main", "four").id
    world.run_once()
    why = repo.why_path("main", "dir/a")
    assert [
        (each.address, each.committed and (each.committed.since.commit, each.committed.until.commit))
        for each in why.versions
    ] == [
        (second, (three, three)),
        (first, (one, two)),
    ]
    assert [version.since.commit for version in why.removed] == [four]
    assert why.now is None
    assert {each[1] for each in ends(why)} == {AddressState.COMMITTED.value}
    assert repo.why_path("main~1", "dir/a").now is not None
    naming = repo.why(first).naming
    assert naming is not None
    assert (naming.branches, {each.commit for each in naming.commits}, naming.complete) == ((), {one, two}, True)
    repo.create_branch("old", source="main~1")
    naming = repo.why(second).naming
    assert naming is not None
    assert (naming.branches, [each.commit for each in naming.commits]) == ((("old", "dir/a"),), [three])


def test_so_many_commits_are_looked_at_and_the_rest_is_said(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.upload("main", "a")
    world.repo.commit("main", "first")
    for number in range(6):
        world.upload("main", f"p{number}")
        world.repo.commit("main", "next")
    world.run_once()
    address = world.repo.stat("main", "a").address
    monkeypatch.setattr("refstore.deletion_history.naming_commits.COMMITS_MAX", 3)
    naming = world.repo.why(address).naming
    assert naming is not None
    assert (naming.complete, naming.branches, len(naming.commits)) == (False, (("main", "a"),), 4)
    why = world.repo.why_path("main", "a")
    assert [each.committed.commits for each in why.versions if each.committed] == [3]
    assert "only the newest commits were searched" in why.incomplete[0]


def test_what_is_staged_from_outside_is_nothing_to_explain_further(world: World) -> None:
    world.repo.stage("main", "a", "https://example.com/a", size_bytes=1)
    (version,) = world.repo.why_path("main", "a").versions
    assert (version.address, version.why) == ("https://example.com/a", None)


def test_a_path_that_never_was_is_not_found(world: World) -> None:
    world.upload("main", "dir/ab")
    world.repo.reset("main")
    world.run_past_grace()
    for ref, path in (("main", "dir/a"), ("main", "dir"), ("mian", "dir/ab")):
        with pytest.raises(ObjectNotFound, match="nothing is known of"):
            world.repo.why_path(ref, path)
    with pytest.raises(InvalidPath):
        world.repo.why_path("main", "dir/../ab")


# ---- the journal in the index


def read_segments(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The segments of the journal that are read from now on."""
    read: list[str] = []
    original = world.objects.read
    monkeypatch.setattr(world.objects, "read", lambda key: read.append(key) or original(key))
    return read


def days_of_reaping(world: World, days: int) -> list[str]:
    addresses: list[str] = []
    for day in range(days):
        addresses += [entry.address for entry in world.upload("main", f"day-{day}", "same")]
        world.repo.reset("main")
        world.run_past_grace()
        world.clock.advance(86_400)
    return addresses


def test_a_year_of_the_journal_is_found_by_the_index(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    address, same, *_ = days_of_reaping(world, 40)
    indexed = deletion_index_writer.index_missing(world.repo.context)
    assert (indexed.journal_segments, indexed.files) == (40, 1)
    latest = days_of_reaping(world, 1)[0]
    read = read_segments(world, monkeypatch)
    (told,) = world.repo.why(address).deletions
    assert (told.by, told.cause, told.path) == ("reaper", "reset", "day-0")
    assert len([key for key in read if key.endswith(BEGAN)]) == 1, "what is not in the index yet"
    assert [deletion.path for deletion in world.repo.why(latest).deletions] == ["day-0"]
    assert [deletion.path for deletion in world.repo.why(same).deletions] == ["same"]
    assert [each.address for each in world.repo.why_path("main", "day-0").versions] == [latest, address]
    assert len(world.repo.why_path("main", "same").versions) == explain.VERSIONS_MAX
    assert deletion_index_writer.index_missing(world.repo.context).journal_segments == 1
    assert deletion_index_writer.index_missing(world.repo.context).journal_segments == 0


def test_what_is_young_is_not_taken_up_yet_because_others_may_come_before_it(world: World) -> None:
    world.upload("main", "a")
    world.repo.reset("main")
    world.run_past_grace()
    assert deletion_index_writer.index_missing(world.repo.context).journal_segments == 0
    world.clock.advance(3 * 3600)
    assert deletion_index_writer.index_missing(world.repo.context).journal_segments == 1


def test_two_hosts_that_index_the_journal_at_once_tell_nothing_twice(world: World) -> None:
    """Both see the same end of the index. The slower one takes up what was too young for the other."""
    address = days_of_reaping(world, 1)[0]
    ctx = world.repo.context
    assert deletion_index_writer.index_missing(ctx).files == 1
    (first,) = [info.key for info in world.objects.list(FOLDER)]
    body = world.objects.read(first)
    world.objects.delete_many([first])
    later = days_of_reaping(world, 1)[0]
    assert deletion_index_writer.index_missing(ctx).files == 1
    world.objects.put(first, body)
    for each in (address, later):
        assert len(world.repo.why(each).deletions) == 1
    assert [each.address for each in world.repo.why_path("main", "day-0").versions] == [later, address]
    assert deletion_index_writer.index_missing(ctx).journal_segments == 0


def test_a_file_of_the_index_that_is_lost_hides_nothing_and_is_written_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses: list[str] = []
    for _ in range(3):
        addresses += days_of_reaping(world, 1)
        deletion_index_writer.index_missing(world.repo.context)
    files = [info.key for info in world.objects.list(FOLDER)]
    world.objects.delete_many(files[1:2])
    read = read_segments(world, monkeypatch)
    assert [len(world.repo.why(address).deletions) for address in addresses] == [1] * 6
    assert {key.rpartition("/")[0] for key in read} == {"_refstore/journal/2025/11/22"}, "the time that the file had"
    assert deletion_index_writer.index_missing(world.repo.context).journal_segments == 1
    assert [info.key for info in world.objects.list(FOLDER)] == files


def test_a_damaged_segment_of_the_journal_is_said_to_be_missing_from_the_answer(world: World) -> None:
    addresses = days_of_reaping(world, 2)
    (first, *_) = [info.key for info in world.objects.inner.list(PREFIX)]
    world.objects.put(first, b"torn")
    with pytest.raises(AddressNotFound, match=r"Not looked at: .* which is damaged"):
        world.repo.why(addresses[0])
    deletion_index_writer.index_missing(world.repo.context)
    with pytest.raises(AddressNotFound, match=r"Not looked at: .* which is damaged"):
        world.repo.why(addresses[0])
    assert len(world.repo.why(addresses[2]).deletions) == 1
    assert world.repo.why(addresses[2]).incomplete == (), "it was made after that"


def test_an_interrupted_batch_that_ends_later_is_read_as_it_is_now(world: World) -> None:
    entry = world.upload_due("a")[0]
    world.objects.refuses = {entry.address}
    world.run_pass()
    world.clock.advance(3 * 3600)
    deletion_index_writer.index_missing(world.repo.context)
    world.objects.refuses = set()
    world.run_pass()
    assert [deletion.outcome for deletion in world.repo.why(entry.address).deletions] == ["failed", "deleted"]
