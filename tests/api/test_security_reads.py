"""Readers that ask for much: what their reads may take, and that everybody else goes on. Counted in slots and diffs,
never in time.
"""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import httpx
import pytest

from refstore.operations import refs
from refstore.repository import Repository
from refstore.service import access_keys
from refstore.versioning.commits.tree_store import TreeStore
from refstore.versioning.commits.trees import Trees
from refstore_http.expensive_reads import (
    PAUSE_SECONDS_MAX,
    READ_SECONDS,
    ExpensiveReads,
    ReadSlots,
    ShortRequestPriority,
)
from refstore_http.http_errors import TooManyRequests
from refstore_http.service import Service
from tests.api.conftest import KEY_ID, SECRET
from tests.api.service import Application, application
from tests.kit.logged_events import collecting_events

COMMITS: Final = 12
FILTERS: Final = 100
LOG: Final = "/repositories/alpha/refs/main/commits"
DIFF: Final = "/repositories/alpha/refs/main~1/diff/main"
STAT: Final = "/repositories/alpha/refs/main/objects/stat"


@pytest.fixture
def lake() -> Iterator[Application]:
    with application() as found:
        repo = found.lake.create_repository("alpha")
        for number in range(COMMITS):
            repo.upload("main", f"part-{number % 3}/{number}", b"x")
            repo.commit("main", f"c{number}")
        yield found


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(6000):
        if holds():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it does not come to hold")


class Diffs:
    """Counts the diffs of trees that are begun; each waits for its gate. Knows which reads were told to stop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_open: bool) -> None:
        self.begun = 0
        self._abandoned: list[threading.Event] = []
        self.gate = threading.Event()
        if is_open:
            self.gate.set()
        original = Trees.diff

        def counted(trees: Trees, left: str, right: str, **options: Any) -> Any:
            self.begun += 1
            assert self.gate.wait(60)
            return original(trees, left, right, **options)

        def checking(priority: ShortRequestPriority, abandoned: threading.Event) -> Any:
            self._abandoned.append(abandoned)
            return make_pause_check(priority, abandoned)

        make_pause_check = ShortRequestPriority.make_pause_check
        monkeypatch.setattr(Trees, "diff", counted)
        monkeypatch.setattr(ShortRequestPriority, "make_pause_check", checking)

    def all_told_to_stop(self) -> bool:
        return all(abandoned.is_set() for abandoned in self._abandoned)


def reads_of(lake: Application) -> ExpensiveReads:
    service: Service = lake.app.state.service
    return service.reads


def reader_of(lake: Application, name: str) -> httpx.AsyncClient:
    access_keys.create_key(lake.lake, access_keys.Role.READER, id=name, secret=SECRET)
    transport = httpx.ASGITransport(lake.app)
    return httpx.AsyncClient(transport=transport, base_url="http://lake.test/api/v1", auth=(name, SECRET))


# ---- work


@pytest.mark.parametrize("kind", ["prefixes", "objects"])
def test_a_log_with_many_filters_makes_one_diff_for_each_commit(
    lake: Application, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    diffs = Diffs(monkeypatch, is_open=True)
    nowhere = [f"nowhere-{number}/" for number in range(FILTERS - 1)]
    answered = lake(
        "GET", LOG, params={kind: [*nowhere, "part-1/" if kind == "prefixes" else "part-1/4"], "amount": 1000}
    ).json()
    assert [found["message"] for found in answered["results"]] == (
        ["c10", "c7", "c4", "c1"] if kind == "prefixes" else ["c4"]
    )
    assert diffs.begun == COMMITS  # the repository's first commit has nothing to be compared with


def test_filters_leave_unread_what_they_cannot_match(lake: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = TreeStore.range

    def counted(store: TreeStore, range_id: str) -> Any:
        read.append(range_id)
        return original(store, range_id)

    monkeypatch.setattr(TreeStore, "range", counted)
    assert lake("GET", LOG, params={"prefixes": ["a/", "z/"]}).json()["results"] == []
    assert read == []


def test_a_read_ends_at_its_deadline(lake: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = 0
    original = Trees.diff

    def slow(trees: Trees, left: str, right: str, **options: Any) -> Any:
        nonlocal begun
        begun += 1
        lake.clock.advance(READ_SECONDS / 2)
        return original(trees, left, right, **options)

    monkeypatch.setattr(Trees, "diff", slow)
    answered = lake("GET", LOG, params={"prefixes": ["nowhere/"]})
    assert (answered.status_code, answered.json()["code"]) == (503, "deadline_exceeded")
    assert "the read did not end within 30 s" in answered.json()["message"]
    assert begun == 2
    assert reads_of(lake).slots.count_used() == 0


@pytest.mark.parametrize("steps", ["~1001", "~100000", "~600~401", "^" * 1001, "~999^2~1"])
def test_a_ref_of_very_many_steps_is_refused_unread(monkeypatch: pytest.MonkeyPatch, steps: str) -> None:
    """Each would be a read of the KV, in a thread that others wait for."""
    with application() as lake:
        lake.lake.create_repository("alpha")
        assert (
            lake(
                "GET", f"/repositories/alpha/refs/main~{refs.STEPS_MAX}/objects/stat", params={"path": "a"}
            ).status_code
            == 404
        )
        monkeypatch.setattr(refs, "get_commit", lambda *_: pytest.fail("it was read"))
        refused = lake("GET", f"/repositories/alpha/refs/main{steps}/objects/stat", params={"path": "a"})
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_name")
    assert "give the commit's id" in refused.json()["message"]


def test_a_read_that_crashes_is_logged_with_the_requests_id_and_frees_the_slot(
    lake: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_repo: Repository, *_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Repository, "list_page", fail)
    with collecting_events() as logged:
        answered = lake("GET", "/repositories/alpha/refs/main/objects/ls", headers={"x-request-id": "mine"})
    assert (answered.status_code, answered.json()["code"]) == (500, "internal")
    assert [(line["event"], line["request_id"]) for line in logged] == [
        ("request_crashed", "mine"),
        ("request", "mine"),
    ]
    assert reads_of(lake).slots.count_used() == 0


# ---- slots


@pytest.mark.parametrize("route", [LOG + "?prefixes=part-1/", DIFF + "?type=two_dot", DIFF])
def test_a_key_takes_no_more_than_its_share_and_others_are_answered(
    lake: Application, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    diffs = Diffs(monkeypatch, is_open=False)
    slots = reads_of(lake).slots

    async def attack() -> None:
        async with reader_of(lake, "greedy") as greedy, reader_of(lake, "other") as other:
            asked = [asyncio.create_task(greedy.get(route)) for _ in range(20)]
            await until(lambda: slots.count_waiting("greedy") == 18 and diffs.begun == 2)
            assert slots.count_used("greedy") == slots.count_used() == 2
            assert (await lake.http.get(STAT, params={"path": "part-0/0"})).status_code == 200
            assert (await lake.http.get("/repositories/alpha/refs/main/objects/ls")).status_code == 200
            own = asyncio.create_task(other.get(route))
            await until(lambda: slots.count_used("other") == 1 and diffs.begun == 3)
            diffs.gate.set()
            assert {answered.status_code for answered in await asyncio.gather(own, *asked)} == {200}
        await until(lambda: slots.count_used() == 0)

    lake.runner.run(attack())


def test_more_reads_than_may_wait_are_refused(lake: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    diffs = Diffs(monkeypatch, is_open=False)
    slots = reads_of(lake).slots
    slots.waiting_max = 3

    async def attack() -> None:
        async with reader_of(lake, "greedy") as greedy:
            asked = [asyncio.create_task(greedy.get(DIFF)) for _ in range(5)]
            await until(lambda: slots.count_waiting("greedy") == 3 and slots.count_used("greedy") == 2)
            refused = await greedy.get(DIFF)
            assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests")
            assert refused.headers["retry-after"]
            diffs.gate.set()
            assert {answered.status_code for answered in await asyncio.gather(*asked)} == {200}

    lake.runner.run(attack())


def test_keys_take_turns_whoever_asked_first() -> None:
    async def ask() -> list[str]:
        slots = ReadSlots(total_max=1, key_max=1)
        order: list[str] = []

        async def read(key: str) -> None:
            await slots.take(key)
            order.append(key)
            await asyncio.sleep(0)
            slots.release(key)

        await asyncio.gather(*(read(key) for key in ["a", "a", "a", "a", "b", "b", "c"]))
        assert slots.count_used() == 0
        return order

    assert asyncio.run(ask()) == ["a", "a", "b", "c", "a", "b", "a"]


def test_whoever_gives_up_the_line_gives_up_no_slot() -> None:
    async def ask() -> None:
        slots = ReadSlots(total_max=1, key_max=1)
        await slots.take("a")
        waiting = [asyncio.create_task(slots.take(key)) for key in ("a", "b")]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        assert slots.count_waiting("a") == 0
        slots.release("a")
        waiting[1].cancel()  # in the very moment in which its turn has come
        await asyncio.gather(*waiting, return_exceptions=True)
        assert slots.count_used() == 0
        slots.waiting_max = 0
        with pytest.raises(TooManyRequests):
            await slots.take("a")

    asyncio.run(ask())


# ---- clients that have gone


class Client:
    """One request past any HTTP client, whose sender may go away."""

    def __init__(self, lake: Application, path: str, query: str) -> None:
        credentials = base64.b64encode(f"{KEY_ID}:{SECRET}".encode())
        self.scope: dict[str, Any] = {
            "type": "http", "method": "GET", "path": f"/api/v1{path}", "raw_path": f"/api/v1{path}".encode(),
            "query_string": query.encode(),
            "headers": [(b"host", b"lake.test"), (b"authorization", b"Basic " + credentials)],
            "client": ("127.0.0.1", 1), "server": ("lake.test", 80), "scheme": "http", "http_version": "1.1",
            "root_path": "",
        }  # fmt: skip
        self.gone = asyncio.Event()
        self.sent: list[Any] = []
        self._body = True
        self.answered = asyncio.create_task(lake.app(self.scope, self._receive, self._send))

    async def _receive(self) -> Any:
        if self._body:
            self._body = False
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)


def test_the_work_of_a_client_that_has_gone_stops(lake: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    diffs = Diffs(monkeypatch, is_open=False)
    slots = reads_of(lake).slots

    async def leave() -> None:
        clients = [Client(lake, LOG, "prefixes=nowhere/") for _ in range(10)]
        await until(lambda: diffs.begun == 2 and slots.count_waiting(KEY_ID) == 8)
        for client in clients:
            client.gone.set()
        await until(lambda: slots.count_waiting(KEY_ID) == 0)
        assert slots.count_used(KEY_ID) == 2  # until their threads have stopped
        await until(diffs.all_told_to_stop)
        diffs.gate.set()
        for client in clients:
            await asyncio.wait_for(client.answered, 60)
            assert client.sent == []
        await until(lambda: slots.count_used() == 0)

    lake.runner.run(leave())
    assert diffs.begun == 2  # of the first commit each, and nobody's second


@pytest.mark.parametrize("goes_first", [False, True])
def test_a_read_that_is_cancelled_keeps_its_slot_until_its_thread_stops(
    lake: Application, monkeypatch: pytest.MonkeyPatch, *, goes_first: bool
) -> None:
    diffs = Diffs(monkeypatch, is_open=False)
    slots = reads_of(lake).slots

    async def cancel() -> None:
        client = Client(lake, LOG, "prefixes=nowhere/")
        await until(lambda: diffs.begun == 1)
        if goes_first:
            client.gone.set()
            await asyncio.sleep(0.05)  # it waits for what was begun to stop
        client.answered.cancel()
        await asyncio.gather(client.answered, return_exceptions=True)
        assert slots.count_used(KEY_ID) == 1
        await until(diffs.all_told_to_stop)
        diffs.gate.set()
        await until(lambda: slots.count_used() == 0)

    lake.runner.run(cancel())
    assert diffs.begun == 1


# ---- others first


class Busy(threading.Event):
    """Never becomes free; notes how long it was waited for at most."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def set(self) -> None:
        pass

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.pauses.append(timeout)
        return False


def test_a_read_gives_way_to_others_and_ends_although_they_never_do() -> None:
    priority = ShortRequestPriority()
    busy = priority.is_idle = Busy()
    gone = threading.Event()
    check = priority.make_pause_check(gone)
    assert [check() for _ in range(3)] == [False] * 3
    assert len(busy.pauses) == 3
    assert max(busy.pauses) <= PAUSE_SECONDS_MAX
    gone.set()
    assert check()


def test_a_read_pauses_only_while_others_are_at_work() -> None:
    priority = ShortRequestPriority()
    assert priority.is_idle.is_set()
    with priority.mark_short_request():
        with priority.mark_short_request():
            pass
        assert not priority.is_idle.is_set()
    assert priority.is_idle.is_set()
