"""Bodies on their way in: forms cut at any byte, blocks, and bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request

from refstore.errors import Invalid
from refstore_http.http_errors import BodyTooLarge, BodyTooSlow, SlowDown
from refstore_http.memory_budget import DOCUMENT_FACTOR, MemoryBudget
from refstore_http.request_bodies import (
    BLOCK_BYTES,
    BOUNDARY_BYTES_MAX,
    FORM_PARTS_MAX,
    LONG_BODY_BYTES,
    PIECE_BYTES,
    SMALL_BYTES,
    BodyLimits,
    RequestBody,
    receive_document,
    receive_object,
)

LIMITS = BodyLimits(bytes_max=64 << 20, idle_seconds=5)
FORM = "multipart/form-data; boundary=bnd"


def request(
    chunks: list[bytes],
    content_type: str = "",
    *,
    ends: str = "whole",
    length: int | None = None,
    budget: MemoryBudget | None = None,
) -> Request:
    waiting = list(chunks)

    async def get() -> dict[str, Any]:
        if waiting:
            chunk = waiting.pop(0)
            return {"type": "http.request", "body": chunk, "more_body": bool(waiting) or ends != "whole"}
        if ends == "disconnect":
            return {"type": "http.disconnect"}
        if ends == "silence":
            await asyncio.Event().wait()
        return {"type": "http.request", "body": b"", "more_body": False}

    fields = [(b"content-type", content_type.encode())] if content_type else []
    if length is not None:
        fields.append((b"content-length", str(length).encode()))
    scope = {"type": "http", "method": "POST", "path": "/", "headers": fields, "query_string": b""}
    (budget or MemoryBudget()).open(scope)
    return Request(scope, get)


def received(
    chunks: list[bytes], content_type: str = "", *, limits: BodyLimits = LIMITS, **more: Any
) -> tuple[bytes, RequestBody]:
    """What was received, read to its end as a thread would."""

    async def run() -> tuple[bytes, RequestBody]:
        found = await receive_object(request(chunks, content_type, **more), limits)
        if isinstance(found.body, list):
            return b"".join(found.body), found
        return await asyncio.to_thread(b"".join, found.body), found

    return asyncio.run(run())


def form(*parts: tuple[str, str, bytes]) -> bytes:
    """(name, content type, data) each."""
    made = b""
    for name, kind, data in parts:
        made += f'--bnd\r\nContent-Disposition: form-data; name="{name}"; filename="f"\r\n'.encode()
        made += (f"Content-Type: {kind}\r\n" if kind else "").encode() + b"\r\n" + data + b"\r\n"
    return made + b"--bnd--\r\n"


def test_a_raw_body_is_taken_as_it_is() -> None:
    assert received([b"ab", b"c"], "text/plain") == (b"abc", RequestBody([b"abc"], "text/plain"))


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES + 7])
def test_a_body_of_any_size_is_whole(size: int) -> None:
    body = bytes(at % 251 for at in range(1000)) * (size // 1000 + 1)
    body = body[:size]
    chunks = [body[at : at + 70_001] for at in range(0, size, 70_001)]
    found, how = received(chunks)
    assert found == body
    assert isinstance(how.body, list) == (size <= SMALL_BYTES)


@pytest.mark.slow
def test_what_comes_byte_by_byte_is_not_held_byte_by_byte() -> None:
    body = bytes(3 * PIECE_BYTES + 1)
    found, how = received([body[at : at + 1] for at in range(len(body))])
    assert isinstance(how.body, list)
    assert [len(piece) for piece in how.body] == [PIECE_BYTES] * 3 + [1]
    assert found == body


def test_a_piece_that_is_large_enough_is_handed_on_as_it_came() -> None:
    pieces = [bytes([number]) * PIECE_BYTES for number in range(3)]
    _, how = received(pieces)
    assert isinstance(how.body, list)
    assert all(found is piece for found, piece in zip(how.body, pieces, strict=True)), "nothing was copied"


def test_behind_its_beginning_a_long_body_wakes_its_thread_once_for_each_block() -> None:
    chunks = [bytes(70_001)] * 100

    async def run() -> list[bytes]:
        found = await receive_object(request(chunks), LIMITS)
        assert not isinstance(found.body, list)
        return await asyncio.to_thread(list[bytes], found.body)

    sizes = [len(block) for block in asyncio.run(run())]
    beginning = -(-SMALL_BYTES // 70_001)
    assert sum(sizes) == 100 * 70_001
    assert sizes[:beginning] == [70_001] * beginning
    assert all(BLOCK_BYTES <= size < BLOCK_BYTES + 70_001 for size in sizes[beginning:-1])


CONTENT = b"one\r\n--bn\r\n-bnd\r\n\r\n\x00\xff--bnd two"
WHOLE = form(("before", "", b"x" * 30), ("content", "text/csv", CONTENT), ("after", "text/plain", b"y"))


@pytest.mark.parametrize("at", range(1, len(WHOLE)))
def test_a_form_is_read_the_same_wherever_it_is_cut(at: int) -> None:
    found, how = received([WHOLE[:at], WHOLE[at:]], FORM)
    assert (found, how.content_type) == (CONTENT, "text/csv")


def test_a_form_is_read_byte_by_byte() -> None:
    assert received([WHOLE[at : at + 1] for at in range(len(WHOLE))], FORM)[0] == CONTENT


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES, 2 * BLOCK_BYTES + 5])
def test_a_part_of_any_size_is_whole(size: int) -> None:
    body = form(("content", "", b"z" * size))
    assert received([body[at : at + 65_536] for at in range(0, len(body), 65_536)], FORM)[0] == b"z" * size


REFUSED = {
    "no boundary": ("multipart/form-data", WHOLE),
    "another boundary": ("multipart/form-data; boundary=other", WHOLE),
    "a boundary that is too long": ("multipart/form-data; boundary=" + "b" * 300, WHOLE),
    "nothing": (FORM, b""),
    "no content part": (FORM, form(("other", "", b"x"))),
    "two content parts": (FORM, form(("content", "", b"x"), ("content", "", b"y"))),
    "no end": (FORM, WHOLE[: WHOLE.index(b"two")]),
    "an end in the headers": (FORM, WHOLE[:40]),
    "a header without an end": (FORM, b"--bnd\r\nX-Long: " + b"x" * 20_000),
    "a name without an end": (FORM, b"--bnd\r\n" + b"X" * 20_000),
    "no header that tells its name": (FORM, b"--bnd\r\n\r\nx\r\n--bnd--\r\n"),
    "something else": (FORM, b"hello"),
}


@pytest.mark.parametrize("how", REFUSED)
def test_a_form_without_one_whole_content_part_is_refused(how: str) -> None:
    kind, body = REFUSED[how]
    with pytest.raises(Invalid):
        received([body[at : at + 1000] for at in range(0, len(body), 1000)] or [b""], kind)


def test_a_part_that_is_long_and_not_whole_is_told_to_the_thread_that_writes_it() -> None:
    body = form(("content", "", b"z" * 3 * BLOCK_BYTES))[:-20]
    with pytest.raises(Invalid):
        received([body[at : at + 65_536] for at in range(0, len(body), 65_536)], FORM)


def test_a_declared_length_that_is_too_large_is_refused_unread() -> None:
    with pytest.raises(BodyTooLarge):
        received([b"x"], limits=BodyLimits(10, 5), length=11)


@pytest.mark.parametrize("size", [11, 3 * BLOCK_BYTES])
def test_a_body_that_turns_out_too_large_is_refused(size: int) -> None:
    with pytest.raises(BodyTooLarge):
        received(
            [b"x"] * 11 if size == 11 else [b"x" * BLOCK_BYTES] * 3,
            limits=BodyLimits(10 if size == 11 else 2 * BLOCK_BYTES, 5),
        )


@pytest.mark.parametrize("blocks", [0, 3])
def test_a_body_that_stops_coming_is_given_up(blocks: int) -> None:
    with pytest.raises(BodyTooSlow):
        received([b"x" * BLOCK_BYTES] * blocks, limits=BodyLimits(LIMITS.bytes_max, 0.01), ends="silence")


@pytest.mark.parametrize("blocks", [0, 3])
def test_a_client_that_goes_away_ends_its_body_with_an_error(blocks: int) -> None:
    """Not with an end: half an object would be taken for a whole one."""
    with pytest.raises(ClientDisconnect):
        received([b"x" * BLOCK_BYTES] * blocks, ends="disconnect")


def test_a_writer_that_fails_reads_no_further() -> None:
    """The fetch that is under way is given up with it."""

    async def run() -> None:
        chunks = [b"x" * BLOCK_BYTES] * 3
        found = await receive_object(request(chunks, ends="silence"), LIMITS)
        assert isinstance(found.body, Iterator)
        blocks = found.body

        def write() -> None:
            next(blocks)
            blocks.close()

        await asyncio.to_thread(write)
        for _ in range(100):  # turns of the loop, until the news has come round
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def held_by(body_bytes: int, *, length: int | None = None) -> tuple[int, Any]:
    """What is counted for a body, and how it was received."""
    budget = MemoryBudget()
    chunks = [bytes(PIECE_BYTES)] * (body_bytes // PIECE_BYTES)

    async def run() -> Any:
        return (await receive_object(request(chunks, length=length, budget=budget), LIMITS)).body

    found = asyncio.run(run())
    return budget.count_held(), found


def test_what_is_held_of_a_body_is_counted() -> None:
    assert held_by(SMALL_BYTES)[0] == SMALL_BYTES
    assert held_by(2 * SMALL_BYTES)[0] == LONG_BODY_BYTES


def test_a_body_that_is_known_to_be_long_waits_at_its_client() -> None:
    """900 such bodies would hold 900 MiB while they wait for a thread."""
    held_bytes, body = held_by(8 * SMALL_BYTES, length=8 * SMALL_BYTES)
    assert held_bytes == LONG_BODY_BYTES
    assert not isinstance(body, list)
    taken: list[int] = []

    async def run() -> None:
        waiting = [bytes(PIECE_BYTES)] * 128

        async def get() -> dict[str, Any]:
            taken.append(PIECE_BYTES)
            return {"type": "http.request", "body": waiting.pop(), "more_body": bool(waiting)}

        asked = request([], length=8 * SMALL_BYTES)
        await receive_object(Request(asked.scope, get), LIMITS)

    asyncio.run(run())
    assert sum(taken) == PIECE_BYTES


def test_a_body_for_which_its_caller_has_no_room_is_refused_while_it_comes() -> None:
    async def run(receiving: Any) -> None:
        budget = MemoryBudget(SMALL_BYTES)
        asked = request([bytes(PIECE_BYTES)] * 64, length=SMALL_BYTES, budget=budget)
        with pytest.raises(SlowDown):
            await receiving(asked, LIMITS)
        assert 0 < budget.count_held() <= SMALL_BYTES // 2, "the end of the request releases it"

    asyncio.run(run(receive_object))
    asyncio.run(run(receive_document))


def test_a_document_is_counted_as_it_came_and_as_it_will_be_parsed() -> None:
    async def run() -> int:
        budget = MemoryBudget()
        await receive_document(request([b"x"] * (2 * PIECE_BYTES), budget=budget), LIMITS)
        return budget.count_held()

    assert asyncio.run(run()) == 2 * PIECE_BYTES * DOCUMENT_FACTOR


ENDLESS: dict[str, tuple[str, bytes]] = {
    "parts": (FORM, form(*[(f"p{number}", "", b"") for number in range(FORM_PARTS_MAX)], ("content", "", b"x"))),
    "header": (FORM, b"--bnd\r\n" + b"".join(b"h%d: x\r\n" % number for number in range(4000))),
    "boundary": (FORM + "x" * BOUNDARY_BYTES_MAX, WHOLE),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_form_has_bounds_besides_its_content(name: str) -> None:
    """What comes around the content is parsed byte by byte on the event loop, and kept."""
    content_type, body = ENDLESS[name]
    with pytest.raises(Invalid, match=name):
        received([body], content_type)
