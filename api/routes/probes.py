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
    """Whether the KV and the object store answer."""

    def check() -> dict[str, str]:
        found = {"kv": "ok", "objects": "ok"}
        try:
            service.lake.kv.scan(keys.REPOSITORIES, limit=1)
        except RefstoreError as error:
            found["kv"] = error.code
        try:
            store = open_objects(service.lake.objects_url)
            try:
                next(iter(store.list("_refstore/readiness")), None)
            finally:
                store.close()
        except RefstoreError as error:
            found["objects"] = error.code
        return found

    found = await service.run(check)
    return JSONResponse(found, 200 if set(found.values()) == {"ok"} else 503)


@router.get("/metrics", operation_id="metrics", response_class=Response, responses=failures())
async def metrics(request: Request, who: Reader) -> Response:
    """For Prometheus, which sends an access key as its basic_auth."""
    del who
    counted: Metrics = request.app.state.metrics
    return Response(counted.text(), media_type=CONTENT_TYPE)
