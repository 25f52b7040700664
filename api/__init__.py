"""The HTTP API: `create_app(settings)`, a FastAPI application over `refstore.repository` that real lakeFS clients can drive.

Paths, operation ids, parameters, bodies and status codes under `/api/v1` are lakeFS's; where it has no word for what refstore does,
our own routes stand beside them in the same style. Handlers are a few lines; `errors.py` is the one table from the error tree
to HTTP. `fastapi` is imported in this package only.
"""

from api.app import create_app

__all__ = ["create_app"]
