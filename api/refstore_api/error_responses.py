"""Answer every error with lakeFS's body, `{"message": ...}`, with refstore's stable code beside it."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from refstore.errors import MergeConflict, RefstoreError
from refstore_api.models import Error, MergeConflictResult
from refstore_http.http_errors import code_of_status, headers_of, log_fault, message_of, status_of
from refstore_http.json_responses import make_response


def make_error_response(error: RefstoreError) -> Response:
    status = status_of(error)
    message = message_of(error)
    log_fault(error)
    if isinstance(error, MergeConflict):
        return make_response(MergeConflictResult(message=message, code=error.code, paths=list(error.paths)), status)
    headers = headers_of(error, status)
    if status == 401:
        headers["WWW-Authenticate"] = 'Basic realm="refstore"'
    return make_response(Error(message=message, code=error.code), status, headers=headers)


def install_error_handlers(app: FastAPI) -> None:
    async def handle_refstore_error(_request: Request, error: Any) -> Response:
        return make_error_response(error)

    async def handle_invalid_request(_request: Request, error: Any) -> Response:
        return make_response(Error(message=_explain_validation(error), code="invalid"), 400)

    async def handle_http_exception(_request: Request, error: Any) -> Response:
        detail = (
            str(error.detail) if error.status_code != 404 else "the service has no such route; see /docs for its routes"
        )
        code = code_of_status(error.status_code)
        return make_response(Error(message=detail, code=code), error.status_code, headers=error.headers)

    app.add_exception_handler(RefstoreError, handle_refstore_error)
    app.add_exception_handler(RequestValidationError, handle_invalid_request)
    app.add_exception_handler(HTTPException, handle_http_exception)


def _explain_validation(error: RequestValidationError) -> str:
    """Say which field is wrong and what is expected; never show the value, which may be a secret."""
    parts = [f"{'.'.join(str(place) for place in item['loc'])}: {item['msg']}" for item in error.errors()[:5]]
    return f"the request is not valid ({'; '.join(parts)}); see /docs"
