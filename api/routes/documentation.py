"""`/docs`: Swagger UI over our own document, with every file from this service. Nothing in it names another host, and its policy lets the
browser ask none, so it works where there is no way out and runs no script that somebody else may change.

The files are those of the package fastapi-offline, which ships Swagger UI's releases; nothing else of it is used.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from fastapi import APIRouter
from starlette.responses import FileResponse, HTMLResponse, Response

from refstore.errors import MissingExtra

router = APIRouter(include_in_schema=False)

PACKAGE: Final = "fastapi_offline"
SCRIPT: Final = "swagger-ui-bundle.js"
STYLE: Final = "swagger-ui.css"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; "
    "img-src 'self' data:; "  # Swagger UI has its icons in its style sheet
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"}
KEPT: Final = {"Cache-Control": "max-age=86400"}

# relative addresses: the service may stand below a path of a proxy
PAGE: Final = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>refstore: API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/{STYLE}">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/{SCRIPT}"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
START: Final = """SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  showExtensions: true,
  showCommonExtensions: true,
  validatorUrl: null, // it would be asked at another host
});
"""
"""A file of its own, as the policy allows no script in the page."""


@router.get("/docs")
async def page() -> Response:
    _file(SCRIPT)
    return HTMLResponse(PAGE, headers=HEADERS)


@router.get("/docs/start.js")
async def start() -> Response:
    return Response(START, media_type="text/javascript", headers=KEPT)


@router.get(f"/docs/{SCRIPT}")
async def script() -> Response:
    return FileResponse(_file(SCRIPT), media_type="text/javascript", headers=KEPT)


@router.get(f"/docs/{STYLE}")
async def style() -> Response:
    return FileResponse(_file(STYLE), media_type="text/css", headers=KEPT)


@cache
def _file(name: str) -> Path:
    """Raises MissingExtra."""
    found = find_spec(PACKAGE)
    places = found.submodule_search_locations if found is not None else None
    path = next((path for place in places or () if (path := Path(place) / "static" / name).is_file()), None)
    if path is None:
        raise MissingExtra("api", "the page at /docs")
    return path
