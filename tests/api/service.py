"""The application in this process, over a lake whose stores and clock the test holds: for attacks and limits that need
no network.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx
import pytest
from fastapi import FastAPI

from refstore.audit import AuditLog
from refstore.configuration.settings import ApiSettings, ReaperSettings, Settings
from refstore.core.safety import Safety
from refstore.kv.base import KV
from refstore.kv.memory import MemoryKV
from refstore.lake import Lake
from refstore.objects import make_objects
from refstore.service import access_keys
from refstore_api import create_app
from refstore_reaper.daemon import Reaper
from tests.api.conftest import KEY_ID, SECRET
from tests.kit.clock import FakeClock

GRACE_SECONDS = 3600


class Application(NamedTuple):
    app: FastAPI
    lake: Lake
    clock: FakeClock
    runner: asyncio.Runner
    http: httpx.AsyncClient

    def __call__(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self.runner.run(self.http.request(method, path, **options))

    def reap(self, passes: int = 1) -> None:
        """As a reaper does whose scrub is always due."""
        with Reaper(self.lake, ReaperSettings(scrub_every_seconds=1)) as reaper:
            for _ in range(passes):
                reaper.run_passes(lambda: False)

    def blobs(self, repository: str) -> list[bytes]:
        objects = self.lake.repository(repository).context.objects
        return [objects.read(found.key) for found in objects.list("data/")]


@contextmanager
def application(
    settings: ApiSettings | None = None,
    *,
    import_from: tuple[str, ...] = (),
    kv: KV | None = None,
    objects: str = "",
    safety: Safety | None = None,
    audit_log: AuditLog | None = None,
    constants: Mapping[str, object] | None = None,
) -> Iterator[Application]:
    """`constants`: other values of constants, such as `api.auth.KEY_SECONDS`."""
    clock = FakeClock()
    where = objects or f"memory://{secrets.token_hex(8)}"
    make_objects(where)
    own = safety or Safety(grace_seconds=GRACE_SECONDS, issue_seconds=4 * GRACE_SECONDS)
    with (
        Lake(kv or MemoryKV(), where, clock=clock, safety=own, audit_log=audit_log, import_from=import_from) as lake,
        asyncio.Runner() as runner,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in (constants or {}).items():
            patch.setattr(f"refstore_{name}", value)
        access_keys.ensure_key(lake, KEY_ID, SECRET)
        own_settings = Settings(data=None, kv="memory://", objects=where, api=settings or ApiSettings())
        app = create_app(own_settings, lake=lake)
        transport = httpx.ASGITransport(app)
        http = httpx.AsyncClient(transport=transport, base_url="http://lake.test/api/v1", auth=(KEY_ID, SECRET))
        yield Application(app, lake, clock, runner, http)
        runner.run(http.aclose())
        app.state.service.close()
