"""Answer with pages of lists, which say whether there are more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

import msgspec
from fastapi import Depends, Query
from starlette.responses import Response

from refstore.operations.read import PAGE_BYTES_MAX
from refstore_api.models import Pagination
from refstore_http.json_responses import make_fields_response

T = TypeVar("T")

AMOUNT_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class PageBounds:
    """Which page of a list a request asks for, with the names and bounds of lakeFS."""

    after: Annotated[str, Query(max_length=4096, description="Return items after this one.")] = ""
    amount: Annotated[
        int, Query(ge=-1, le=AMOUNT_MAX, description="How many items to return; -1: as many as one page holds.")
    ] = 100

    @property
    def most(self) -> int:
        """How many items the page may have."""
        return AMOUNT_MAX if self.amount < 0 else self.amount or 100

    def describe(self, results: int, next_offset: str, *, has_more: bool) -> Pagination:
        """Describe the page that has so many results."""
        return Pagination(
            has_more=has_more, next_offset=next_offset if has_more else "", results=results, max_per_page=self.most
        )

    def take(
        self,
        items: Iterator[T],
        name: Callable[[T], str],
        size: Callable[[T], int] = lambda _item: 0,
    ) -> tuple[list[T], Pagination]:
        """Take the first items, fewer if their bytes (`size`) fill a page, and say whether there are more."""
        results: list[T] = []
        size_bytes = 0
        has_more = False
        for item in items:
            if len(results) == self.most or size_bytes >= PAGE_BYTES_MAX:
                has_more = True
                break
            results.append(item)
            size_bytes += size(item)
        return results, self.describe(len(results), name(results[-1]) if results else "", has_more=has_more)


PageOf = Annotated[PageBounds, Depends()]


def make_page_response(pagination: Pagination, results: Sequence[msgspec.Struct]) -> Response:
    """Answer with a page whose items are JSON already but for the encoding."""
    return make_fields_response({"pagination": pagination.model_dump(exclude_none=True), "results": results})
