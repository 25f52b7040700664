"""What has landed is told so, whatever fails behind it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from refstore.core.clock import Clock
from refstore.core.ids import CommitId
from refstore.core.safety import Safety
from refstore.errors import KVUnavailable, NothingToCommit, RefstoreError
from refstore.kv.base import Get, Op, Result, SetIf
from refstore.kv.memory import MemoryKV
from refstore.lake import Lake
from refstore.records import keys
from refstore.records.branch_records import StoredBranch
from refstore.records.encoding import decode
from tests.api.service import application
from tests.interrupted import Interrupted, lose_reply


def naming(op: Op) -> bool:
    return isinstance(op, SetIf) and op.key == keys.repository("landed")


def advancing(op: Op) -> bool:
    return isinstance(op, SetIf) and op.key.partition.endswith("/branches")


def test_a_commit_that_landed_is_told_so(clock: Clock) -> None:
    """Behind its landing come only the marker and the record's tidying, which whoever comes first does."""
    kv = Interrupted()
    repo = Lake(kv, "memory://landed", clock=clock, safety=Safety(grace_seconds=0)).create_repository("landed")
    repo.upload("main", "a", b"1")
    real = kv.execute
    landed: list[bool] = []

    def execute(ops: list[Op]) -> list[object]:
        if landed and landed.pop():
            lose_reply()
        before = repo_head()
        done = real(ops)
        if any(advancing(op) for op in ops) and repo_head() != before:
            landed.append(True)
        return done

    def repo_head() -> object:
        from refstore.kv.memory import MemoryKV

        plain = MemoryKV.execute
        value = plain(kv, [Get(keys.branch(repo.context.repo, "main"))])[0]
        from refstore.records.branch_records import StoredBranch
        from refstore.records.encoding import decode

        return decode(value, StoredBranch).head

    kv.execute = execute
    told: object = None
    try:
        told = repo.commit("main", "one").id
    except RefstoreError as error:
        told = error
    kv.execute = real
    head = repo.get_branch("main").head
    assert len(list(repo.log("main"))) == 2
    with pytest.raises(NothingToCommit):
        repo.commit("main", "one")
    assert told == head, f"told {told!r}"


@pytest.mark.parametrize("what", ["branch", "tag"])
def test_what_was_made_is_not_taken_back_because_a_store_failed(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Others have used it by then. That its commit was marked, which would take it back, nobody has seen."""
    kv = Interrupted()
    repo = Lake(kv, "memory://landed", clock=clock, safety=Safety(grace_seconds=0)).create_repository("landed")
    repo.upload("main", "a", b"1")
    head = repo.commit("main", "one").id
    mark = keys.mark(repo.context.repo, head)
    looks = iter(["before", "behind"])
    real = kv.execute

    def execute(ops: Sequence[Op]) -> list[Result]:
        if any(isinstance(op, Get) and op.key == mark for op in ops) and next(looks) == "behind":
            monkeypatch.undo()
            if what == "branch":
                repo.upload("new", "b", b"theirs")
            assert repo.read("new", "a") == b"1"
            lose_reply()
        return real(ops)

    monkeypatch.setattr(kv, "execute", execute)
    with pytest.raises(KVUnavailable):
        repo.create_branch("new", source="main") if what == "branch" else repo.create_tag("new", ref="main")
    assert {item.path for item in repo.list("new")} == ({"a", "b"} if what == "branch" else {"a"})


class DownBehindIt(MemoryKV):
    """A KV that nobody reaches any more once the branch that stood at `head` was moved."""

    head: CommitId | None = None
    down = False

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        if self.down:
            lose_reply()
        done = super().execute(ops)
        self.down = self.head is not None and any(
            isinstance(op, SetIf)
            and advancing(op)
            and isinstance(op.value, bytes)
            and decode(op.value, StoredBranch).head != self.head
            for op in ops
        )
        return done


@pytest.mark.parametrize(
    ("of", "body"),
    [
        ("branches/main/commits", {"message": "one", "metadata": {"k": "v"}}),
        ("branches/main/cherry-pick", {"ref": "other"}),
        ("branches/main/revert", {"ref": "main", "parent_number": 0}),
        ("refs/other/merge/main", {}),
    ],
)
def test_a_commit_that_landed_is_told_so_over_http(of: str, body: dict[str, object]) -> None:
    kv = DownBehindIt()
    with application(kv=kv) as asgi:
        repo = asgi.lake.create_repository("landed")
        repo.upload("main", "a", b"1")
        repo.commit("main", "before")
        repo.create_branch("other", source="main")
        repo.upload("other", "b", b"2")
        repo.commit("other", "theirs")
        if of.endswith("commits"):
            repo.upload("main", "c", b"3")
        kv.head = repo.get_branch("main").head
        told = asgi("POST", f"/repositories/landed/{of}", json=body)
        assert kv.down
        kv.head, kv.down = None, False
        assert told.status_code in (200, 201, 204), told.text
        if told.status_code == 201:
            assert told.json() == asgi("GET", "/repositories/landed/commits/main").json()


def test_a_restore_tells_the_path_that_it_made() -> None:
    """The object has a name on another branch, which is on its list first; the branch had it at another path, and no
    more.
    """
    with application() as asgi:
        repo = asgi.lake.create_repository("landed")
        repo.create_branch("other", source="main")
        entry = repo.upload("other", "x", b"1")
        repo.copy("other", "x", to_branch="main", to_path="y")
        repo.reset("main")
        told = asgi(
            "POST", "/repositories/landed/branches/main/objects/restore", json={"physical_address": entry.address}
        )
        assert told.status_code == 201
        assert [item.path for item in repo.list("main")] == [told.json()["path"]]


def test_a_restore_of_what_the_branch_has_tells_the_path_it_is_at() -> None:
    """The object has a name on another branch, which is on its list first, and another one on this branch."""
    with application() as asgi:
        repo = asgi.lake.create_repository("landed")
        repo.create_branch("other", source="main")
        entry = repo.upload("other", "x", b"1")
        repo.copy("other", "x", to_branch="main", to_path="y")
        told = asgi(
            "POST", "/repositories/landed/branches/main/objects/restore", json={"physical_address": entry.address}
        )
        assert (told.status_code, told.json()["path"]) == (200, "y")
        assert [item.path for item in repo.list("main")] == ["y"]
