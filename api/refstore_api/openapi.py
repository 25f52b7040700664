"""Complete FastAPI's OpenAPI document with what FastAPI cannot know.

Every route that needs a key lists both ways to log in. Requests that are not valid are answered with 400 and lakeFS's
error body, never with 422.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from refstore import __version__
from refstore_api.lazy_routes import include_all
from refstore_api.routes import STATUS_DESCRIPTIONS

OPEN: Final = frozenset({"healthCheck", "getSetupState", "login", "getSigned", "putSigned", "liveness", "readiness"})
"""Operations that need no access key; signed URLs carry their own proof."""
_CLASS_SUFFIX: Final = re.compile(r'("|/schemas/)(\w+)Model"')
"""A model whose plain name another class of refstore has ends in `Model`; its schema has lakeFS's name."""
_PATH_NAME: Final = re.compile(r"\{(\w+)")
_ERROR: Final = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
SCHEMES: Final[dict[str, Any]] = {
    "basic_auth": {"type": "http", "scheme": "basic", "description": "An access key: id and secret."},
    "jwt_token": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "The token that login answers.",
    },
}


def install_openapi(app: FastAPI) -> None:
    def document() -> dict[str, Any]:
        app.openapi_schema = app.openapi_schema or _document(app)
        return app.openapi_schema

    app.openapi = document


def _document(app: FastAPI) -> dict[str, Any]:
    include_all(app)
    document = get_openapi(title=app.title, version=__version__, description=app.description, routes=app.routes)
    for path, operations in document["paths"].items():
        for operation in operations.values():
            _add_path_parameters(path, operation)
            answers = operation.setdefault("responses", {})
            answers.pop("422", None)
            if "requestBody" in operation:
                for status in (408, 413):
                    answers.setdefault(str(status), {"description": STATUS_DESCRIPTIONS[status], "content": _ERROR})
            if operation.get("operationId") not in OPEN:
                operation["security"] = [{"basic_auth": []}, {"jwt_token": []}]
    components = document.setdefault("components", {})
    components["securitySchemes"] = SCHEMES
    for unused in ("HTTPValidationError", "ValidationError"):
        components.get("schemas", {}).pop(unused, None)
    return json.loads(_CLASS_SUFFIX.sub(r'\1\2"', json.dumps(document)))


def _add_path_parameters(path: str, operation: dict[str, Any]) -> None:
    """Name what a route reads from its path by `ApiCall`, and not by a parameter of its own."""
    parameters = operation.setdefault("parameters", [])
    declared = {each["name"] for each in parameters if each["in"] == "path"}
    parameters += [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PATH_NAME.findall(path)
        if name not in declared
    ]
