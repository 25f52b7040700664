"""The pages for operators, at `/ui`: what the deleters do, what waits for deletion, and how to take it back.

The server renders every page (Jinja2 with autoescape), and every page works without JavaScript. One module makes the
pages of one subject; `sessions.py` says who asks, `pages.py` how a page is made, `forms.py` what a form sent and how an
act is asked for.

The modules of the pages are imported at the first request for one (`page_routers.py`).

A reader sees, a writer restores, an operator does the rest. An act that destroys, or lets destroy, has a page of its
own (GET), which shows the numbers of its dry run and asks; its form does it (POST).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from refstore.errors import Invalid, NotFound, RefstoreError
from refstore_api.lazy_routes import LazyRoutes
from refstore_api.ui.page_urls import PATH, base_path_of
from refstore_http.http_errors import message_of, status_of


def install(app: FastAPI) -> None:
    """Add the pages to the application, after its error handlers, which go on to answer for the API."""
    home = APIRouter(include_in_schema=False)

    @home.get("/")
    @home.get(f"{PATH}/")
    async def root(request: Request) -> Response:
        return RedirectResponse(base_path_of(request), 303)

    app.include_router(home)
    app.router.routes.append(LazyRoutes(app, [PATH], _routers, include_in_schema=False))
    for kind in (RefstoreError, RequestValidationError, HTTPException):
        _answer_pages_with_pages(app, kind)


def _routers() -> Sequence[APIRouter]:
    from refstore_api.ui.page_routers import ROUTERS

    return ROUTERS


def is_page(path: str) -> bool:
    """Return whether the path is one of the pages'."""
    return path == PATH or path.startswith(f"{PATH}/")


def _answer_pages_with_pages(app: FastAPI, kind: type[Exception]) -> None:
    """Answer an error of a page with a page, and an error of the API as before."""
    others: Any = app.exception_handlers[kind]

    async def handle(request: Request, error: Any) -> Response:
        if not is_page(request.url.path):
            return await others(request, error)
        from refstore_api.ui.pages import render_error
        from refstore_api.ui.sessions import SignInRequired, sign_in_url

        if isinstance(error, SignInRequired):
            return RedirectResponse(sign_in_url(request), 303)
        if isinstance(error, RefstoreError):
            response: Response = await others(request, error)  # it logs the error, and knows the headers
            answer = render_error(request, status_of(error), message_of(error))
            if "retry-after" in response.headers:
                answer.headers["retry-after"] = response.headers["retry-after"]
            return answer
        if isinstance(error, HTTPException):
            if error.status_code == 404:
                return render_error(request, 404, str(NotFound("there is no such page; go back to the overview")))
            return render_error(request, error.status_code, str(error.detail))
        return render_error(request, 400, str(Invalid("the address of this page is not valid; go back, and try again")))

    app.add_exception_handler(kind, handle)
