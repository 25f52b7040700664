"""Declare the parameters that many routes share, with the names and bounds of lakeFS."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Depends, Query, Request

from refstore_api.json_bodies import BodyBound
from refstore_http.service import Service

COMMIT_BODY: Final = BodyBound(1 << 20)
"""A message and metadata of 64 KiB each; JSON takes up to six times as many bytes."""
METADATA_BODY: Final = BodyBound(512 << 10)

Prefix = Annotated[str, Query(max_length=1024, description="Return only items that begin with this.")]
Delimiter = Annotated[
    str, Query(max_length=16, description="Fold paths that continue after it into one common prefix.")
]
ObjectPath = Annotated[str, Query(min_length=1, max_length=1024, description="The object's path.")]
Presign = Annotated[bool, Query(description="Answer with URLs that work without credentials.")]


async def service_of(request: Request) -> Service:  # async, because FastAPI calls plain functions in a thread
    service: Service = request.app.state.service
    return service


ServiceOf = Annotated[Service, Depends(service_of)]
