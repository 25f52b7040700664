"""Say which branch or tag may be meant where a name is neither."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import Final

from refstore.context import Context
from refstore.core.suggestions import find_nearest
from refstore.errors import BranchNotFound, Corrupt, NotFound, TagNotFound, Unavailable
from refstore.records import keys

NAMES_MAX: Final = 1000
"""How many branches, and how many tags, are compared with an unknown name."""


def suggest_name(ctx: Context, error: NotFound) -> None:
    """Add to an error that names an unknown branch, tag or ref which one may be meant: for a branch, only a branch."""
    unknown, error.unknown = error.unknown, ""  # once
    if not unknown:
        return
    with suppress(Unavailable, Corrupt):  # the error itself says more than that the search failed
        open_branches = ((name, record.is_hidden) for name, record in ctx.branches.scan_open())
        branches = [name for name, hidden in islice(open_branches, NAMES_MAX) if not hidden]
        tags = [name for name, _ in ctx.kv.scan(keys.tags(ctx.repo), limit=NAMES_MAX)]
        names = [*branches, *tags]
        head = str(error).partition("; ")[0]
        if unknown in names:  # it is of the other kind
            error.args = (f"{head}; {unknown!r} is a {'tag' if unknown in tags else 'branch'}",)
            return
        fitting = branches if isinstance(error, BranchNotFound) else tags if isinstance(error, TagNotFound) else names
        if close := find_nearest(unknown, fitting):
            error.args = (f"{head}; did you mean {close!r}?",)
