"""Routes for monitoring: readiness, which needs no access key, and metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from refstore.errors import RefstoreError
from refstore.lake import Lake
from refstore_api.auth import Reader
from refstore_api.request_metrics import CONTENT_TYPE, Metrics, lake_text
from refstore_api.routes import failures
from refstore_api.service import ServiceOf

router = APIRouter(tags=["health"])


@router.get(
    "/readiness",
    operation_id="readiness",
    responses={
        200: {"description": "Both stores answer, and are the lake's."},
        503: {"description": "One does not, or is not."},
    },
)
async def readiness(service: ServiceOf) -> Response:
    """Say whether the KV and the object store answer, and are the lake's. Anyone may ask, so the result is cached for a
    moment.
    """
    states = await service.readiness(_stores)
    return JSONResponse(states, 200 if set(states.values()) == {"ok"} else 503)


def _stores(lake: Lake) -> dict[str, str]:
    """Probe each store, and whether it is the lake's; return 'ok' or its error's code."""
    states = {"kv": "ok", "objects": "ok"}
    for store, check in (("kv", lake.check_kv), ("objects", lake.check_objects)):
        try:
            check()
        except RefstoreError as error:
            states[store] = error.code
    return states


@router.get("/metrics", operation_id="metrics", response_class=Response, responses=failures())
async def metrics(request: Request, service: ServiceOf, caller: Reader) -> Response:
    """Return metrics for Prometheus, which sends an access key as its basic_auth. They include the reaper's, and the
    figures of every repository.
    """
    request_metrics: Metrics = request.app.state.metrics
    text = request_metrics.text()
    if not caller.repositories:  # a key for some repositories learns nothing of the others
        text += await service.run(lambda: lake_text(service.lake) + service.reaper_metrics())
    return Response(text, media_type=CONTENT_TYPE)
