"""The routers of the pages. Importing this module imports all of them, and Jinja2."""

from __future__ import annotations

from typing import Final

from refstore_api.ui import (
    access,
    audit,
    commits,
    marks,
    objects,
    overview,
    prunes,
    purges,
    reapers,
    repository,
    rules,
    runs,
    sign_in,
    static_files,
    trash,
)

ROUTERS: Final = (
    static_files.router,
    sign_in.router,
    overview.router,
    reapers.router,
    access.router,
    audit.router,
    prunes.router,
    repository.router,
    commits.router,
    objects.router,
    trash.router,
    marks.router,
    runs.router,
    rules.router,
    purges.router,
)
