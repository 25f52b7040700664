"""Refuse internals in what applications copy: the examples, and the Python blocks of the README.

.venv/bin/python scripts/check_public_names.py

They import what a package offers at its top (`__all__`), and `refstore.errors`. They reach into no context, the
operations' own view of a repository, and into nothing whose name begins with an underscore.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = ("refstore", "refstore_reaper", "refstore_gc", "refstore_purge", "refstore_prune")
OTHER_PACKAGES: Final = ("refstore_api", "refstore_s3", "refstore_http")
"""Which have no public names: they are started, not imported."""
PUBLIC_MODULES: Final = frozenset({*PACKAGES, "refstore.errors"})
INTERNAL_ATTRIBUTES: Final = frozenset({"context"})
EXCEPTIONS: Final = "scripts/public_name_exceptions.txt"
_BLOCK: Final = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


class Fault(NamedTuple):
    subject: str
    """The place and the name, as the list of exceptions has them."""
    reason: str


def find_faults(source: str, place: str) -> Iterator[Fault]:
    """Yield each internal that a program uses."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if _is_ours(alias.name) and alias.name not in PUBLIC_MODULES:
                    yield Fault(f"{place}: {alias.name}", "is a module of refstore's own")
        elif isinstance(node, ast.ImportFrom) and node.module and _is_ours(node.module):
            if node.module not in PUBLIC_MODULES:
                yield Fault(f"{place}: {node.module}", "is a module of refstore's own")
                continue
            for alias in node.names:
                if not _offers(node.module, alias.name):
                    yield Fault(f"{place}: {node.module}.{alias.name}", f"is no name that {node.module} offers")
        elif isinstance(node, ast.Attribute):
            yield from _attribute_faults(node, place)


def _attribute_faults(node: ast.Attribute, place: str) -> Iterator[Fault]:
    of = node.value.id if isinstance(node.value, ast.Name) else ""
    if of in PACKAGES and not _offers(of, node.attr):
        yield Fault(f"{place}: {of}.{node.attr}", f"is no name that {of} offers")
    elif node.attr in INTERNAL_ATTRIBUTES:
        yield Fault(f"{place}: .{node.attr}", "is the operations' own view of a repository")
    elif node.attr.startswith("_") and not node.attr.startswith("__") and of not in ("self", "cls"):
        yield Fault(f"{place}: .{node.attr}", "is private")


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in (*PACKAGES, *OTHER_PACKAGES)


def _offers(module: str, name: str) -> bool:
    """Return whether a module offers a name; `refstore.errors` offers every error."""
    found = import_module(module)
    if module == "refstore.errors":
        return not name.startswith("_") and hasattr(found, name)
    return name in getattr(found, "__all__", ()) or name in ("__version__", "errors")


def read_programs(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each program that applications copy."""
    for file in sorted((root / "examples").rglob("*.py")):
        yield str(file.relative_to(root)), file.read_text("utf-8")
    for block in _BLOCK.findall((root / "README.md").read_text("utf-8")):
        yield "README.md", block


def read_exceptions(text: str) -> dict[str, str]:
    """Return the reason of each exception, by its subject."""
    lines = (line.partition(" # ") for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return {subject.strip(): reason.strip() for subject, _, reason in lines}


def check(root: Path, exceptions: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each internal that is used, but for the exceptions, and for each exception that excuses none."""
    excused: set[str] = set()
    for place, source in read_programs(root):
        for fault in find_faults(source, place):
            if fault.subject in exceptions:
                excused.add(fault.subject)
            else:
                yield f"{fault.subject} {fault.reason}; use a public name, or make it one"
    for subject in sorted(exceptions.keys() - excused):
        yield f"{subject}: is an exception, and no fault; take it off {EXCEPTIONS}"
    for subject in (subject for subject, reason in exceptions.items() if not reason):
        yield f"{subject}: is an exception without a reason"


def main() -> int:
    sys.path[:0] = [str(ROOT / folder) for folder in ("", "reaper", "offline_gc", "purge", "prune")]
    found = [*check(ROOT, read_exceptions((ROOT / EXCEPTIONS).read_text("utf-8")))]
    for line in found:
        print(line, file=sys.stderr)
    if not found:
        print("the examples and the README use public names only")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
