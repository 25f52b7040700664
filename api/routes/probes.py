"""For what runs the service: does it live, can it work, how does it do. The first two without an access key."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from api.answers import nothing
from api.auth import Reader
from api.metrics import CONTENT_TYPE, Metrics
from api.routes import failures
from api.service import ServiceOf
from refstore import keys
from refstore.errors import RefstoreError
from refstore.lake import Lake
from refstore.objects import open_objects

router = APIRouter(tags=["health"])


@router.get("/healthcheck", operation_id="liveness", status_code=204)
async def liveness() -> Response:
    """The process answers."""
    return nothing()


@router.get(
    "/readiness", operation_id="readiness", responses={200: {"description": "Both stores answer."}, 503: {"description": "One does not."}}
)
async def readiness(service: ServiceOf) -> Response:
    """Whether the KV and the object store answer, or did a moment ago: anybody may ask, and no store is opened for each."""
    found = await service.readiness(_stores)
    return JSONResponse(found, 200 if set(found.values()) == {"ok"} else 503)


def _stores(lake: Lake) -> dict[str, str]:
    """What is wrong with each store, or that it is ok."""
    found = {"kv": "ok", "objects": "ok"}
    try:
        lake.kv.scan(keys.REPOSITORIES, limit=1)
    except RefstoreError as error:
        found["kv"] = error.code
    try:
        store = open_objects(lake.objects_url)
        try:
            next(iter(store.list("_refstore/readiness")), None)
        finally:
            store.close()
    except RefstoreError as error:
        found["objects"] = error.code
    return found


@router.get("/metrics", operation_id="metrics", response_class=Response, responses=failures())
async def metrics(request: Request, service: ServiceOf, who: Reader) -> Response:
    """For Prometheus, which sends an access key as its basic_auth. With what the reaper beside the service counted."""
    del who
    counted: Metrics = request.app.state.metrics
    return Response(counted.text() + await service.run(service.reaper_metrics), media_type=CONTENT_TYPE)
