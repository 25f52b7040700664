"""The routers of `/api/v1`, in the order in which they are tried. Importing this module imports all of them."""

from __future__ import annotations

from typing import Final

from refstore_api.routes import (
    branches,
    gc,
    imports,
    installation,
    objects,
    operations,
    purge,
    refs,
    repositories,
    staging,
    tags,
    unsupported_routes,
)

ROUTERS: Final = (
    staging.router,  # first, because routes are tried in order and clients use these most
    objects.router,
    installation.router,
    repositories.router,
    branches.router,
    imports.router,
    tags.router,
    refs.router,
    gc.router,
    operations.router,
    purge.router,
    unsupported_routes.router,
)
