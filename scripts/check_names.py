"""Refuse names that a reader could not guess, or would confuse, and names of modules that are not there: one name for
one thing.

.venv/bin/python scripts/check_names.py
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
PRODUCT: Final = ("refstore", "api", "reaper", "offline_gc", "purge", "s3_gateway")
LINES_MAX: Final = 60
"""Of a function, with its docstring."""
SAME_NAMES_MAY_STAND_IN: Final = frozenset({"cli", "routes", "ui", "kv", "objects", "engines", "redis", "s3"})
"""Folders of commands, routes, pages and drivers: their modules are named by what they stand for."""
NO_SUBJECT: Final = frozenset({"__init__", "__main__", "base"})
NO_GERUND: Final = frozenset({"encoding", "meaning", "ring", "spring", "staging", "string", "swing", "thing"})
IRREGULAR: Final = re.compile(
    "about|above|after|at|before|begun|behind|below|beside|between|brought|built|by|chosen|done|drawn|for|"
    "found|from|given|going|gone|had|held|hidden|in|into|kept|known|left|like|lost|made|met|near|of|off|on|out|"
    "over|ran|seeing|seen|sent|shown|since|standing|taken|there|through|to|told|under|unknown|until|via|"
    "waiting|when|where|with|without|written"
)
"""Participles and prepositions that are no name by themselves, beside the participles that end in `-ed`."""
NO_PARTICIPLE: Final = frozenset({"embed", "exceed", "feed", "need", "proceed", "seed", "speed", "shed"})
NAMED_WORDS: Final = "## Words of fields, settings and metrics"
"""The heading of docs/glossary.md below which each of these words stands in backquotes."""


class Names(NamedTuple):
    """What a tree of modules names, each with the place where it stands."""

    classes: list[tuple[str, str]]
    functions: list[tuple[str, str, int]]
    """With its number of lines."""
    modules: list[str]
    words: dict[str, str]
    """Words of JSON fields, settings and metrics, and one place of each."""
    named_modules: list[tuple[str, str]]
    """Names of modules in the docstrings of modules."""


def read_names(root: Path, folders: Sequence[str]) -> Names:
    """Read what all modules below these folders name."""
    names = Names([], [], [], {}, [])
    for folder in folders:
        for file in sorted((root / folder).rglob("*.py")):
            place = str(file.relative_to(root))
            names.modules.append(place)
            tree = ast.parse(file.read_text("utf-8"))
            described = ast.get_docstring(tree) or ""
            names.named_modules.extend((name, place) for name in re.findall(r"(?<![\w/.])\w+\.py\b", described))
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    names.classes.append((node.name, place))
                    if _is_document(node, place):
                        _add_words(names, _fields(node), place)
                elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    lines = (node.end_lineno or node.lineno) - node.lineno + 1
                    names.functions.append((node.name, place, lines))
                elif isinstance(node, ast.Dict | ast.Call) and _names_fields(node, place):
                    _add_words(names, _strings(node), place)
    return names


def faults(names: Names, glossary: str, exceptions: dict[str, str]) -> Iterator[str]:
    """Yield a line for each name that breaks a rule, but for the exceptions, and for each exception that excuses none.

    `exceptions`: a reason by the fault's subject: a class, a module's path, `path: function`, or a word.
    """
    excused: set[str] = set()
    for subject, fault in _all_faults(names, glossary):
        if subject in exceptions:
            excused.add(subject)
        else:
            yield fault
    for subject in sorted(exceptions.keys() - excused):
        yield f"{subject}: is an exception, and breaks no rule; take it off the list"


def _all_faults(names: Names, glossary: str) -> Iterator[tuple[str, str]]:
    for name, places in _repeated((name.lstrip("_"), place) for name, place in names.classes):
        yield name, f"{', '.join(places)}: classes share the name {name}; say in each name which one it is"
    modules = [(Path(place).stem, place) for place in names.modules if not _may_be_repeated(place)]
    for name, places in _repeated(modules):
        yield name, f"{', '.join(places)}: modules share the name {name}"
    for place in names.modules:
        word = Path(place).stem.strip("_").split("_")[-1]
        if Path(place).stem not in NO_SUBJECT and (_is_gerund(word) or _is_participle(word)):
            yield place, f"{place}: a module is named by a noun, or by the verb of its operation"
    existing = {Path(place).name for place in names.modules}
    for name, place in names.named_modules:
        if name not in existing:
            yield f"{place}: {name}", f"{place}: its docstring names {name}, and there is no such module"
    for name, place, lines in names.functions:
        if lines > LINES_MAX:
            yield f"{place}: {name}", f"{place}: {name} has {lines} lines; split it by subject, or say why not"
    single_words = [(name, place) for name, place in names.classes if re.fullmatch("_?[A-Z][a-z]+", name)]
    for name, place in [*single_words, *((name, place) for name, place, _ in names.functions)]:
        if _is_participle(name.strip("_").lower()):
            yield f"{place}: {name}", f"{place}: {name} does not say which thing it is, or what it does"
    known = set(re.findall(r"`([a-z0-9]+)`", glossary.partition(NAMED_WORDS)[2].partition("\n## ")[0]))
    for word, place in sorted(names.words.items()):
        if word not in known:
            yield word, f"{place}: {word!r} is no word of docs/glossary.md; use one of its words, or add it there"
    for word in sorted(known - names.words.keys()):
        yield word, f"docs/glossary.md: no field, setting or metric has the word {word!r}; take it off the list"


def _repeated(named: Iterator[tuple[str, str]] | list[tuple[str, str]]) -> Iterator[tuple[str, list[str]]]:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for name, place in named:
        places[name].append(place)
    return ((name, found) for name, found in sorted(places.items()) if len(found) > 1)


def _may_be_repeated(place: str) -> bool:
    path = Path(place)
    return path.stem in NO_SUBJECT or not SAME_NAMES_MAY_STAND_IN.isdisjoint(path.parts[:-1])


def _is_gerund(word: str) -> bool:
    return word.endswith("ing") and word not in NO_GERUND


def _is_participle(word: str) -> bool:
    if word in NO_PARTICIPLE:
        return False
    return bool(IRREGULAR.fullmatch(word) or re.fullmatch("[a-z]+ed", word))


def _is_document(node: ast.ClassDef, place: str) -> bool:
    """Return whether the class's fields are a program's: of JSON, or of settings."""
    bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    return place.endswith("/models.py") or not bases.isdisjoint({"BaseModel", "BaseSettings"})


def _names_fields(node: ast.Dict | ast.Call, place: str) -> bool:
    """Return whether it is a row that a command prints, or declares a metric."""
    return "/cli/" in place if isinstance(node, ast.Dict) else ast.unparse(node.func).rpartition(".")[2] == "Metric"


def _fields(node: ast.ClassDef) -> list[str]:
    targets = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _strings(node: ast.Dict | ast.Call) -> list[str]:
    """Return the keys of a row, or the name of a metric."""
    values = node.keys if isinstance(node, ast.Dict) else node.args[:1]
    return [key.value for key in values if isinstance(key, ast.Constant) and isinstance(key.value, str)]


def _add_words(names: Names, fields: list[str], place: str) -> None:
    for field in fields:
        if re.fullmatch(r"[a-z][a-z0-9_]*", field):
            for word in field.split("_"):
                names.words.setdefault(word, place)


def read_exceptions(text: str) -> dict[str, str]:
    """Read lines of `SUBJECT # REASON`. Raises ValueError for a line without a reason."""
    exceptions: dict[str, str] = {}
    for line in text.splitlines():
        subject, mark, reason = line.partition(" # ")
        if line.strip() and not line.startswith("#"):
            if not mark or not reason.strip():
                raise ValueError(f"an exception without a reason: {line}")
            exceptions[subject.strip()] = reason.strip()
    return exceptions


def main() -> int:
    """Print the faults; return 1 if there is one."""
    names = read_names(ROOT, PRODUCT)
    glossary = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    exceptions = read_exceptions((ROOT / "scripts" / "name_exceptions.txt").read_text("utf-8"))
    found = list(faults(names, glossary, exceptions))
    print("\n".join(found) or f"{len(names.classes)} classes and {len(names.functions)} functions are named well")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
