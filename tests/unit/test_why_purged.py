"""`refstore why` of objects that a purge has given another content."""

from __future__ import annotations

from refstore.deletions.explain import explain_address, explain_path
from tests.purging import content_of, content_to_be, intend, rewrite
from tests.reaper_world import World
from tests.reaping import release_all


def test_every_address_of_a_purged_object_is_explained() -> None:
    repo = World().repo
    repo.upload("main", "a", b"all rows")
    repo.commit("main", "a")
    release_all(repo)
    identity = repo.stat("main", "a").address
    assert explain_address(repo.context, identity).purged is None
    first = content_of(rewrite(repo, "main", "a", b"fewer", run="run-1"))
    second = content_of(rewrite(repo, "main", "a", b"few", run="run-2"))
    intended = intend(repo, "main", "a", run="run-3")
    assert intended is not None
    told = {}
    for address in (identity, first, second, content_to_be(intended)):
        found = explain_address(repo.context, address)
        assert found.purged is not None
        assert (found.purged.identity, found.purged.content) == (identity, second)
        assert (found.naming is not None) == (address == identity)
        told[address] = (found.purged.role, found.purged.run)
    assert told == {
        identity: ("identity", "run-2"),
        first: ("backup", "run-2"),
        second: ("content", "run-2"),
        content_to_be(intended): ("attempt", "run-3"),
    }
    (version,) = explain_path(repo.context, "main", "a").versions
    assert version.address == identity
    repo.context.locations.restore(intended.identity, first, "back")
    found = explain_address(repo.context, second).purged
    assert found is not None
    assert (found.role, found.run) == ("trash", "back")
