"""With `safety.copy_linked` a link copies what was written, because the address's URL writes there until it expires."""

from __future__ import annotations

import pytest

from refstore.core.safety import Safety
from refstore.errors import AlreadyExists, AlreadyLinked, Gone, InvalidPath, InvalidSettings, KVUnavailable
from refstore.kv.base import Exchange
from refstore.lake import Lake
from refstore.operations.upload import LINKED_AS_COPY_CAUSE, IssuedAddress, Link
from refstore.public_types import stored_entry
from refstore.records.reference_records import Deleting, Issued
from refstore.repository import Repository
from tests.contents import blobs
from tests.interrupted import Interrupted, lose_reply
from tests.kit.clock import FakeClock
from tests.reaping import delete_due, release_all, scrub_all

COPYING = Safety(grace_seconds=0, copy_linked="always")


@pytest.fixture
def kv() -> Interrupted:
    return Interrupted(before=lambda op: isinstance(op, Exchange) and "/staging/" in op.key.partition)


@pytest.fixture
def repo(kv: Interrupted, clock: FakeClock) -> Repository:
    return Lake(kv, "memory://copied", clock=clock, safety=COPYING).create_repository("copied")


def written(repo: Repository, path: str = "a", body: bytes = b"right") -> IssuedAddress:
    issued = repo.issue("main", path)
    repo.context.objects.put(issued.address, body)
    return issued


def reap(repo: Repository) -> None:
    release_all(repo)
    scrub_all(repo)
    delete_due(repo)


def test_what_is_linked_is_a_copy_and_the_address_goes_when_nobody_can_write_there(
    repo: Repository, clock: FakeClock
) -> None:
    issued = written(repo)
    entry = repo.link("main", "a", issued.token, size_bytes=5, checksum="theirs")
    assert entry.address != issued.address
    assert (entry.size_bytes, entry.checksum, stored_entry(entry).reference_id) == (5, "theirs", "")
    repo.commit("main", "linked")
    repo.context.objects.put(issued.address, b"wrong")
    assert repo.read("main", "a") == b"right"
    (record,) = repo.context.references.get_many([issued.address])
    assert isinstance(record, Deleting)
    assert record.cause == LINKED_AS_COPY_CAUSE
    reap(repo)
    assert blobs(repo) == sorted([issued.address, entry.address]), "its URL may write there still"
    clock.advance(COPYING.issue_seconds + 1)
    reap(repo)
    assert blobs(repo) == [entry.address]
    assert repo.read("main", "a") == b"right"


def test_an_address_is_linked_once(repo: Repository) -> None:
    issued = written(repo)
    repo.link("main", "a", issued.token)
    for _ in range(2):
        with pytest.raises(AlreadyLinked):
            repo.link("main", "a", issued.token)
    assert [item.path for item in repo.list("main")] == ["a"]


def test_what_was_linked_cannot_be_restored(repo: Repository) -> None:
    issued = written(repo)
    repo.link("main", "a", issued.token)
    with pytest.raises(Gone):
        repo.restore(issued.address, to="main", path="back")


@pytest.mark.parametrize(
    ("link", "error"),
    [
        (lambda issued: Link(path="a", token=issued.token, size_bytes=6), InvalidPath),
        (lambda issued: Link(path="a", token=issued.token, if_absent=True), AlreadyExists),
    ],
)
def test_what_is_refused_leaves_the_address_to_be_linked(repo: Repository, link, error) -> None:
    repo.upload("main", "a", b"there")
    issued = written(repo)
    with pytest.raises(error):
        repo.link_many("main", [link(issued)])
    (record,) = repo.context.references.get_many([issued.address])
    assert isinstance(record, Issued)
    repo.link("main", "a", issued.token)
    assert repo.read("main", "a") == b"right"


def test_several_are_copied_in_one_call_and_each_is_answered(repo: Repository) -> None:
    issued = [written(repo, path, path.encode()) for path in "abc"]
    repo.link("main", "b", issued[1].token)
    outcomes = repo.link_each("main", [Link(path=each.path, token=each.token) for each in issued])
    assert [type(each).__name__ for each in outcomes] == ["Entry", "AlreadyLinked", "Entry"]
    assert [repo.read("main", path) for path in "abc"] == [b"a", b"b", b"c"]
    reap(repo)
    assert len(blobs(repo)) == 3 + len(issued), "the copy that was refused is not left"


def test_a_link_that_died_before_its_entry_leaves_nothing_behind(
    repo: Repository, kv: Interrupted, clock: FakeClock
) -> None:
    issued = written(repo)
    kv.then = lose_reply
    with pytest.raises(KVUnavailable):
        repo.link("main", "a", issued.token)
    with pytest.raises(AlreadyLinked):
        repo.link("main", "a", issued.token)
    assert list(repo.list("main")) == []
    repo.reset("main")
    clock.advance(100_000)
    reap(repo)
    reap(repo)
    assert blobs(repo) == []


def test_a_wrong_value_of_the_setting_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="copy_linked is 'yes'; it must be one of never, always"):
        Safety(copy_linked="yes")  # type: ignore[arg-type]  # as from a file of settings
