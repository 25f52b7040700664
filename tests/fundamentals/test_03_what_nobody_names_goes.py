"""The promise: no live entry and no commit ever names a blob that is gone, and what nobody names goes, in time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from refstore.core.clock import to_datetime
from refstore.core.ids import Address
from refstore.errors import Gone, RepositoryNotFound
from refstore.lake import Lake
from refstore.operations.address_info import AddressState, ReferenceState
from refstore.public_types import stored_entry
from refstore.records.staging_records import without_reference
from refstore.repository import Repository
from tests.kit.clock import FakeClock
from tests.reaping import release_all, scrub_all

Stored = Callable[[], set[Address]]
Reap = Callable[[], None]


@pytest.fixture
def after_grace(clock: FakeClock, reap: Reap) -> Reap:
    """Reap, let the grace window pass, reap."""

    def run() -> None:
        reap()
        clock.advance(3601)
        reap()

    return run


def test_what_a_reset_throws_away_is_deleted_after_its_grace_window(
    repo: Repository, stored: Stored, clock: FakeClock, reap: Reap
) -> None:
    entry = repo.upload("main", "a", b"1")
    repo.reset("main")
    reap()
    assert stored() == {entry.address}
    clock.advance(3601)
    reap()
    assert stored() == set()


def test_what_is_committed_stays_and_needs_no_reference_any_more(
    repo: Repository, stored: Stored, after_grace: Reap
) -> None:
    entry = repo.upload("main", "a", b"1")
    repo.commit("main", "a")
    after_grace()
    assert stored() == {entry.address}
    assert repo.address(entry.address).state is AddressState.COMMITTED
    assert repo.read("main", "a") == b"1"


def test_an_overwritten_upload_is_released_at_once(
    repo: Repository, stored: Stored, clock: FakeClock, reap: Reap
) -> None:
    first = repo.upload("main", "a", b"1")
    second = repo.upload("main", "a", b"2")
    assert repo.address(first.address).state is AddressState.IN_GRACE
    clock.advance(3601)
    reap()
    assert stored() == {second.address}


def test_a_deleted_upload_is_released_at_once(repo: Repository, stored: Stored, clock: FakeClock, reap: Reap) -> None:
    repo.upload("main", "a", b"1")
    repo.delete("main", "a")
    clock.advance(3601)
    reap()
    assert stored() == set()


def test_deleting_a_committed_path_deletes_no_data(repo: Repository, stored: Stored, after_grace: Reap) -> None:
    entry = repo.upload("main", "a", b"1")
    repo.commit("main", "a")
    repo.delete("main", "a")
    repo.commit("main", "without a")
    after_grace()
    assert stored() == {entry.address}
    assert repo.read("main~1", "a") == b"1"


def test_a_copy_keeps_data_alive(repo: Repository, stored: Stored, after_grace: Reap) -> None:
    repo.create_branch("feature", source="main")
    entry = repo.upload("main", "a", b"1")
    repo.copy("main", "a", to_branch="feature", to_path="b")
    repo.reset("main")
    after_grace()
    assert stored() == {entry.address}
    repo.delete_branch("feature")
    after_grace()
    assert stored() == set()


def test_a_copy_of_committed_data_needs_no_reference(repo: Repository, stored: Stored, after_grace: Reap) -> None:
    entry = repo.upload("main", "a", b"1")
    repo.commit("main", "a")
    after_grace()
    repo.create_branch("feature", source="main")
    repo.copy("main", "a", to_branch="feature", to_path="b")
    repo.reset("feature")
    after_grace()
    assert stored() == {entry.address}


def test_a_move_keeps_the_data_and_a_reset_then_takes_it(repo: Repository, stored: Stored, after_grace: Reap) -> None:
    entry = repo.upload("main", "a", b"1")
    repo.move("main", "a", to_path="b")
    after_grace()
    assert stored() == {entry.address}
    repo.reset("main")
    after_grace()
    assert stored() == set()


def test_an_issued_address_that_is_not_linked_goes_when_it_has_expired(
    repo: Repository, stored: Stored, clock: FakeClock, reap: Reap
) -> None:
    issued = repo.issue("main", "a")
    repo.context.objects.put(issued.address, b"external")
    reap()
    assert stored() == {issued.address}
    clock.advance(3600 + 61)
    reap()
    assert stored() == set()


def test_a_linked_address_is_staged_like_an_upload(repo: Repository, stored: Stored, after_grace: Reap) -> None:
    issued = repo.issue("main", "a")
    repo.context.objects.put(issued.address, b"external")
    repo.link("main", "a", issued.token)
    assert repo.read("main", "a") == b"external"
    after_grace()
    assert stored() == {issued.address}
    repo.reset("main")
    after_grace()
    assert stored() == set()


def test_in_its_grace_window_an_address_can_be_taken_back(repo: Repository, stored: Stored, after_grace: Reap) -> None:
    entry = repo.upload("main", "a", b"1", metadata={"k": "v"})
    repo.reset("main")
    release_all(repo)
    assert [(item.address, item.path, item.cause) for item in repo.list_trash()] == [(entry.address, "a", "reset")]
    repo.restore(entry.address, to="main")
    assert without_reference(stored_entry(repo.stat("main", "a"))) == stored_entry(entry)
    after_grace()
    assert stored() == {entry.address}


def test_what_was_taken_back_and_is_unnamed_again_has_one_window_from_then_on(
    repo: Repository, clock: FakeClock
) -> None:
    entry = repo.upload("main", "a", b"1")
    for _ in range(2):
        clock.advance(60)
        repo.reset("main")
        release_all(repo)
        found = [(item.address, item.deletes_at) for item in repo.list_trash()]
        assert found == [(entry.address, to_datetime(clock.now_ms()) + timedelta(hours=1))]
        repo.restore(entry.address, to="main")


def test_after_its_grace_window_it_cannot(repo: Repository, after_grace: Reap) -> None:
    entry = repo.upload("main", "a", b"1")
    repo.reset("main")
    after_grace()
    with pytest.raises(Gone):
        repo.restore(entry.address, to="main")
    assert repo.address(entry.address).state is AddressState.GONE


def test_the_view_of_an_address_says_who_names_it_and_how(repo: Repository) -> None:
    repo.create_branch("feature", source="main")
    entry = repo.upload("main", "a", b"1")
    repo.copy("main", "a", to_branch="feature", to_path="b")
    repo.reset("feature")
    view = repo.address(entry.address)
    assert [(named.branch, named.path, named.state) for named in view.references] == [
        ("main", "a", ReferenceState.STAGED),
        ("feature", "b", ReferenceState.DELETED),
    ]


def test_a_deleted_repository_takes_its_uncommitted_data_along(
    lake: Lake, repo: Repository, stored: Stored, after_grace: Reap
) -> None:
    committed = repo.upload("main", "a", b"1")
    repo.commit("main", "a")
    repo.upload("main", "b", b"2")
    lake.delete_repository("lake")
    with pytest.raises(RepositoryNotFound):
        lake.repository("lake")
    after_grace()
    assert stored() == {committed.address}


def test_what_a_crash_leaves_is_found_by_the_scrubber(
    repo: Repository, stored: Stored, clock: FakeClock, after_grace: Reap
) -> None:
    class Crashed(Exception):
        pass

    def body():
        yield b"some"
        raise Crashed

    with pytest.raises(Crashed):
        repo.upload("main", "a", body())
    repo.reset("main")
    after_grace()
    clock.advance(7201)
    scrub_all(repo)
    after_grace()
    assert stored() == set()
    assert all(not repo.context.kv.count(f"{repo.context.repo}/references/{shard:02x}", limit=1) for shard in range(64))
