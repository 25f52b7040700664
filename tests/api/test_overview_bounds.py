"""The overview of a thousand repositories: how often it asks the KV, and how large it is."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Iterator

import httpx
import pytest

from refstore.configuration.settings import Settings
from refstore.core.ids import RepositoryId, repository_name
from refstore.kv.base import KV
from refstore.lake import Lake
from refstore.monitoring import figures
from refstore.records import keys
from refstore.records.encoding import encode
from refstore.records.figure_records import Amount, DayAmount, GcFigures, ReaperFigures
from refstore.records.repository_records import RepositoryRecord
from refstore.service import access_keys
from refstore.service.access_keys import Role
from refstore_api import create_app
from tests.kit.clock import FakeClock
from tests.kit.counting_kv import CountingKV

REPOSITORIES = 1000
KV_CALLS_MAX = 100
BYTES_MAX = 60_000
SECRET = "a-secret-that-only-these-tests-know"


def fill(kv: KV, now_ms: int) -> None:
    """Write the records of repositories that have every figure, and every warning."""
    amount = Amount(123_456_789, 123_456_789_012)
    days = tuple(
        DayAmount(figures.day_of(now_ms - number * figures.DAY_MS), 1_234_567, 1 << 40) for number in range(30)
    )
    for number in range(REPOSITORIES):
        name = repository_name(f"a-repository-with-quite-a-long-name-{number:04}")
        repo = RepositoryId(f"{name}.01kajkcwc0sypgzaww3w4cf26a")
        kv.set(keys.repository(name), encode(RepositoryRecord(repo, "memory://x", "main", 1)))  # type: ignore[arg-type]  # a str
        reaper = ReaperFigures(
            measured_ms=now_ms - 7_200_000,
            live=amount,
            staged=amount,
            in_grace=amount,
            due=amount,
            stop_reason="x",
            error="y",
            refused_objects=1,
            reclaimed=tuple(reversed(days)),
        )
        kv.set(keys.figures(repo, figures.REAPER), encode(reaper))
        gc = GcFigures(
            marked=amount,
            next_sweep_ms=now_ms + 1,
            questions=1,
            marked_ms=now_ms - 1,
            orphans=amount,
            error="z",
            failed_objects=1,
            reclaimed=tuple(reversed(days)),
        )
        kv.set(keys.figures(repo, figures.GC), encode(gc))


@pytest.fixture
def lake() -> Iterator[Lake]:
    clock = FakeClock()
    with Lake(CountingKV(), f"memory://{secrets.token_hex(8)}", clock=clock) as opened:
        fill(opened.kv, clock.now_ms())
        access_keys.create_key(opened, Role.READER, id="READER", secret=SECRET)
        yield opened


def test_a_thousand_repositories_take_few_calls_and_a_small_page(lake: Lake) -> None:
    app = create_app(Settings(data=None, kv="memory://", objects=lake.objects_url), lake=lake)

    async def visit() -> tuple[httpx.Response, int]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://lake.test") as http:
            page = await http.get("/ui/sign-in")
            token = re.findall(r'name="form_token" value="([0-9a-f]+)"', page.text)[0]
            form = {"form_token": token, "access_key_id": "READER", "secret_access_key": SECRET}
            assert (
                await http.post("/ui/sign-in", data=form, headers={"Origin": "http://lake.test"})
            ).status_code == 303
            assert isinstance(lake.kv, CountingKV)
            before = lake.kv.calls + lake.kv.scans
            answer = await http.get("/ui")
            return answer, lake.kv.calls + lake.kv.scans - before

    try:
        answer, calls = asyncio.run(visit())
    finally:
        app.state.service.close()
    assert answer.status_code == 200
    assert "1,000" in answer.text
    assert answer.text.count("the KV went back") == 0
    assert answer.text.count("deletion is stopped") == 30  # one page of them
    assert calls <= KV_CALLS_MAX, calls
    assert len(answer.content) < BYTES_MAX, len(answer.content)
