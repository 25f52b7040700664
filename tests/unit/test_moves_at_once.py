"""Two calls move, or copy, one object between two paths at once: it is at one of them afterwards. So are several of one
call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from refstore.core.clock import Clock
from refstore.core.safety import Safety
from refstore.errors import Conflict, Contention
from refstore.kv.base import Exchange, Get, Op, Result, SetIf
from refstore.lake import Lake
from refstore.operations.copy import Move
from refstore.repository import Repository
from refstore.versioning.staging import TOMBSTONE
from tests.contents import contents
from tests.interrupted import Interrupted
from tests.reaping import release_all


def world(kv: Interrupted, clock: Clock) -> Repository:
    return Lake(kv, "memory://moves", clock=clock, safety=Safety(grace_seconds=0)).create_repository("moves")


def taking_away(op: Op) -> bool:
    """A move's second half: the tombstone over its source."""
    return isinstance(op, SetIf) and op.value == TOMBSTONE


COMMITTED = [pytest.param(False, id="staged"), pytest.param(True, id="committed")]


def at_second_half(monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
    """Between a move's copy and its deletion of the sources."""
    from refstore.operations import copy

    real = copy.delete_sources
    once = [then]

    def between(*args: object) -> None:
        if once:
            once.pop()()
        real(*args)

    monkeypatch.setattr(copy, "delete_sources", between)


@pytest.mark.parametrize("committed", COMMITTED)
def test_moved_there_and_back_it_is_somewhere(clock: Clock, monkeypatch: pytest.MonkeyPatch, committed: bool) -> None:
    repo = world(Interrupted(), clock)
    repo.upload("main", "p", b"data")
    if committed:
        repo.commit("main", "one")
    at_second_half(monkeypatch, lambda: repo.move("main", "q", "p"))
    repo.move("main", "p", "q")
    assert contents(repo) != {}, "both moves were told ok; the object has no name any more"


@pytest.mark.parametrize("committed", COMMITTED)
def test_what_was_copied_back_over_the_source_stays(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    repo = world(Interrupted(), clock)
    repo.upload("main", "p", b"data")
    if committed:
        repo.commit("main", "one")
    at_second_half(monkeypatch, lambda: repo.copy("main", "q", "main", "p"))
    repo.move("main", "p", "q")
    assert contents(repo) == {"p": b"data", "q": b"data"}


def holding(op: Op) -> bool:
    """The look at the references that the copies are to be put on."""
    return isinstance(op, Get) and "/references/" in op.key.partition


@pytest.mark.parametrize(
    "then", [pytest.param({"b": b"A", "c": b"B"}, id="row"), pytest.param({"b": b"A", "a": b"B"}, id="swap")]
)
@pytest.mark.parametrize("committed", ["a", "b"])
def test_moves_in_a_row_lose_nothing(clock: Clock, committed: str, then: dict[str, bytes]) -> None:
    """The one whose source was committed and reaped meanwhile starts over; what goes over its source waits for it."""
    kv = Interrupted(before=holding)
    repo = world(kv, clock)
    first, second = (("a", b"A"), ("b", b"B")) if committed == "a" else (("b", b"B"), ("a", b"A"))
    repo.upload("main", *first)
    repo.commit("main", "one")
    release_all(repo)
    repo.upload("main", *second)

    def others() -> None:
        repo.commit("main", "two")
        release_all(repo)

    kv.then = others
    repo.move_many("main", [Move("a", "b"), Move("b", "c" if "c" in then else "a")])
    assert kv.then is None
    assert contents(repo) == then


def test_a_long_row_of_moves_waits_for_its_last(clock: Clock) -> None:
    kv = Interrupted(before=holding)
    repo = world(kv, clock)
    for number in range(40):
        repo.upload("main", f"{number:02}", str(number).encode())
        if number == 38:
            repo.commit("main", "all but the last")
            release_all(repo)

    def others() -> None:
        repo.commit("main", "the last")
        release_all(repo)

    kv.then = others
    repo.move_many("main", [Move(f"{number:02}", f"{number + 1:02}") for number in range(40)])
    assert contents(repo) == {f"{number + 1:02}": str(number).encode() for number in range(40)}


def test_what_a_commit_took_of_moves_in_a_row_is_not_moved_on(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Committed and reaped between the entries and the look at the branch: at b is what came from a, and it is not what
    is to go to c.
    """
    kv = Interrupted()
    repo = world(kv, clock)
    repo.upload("main", "a", b"A")
    repo.upload("main", "b", b"B")
    real = kv.execute

    def execute(ops: Sequence[Op]) -> list[Result]:
        if not any(isinstance(op, Exchange) for op in ops):
            return real(ops)
        monkeypatch.undo()
        done = real(ops[:-1])
        repo.commit("main", "both")
        release_all(repo)
        return [*done, *real(ops[-1:])]

    monkeypatch.setattr(kv, "execute", execute)
    with pytest.raises(Conflict) as told:
        repo.move_many("main", [Move("a", "b"), Move("b", "c")])
    assert not isinstance(told.value, Contention), "made again, it would move what came from a on to c"
    assert contents(repo) == {"a": b"A", "b": b"A", "c": b"B"}


@pytest.mark.parametrize("committed", COMMITTED)
def test_what_was_written_over_the_source_of_a_move_to_another_branch_stays(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    """As `refstore mv` makes it."""
    repo = world(Interrupted(), clock)
    repo.create_branch("other", "main")
    for path in ("p", "r"):
        repo.upload("main", path, b"old")
    if committed:
        repo.commit("main", "one")
    at_second_half(monkeypatch, lambda: repo.upload("main", "p", b"new"))
    repo.move_many("main", [Move("p", "p"), Move("r", "s")], to="other")
    assert contents(repo) == {"p": b"new"}
    assert [repo.read("other", path) for path in ("p", "s")] == [b"old", b"old"]
