"""Refuse tests that use a private name of the product, and helpers of tests that exist twice.

.venv/bin/python scripts/check_tests.py

A planted fault is named `module:function` and edits a piece of source: it may lie anywhere (`tests/simulation`).
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from refstore.core.event_log import ROOTS as PACKAGES  # noqa: E402  # found by the path above
from scripts.check_names import PRODUCT, read_exceptions  # noqa: E402  # likewise

USERS: Final = ("tests", "bench", "examples")
PRIVATE: Final = re.compile(r"_[A-Za-z]\w*")
DOTTED: Final = re.compile(rf"(\w+\.)*{PRIVATE.pattern}")
PUBLIC_ALL_THE_SAME: Final = frozenset({"_asdict", "_fields", "_make", "_replace"})
"""Those of every named tuple."""
NODES_MIN: Final = 10
"""Of the syntax tree of a helper: what is smaller is as short as a call of it."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Helper(NamedTuple):
    name: str
    place: str
    body: str
    """Without what may differ between copies: its own name, the names of its variables, annotations and docstrings."""


class Usage(NamedTuple):
    name: str
    place: str
    is_text: bool
    """Whether it stands in quotes, as `monkeypatch.setattr` takes it: then it may be another word by chance."""


class PrivateNames(NamedTuple):
    everything: set[str]
    functions: set[str]
    """And classes."""


class TestFiles(NamedTuple):
    usages: list[Usage]
    """Of names with an underscore that the product may have, and the file itself has not."""
    helpers: list[Helper]


def read_private_names(root: Path, folders: Sequence[str]) -> PrivateNames:
    """Read the private names that all modules below these folders define."""
    names = PrivateNames(set(), set())
    for folder in folders:
        for file in sorted((root / folder).rglob("*.py")):
            tree = ast.parse(file.read_text("utf-8"))
            names.everything.update(_defined_names(tree))
            names.functions.update(node.name for node in ast.walk(tree) if isinstance(node, Function | ast.ClassDef))
    return names


def read_test_files(root: Path, folders: Sequence[str]) -> TestFiles:
    found = TestFiles([], [])
    for folder in folders:
        for file in sorted((root / folder).rglob("*.py")):
            place = str(file.relative_to(root))
            tree = ast.parse(file.read_text("utf-8"))
            defined = _defined_names(tree)
            found.usages.extend(
                Usage(name, place, is_text) for name, is_text in _used_names(tree) if name not in defined
            )
            if folder == "tests":
                found.helpers.extend(_helpers(tree, place))
    return found


def faults(files: TestFiles, private: PrivateNames, exceptions: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each fault, but for the exceptions, and for each exception that excuses none.

    `exceptions`: a reason by the fault's subject: `path: name`, of copies that of the first.
    """
    excused: set[str] = set()
    for subject, fault in _all_faults(files, private):
        if subject in exceptions:
            excused.add(subject)
        else:
            yield fault
    for subject in sorted(exceptions.keys() - excused):
        yield f"{subject}: is an exception, and breaks no rule; take it off the list"


def _all_faults(files: TestFiles, private: PrivateNames) -> Iterator[tuple[str, str]]:
    subjects = [
        f"{usage.place}: {usage.name}"
        for usage in files.usages
        if usage.name in (private.functions if usage.is_text else private.everything)
    ]
    for subject in sorted(set(subjects)):
        yield subject, f"{subject} is a private name of the product; test what is public, or make it so"
    places: defaultdict[str, list[Helper]] = defaultdict(list)
    for helper in files.helpers:
        places[helper.body].append(helper)
    for copies in places.values():
        if len(copies) > 1:
            subjects = [f"{helper.place}: {helper.name}" for helper in copies]
            yield (
                subjects[0],
                f"{', '.join(subjects)} are one helper; keep one, in tests/kit or the nearest conftest.py",
            )


def _defined_names(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, Function | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_own(node):
            names.add(node.attr)
    return {name for name in names if PRIVATE.fullmatch(name)}


def _used_names(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Yield the private names that a file imports from the product, looks up in something, or has in quotes; and
    whether in quotes.
    """
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in PACKAGES:
                parts = [*module.split("."), *(alias.name for alias in node.names)]
                yield from ((name, False) for name in parts if PRIVATE.fullmatch(name))
            case ast.Attribute(attr=name) if PRIVATE.fullmatch(name) and name not in PUBLIC_ALL_THE_SAME:
                yield name, False
            case ast.Constant(value=str(text)) if DOTTED.fullmatch(text):
                yield text.rpartition(".")[2], True
            case _:
                pass


def _is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def _helpers(tree: ast.Module, place: str) -> Iterator[Helper]:
    own = {node.name for node in tree.body if isinstance(node, Function | ast.ClassDef)}
    own |= {name.id for node in tree.body for name in _assigned(node)}
    for node in ast.walk(tree):
        if isinstance(node, Function) and not node.name.startswith("test") and not _is_short(node):
            yield Helper(node.name, place, _normalized(node, {name: f"{place}: {name}" for name in own}))


def _assigned(node: ast.stmt) -> list[ast.Name]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target for target in targets if isinstance(target, ast.Name)]


def _is_short(function: Function) -> bool:
    """Return whether it is too short to count, or passes a call on, as a wrapper of an interface does."""
    body = _without_docstring(function.body)
    if sum(1 for statement in body for _ in ast.walk(statement)) < NODES_MIN:
        return True
    passed = getattr(body[0], "value", None) if len(body) == 1 else None
    return isinstance(passed, ast.Call) and isinstance(passed.func, ast.Attribute) and passed.func.attr == function.name


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    match body:
        case [ast.Expr(ast.Constant(str())), *others]:
            return others
        case _:
            return body


def _normalized(function: Function, names: dict[str, str]) -> str:
    """Return the function's syntax, its variables replaced by numbers, and the names of its module by where they are.

    The tree loses its annotations and docstrings.
    """
    variables: list[str] = []
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            node.annotation = None
            variables.append(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            variables.append(node.id)
        elif isinstance(node, Function):
            node.returns = None
            node.body = _without_docstring(node.body)
    names = names | {name: f"v{number}" for number, name in enumerate(dict.fromkeys(variables))}
    names[function.name] = "itself"
    text = "\n".join(map(ast.dump, [function.args, *function.body]))
    return re.sub(r"(?<=\bid=')\w+(?=')|(?<=\barg=')\w+(?=')", lambda found: names.get(found[0], found[0]), text)


def main() -> int:
    """Print the faults; return 1 if there is one."""
    files = read_test_files(ROOT, USERS)
    exceptions = read_exceptions((ROOT / "scripts" / "test_exceptions.txt").read_text("utf-8"))
    found = list(faults(files, read_private_names(ROOT, PRODUCT), exceptions))
    print("\n".join(found) or f"{len(files.helpers)} helpers of tests exist once, and no test uses a private name")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
