"""The route by which whoever started the service learns that it answers. It needs no access key, and little to import:
it is the only route of the API that is there from the start.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

router = APIRouter(tags=["health"])


@router.get("/healthcheck", operation_id="liveness", status_code=204)
async def liveness() -> Response:
    """Answer that the process runs."""
    return Response(status_code=204)
