"""An upload that took so long that its token was over before its entry (rule 11) takes back what it wrote, and no more
than that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from refstore.errors import Contention, RefstoreError
from refstore.operations.upload import Upload
from refstore.repository import Repository
from tests.contents import blobs
from tests.kit.clock import FakeClock
from tests.reaping import delete_due, release_all, scrub_all


@pytest.fixture
def reap(repo: Repository, clock: FakeClock) -> Callable[[], None]:
    """Everything that the reaper does but for hard deletion; what is left over is old enough for it."""

    def run() -> None:
        clock.advance(10_000)
        release_all(repo)
        scrub_all(repo)

    return run


def slowly(*meanwhile: Callable[[], object]) -> Iterator[bytes]:
    yield b"long"
    for happens in meanwhile:
        happens()


def test_what_was_restored_meanwhile_stays(repo: Repository, reap: Callable[[], None], clock: FakeClock) -> None:
    """The first of two is there, and in its grace window, while the second is still on its way."""
    restored: list[str] = []

    def restore() -> None:
        (address,) = blobs(repo)
        assert address in [given.address for given in repo.list_trash()]
        repo.restore(address, to="main", path="kept")
        restored.append(address)

    uploads = [
        Upload(path="a", body=b"short"),
        Upload(path="b", body=slowly(lambda: repo.reset("main"), reap, restore)),
    ]
    with pytest.raises(Contention, match="upload again"):
        repo.upload_many("main", uploads)
    assert repo.read("main", "kept") == b"short"
    assert [change.path for change in repo.diff("main")] == ["kept"]
    reap()
    clock.advance(100_000)
    delete_due(repo)
    assert blobs(repo) == restored, "what nobody restored is gone"


def test_what_nobody_restored_goes_after_its_grace(
    repo: Repository, reap: Callable[[], None], clock: FakeClock
) -> None:
    with pytest.raises(Contention):
        repo.upload("main", "a", slowly(lambda: repo.reset("main"), reap))
    (address,) = blobs(repo)
    assert [given.address for given in repo.list_trash()] == [address]
    clock.advance(100_000)
    delete_due(repo)
    assert blobs(repo) == []


def test_what_the_reaper_was_through_with_before_it_came_is_left_to_the_offline_job(
    repo: Repository, reap: Callable[[], None], clock: FakeClock
) -> None:
    def delete() -> None:
        clock.advance(100_000)
        delete_due(repo)

    with pytest.raises(Contention):
        repo.upload("main", "a", slowly(lambda: repo.reset("main"), reap, delete))
    assert len(blobs(repo)) == 1, "no key tells it from one that was committed: leak, never lose"


def test_what_was_restored_and_committed_meanwhile_stays(repo: Repository, reap: Callable[[], None]) -> None:
    """Its reference key is gone then, as that of an address that the reaper is through with is."""

    def restore() -> None:
        (address,) = blobs(repo)
        with contextlib.suppress(RefstoreError):
            repo.restore(address, to="main", path="kept")
            repo.commit("main", "kept")
        reap()

    uploads = [
        Upload(path="a", body=b"short"),
        Upload(path="b", body=slowly(lambda: repo.reset("main"), reap, restore)),
    ]
    with pytest.raises(Contention, match="upload again"):
        repo.upload_many("main", uploads)
    assert [repo.read("main", item.path) for item in repo.list("main")] in ([], [b"short"])
