"""Make JSON answers: the model's own serializer writes the bytes, and nothing validates them a second time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from pydantic import BaseModel
from starlette.responses import Response

from refstore.core.visible_text import make_visible_json

NO_CONTENT = 204


def make_response(model: BaseModel, status: int = 200, *, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        make_visible_json(model.__pydantic_serializer__.to_json(model, exclude_none=True)),
        status,
        headers=headers,
        media_type="application/json",
    )


def make_fields_response(fields: Mapping[str, Any] | msgspec.Struct, status: int = 200) -> Response:
    """Answer with fields that are JSON already but for the encoding."""
    return Response(make_visible_json(msgspec.json.encode(fields)), status, media_type="application/json")


def make_empty_response(status: int = NO_CONTENT, *, headers: Mapping[str, str] | None = None) -> Response:
    return Response(status_code=status, headers=headers)
