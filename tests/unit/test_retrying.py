"""`RetryingKV`: what an unknown outcome turns into, op by op, and that it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest

from refstore.errors import DeadlineExceeded, KVRefused, KVUnavailable, OutcomeUnknown
from refstore.kv.base import (
    ABSENT,
    KV,
    POSITIONS,
    SCAN_LIMIT,
    Absent,
    Delete,
    Exchange,
    Get,
    Key,
    Op,
    Result,
    Server,
    Set,
    SetIf,
)
from refstore.kv.memory import MemoryKV
from refstore.kv.retries import WAIT_FIRST_SECONDS, WAIT_MAX_SECONDS, RetryingKV
from tests.kit.clock import FakeClock
from tests.kit.logged_events import collecting_events

A, B, C = Key("p", "a"), Key("p", "b"), Key("p", "c")


class FixedRandom(Random):
    value = 0.5

    def random(self) -> float:
        return self.value


class Faulty(KV):
    """Performs the first `landed[i]` ops of the i-th call, then loses the reply; None: the call succeeds. Afterwards
    all succeed.

    -1: says that nothing was done.
    """

    def __init__(self, *landed: int | None, then: Callable[[KV], None] | None = None) -> None:
        self.inner = MemoryKV()
        self.landed = list(landed)
        self.calls: list[list[Op]] = []
        self.then = then
        """What somebody else does right after the first fault."""
        self.closed = False

    def execute(self, ops: Sequence[Op]) -> list[Result]:
        self.calls.append(list(ops))
        landed = self.landed.pop(0) if self.landed else None
        if landed is None:
            return self.inner.execute(ops)
        if landed == -1:
            raise KVUnavailable("not reached", nothing_done=True)
        self.inner.execute(ops[:landed])
        self._other()
        raise KVUnavailable("the reply was lost")

    def scan(
        self, partition: str, *, prefix: str = "", after: str = "", limit: int = SCAN_LIMIT
    ) -> list[tuple[str, bytes]]:
        self._fail()
        return self.inner.scan(partition, prefix=prefix, after=after, limit=limit)

    def servers(self) -> list[Server]:
        self._fail()
        return self.inner.servers()

    def close(self) -> None:
        self.closed = True

    def _fail(self) -> None:
        if self.landed and self.landed.pop(0) is not None:
            raise KVUnavailable("down")

    def _other(self) -> None:
        if self.then is not None:
            self.then(self.inner)
            self.then = None


def retrying(
    kv: KV, attempts: int = 8, check: Callable[[], None] | None = None, clock: FakeClock | None = None
) -> RetryingKV:
    return RetryingKV(kv, attempts=attempts, clock=clock or FakeClock(), random=FixedRandom(), check=check)


# ---- one op, landed or not


@pytest.mark.parametrize("landed", [0, 1])
def test_set_get_and_delete_are_simply_done_again(landed: int) -> None:
    faulty = Faulty(landed, landed, landed)
    kv = retrying(faulty)
    kv.set(A, b"1")
    assert kv.get(A) == b"1"
    faulty.landed = [landed]
    kv.delete(A)
    assert kv.get(A) is ABSENT


@pytest.mark.parametrize("landed", [0, 1])
@pytest.mark.parametrize("value", [b"n", ABSENT])
def test_a_set_if_recognises_its_own_landed_write(landed: int, value: bytes | Absent) -> None:
    faulty = Faulty(landed)
    faulty.inner.set(A, b"o")
    assert retrying(faulty).set_if(A, b"o", value) is True
    assert faulty.inner.get(A) == value


def test_a_creation_that_landed_is_recognised() -> None:
    assert retrying(Faulty(1)).set_if(A, ABSENT, b"n") is True


def test_a_creation_that_is_not_there_is_never_done_again() -> None:
    """It may have landed and been used up by others: creating it again would revive what is spent."""
    faulty = Faulty(1, then=lambda kv: kv.delete(A))
    with pytest.raises(OutcomeUnknown, match="may have been created and removed"):
        retrying(faulty).set_if(A, ABSENT, b"n")
    assert faulty.inner.get(A) is ABSENT
    assert [type(op) for call in faulty.calls for op in call] == [SetIf, Get]


def test_a_creation_that_another_made_is_lost() -> None:
    faulty = Faulty(0, then=lambda kv: kv.set(A, b"theirs"))
    assert retrying(faulty).set_if(A, ABSENT, b"n") is False


@pytest.mark.parametrize("landed", [0, 1])
def test_a_set_if_that_failed_fails_again(landed: int) -> None:
    faulty = Faulty(landed)
    faulty.inner.set(A, b"other")
    assert retrying(faulty).set_if(A, b"o", b"n") is False
    assert faulty.inner.get(A) == b"other"


@pytest.mark.parametrize("faults", [2, 3, 6])
def test_a_set_if_whose_every_reply_is_lost_but_the_last(faults: int) -> None:
    """Each retry lands too, or finds itself landed."""
    faulty = Faulty(*[2] * faults)
    faulty.inner.set(A, b"o")
    assert retrying(faulty).set_if(A, b"o", b"n") is True


def test_a_first_attempt_that_lands_late_is_recognised() -> None:
    """The server was stalled: it performs the first request just before the second, after any look that came before
    both.
    """

    class LandsLate(Faulty):
        def execute(self, ops: Sequence[Op]) -> list[Result]:
            if self.calls and isinstance(ops[0], SetIf):
                self.inner.execute(self.calls[0])
            return super().execute(ops)

    faulty = LandsLate(0)
    faulty.inner.set(A, b"o")
    assert retrying(faulty).set_if(A, b"o", b"n") is True


def test_a_set_if_that_landed_and_was_overwritten_counts_as_failed() -> None:
    """As it would had the other come first; values that matter carry a write id."""
    faulty = Faulty(1, then=lambda kv: kv.set(A, b"other"))
    assert retrying(faulty).set_if(A, ABSENT, b"n") is False
    assert faulty.inner.get(A) == b"other"


@pytest.mark.parametrize("ops", [[Get(A)], [Exchange(A, b"1")], [SetIf(A, ABSENT, b"1")]])
def test_a_kv_that_refuses_this_process_is_asked_once(ops: list[Op]) -> None:
    class Refusing(MemoryKV):
        asked = 0

        def execute(self, ops: Sequence[Op]) -> list[Result]:
            self.asked += 1
            raise KVRefused("the password is wrong")

    refusing = Refusing()
    with pytest.raises(KVRefused):
        retrying(refusing).execute(ops)
    assert refusing.asked == 1


@pytest.mark.parametrize("landed", [0, 1])
def test_an_exchange_is_never_done_again(landed: int) -> None:
    """Somebody may have replaced it meanwhile and let go what they replaced: only the caller can go on, with a new
    value.
    """
    faulty = Faulty(landed, then=lambda kv: kv.set(A, b"theirs"))
    with pytest.raises(OutcomeUnknown, match="may have landed"):
        retrying(faulty).exchange(A, b"mine")
    assert len(faulty.calls) == 1
    assert faulty.inner.get(A) == b"theirs"


@pytest.mark.parametrize("expected", [ABSENT, b"old"])
@pytest.mark.parametrize("landed", [0, 1])
def test_a_set_if_that_may_be_made_once_is_never_done_again(landed: int, expected: bytes | Absent) -> None:
    kv = Faulty(landed)
    if expected is not ABSENT:
        kv.inner.set(A, expected)
    with pytest.raises(OutcomeUnknown):
        RetryingKV(kv, clock=FakeClock(), random=FixedRandom()).set_if(A, expected, b"new", once=True)
    assert len(kv.calls) == 1


def test_a_batch_with_an_exchange_is_not_done_again_either() -> None:
    faulty = Faulty(2)
    with pytest.raises(OutcomeUnknown):
        retrying(faulty).execute([Set(B, b"1"), Exchange(A, b"1"), Get(C)])
    assert len(faulty.calls) == 1


@pytest.mark.parametrize(
    "op", [Exchange(A, b"n"), SetIf(A, ABSENT, b"n"), SetIf(A, b"o", b"n"), Set(A, b"n"), Delete(A), Get(A)]
)
def test_what_certainly_was_not_done_is_done(op: Op) -> None:
    """No connection was had, or no lock: the same batch again, whatever is in it."""
    faulty = Faulty(-1, -1, -1)
    expected = MemoryKV()
    if isinstance(op, SetIf) and op.expected is not ABSENT:
        for kv in (faulty.inner, expected):
            kv.set(A, op.expected)
    assert retrying(faulty).execute([op, Get(B)]) == expected.execute([op, Get(B)])
    assert faulty.calls == [[op, Get(B)]] * 4


@pytest.mark.parametrize("op", [Exchange(A, b"n"), SetIf(A, ABSENT, b"n")])
def test_certainty_ends_with_the_first_attempt_that_may_have_landed(op: Op) -> None:
    faulty = Faulty(-1, 0, -1)
    with pytest.raises(OutcomeUnknown):
        retrying(faulty).execute([op])
    assert faulty.inner.get(A) is ABSENT
    faulty = Faulty(0, -1, -1)
    with pytest.raises(OutcomeUnknown):
        retrying(faulty).execute([op])
    assert faulty.inner.get(A) is ABSENT


# ---- batches


@pytest.mark.parametrize("landed", range(6))
def test_a_mixed_batch_gives_the_same_wherever_it_broke(landed: int) -> None:
    """The runs stay in order, with a barrier between them, and the results have their places."""
    faulty = Faulty(landed)
    faulty.inner.set(B, b"b")
    faulty.inner.set(A, b"a")
    ops: list[Op] = [SetIf(A, b"a", b"1"), SetIf(B, b"x", b"2"), Set(C, b"3"), Get(A), Delete(B), Get(B)]
    results = retrying(faulty).execute(ops)
    assert results == [True, False, None, b"1", None, ABSENT]
    redone = faulty.calls[1:]
    assert [[type(op) for op in call] for call in redone] == [[SetIf, SetIf, Get, Get], [Set], [Get], [Delete], [Get]]


def test_a_run_that_was_done_again_is_not_done_a_third_time() -> None:
    faulty = Faulty(2, None, 0)
    assert retrying(faulty).execute([Set(A, b"1"), Get(B)]) == [None, ABSENT]
    assert [type(call[0]) for call in faulty.calls] == [Set, Set, Get, Get]


@pytest.mark.parametrize("landed", range(5))
def test_each_set_if_of_a_batch_is_judged_by_itself(landed: int) -> None:
    keys = [Key("p", f"{i}") for i in range(4)]
    faulty = Faulty(landed)
    for key in keys:
        faulty.inner.set(key, b"other" if key == keys[2] else b"o")
    assert retrying(faulty).set_if_many([SetIf(key, b"o", b"n") for key in keys]) == [True, True, False, True]


def test_creations_of_a_batch_are_looked_for_and_the_rest_done_again() -> None:
    faulty = Faulty(1)
    faulty.inner.set(B, b"o")
    assert retrying(faulty).set_if_many([SetIf(A, ABSENT, b"n"), SetIf(B, b"o", b"n")]) == [True, True]
    faulty = Faulty(0)
    faulty.inner.set(B, b"o")
    with pytest.raises(OutcomeUnknown):
        retrying(faulty).set_if_many([SetIf(A, ABSENT, b"n"), SetIf(B, b"o", b"n")])
    assert faulty.inner.get(B) == b"o"


def test_an_empty_batch_asks_nobody() -> None:
    faulty = Faulty()
    assert retrying(faulty).execute([]) == []
    assert faulty.calls == []


def test_servers_are_asked_again() -> None:
    faulty = Faulty(0, 0)
    assert retrying(faulty).servers() == faulty.inner.servers() == [Server(POSITIONS, "")]
    assert faulty.landed == []
    faulty.landed = [0] * 3
    with pytest.raises(KVUnavailable):
        retrying(faulty, attempts=3).servers()


def test_scan_count_and_delete_range_are_done_again() -> None:
    faulty = Faulty()
    kv = retrying(faulty)
    kv.set_many([(A, b"1"), (B, b"2")])
    faulty.landed = [0, 0]
    assert kv.scan("p") == [("a", b"1"), ("b", b"2")]
    faulty.landed = [0]
    assert kv.count("p", limit=5) == 2
    faulty.landed = [0, 0, 0]
    kv.delete_range("p", "a", "a")
    assert kv.scan("p") == [("b", b"2")]
    kv.close()
    assert faulty.closed


# ---- it ends


def test_attempts_are_bounded_and_waits_grow_to_a_bound() -> None:
    clock = FakeClock()
    faulty = Faulty(*[0] * 100)
    with pytest.raises(KVUnavailable, match="the reply was lost"):
        retrying(faulty, attempts=10, clock=clock).get(A)
    assert len(faulty.calls) == 10
    assert clock.slept_seconds == [0.75 * min(WAIT_FIRST_SECONDS * 2**i, WAIT_MAX_SECONDS) for i in range(9)]


@pytest.mark.parametrize(("value", "share"), [(0.0, 0.5), (0.999, 0.9995)])
def test_waits_have_jitter(value: float, share: float) -> None:
    clock = FakeClock()
    random = FixedRandom()
    random.value = value
    RetryingKV(Faulty(0), attempts=2, clock=clock, random=random).get(A)
    assert clock.slept_seconds == [pytest.approx(WAIT_FIRST_SECONDS * share)]


def test_one_attempt_is_no_retry() -> None:
    clock = FakeClock()
    with pytest.raises(KVUnavailable):
        retrying(Faulty(0), attempts=1, clock=clock).get(A)
    assert clock.slept_seconds == []


def test_the_check_is_made_before_each_attempt_and_ends_the_retries() -> None:
    checks = 0

    def check() -> None:
        nonlocal checks
        checks += 1
        if checks == 3:
            raise DeadlineExceeded("time is up")

    faulty = Faulty(*[0] * 100)
    with pytest.raises(DeadlineExceeded):
        retrying(faulty, check=check).get(A)
    assert len(faulty.calls) == 2


def test_the_check_is_made_where_nothing_fails() -> None:
    def check() -> None:
        raise DeadlineExceeded("time is up")

    faulty = Faulty()
    kv = retrying(faulty, check=check)
    for call in (
        lambda: kv.get(A),
        lambda: kv.scan("p"),
        lambda: kv.count("p", limit=1),
        lambda: kv.delete_range("p", "a", "b"),
    ):
        with pytest.raises(DeadlineExceeded):
            call()
    assert faulty.calls == []


def test_other_errors_are_not_retried() -> None:
    class Broken(Faulty):
        def execute(self, ops: Sequence[Op]) -> list[Result]:
            self.calls.append(list(ops))
            raise ValueError

    broken = Broken()
    with pytest.raises(ValueError):  # noqa: PT011  # any
        retrying(broken).get(A)
    assert len(broken.calls) == 1


def test_the_cause_of_retries_is_told_once() -> None:
    with collecting_events() as events:
        RetryingKV(Faulty(-1, -1, -1), clock=FakeClock(), random=FixedRandom()).get(A)
    assert [event["event"] for event in events] == ["kv_retry"] * 3
    assert ["error" in event for event in events] == [True, False, False]
