"""Who may do what, derived from the OpenAPI document: a route that is added is attacked here without being named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import httpx
import pytest

from refstore.service import access_keys
from refstore_api.openapi import OPEN
from refstore_api.routes.unsupported_routes import UNSUPPORTED
from tests.api.service import Application, application

OPERATORS_ONLY: Final = {
    "createRepository",
    "deleteRepository",
    "setGCRules",
    "internalSetGarbageCollectionRules",
    "deleteGCRules",
    "internalDeleteGarbageCollectionRules",
    "setGarbageCollectionRulesPreflight",
    "unmark",
    "confirmMark",
    "reaperStatus",
    "resumeReaper",
    "setPurgeDocument",
}
WRITERS_LOOKING: Final = {"getPhysicalAddress", "uploadObjectPreflight"}
"""By GET, and for writers all the same: what they answer is of use to nobody else."""
THROWN_AWAY: Final = {"postStatsEvents"}
"""By POST, and for readers: nothing is kept of it."""


class Route(NamedTuple):
    method: str
    path: str
    operation: str

    @property
    def url(self) -> str:
        """Of the repository `alpha`; every other name is one that is not there."""
        filled = self.path.removeprefix("/api/v1").replace("{repository}", "alpha")
        return "/".join("none" if part.startswith("{") else part for part in filled.split("/"))

    @property
    def writes(self) -> bool:
        return self.operation not in THROWN_AWAY and (
            self.method not in ("get", "head") or self.operation in WRITERS_LOOKING
        )

    @property
    def for_one_repository(self) -> bool:
        return "{repository}" in self.path


class Keys(NamedTuple):
    reader: tuple[str, str]
    writer: tuple[str, str]
    operator: tuple[str, str]
    elsewhere: tuple[str, str]
    """An operator's, for the repository `beta` only."""
    scoped: tuple[str, str]
    """A writer's, for `alpha` only."""


@pytest.fixture(scope="module")
def service() -> Iterator[Application]:
    with application(
        constants={"api.auth.WRONG_SECRETS_MAX": 0}
    ) as found:  # many wrong ones are to come; test_security_guessing.py has what is said then
        found.lake.create_repository("alpha")
        found.lake.create_repository("beta")
        yield found


@pytest.fixture(scope="module")
def keys(service: Application) -> Keys:
    def made(role: access_keys.Role, *repositories: str) -> tuple[str, str]:
        new = access_keys.create_key(service.lake, role, repositories=repositories)
        return new.key.id, new.secret

    return Keys(
        made(access_keys.Role.READER),
        made(access_keys.Role.WRITER),
        made(access_keys.Role.OPERATOR),
        made(access_keys.Role.OPERATOR, "beta"),
        made(access_keys.Role.WRITER, "alpha"),
    )


@pytest.fixture(scope="module")
def routes(service: Application) -> list[Route]:
    found = [
        Route(method, path, operation["operationId"])
        for path, operations in service.app.openapi()["paths"].items()
        for method, operation in operations.items()
    ]
    assert len(found) > 60
    return found


PATH: Final = {"path": "p", "dest_path": "q", "physical_address": "data/2026112113/00000000000000000000000000"}


def ask(service: Application, route: Route, auth: tuple[str, str] | None, **options: Any) -> httpx.Response:
    url = route.url if route.path.startswith("/api/v1") else f"http://lake.test{route.path}"
    return service(route.method.upper(), url, params=PATH, auth=auth, **options)


def bodies(route: Route) -> list[dict[str, Any]]:
    """None, one that is no JSON, one that is none of ours: who may not come in is told so whatever it sends."""
    if route.method in ("get", "head"):
        return [{}]
    return [{}, {"content": b"{not json", "headers": {"content-type": "application/json"}}, {"json": {"a": 1}}]


def test_every_route_that_is_not_open_refuses_a_caller_without_credentials(
    service: Application, routes: list[Route]
) -> None:
    for route in routes:
        for body in bodies(route):
            answered = ask(service, route, None, **body)
            assert (answered.status_code == 401) == (route.operation not in OPEN), (route, body, answered.text)
            if answered.status_code == 401:
                assert answered.headers["www-authenticate"] == 'Basic realm="refstore"'


def test_every_route_that_is_not_open_refuses_a_wrong_secret(
    service: Application, routes: list[Route], keys: Keys
) -> None:
    for route in routes:
        if route.operation not in OPEN:
            assert ask(service, route, (keys.operator[0], keys.reader[1])).status_code == 401, route


def test_what_is_open_is_what_has_to_be(routes: list[Route]) -> None:
    """Whatever else stands in the list would be a hole that no test sees."""
    assert {route.operation for route in routes} >= OPEN
    assert {"healthCheck", "getSetupState", "login", "getSigned", "putSigned", "liveness", "readiness"} == OPEN


def test_a_reader_who_writes_is_refused_on_every_route(service: Application, routes: list[Route], keys: Keys) -> None:
    refused = 0
    for route in routes:
        if route.operation in OPEN:
            continue
        status = ask(service, route, keys.reader, **whole(route)).status_code
        if route.writes or route.operation in OPERATORS_ONLY:
            refused += 1
            assert status == 403, route
        else:
            assert status not in (401, 403), route
    assert refused >= 30


def test_a_writer_who_operates_is_refused_on_every_route(service: Application, routes: list[Route], keys: Keys) -> None:
    assert {route.operation for route in routes} >= OPERATORS_ONLY
    for route in routes:
        if route.operation in OPEN:
            continue
        answered = ask(service, route, keys.writer, **whole(route))
        assert (answered.status_code == 403) == (route.operation in OPERATORS_ONLY), (route, answered.text)


def test_a_key_of_one_repository_is_refused_in_another_on_every_route(
    service: Application, routes: list[Route], keys: Keys
) -> None:
    for route in routes:
        if route.operation not in OPEN and route.for_one_repository:
            answered = ask(service, route, keys.elsewhere, **whole(route))
            assert answered.status_code == 403, (route, answered.text)


def test_a_key_of_one_repository_does_nothing_for_all_of_them(
    service: Application, routes: list[Route], keys: Keys
) -> None:
    for route in routes:
        if route.operation in OPEN or route.for_one_repository:
            continue
        status = ask(service, route, keys.elsewhere, **whole(route)).status_code
        assert (status == 403) == (route.operation in OPERATORS_ONLY), route


def test_a_key_of_one_repository_sees_no_other_in_a_listing(service: Application, keys: Keys) -> None:
    assert [found["id"] for found in service("GET", "/repositories", auth=keys.scoped).json()["results"]] == ["alpha"]
    assert [found["id"] for found in service("GET", "/repositories", auth=keys.reader).json()["results"]] == [
        "alpha",
        "beta",
    ]


def test_a_key_of_one_repository_cannot_tell_whether_another_exists(service: Application, keys: Keys) -> None:
    there, none = (service("GET", f"/repositories/{name}", auth=keys.scoped) for name in ("beta", "none-such"))
    assert (there.status_code, there.json()) == (none.status_code, none.json())


@pytest.mark.parametrize(
    "spelling", ["Alpha", "ALPHA", "alpha%00", "alpha%20", "%61lpha", "beta%2f..%2falpha", "alpha;x", "./alpha"]
)
def test_another_spelling_of_a_repository_does_not_pass_the_scope(
    service: Application, keys: Keys, spelling: str
) -> None:
    """The name that is checked is the name that is used: it is either refused, or it is `alpha` for both."""
    answered = service("GET", f"/repositories/{spelling}/branches", auth=keys.elsewhere)
    assert answered.status_code in (400, 403, 404)
    assert "alpha" not in answered.text.replace(spelling, "")


def test_what_lakefs_has_and_we_do_not_is_closed_too(service: Application) -> None:
    for path, _why in UNSUPPORTED:
        url = path.replace("{rest:path}", "").replace("{repository}", "alpha")
        for method in ("GET", "POST"):
            assert service(method, url, auth=None).status_code == 401, url


def whole(route: Route) -> dict[str, Any]:
    """A body that each route takes, so that nothing but the role can be what is wrong. None of what it names exists."""
    if route.method in ("get", "head"):
        return {}
    return {
        "json": {
            "name": "gamma-none", "id": "none", "ref": "none", "source": "none", "message": "m", "type": "reset",
            "metadata": {},
            "keys": [], "paths": [], "src_path": "none", "dest_path": "q", "checksum": "c", "size_bytes": 1,
            "staging": {"token": "t"},
            "physical_address": "s3://elsewhere/x", "default_retention_days": 1, "branches": [],
        }
    }  # fmt: skip
