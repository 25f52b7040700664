"""An issued address is linked once (rule 10), however the same link comes again: while another write takes its place,
while a commit is under way, beside itself, and when the first call did not come to its end.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from refstore.core.clock import Clock
from refstore.core.safety import Safety
from refstore.errors import AlreadyLinked, KVUnavailable
from refstore.kv.base import Op, SetIf
from refstore.kv.retries import RetryingKV
from refstore.lake import Lake
from refstore.operations.upload import IssuedAddress, Link
from refstore.repository import Repository
from tests.contents import contents
from tests.interrupted import Interrupted, is_entry_write, lose_reply, seal
from tests.kit.clock import FakeClock
from tests.reaping import delete_due, release_all, scrub_all

REPLACED = [
    pytest.param(lambda repo: repo.upload("main", "a", b"newer"), {"a": b"newer"}, id="overwritten"),
    pytest.param(lambda repo: repo.delete("main", "a"), {}, id="deleted"),
]


def given(repo: Repository, body: bytes = b"theirs") -> IssuedAddress:
    """An issued address with data in it."""
    issued = repo.issue("main", "a")
    repo.context.objects.put(issued.address, body)
    return issued


@pytest.mark.parametrize(("replace", "left"), REPLACED)
def test_what_took_its_place_stays_while_a_commit_is_under_way(
    repo: Repository, replace: Callable[[Repository], object], left: dict[str, bytes]
) -> None:
    """Its own reference is still listed then: the commit may have seen its entry."""
    issued = given(repo)
    repo.link("main", "a", issued.token)
    seal(repo)
    replace(repo)
    with pytest.raises(AlreadyLinked):
        repo.link("main", "a", issued.token)
    assert contents(repo) == left


def linking(op: Op) -> bool:
    return isinstance(op, SetIf) and "/references/" in op.key.partition


def world(kv: Interrupted, clock: Clock, *, retrying: bool) -> Repository:
    lake = Lake(
        RetryingKV(kv, clock=clock) if retrying else kv, "memory://once", clock=clock, safety=Safety(grace_seconds=0)
    )
    return lake.create_repository("once")


def test_of_two_in_one_millisecond_one_wins_although_a_reply_is_lost(clock: Clock) -> None:
    """The one that was too late looks what is there, and must know it from its own."""
    kv = Interrupted(before=linking, behind=linking)
    repo = world(kv, clock, retrying=True)
    issued = given(repo)

    def first() -> None:
        repo.link("main", "a", issued.token)
        kv.then = lose_reply

    kv.then = first
    with pytest.raises(AlreadyLinked):
        repo.link("main", "a", issued.token, metadata={"by": "the second"})
    assert contents(repo) == {"a": b"theirs"}
    assert repo.stat("main", "a").metadata == {}


def test_its_own_landed_reply_is_recognised(clock: Clock) -> None:
    kv = Interrupted(behind=linking)
    repo = world(kv, clock, retrying=True)
    issued = given(repo)
    kv.then = lose_reply
    repo.link("main", "a", issued.token)
    assert contents(repo) == {"a": b"theirs"}


def test_a_link_that_died_before_its_entry_is_refused_and_a_new_address_links(clock: FakeClock) -> None:
    kv = Interrupted(before=is_entry_write)
    repo = world(kv, clock, retrying=False)
    used = given(repo, b"lost")
    kv.then = lose_reply
    with pytest.raises(KVUnavailable):
        repo.link("main", "a", used.token)
    with pytest.raises(AlreadyLinked, match="look at the path"):
        repo.link("main", "a", used.token)
    assert contents(repo) == {}
    again = given(repo, b"again")
    assert [type(done).__name__ for done in repo.link_each("main", [Link(path="a", token=again.token)])] == ["Entry"]
    repo.commit("main", "again")
    clock.advance(100_000)
    release_all(repo)
    scrub_all(repo)
    delete_due(repo)
    assert contents(repo) == {"a": b"again"}
    assert [info.key for info in repo.context.objects.list("data/")] == [again.address], (
        "what it had put there is not left"
    )
