"""What requests hold in memory: the shares of keys, and answers that wait for their clients."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Scope

from refstore_api.error_responses import make_error_response
from refstore_http.http_errors import SlowDown
from refstore_http.memory_budget import UNCOUNTED_BYTES, HeldBytes, MemoryBudget
from refstore_http.request_pipeline import SentAnswer

UNIT = 1 << 20


def scope_of(key_id: str = "") -> Scope:
    return {"type": "http", "method": "GET", "headers": [], "state": {"key_id": key_id} if key_id else {}}


def fill(budget: MemoryBudget, key_id: str) -> int:
    """How many units the key gets, each by a request of its own."""
    count = 0
    try:
        while True:
            budget.open(scope_of(key_id)).set(UNIT)
            count += 1
    except SlowDown:
        return count


def test_a_key_holds_as_much_as_it_leaves_to_others() -> None:
    budget = MemoryBudget(60 * UNIT)
    assert fill(budget, "first") == 30
    assert fill(budget, "second") == 15
    assert fill(budget, "") == 7, "those without a key share one account"
    assert fill(budget, "") == 0
    assert fill(budget, "another") == 4
    assert budget.count_held() == 56 * UNIT


def test_what_is_small_is_never_refused() -> None:
    budget = MemoryBudget(0)
    budget.open(scope_of("key")).set(UNCOUNTED_BYTES)
    with pytest.raises(SlowDown):
        budget.open(scope_of("key")).set(UNCOUNTED_BYTES + 1)
    assert budget.count_held() == 0


def test_what_is_refused_changes_nothing_and_what_is_released_is_there_again() -> None:
    budget = MemoryBudget(8 * UNIT)
    held = budget.open(scope_of("key"))
    held.set(3 * UNIT)
    with pytest.raises(SlowDown):
        held.set(5 * UNIT)
    assert budget.count_held("key") == 3 * UNIT
    held.set(4 * UNIT)
    held.set(0)
    assert (budget.count_held("key"), budget.count_held()) == (0, 0)
    assert fill(budget, "key") == 4


class Client:
    """Takes a piece of an answer when it is told to."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.may_take = asyncio.Event()
        self.is_waiting = asyncio.Event()

    @property
    def body(self) -> bytes:
        return b"".join(each.get("body", b"") for each in self.messages)

    async def send(self, message: Message) -> None:
        """As a server does: what comes after a large piece waits until that was taken."""
        if self.messages and len(self.messages[-1].get("body", b"")) > UNCOUNTED_BYTES:
            self.is_waiting.set()
            await self.may_take.wait()
        self.messages.append(message)


def answer_of(client: Client, held: HeldBytes, scope: Scope) -> SentAnswer:
    return SentAnswer(scope, client.send, [(b"x-request-id", b"1")], held, make_error_response)


async def receive() -> Message:
    return {"type": "http.disconnect"}


def test_an_answer_is_counted_until_its_client_has_taken_it() -> None:
    async def run() -> None:
        budget, client, scope = MemoryBudget(8 * UNIT), Client(), scope_of("key")
        sent = answer_of(client, budget.open(scope), scope)
        task = asyncio.create_task(Response(b"x" * 3 * UNIT)(scope, receive, sent))
        await client.is_waiting.wait()
        assert not task.done()
        assert budget.count_held("key") == 3 * UNIT
        client.may_take.set()
        await task
        assert len(client.body) == sent.size_bytes == 3 * UNIT
        assert [each.get("more_body") for each in client.messages] == [None, True, False]

    asyncio.run(run())


def test_an_answer_that_is_too_much_becomes_an_error() -> None:
    async def run() -> None:
        budget, client, scope = MemoryBudget(8 * UNIT), Client(), scope_of("key")
        sent = answer_of(client, budget.open(scope), scope)
        await Response(b"x" * 5 * UNIT)(scope, receive, sent)
        head, body = client.messages
        assert (sent.status, head["status"], dict(head["headers"])[b"retry-after"]) == (503, 503, b"1")
        assert dict(head["headers"])[b"x-request-id"] == b"1"
        assert int(dict(head["headers"])[b"content-length"]) == len(body["body"]) == sent.size_bytes
        assert budget.count_held() == 0

    asyncio.run(run())


def test_a_stream_counts_one_piece_and_goes_on_where_it_began() -> None:
    async def run(pieces: list[int]) -> tuple[int, Client]:
        budget, client, scope = MemoryBudget(8 * UNIT), Client(), scope_of("key")
        client.may_take.set()

        async def chunks() -> Any:
            for size in pieces:
                yield b"x" * size

        sent = answer_of(client, budget.open(scope), scope)
        await StreamingResponse(chunks())(scope, receive, sent)
        return budget.count_held("key"), client

    assert asyncio.run(run([UNIT] * 20))[0] == UNIT
    held_bytes, client = asyncio.run(run([5 * UNIT] * 3))
    assert (held_bytes, client.messages[0]["status"]) == (0, 503), "an error, and nothing of the stream behind it"
    assert len(client.body) < UNIT
    with pytest.raises(SlowDown):  # the answer is cut off
        asyncio.run(run([UNIT, 5 * UNIT]))
