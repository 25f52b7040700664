"""Answer with pages of lists, which say whether there are more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec
from starlette.responses import Response

from refstore.operations.read import PAGE_BYTES_MAX
from refstore_api.models import Pagination
from refstore_http.json_responses import make_fields_response

T = TypeVar("T")


def make_page_response(pagination: Pagination, results: Sequence[msgspec.Struct]) -> Response:
    """Answer with a page whose items are JSON already but for the encoding."""
    return make_fields_response({"pagination": pagination.model_dump(exclude_none=True), "results": results})


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
