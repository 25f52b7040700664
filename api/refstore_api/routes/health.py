"""Routes for monitoring: readiness, which needs no access key, and metrics."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from refstore.errors import RefstoreError
from refstore.lake import Lake
from refstore_api.auth import Reader
from refstore_api.routes import COMMON
from refstore_api.shared_parameters import ServiceOf
from refstore_http.request_metrics import CONTENT_TYPE, RequestMetrics, render_lake_metrics
from refstore_http.service import Service
from refstore_reaper.reaper_metrics import read_metrics_file

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
    moment, and only the log says which store fails, and why.
    """
    is_ready = await service.is_ready(_faults)
    return JSONResponse({"status": "ready" if is_ready else "not ready"}, 200 if is_ready else 503)


def _faults(lake: Lake) -> list[RefstoreError]:
    """Probe each store, and whether it is the lake's; return the errors."""
    faults: list[RefstoreError] = []
    for check in (lake.check_kv, lake.check_objects):
        try:
            check()
        except RefstoreError as error:
            faults.append(error)
    return faults


@router.get("/metrics", operation_id="metrics", response_class=Response, responses=COMMON)
async def metrics(call: Reader) -> Response:
    """Return metrics for Prometheus, which sends an access key as its basic_auth. They include the reaper's, and the
    figures of every repository.
    """
    request_metrics: RequestMetrics = call.request.app.state.metrics
    text = request_metrics.render()
    if not call.principal.repositories:  # a key for some repositories learns nothing of the others
        service = call.service
        text += await service.run(lambda: render_lake_metrics(service.lake) + _reaper_metrics(service))
    return Response(text, media_type=CONTENT_TYPE)


def _reaper_metrics(service: Service) -> bytes:
    return read_metrics_file(service.reaper_metrics) if service.reaper_metrics is not None else b""
