"""The pages of a lake as an operator, or another, reads them, without a server."""

from __future__ import annotations

import asyncio
import re

import httpx

from refstore.configuration.settings import ApiSettings, Settings
from refstore.lake import Lake
from refstore.service import access_keys
from refstore.service.access_keys import Role
from refstore_api import create_app

SECRET = "a-secret-that-only-these-tests-know"


def pages_of(
    lake: Lake, *paths: str, role: Role = Role.OPERATOR, api: ApiSettings | None = None, status: int = 200
) -> list[str]:
    """Return the text of these pages, for one who has signed in; `paths` are below `/ui`. `status`: of all answers."""
    if access_keys.find_key(lake.kv, role.name) is None:
        access_keys.create_key(lake, role, id=role.name, secret=SECRET)
    settings = Settings(data=None, kv="memory://", objects=lake.objects_url, api=api or ApiSettings())
    app = create_app(settings, lake=lake)

    async def visit() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://lake.test") as http:
            page = await http.get("/ui/sign-in")
            token = re.findall(r'name="form_token" value="([^"]+)"', page.text)[0]
            form = {"form_token": token, "access_key_id": role.name, "secret_access_key": SECRET}
            answer = await http.post("/ui/sign-in", data=form, headers={"Origin": "http://lake.test"})
            assert answer.status_code == 303
            return [await http.get(f"/ui{path}") for path in paths]

    try:
        answers = asyncio.run(visit())
    finally:
        app.state.service.close()
    assert [answer.status_code for answer in answers] == [status] * len(paths)
    return [re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", answer.text)) for answer in answers]
