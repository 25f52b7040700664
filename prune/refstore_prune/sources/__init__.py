"""Where names come from: a module for each kind of source, behind the interface in `base.py`."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import fields
from importlib import import_module
from typing import Any, Final

from refstore.errors import Invalid, MissingExtra
from refstore_prune.sources.base import NameSource, SourceOptions

NAME_SOURCES: Final = "refstore.names"
"""The group of the entry points by which other packages bring sources."""

_BUILT_IN: Final[dict[str, tuple[str, str]]] = {
    "list": ("refstore_prune.sources.name_list:open_list", ""),
    "exec": ("refstore_prune.sources.name_list:open_exec", ""),
    "lakefs": ("refstore_prune.sources.lakefs.source:open_lakefs", "lakefs"),
    "iceberg": ("refstore_prune.sources.iceberg:open_iceberg", "iceberg"),
    "delta": ("refstore_prune.sources.delta:open_delta", ""),
}
"""(module:function, the extra that installs its packages) of each kind."""

_TAKEN: Final[dict[str, Set[str]]] = {
    "list": {"column"},
    "exec": {"column"},
    "lakefs": {"endpoint", "rules", "properties"},
    "iceberg": {"properties"},
    "delta": set(),
}
"""Which options each kind takes; one of another package gets all."""


def open_sources(names: Iterable[str | NameSource], options: SourceOptions) -> list[NameSource]:
    """Open several sources, each with those of the options that its kind takes. Raises Invalid, also for no source and
    for an option that none of them takes; MissingExtra.
    """
    unset = SourceOptions()
    given = {each.name: getattr(options, each.name) for each in fields(options)}
    given = {name: value for name, value in given.items() if value != getattr(unset, name)}
    left = set(given)
    sources: list[NameSource] = []
    for each in names:
        if isinstance(each, NameSource):
            sources.append(each)
            continue
        own = {name: given[name] for name in given.keys() & _TAKEN.get(each.partition(":")[0], given.keys())}
        left -= own.keys()
        sources.append(open_source(each, SourceOptions(**own)))
    if not sources:
        raise Invalid("there is no source of names, and without one nothing can be kept; give one, such as list:FILE")
    if left:
        raise Invalid(f"none of these sources of names takes the option {min(left)!r}; leave it out")
    return sources


def open_source(text: str, options: SourceOptions) -> NameSource:
    """Open a source of names, such as `list:names.txt` or `lakefs:sales`. Raises Invalid, MissingExtra."""
    kind, colon, rest = text.partition(":")
    if not colon or not rest:
        raise Invalid(f"{text!r} is no source of names; write its kind first, such as list:FILE or lakefs:REPO")
    source: object = _opener(kind)(rest, options)
    if not isinstance(source, NameSource):
        raise Invalid(f"the package for {kind}: opened a {type(source).__name__}; it must return a NameSource")
    return source


def _opener(kind: str) -> Any:
    built_in = _BUILT_IN.get(kind)
    if built_in is None:
        from importlib.metadata import entry_points

        for entry in entry_points(group=NAME_SOURCES, name=kind):
            return entry.load()
        known = ", ".join(f"{each}:" for each in _BUILT_IN)
        raise Invalid(f"{kind!r} is no kind of source; use one of {known} or a package with an entry point for it")
    module, _, function = built_in[0].partition(":")
    try:
        return getattr(import_module(module), function)
    except ModuleNotFoundError as error:
        if not built_in[1] or (error.name or "").startswith("refstore"):
            raise
        raise MissingExtra(built_in[1], f"names of {kind}:") from error
