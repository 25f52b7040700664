"""Faults of the operator's stores, over HTTP: each is a 503, the log has the whole reason, callers learn no host, and
who has no key learns only that the service is not ready.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from refstore.kv.redis import open_redis
from refstore.kv.retries import ATTEMPTS, RetryingKV
from refstore.monitoring.figures import change_reaper_figures
from refstore.records.figure_records import ReaperFigures
from refstore.service import access_keys
from refstore.service.access_keys import Role
from refstore_http.http_errors import ASK
from tests.api.pages import pages_of
from tests.api.service import Application, application
from tests.kit.clock import FakeClock
from tests.kit.logged_events import collecting_events
from tests.servers.redis_servers import RedisServer
from tests.servers.s3_base import S3Server
from tests.servers.s3_proxy import Refuse, S3FaultProxy

pytestmark = pytest.mark.server

NOT_READY = {"message": "not ready; make the same call again later", "code": "unavailable"}
READER = ("READER", "a-secret-of-a-reader")
BRANCH = "/repositories/alpha/branches/main"
WRITES: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", f"{BRANCH}/objects", {"params": {"path": "new"}, "content": b"x"}),
    (
        "POST",
        f"{BRANCH}/objects",
        {"params": {"path": "only"}, "content": b"x", "headers": {"If-None-Match": "*"}},
    ),
    ("DELETE", f"{BRANCH}/objects", {"params": {"path": "staged"}}),
    ("POST", f"{BRANCH}/objects/delete", {"json": {"paths": ["staged", "committed"]}}),
    ("POST", f"{BRANCH}/objects/copy", {"params": {"dest_path": "copy"}, "json": {"src_path": "committed"}}),
    ("POST", f"{BRANCH}/objects/move", {"json": {"src_path": "staged", "dest_path": "moved"}}),
    ("POST", f"{BRANCH}/commits", {"json": {"message": "change"}}),
    ("PUT", BRANCH, {"json": {"type": "reset"}}),
    ("PUT", BRANCH, {"json": {"type": "object", "path": "staged"}}),
    ("GET", f"{BRANCH}/staging/backing", {"params": {"path": "issued"}}),
    ("POST", "/repositories/alpha/branches", {"json": {"name": "new", "source": "main"}}),
    ("DELETE", "/repositories/alpha/branches/other", {}),
    ("POST", "/repositories/alpha/tags", {"json": {"id": "new", "ref": "main"}}),
    ("POST", "/repositories/alpha/refs/main/merge/other", {"json": {}}),
    ("POST", "/repositories", {"json": {"name": "beta", "storage_namespace": "mem://beta"}}),
    ("DELETE", "/repositories/alpha", {}),
]


def refuse_writes(client: redis.Redis, how: str) -> None:
    match how:
        case "too few replicas":
            client.config_set("min-replicas-to-write", "1")
        case "no memory":
            client.config_set("maxmemory", "1mb")
        case _:
            client.execute_command("REPLICAOF", "127.0.0.1", "1")


def take_writes(client: redis.Redis, how: str) -> None:
    match how:
        case "too few replicas":
            client.config_set("min-replicas-to-write", "0")
        case "no memory":
            client.config_set("maxmemory", "0")
        case _:
            client.execute_command("REPLICAOF", "NO", "ONE")


@contextlib.contextmanager
def on_redis(url: str) -> Iterator[tuple[Application, FakeClock]]:
    clock = FakeClock()
    with application(kv=RetryingKV(open_redis(url, clock), clock=clock)) as app:
        repo = app.lake.create_repository("alpha")
        repo.upload("main", "committed", b"1")
        repo.commit("main", "first")
        repo.create_branch("other", source="main")
        repo.upload("main", "second", b"2")
        repo.commit("main", "second")
        repo.upload("main", "staged", b"3")
        access_keys.create_key(app.lake, Role.READER, id=READER[0], secret=READER[1])
        yield app, clock


@pytest.mark.parametrize("how", ["too few replicas", "no memory", "read-only replica"])
def test_every_write_that_the_kv_refuses_waits_and_is_a_fault_of_the_store(tmp_path: Path, how: str) -> None:
    """Also a deletion, whose write shares its round trip with reads that the server answers."""
    with (
        RedisServer(tmp_path / "redis", fsync="no") as server,
        contextlib.closing(server.client()) as client,
        on_redis(server.url) as (app, clock),
    ):
        for method, path, options in WRITES:
            refuse_writes(client, how)
            began = clock.monotonic_seconds()
            with collecting_events() as events:
                answered = app(method, path, **options)
            take_writes(client, how)
            said = (answered.status_code, answered.json()["code"], answered.headers["Retry-After"])
            assert said == (503, "kv_unavailable", "1"), (method, path, answered.text)
            assert [each["event"] for each in events].count("kv_retry") >= ATTEMPTS - 1, (method, path)
            assert clock.monotonic_seconds() > began
            assert "127.0.0.1" not in answered.text
            (told,) = [each for each in events if each["event"] == "request_failed"]
            assert server.url.rpartition("/")[0] in told["error"]
        deleted = app("DELETE", f"{BRANCH}/objects", params={"path": "staged"})
        assert deleted.status_code == 204
        assert [item.path for item in app.lake.repository("alpha").list("main")] == ["committed", "second"]


def lock_out(client: redis.Redis, how: str) -> None:
    match how:
        case "NOPERM":
            client.execute_command("ACL", "SETUSER", "default", "-@all", "+acl", "+client", "+info", "+config")
        case "NOAUTH":
            client.execute_command("ACL", "SETUSER", "default", "resetpass", ">another")
            client.client_kill_filter(_type="normal", skipme=True)
        case _:
            client.execute_command("ACL", "SETUSER", "app", "resetpass", ">another")
            client.client_kill_filter(_type="normal", skipme=True)


@pytest.mark.parametrize("how", ["NOPERM", "NOAUTH", "WRONGPASS"])
def test_a_kv_that_refuses_the_service_is_told_to_the_log_and_to_nobody_else(tmp_path: Path, how: str) -> None:
    with RedisServer(tmp_path / "redis", fsync="no") as server, contextlib.closing(server.client()) as client:
        client.execute_command("ACL", "SETUSER", "app", "on", ">hush", "~*", "+@all")
        url = server.url.replace("//", "//app:hush@") if how == "WRONGPASS" else server.url
        with on_redis(url) as (app, clock), collecting_events() as events:
            objects = "/repositories/alpha/refs/main/objects"
            assert app("GET", objects, params={"path": "committed"}, auth=READER).content == b"1"
            lock_out(client, how)
            clock.advance(1)
            began = clock.monotonic_seconds()
            known = app("GET", objects, params={"path": "committed"}, auth=READER)
            assert (known.status_code, known.json()["code"]) == (503, "kv_refused")
            assert known.json()["message"].endswith(ASK)
            for answered in (
                app("GET", objects, params={"path": "committed"}, auth=("SOMEBODY", "guessed")),
                app("POST", f"{BRANCH}/objects", params={"path": "x"}, content=b"x", auth=("SOMEBODY", "guessed")),
                app("POST", "/auth/login", json={"access_key_id": "SOMEBODY", "secret_access_key": "guessed"}),
            ):
                assert (answered.status_code, answered.json()) == (503, NOT_READY)
            ready = app("GET", "http://lake.test/readiness", auth=None)
            assert (ready.status_code, ready.json()) == (503, {"status": "not ready"})
            page = app("POST", "http://lake.test/ui/sign-in", auth=None)
            for answered in (known, ready, page):
                assert "127.0.0.1" not in answered.text
                assert "redis" not in answered.text.lower()
            assert clock.monotonic_seconds() == began, "who is refused is refused again"
        told = [each for each in events if each["event"] in ("request_failed", "not_ready")]
        assert len(told) >= 5
        for each in told:
            assert each["code"] == "kv_refused"
            assert f"127.0.0.1:{server.port}" in each["error"]
            assert "hush" not in each["error"]


@pytest.mark.parametrize(
    ("fault", "advice"),
    [
        (Refuse(400, "ExpiredToken"), "renew them"),
        (Refuse(403, "RequestTimeTooSkewed"), "clock"),
        (Refuse(403, "AccessDenied"), "s3:GetObject"),
        (Refuse(403, "InvalidAccessKeyId"), "AWS_ACCESS_KEY_ID"),
        (Refuse(404, "NoSuchBucket"), "create it"),
        (Refuse(503, "SlowDown"), "overloaded"),
    ],
    ids=lambda value: getattr(value, "code", None),
)
def test_an_object_store_that_refuses_the_service_is_told_to_the_log_and_to_nobody_else(
    moto_s3_server: S3Server, fault: Refuse, advice: str
) -> None:
    with S3FaultProxy(moto_s3_server.endpoint) as proxy:
        url = moto_s3_server.url().replace(moto_s3_server.endpoint, proxy.endpoint)
        with application(objects=url) as app, collecting_events() as events:
            app.lake.create_repository("alpha").upload("main", "a", b"1")
            access_keys.create_key(app.lake, Role.READER, id=READER[0], secret=READER[1])
            proxy.plan = lambda _: fault
            read = app("GET", "/repositories/alpha/refs/main/objects", params={"path": "a"}, auth=READER)
            written = app("POST", f"{BRANCH}/objects", params={"path": "b"}, content=b"x")
            code = "objects_unavailable" if fault.status == 503 else "objects_refused"
            for answered in (read, written):
                assert (answered.status_code, answered.json()["code"]) == (503, code), answered.text
                assert answered.json()["message"].startswith("the object store cannot be used now")
            ready = app("GET", "http://lake.test/readiness", auth=None)
            assert (ready.status_code, ready.json()) == (503, {"status": "not ready"})
            for answered in (read, written, ready):
                assert "127.0.0.1" not in answered.text
                assert "s3://" not in answered.text
        told = [each for each in events if each["event"] in ("request_failed", "not_ready")]
        assert len(told) == 3
        assert all(fault.code in each["error"] and advice in each["error"] for each in told)


def test_pages_show_the_words_of_a_store_to_operators_only() -> None:
    with application() as app:
        repo = app.lake.create_repository("alpha")
        reason = "redis://10.0.0.7:6379 cannot be reached"

        def fail(before: ReaperFigures) -> ReaperFigures:
            return msgspec.structs.replace(before, error=reason, error_ms=app.clock.now_ms(), versions_warning=reason)

        change_reaper_figures(app.lake.kv, repo.context.repo, "write", fail)
        places = ("/repositories/alpha", "/reapers")
        assert all(reason in page for page in pages_of(app.lake, *places))
        for page in pages_of(app.lake, *places, role=Role.READER):
            assert "10.0.0.7" not in page
            assert "perators see the reason" in page
