"""Where a browser finds the pages."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from fastapi import Request

from refstore_http.service import Service

PATH: Final = "/ui"


def base_path_of(request: Request) -> str:
    """Return the path of the pages for a browser, which may reach them below a path of a proxy."""
    return urlsplit(public_url_of(request)).path.rstrip("/") + PATH


def public_url_of(request: Request) -> str:
    service: Service = request.app.state.service
    return service.settings.public_url
