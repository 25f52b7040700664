"""Attacks by bodies: without a key, without the role, too large, with very many values, very deep.

Every route of the application is asked, those of the pages and those that no document shows as well, and what it took
of an endless body is counted.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final, NamedTuple

import pytest
from fastapi.routing import APIRoute, RouteContext, iter_route_contexts

from refstore.service import access_keys
from refstore.service.access_keys import Role
from refstore_api import json_bodies
from refstore_api.json_bodies import DEPTH_MAX, OPEN_BYTES_MAX, ROUTE_BYTES_MAX, VALUES_MAX, BoundedBodyRoute
from refstore_api.lazy_routes import include_all
from refstore_api.routes import documentation
from refstore_api.routes.objects import upload_object
from refstore_api.routes.staging import put_signed
from refstore_api.ui import static_files
from refstore_http import memory_budget, request_bodies
from refstore_http.memory_budget import MemoryBudget
from tests.api.conftest import KEY_ID, SECRET
from tests.api.service import Application, application

KIB: Final = 1 << 10
DELETE: Final = "/repositories/alpha/branches/main/objects/delete"
CHUNK: Final = b" " * KIB
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
LARGER: Final = {
    "POST /api/v1/repositories/{repository}/metadata": 512 * KIB,
    "DELETE /api/v1/repositories/{repository}/metadata": 512 * KIB,
    "POST /api/v1/repositories/{repository}/branches/{branch}/commits": 1024 * KIB,
    "POST /api/v1/repositories/{repository}/branches/{branch}/revert": 1024 * KIB,
    "POST /api/v1/repositories/{repository}/branches/{branch}/cherry-pick": 1024 * KIB,
    "POST /api/v1/repositories/{repository}/refs/{source_ref}/merge/{destination_branch}": 1024 * KIB,
    "POST /api/v1/repositories/{repository}/branches/{branch}/import": 8192 * KIB,
    "POST /api/v1/repositories/{repository}/branches/{branch}/objects/delete": 4096 * KIB,
    "PUT /api/v1/repositories/{repository}/settings/gc_rules": 4096 * KIB,
    "POST /api/v1/repositories/{repository}/gc/rules": 4096 * KIB,
    "PUT /api/v1/repositories/{repository}/purge/document": 2048 * KIB,
}
"""The routes whose body may have more than 64 KiB. Think before you add one: its callers can have that much parsed."""
FORMS: Final = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b")
STREAMED: Final = (upload_object, put_signed)
"""The routes that pass a body of any size on to the store."""
FILES: Final = (documentation.script, documentation.style, static_files.style, static_files.script, static_files.icon)


class Asked(NamedTuple):
    status: int
    taken_bytes: int


@pytest.fixture(scope="module")
def service() -> Iterator[Application]:
    with application(constants={"api.auth.WRONG_SECRETS_MAX": 0}) as found:
        found.lake.create_repository("alpha")
        include_all(found.app)
        yield found


def routes(service: Application) -> list[RouteContext]:
    found = list(iter_route_contexts(service.app.routes))
    assert len(found) > 100
    return found


def methods_of(route: RouteContext) -> set[str]:
    assert route.methods, f"a route of another kind, which this test does not ask: {route.route}"
    return route.methods


def url_of(route: RouteContext) -> str:
    names = dict.fromkeys(getattr(route, "param_convertors", {}), "walked")
    return (route.path or "").replace(":path", "").format(**names)


def with_body(service: Application) -> list[RouteContext]:
    return [
        route
        for route in routes(service)
        if isinstance(route.original_route, APIRoute) and route.original_route.body_field is not None
    ]


def ask(
    service: Application, method: str, url: str, *, authorization: str = "", kind: str = "application/json", **more: str
) -> Asked:
    """Send an endless body; count what the application takes of it before it answers."""
    taken_bytes = 0
    sent_bytes = 0
    status = 0
    fields = [(b"host", b"lake.test"), (b"origin", b"http://lake.test"), (b"content-type", kind.encode())]
    fields += [(b"authorization", authorization.encode())] if authorization else []
    fields += [(name.encode(), value.encode()) for name, value in more.items()]
    path, _, query = url.partition("?")
    scope: dict[str, Any] = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "", "headers": fields,
        "client": ("192.0.2.1", 1), "server": ("lake.test", 80), "state": {},
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        nonlocal taken_bytes, sent_bytes
        if sent_bytes > 16 << 20:
            return {"type": "http.disconnect"}
        sent_bytes += len(CHUNK)
        await asyncio.sleep(0)  # as a network: an answer goes on while a body comes
        if not status:  # an answer that is under way looks whether its client goes away, and drops what comes
            taken_bytes = sent_bytes
        return {"type": "http.request", "body": CHUNK, "more_body": True}

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)

    service.runner.run(service.app(scope, receive, send))
    return Asked(status, taken_bytes)


def basic(key: access_keys.NewKey | None = None) -> str:
    import base64

    id_, secret = (key.key.id, key.secret) if key is not None else (KEY_ID, SECRET)
    return "Basic " + base64.b64encode(f"{id_}:{secret}".encode()).decode()


def is_file(route: RouteContext) -> bool:
    """Whether it answers with a file, which drops what comes of a body while the file is opened."""
    original = route.original_route
    return isinstance(original, APIRoute) and original.endpoint in FILES


def test_nobody_without_a_key_has_much_of_a_body_read(service: Application) -> None:
    """A new route that needs no key, and reads more, fails here."""
    for route in routes(service):
        for method in METHODS:
            for kind in FORMS:
                asked = ask(service, method, url_of(route), kind=kind)
                if asked.status == 200 and is_file(route):
                    continue
                assert asked.taken_bytes <= OPEN_BYTES_MAX + KIB, (method, route.path, kind, asked)
                assert asked.status >= 300 or not asked.taken_bytes, (method, route.path, asked)


def test_a_login_of_many_connections_holds_little(service: Application) -> None:
    assert ask(service, "POST", "/api/v1/auth/login") == Asked(413, OPEN_BYTES_MAX + KIB)
    declared = {"content-length": str(OPEN_BYTES_MAX + 1)}
    assert ask(service, "POST", "/api/v1/auth/login", **declared) == Asked(413, 0)


@pytest.mark.parametrize("role", [Role.READER, Role.WRITER])
def test_the_role_comes_before_the_body(service: Application, role: Role) -> None:
    key = basic(access_keys.create_key(service.lake, role))
    refused = 0
    for route in routes(service):
        for method in methods_of(route):
            asked = ask(service, method, url_of(route), authorization=key)
            assert not asked.taken_bytes or asked.status != 403, (method, route.path, asked)
            refused += asked.status == 403
    assert refused > (10 if role is Role.WRITER else 30)


def test_a_body_is_bounded_by_its_route(service: Application) -> None:
    found: dict[str, int] = {}
    bodies = with_body(service)
    for route in bodies:
        for method in methods_of(route):
            asked = ask(service, method, url_of(route), authorization=basic())
            assert asked.status == 413, (method, route.path, asked)
            found[f"{method} {route.path}"] = asked.taken_bytes - KIB
    for route in routes(service):
        if route.endpoint not in [*STREAMED, *(each.endpoint for each in bodies)]:
            for method in methods_of(route) - {"GET", "HEAD"}:  # they drop what comes, to see the client go away
                asked = ask(service, method, url_of(route), authorization=basic())
                assert asked.taken_bytes <= OPEN_BYTES_MAX + KIB, (method, route.path, asked)
    assert {route: size for route, size in found.items() if size > ROUTE_BYTES_MAX} == LARGER
    assert len(found) > len(LARGER) + 10


def test_every_route_with_a_body_bounds_it(service: Application) -> None:
    """FastAPI's own way parses a body before it checks the role, and on the event loop."""
    for route in with_body(service):
        assert isinstance(route.original_route, BoundedBodyRoute), route.path


def test_a_client_whose_awaited_body_is_refused_cannot_send_it_as_a_request(service: Application) -> None:
    """Some clients send the body that waited for `100 Continue` although they got an answer."""
    waiting = {"expect": "100-continue"}
    refused = service("POST", COMMIT, json={"message": "m"}, headers=waiting, auth=(KEY_ID, "wrong"))
    assert (refused.status_code, refused.headers["connection"]) == (401, "close")
    taken = service("POST", COMMIT, json={"message": "m", "allow_empty": True}, headers=waiting)
    assert (taken.status_code, taken.headers.get("connection")) == (201, None)


# ---- what is inside

COMMIT: Final = "/repositories/alpha/branches/main/commits"


def many_members(count: int) -> bytes:
    return json.dumps({"message": "m", "metadata": {f"{number:x}": "" for number in range(count)}}).encode()


def many_wrong_members(count: int) -> bytes:
    return json.dumps({"message": "m", "metadata": {f"{number:x}": 1 for number in range(count)}}).encode()


@pytest.mark.parametrize("make", [many_members, many_wrong_members])
@pytest.mark.parametrize("count", [VALUES_MAX, 50_000])
def test_very_many_values_are_refused_unparsed(
    service: Application, monkeypatch: pytest.MonkeyPatch, make: Any, count: int
) -> None:
    parsed: list[int] = []
    check = json_bodies.check_shape

    def checking(body: bytes, values_max: int) -> None:
        check(body, values_max)
        parsed.append(len(body))

    monkeypatch.setattr(json_bodies, "check_shape", checking)
    headers = {"content-type": "application/json"}
    answered = service("POST", COMMIT, content=make(count), headers=headers)
    assert (answered.status_code, answered.json()["code"]) == (400, "invalid")
    assert f"more than {VALUES_MAX} values" in answered.text
    assert not parsed


@pytest.mark.parametrize("around", [b'{"message": "m", "metadata": %s}', b'{"x": "%%", "y": %s', b"%s"])
@pytest.mark.parametrize("depth", [DEPTH_MAX + 1, 100_000])
@pytest.mark.parametrize("brackets", [b"[]", b"{}"])
def test_what_is_very_deep_is_refused(service: Application, around: bytes, depth: int, brackets: bytes) -> None:
    body = around % (brackets[:1] * depth + brackets[1:] * depth)
    answered = service("POST", COMMIT, content=body, headers={"content-type": "application/json"})
    assert (answered.status_code, answered.json()["code"]) == (400, "invalid"), answered.text
    assert "levels" in answered.text or "values" in answered.text


def test_text_that_looks_like_many_values_is_text(service: Application) -> None:
    text = r'[{,"\\' * 9_000
    body = {"message": text, "metadata": {'",[{\\': ",[{" * 1_000}}
    answered = service("POST", COMMIT, json=body | {"allow_empty": True})
    assert answered.status_code == 201, answered.text
    assert answered.json()["message"] == text


@pytest.mark.parametrize("text", [b'"', b'"\\', b'"\\"', b'\\"', b'"a" "', b'"' * 5])
def test_text_without_an_end_is_taken_for_text(text: bytes) -> None:
    json_bodies.check_shape(b"," * 10 + text + b"," * 10_000, VALUES_MAX * 3)
    with pytest.raises(json_bodies.Invalid):
        json_bodies.check_shape(b"[" * (DEPTH_MAX + 1) + text, VALUES_MAX)


def test_what_is_large_is_parsed_off_the_event_loop(service: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    """Valid or not: FastAPI parses none of it."""
    threads: list[str] = []
    check = json_bodies.check_shape

    def checking(body: bytes, values_max: int) -> None:
        threads.append("loop" if threading.current_thread() is threading.main_thread() else "thread")
        check(body, values_max)

    monkeypatch.setattr(json_bodies, "check_shape", checking)
    large = {"message": "m" * 65_000, "allow_empty": True, "metadata": {"k": "v" * 2_000}}
    assert service("POST", COMMIT, json=large).status_code == 201
    assert service("POST", COMMIT, json=large | {"date": "x"}).status_code == 400
    headers = {"content-type": "application/json; charset=utf-8"}
    assert service("POST", COMMIT, content=json.dumps(large), headers=headers).status_code == 201
    answered = service("POST", COMMIT, content=json.dumps(large), headers={"content-type": "text/plain"})
    assert "Content-Type" in answered.text
    assert threads == ["thread"] * 3
    threads.clear()
    assert service("POST", COMMIT, json={"message": "m", "allow_empty": True}).status_code == 201
    assert threads == ["loop"]


def test_other_requests_go_on_while_a_large_body_is_parsed(
    service: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsing, go_on = threading.Event(), threading.Event()

    def waiting(_body: bytes, _values_max: int) -> None:
        parsing.set()
        assert go_on.wait(30)

    async def both() -> tuple[int, int]:
        large = asyncio.create_task(
            service.http.post(COMMIT, json={"message": "m" * 65_500, "allow_empty": True, "force": False})
        )
        while not parsing.is_set():
            await asyncio.sleep(0.001)
        other = await service.http.get("/user")
        go_on.set()
        return other.status_code, (await large).status_code

    monkeypatch.setattr(json_bodies, "check_shape", waiting)
    monkeypatch.setattr(request_bodies, "LOOP_BYTES_MAX", 1000)
    assert service.runner.run(both()) == (200, 201)


def test_large_bodies_of_a_key_are_parsed_in_turn(service: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones, and those of other keys, do not wait for them."""
    other = access_keys.create_key(service.lake, Role.WRITER)
    paths = {letter: {"paths": [letter * 1000] * 300} for letter in "xy"}
    parsed: list[bytes] = []
    counts: list[int] = []
    released = threading.Event()
    check = json_bodies.check_shape

    def check_and_wait(body: bytes, values_max: int) -> None:
        if len(body) > memory_budget.LARGE_BYTES and b"x" in body:
            parsed.append(body)
            counts.append(len(parsed))
            assert released.wait(30)
            parsed.pop()
        check(body, values_max)

    async def send_all() -> list[int]:
        large = [asyncio.create_task(service.http.post(DELETE, json=paths["x"])) for _ in range(6)]
        while not parsed:
            await asyncio.sleep(0.001)
        others = [await service.http.post(DELETE, json=paths["y"], auth=(other.key.id, other.secret))]
        others.append(await service.http.post(DELETE, json={"paths": ["x"]}))
        released.set()
        return [each.status_code for each in [*others, *[await each for each in large]]]

    monkeypatch.setattr(json_bodies, "check_shape", check_and_wait)
    assert service.runner.run(send_all()) == [200] * 8
    assert max(counts) == memory_budget.PARSED_AT_ONCE // 2


def test_slow_senders_of_large_bodies_hold_up_nobody(service: Application) -> None:
    """A place for a large body is taken when it has come: of eight that never end, none has one."""
    others = [access_keys.create_key(service.lake, Role.WRITER) for _ in range(2)]
    body = json.dumps({"paths": ["x" * 1000] * 300}).encode()
    memory: MemoryBudget = service.app.state.service.memory
    ended = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield body[:-1]
        await ended.wait()
        yield body[-1:]

    async def unannounced() -> AsyncIterator[bytes]:
        yield b'{"message": "of 40 bytes", "force": false, "allow_empty": true}'

    async def send_all() -> list[int]:
        content = {"content-type": "application/json"}
        slow = [
            asyncio.create_task(
                service.http.post(DELETE, content=slowly(), headers=content, auth=(each.key.id, each.secret))
            )
            for each in others * 4
        ]
        while memory.count_held() < 8 * 2 * (len(body) - 1):
            await asyncio.sleep(0.001)
        answers = [await service.http.post(COMMIT, content=unannounced(), headers=content)]
        answers.append(await service.http.post(DELETE, content=body, headers=content))
        ended.set()
        return [each.status_code for each in [*answers, *[await each for each in slow]]]

    assert service.runner.run(send_all()) == [201, *[200] * 9]
    assert memory.count_held() == 0


def test_a_body_for_which_its_key_has_no_room_is_asked_for_later(
    service: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"paths": ["x" * 1000] * 300}
    for route in (DELETE, "/repositories/alpha/branches/main/objects?path=x"):
        small = MemoryBudget(400_000)
        with monkeypatch.context() as patch:
            patch.setattr(service.app.state.service.memory, "open", small.open)
            answer = service("POST", route, json=body)
        assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "slow_down", "1")
        assert small.count_held() == 0
