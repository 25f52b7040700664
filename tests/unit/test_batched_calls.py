"""Calls that were made as one: what becomes of one item is told to its own caller, and is done once."""

from __future__ import annotations

import asyncio

import pytest

from refstore.configuration.settings import ApiSettings
from refstore.core.clock import Clock
from refstore.core.safety import Safety
from refstore.errors import Contention, RefstoreError
from refstore.lake import Lake
from refstore.operations.upload import Link, Upload
from refstore.public_types import Entry
from refstore.repository import Repository
from refstore_http.service import Service
from tests.interrupted import Interrupted, is_entry_write, seal
from tests.reaping import release_all


def given(clock: Clock) -> tuple[Interrupted, Repository]:
    kv = Interrupted(before=is_entry_write, behind=is_entry_write)
    lake = Lake(kv, "memory://together", clock=clock, safety=Safety(grace_seconds=0))
    return kv, lake.create_repository("together")


def commit_takes_both_and_a_is_deleted(kv: Interrupted, repo: Repository) -> None:
    """A commit seals before the entries fall, takes them and is processed; then somebody deletes `a`. All before the
    writer looks again.
    """

    def behind() -> None:
        repo.commit("main", "takes both")
        release_all(repo)
        repo.delete("main", "a")

    def before() -> None:
        seal(repo)
        kv.then = behind

    kv.then = before


def test_a_link_that_stands_is_not_told_of_anothers(clock: Clock) -> None:
    kv, repo = given(clock)
    links: list[Link] = []
    for path in ("a", "b"):
        issued = repo.issue("main", path)
        repo.context.objects.put(issued.address, path.encode())
        links.append(Link(path=path, token=issued.token))
    commit_takes_both_and_a_is_deleted(kv, repo)
    a, b = repo.link_each("main", links)
    assert isinstance(a, Contention)
    assert isinstance(b, Entry)


def _together(repo: Repository, kv: Interrupted, clock: Clock, paths: str) -> list[object]:
    async def both() -> list[object]:
        service = Service(repo_lake(kv, clock), ApiSettings())
        commit_takes_both_and_a_is_deleted(kv, repo)
        try:
            return await asyncio.gather(
                *(service.upload("together", "main", Upload(path=path, body=[path.encode()])) for path in paths),
                return_exceptions=True,
            )
        finally:
            service.close()

    return asyncio.run(both())


def repo_lake(kv: Interrupted, clock: Clock) -> Lake:
    return Lake(kv, "memory://together", clock=clock, safety=Safety(grace_seconds=0))


@pytest.mark.parametrize("paths", ["a", "ab"])
def test_an_upload_that_was_committed_and_deleted_does_not_come_back(clock: Clock, paths: str) -> None:
    """Alone its caller hears that it is not there; in company it is made a second time, over the deletion."""
    kv, repo = given(clock)
    told = _together(repo, kv, clock, paths)
    assert isinstance(told[0], RefstoreError), told
    assert "a" not in [item.path for item in repo.list("main")]
