"""Make JSON answers: the model's own serializer writes the bytes, and nothing validates them a second time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel
from starlette.responses import Response

from refstore.core.visible_text import make_visible_json
from refstore.operations.read import PAGE_BYTES_MAX
from refstore_api.models import Pagination

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

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


def make_page_response(pagination: Pagination, results: Sequence[msgspec.Struct]) -> Response:
    """Answer with a page whose items are JSON already but for the encoding."""
    return make_fields_response({"pagination": pagination.model_dump(exclude_none=True), "results": results})


def make_empty_response(status: int = NO_CONTENT, *, headers: Mapping[str, str] | None = None) -> Response:
    return Response(status_code=status, headers=headers)


def take_page(
    items: Iterator[T], amount: int, name: Callable[[T], str], size: Callable[[T], int] = lambda _item: 0
) -> tuple[list[T], Pagination]:
    """Take the first `amount` items, fewer if their bytes (`size`) fill a page, and say whether there are more."""
    results: list[T] = []
    size_bytes = 0
    has_more = False
    for item in items:
        if len(results) == amount or size_bytes >= PAGE_BYTES_MAX:
            has_more = True
            break
        results.append(item)
        size_bytes += size(item)
    offset = name(results[-1]) if has_more and results else ""
    return results, Pagination(has_more=has_more, next_offset=offset, results=len(results), max_per_page=amount)
