"""The OpenAPI document: FastAPI's, with what it cannot know.

Both ways to log in stand on every route that needs one; requests that are not valid are answered with 400 and lakeFS's error body,
never with 422.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from api.routes import SAID
from refstore import __version__

OPEN: Final = frozenset({"healthCheck", "getSetupState", "login", "getSigned", "putSigned", "liveness", "readiness"})
"""What answers without an access key; signed URLs carry their own proof."""
_ERROR: Final = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
SCHEMES: Final[dict[str, Any]] = {
    "basic_auth": {"type": "http", "scheme": "basic", "description": "An access key: id and secret."},
    "jwt_token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT", "description": "The token that login answers."},
}


def install(app: FastAPI) -> None:
    made: dict[str, Any] = {}

    def document() -> dict[str, Any]:
        if not made:
            made.update(_document(app))
        return made

    app.openapi = document


def _document(app: FastAPI) -> dict[str, Any]:
    found = get_openapi(title=app.title, version=__version__, description=app.description, routes=app.routes)
    for operations in found["paths"].values():
        for operation in operations.values():
            answers = operation.setdefault("responses", {})
            answers.pop("422", None)
            if "requestBody" in operation:
                for status in (408, 413):
                    answers.setdefault(str(status), {"description": SAID[status], "content": _ERROR})
            if operation.get("operationId") not in OPEN:
                operation["security"] = [{"basic_auth": []}, {"jwt_token": []}]
    components = found.setdefault("components", {})
    components["securitySchemes"] = SCHEMES
    for unused in ("HTTPValidationError", "ValidationError"):
        components.get("schemas", {}).pop(unused, None)
    return found
