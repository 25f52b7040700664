"""Several calls move, copy, delete or replace one object at once. Of those that move it one does, and the others take
their copies back; it is at one path afterwards. So are several of one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from refstore.core.clock import Clock
from refstore.core.ids import Path
from refstore.core.safety import Safety
from refstore.errors import Conflict, Contention, InvalidPath, ObjectNotFound, PathChanged, RefstoreError
from refstore.kv.base import Exchange, Get, Op, Result
from refstore.lake import Lake
from refstore.operations.move import Move
from refstore.repository import Repository
from tests.contents import contents
from tests.interrupted import Interrupted
from tests.reaping import release_all


def world(kv: Interrupted, clock: Clock) -> Repository:
    return Lake(kv, "memory://moves", clock=clock, safety=Safety(grace_seconds=0)).create_repository("moves")


COMMITTED = [pytest.param(False, id="staged"), pytest.param(True, id="committed")]


def at_second_half(monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
    """Between a move's copy and its deletion of the sources."""
    from refstore.operations import move

    real = move.delete_sources
    once = [then]

    def between(*args: Any) -> dict[Path, RefstoreError]:
        if once:
            once.pop()()
        return real(*args)

    monkeypatch.setattr(move, "delete_sources", between)


@pytest.mark.parametrize("committed", COMMITTED)
def test_of_four_moves_of_one_path_one_moves_it(clock: Clock, monkeypatch: pytest.MonkeyPatch, committed: bool) -> None:
    """All four have copied before the last deletes the source (the seed's third race)."""
    repo = world(Interrupted(), clock)
    repo.upload("main", "p", b"data")
    repo.upload("main", "q1", b"what q1 replaced")
    if committed:
        repo.commit("main", "one")
    told: list[str] = []

    def move(number: int) -> None:
        if number < 3:
            at_second_half(monkeypatch, partial(move, number + 1))
        try:
            repo.move("main", "p", to_path=f"q{number}")
            told.append(f"q{number} ok")
        except ObjectNotFound:
            told.append(f"q{number} not found")

    move(0)
    assert told == ["q3 ok", "q2 not found", "q1 not found", "q0 not found"]
    assert contents(repo) == {"q1": b"what q1 replaced", "q3": b"data"}
    repo.delete_many("main", ["q3"])
    release_all(repo)
    assert contents(repo) == {"q1": b"what q1 replaced"}


@pytest.mark.parametrize("committed", COMMITTED)
@pytest.mark.parametrize(
    ("act", "error", "then"),
    [
        pytest.param(lambda r: r.delete_many("main", ["p"]), ObjectNotFound, {}, id="delete"),
        pytest.param(lambda r: r.upload("main", "p", b"new"), PathChanged, {"p": b"new"}, id="overwrite"),
        pytest.param(
            lambda r: r.copy("main", "q", to_branch="main", to_path="p"), PathChanged, {"p": b"data"}, id="copy back"
        ),
        pytest.param(lambda r: r.move("main", "q", to_path="p"), PathChanged, {"p": b"data"}, id="move back"),
    ],
)
def test_a_move_whose_source_others_took_takes_its_copy_back(
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[Repository], object],
    error: type[RefstoreError],
    then: dict[str, bytes],
    committed: bool,
) -> None:
    repo = world(Interrupted(), clock)
    repo.upload("main", "p", b"data")
    if committed:
        repo.commit("main", "one")
    at_second_half(monkeypatch, lambda: act(repo))
    with pytest.raises(error):
        repo.move("main", "p", to_path="q")
    assert contents(repo) == then


def test_a_move_whose_source_was_reset_meanwhile_takes_its_copy_back(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = world(Interrupted(), clock)
    repo.upload("main", "p", b"old")
    repo.commit("main", "one")
    repo.upload("main", "p", b"new")
    at_second_half(monkeypatch, lambda: repo.reset("main", path="p"))
    with pytest.raises(PathChanged):
        repo.move("main", "p", to_path="q")
    assert contents(repo) == {"p": b"old"}


def test_what_a_commit_has_of_a_move_that_lost_stays_and_is_told(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy may be in the commit: nothing is taken back, and the caller is told where it is."""
    repo = world(Interrupted(), clock)
    repo.upload("main", "p", b"data")

    def others() -> None:
        repo.move("main", "p", to_path="r")
        repo.commit("main", "both")

    at_second_half(monkeypatch, others)
    with pytest.raises(Contention, match="its copy stays at 'q'"):
        repo.move("main", "p", to_path="q")
    assert contents(repo) == {"q": b"data", "r": b"data"}


def test_a_commit_in_between_does_not_stop_a_move(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = world(Interrupted(), clock)
    repo.upload("main", "p", b"data")
    at_second_half(monkeypatch, lambda: repo.commit("main", "one"))
    repo.move("main", "p", to_path="q")
    assert contents(repo) == {"q": b"data"}


def test_a_path_is_moved_once_in_a_call(clock: Clock) -> None:
    repo = world(Interrupted(), clock)
    repo.upload("main", "p", b"data")
    with pytest.raises(InvalidPath, match="moved twice"):
        repo.move_many("main", [Move("p", "q"), Move("p", "r")])
    assert contents(repo) == {"p": b"data"}


@pytest.mark.parametrize(
    ("moves", "then"),
    [
        pytest.param(
            [("a", "b"), ("b", "c")],
            {"c": b"B", "x": b"X", "elsewhere": b"A"},
            id="its goal is moved on, and nothing comes back",
        ),
        pytest.param([("x", "y"), ("a", "b")], {"y": b"X", "b": b"B", "elsewhere": b"A"}, id="the others are moved"),
    ],
)
def test_a_pair_that_lost_is_taken_back_alone(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, moves: list[tuple[str, str]], then: dict[str, bytes]
) -> None:
    repo = world(Interrupted(), clock)
    for path in "abx":
        repo.upload("main", path, path.upper().encode())
    at_second_half(monkeypatch, lambda: repo.move("main", "a", to_path="elsewhere"))
    with pytest.raises(ObjectNotFound):
        repo.move_many("main", [Move(*pair) for pair in moves])
    assert contents(repo) == then


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
    repo.create_branch("other", source="main")
    for path in ("p", "r"):
        repo.upload("main", path, b"old")
    if committed:
        repo.commit("main", "one")
    at_second_half(monkeypatch, lambda: repo.upload("main", "p", b"new"))
    with pytest.raises(PathChanged):
        repo.move_many("main", [Move("p", "p"), Move("r", "s")], to_branch="other")
    assert contents(repo) == {"p": b"new"}
    assert repo.read("other", "s") == b"old"
    assert [item.path for item in repo.list("other")] == ["s"]
