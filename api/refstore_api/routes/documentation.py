"""Serve `/docs`: Swagger UI over the service's own document, with every file from this service.

No file names another host, and the policy lets the browser contact none. So the page works without internet access, and
runs no script that a third party can change. The files come from the package fastapi-offline, which ships Swagger UI's
releases; nothing else of it is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import fastapi_offline
from fastapi import APIRouter
from starlette.responses import FileResponse, HTMLResponse, Response

router = APIRouter(include_in_schema=False)

FOLDER: Final = Path(fastapi_offline.__file__).parent / "static"
SCRIPT: Final = "swagger-ui-bundle.js"
STYLE: Final = "swagger-ui.css"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; "
    "img-src 'self' data:; "  # Swagger UI has its icons in its style sheet
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"}
CACHED_HEADERS: Final = {"Cache-Control": "max-age=86400"}

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
"""A separate file, because the policy allows no inline script."""


@router.get("/docs")
async def page() -> Response:
    return HTMLResponse(PAGE, headers=HEADERS)


@router.get("/docs/start.js")
async def start() -> Response:
    return Response(START, media_type="text/javascript", headers=CACHED_HEADERS)


@router.get(f"/docs/{SCRIPT}")
async def script() -> Response:
    return FileResponse(FOLDER / SCRIPT, media_type="text/javascript", headers=CACHED_HEADERS)


@router.get(f"/docs/{STYLE}")
async def style() -> Response:
    return FileResponse(FOLDER / STYLE, media_type="text/css", headers=CACHED_HEADERS)
