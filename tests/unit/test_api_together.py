"""Calls made together: each caller gets what is its own, whoever else was in the call, failed, or went away."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence

import pytest

from refstore.errors import AlreadyLinked, KVUnavailable, ObjectNotFound, RefstoreError
from refstore_http.object_streams import ChunkReader
from refstore_http.service import BATCH_DELAY_SECONDS, BATCH_MAX, BATCHES_AT_ONCE, RequestBatcher

Run = Callable[[Callable[[], Sequence[str | RefstoreError]]], Awaitable[Sequence[str | RefstoreError]]]


class Calls:
    """What was called, and a gate that holds the calls back until it is opened."""

    def __init__(self, *, key: Callable[[str], str] | None = None, run: Run | None = None) -> None:
        self.made: list[tuple[str, ...]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.most = 0
        self.now = 0
        self.together: RequestBatcher[str, str, str] = RequestBatcher(run or self.run, self.call, key=key)

    async def run(self, work: Callable[[], Sequence[str | RefstoreError]]) -> Sequence[str | RefstoreError]:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.gate.wait()
            return work()
        finally:
            self.now -= 1

    def call(self, place: str, items: Sequence[str]) -> Sequence[str | RefstoreError]:
        self.made.append(tuple(items))
        if "down" in items:
            raise KVUnavailable("not reached")
        if "odd" in items:
            raise ZeroDivisionError("a defect")
        for item in items:
            if item.startswith("bad"):
                raise ObjectNotFound(f"{item} is not there")
        return [AlreadyLinked("used") if item.startswith("used") else f"{place}:{item}" for item in items]

    async def all(self, *items: str) -> list[str | BaseException]:
        return list(
            await asyncio.gather(*(self.together.submit("place", item) for item in items), return_exceptions=True)
        )

    async def under_way(self) -> None:
        """Wait until a call has begun."""
        while not self.now:
            await asyncio.sleep(0)

    async def behind(self, *items: str) -> list[str | BaseException]:
        """Asked for while a first call is under way, so that they wait for each other."""
        self.gate.clear()
        first = asyncio.ensure_future(self.together.submit("place", "first"))
        await self.under_way()
        rest = asyncio.ensure_future(self.all(*items))
        await asyncio.sleep(0)
        self.gate.set()
        assert await first == "place:first"
        return await rest


def test_a_call_that_is_alone_is_made_at_once() -> None:
    async def run() -> None:
        calls = Calls()
        assert await calls.all("a") == ["place:a"]
        assert calls.made == [("a",)]

    asyncio.run(run())


def test_what_is_asked_for_in_one_turn_of_the_loop_goes_together() -> None:
    async def run() -> None:
        calls = Calls()
        assert await calls.all("a", "b", "c") == ["place:a", "place:b", "place:c"]
        assert calls.made == [("a", "b", "c")]

    asyncio.run(run())


def test_what_comes_in_the_next_passes_of_the_loop_goes_together() -> None:
    """Bytes are read in one pass of the loop and become a request in the next."""

    async def run() -> None:
        calls = Calls()

        async def late(item: str, passes: int) -> str:
            for _ in range(passes):
                await asyncio.sleep(0)
            return await calls.together.submit("place", item)

        await asyncio.gather(*(late(item, 2 * number) for number, item in enumerate("abcd")))
        assert calls.made == [("a", "b", "c", "d")]

    asyncio.run(run())


def test_a_call_does_not_wait_for_ever_for_requests_that_keep_coming() -> None:
    async def run() -> None:
        calls = Calls()
        asked: list[asyncio.Future[str]] = []
        while not calls.made and len(asked) < 20:
            asked.append(asyncio.ensure_future(calls.together.submit("place", str(len(asked)))))
            time.sleep(BATCH_DELAY_SECONDS / 2)  # a pass of a busy loop
            await asyncio.sleep(0)
        assert calls.made
        await asyncio.gather(*asked)

    asyncio.run(run())


def test_who_is_answered_and_asks_again_at_once_goes_with_those_who_waited() -> None:
    async def run() -> None:
        calls = Calls()

        async def twice(item: str) -> None:
            await calls.together.submit("place", item)
            await calls.together.submit("place", f"{item} again")

        calls.gate.clear()
        first = [asyncio.ensure_future(twice(item)) for item in "abc"]
        await calls.under_way()
        waiting = asyncio.ensure_future(calls.all("d"))
        await asyncio.sleep(0)
        calls.gate.set()
        await asyncio.gather(*first, waiting)
        assert calls.made == [("a", "b", "c"), ("d", "a again", "b again", "c again")]

    asyncio.run(run())


def test_who_leaves_before_the_call_is_made_asks_for_nothing() -> None:
    async def run() -> None:
        calls = Calls()
        gone = asyncio.ensure_future(calls.together.submit("place", "a"))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        assert calls.made == []
        assert await calls.all("b") == ["place:b"]
        assert calls.made == [("b",)]

    asyncio.run(run())


def test_what_comes_while_a_call_is_under_way_goes_together() -> None:
    async def run() -> None:
        calls = Calls()
        assert await calls.behind("a", "b", "c") == ["place:a", "place:b", "place:c"]
        assert calls.made == [("first",), ("a", "b", "c")]

    asyncio.run(run())


def test_each_hears_of_its_own_mistake_only() -> None:
    async def run() -> None:
        found = await Calls().behind("a", "bad", "b", "used", "c")
        assert [str(one) for one in found] == ["place:a", "bad is not there", "place:b", "used", "place:c"]
        assert isinstance(found[1], ObjectNotFound)
        assert isinstance(found[3], AlreadyLinked)

    asyncio.run(run())


def test_where_the_store_fails_it_fails_for_all_and_is_not_asked_again_for_each() -> None:
    async def run() -> None:
        calls = Calls()
        found = await calls.behind("a", "down", "b")
        assert [type(one) for one in found] == [KVUnavailable] * 3
        assert len(calls.made) == 2

    asyncio.run(run())


def test_a_defect_is_told_to_all_and_the_next_call_works() -> None:
    async def run() -> None:
        calls = Calls()
        assert [type(one) for one in await calls.behind("a", "odd")] == [ZeroDivisionError] * 2
        assert await calls.all("b") == ["place:b"]

    asyncio.run(run())


def test_who_has_gone_is_not_asked_for_and_takes_nobody_along() -> None:
    async def run() -> None:
        calls = Calls()
        calls.gate.clear()
        first = asyncio.ensure_future(calls.together.submit("place", "first"))
        await calls.under_way()
        gone, stays = (asyncio.ensure_future(calls.together.submit("place", item)) for item in ("gone", "stays"))
        await asyncio.sleep(0)
        gone.cancel()
        first.cancel()
        await asyncio.sleep(0)
        calls.gate.set()
        assert await stays == "place:stays"
        assert calls.made == [("first",), ("stays",)]

    asyncio.run(run())


def test_when_all_that_wait_have_gone_the_next_is_not_forgotten() -> None:
    async def run() -> None:
        calls = Calls()
        calls.gate.clear()
        asked = [asyncio.ensure_future(calls.together.submit("place", item)) for item in ("first", "a", "b")]
        await asyncio.sleep(0)
        for one in asked:
            one.cancel()
        await asyncio.sleep(0)
        calls.gate.set()
        for _ in range(10):
            await asyncio.sleep(0)
        assert await asyncio.wait_for(calls.together.submit("place", "c"), 5) == "place:c"

    asyncio.run(run())


def test_what_may_stand_in_a_call_once_goes_with_the_next() -> None:
    async def run() -> None:
        calls = Calls(key=lambda item: item[0])
        assert await calls.behind("a1", "b1", "a2", "a3") == ["place:a1", "place:b1", "place:a2", "place:a3"]
        assert [len({item[0] for item in made}) == len(made) for made in calls.made] == [True] * len(calls.made)

    asyncio.run(run())


def test_calls_are_bounded_in_size_and_number_and_none_is_forgotten() -> None:
    async def run() -> None:
        calls = Calls()
        many = [str(number) for number in range(3 * BATCH_MAX + 5)]
        assert await calls.behind(*many) == [f"place:{item}" for item in many]
        assert max(map(len, calls.made)) <= BATCH_MAX
        assert calls.most <= BATCHES_AT_ONCE

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(20))
def test_whatever_order_calls_end_in_each_gets_its_own(seed: int) -> None:
    """Random delays, cancellations and mistakes; nobody waits for ever and nobody gets another's."""
    from random import Random

    async def run() -> None:
        random = Random(seed)

        async def slow(work: Callable[[], Sequence[str | RefstoreError]]) -> Sequence[str | RefstoreError]:
            for _ in range(random.randrange(6)):
                await asyncio.sleep(0)
            return work()

        calls = Calls(key=lambda item: item, run=slow)
        asked: list[tuple[str, asyncio.Future[str]]] = []
        for _ in range(200):
            item = random.choice(["a", "b", "c", "bad", "used"])
            asked.append((item, asyncio.ensure_future(calls.together.submit(random.choice("xy"), item))))
            if random.random() < 0.2:
                random.choice(asked)[1].cancel()
            if random.random() < 0.5:
                await asyncio.sleep(0)
        done = await asyncio.wait_for(asyncio.gather(*(one for _, one in asked), return_exceptions=True), 30)
        for (item, _), result in zip(asked, done, strict=True):
            if isinstance(result, asyncio.CancelledError):
                continue
            expected = {"bad": ObjectNotFound, "used": AlreadyLinked}.get(item, str)
            assert isinstance(result, expected), (item, result)
            assert not isinstance(result, str) or result.endswith(f":{item}")
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(calls.together) == 0

    asyncio.run(run())


def test_what_is_read_in_a_thread_is_closed_behind_the_read() -> None:
    """The client has gone while a chunk was read: closing the generator under it would fail, and leave the file
    open.
    """
    reading, go = threading.Event(), threading.Event()
    closed: list[bool] = []

    def chunks() -> Iterator[bytes]:
        try:
            yield b"first"
            reading.set()
            go.wait()
            yield b"x"
        finally:
            closed.append(True)

    found = ChunkReader(chunks())
    reader = threading.Thread(target=found.chunk)
    reader.start()
    reading.wait()
    closer = threading.Thread(target=found.close)
    closer.start()
    assert closed == []
    go.set()
    reader.join()
    closer.join()
    assert closed == [True]
