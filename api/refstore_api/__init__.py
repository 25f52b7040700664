"""Serve the HTTP API: `create_app(settings)` makes a FastAPI application that real lakeFS clients can drive.

Paths, operation ids, parameters, bodies and status codes under `/api/v1` are lakeFS's. refstore's own routes stand
beside them in the same style. Handlers are a few lines long; `error_responses.py` maps every error to HTTP. Only this
package imports `fastapi`.
"""

from refstore_api.app import create_app

__all__ = ["create_app"]
