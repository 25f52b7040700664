"""Serve the pages' style sheet and script from this package. They name no other host."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fastapi import APIRouter
from starlette.responses import FileResponse, Response

from refstore_api.ui.page_urls import PATH

router = APIRouter(prefix=PATH)

FOLDER: Final = Path(__file__).parent / "static"
HEADERS: Final = {"Cache-Control": "max-age=86400", "X-Content-Type-Options": "nosniff"}
"""Pages name the files with the version, so a new version is fetched at once."""


@router.get("/static/style.css")
async def style() -> Response:
    return FileResponse(FOLDER / "style.css", media_type="text/css", headers=HEADERS)


@router.get("/static/refresh.js")
async def script() -> Response:
    return FileResponse(FOLDER / "refresh.js", media_type="text/javascript", headers=HEADERS)


@router.get("/static/icon.svg")
async def icon() -> Response:
    return FileResponse(FOLDER / "icon.svg", media_type="image/svg+xml", headers=HEADERS)
