"""Our own OpenAPI document, held against the service by schemathesis: whatever is asked, what is answered stands in the
document.

Half of the requests name what is there, so that more than "not found" is looked at. One round for each way to log in.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.types import Receive, Scope, Send

from refstore.configuration.settings import Settings
from refstore.kv.memory import MemoryKV
from refstore.lake import Lake
from refstore.service import access_keys
from refstore_api import create_app
from refstore_api.auth import Authenticator
from refstore_api.openapi import OPEN
from tests.kit.clock import FakeClock

KEY_ID, SECRET = "AKIACONTRACT", "a-secret-of-the-contract-tests"
EXAMPLES = 15
OBJECTS = "memory://contract"
NAMES = {
    "repository": "contract",
    "branch": "main",
    "ref": "main",
    "left_ref": "main~1",
    "right_ref": "main",
    "source_ref": "side",
    "destination_branch": "main",
    "commit_id": "main",
    "tag": "v1",
}
CHECKS = (
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
)


class Served(NamedTuple):
    app: FastAPI
    lake: Lake

    def authorization(self, scheme: str) -> str:
        if scheme == "basic":
            return "Basic " + base64.b64encode(f"{KEY_ID}:{SECRET}".encode()).decode()
        found: Authenticator = self.app.state.authenticator
        return "Bearer " + asyncio.run(found.login(KEY_ID, SECRET, "127.0.0.1"))[0]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    clock = FakeClock()
    with Lake(MemoryKV(), OBJECTS, clock=clock) as lake:
        access_keys.create_key(lake, access_keys.Role.OPERATOR, id=KEY_ID, secret=SECRET)
        repo = lake.create_repository("contract")
        repo.upload("main", "p", b"a body", metadata={"by": "us"})
        repo.commit("main", "first")
        repo.create_branch("side", source="main")
        repo.create_tag("v1", ref="main")
        repo.upload("side", "q", b"another")
        repo.commit("side", "second")
        # the check that every route asks for credentials sends many wrong ones, and knows 401 only
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("refstore_api.auth.WRONG_SECRETS_MAX", 0)
            settings = Settings(data=None, kv="memory://", objects=OBJECTS)
            app = create_app(settings, lake=lake)
        yield Served(app, lake)
        app.state.service.close()


def map_path_parameters(context: Any, path_parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    """Every other request; but what is there stays there for the others."""
    if not path_parameters or len(str(path_parameters)) % 2 or context.operation.method == "delete":
        return path_parameters
    return {name: NAMES.get(name, value) for name, value in path_parameters.items()}


def map_query(context: Any, query: dict[str, Any] | None) -> dict[str, Any] | None:
    """Likewise, and nothing that lists is told to begin behind the end."""
    if not query or len(str(query)) % 2:
        return query
    kept = {
        name: value for name, value in query.items() if name not in ("after", "prefix", "presign", "physical_address")
    }
    return kept | ({"path": "p"} if "path" in query else {})


@pytest.fixture
def contract(served: Served) -> Any:
    async def kept_open(scope: Scope, receive: Receive, send: Send) -> None:
        """The application, without the end that every single client of schemathesis would bring it to."""
        if scope["type"] == "http":
            await served.app(scope, receive, send)
            return
        for said in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{said}.complete"})

    found = schemathesis.openapi.from_asgi("/openapi.json", kept_open)
    found.hook(map_path_parameters)
    found.hook(map_query)
    return found


@pytest.mark.parametrize(
    ("scheme", "examples", "more"), [("basic", EXAMPLES, ()), ("bearer", 3, (ignored_auth,))], ids=["secret", "token"]
)
def test_what_is_answered_stands_in_the_document(
    contract: Any, served: Served, scheme: str, examples: int, more: tuple[Any, ...]
) -> None:
    authorization = served.authorization(scheme)
    bounded = settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    found: list[str] = []
    asked = 0
    succeeded: set[str] = set()
    for result in contract.get_all_operations():
        operation = result.ok()

        def check(case: schemathesis.Case) -> None:
            nonlocal asked
            asked += 1
            answered = case.call(headers={"Authorization": authorization})
            # 501 is no failure of the server: it says, as the document does, that this is not to be had here
            failed = [] if answered.status_code == 501 else [not_a_server_error]
            case.validate_response(answered, checks=[*failed, *CHECKS, *more])
            if answered.status_code < 400:
                succeeded.add(case.operation.label)

        try:
            bounded(given(case=operation.as_strategy())(check))()
        except (FailureGroup, Failure) as error:
            found.append(f"{operation.label}: {error}")
    print(f"{asked} requests; {len(succeeded)} routes did what they were asked for at least once")
    assert len(succeeded) >= 25, sorted(succeeded)  # refusals alone would show little
    assert not found, "\n\n".join(found)


def test_the_document_names_both_schemes_on_every_route_that_is_not_open(served: Served) -> None:
    document = served.app.openapi()
    assert set(document["components"]["securitySchemes"]) == {"basic_auth", "jwt_token"}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            schemes = [name for each in operation.get("security", ()) for name in each]
            assert schemes == ([] if operation["operationId"] in OPEN else ["basic_auth", "jwt_token"]), (method, path)


def test_schemas_have_lakefs_names(served: Served) -> None:
    """Generators of clients name classes by them."""
    schemas = served.app.openapi()["components"]["schemas"]
    assert {"Commit", "Merge", "Ref", "Repository"} <= schemas.keys()
    assert [name for name, schema in schemas.items() if name.endswith("Model") or schema["title"] != name] == []


def test_no_two_routes_have_one_operation_id(served: Served) -> None:
    found = [
        operation["operationId"]
        for operations in served.app.openapi()["paths"].values()
        for operation in operations.values()
    ]
    assert len(found) == len(set(found))
