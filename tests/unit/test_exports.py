"""Whatever a public method takes, returns or raises is exported: from `refstore`, or from `refstore.errors`.

The annotations are read as text, as most of them name what only type checkers import, and each name is looked up where
its module has it from. A field of an exported type counts as what a method returns.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from importlib import import_module
from operator import attrgetter
from types import ModuleType
from typing import Annotated, Final, Literal, NewType, cast, get_args, get_origin

import pytest

import refstore
import refstore_gc
import refstore_prune
import refstore_purge
import refstore_reaper

OF_REFSTORES_OWN: Final = {
    "Repository": {"context", "record"},
    "Upload": {"s3"},
    "Link": {"s3"},
    "NamingCommit": {"shown", "mark"},
    "PurgeRole": {"location"},
    "Retention": {"from_rules", "to_rules"},
    "RetentionRules": {"rules"},
    "Dataset": {"template"},
    "Deletion": {"of_record"},
    "Mark": {"of_record"},
    "MarkInfo": {"from_run"},
    "MarkReport": {"from_summary"},
    "SweepReport": {"from_result"},
    "purge": {"engines"},
}
"""What the service, the jobs and the commands use of a type, and no application."""
OF_APPLICATIONS: Final = {
    "close", "create_repository", "delete_repository", "id", "objects_url", "repositories", "repository", "safety",
    "set_metadata",
}  # fmt: skip
"""What applications use of a lake. The rest of it is for refstore's own applications."""
PACKAGES: Final = (refstore, refstore_reaper, refstore_gc, refstore_purge, refstore_prune)


def names_of(annotation: str) -> Iterator[str]:
    """Yield the names in an annotation, but not those in the values of a literal."""

    def walk(node: ast.AST) -> Iterator[str]:
        match node:
            case ast.Subscript(value=ast.Name(id="Literal")):
                return
            case ast.Constant(value=str() as text):
                yield from names_of(text)
            case ast.Name(id=name):
                yield name
            case ast.Attribute():
                yield ast.unparse(node)
            case _:
                for child in ast.iter_child_nodes(node):
                    yield from walk(child)

    yield from walk(ast.parse(annotation, mode="eval").body)


@cache
def imported_by(module: ModuleType) -> dict[str, tuple[str, str]]:
    """Where a module has its names from, also those that only type checkers import."""
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def find(name: str, module: ModuleType) -> object:
    first, _, rest = name.partition(".")
    if first in imported_by(module):
        source, original = imported_by(module)[first]
        try:
            found: object = getattr(import_module(source), original)
        except AttributeError:
            found = import_module(f"{source}.{original}")
    else:
        found = getattr(module, first, None) or getattr(sys.modules["builtins"], first)
    return attrgetter(rest)(found) if rest else found


def faults_of(value: object, exported: set[int]) -> Iterator[object]:
    """Yield what is refstore's own in a value that an annotation names, and is not exported."""
    if id(value) in exported or isinstance(value, NewType | str | int | None):
        return
    if get_origin(value) is Literal:
        return
    if get_origin(value) is Annotated or get_args(value):
        for each in get_args(value):
            yield from faults_of(each, exported)
    elif isinstance(value, list):
        for each in cast("list[object]", value):
            yield from faults_of(each, exported)
    elif inspect.isclass(value) and value.__module__.startswith("refstore"):
        yield value


def members_of(cls: type) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the public methods, properties and fields of a class, each with its annotations."""
    for name, member in inspect.getmembers(cls):
        inner = member.fget if isinstance(member, property) else getattr(member, "func", member)
        if isinstance(member, cached_property) or (not name.startswith("_") and inspect.isroutine(inner)):
            yield name, getattr(inspect.unwrap(inner), "__annotations__", {})
    for base in cls.__mro__:
        for name, annotation in vars(base).get("__annotations__", {}).items():
            if not name.startswith("_"):
                yield name, {"": annotation}


def is_shown(owner: str, bases: Sequence[type], name: str) -> bool:
    if owner == "Lake":
        return name in OF_APPLICATIONS
    return not any(name in OF_REFSTORES_OWN.get(each, ()) for each in (owner, *(base.__name__ for base in bases)))


def text_of(annotation: object) -> str:
    if isinstance(annotation, str):
        return annotation
    inner = re.search(r"ForwardRef\('(.*?)'", repr(annotation))
    return inner[1] if inner else getattr(annotation, "__name__", "None")


def annotations_of(value: object) -> Iterator[tuple[str, str, ModuleType]]:
    """Yield the members of a class, or the arguments of a function; each with an annotation, and the module whose
    names it has.
    """
    if not inspect.isclass(value):
        for name, annotation in getattr(value, "__annotations__", {}).items():
            yield name, text_of(annotation), sys.modules[value.__module__]
        return
    for name, found in members_of(value):
        owners = (base for base in value.__mro__ if name in {*vars(base), *vars(base).get("__annotations__", ())})
        module = sys.modules[next(owners, value).__module__]
        for annotation in found.values():
            yield name, text_of(annotation), module


def not_exported(package: ModuleType, name: str) -> Iterator[str]:
    exported = {id(getattr(each, other)) for each in PACKAGES for other in each.__all__}
    exported |= {id(value) for value in vars(refstore.errors).values()}
    value = getattr(package, name)
    for member, annotation, module in annotations_of(value):
        if is_shown(name, getattr(value, "__mro__", ()), member):
            for each in names_of(annotation):
                for fault in faults_of(find(each, module), exported):
                    yield f"{name}.{member}: {fault}"


@pytest.mark.parametrize(
    ("package", "name"),
    [(package, name) for package in PACKAGES for name in package.__all__ if name != "errors"],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
def test_what_it_takes_and_returns_is_exported(package: ModuleType, name: str) -> None:
    assert list(not_exported(package, name)) == []
