"""Expensive reads in a process of their own: the same answers, whatever happens to the process.
(`threaded_read_process.py` runs it in a thread.)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any, Final

import pytest

from refstore.configuration.settings import ApiSettings
from refstore.lake import Lake
from refstore.repository import Repository
from refstore_api import read_process
from refstore_api.expensive_reads import ExpensiveReads
from tests.api.conftest import KEY_ID
from tests.api.service import Application, application
from tests.api.threaded_read_process import ThreadedReadProcesses, until
from tests.kit.logged_events import collecting_events

BRANCH: Final = "feature/caf\u00e9 %2F"
LISTING: Final = "/repositories/alpha/refs/main/objects/ls"


@pytest.fixture
def processes() -> ThreadedReadProcesses:
    return ThreadedReadProcesses()


@pytest.fixture
def lake(processes: ThreadedReadProcesses, monkeypatch: pytest.MonkeyPatch) -> Iterator[Application]:
    monkeypatch.setattr(read_process, "RESTART_SECONDS", 0.01)
    with application(ApiSettings(public_url="https://lake.example.org"), read_process=processes.read_process) as found:
        repo = found.lake.create_repository("alpha")
        repo.upload("main", "a/1", b"x")
        repo.upload("main", "b/\u00fc", b"y")
        repo.commit("main", "c")
        repo.create_branch("feature/x", "main")
        found.runner.run(until(processes.is_ready))
        yield found


def reads_of(lake: Application) -> ExpensiveReads:
    found: ExpensiveReads = lake.app.state.service.reads
    return found


@pytest.mark.parametrize(
    ("path", "params", "status"),
    [
        (LISTING, {"prefix": "b/\u00fc"}, 200),
        (LISTING, {"delimiter": "/", "amount": 1}, 200),
        ("/repositories/alpha/refs/feature%2Fx/objects/ls", {}, 200),
        ("/repositories/alpha/branches/feature%2Fx/diff", {}, 200),
        ("/repositories/alpha/refs/main/commits", {"prefixes": "a/"}, 200),
        ("/repositories/alpha/refs/main~1/diff/main", {}, 200),
        ("/repositories/alpha/refs/main/merge/feature%2Fx", {}, 200),
        ("/repositories/alpha/branches", {}, 200),
        ("/repositories/alpha/tags", {}, 200),
        ("/repositories", {"search": "alp"}, 200),
        (LISTING, {"prefix": "x" * 2000}, 400),
        ("/repositories/alpha/refs/nowhere/objects/ls", {}, 404),
        ("/repositories/nowhere/branches", {}, 404),
    ],
)
def test_the_process_answers_what_threads_would(
    lake: Application,
    processes: ThreadedReadProcesses,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    params: dict[str, Any],
    status: int,
) -> None:
    own = lake("GET", path, params=params)
    asked = processes.request_count
    monkeypatch.setattr(processes.process, "is_ready", lambda: False)
    threads = lake("GET", path, params=params)
    assert (own.status_code, threads.status_code) == (status, status)
    assert own.json() == threads.json()
    assert {name: value for name, value in own.headers.items() if name != "x-request-id"} == {
        name: value for name, value in threads.headers.items() if name != "x-request-id"
    }
    assert processes.request_count == asked
    assert asked == (0 if status == 400 else 1)  # what is not valid is refused before


def test_who_is_refused_does_not_come_to_the_process(lake: Application, processes: ThreadedReadProcesses) -> None:
    assert lake("GET", LISTING, auth=(KEY_ID, "not its secret")).status_code == 401
    assert processes.request_count == 0


def test_what_nobody_foresaw_is_logged_with_the_requests_id_and_frees_the_slot(
    lake: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_repo: Repository, *_: object, **__: object) -> None:
        raise ZeroDivisionError("nobody foresaw it")

    monkeypatch.setattr(Repository, "list_page", fail)
    with collecting_events() as logged:
        answered = lake("GET", LISTING, headers={"x-request-id": "mine"})
    assert (answered.status_code, answered.json()["code"]) == (500, "internal")
    assert [(line["event"], line["request_id"]) for line in logged] == [
        ("request_crashed", "mine"),
        ("request", "mine"),
    ]
    assert reads_of(lake).slots.count_used() == 0


def test_an_answer_that_cannot_be_made_frees_the_slot_too(lake: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as no memory for it, or no room for the log's line about it."""

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Repository, "list_page", fail)
    monkeypatch.setattr(read_process, "respond_to_crash", fail)
    answered = lake("GET", LISTING)
    assert (answered.status_code, answered.json()["code"]) == (500, "internal")
    assert reads_of(lake).slots.count_used() == 0


def test_a_process_that_ends_fails_what_it_was_asked_and_is_replaced(
    lake: Application, processes: ThreadedReadProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()
    original = Lake.repositories

    def slow(of: Lake, **options: Any) -> Any:
        begun.set()
        assert processes.started[0].killed.wait(60)
        return original(of, **options)

    monkeypatch.setattr(Lake, "repositories", slow)
    slots = reads_of(lake).slots

    async def lose() -> None:
        asked = asyncio.create_task(lake.http.get("/repositories"))
        await until(begun.is_set)
        assert slots.count_used() == 1
        processes.started[0].kill()
        answered = await asked
        assert (answered.status_code, answered.headers["retry-after"]) == (503, "1")
        assert "the process for expensive reads ended" in answered.json()["message"]
        assert slots.count_used() == 0
        assert (await lake.http.get(LISTING)).status_code == 200  # by a thread, meanwhile
        await until(processes.is_ready)
        assert len(processes.started) == 2
        asked_before = processes.request_count
        assert (await lake.http.get(LISTING)).status_code == 200
        assert processes.request_count == asked_before + 1

    lake.runner.run(lose())


def test_where_no_process_can_be_started_threads_read(lake: Application, processes: ThreadedReadProcesses) -> None:
    processes.can_start = False
    processes.started[0].kill()

    async def ask() -> None:
        await until(lambda: not processes.is_ready())
        with collecting_events() as logged:
            await until(
                lambda: processes.is_ready() or any(line["event"] == "reads_process_not_started" for line in logged)
            )
            assert (await lake.http.get(LISTING)).status_code == 200
        assert processes.request_count == 0

    lake.runner.run(ask())


def test_the_process_ends_with_the_service(lake: Application, processes: ThreadedReadProcesses) -> None:
    assert lake("GET", LISTING).status_code == 200
    lake.app.state.service.close()
    assert not processes.started[0].is_alive()
    lake.runner.run(asyncio.sleep(0))
    assert not processes.is_ready()
    assert len(processes.started) == 1
