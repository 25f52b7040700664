"""`refstore why` of objects that a purge has given another content."""

from __future__ import annotations

import pytest

from refstore.deletion_history.explain import explain_address, explain_path
from refstore.operations import address_info
from refstore.operations.address_info import AddressState
from tests.purging import content_of, content_to_be, intend, rewrite
from tests.reaper_world import World
from tests.reaping import release_all


def test_every_address_of_a_purged_object_is_explained() -> None:
    repo = World().repo
    repo.upload("main", "a", b"all rows")
    repo.commit("main", "a")
    release_all(repo)
    identity = repo.stat("main", "a").address
    assert explain_address(repo.context, identity).purge_role is None
    first = content_of(rewrite(repo, "main", "a", b"fewer", run="run-1"))
    second = content_of(rewrite(repo, "main", "a", b"few", run="run-2"))
    intended = intend(repo, "main", "a", run="run-3")
    assert intended is not None
    told = {}
    for address in (identity, first, second, content_to_be(intended)):
        found = explain_address(repo.context, address)
        assert found.purge_role is not None
        assert (found.purge_role.identity, found.purge_role.content) == (identity, second)
        assert (found.naming is not None) == (address == identity)
        told[address] = (found.purge_role.role, found.purge_role.run)
    assert told == {
        identity: ("identity", "run-2"),
        first: ("backup", "run-2"),
        second: ("content", "run-2"),
        content_to_be(intended): ("attempt", "run-3"),
    }
    (version,) = explain_path(repo.context, "main", "a").versions
    assert version.address == identity
    repo.context.locations.restore(intended.identity, first, "back")
    found = explain_address(repo.context, second).purge_role
    assert found is not None
    assert (found.role, found.run) == ("trash", "back")


def test_what_the_reaper_deleted_with_its_object_is_told_and_is_at_no_path() -> None:
    world = World()
    world.upload("main", "a")
    repo = world.repo
    identity = repo.stat("main", "a").address
    content = content_of(rewrite(repo, "main", "a", b"fewer"))
    repo.reset("main")
    world.run_past_grace()
    (deletion,) = explain_address(repo.context, content).deletions
    assert (deletion.by, deletion.outcome) == ("reaper", "deleted")
    assert deletion.cause == f"content of the deleted object {identity}"
    assert deletion.rule == "it went with its object, which nothing named any more"
    (deletion,) = explain_address(repo.context, identity).deletions
    assert (deletion.by, deletion.cause) == ("reaper", "reset")
    assert [version.address for version in explain_path(repo.context, "main", "a").versions] == [identity]


def test_the_references_of_a_content_say_what_it_is_as_far_as_records_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    repo = world.repo
    world.upload("main", *(f"{number:02d}" for number in range(9)))
    contents = [content_of(rewrite(repo, "main", f"{number:02d}", b"fewer")) for number in range(9)]
    assert {repo.address(content).state for content in contents} == {AddressState.CONTENT}
    monkeypatch.setattr(address_info, "LOCATIONS_MAX", 4)
    states = [repo.address(content).state for content in contents]
    assert sorted(state.name for state in states) == ["CONTENT"] * 4 + ["UNKNOWN"] * 5
    assert {repo.why(content).info.state for content in contents} == {AddressState.CONTENT}
